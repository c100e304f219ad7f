"""What readers and writers of messages share: how bodies and frames are held, and how lengths are written.

Requests are entities with attributes, responses dicts, both under the names of kio's schemas; a frame ready
to send is runs of bytes and slices of files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol
from uuid import UUID

PRODUCE_KEY: Final = 0
FETCH_KEY: Final = 1
NULL_UUID: Final = UUID(int=0)

Body = dict[str, Any]
Entity = Any
"""Of kio or `by_hand.py`; kio's phantom integer types are not followed by the type checker."""


class Sendable(Protocol):
    """Bytes that live in a file and are sent from there."""

    @property
    def size_bytes(self) -> int: ...


Frame = list[bytes | Sendable]
"""A response ready to send: runs of bytes and slices of files, in order."""

Write = Callable[[Frame, Any], None]
Read = Callable[[memoryview, int], tuple[Entity, int]]
"""From a position in a frame to what is there, and the position after it."""

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
