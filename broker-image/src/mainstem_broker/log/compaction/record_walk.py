"""The loops of a compaction that run for every batch, record and key.

In scope: loops over bytes and vectors of 64-bit integers, nothing else. mypyc compiles this module
(`compiled.py`), which makes a step of a loop take nanoseconds; as plain Python the loops give the same
results, a hundred times slower. Everything that handles whole columns is numpy's (`records`, `key_map`).

Positions and counts come from bytes that may be corrupt. Each access is checked, so reading past the end
raises IndexError; positions that are computed never become negative.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i16_be, read_i32_be, read_i64_be, read_i64_le
from librt.vecs import append, vec
from mypy_extensions import i64

_PREFIX_BYTES: Final[i64] = 12
_MAGIC: Final[i64] = 2
_HEADER_BYTES: Final[i64] = 61
"""Of `protocol.batches`, as integers that compiled code keeps in registers."""
_RECORD_BYTES_MIN: Final[i64] = 7
_VARINT_SHIFT_MAX: Final[i64] = 56
"""Nine bytes. A tenth would hold the sign of a timestamp delta that no clock makes."""
_NO_KEY: Final[i64] = -1
_EMPTY: Final[i64] = -1
_OFFSET_MASK: Final[i64] = 0xFFFFFFFF
_HASH_MASK: Final[i64] = -0x100000000
_NOWHERE: Final[i64] = 1 << 62
"""Behind the end of any buffer."""

BATCH_COLUMNS: Final = (
    "start",
    "end",
    "base_offset",
    "crc",
    "attributes",
    "last_offset_delta",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "record_count",
)
"""What `walk_batches` says of a batch: its place in the stretch, and fields of its header
(`protocol.batches.BatchHeader`)."""
RECORD_COLUMNS: Final = 8
"""What `walk_records` says of a record: start, end, offset delta, timestamp delta, where the timestamp delta
ends, key start, key length, value length."""
SLOT_COLUMNS: Final = 2
"""The first 64 bits of a key's hash; and its other 32 bits above the key's newest offset, which is relative
to the first offset of the map and less than 2^32 - 1. The second one is -1 in a slot without a key."""


def walk_batches(stretch: bytes) -> tuple[vec[i64], i64]:
    """The headers of the whole batches in `stretch`: `BATCH_COLUMNS` integers for each.

    Also where the last of them ends; or, where something is no batch, -1 - its position.
    """
    columns = vec[i64]()
    position: i64 = 0
    size: i64 = len(stretch)
    while position + _HEADER_BYTES <= size:
        length = i64(read_i32_be(stretch, position + 8))
        magic: i64 = stretch[position + 16]
        if length < _HEADER_BYTES - _PREFIX_BYTES or magic != _MAGIC:
            return columns, -1 - position
        end: i64 = position + _PREFIX_BYTES + length
        if end > size:
            break
        columns = append(columns, position)
        columns = append(columns, end)
        columns = append(columns, read_i64_be(stretch, position))
        columns = append(columns, i64(read_i32_be(stretch, position + 17)) & 0xFFFFFFFF)
        columns = append(columns, i64(read_i16_be(stretch, position + 21)))
        columns = append(columns, i64(read_i32_be(stretch, position + 23)))
        columns = append(columns, read_i64_be(stretch, position + 27))
        columns = append(columns, read_i64_be(stretch, position + 35))
        columns = append(columns, read_i64_be(stretch, position + 43))
        columns = append(columns, i64(read_i16_be(stretch, position + 51)))
        columns = append(columns, i64(read_i32_be(stretch, position + 57)))
        position = end
    return columns, position


def walk_records(plain: bytes, batches: bytes) -> tuple[vec[i64], vec[i64]]:
    """The fields of all records.

    Args:
        plain: bytes that hold the records of all batches, decompressed.
        batches: four little-endian 64-bit integers for each batch: where its records begin and end in
            `plain`, their number, and the last offset delta of the batch.

    Returns:
        `RECORD_COLUMNS` integers for each record; and for each batch how many records it has, or -1 if its
        records cannot be read: they do not fill the batch, or a field of one is out of bounds.
    """
    fields = vec[i64]()
    counts = vec[i64]()
    row: i64 = 0
    at: i64 = 0
    size: i64 = len(batches)
    while at < size:
        begin: i64 = read_i64_le(batches, at)
        end: i64 = read_i64_le(batches, at + 8)
        count: i64 = read_i64_le(batches, at + 16)
        last_delta: i64 = read_i64_le(batches, at + 24)
        at += 32
        is_readable = False
        if count >= 0 and count * _RECORD_BYTES_MIN <= end - begin:
            first_row: i64 = row
            while len(fields) < (row + count) * RECORD_COLUMNS:
                fields = append(fields, 0)
            try:
                row = _walk_batch(plain, begin, end, count, last_delta, fields, row)
                is_readable = row == first_row + count
            except IndexError:
                pass
            if not is_readable:
                row = first_row
        counts = append(counts, count if is_readable else -1)
    return fields[: row * RECORD_COLUMNS], counts


def _walk_batch(
    plain: bytes, begin: i64, end: i64, count: i64, last_delta: i64, fields: vec[i64], row: i64
) -> i64:
    """Set the fields of a batch's records from `row` on; answers the row behind them, or -1."""
    position = begin
    for _ in range(count):
        start = position
        length, position = _varint(plain, position)
        record_end: i64 = position + length
        if length < 0 or record_end > end:
            return -1
        timestamp_delta, timestamp_end = _varint(plain, position + 1)
        offset_delta, position = _varint(plain, timestamp_end)
        key_length, key_start = _varint(plain, position)
        if key_length < _NO_KEY or key_length > end or offset_delta < 0 or offset_delta > last_delta:
            return -1
        key_end: i64 = key_start
        if key_length > 0:
            key_end = key_start + key_length
        value_length, position = _varint(plain, key_end)
        if value_length < -1 or value_length > end:
            return -1
        if value_length > 0:
            position += value_length
        if position >= record_end:  # the number of headers follows
            return -1
        at: i64 = row * RECORD_COLUMNS
        fields[at] = start
        fields[at + 1] = record_end
        fields[at + 2] = offset_delta
        fields[at + 3] = timestamp_delta
        fields[at + 4] = timestamp_end
        fields[at + 5] = key_start
        fields[at + 6] = key_length
        fields[at + 7] = value_length
        row += 1
        position = record_end
    return row if position == end else -1


def _varint(plain: bytes, position: i64) -> tuple[i64, i64]:
    """The zigzag varint at `position`, and the position behind it, which is `_NOWHERE` for one too long."""
    byte: i64 = plain[position]
    position += 1
    value: i64 = byte & 0x7F
    shift: i64 = 7
    while byte >= 0x80:
        if shift > _VARINT_SHIFT_MAX:
            return 0, _NOWHERE
        byte = plain[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return (value >> 1) ^ -(value & 1), position


def empty_slots(count: i64) -> vec[i64]:
    """A hash table of `count` slots without keys."""
    slots = vec[i64](capacity=count * SLOT_COLUMNS)
    for _ in range(count):
        slots = append(slots, 0)
        slots = append(slots, _EMPTY)
    return slots


def put_keys(slots: vec[i64], first: bytes, high: bytes, low: bytes, offsets: bytes, base_offset: i64) -> i64:
    """Set the newest offset of each key; answers how many keys are new. There must be room for them.

    `first` has the slot where the search for each key begins; `high` the first 64 bits of its hash, and `low`
    the others, above 32 bits of zero. All are little-endian 64-bit integers. Offsets are less than
    `base_offset` + 2^32 - 1.
    """
    added: i64 = 0
    size: i64 = len(slots)
    at: i64 = 0
    end: i64 = len(first)
    while at < end:
        slot: i64 = read_i64_le(first, at) * SLOT_COLUMNS
        key_high: i64 = read_i64_le(high, at)
        key_low: i64 = read_i64_le(low, at)
        word: i64 = slots[slot + 1]
        while word != _EMPTY and (slots[slot] != key_high or word & _HASH_MASK != key_low):
            slot += SLOT_COLUMNS
            if slot == size:
                slot = 0
            word = slots[slot + 1]
        if word == _EMPTY:
            slots[slot] = key_high
            added += 1
        slots[slot + 1] = key_low | (read_i64_le(offsets, at) - base_offset)
        at += 8
    return added


def newest_offsets(slots: vec[i64], first: bytes, high: bytes, low: bytes, base_offset: i64) -> vec[i64]:
    """The newest offset of each key, -1 for keys that are not there. Arguments are as in `put_keys`."""
    newest = vec[i64](capacity=len(first) // 8)
    size: i64 = len(slots)
    at: i64 = 0
    end: i64 = len(first)
    while at < end:
        slot: i64 = read_i64_le(first, at) * SLOT_COLUMNS
        key_high: i64 = read_i64_le(high, at)
        key_low: i64 = read_i64_le(low, at)
        word: i64 = slots[slot + 1]
        while word != _EMPTY and (slots[slot] != key_high or word & _HASH_MASK != key_low):
            slot += SLOT_COLUMNS
            if slot == size:
                slot = 0
            word = slots[slot + 1]
        newest = append(newest, _EMPTY if word == _EMPTY else base_offset + (word & _OFFSET_MASK))
        at += 8
    return newest
