"""Finding records by time: the first at or after a moment, and the latest.

Lives here: the walk from time index to offset index to batch to record, over the segments of a log. Must
not: request semantics (what -1 and -2 mean, visibility up to the high watermark).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mainstem_broker.log.scanning import scan_headers
from mainstem_broker.log.segment import Segment, batch_at
from mainstem_broker.protocol.batches import NO_TIMESTAMP, read_records
from mainstem_broker.protocol.records import Record


@dataclass(frozen=True, slots=True)
class TimestampOffset:
    """A record found by time. `leader_epoch` is its batch's; `timestamp` is ms."""

    offset: int
    timestamp: int
    leader_epoch: int


def first_at_or_after(
    segments: Sequence[Segment], timestamp_ms: int, log_start_offset: int
) -> TimestampOffset | None:
    """The first record by offset, from `log_start_offset` on, whose timestamp is `timestamp_ms` or later."""
    for segment in segments:
        if segment.max_timestamp < timestamp_ms or segment.next_offset <= log_start_offset:
            continue
        # Nothing up to this offset is late enough, so the search begins with the batch after it.
        offset = segment.base_offset + segment.time_index.offset_before_timestamp(timestamp_ms)
        found = segment.find(max(offset + 1, log_start_offset))
        if found is None:
            continue
        for position, header in scan_headers(segment.file, found[0], segment.size_bytes):
            if header.max_timestamp < timestamp_ms:
                continue
            for record in _records_from(segment, position, log_start_offset):
                if record.timestamp_ms >= timestamp_ms:
                    return TimestampOffset(record.offset, record.timestamp_ms, header.partition_leader_epoch)
    return None


def latest(segments: Sequence[Segment], log_start_offset: int) -> TimestampOffset | None:
    """The first record by offset, from `log_start_offset` on, with the largest timestamp of all."""
    largest = max(
        (_max_timestamp_from(segment, log_start_offset) for segment in segments), default=NO_TIMESTAMP
    )
    return first_at_or_after(segments, largest, log_start_offset) if largest >= 0 else None


def _max_timestamp_from(segment: Segment, log_start_offset: int) -> int:
    """The largest timestamp of the segment's records from `log_start_offset` on; -1 for none."""
    if segment.base_offset >= log_start_offset:
        return segment.max_timestamp
    found = segment.find(log_start_offset)
    if found is None:
        return NO_TIMESTAMP
    largest = NO_TIMESTAMP
    for position, header in scan_headers(segment.file, found[0], segment.size_bytes):
        if header.base_offset >= log_start_offset:
            largest = max(largest, header.max_timestamp)
        else:
            records = _records_from(segment, position, log_start_offset)
            largest = max((record.timestamp_ms for record in records), default=NO_TIMESTAMP)
    return largest


def _records_from(segment: Segment, position: int, log_start_offset: int) -> list[Record]:
    header, batch = batch_at(segment, position)
    return [record for record in read_records(header, batch) if record.offset >= log_start_offset]
