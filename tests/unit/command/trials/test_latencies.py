"""What many measured times come to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainstem.trials.latencies import Latencies


def test_percentiles_are_times_that_were_measured() -> None:
    result = Latencies.of(number / 1000 for number in range(1, 1001))
    assert result == Latencies(1000, p50_ms=500, p95_ms=950, p99_ms=990, p999_ms=999, max_ms=1000)


def test_one_time_is_all_percentiles_and_none_is_nothing() -> None:
    assert Latencies.of([0.002]) == Latencies(1, 2, 2, 2, 2, 2)
    assert Latencies.of([]) is None


@given(st.lists(st.floats(0, 100), min_size=1))
def test_percentiles_rise_to_the_longest(seconds: list[float]) -> None:
    result = Latencies.of(seconds)
    assert result is not None
    times = [result.p50_ms, result.p95_ms, result.p99_ms, result.p999_ms, result.max_ms]
    assert times == sorted(times)
    assert result.max_ms == round(max(seconds) * 1000, 3)
    assert set(times) <= {round(second * 1000, 3) for second in seconds}
