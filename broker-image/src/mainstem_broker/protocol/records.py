"""Records inside a batch: the varint encoding, read and written one by one.

Lives here: walking and making a decompressed payload. Must not: batches, and anything on the common
produce or fetch path, for this costs per record; it is for dump tools, time look-ups, compacted topics and
coordinators.

A record (KIP-98): length, int8 attributes (unused), timestamp delta, offset delta, key length and key,
value length and value, header count, and per header key length and key, value length and value. All but the
attributes are zigzag varints; a length of -1 is null. Lengths count the bytes that follow them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mainstem_broker.errors import CorruptMessage
from mainstem_broker.protocol.compression import Buffer
from mainstem_broker.protocol.wire import encode_unsigned_varint

Header = tuple[str, bytes | None]


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
