"""Record batches to Arrow, a whole fetch at a time.

A record (KIP-98) is a run of zigzag varints and bytes:

    length | attributes (1 byte) | timestamp - base | offset - base | key length, key | value length, value |
    number of headers, and for each: key length, key, value length, value

with length -1 for a null key or value. Where records begin is found by `record_walk`; everything else is read
by numpy for many records at once, at arrays of positions. Keys and values are then cut out by Arrow: the
plain bytes, seen as one binary array whose elements are key, gap, value, gap, key ..., of which every fourth
is taken.

Must not live here: what a value means (`payload`), or which batches count (`batches`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from mainstem_loader.arrow_arrays import (
    Array,
    Bytes,
    Flags,
    Int64s,
    cut_binary,
    null_flags,
    of_numbers,
    repeated,
)
from mainstem_loader.columns import HEADERS_TYPE
from mainstem_loader.kafka.batches import Batch, Source, readable_batches, scan_batches
from mainstem_loader.kafka.compression import NO_CODEC, DecompressionFailedError, Decompressor
from mainstem_loader.kafka.fetch import EpochEnd, FetchedRecords
from mainstem_loader.kafka.record_walk import VARINT_BYTES_MAX, read_varint, record_starts

_RECORD_TYPES: Final[dict[str, pa.DataType]] = {
    "offset": pa.int64(),
    "timestamp_ms": pa.int64(),
    "key": pa.binary(),
    "value": pa.binary(),
}
RECORD_SCHEMA: Final = pa.schema(_RECORD_TYPES)

# A fetch of well compressed batches may inflate to a hundred times its size, so it is decoded in parts of
# about this many plain bytes: enough to read many batches at a time, and few enough to keep many tasks in
# memory.
PART_BYTES: Final = 32 * 1024 * 1024

# So many records' positions and lengths stay in the processor's cache.
BLOCK_RECORDS: Final = 32 * 1024


@dataclass(frozen=True, slots=True)
class DecodedRecords:
    """`blocks`: the wanted records, of `RECORD_SCHEMA`, followed by `headers` (`HEADERS_TYPE`) and
    `timestamp_type` (int32) when requested; decoded while they are taken, once. Where headers were not
    requested and a record of the block has some, `header_bytes` keeps them for `headers_of`. `next_offset`:
    where the next fetch begins; moved by every whole batch, also by one without records. `epochs`: the leader
    epochs of the batches, rising.
    """

    blocks: Iterator[pa.RecordBatch]
    next_offset: int
    epochs: Sequence[EpochEnd]


def decode_records(
    fetched: FetchedRecords,
    source: Source,
    start: int,
    end: int,
    with_headers: bool = False,
    with_timestamp_type: bool = False,
) -> DecodedRecords:
    """The records with offsets from `start` to `end`, exclusive, of what a fetch at `start` brought.

    Every batch's CRC is checked before anything else. Batches may begin before `start` and end after `end`; a
    last batch that is cut off is left for the next fetch. Control batches and records of aborted transactions
    are skipped. `timestamp_type` is 0 where the producer set the timestamp, 1 where the broker did (KIP-32).

    Raises:
        CorruptBatchError: with topic, partition and offset; also while blocks are taken.
    """
    batches: list[Batch] = []
    epochs: list[EpochEnd] = []
    next_offset = start
    for batch in scan_batches(fetched.records, source, start, fetched.high_watermark):
        if batch.base_offset >= end:
            next_offset = end
            break
        batches.append(batch)
        next_offset = min(end, batch.last_offset + 1)
        if epochs and epochs[-1].epoch == batch.leader_epoch:
            epochs.pop()
        epochs.append(EpochEnd(batch.leader_epoch, next_offset))
    readable = [
        batch for batch in readable_batches(batches, fetched.records, fetched.aborted) if batch.record_count
    ]
    extras = _Extras(with_headers, with_timestamp_type)
    blocks = _decode(readable, fetched.records, source, start, end, extras)
    return DecodedRecords(blocks, next_offset, epochs)


@dataclass(frozen=True, slots=True)
class _Extras:
    """Columns beyond `RECORD_SCHEMA`."""

    headers: bool
    timestamp_type: bool


def _decode(
    batches: Sequence[Batch], fetched: bytes, source: Source, start: int, end: int, extras: _Extras
) -> Iterator[pa.RecordBatch]:
    for plain, begins, ends, part in _plain_parts(batches, fetched, source):
        for block in _decode_plain(plain, begins, ends, part, source, extras):
            # Offsets rise, so what is wanted is one slice, and usually all of it.
            first, last = np.searchsorted(block.column("offset").to_numpy(), [start, end]).tolist()
            if first < last:
                yield block.slice(first, last - first)


def _plain_parts(
    batches: Sequence[Batch], fetched: bytes, source: Source
) -> Iterator[tuple[bytes, Int64s, Int64s, Sequence[Batch]]]:
    """The batches in parts: plain bytes, where in them each batch's records begin and end, and the
    batches.
    """
    if batches and all(batch.codec == NO_CODEC for batch in batches):
        begins = np.array([batch.records_begin for batch in batches], dtype=np.int64)
        ends = np.array([batch.records_end for batch in batches], dtype=np.int64)
        yield fetched, begins, ends, batches
        return
    decompressor = Decompressor()
    part: list[Batch] = []
    pieces: list[bytes | bytearray | memoryview] = []
    size = 0
    for batch in batches:
        records = memoryview(fetched)[batch.records_begin : batch.records_end]
        try:
            pieces.append(decompressor.decompress(batch.codec, records))
        except DecompressionFailedError as error:
            source.corrupt(batch.base_offset, f"the records of a batch do not decompress ({error})")
        part.append(batch)
        size += len(pieces[-1])
        if size >= PART_BYTES or batch is batches[-1]:
            ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
            yield b"".join(pieces), np.concatenate(([0], ends[:-1])), ends, part
            part, pieces, size = [], [], 0


@dataclass(frozen=True, slots=True)
class _PerBatch:
    """What records take from their batch, an element for each batch."""

    base_offset: Int64s
    last_offset: Int64s
    base_timestamp_ms: Int64s
    max_timestamp_ms: Int64s
    has_append_time: Flags


def _decode_plain(
    plain: bytes, begins: Int64s, ends: Int64s, batches: Sequence[Batch], source: Source, extras: _Extras
) -> Iterator[pa.RecordBatch]:
    """All records of `batches`, whose plain bytes lie in `plain` from `begins` to `ends`."""
    counts = np.array([batch.record_count for batch in batches], dtype=np.int64)
    starts = record_starts(plain, begins, ends, counts)
    if starts is None:
        source.corrupt(batches[0].base_offset, "the records of a batch do not fill it")
    batch_of = np.repeat(np.arange(len(batches)), counts)
    # Where a record ends: where the next one begins, or its batch does.
    record_ends = np.append(starts[1:], 0)
    record_ends[np.cumsum(counts) - 1] = ends
    per_batch = _PerBatch(
        np.array([batch.base_offset for batch in batches], dtype=np.int64),
        np.array([batch.last_offset for batch in batches], dtype=np.int64),
        np.array([batch.base_timestamp_ms for batch in batches], dtype=np.int64),
        np.array([batch.max_timestamp_ms for batch in batches], dtype=np.int64),
        np.array([batch.has_append_time for batch in batches], dtype=np.bool_),
    )
    data = np.frombuffer(plain, dtype=np.uint8)
    before = int(per_batch.base_offset[0]) - 1
    for first in range(0, len(starts), BLOCK_RECORDS):
        part = slice(first, first + BLOCK_RECORDS)
        try:
            fields = _read_fields(data, starts[part], record_ends[part])
        except IndexError:
            fields = None
        if fields is None or not _is_sound(fields):
            source.corrupt(before + 1, "the records of a batch are not laid out as records")
        batch = batch_of[part]
        offsets = per_batch.base_offset[batch] + fields.offset_delta
        if (
            offsets[0] <= before
            or np.any(offsets[1:] <= offsets[:-1])
            or np.any(fields.offset_delta < 0)
            or np.any(offsets > per_batch.last_offset[batch])
        ):
            source.corrupt(before + 1, "the offsets of a batch's records are not in order")
        before = int(offsets[-1])
        columns: list[Array] = [
            of_numbers(offsets),
            of_numbers(_timestamps(per_batch, batch, fields.timestamp_delta)),
            *_cut_keys_and_values(plain, fields),
        ]
        schema = RECORD_SCHEMA
        if extras.headers:
            schema = schema.append(pa.field("headers", HEADERS_TYPE))
            columns.append(_read_headers(_cut_headers(plain, fields), source, offsets))
        elif fields.header_count.any():
            schema = schema.append(pa.field("header_bytes", pa.binary()))
            columns.append(_cut_headers(plain, fields))
        if extras.timestamp_type:
            schema = schema.append(pa.field("timestamp_type", pa.int32()))
            columns.append(of_numbers(per_batch.has_append_time[batch].astype(np.int32)))
        yield pa.record_batch(columns, schema=schema)


@dataclass(frozen=True, slots=True)
class _Fields:
    """What numpy read, an element for each record. Lengths are as written, -1 for null; `*_begin` and `*_end`
    are positions in the plain bytes.
    """

    record_end: Int64s
    timestamp_delta: Int64s
    offset_delta: Int64s
    key_length: Int64s
    key_begin: Int64s
    key_end: Int64s
    value_length: Int64s
    value_begin: Int64s
    value_end: Int64s
    header_count: Int64s
    headers_begin: Int64s


def _read_fields(data: Bytes, starts: Int64s, record_ends: Int64s) -> _Fields:
    """Raises IndexError when a position lies outside of `data`."""
    attributes_at = _skip_varints(data, starts)
    timestamp_delta, position = _read_varints(data, attributes_at + 1)
    offset_delta, position = _read_varints(data, position)
    key_length, key_begin = _read_varints(data, position)
    key_end = key_begin + np.maximum(key_length, 0)
    value_length, value_begin = _read_varints(data, key_end)
    value_end = value_begin + np.maximum(value_length, 0)
    header_count, headers_begin = _read_varints(data, value_end)
    return _Fields(
        record_ends,
        timestamp_delta,
        offset_delta,
        key_length,
        key_begin,
        key_end,
        value_length,
        value_begin,
        value_end,
        header_count,
        headers_begin,
    )


def _skip_varints(data: Bytes, positions: Int64s) -> Int64s:
    """The positions behind the varints at `positions`."""
    behind = positions + 1
    longer = np.flatnonzero(data[positions] >= 0x80)
    if len(longer) == len(positions):
        # Nearly always so for records of more than 63 bytes, and then indexing by all is not needed.
        positions, behind = behind, behind + 1
        longer = np.flatnonzero(data[positions] >= 0x80)
    while longer.size:
        at = behind[longer]
        behind[longer] = at + 1
        longer = longer[data[at] >= 0x80]
    return behind


def _read_varints(data: Bytes, positions: Int64s) -> tuple[Int64s, Int64s]:
    """The zigzag varints at `positions`, and the positions behind them."""
    byte = data[positions]
    behind = positions + 1
    longer = np.flatnonzero(byte >= 0x80)
    if not longer.size:
        return _UNZIGZAG_BYTE.take(byte), behind
    raw = (byte & 0x7F).astype(np.uint64)
    for index in range(1, VARINT_BYTES_MAX):
        at = behind[longer]
        byte = data[at]
        raw[longer] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * index)
        behind[longer] = at + 1
        longer = longer[byte >= 0x80]
        if not longer.size:
            return (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64), behind
    raise IndexError("a varint is too long")


_UNZIGZAG_BYTE: Final = np.array([(byte >> 1) ^ -(byte & 1) for byte in range(0x80)], dtype=np.int64)


def _is_sound(fields: _Fields) -> bool:
    """Whether every record's fields lie inside of it."""
    size_max = fields.record_end - fields.key_begin
    return bool(
        np.all(fields.key_length >= -1)
        and np.all(fields.key_length <= size_max)
        and np.all(fields.value_length >= -1)
        and np.all(fields.value_length <= size_max)
        and np.all(fields.header_count >= 0)
        and np.all(fields.headers_begin <= fields.record_end)
    )


def _timestamps(per_batch: _PerBatch, batch: Int64s, deltas: Int64s) -> Int64s:
    """Create time is the record's own; append time is the batch's maximum, for all its records."""
    created = per_batch.base_timestamp_ms[batch] + deltas
    if not per_batch.has_append_time.any():
        return created
    return np.where(per_batch.has_append_time[batch], per_batch.max_timestamp_ms[batch], created)


def _cut_keys_and_values(plain: bytes, fields: _Fields) -> tuple[Array, Array]:
    count = len(fields.key_begin)
    edges = np.empty((count, 4), dtype=np.int32)
    edges[:, 0] = fields.key_begin
    edges[:, 1] = fields.key_end
    edges[:, 2] = fields.value_begin
    edges[:, 3] = fields.value_end
    pieces = cut_binary(plain, edges.reshape(-1))
    elements = np.arange(0, 4 * count, 4, dtype=np.int32)
    keys = pieces.take(of_numbers(elements, _mask(fields.key_length)))
    values = pieces.take(of_numbers(elements + 2, _mask(fields.value_length)))
    return keys, values


def _mask(lengths: Int64s) -> Flags | None:
    null = lengths < 0
    return null if null.any() else None


def headers_of(block: pa.RecordBatch, source: Source) -> Array:
    """The headers of the records of a block, or of some rows of it, whether they were requested or not.

    Raises:
        CorruptBatchError: the headers of a record do not fill it.
    """
    if "headers" in block.schema.names:
        return block.column("headers")
    if "header_bytes" not in block.schema.names:
        return repeated([], HEADERS_TYPE, block.num_rows)
    return _read_headers(block.column("header_bytes"), source, block.column("offset").to_numpy())


def _cut_headers(plain: bytes, fields: _Fields) -> Array:
    """The bytes of each record from the number of its headers on; null where that is 0."""
    edges = np.empty((len(fields.value_end), 2), dtype=np.int32)
    edges[:, 0] = fields.value_end
    edges[:, 1] = fields.record_end
    elements = np.arange(0, edges.size, 2, dtype=np.int32)
    return cut_binary(plain, edges.reshape(-1)).take(of_numbers(elements, fields.header_count == 0))


def _read_headers(header_bytes: Array, source: Source, offsets: Int64s) -> Array:
    """Headers, a list for each record. Few topics have them, so they are read record by record where there
    are.
    """
    keys: list[str] = []
    values: list[bytes | None] = []
    counts = np.zeros(len(header_bytes), dtype=np.int64)
    for index in np.flatnonzero(~null_flags(header_bytes)).tolist():
        plain = header_bytes[index].as_py()
        end = len(plain)
        try:
            raw, position = read_varint(plain, 0)
            for _ in range(raw >> 1):
                key, position = _bytes_at(plain, position, end)
                value, position = _bytes_at(plain, position, end)
                if key is None:
                    raise IndexError
                keys.append(key.decode(errors="backslashreplace"))
                values.append(value)
            counts[index] = raw >> 1
        except IndexError:
            position = -1
        if position != end:
            source.corrupt(int(offsets[index]), "the headers of a record do not fill it")
    edges = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    pairs = pa.StructArray.from_arrays(
        [pa.array(keys, pa.string()), pa.array(values, pa.binary())], names=["key", "value"]
    )
    return pa.ListArray.from_arrays(of_numbers(edges), pairs).cast(HEADERS_TYPE)


def _bytes_at(plain: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    """Bytes behind their zigzag length; None for length -1. Raises IndexError past `end`."""
    raw, begin = read_varint(plain, position)
    length = (raw >> 1) ^ -(raw & 1)
    if length < -1 or begin + max(length, 0) > end:
        raise IndexError
    return (None, begin) if length < 0 else (plain[begin : begin + length], begin + length)
