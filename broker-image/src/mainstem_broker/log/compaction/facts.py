"""Values that a log and its compaction exchange, and the names of output files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mainstem_broker.log.index import OffsetIndex, TimeIndex
from mainstem_broker.log.retention import segment_age
from mainstem_broker.log.segment import CLEANED_SUFFIX, LOG_SUFFIX, Segment, segment_path
from mainstem_broker.log.transaction_index import TransactionIndex


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """A segment as a plan sees it.

    `end_offset` is the base offset of the next one, or the log's end. `latest_ms` is its largest timestamp,
    or the time of its file where records have none; `earliest_ms` is that of its first batch.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    earliest_ms: int
    latest_ms: int


@dataclass(frozen=True, slots=True)
class CompactedGroup:
    """Segments from the one at `base_offset` to before `end_offset`, and what was made of them.

    `input_sizes_bytes` are those of the segments that were read: one of another size has changed since.
    """

    base_offset: int
    end_offset: int
    input_base_offsets: tuple[int, ...]
    input_sizes_bytes: tuple[int, ...]
    output_bytes: int
    records_read: int
    records_kept: int


def segment_facts(segments: Sequence[Segment], *, reads_first_timestamps: bool) -> list[SegmentFacts]:
    """The facts of all segments of a log, oldest first. May raise OSError.

    Without `reads_first_timestamps`, which costs a read per segment, `earliest_ms` is `latest_ms`.
    """
    facts: list[SegmentFacts] = []
    for number, segment in enumerate(segments):
        is_newest = number + 1 == len(segments)
        end_offset = segment.next_offset if is_newest else segments[number + 1].base_offset
        age = segment_age(segment, end_offset)
        earliest_ms = (
            segment.read_first_timestamp() if reads_first_timestamps and not is_newest else age.latest_ms
        )
        facts.append(
            SegmentFacts(
                segment.base_offset,
                end_offset,
                segment.size_bytes,
                earliest_ms if earliest_ms >= 0 else age.latest_ms,
                age.latest_ms,
            )
        )
    return facts


def compacted_files(directory: Path, base_offset: int) -> list[Path]:
    """The output files of a group, in the order in which they are to be renamed: the log comes last.

    The index of aborted transactions is there only where it has entries.
    """
    aborted = segment_path(directory, base_offset, TransactionIndex.SUFFIX + CLEANED_SUFFIX)
    return [
        *([aborted] if aborted.exists() else ()),
        *(
            segment_path(directory, base_offset, suffix + CLEANED_SUFFIX)
            for suffix in (OffsetIndex.SUFFIX, TimeIndex.SUFFIX, LOG_SUFFIX)
        ),
    ]


def unfinished_files(directory: Path) -> list[Path]:
    """The output files of groups in a log's directory that are not in place yet. May raise OSError."""
    return sorted(directory.glob("*" + CLEANED_SUFFIX))
