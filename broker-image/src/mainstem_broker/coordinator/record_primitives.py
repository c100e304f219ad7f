"""The primitive types of records in internal topics, to bytes and back.

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

from mainstem_broker.errors import NewerFormat

_PLAUSIBLE_VERSION_MAX: Final = 127
"""Versions are counted one by one. What begins with a larger number is text, or another kind of bytes."""

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
    """An unsigned varint: seven bits in each byte, the lowest first."""
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
    """An array of items that are already encoded."""
    return varint(len(items) + 1) + b"".join(items)


def tagged_fields(fields: Sequence[tuple[int, bytes]] = ()) -> bytes:
    """`fields`: tag and content of each, in the order of the tags."""
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
        """Read the version that a value begins with; from `flexible_from` on the rest is flexible.

        Raises:
            NewerFormat: a later version of this broker, or of Apache Kafka, has written the value.
            ValueError: the bytes are no such value.
        """
        version = self.int16()
        if highest < version <= _PLAUSIBLE_VERSION_MAX:
            raise NewerFormat(f"version {version} of a record's value is newer than {highest}")
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
        count = self.nullable_count()
        if count is None:
            raise ValueError("an array that is required is null")
        return count

    def nullable_count(self) -> int | None:
        count = self.varint() - 1 if self._flexible else self.int32()
        if not -1 <= count <= len(self._data):
            raise ValueError(f"an array of {count} cannot be in {len(self._data)} bytes")
        return None if count < 0 else count

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise ValueError("a string that is required is null")
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
        """Contents by tag; empty in versions that are not flexible."""
        if not self._flexible:
            return {}
        return {self.varint(): self._take(self.varint()) for _ in range(self.varint())}

    def uuid(self) -> UUID:
        return UUID(bytes=self._take(16))

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise ValueError(
                f"{length} bytes at {self._position} exceed the {len(self._data)} that there are"
            )
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
