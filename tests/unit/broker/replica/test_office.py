from __future__ import annotations

from mainstem_broker.replica.office import NO_LIFE, Office


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def may_act(office: Office, incarnation: int) -> bool:
    return office.is_held_by(incarnation) and office.is_open()


def test_an_office_is_closed_until_a_life_has_begun_and_a_heartbeat_was_answered() -> None:
    office = Office(Clock())
    assert not may_act(office, 0)
    office.begin(0)
    assert not may_act(office, 0)
    office.extend(1.0)
    assert may_act(office, 0)


def test_an_office_closes_at_the_time_without_being_told() -> None:
    """A process that was stopped (SIGSTOP) cannot be told that its session has ended."""
    clock = Clock()
    office = Office(clock)
    office.begin(3)
    office.extend(6.0)
    clock.now_s = 5.9
    assert may_act(office, 3)
    clock.now_s = 6.0
    assert not may_act(office, 3)
    office.extend(12.0)
    assert may_act(office, 3)


def test_what_was_given_to_another_life_is_void() -> None:
    office = Office(Clock())
    office.begin(3)
    office.extend(1.0)
    assert not may_act(office, 2)
    office.begin(4)
    assert not may_act(office, 3)
    assert may_act(office, 4)


def test_an_office_that_has_ended_is_open_to_nobody_though_its_time_is_not_over() -> None:
    office = Office(Clock())
    office.begin(3)
    office.extend(1.0)
    office.end()
    for incarnation in (3, NO_LIFE):
        assert not may_act(office, incarnation)


def test_a_state_that_names_no_life_opens_no_office() -> None:
    office = Office(Clock())
    office.extend(1.0)
    assert not may_act(office, NO_LIFE)
