"""Lengths and counts of a request, checked before the native decoder trusts them.

kio reserves memory for as many elements as an array's count says, and a count of four thousand million ends
the process. So each request that kio decodes is walked once before, without making anything of it: every
length and count must fit into the bytes that are there. Fields of fixed width are skipped together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import Field, fields
from functools import cache
from struct import Struct
from typing import Any, Final

from mainstem_broker.errors import InvalidRequestBytes
from mainstem_broker.protocol.schema import FIXED_BYTES, is_struct, shape_of

Walk = Callable[[memoryview, int], int]
"""From a position in the frame to the one after what was walked."""

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")


def too_long() -> InvalidRequestBytes:
    """The error for a length or count that does not fit."""
    return InvalidRequestBytes("A length or count runs past the end of the request.")


@cache
def walker(schema: type) -> Walk:
    """A walk over one entity of `schema`.

    It raises InvalidRequestBytes where a length or a count does not fit, and IndexError or struct.error
    where the frame ends early.
    """
    flexible: bool = schema.__flexible__  # type: ignore[attr-defined]  # every kio schema has it
    steps: list[Walk] = []
    fixed_bytes = 0
    for field in fields(schema):
        if field.metadata.get("tag") is not None:
            continue
        inner, repeated, _ = shape_of(field)
        size = None if repeated or is_struct(inner) else FIXED_BYTES.get(field.metadata["kafka_type"])
        if size is not None:
            fixed_bytes += size
            continue
        if fixed_bytes:
            steps.append(_skip(fixed_bytes))
            fixed_bytes = 0
        steps.append(_field_walk(field, flexible))
    if fixed_bytes:
        steps.append(_skip(fixed_bytes))
    if flexible:
        steps.append(walk_tagged_fields)
    return steps[0] if len(steps) == 1 else _in_turn(steps)


def _in_turn(steps: Sequence[Walk]) -> Walk:
    def walk(frame: memoryview, position: int) -> int:
        for step in steps:
            position = step(frame, position)
        return position

    return walk


def _skip(size: int) -> Walk:
    return lambda _frame, position: position + size


def _field_walk(field: Field[Any], flexible: bool) -> Walk:
    inner, repeated, optional = shape_of(field)
    if is_struct(inner):
        one, one_bytes = walker(inner), _struct_bytes(inner)
        if optional and not repeated:
            return _nullable(one)
    else:
        kind = field.metadata["kafka_type"]
        one_bytes = FIXED_BYTES.get(kind)
        one = _scalar_walk(kind, flexible) if one_bytes is None else _skip(one_bytes)
    if not repeated:
        return one
    return _array(one, one_bytes, flexible)


def _struct_bytes(schema: type) -> int | None:
    """The size of an entity that is always the same; None if it varies."""
    if schema.__flexible__:  # type: ignore[attr-defined]  # every kio schema has it
        return None
    total = 0
    for field in fields(schema):
        inner, repeated, _ = shape_of(field)
        size = None if repeated or is_struct(inner) else FIXED_BYTES.get(field.metadata["kafka_type"])
        if size is None:
            return None
        total += size
    return total


def _nullable(one: Walk) -> Walk:
    """A nullable struct is preceded by a byte: negative for none (KIP-893)."""

    def walk(frame: memoryview, position: int) -> int:
        return position + 1 if frame[position] > 127 else one(frame, position + 1)

    return walk


def _array(one: Walk, one_bytes: int | None, flexible: bool) -> Walk:
    read_count = _compact_length if flexible else _legacy_count

    def walk(frame: memoryview, position: int) -> int:
        count, position = read_count(frame, position)
        if one_bytes is not None:
            position += count * one_bytes
            if position > len(frame):
                raise too_long()
            return position
        if count > len(frame) - position:  # no element is shorter than a byte
            raise too_long()
        for _ in range(count):
            position = one(frame, position)
        return position

    return walk


def _legacy_count(frame: memoryview, position: int) -> tuple[int, int]:
    count = _INT32.unpack_from(frame, position)[0]
    return max(count, 0), position + 4


def _compact_length(frame: memoryview, position: int) -> tuple[int, int]:
    """Counts and lengths are written as one more than they are; 0 is null."""
    value, position = read_unsigned_varint(frame, position)
    return max(value - 1, 0), position


def _scalar_walk(kind: str, flexible: bool) -> Walk:
    if flexible:
        return _walk_compact
    return _walk_legacy_string if kind == "string" else _walk_legacy_bytes


def _walk_compact(frame: memoryview, position: int) -> int:
    byte = frame[position]
    if byte < 0x80:
        position += byte or 1
    else:
        value, position = read_unsigned_varint(frame, position)
        position += max(value - 1, 0)
    if position > len(frame):
        raise too_long()
    return position


def _walk_legacy_string(frame: memoryview, position: int) -> int:
    position += 2 + max(_INT16.unpack_from(frame, position)[0], 0)
    if position > len(frame):
        raise too_long()
    return position


def _walk_legacy_bytes(frame: memoryview, position: int) -> int:
    position += 4 + max(_INT32.unpack_from(frame, position)[0], 0)
    if position > len(frame):
        raise too_long()
    return position


def walk_tagged_fields(frame: memoryview, position: int) -> int:
    """Past the tagged fields that end a flexible entity or header (KIP-482); what they hold is not walked.

    No tagged field of a request that is served holds an array.
    """
    count = frame[position]
    if count == 0:
        return position + 1
    count, position = read_unsigned_varint(frame, position)
    for _ in range(count):
        _, position = read_unsigned_varint(frame, position)
        size, position = read_unsigned_varint(frame, position)
        position += size
        if position > len(frame):
            raise too_long()
    return position


def read_unsigned_varint(frame: memoryview, position: int) -> tuple[int, int]:
    """(value, position after it). Raises InvalidRequestBytes for one that is longer than five bytes."""
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
