"""Lengths and counts of a request, checked before the native decoder trusts them.

kio reserves memory for as many elements as an array's count says, and a count of four thousand million ends
the process. So each request that kio decodes is walked once before, without making anything of it: every
length and count must fit into the bytes that are there. Fields of fixed width are skipped together.

The elements of all arrays are counted as well: the decoder makes an object of each, without a pause, and an
element may take a single byte. A request with more than `REQUEST_ELEMENTS_MAX` is refused before it is
decoded.

Kafka takes some bytes for what kio does not: any negative length for null, any byte but 0 for true, U+FFFD
for what is not UTF-8 in a text, tagged fields that it does not know for none (KIP-482). The walk notes what
to write in their place. It leaves out all tagged fields: no handler reads one of a request that kio decodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import Field, fields
from functools import cache
from struct import Struct
from typing import Any, Final

from mainstem_broker.errors import InvalidRequestBytes
from mainstem_broker.protocol.kio_schemas import FIXED_BYTES, is_struct, shape_of
from mainstem_broker.protocol.primitives import (
    REQUEST_ELEMENTS_MAX,
    encode_compact_string,
    read_bytes,
    read_count,
    read_unsigned_varint,
    too_long,
    too_many_elements,
    walk_tagged_fields,
)

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_TEXT_BYTES_MAX: Final = 2**15 - 1
_PRESENT: Final = 1
_NULL: Final = 255
"""What precedes a nullable struct (KIP-893)."""

_ELEMENTS_MAX_OF_APIS: Final = dict.fromkeys(
    (33, 44, 45),  # AlterConfigs, IncrementalAlterConfigs, AlterPartitionReassignments
    4 * REQUEST_ELEMENTS_MAX,
)
"""Tools of administrators change everything by one request: Kafka's MirrorMaker sends all settings of all
topics, some thirty for each topic."""


Edit = tuple[int, int, bytes]
"""Start and end of a part of the frame, and the bytes to decode in its place."""


class _Found:
    """What a walk has found: how many elements the arrays of the request may still have, and what to edit, in
    the order of the frame; texts only if `repairs_texts`."""

    __slots__ = ("edits", "left", "most", "repairs_texts")

    left: int
    edits: list[Edit]
    repairs_texts: bool

    def __init__(self, most: int, repairs_texts: bool) -> None:
        self.most = most
        self.repairs_texts = repairs_texts
        self.begin()

    def begin(self) -> None:
        self.left = self.most
        self.edits = []

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise too_many_elements(self.most)


Walk = Callable[[memoryview, int], tuple[int, Sequence[Edit]]]
"""From a position in the frame to the one after what was walked, and what to edit before it is decoded."""
_Step = Callable[[memoryview, int, _Found], int]


@cache
def walker(schema: type, *, repairs_texts: bool = False) -> Walk:
    """A walk over one request of `schema`; few have a text to repair.

    It raises InvalidRequestBytes where a length or a count does not fit or there are too many elements, and
    IndexError or struct.error where the frame ends early.
    """
    walk = _struct_walk(schema)
    api_key: int = schema.__api_key__  # type: ignore[attr-defined]  # every request of kio has it
    # One for all requests, which are walked one after another on the event loop.
    found = _Found(_ELEMENTS_MAX_OF_APIS.get(api_key, REQUEST_ELEMENTS_MAX), repairs_texts)

    def walk_request(frame: memoryview, position: int) -> tuple[int, Sequence[Edit]]:
        found.begin()
        return walk(frame, position, found), found.edits

    return walk_request


@cache
def _struct_walk(schema: type) -> _Step:
    flexible: bool = schema.__flexible__  # type: ignore[attr-defined]  # every kio schema has it
    steps: list[_Step] = []
    fixed_bytes = 0
    for field in fields(schema):
        if field.metadata.get("tag") is not None:
            continue
        inner, repeated, _ = shape_of(field)
        size = None if repeated or is_struct(inner) else FIXED_BYTES.get(field.metadata["kafka_type"])
        is_boolean = size is not None and field.metadata["kafka_type"] == "bool"
        if size is not None and not is_boolean:
            fixed_bytes += size
            continue
        if fixed_bytes:
            steps.append(_skip(fixed_bytes))
            fixed_bytes = 0
        steps.append(_walk_boolean if is_boolean else _field_walk(field, flexible))
    if fixed_bytes:
        steps.append(_skip(fixed_bytes))
    if flexible:
        steps.append(_walk_tagged_fields)
    return steps[0] if len(steps) == 1 else _in_turn(steps)


def _in_turn(steps: Sequence[_Step]) -> _Step:
    def walk(frame: memoryview, position: int, found: _Found) -> int:
        for step in steps:
            position = step(frame, position, found)
        return position

    return walk


def _skip(size: int) -> _Step:
    return lambda _frame, position, _found: position + size


def _field_walk(field: Field[Any], flexible: bool) -> _Step:
    inner, repeated, optional = shape_of(field)
    if is_struct(inner):
        one, one_bytes = _struct_walk(inner), _struct_bytes(inner)
        if optional and not repeated:
            return _nullable(one)
    else:
        kind = field.metadata["kafka_type"]
        one_bytes = FIXED_BYTES.get(kind)
        one = _scalar_walk(kind, flexible) if one_bytes is None else _skip(one_bytes)
    if not repeated:
        return one
    return _array(one, one_bytes, flexible, optional)


def _struct_bytes(schema: type) -> int | None:
    """The size of an entity that is always the same; None if it varies."""
    if schema.__flexible__:  # type: ignore[attr-defined]  # every kio schema has it
        return None
    total = 0
    for field in fields(schema):
        inner, repeated, _ = shape_of(field)
        kind = "" if repeated or is_struct(inner) else field.metadata["kafka_type"]
        if kind not in FIXED_BYTES or kind == "bool":  # which are looked at
            return None
        total += FIXED_BYTES[kind]
    return total


def _nullable(one: _Step) -> _Step:
    """A nullable struct is preceded by a byte: negative for none (KIP-893)."""

    def walk(frame: memoryview, position: int, found: _Found) -> int:
        byte = frame[position]
        if byte not in (_PRESENT, _NULL):
            content = bytes((_NULL if byte > 127 else _PRESENT,))
            found.edits.append((position, position + 1, content))
        return position + 1 if byte > 127 else one(frame, position + 1, found)

    return walk


def _array(one: _Step, one_bytes: int | None, flexible: bool, optional: bool) -> _Step:
    read_length = _compact_count if flexible else _legacy_count

    def walk(frame: memoryview, position: int, found: _Found) -> int:
        start = position
        count, position = read_length(frame, position)
        if count > 0:
            found.take(count)
        elif count < 0:
            if not optional:
                raise InvalidRequestBytes("An array is null that must not be.")
            if count < -1:
                found.edits.append((start, position, b"\xff\xff\xff\xff"))
            count = 0
        if one_bytes is not None:
            position += count * one_bytes
            if position > len(frame):
                raise too_long()
            return position
        if count > len(frame) - position:  # no element is shorter than a byte
            raise too_long()
        for _ in range(count):
            position = one(frame, position, found)
        return position

    return walk


def _compact_count(frame: memoryview, position: int) -> tuple[int, int]:
    return (-1, position + 1) if frame[position] == 0 else read_count(frame, position)


def _legacy_count(frame: memoryview, position: int) -> tuple[int, int]:
    return _INT32.unpack_from(frame, position)[0], position + 4


def _walk_tagged_fields(frame: memoryview, position: int, found: _Found) -> int:
    if frame[position] == 0:
        return position + 1
    end = walk_tagged_fields(frame, position)
    found.edits.append((position, end, b"\0"))
    return end


def _walk_boolean(frame: memoryview, position: int, found: _Found) -> int:
    if frame[position] > 1:
        found.edits.append((position, position + 1, b"\x01"))
    return position + 1


def _scalar_walk(kind: str, flexible: bool) -> _Step:
    if flexible:
        return _walk_compact_string if kind == "string" else _walk_compact
    return _walk_legacy_string if kind == "string" else _walk_legacy_bytes


def _walk_compact(frame: memoryview, position: int, _found: _Found) -> int:
    byte = frame[position]
    if byte < 0x80:
        position += byte or 1
    else:
        value, position = read_unsigned_varint(frame, position)
        position += max(value - 1, 0)
    if position > len(frame):
        raise too_long()
    return position


def _walk_compact_string(frame: memoryview, position: int, found: _Found) -> int:
    end = _walk_compact(frame, position, found)
    if found.repairs_texts:
        encoded, _ = read_bytes(frame, position)
        repaired = None if encoded is None else _repaired(encoded)
        if repaired is not None:
            found.edits.append((position, end, encode_compact_string(repaired)))
    return end


def _walk_legacy_string(frame: memoryview, position: int, found: _Found) -> int:
    length = _INT16.unpack_from(frame, position)[0]
    if length < -1:
        found.edits.append((position, position + 2, b"\xff\xff"))
    end: int = position + 2 + max(length, 0)
    if end > len(frame):
        raise too_long()
    if found.repairs_texts:
        repaired = _repaired(frame[position + 2 : end])
        if repaired is not None:
            content = repaired.encode()
            found.edits.append((position, end, _INT16.pack(len(content)) + content))
    return end


def _repaired(encoded: memoryview) -> str | None:
    """The text with U+FFFD for what is not UTF-8; None if all of it is."""
    try:
        str(encoded, "utf-8")
    except UnicodeDecodeError:
        repaired = str(encoded, "utf-8", "replace")
        if len(repaired.encode()) > _TEXT_BYTES_MAX:  # the answer repeats it
            raise too_long() from None
        return repaired
    return None


def _walk_legacy_bytes(frame: memoryview, position: int, found: _Found) -> int:
    length = _INT32.unpack_from(frame, position)[0]
    if length < -1:
        found.edits.append((position, position + 4, b"\xff\xff\xff\xff"))
    position += 4 + max(length, 0)
    if position > len(frame):
        raise too_long()
    return position
