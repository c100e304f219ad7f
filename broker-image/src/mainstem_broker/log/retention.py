"""Which segments are due: a pure decision over what is known of each.

Lives here: the rules of time, size and log start offset. Must not: files, clocks, the log itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from mainstem_broker.config import TopicConfig


class DeletionReason(Enum):
    """Why a segment goes; the values end the sentence "deleted because ..."."""

    LOG_START = "all its offsets lie before the log start offset"
    SIZE = "the partition is larger than retention.bytes"
    TIME = "its latest record is older than retention.ms"


@dataclass(frozen=True, slots=True)
class SegmentAge:
    """What retention needs to know of a segment: `end_offset` is the next segment's base, or the log's end.

    `latest_ms` is the largest timestamp in it, or the file's time where records have none.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    latest_ms: int


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
    high watermark does: a record that is not yet replicated is never retention's to drop.
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
