"""Which records of a batch survive a compaction, and the batch that is made of them.

In scope: the rules, over tables of records. Out of scope: files, clocks, the map itself.

- Of each key in the map the record at the newest offset stays; all records of a key that is not in it stay,
  and so does everything at or above the map's end, which the map has not seen.
- A tombstone stays long enough for consumers to see it: the first compaction that finds it newest writes its
  delete horizon, now + `delete.retention.ms`, into the batch; one that runs after the horizon drops it
  (KIP-534).
- A record without a key goes: it cannot be in a compacted topic but from before it was one (Kafka's rule).
- A batch keeps its base offset, last offset, and sequence numbers, whatever goes: offsets have holes, and
  nothing moves.
- A batch without records stays, empty, where it is a live producer's last one, so that a restart still knows
  its sequence and epoch, and at the end of a segment: so a segment's file says up to which offset it covers
  the log, which recovery needs when a crash interrupts its coming into place.
- Records of aborted transactions go.
- A marker stays while there are batches of its transaction: without it, the rest of an aborted transaction
  would be taken for committed. The first compaction that finds none of them writes a delete horizon into the
  marker, as into a tombstone: followers and consumers that have read the batches still get the marker. One
  that runs after the horizon drops it (KIP-534).
- A batch whose records cannot be read is left alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mainstem_broker.config.setting import INT64_MAX
from mainstem_broker.log.compaction.key_map import EMPTY, Int64s
from mainstem_broker.log.compaction.record_walk import walk_records
from mainstem_broker.log.compaction.records import (
    NO_KEY,
    Flags,
    RecordTable,
    check_crcs,
    encode_varint,
    is_control,
)
from mainstem_broker.protocol.batches import (
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    parse_batch_header,
    rewrite,
)
from mainstem_broker.protocol.compression import Codec, compress
from mainstem_broker.protocol.markers import read_marker

_DELETE_HORIZON = 0x40
_CODEC = 0x07
_ONE_BATCH: Final = struct.Struct("<qqqq")
"""What `walk_records` takes for a batch."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a pass goes by.

    `last_offsets` are those of the last batches of live producers, by producer id; `marker_epochs` are the
    epochs of those that have written none in their epoch.
    """

    map_end_offset: int
    now_ms: int
    delete_retention_ms: int
    last_offsets: Mapping[int, int]
    marker_epochs: Mapping[int, int]

    @property
    def new_horizon_ms(self) -> int:
        """The delete horizon of what this pass finds first; the largest time there is means never."""
        return min(self.now_ms + self.delete_retention_ms, INT64_MAX)


class OutputBatch(NamedTuple):
    """A batch of the output: what an index needs, and its bytes."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    content: bytes | memoryview


def surviving(table: RecordTable, newest: Int64s, aborted: Flags, rules: Rules) -> Flags:
    """For each record whether it stays.

    Args:
        newest: for each record its key's newest offset in the map, or `EMPTY`.
        aborted: for each batch whether its transaction was aborted.
    """
    has_horizon = (table.headers["attributes"] & _DELETE_HORIZON) != 0
    is_past = has_horizon & (table.headers["base_timestamp"] <= rules.now_ms)
    is_expired_tombstone = ~table.has_value & is_past[table.batch]
    stays = (
        (table.key_lengths != NO_KEY)
        & ((newest == EMPTY) | (table.offsets >= newest))
        & ~is_expired_tombstone
    )
    result: Flags = (stays | (table.offsets >= rules.map_end_offset)) & ~aborted[table.batch]
    return result


def rewritten(
    stretch: bytes,
    table: RecordTable,
    stays: Flags,
    without_batches: Flags,
    rules: Rules,
    *,
    ends_segment: bool,
) -> Iterator[OutputBatch]:
    """The batches of the output, in order. With `ends_segment` the last one stays in any case.

    Args:
        stays: for each record whether it stays.
        without_batches: for each batch whether it is a marker of whose transaction no batch is left.
    """
    headers = table.headers
    view = memoryview(stretch)
    totals = np.bincount(table.batch, minlength=len(headers))
    kept = np.bincount(table.batch[stays], minlength=len(headers))
    has_tombstone = np.bincount(table.batch[stays & ~table.has_value], minlength=len(headers)) > 0
    has_horizon = (headers["attributes"] & _DELETE_HORIZON) != 0
    last_offsets = headers["base_offset"] + headers["last_offset_delta"]
    needs_horizon = has_tombstone & ~has_horizon & (last_offsets < rules.map_end_offset)
    is_past = has_horizon & (headers["base_timestamp"] <= rules.now_ms)
    marker_goes = without_batches & (is_past | (headers["record_count"] == 0))
    marker_needs_horizon = without_batches & ~has_horizon & (headers["record_count"] == 1)
    stays_whole = (table.opaque & ~marker_goes & ~marker_needs_horizon) | (
        (kept > 0) & (kept == totals) & ~needs_horizon
    )
    has_gone = ~stays_whole & ~marker_needs_horizon & (kept == 0)
    stays_empty = has_gone & _is_last_of_producer(headers, last_offsets, rules)
    if ends_segment:
        stays_empty[-1] |= has_gone[-1]
    firsts = np.cumsum(totals) - totals
    numbers = np.flatnonzero(stays_whole | (kept > 0) | stays_empty | marker_needs_horizon)
    # Plain integers: most batches of the output are as they were, and cost a step of this loop each.
    bounds = (headers["start"], headers["end"], headers["base_offset"], last_offsets)
    columns = (stays_whole, *bounds, headers["max_timestamp"])
    for number, is_whole, start, end, base_offset, last_offset, max_timestamp in zip(
        numbers.tolist(), *(column[numbers].tolist() for column in columns), strict=True
    ):
        if is_whole:
            yield OutputBatch(base_offset, last_offset, max_timestamp, view[start:end])
            continue
        check_crcs(stretch, headers[number : number + 1])  # a new checksum vouches for the bytes
        header = parse_batch_header(view, start)
        if kept[number]:
            rows = np.arange(firsts[number], firsts[number] + totals[number])
            horizon_ms = rules.new_horizon_ms if needs_horizon[number] else None
            header, content = _rebuilt(header, table, rows[stays[rows]], horizon_ms)
        elif marker_needs_horizon[number]:
            header, content = _marker_with_horizon(header, stretch[start:end], rules.new_horizon_ms)
        else:
            header, content = _emptied(header)
        yield OutputBatch(header.base_offset, header.last_offset, header.max_timestamp, content)


def _is_last_of_producer(headers: NDArray[np.void], last_offsets: Int64s, rules: Rules) -> Flags:
    """Which batches are the last ones of live producers, or markers that alone tell a producer's epoch."""
    result: Flags = np.isin(last_offsets, np.fromiter(rules.last_offsets.values(), dtype=np.int64))
    for number in np.flatnonzero(result).tolist():
        producer_id = int(headers["producer_id"][number])
        result[number] = producer_id >= 0 and rules.last_offsets.get(producer_id) == last_offsets[number]
    if rules.marker_epochs:
        for number in np.flatnonzero(is_control(headers)).tolist():
            epoch = rules.marker_epochs.get(int(headers["producer_id"][number]))
            result[number] |= epoch == headers["producer_epoch"][number]
    return result


def _rebuilt(
    header: BatchHeader, table: RecordTable, rows: Int64s, horizon_ms: int | None
) -> tuple[BatchHeader, bytes]:
    plain = memoryview(table.plain.data)
    if horizon_ms is None:
        base_timestamp, attributes = header.base_timestamp, header.attributes
        records: list[bytes | memoryview] = [
            plain[start:end]
            for start, end in zip(table.starts[rows].tolist(), table.ends[rows].tolist(), strict=True)
        ]
    else:
        # The horizon takes the place of the base timestamp, so each record's delta is written anew.
        base_timestamp, attributes = horizon_ms, header.attributes | _DELETE_HORIZON
        records = [
            part
            for row in rows.tolist()
            for part in _with_timestamp_delta(
                plain,
                int(table.starts[row]),
                int(table.timestamp_ends[row]),
                int(table.ends[row]),
                header.base_timestamp + int(table.timestamp_deltas[row]) - horizon_ms,
            )
        ]
    max_timestamp = header.max_timestamp
    if not header.log_append_time:
        max_timestamp = header.base_timestamp + int(table.timestamp_deltas[rows].max())
    payload = compress(header.codec, b"".join(records))
    changed = replace(
        header,
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=len(rows),
    )
    return rewrite(changed, payload)


def _marker_with_horizon(header: BatchHeader, batch: bytes, horizon_ms: int) -> tuple[BatchHeader, bytes]:
    """The marker with a delete horizon; as it is if it is no marker that can be read."""
    if header.codec is not Codec.NONE or read_marker(header, batch) is None:
        return header, batch
    fields, _ = walk_records(batch, _ONE_BATCH.pack(HEADER_BYTES, len(batch), 1, 0))
    start, end, _, timestamp_delta, timestamp_end, *_ = (int(field) for field in fields)
    delta_ms = header.base_timestamp + timestamp_delta - horizon_ms
    parts = _with_timestamp_delta(memoryview(batch), start, timestamp_end, end, delta_ms)
    attributes = header.attributes | _DELETE_HORIZON
    return rewrite(replace(header, attributes=attributes, base_timestamp=horizon_ms), b"".join(parts))


def _with_timestamp_delta(
    plain: memoryview, start: int, rest_at: int, end: int, delta_ms: int
) -> tuple[bytes | memoryview, ...]:
    """The record from `start` to `end` with another timestamp delta, behind which it goes on at `rest_at`."""
    while plain[start] >= 0x80:  # the record's length, then its attributes
        start += 1
    record_attributes = plain[start + 1 : start + 2]
    delta = encode_varint(delta_ms)
    length = encode_varint(len(record_attributes) + len(delta) + end - rest_at)
    return length, record_attributes, delta, plain[rest_at:end]


def _emptied(header: BatchHeader) -> tuple[BatchHeader, bytes]:
    """The batch without its records, uncompressed, as Kafka has them: no record, so no time."""
    emptied = replace(
        header,
        attributes=header.attributes & ~_CODEC & ~_DELETE_HORIZON,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        record_count=0,
    )
    return rewrite(emptied, b"")
