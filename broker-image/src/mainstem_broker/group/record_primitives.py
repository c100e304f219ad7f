"""The primitive types that the records of `__consumer_offsets` are made of, to bytes and back.

Integers are big endian; a string is an int16 length and UTF-8, an array an int32 count, bytes an int32
length; a length of -1 is null. Flexible structures (KIP-482) have unsigned varints instead, one more than
the length, so that 0 is null, and end with their tagged fields: a count; tag, length and content of each.

Source: the protocol guide of Apache Kafka, "Protocol Primitive Types".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final
from uuid import UUID

INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")


def string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    encoded = text.encode()
    return INT16.pack(len(encoded)) + encoded


def byte_string(data: bytes) -> bytes:
    return INT32.pack(len(data)) + data


# --- Flexible ---


def varint(number: int) -> bytes:
    """Unsigned: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def compact_bytes(data: bytes) -> bytes:
    return varint(len(data) + 1) + data


def compact_string(text: str | None) -> bytes:
    return b"\0" if text is None else compact_bytes(text.encode())


def compact_array(items: Sequence[bytes]) -> bytes:
    """Of items that are encoded already."""
    return varint(len(items) + 1) + b"".join(items)


def tagged_fields(fields: Sequence[tuple[int, bytes]] = ()) -> bytes:
    """Tag and content of each, in the order of the tags."""
    encoded = [varint(len(fields))]
    for tag, content in fields:
        encoded += (varint(tag), varint(len(content)), content)
    return b"".join(encoded)


class Reader:
    """Reads primitive types one after another; every failure is a ValueError."""

    __slots__ = ("_data", "_flexible", "_position")

    def __init__(self, data: bytes, *, flexible: bool = False) -> None:
        self._data = data
        self._position = 0
        self._flexible = flexible

    def version(self, highest: int, flexible_from: int) -> int:
        """The version that a value begins with; what follows is flexible from the second one on."""
        version = self.int16()
        if not 0 <= version <= highest:
            raise ValueError(f"version {version} is not between 0 and {highest}")
        self._flexible = version >= flexible_from
        return version

    def int8(self) -> int:
        return int.from_bytes(self._take(1), "big", signed=True)

    def int16(self) -> int:
        return int(INT16.unpack(self._take(2))[0])

    def int32(self) -> int:
        return int(INT32.unpack(self._take(4))[0])

    def int64(self) -> int:
        return int(INT64.unpack(self._take(8))[0])

    def count(self) -> int:
        count = self.varint() - 1 if self._flexible else self.int32()
        if not 0 <= count <= len(self._data):
            raise ValueError(f"an array of {count} cannot be in {len(self._data)} bytes")
        return count

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise ValueError("a string that must be there is null")
        return text

    def nullable_string(self) -> str | None:
        length = self.varint() - 1 if self._flexible else self.int16()
        return None if length < 0 else str(self._take(length), "utf-8")

    def byte_string(self) -> bytes:
        return self._take(self.varint() - 1 if self._flexible else self.int32())

    def nullable_byte_string(self) -> bytes | None:
        length = self.varint() - 1 if self._flexible else self.int32()
        return None if length < 0 else self._take(length)

    def tagged_fields(self) -> dict[int, bytes]:
        """Tag to content; none in versions that are not flexible."""
        if not self._flexible:
            return {}
        return {self.varint(): self._take(self.varint()) for _ in range(self.varint())}

    def uuid(self) -> UUID:
        return UUID(bytes=self._take(16))

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise ValueError(f"{length} bytes at {self._position} leave the {len(self._data)} that there are")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def varint(self) -> int:
        result = shift = 0
        while True:
            (byte,) = self._take(1)
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result
            shift += 7
            if shift > 28:
                raise ValueError("a varint is longer than five bytes")
