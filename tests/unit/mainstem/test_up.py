"""How often `up` starts a process again."""

from __future__ import annotations

from mainstem.up import RestartBudget


def test_a_process_that_ends_now_and_then_is_started_again_for_ever() -> None:
    budget = RestartBudget(limit=3, window_seconds=60)
    assert all(budget.allows("Broker 1", now_seconds=31.0 * number) for number in range(100))


def test_a_process_that_ends_again_and_again_is_given_up() -> None:
    budget = RestartBudget(limit=3, window_seconds=60)
    assert [budget.allows("Broker 1", now_seconds=float(second)) for second in (0, 10, 20)] == [
        True,
        True,
        False,
    ]


def test_each_process_has_its_own_budget() -> None:
    budget = RestartBudget(limit=2, window_seconds=60)
    assert budget.allows("Broker 1", 0)
    assert budget.allows("Broker 2", 1)
    assert not budget.allows("Broker 1", 2)
