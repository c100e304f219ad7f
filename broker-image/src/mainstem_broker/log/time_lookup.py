"""Finding records by time: the first at or after a moment, and the latest.

Belongs here: the walk from time index to offset index to batch to record, over the segments of a log. Does
not: request semantics (what -1 and -2 mean, visibility up to the high watermark), and who decodes in which
thread.

A search has steps that take turns. `first_batch` finds the next batch that may hold the record; it is cheap
and belongs to the thread of the log. Where the index leaves many headers to be read, it answers a `Stretch`
of them instead, for `walk`. `first_record` decodes a batch. `walk` and `first_record` may take as long as a
client makes them take, within the bounds of a segment and a batch. They need nothing of the log, and may run
in any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from mainstem_broker.errors import CorruptMessage
from mainstem_broker.log.files import LogFile
from mainstem_broker.log.scanning import scan_headers
from mainstem_broker.log.segment import Segment, batch_at
from mainstem_broker.protocol.batches import NO_TIMESTAMP, BatchHeader, read_record_heads
from mainstem_broker.runtime.page_cache import read_at

WALKED_AT_ONCE_BYTES: Final = 64 * 1024
"""Of small batches a thousand headers: a millisecond or two."""
WALKED_IN_A_TURN_BYTES: Final = 4 * 1024 * 1024
"""Walks of several clients take turns after that."""


@dataclass(frozen=True, slots=True)
class TimestampOffset:
    """A record found by time. `leader_epoch` is its batch's; `timestamp` is ms."""

    offset: int
    timestamp: int
    leader_epoch: int


class StoredBatch(NamedTuple):
    """A batch as it lies in the log."""

    header: BatchHeader
    batch: bytes


class Stretch(NamedTuple):
    """The batches of a segment from one position to another, whose headers have to be read.

    The index tells the time of a batch only if it is later than all before it, so a segment whose first
    record is of the far future may have to be read to its end.
    """

    file: LogFile
    position: int
    end: int
    end_offset: int
    """Of the segment."""


class LargestTimestamp(NamedTuple):
    """The largest timestamp by headers alone, -1 for none.

    `cut_batch` is the batch that the log start offset lies in. It may hold a larger one, which only its
    records tell. So may `rest`, if there is one: `largest_in_stretch` tells.
    """

    timestamp_ms: int
    cut_batch: StoredBatch | None
    rest: Stretch | None


def first_batch(
    segments: Sequence[Segment], timestamp_ms: int, from_offset: int
) -> StoredBatch | Stretch | None:
    """The first batch, from `from_offset` on, whose largest timestamp is `timestamp_ms` or later.

    If that is not near where the index points to, the answer is where to `walk` on.
    """
    for segment in segments:
        if segment.max_timestamp < timestamp_ms or segment.next_offset <= from_offset:
            continue
        # Nothing up to this offset is late enough, so the search begins with the batch after it.
        offset = segment.base_offset + segment.time_index.offset_before_timestamp(timestamp_ms)
        batch_position = segment.find(max(offset + 1, from_offset))
        if batch_position is None:
            continue
        stretch = Stretch(segment.file, batch_position[0], segment.size_bytes, segment.next_offset)
        match = walk(stretch, timestamp_ms, WALKED_AT_ONCE_BYTES)
        if match is not None:
            return match
    return None


def walk(
    stretch: Stretch, timestamp_ms: int, bytes_max: int = WALKED_IN_A_TURN_BYTES
) -> StoredBatch | Stretch | None:
    """The first batch of the stretch whose largest timestamp is `timestamp_ms` or later; None if none is.

    After `bytes_max` without one, the answer is what is left of the stretch.
    """
    for position, header in scan_headers(stretch.file, stretch.position, stretch.end):
        if header.max_timestamp >= timestamp_ms:
            return StoredBatch(header, read_at(stretch.file, header.size_bytes, position))
        if position - stretch.position > bytes_max:
            return stretch._replace(position=position + header.size_bytes)
    return None


def first_record(stored: StoredBatch, timestamp_ms: int, from_offset: int) -> TimestampOffset | None:
    """The first record of the batch, from `from_offset` on, whose timestamp is `timestamp_ms` or later.

    A batch that cannot be decoded, or only at too high a cost, counts by its header: its first offset and its
    largest timestamp. A consumer that begins there misses nothing.
    """
    header = stored.header
    try:
        for offset, found_ms in _records(stored):
            if found_ms >= timestamp_ms and offset >= from_offset:
                return TimestampOffset(offset, found_ms, header.partition_leader_epoch)
    except CorruptMessage:
        return TimestampOffset(
            max(header.base_offset, from_offset), header.max_timestamp, header.partition_leader_epoch
        )
    return None


def largest_timestamp(segments: Sequence[Segment], log_start_offset: int) -> LargestTimestamp:
    """The largest timestamp of the records from `log_start_offset` on."""
    largest = NO_TIMESTAMP
    cut_batch: StoredBatch | None = None
    rest: Stretch | None = None
    for segment in segments:
        if segment.base_offset >= log_start_offset:
            largest = max(largest, segment.max_timestamp)
            continue
        batch_position = segment.find(log_start_offset)
        if batch_position is None:
            continue
        position, first_offset = batch_position
        if first_offset < log_start_offset:
            cut_batch = StoredBatch(*batch_at(segment, position))
            position += cut_batch.header.size_bytes
            first_offset = cut_batch.header.next_offset
        if segment.max_timestamp_offset >= first_offset:
            largest = max(largest, segment.max_timestamp)
        else:
            rest = Stretch(segment.file, position, segment.size_bytes, segment.next_offset)
    return LargestTimestamp(largest, cut_batch, rest)


def largest_in_stretch(
    stretch: Stretch, bytes_max: int = WALKED_IN_A_TURN_BYTES
) -> tuple[int, Stretch | None]:
    """The largest timestamp by headers, -1 for none, of a stretch's first `bytes_max`; and what is left."""
    largest = NO_TIMESTAMP
    for position, header in scan_headers(stretch.file, stretch.position, stretch.end):
        largest = max(largest, header.max_timestamp)
        if position - stretch.position > bytes_max:
            return largest, stretch._replace(position=position + header.size_bytes)
    return largest, None


def largest_in_batch(stored: StoredBatch, from_offset: int) -> int:
    """The largest timestamp of the batch's records from `from_offset` on, -1 for none; costs as
    `first_record`."""
    try:
        return max((found_ms for offset, found_ms in _records(stored) if offset >= from_offset), default=-1)
    except CorruptMessage:
        return stored.header.max_timestamp


def _records(stored: StoredBatch) -> Iterator[tuple[int, int]]:
    """(offset, timestamp in ms) of each record."""
    header = stored.header
    for head in read_record_heads(header, stored.batch):
        yield (
            header.base_offset + head.offset_delta,
            header.max_timestamp if header.log_append_time else header.base_timestamp + head.timestamp_delta,
        )
