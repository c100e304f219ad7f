"""The types that codecs, handlers and connections share: requests, responses and frames.

Requests are entities with attributes, responses are dicts, both under the field names of kio's schemas. A
frame that is ready to send is a list of byte strings and slices of files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol
from uuid import UUID

PRODUCE_KEY: Final = 0
FETCH_KEY: Final = 1
NULL_UUID: Final = UUID(int=0)

Body = dict[str, Any]
"""A response, or a part of one. It is not an object of kio's classes because of their cost: a partition of
ListOffsets takes 0.2 µs as a dict, 1.3 µs as an object, and 4.9 µs with its numbers cast to kio's types."""
Entity = Any
"""A request of some API. A handler names kio's class of the request that it is written for, or that of
`produce_codec.py` or `fetch_codec.py`. Of kio's classes the type checker sees only the names, because their
integers are phantom types: each number in a message would need a call. A test compares the names with the
table of APIs."""


class Sendable(Protocol):
    """Bytes that live in a file and are sent from there."""

    @property
    def size_bytes(self) -> int: ...


Frame = list[bytes | Sendable]
"""A response ready to send: runs of bytes and slices of files, in order."""

Write = Callable[[Frame, Any], None]
Read = Callable[[memoryview, int], tuple[Entity, int]]
"""From a position in a frame to what is there, and the position after it."""
