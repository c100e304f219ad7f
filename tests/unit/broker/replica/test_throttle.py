from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem_broker.replica.throttle import Throttle, throttled_replicas


class Clock:
    now_ms = 1_750_000_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_without_a_rate_everything_passes(clock: Clock) -> None:
    throttle = Throttle(clock)
    throttle.charge(10**12)
    assert throttle.may_pass()
    assert not throttle.is_limited


def test_what_passes_is_waited_for_afterwards(clock: Clock) -> None:
    throttle = Throttle(clock)
    throttle.set_rate(1_000)
    assert throttle.may_pass()
    throttle.charge(3_000)
    assert not throttle.may_pass()
    clock.now_ms += 2_000
    assert not throttle.may_pass(), "3,000 bytes at 1,000 a second, less the second's worth it began with"
    clock.now_ms += 1
    assert throttle.may_pass()


def test_a_long_pause_saves_up_for_no_more_than_a_second(clock: Clock) -> None:
    throttle = Throttle(clock)
    throttle.set_rate(1_000)
    clock.now_ms += 3_600_000
    throttle.charge(1_000)
    clock.now_ms += 3_600_000
    assert throttle.may_pass()
    throttle.charge(1_001)
    assert not throttle.may_pass()


def test_the_same_rate_again_forgives_nothing_and_another_one_counts_at_once(clock: Clock) -> None:
    throttle = Throttle(clock)
    throttle.set_rate(1_000)
    throttle.charge(5_000)
    throttle.set_rate(1_000)
    assert not throttle.may_pass()
    throttle.set_rate(2_000)
    assert throttle.may_pass()


def test_a_rate_of_nothing_lets_nothing_pass(clock: Clock) -> None:
    throttle = Throttle(clock)
    throttle.set_rate(0)
    clock.now_ms += 10_000
    assert not throttle.may_pass()


def test_a_clock_that_was_set_back_only_delays(clock: Clock) -> None:
    throttle = Throttle(clock)
    throttle.set_rate(1_000)
    throttle.charge(1_000)
    clock.now_ms -= 60_000
    assert not throttle.may_pass()
    clock.now_ms += 1
    assert throttle.may_pass()


@given(
    rate=st.integers(1, 10**9),
    fetches=st.lists(st.tuples(st.integers(1, 500), st.integers(0, 10**7)), min_size=1, max_size=200),
)
def test_over_any_time_no_more_passes_than_the_rate_a_second_and_one_fetch(
    rate: int, fetches: list[tuple[int, int]]
) -> None:
    clock = Clock()
    began_ms = clock.now_ms
    throttle = Throttle(clock)
    throttle.set_rate(rate)
    passed = 0
    for pause_ms, size_bytes in fetches:
        clock.now_ms += pause_ms
        if throttle.may_pass():
            throttle.charge(size_bytes)
            passed += size_bytes
        allowed = rate * (clock.now_ms - began_ms + 1_000) / 1_000
        assert passed <= allowed + max(size for _, size in fetches)


def test_all_replicas_or_some_are_named() -> None:
    assert throttled_replicas("*")(7, 1)
    named = throttled_replicas("0:1,3:2")
    assert [key for key in ((0, 1), (0, 2), (3, 2), (1, 1)) if named(*key)] == [(0, 1), (3, 2)]
    assert not throttled_replicas("")(0, 0)
    assert not throttled_replicas("nonsense,1:x")(1, 0)
