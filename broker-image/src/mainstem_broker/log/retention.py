"""Which segments are due for deletion. Pure.

In scope: the rules of time, size and log start offset. Out of scope: files, clocks, the log itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from mainstem_broker.config.topic_settings import TopicConfig
from mainstem_broker.log.segment import Segment


class DeletionReason(Enum):
    """Why a segment goes; the values end the sentence "deleted because ..."."""

    LOG_START = "all its offsets lie before the log start offset"
    SIZE = "the partition is larger than retention.bytes"
    TIME = "its latest record is older than retention.ms"


@dataclass(frozen=True, slots=True)
class SegmentAge:
    """A segment as retention sees it: `end_offset` is the next segment's base, or the log's end.

    `latest_ms` is the largest timestamp in it, or the file's time where records have none.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    latest_ms: int


@dataclass(frozen=True, slots=True)
class DeletedSegment:
    """A segment that retention dropped: offsets from `base_offset` to before `end_offset`."""

    base_offset: int
    end_offset: int
    size_bytes: int
    reason: DeletionReason


def segment_age(segment: Segment, end_offset: int) -> SegmentAge:
    latest_ms = segment.max_timestamp if segment.max_timestamp >= 0 else segment.modified_ms
    return SegmentAge(segment.base_offset, end_offset, segment.size_bytes, latest_ms)


def segment_ages(segments: Sequence[Segment], log_end_offset: int) -> list[SegmentAge]:
    """The ages of segments that follow each other, up to the log's end."""
    following = [segment.base_offset for segment in segments[1:]]
    # Without segments only the log's end is left, which is of none.
    return [segment_age(*each) for each in zip(segments, [*following, log_end_offset], strict=False)]


def segments_due(
    segments: Sequence[SegmentAge],
    config: TopicConfig,
    *,
    log_start_offset: int,
    high_watermark: int,
    now_ms: int,
) -> list[DeletionReason]:
    """The reasons for which the first segments go, one for each; the rest stay.

    `segments` are in order, without an empty newest one. Only a prefix can go, and nothing at or above the
    high watermark does: retention never drops a record that is not replicated yet.
    """
    size_bytes = sum(segment.size_bytes for segment in segments)
    reasons: list[DeletionReason] = []
    for segment in segments:
        if segment.end_offset > high_watermark:
            break
        size_bytes -= segment.size_bytes
        if segment.end_offset <= log_start_offset:
            reasons.append(DeletionReason.LOG_START)
        elif config.deletes and 0 <= config.retention_bytes <= size_bytes:
            reasons.append(DeletionReason.SIZE)
        elif config.deletes and 0 <= config.retention_ms < now_ms - segment.latest_ms:
            reasons.append(DeletionReason.TIME)
        else:
            break
    return reasons
