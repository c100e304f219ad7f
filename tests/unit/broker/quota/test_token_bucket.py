from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainstem_broker.quota.token_bucket import TokenBucket

NOW_MS = 1_750_000_000_000.0


def test_a_bucket_begins_full_and_fills_at_its_rate_up_to_the_burst() -> None:
    bucket = TokenBucket()
    assert bucket.fill(2, 20, NOW_MS) == 20
    bucket.take(25)
    assert bucket.fill(2, 20, NOW_MS) == -5
    assert bucket.fill(2, 20, NOW_MS + 1_000) == -3
    assert bucket.fill(2, 20, NOW_MS + 3_600_000) == 20


def test_a_clock_that_is_set_back_adds_nothing() -> None:
    bucket = TokenBucket()
    bucket.fill(2, 20, NOW_MS)
    bucket.take(20)
    assert bucket.fill(2, 20, NOW_MS - 60_000) == 0
    assert bucket.fill(2, 20, NOW_MS - 59_000) == 2


def test_a_lower_burst_holds_at_once() -> None:
    bucket = TokenBucket()
    assert bucket.fill(2, 20, NOW_MS) == 20
    assert bucket.fill(1, 5, NOW_MS) == 5


@given(
    rate=st.floats(0.5, 100),
    steps=st.lists(st.tuples(st.floats(0, 5_000), st.integers(1, 50)), min_size=1, max_size=50),
)
def test_nobody_gets_more_than_the_burst_and_the_rate_allow_and_one_request(
    rate: float, steps: list[tuple[float, int]]
) -> None:
    bucket, burst = TokenBucket(), 11 * rate
    now_ms, taken, largest = NOW_MS, 0, 0
    for passed_ms, amount in steps:
        now_ms += passed_ms
        if bucket.fill(rate, burst, now_ms) >= 0:
            bucket.take(amount)
            taken, largest = taken + amount, max(largest, amount)
        assert taken <= burst + rate * (now_ms - NOW_MS) / 1000 + largest + 1e-3
