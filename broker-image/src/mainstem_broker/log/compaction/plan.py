"""Which part of a log is compacted next: a pure decision over what is known of its segments.

A compacted log has a clean part, in which each key was compacted against all that was there, and a dirty part
behind it. The first dirty offset divides them; it survives restarts in `cleaner-offset-checkpoint`. One pass
reads the keys of the dirty part, as many as the key map holds, and writes all segments up to there anew.

The newest segment is never compacted, nor is anything at or above the high watermark, nor a record younger
than `min.compaction.lag.ms`. A log is due when the dirty share reaches `min.cleanable.dirty.ratio`, or when a
record that may be compacted is older than `max.compaction.lag.ms`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mainstem_broker.config.setting import INT32_MAX, INT64_MAX
from mainstem_broker.config.topic_settings import TopicConfig
from mainstem_broker.log.compaction.facts import SegmentFacts


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """One pass: keys of [`first_dirty_offset`, `end_offset`) against all segments that begin before
    `end_offset`.
    """

    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_due: bool

    @property
    def dirty_ratio(self) -> float:
        """The dirty share of what the pass would read, from 0 to 1."""
        total_bytes = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total_bytes if total_bytes else 0.0


def plan_compaction(
    segments: Sequence[SegmentFacts],
    config: TopicConfig,
    *,
    first_dirty_offset: int,
    high_watermark: int,
    now_ms: int,
) -> CompactionPlan | None:
    """What a pass over the log would do now; None where nothing may be compacted.

    `segments` are all of the log, oldest first; the last is the one appended to. A `first_dirty_offset`
    outside the log, from a checkpoint that outlived a truncation or a retention, counts as the log's first
    offset.
    """
    if not config.compacts or len(segments) < 2:
        return None
    candidates = segments[:-1]
    if not segments[0].base_offset <= first_dirty_offset <= segments[-1].end_offset:
        first_dirty_offset = segments[0].base_offset
    end_offset = first_dirty_offset
    clean_bytes = dirty_bytes = 0
    is_overdue = False
    for segment in candidates:
        if segment.end_offset <= first_dirty_offset:
            clean_bytes += segment.size_bytes
            continue
        if segment.end_offset > high_watermark:
            break
        if config.min_compaction_lag_ms > 0 and segment.latest_ms > now_ms - config.min_compaction_lag_ms:
            break
        dirty_bytes += segment.size_bytes
        end_offset = segment.end_offset
        if config.max_compaction_lag_ms != INT64_MAX:
            is_overdue |= segment.earliest_ms < now_ms - config.max_compaction_lag_ms
    if end_offset == first_dirty_offset:
        return None
    plan = CompactionPlan(first_dirty_offset, end_offset, clean_bytes, dirty_bytes, is_due=False)
    is_due = is_overdue or plan.dirty_ratio >= config.min_cleanable_dirty_ratio
    return CompactionPlan(first_dirty_offset, end_offset, clean_bytes, dirty_bytes, is_due)


def group_segments(
    segments: Sequence[SegmentFacts], config: TopicConfig, end_offset: int
) -> list[tuple[SegmentFacts, ...]]:
    """The segments that begin before `end_offset`, in runs that fit into one segment each once they are
    compacted.

    Sizes are those before compaction, so that no output exceeds `segment.bytes`, nor the 31 bits in which
    indexes name offsets. A segment that is too large by itself is a run of its own.
    """
    groups: list[list[SegmentFacts]] = []
    size_bytes = 0
    for segment in segments[:-1]:
        if segment.base_offset >= end_offset:
            break
        if (
            groups
            and size_bytes + segment.size_bytes <= config.segment_bytes
            and segment.end_offset - 1 - groups[-1][0].base_offset <= INT32_MAX
        ):
            groups[-1].append(segment)
            size_bytes += segment.size_bytes
        else:
            groups.append([segment])
            size_bytes = segment.size_bytes
    return [tuple(group) for group in groups]
