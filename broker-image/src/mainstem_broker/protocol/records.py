"""Records inside a batch: the varint encoding, read and written one by one.

Belongs here: reading and writing a decompressed payload. Does not: batches, and anything on the common
produce or fetch path, because this costs time per record. It is for dump tools, lookups by time, compacted
topics and coordinators.

A record (KIP-98): length, int8 attributes (unused), timestamp delta, offset delta, key length and key,
value length and value, header count, and per header key length and key, value length and value. All but the
attributes are zigzag varints; a length of -1 is null. Lengths count the bytes that follow them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from mainstem_broker.errors import CorruptMessage
from mainstem_broker.protocol.compression import Buffer
from mainstem_broker.protocol.primitives import encode_unsigned_varint

Header = tuple[str, bytes | None]

RECORD_BYTES_MIN: Final = 7
"""A record without key, value and headers, whose varints all take one byte."""
RECORDS_BETWEEN_PAUSES: Final = 256
_PAUSE_S: Final = 0.000_05


@dataclass(frozen=True, slots=True)
class Record:
    """One message. `timestamp_ms` is the batch's where the broker stamped it (LogAppendTime)."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()


def parse_records(
    plain: Buffer, count: int, base_offset: int, base_timestamp_ms: int, stamped_ms: int | None
) -> Iterator[Record]:
    """The `count` records of a batch's decompressed payload, in order.

    `stamped_ms` replaces every record's own timestamp, where the broker's clock rules (LogAppendTime).

    Raises:
        CorruptMessage: a record leaves its bounds, or there are more or fewer than `count`. Records before
            the bad one have been yielded by then.
    """
    view = memoryview(plain)
    position = 0
    for _ in range(count):
        try:
            length, start = _varint(view, position)
            if length < 0 or start + length > len(view):
                raise ValueError("its length leaves the batch")
            body = view[start : start + length]
            record = _record(body, base_offset, base_timestamp_ms, stamped_ms)
        except (ValueError, IndexError) as error:
            raise CorruptMessage(
                f"A record at byte {position} of the batch cannot be read: {error}."
            ) from error
        yield record
        position = start + length
    if position != len(view):
        raise CorruptMessage(f"The batch holds {len(view) - position} bytes after its last record.")


class RecordHead(NamedTuple):
    """What `read_heads` reads of a record; the deltas are to the batch's base timestamp and base offset."""

    timestamp_delta: int
    offset_delta: int
    has_key: bool


def read_heads(plain: Buffer, count: int) -> Iterator[RecordHead]:
    """The heads of the `count` records of a decompressed payload, without making anything of their bodies.

    Costs a third of what `parse_records` costs. In another thread than the event loop's it sleeps for a
    moment every `RECORDS_BETWEEN_PAUSES` records: the event loop would otherwise wait for the interpreter's
    switch interval (5 ms) at each of its system calls.

    Raises:
        CorruptMessage: as `parse_records`, but what comes after a record's key is not looked at.
    """
    view = memoryview(plain)
    position = 0
    end = len(view)
    pauses = threading.current_thread() is not threading.main_thread()
    for number in range(1, count + 1):
        start = position
        try:
            length, position = _varint(view, position)
            next_position = position + length
            if length < 0 or next_position > end:
                raise ValueError("its length leaves the batch")
            timestamp_delta, position = _varint(view, position + 1)
            offset_delta, position = _varint(view, position)
            key_bytes, position = _varint(view, position)
            if position + max(key_bytes, 0) > next_position:
                raise ValueError("a field leaves the record")
        except (ValueError, IndexError) as error:
            raise CorruptMessage(f"A record at byte {start} of the batch cannot be read: {error}.") from error
        yield RecordHead(timestamp_delta, offset_delta, key_bytes >= 0)
        position = next_position
        if pauses and number % RECORDS_BETWEEN_PAUSES == 0:
            time.sleep(_PAUSE_S)
    if position != end:
        raise CorruptMessage(f"The batch holds {end - position} bytes after its last record.")


def check_first_record(plain: Buffer, count: int) -> None:
    """Check what can be known of an uncompressed payload without reading all of it: its first record.

    Raises:
        CorruptMessage: the first of `count` records leaves the payload, or is the only one and does not fill
        it.
    """
    view = memoryview(plain)
    try:
        length, position = _varint(view, 0)
    except (ValueError, IndexError) as error:
        raise CorruptMessage(f"The first record of the batch cannot be read: {error}.") from error
    end = position + length
    if length < RECORD_BYTES_MIN - 1 or end > len(view) or (count == 1 and end != len(view)):
        raise CorruptMessage(
            f"The first record of the batch says that it takes {length} bytes, which do not fit."
        )


def encode_records(records: Sequence[Record], base_offset: int, base_timestamp_ms: int) -> bytes:
    """The payload, not compressed, of a batch of `records` with that base offset and base timestamp."""
    encoded = bytearray()
    for record in records:
        body = bytearray(b"\0")
        body += _zigzag(record.timestamp_ms - base_timestamp_ms)
        body += _zigzag(record.offset - base_offset)
        body += _prefixed(record.key)
        body += _prefixed(record.value)
        body += _zigzag(len(record.headers))
        for name, value in record.headers:
            body += _prefixed(name.encode())
            body += _prefixed(value)
        encoded += _zigzag(len(body))
        encoded += body
    return bytes(encoded)


def _prefixed(data: bytes | None) -> bytes:
    return b"\x01" if data is None else _zigzag(len(data)) + data


def _zigzag(value: int) -> bytes:
    return encode_unsigned_varint(value << 1 ^ value >> 63)


def _record(body: memoryview, base_offset: int, base_timestamp_ms: int, stamped_ms: int | None) -> Record:
    timestamp_delta, position = _varint(body, 1)
    offset_delta, position = _varint(body, position)
    key, position = _nullable_bytes(body, position)
    value, position = _nullable_bytes(body, position)
    header_count, position = _varint(body, position)
    if header_count < 0:
        raise ValueError("its header count is negative")
    headers: list[Header] = []
    for _ in range(header_count):
        name, position = _nullable_bytes(body, position)
        if name is None:
            raise ValueError("a header has no name")
        header_value, position = _nullable_bytes(body, position)
        headers.append((name.decode("utf-8"), header_value))
    if position != len(body):
        raise ValueError("its fields do not fill its length")
    return Record(
        base_offset + offset_delta,
        base_timestamp_ms + timestamp_delta if stamped_ms is None else stamped_ms,
        key,
        value,
        headers,
    )


def _nullable_bytes(body: memoryview, position: int) -> tuple[bytes | None, int]:
    length, position = _varint(body, position)
    if length == -1:
        return None, position
    end = position + length
    if length < -1 or end > len(body):
        raise ValueError("a field leaves the record")
    return bytes(body[position:end]), end


def _varint(body: memoryview, position: int) -> tuple[int, int]:
    """The zigzag varint at `position` and the position after it."""
    result = shift = 0
    while True:
        byte = body[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), position
        shift += 7
        if shift > 63:
            raise ValueError("a varint is longer than ten bytes")
