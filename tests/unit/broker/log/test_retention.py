from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.broker.log.logs import settings

from mainstem_broker.log.retention import DeletionReason, SegmentAge, segments_due

NOW_MS = 1_000_000
TEN = [SegmentAge(number * 10, number * 10 + 10, 100, NOW_MS - 1000 + number * 100) for number in range(10)]


def due(
    *,
    retention_ms: int = -1,
    retention_bytes: int = -1,
    log_start_offset: int = 0,
    high_watermark: int = 100,
    cleanup_policy: str = "delete",
) -> list[DeletionReason]:
    return segments_due(
        TEN,
        settings(retention_ms=retention_ms, retention_bytes=retention_bytes, cleanup_policy=cleanup_policy),
        log_start_offset=log_start_offset,
        high_watermark=high_watermark,
        now_ms=NOW_MS,
    )


def test_segments_whose_latest_record_is_too_old_go() -> None:
    """R4. They are 1000, 900, ... ms old."""
    assert due(retention_ms=800) == [DeletionReason.TIME] * 2
    assert due(retention_ms=1000) == []
    assert due(retention_ms=0) == [DeletionReason.TIME] * 10


def test_segments_that_the_size_can_do_without_go() -> None:
    """R4. A segment stays while the rest alone would be smaller than the bound."""
    assert due(retention_bytes=1000) == []
    assert due(retention_bytes=901) == []
    assert due(retention_bytes=900) == [DeletionReason.SIZE]
    assert due(retention_bytes=450) == [DeletionReason.SIZE] * 5
    assert due(retention_bytes=0) == [DeletionReason.SIZE] * 10


def test_segments_wholly_before_the_log_start_go_whatever_the_policy() -> None:
    assert due(log_start_offset=29, cleanup_policy="compact") == [DeletionReason.LOG_START] * 2
    assert due(log_start_offset=30, cleanup_policy="compact") == [DeletionReason.LOG_START] * 3


def test_a_compacted_topic_loses_nothing_to_time_or_size() -> None:
    assert due(retention_ms=0, retention_bytes=0, cleanup_policy="compact") == []
    assert len(due(retention_ms=0, cleanup_policy="compact,delete")) == 10


def test_nothing_at_or_above_the_high_watermark_goes() -> None:
    """R22: what is not replicated yet is not retention's to drop."""
    assert len(due(retention_ms=0, high_watermark=40)) == 4
    assert len(due(retention_ms=0, high_watermark=39)) == 3


def test_a_young_segment_keeps_the_older_ones_behind_it() -> None:
    ages = [SegmentAge(0, 10, 100, NOW_MS), SegmentAge(10, 20, 100, 0)]
    config = settings(retention_ms=1000)
    assert segments_due(ages, config, log_start_offset=0, high_watermark=20, now_ms=NOW_MS) == []


@given(
    sizes=st.lists(st.integers(1, 50), max_size=8),
    retention_bytes=st.integers(0, 300),
    high_watermark=st.integers(0, 80),
)
def test_size_retention_keeps_at_least_its_bytes(
    sizes: list[int], retention_bytes: int, high_watermark: int
) -> None:
    ages = [SegmentAge(n * 10, n * 10 + 10, size, 0) for n, size in enumerate(sizes)]
    config = settings(retention_bytes=retention_bytes, retention_ms=-1)
    count = len(segments_due(ages, config, log_start_offset=0, high_watermark=high_watermark, now_ms=1))
    kept = sum(sizes[count:])
    assert count == 0 or kept >= retention_bytes
    assert count * 10 <= high_watermark
    if count < len(sizes) and (count + 1) * 10 <= high_watermark:
        assert kept - sizes[count] < retention_bytes
