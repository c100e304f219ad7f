"""Lengths and counts of a request, checked before the native decoder trusts them.

kio reserves memory for as many elements as an array's count says, and a count of four thousand million ends
the process. So each request that kio decodes is walked once before, without making anything of it: every
length and count must fit into the bytes that are there. Fields of fixed width are skipped together.

The elements of all arrays are counted as well: the decoder makes an object of each, without a pause, and an
element may take a single byte. A request with more than `REQUEST_ELEMENTS_MAX` is refused before it is
decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import Field, fields
from functools import cache
from struct import Struct
from typing import Any, Final

from mainstem_broker.protocol.kio_schemas import FIXED_BYTES, is_struct, shape_of
from mainstem_broker.protocol.primitives import (
    REQUEST_ELEMENTS_MAX,
    read_count,
    read_unsigned_varint,
    too_long,
    too_many_elements,
    walk_tagged_fields,
)

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")


_ELEMENTS_MAX_OF_APIS: Final = dict.fromkeys(
    (33, 44, 45),  # AlterConfigs, IncrementalAlterConfigs, AlterPartitionReassignments
    4 * REQUEST_ELEMENTS_MAX,
)
"""Tools of administrators change everything by one request: Kafka's MirrorMaker sends all settings of all
topics, some thirty for each topic."""


class _Elements:
    """How many elements the arrays of a request may still have."""

    __slots__ = ("left", "most")

    def __init__(self, most: int) -> None:
        self.left = self.most = most

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise too_many_elements(self.most)


Walk = Callable[[memoryview, int], int]
"""From a position in the frame to the one after what was walked."""
_CountingWalk = Callable[[memoryview, int, _Elements], int]


@cache
def walker(schema: type) -> Walk:
    """A walk over one request of `schema`.

    It raises InvalidRequestBytes where a length or a count does not fit or there are too many elements, and
    IndexError or struct.error where the frame ends early.
    """
    walk = _struct_walk(schema)
    api_key: int = schema.__api_key__  # type: ignore[attr-defined]  # every request of kio has it
    # One for all requests, which are walked one after another on the event loop.
    elements = _Elements(_ELEMENTS_MAX_OF_APIS.get(api_key, REQUEST_ELEMENTS_MAX))

    def walk_request(frame: memoryview, position: int) -> int:
        elements.left = elements.most
        return walk(frame, position, elements)

    return walk_request


@cache
def _struct_walk(schema: type) -> _CountingWalk:
    flexible: bool = schema.__flexible__  # type: ignore[attr-defined]  # every kio schema has it
    steps: list[_CountingWalk] = []
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
        steps.append(_walk_tagged_fields)
    return steps[0] if len(steps) == 1 else _in_turn(steps)


def _in_turn(steps: Sequence[_CountingWalk]) -> _CountingWalk:
    def walk(frame: memoryview, position: int, elements: _Elements) -> int:
        for step in steps:
            position = step(frame, position, elements)
        return position

    return walk


def _skip(size: int) -> _CountingWalk:
    return lambda _frame, position, _elements: position + size


def _field_walk(field: Field[Any], flexible: bool) -> _CountingWalk:
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


def _nullable(one: _CountingWalk) -> _CountingWalk:
    """A nullable struct is preceded by a byte: negative for none (KIP-893)."""

    def walk(frame: memoryview, position: int, elements: _Elements) -> int:
        return position + 1 if frame[position] > 127 else one(frame, position + 1, elements)

    return walk


def _array(one: _CountingWalk, one_bytes: int | None, flexible: bool) -> _CountingWalk:
    read_length = read_count if flexible else _legacy_count

    def walk(frame: memoryview, position: int, elements: _Elements) -> int:
        count, position = read_length(frame, position)
        if count:
            elements.take(count)
        if one_bytes is not None:
            position += count * one_bytes
            if position > len(frame):
                raise too_long()
            return position
        if count > len(frame) - position:  # no element is shorter than a byte
            raise too_long()
        for _ in range(count):
            position = one(frame, position, elements)
        return position

    return walk


def _legacy_count(frame: memoryview, position: int) -> tuple[int, int]:
    count = _INT32.unpack_from(frame, position)[0]
    return max(count, 0), position + 4


def _walk_tagged_fields(frame: memoryview, position: int, _elements: _Elements) -> int:
    return position + 1 if frame[position] == 0 else walk_tagged_fields(frame, position)


def _scalar_walk(kind: str, flexible: bool) -> _CountingWalk:
    if flexible:
        return _walk_compact
    return _walk_legacy_string if kind == "string" else _walk_legacy_bytes


def _walk_compact(frame: memoryview, position: int, _elements: _Elements) -> int:
    byte = frame[position]
    if byte < 0x80:
        position += byte or 1
    else:
        value, position = read_unsigned_varint(frame, position)
        position += max(value - 1, 0)
    if position > len(frame):
        raise too_long()
    return position


def _walk_legacy_string(frame: memoryview, position: int, _elements: _Elements) -> int:
    position += 2 + max(_INT16.unpack_from(frame, position)[0], 0)
    if position > len(frame):
        raise too_long()
    return position


def _walk_legacy_bytes(frame: memoryview, position: int, _elements: _Elements) -> int:
    position += 4 + max(_INT32.unpack_from(frame, position)[0], 0)
    if position > len(frame):
        raise too_long()
    return position
