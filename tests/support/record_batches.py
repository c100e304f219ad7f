"""Record batches (magic 2) made by hand, right ones and wrong ones, and the headers of those that come back.

Layout: Kafka's documentation, "Record Batch": 61 bytes of header, then the records, each with zigzag
varints. The CRC-32C covers everything from `attributes` (byte 21) on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import crc32c
from tests.support.messages import Message

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
CRC_END: Final = 21  # the CRC covers the bytes from here on


class BatchHeader(NamedTuple):
    """The fields of a batch header in the order of the wire; `batch_length` counts from byte 12 on."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return self.batch_length + 12

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta


def encode_batch(
    messages: Sequence[Message],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    magic: int = 2,
    attributes: int = 0,
    last_offset_delta: int | None = None,
    max_timestamp: int | None = None,
    record_count: int | None = None,
    crc: int | None = None,
    records: bytes | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """A batch of `messages`; other arguments replace what would be right (`records`: encoded)."""
    base_timestamp = messages[0].timestamp_ms if messages else -1
    if records is None:
        records = b"".join(
            _encode_record(message, delta, message.timestamp_ms - base_timestamp)
            for delta, message in enumerate(messages)
        )
    header = BatchHeader(
        base_offset,
        HEADER.size - 12 + len(records),
        leader_epoch,
        magic,
        0,
        attributes,
        len(messages) - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp,
        max((message.timestamp_ms for message in messages), default=-1)
        if max_timestamp is None
        else max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(messages) if record_count is None else record_count,
    )
    unsigned = HEADER.pack(*header) + records
    checksum = crc32c.crc32c(unsigned[CRC_END:]) if crc is None else crc
    return HEADER.pack(*header._replace(crc=checksum)) + records


def read_headers(records: bytes) -> Iterator[BatchHeader]:
    """The header of every whole batch in `records`.

    Raises:
        AssertionError: a batch's CRC is wrong.
    """
    for position, header in batch_positions(records):
        assert crc32c.crc32c(records[position + CRC_END : position + header.size_bytes]) == header.crc, header
        yield header


def batch_positions(records: bytes) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of every whole batch in `records`, right or not."""
    position = 0
    while position + HEADER.size <= len(records):
        header = BatchHeader(*HEADER.unpack_from(records, position))
        if position + header.size_bytes > len(records):
            return
        yield position, header
        position += header.size_bytes


def _encode_record(message: Message, offset_delta: int, timestamp_delta: int) -> bytes:
    body = b"".join(
        (
            b"\x00",
            _varint(timestamp_delta),
            _varint(offset_delta),
            _sized(message.key),
            _sized(message.value),
            _varint(len(message.headers)),
            *(_sized(name.encode()) + _sized(value) for name, value in message.headers),
        )
    )
    return _varint(len(body)) + body


def _sized(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _varint(number: int) -> bytes:
    unsigned = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while unsigned > 0x7F:
        encoded.append(unsigned & 0x7F | 0x80)
        unsigned >>= 7
    encoded.append(unsigned)
    return bytes(encoded)
