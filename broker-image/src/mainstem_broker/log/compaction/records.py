"""Keys, offsets and tombstones of many batches at once, as columns.

In scope: reading a stretch of whole batches into arrays. Out of scope: which records stay (`rewrite`), files.

A record (KIP-98) is a run of zigzag varints and bytes:

    length | attributes (1 byte) | timestamp delta | offset delta | key length, key | value length, value |
    headers

Batches follow each other by their lengths, and so do records: compiled loops (`record_walk`) read their
fields, and numpy handles the columns. A stretch of batches with a record each,
as offset commits are, costs as little per record as one large batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from mainstem_broker.errors import CorruptMessage
from mainstem_broker.log.compaction.key_map import Bytes, Int64s
from mainstem_broker.log.compaction.record_walk import (
    BATCH_COLUMNS,
    RECORD_COLUMNS,
    walk_batches,
    walk_records,
)
from mainstem_broker.protocol.batches import HEADER_BYTES
from mainstem_broker.protocol.compression import codec_of_attributes, decompress

Flags = NDArray[np.bool_]

BATCH: Final = np.dtype([(name, np.int64) for name in BATCH_COLUMNS])
"""A batch in a stretch, see `BATCH_COLUMNS`."""

_CRC_FROM: Final = 21
_CODEC: Final = 0x07
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
NO_KEY: Final = -1

PLAIN_BYTES_MAX: Final = 32 * 1024 * 1024
"""Decompressed at once, but for a single batch, which may take as much by itself. Some megabytes of batches
that compress well would otherwise take all memory that the broker may have."""
RECORDS_MAX: Final = 1_000_000
"""In one table, but for a single batch: a record takes about a hundred bytes of columns."""


class _TooLarge(Exception):
    """Several batches are too much for one table."""


@dataclass(frozen=True, slots=True)
class RecordTable:
    """A stretch of batches and their records.

    Of each batch: `headers`, rows of `BATCH`, and whether it is `opaque`: its records cannot be read, so that
    it can only stay as it is. Of each record, in order of offsets: the
    `batch` it is in; `starts` and `ends` in `plain`, the bytes of all batches after decompression; `offsets`;
    `timestamp_ends`, where the rest of the record after its timestamp begins; `timestamp_deltas` in ms;
    `key_starts` and `key_lengths` in bytes, `NO_KEY` for none; `has_value`, False for a tombstone.
    """

    plain: Bytes
    headers: NDArray[np.void]
    opaque: Flags
    batch: Int64s
    starts: Int64s
    ends: Int64s
    offsets: Int64s
    timestamp_deltas: Int64s
    timestamp_ends: Int64s
    key_starts: Int64s
    key_lengths: Int64s
    has_value: Flags

    def base_offset(self, batch: int) -> int:
        return int(self.headers["base_offset"][batch])

    def next_offset(self, batch: int) -> int:
        return self.base_offset(batch) + int(self.headers["last_offset_delta"][batch]) + 1


def is_transactional(headers: NDArray[np.void]) -> Flags:
    """Which batches are part of a transaction, or a marker that ends one."""
    flags: Flags = (headers["attributes"] & _TRANSACTIONAL) != 0
    return flags


def is_control(headers: NDArray[np.void]) -> Flags:
    """Which batches hold control records, whose keys are none of the topic."""
    flags: Flags = (headers["attributes"] & _CONTROL) != 0
    return flags


def find_batches(stretch: bytes) -> NDArray[np.void]:
    """The whole batches in `stretch`, as rows of `BATCH`.

    Raises:
        CorruptMessage: the bytes at some position are no batch.
    """
    columns, end = walk_batches(stretch)
    if end < 0:
        raise CorruptMessage(f"There is no batch at byte {-1 - end} of the stretch.")
    return np.frombuffer(memoryview(columns), dtype=BATCH)


def read_tables(stretch: bytes, batches: NDArray[np.void], *, verify: bool = True) -> Iterator[RecordTable]:
    """These batches of `stretch` in as many tables as memory requires: mostly one.

    Raises:
        CorruptMessage: a batch does not match its checksum, which is compared only with `verify`.
    """
    if verify:
        check_crcs(stretch, batches)
    yield from _read_tables(stretch, batches)


def check_crcs(stretch: bytes, batches: NDArray[np.void]) -> None:
    """Raises CorruptMessage if one of these batches does not match its checksum."""
    view = memoryview(stretch)
    columns = (batches["start"].tolist(), batches["end"].tolist(), batches["crc"].tolist())
    for start, end, crc in zip(*columns, strict=True):
        if crc32c(view[start + _CRC_FROM : end]) != crc:
            raise CorruptMessage(f"The batch at byte {start} of the stretch does not match its checksum.")


def _read_tables(stretch: bytes, batches: NDArray[np.void]) -> Iterator[RecordTable]:
    try:
        table = read_table(stretch, batches)
    except _TooLarge:
        middle = len(batches) // 2
        yield from _read_tables(stretch, batches[:middle])
        yield from _read_tables(stretch, batches[middle:])
    else:
        yield table


def read_table(stretch: bytes, headers: NDArray[np.void]) -> RecordTable:
    """The batches of `stretch` with these `headers`, which are of `find_batches`."""
    opaque = is_control(headers)
    if len(headers) > 1 and int(headers["record_count"].sum()) > RECORDS_MAX:
        raise _TooLarge
    plain, begins, ends = _inflated(stretch, headers, opaque)
    counts_claimed = np.where(opaque, -1, headers["record_count"])
    fields, walked = walk_records(
        plain, np.column_stack((begins, ends, counts_claimed, headers["last_offset_delta"])).tobytes()
    )
    counts = np.frombuffer(memoryview(walked), dtype=np.int64)
    start, end, offset_delta, timestamp_delta, timestamp_end, key_start, key_length, value_length = (
        np.frombuffer(memoryview(fields), dtype=np.int64).reshape(-1, RECORD_COLUMNS).T.copy()
    )
    batch = np.repeat(np.arange(len(counts)), np.maximum(counts, 0))
    return RecordTable(
        np.frombuffer(plain, dtype=np.uint8),
        headers,
        counts < 0,
        batch,
        start,
        end,
        headers["base_offset"][batch] + offset_delta,
        timestamp_delta,
        timestamp_end,
        key_start,
        key_length,
        value_length >= 0,
    )


def _inflated(stretch: bytes, headers: NDArray[np.void], opaque: Flags) -> tuple[bytes, Int64s, Int64s]:
    """The stretch with decompressed records behind it, and where each batch's records begin and end there.

    Batches that do not decompress become `opaque`.
    """
    begins, ends = headers["start"] + HEADER_BYTES, headers["end"].copy()
    codecs = headers["attributes"] & _CODEC
    parts = [stretch]
    size = len(stretch)
    for number in np.flatnonzero((codecs != 0) & ~opaque).tolist():
        try:
            payload = memoryview(stretch)[int(begins[number]) : int(ends[number])]
            parts.append(bytes(decompress(codec_of_attributes(int(codecs[number])), payload)))
        except CorruptMessage:
            opaque[number] = True
            continue
        begins[number], ends[number] = size, size + len(parts[-1])
        size += len(parts[-1])
        if size - len(stretch) > PLAIN_BYTES_MAX and len(headers) > 1:
            raise _TooLarge
    return stretch if len(parts) == 1 else b"".join(parts), begins, ends


def encode_varint(value: int) -> bytes:
    """`value` as a zigzag varint."""
    rest = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append((rest & 0x7F) | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)
