"""Record batches (version 2, KIP-98) built one record at a time: slow, plain, and beyond doubt."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import cramjam
from crc32c import crc32c

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
XERIAL_SNAPPY = 102
"""Snappy in the frames of the xerial library, as the Java client writes it; on the wire it is codec 2."""

LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 1 << 3, 1 << 4, 1 << 5
HEADER = struct.Struct(">qiibIhiqqqhii")


@dataclass(frozen=True)
class Record:
    offset: int
    timestamp_ms: int = 0
    key: bytes | None = None
    value: bytes | None = b""
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


def varint(number: int) -> bytes:
    raw = (number << 1) ^ (number >> 63)
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes(out + bytes([raw]))


def nullable(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def record_bytes(record: Record, base_offset: int, base_timestamp_ms: int) -> bytes:
    body = b"\0" + varint(record.timestamp_ms - base_timestamp_ms) + varint(record.offset - base_offset)
    body += nullable(record.key) + nullable(record.value) + varint(len(record.headers))
    for key, value in record.headers:
        body += nullable(key) + nullable(value)
    return varint(len(body)) + body


def compress(codec: int, plain: bytes) -> bytes:
    match codec:
        case 0:
            return plain
        case 1:
            return gzip.compress(plain)
        case 2:
            return bytes(cramjam.snappy.compress_raw(plain))
        case 3:
            return bytes(cramjam.lz4.compress(plain))
        case 4:
            return bytes(cramjam.zstd.compress(plain))
        case _:
            blocks = [plain[at : at + 32768] for at in range(0, len(plain), 32768)]
            framed = b"".join(
                struct.pack(">i", len(block)) + block
                for block in (bytes(cramjam.snappy.compress_raw(block)) for block in blocks)
            )
            return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + framed


def batch_bytes(
    records: Sequence[Record],
    *,
    codec: int = NONE,
    attributes: int = 0,
    base_offset: int | None = None,
    last_offset: int | None = None,
    max_timestamp_ms: int | None = None,
    producer_id: int = -1,
) -> bytes:
    """A whole batch with a right CRC. `base_offset` and `last_offset` differ from the records' after
    compaction.
    """
    base = records[0].offset if base_offset is None else base_offset
    last = records[-1].offset if last_offset is None else last_offset
    base_ms = records[0].timestamp_ms if records else 0
    max_ms = max((record.timestamp_ms for record in records), default=-1)
    plain = b"".join(record_bytes(record, base, base_ms) for record in records)
    return raw_batch(
        compress(codec, plain),
        base_offset=base,
        last_offset=last,
        attributes=attributes | (2 if codec == XERIAL_SNAPPY else codec),
        base_timestamp_ms=base_ms,
        max_timestamp_ms=max_ms if max_timestamp_ms is None else max_timestamp_ms,
        producer_id=producer_id,
        count=len(records),
    )


def raw_batch(
    body: bytes,
    *,
    base_offset: int,
    last_offset: int,
    count: int,
    attributes: int = 0,
    base_timestamp_ms: int = 0,
    max_timestamp_ms: int = 0,
    producer_id: int = -1,
    magic: int = 2,
) -> bytes:
    """A batch with a right CRC around any bytes."""
    delta = last_offset - base_offset
    checked = struct.pack(
        ">hiqqqhii", attributes, delta, base_timestamp_ms, max_timestamp_ms, producer_id, -1, -1, count
    )
    checked += body
    return struct.pack(">qiibI", base_offset, 9 + len(checked), 0, magic, crc32c(checked)) + checked


def control_batch(offset: int, producer_id: int, commit: bool) -> bytes:
    marker = Record(offset, 0, struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 0))
    return batch_bytes([marker], attributes=CONTROL | TRANSACTIONAL, producer_id=producer_id)
