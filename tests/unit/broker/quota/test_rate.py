from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainstem_broker.quota.rate import Rate

COUNT, WINDOW_MS = 11, 1_000
START_MS = 1_750_000_000_000.0


def test_whoever_was_idle_may_take_ten_windows_worth_at_once() -> None:
    """Kafka divides by all windows but the one that has just begun."""
    rate = Rate(COUNT, WINDOW_MS)
    rate.record(10_000, START_MS)
    assert rate.wait_ms(1_000, START_MS) == 0
    rate.record(1, START_MS)
    assert rate.wait_ms(1_000, START_MS) == 1


def test_what_was_taken_beyond_the_limit_is_waited_for_and_then_over() -> None:
    rate = Rate(COUNT, WINDOW_MS)
    rate.record(15_000, START_MS)
    assert rate.wait_ms(1_000, START_MS) == 5_000
    assert rate.wait_ms(1_000, START_MS + 4_000) == 5_000, "the span is ten windows until those have passed"
    assert rate.wait_ms(1_000, START_MS + 10_500) == 4_500
    assert rate.wait_ms(1_000, START_MS + 11_000) == 0, "its window is forgotten"


def test_windows_are_forgotten_one_by_one() -> None:
    rate = Rate(3, WINDOW_MS)
    for second, amount in enumerate((5, 7, 11)):
        rate.record(amount, START_MS + 1_000 * second)
    wait = rate.wait_ms(1, START_MS + 2_000)
    assert wait == (5 + 7 + 11 - 2) * 1_000
    assert rate.wait_ms(1, START_MS + 3_000) == (7 + 11 - 2) * 1_000
    assert rate.wait_ms(1, START_MS + 4_000) == (11 - 2) * 1_000
    assert not rate.is_idle(START_MS + 4_999)
    assert rate.is_idle(START_MS + 5_000)


def test_one_window_is_the_least_that_is_averaged_over() -> None:
    rate = Rate(1, WINDOW_MS)
    rate.record(100, START_MS)
    assert rate.wait_ms(100, START_MS) == 0
    rate.record(50, START_MS + 1)
    assert rate.wait_ms(100, START_MS + 1) == 500


def test_a_clock_that_was_set_back_makes_nobody_wait() -> None:
    rate = Rate(COUNT, WINDOW_MS)
    rate.record(10**9, START_MS)
    assert rate.wait_ms(1, START_MS - 1) == 0


@given(
    amounts=st.lists(st.integers(1, 50_000), min_size=1, max_size=50),
    limit=st.integers(100, 10_000),
    pauses_ms=st.lists(st.integers(0, 3_000), min_size=50, max_size=50),
)
def test_a_client_that_waits_as_it_was_throttled_takes_no_more_than_the_limit_in_the_long_run(
    amounts: list[int], limit: int, pauses_ms: list[int]
) -> None:
    """Whatever is taken when: beyond ten windows' worth and the last request, the limit holds."""
    rate = Rate(COUNT, WINDOW_MS)
    now_ms, taken = START_MS, 0
    for amount, pause_ms in zip(amounts, pauses_ms, strict=False):
        spent_s = (now_ms - START_MS) / 1000
        # The wait is computed for the present span; what falls out of it meanwhile is bounded by the span.
        assert taken <= limit * (spent_s + 2 * COUNT) + max(amounts)
        rate.record(amount, now_ms)
        taken += amount
        now_ms += rate.wait_ms(limit, now_ms) + pause_ms
