"""The primitive types of messages: how lengths, strings and tagged fields are read and written.

Compact lengths are unsigned varints of the length plus one, where 0 means null; tagged fields end each
flexible entity (KIP-482). Readers take a frame and a position, and return the value and the position after
it. They raise InvalidRequestBytes where a length does not fit, and IndexError or struct.error where the frame
ends early.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Final

from mainstem_broker.errors import InvalidRequestBytes

_INT32_AND_INT64: Final = struct.Struct(">iq")
_TAGGED_INT32_AND_INT64: Final = struct.Struct(">bbbiqb")
"""A count of one, the tag, the size, the two numbers, and no tagged fields of its own."""
_TAGGED_INT32_AND_INT64_BYTES: Final = 13
REQUEST_ELEMENTS_MAX: Final = 50_000
TAGGED_FIELDS_MAX: Final = 16
"""In one entity or header. No schema of Kafka's has as many; each takes two bytes and a step of a loop."""
"""How many elements all arrays of a request may have together: 10,000 partitions, each of a topic of its own
and with three replicas. Reading as many was measured to take the event loop for 17 to 36 ms, and for 60 ms
where elements have two strings or arrays (CreateTopics) or are lifted to a later version (Fetch 4)."""
_ONE_BYTE_VARINTS: Final = tuple(bytes((value,)) for value in range(128))


def encode_unsigned_varint(value: int) -> bytes:
    """`value` in groups of seven bits, lowest first (protocol guide, UNSIGNED_VARINT)."""
    if value < 128:
        return _ONE_BYTE_VARINTS[value]
    encoded = bytearray()
    while value >= 128:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_compact_string(value: str | None) -> bytes:
    """Its length plus one, and UTF-8; 0 is null."""
    if value is None:
        return b"\0"
    encoded = value.encode()
    return encode_unsigned_varint(len(encoded) + 1) + encoded


def encode_tagged_int32_and_int64(tag: int, first: int, second: int) -> bytes:
    """Tagged fields that consist of one: a struct of an int32 and an int64."""
    return _TAGGED_INT32_AND_INT64.pack(1, tag, _TAGGED_INT32_AND_INT64_BYTES, first, second, 0)


def encode_tagged_fields(fields: Sequence[tuple[int, bytes]]) -> bytes:
    """Tagged fields (KIP-482), given in the order of their tags."""
    encoded = bytearray(encode_unsigned_varint(len(fields)))
    for tag, content in fields:
        encoded += encode_unsigned_varint(tag) + encode_unsigned_varint(len(content)) + content
    return bytes(encoded)


def too_long() -> InvalidRequestBytes:
    """The error for a length or count that does not fit."""
    return InvalidRequestBytes("A length or count runs past the end of the request.")


def too_many_elements(elements_max: int) -> InvalidRequestBytes:
    """The error for a request whose arrays have too many elements."""
    return InvalidRequestBytes(
        f"The request has more than {elements_max} elements (topics, partitions and the like); send them"
        " in several requests."
    )


def walk_tagged_fields(frame: memoryview, position: int) -> int:
    """Past the tagged fields that end a flexible entity or header (KIP-482); what they hold is not walked.

    No tagged field of a request that is served holds an array.
    """
    count = frame[position]
    if count == 0:
        return position + 1
    count, position = read_unsigned_varint(frame, position)
    if count > TAGGED_FIELDS_MAX:
        raise InvalidRequestBytes(f"An entity has {count} tagged fields; {TAGGED_FIELDS_MAX} are allowed.")
    for _ in range(count):
        _, position = read_unsigned_varint(frame, position)
        size, position = read_unsigned_varint(frame, position)
        position += size
        if position > len(frame):
            raise too_long()
    return position


def read_unsigned_varint(frame: memoryview, position: int) -> tuple[int, int]:
    """(value, position after it). One that is longer than five bytes is refused."""
    value = shift = 0
    while True:
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:
            raise InvalidRequestBytes("An unsigned varint is longer than five bytes.")


def read_count(frame: memoryview, position: int) -> tuple[int, int]:
    """(length of a compact array, the position after it). Null counts as empty."""
    byte = frame[position]
    if byte < 0x80:
        return byte - 1 if byte else 0, position + 1
    value, position = read_unsigned_varint(frame, position)
    return max(value - 1, 0), position


def read_bytes(frame: memoryview, position: int) -> tuple[memoryview | None, int]:
    """(a view of compact bytes, the position after them)."""
    size, position = read_unsigned_varint(frame, position)
    if size == 0:
        return None, position
    end = position + size - 1
    if end > len(frame):
        raise too_long()
    return frame[position:end], end


def read_string(frame: memoryview, position: int) -> tuple[str | None, int]:
    """(a nullable compact string, the position after it). What is not UTF-8 is replaced by U+FFFD, as in
    Kafka."""
    encoded, position = read_bytes(frame, position)
    return None if encoded is None else str(encoded, "utf-8", "replace"), position


def read_required_string(frame: memoryview, position: int) -> tuple[str, int]:
    """As `read_string`, but null is refused."""
    value, position = read_string(frame, position)
    if value is None:
        raise InvalidRequestBytes("A string that a request must have is null.")
    return value, position


def read_tagged_int32_and_int64(
    frame: memoryview, position: int, wanted_tag: int
) -> tuple[tuple[int, int] | None, int]:
    """(the numbers of the tagged field `wanted_tag`, if there is one, the position after all tagged ones)."""
    pair: tuple[int, int] | None = None
    count, position = read_unsigned_varint(frame, position)
    for _ in range(count):
        tag, position = read_unsigned_varint(frame, position)
        size, position = read_unsigned_varint(frame, position)
        if tag == wanted_tag:
            if size < _INT32_AND_INT64.size:
                raise too_long()
            pair = _INT32_AND_INT64.unpack_from(frame, position)
        position += size
        if position > len(frame):
            raise too_long()
    return pair, position


def has_tagged_field(frame: memoryview, position: int, wanted_tag: int) -> bool:
    """Whether the field `wanted_tag` is among the tagged fields that begin at `position`."""
    if frame[position] == 0:
        return False
    count, position = read_unsigned_varint(frame, position)
    for _ in range(count):
        tag, position = read_unsigned_varint(frame, position)
        size, position = read_unsigned_varint(frame, position)
        if tag == wanted_tag:
            return True
        position += size
    return False


@lru_cache(maxsize=256)
def duration_of(duration_ms: int) -> timedelta:
    """As kio's entities hold durations. Clients send the same few again and again."""
    return timedelta(milliseconds=duration_ms)
