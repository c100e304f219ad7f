"""Integers that a column of doubles would round: found in columns, and in the JSON that they came from.

A double has 53 bits, so an integer of 2^53 or more may become another one, and two ids may become the same.
An integer fits a column of doubles if it is the shortest text of its double but for zeros at its end, as
writers without integers print a large double: 12345678901234567000 fits, 9007199254740993 does not. A whole
number with a point or an exponent also fits if it has all digits of its double. Pure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem_loader.arrow_arrays import Array, ChunkedArray, Int64s
from mainstem_loader.columns import members_of

EXACT_BOUND: Final = 1 << 53
"""Integers up to here, either way, are doubles exactly."""
_INT64_BOUND: Final = 1 << 63
_DIGITS_MAX: Final = 400  # more than any finite double has before its point
_SHOWN_DIGITS: Final = 40


INEXACT: Final = "cannot hold exactly"
"""In the reason against a record with an integer that is too large for its column."""


class LongInteger(str):
    """The digits of an integer that has more of them than any double."""


def has_longs(kind: pa.DataType) -> bool:
    """Whether a value of the type may hold an integer of 64 bits."""
    return _has_part(kind, pa.types.is_int64)


def has_doubles(kind: pa.DataType) -> bool:
    """Whether a value of the type may hold a double."""
    return _has_part(kind, pa.types.is_floating)


def _has_part(kind: pa.DataType, is_wanted: Callable[[pa.DataType], bool]) -> bool:
    if pa.types.is_list(kind):
        return _has_part(kind.value_type, is_wanted)
    if pa.types.is_map(kind):
        return _has_part(kind.item_type, is_wanted)
    if pa.types.is_struct(kind):
        return any(_has_part(member, is_wanted) for member in members_of(kind).values())
    return is_wanted(kind)


def suspect_rows(table: pa.Table) -> Int64s:
    """The rows of which a double may be a rounded integer; all rows where that is inside of other values."""
    suspects = np.zeros(table.num_rows, dtype=np.bool_)
    for column in table.columns:
        if pa.types.is_floating(column.type):
            values = column.to_numpy()
            suspects |= np.abs(values) >= EXACT_BOUND  # infinite ones may have been too many digits
        elif has_doubles(column.type) and _has_large(column):
            suspects[:] = True
            break
    return np.flatnonzero(suspects)


def rounds(tables: Sequence[pa.Table]) -> bool:
    """Whether tables that are put together, integers becoming doubles where they differ, round an integer."""
    types_of: dict[str, set[pa.DataType]] = {}
    for table in tables:
        for name, kind in zip(table.schema.names, table.schema.types, strict=True):
            types_of.setdefault(name, set()).add(kind)
    differing = {name for name, types in types_of.items() if len(types) > 1 and any(map(has_doubles, types))}
    return any(
        _has_large(table.column(name))
        for table in (tables if differing else ())
        for name in differing.intersection(table.column_names)
        if not pa.types.is_floating(table.schema.field(name).type)
    )


def _has_large(column: ChunkedArray) -> bool:
    return any(_is_large(leaf) for chunk in column.chunks for leaf in _numbers_in(chunk))


def _is_large(numbers: Array) -> bool:
    least, greatest = (bound.as_py() for bound in (pc.min(numbers), pc.max(numbers)))
    return any(value is not None and abs(value) >= EXACT_BOUND for value in (least, greatest))


def _numbers_in(array: Array) -> Iterator[Array]:
    if isinstance(array, pa.MapArray):
        yield from _numbers_in(array.items)
    elif isinstance(array, pa.ListArray):
        yield from _numbers_in(array.flatten())
    elif isinstance(array, pa.StructArray):
        for member in array.flatten():
            yield from _numbers_in(member)
    elif pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
        yield array


def integers_and_floats(text: bytes) -> dict[str, Any]:
    """A JSON object, with integers apart from other numbers whatever their size; empty if it is none. A whole
    number in another spelling, such as 9007199254740993.0, is an integer if its double is another number.
    """
    try:
        record = json.loads(text, parse_int=integer_of_digits, parse_float=float_or_integer)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def float_or_integer(digits: str) -> float | int:
    """A number with a point or an exponent: an integer if it is a whole number and its double another one."""
    number = float(digits)
    if abs(number) < EXACT_BOUND or math.isinf(number):
        return number
    value = Decimal(digits)
    integer = int(value)
    return number if integer != value or value in (Decimal(number), Decimal(repr(number))) else integer


def integer_of_digits(digits: str) -> int | LongInteger:
    """An integer, whatever its size."""
    return int(digits) if len(digits) <= _DIGITS_MAX else LongInteger(digits)


def rounded_field(record: Mapping[str, Any], types: Mapping[str, pa.DataType]) -> tuple[str, Any] | None:
    """The first field with an integer that its column, which may hold doubles, would round; that integer."""
    for field, value in record.items():
        kind = types.get(field)
        if kind is not None and (found := _rounded(value, kind)) is not None:
            return field, found
    return None


def _rounded(value: Any, kind: pa.DataType) -> Any:
    parts: Iterable[tuple[Any, pa.DataType]] = ()
    if pa.types.is_floating(kind):
        is_integer = type(value) is int or isinstance(value, LongInteger)
        return value if is_integer and not is_exact(value) else None
    if pa.types.is_list(kind) and isinstance(value, list):
        parts = ((item, kind.value_type) for item in value)
    elif pa.types.is_struct(kind) and isinstance(value, dict):
        members = members_of(kind)
        parts = ((value[name], member) for name, member in members.items() if name in value)
    return next((found for one, part in parts if (found := _rounded(one, part)) is not None), None)


def is_exact(integer: int | LongInteger) -> bool:
    """Whether a double stands for this integer and no other."""
    if isinstance(integer, LongInteger):
        return False
    try:
        return Decimal(repr(float(integer))) == integer
    except OverflowError:
        return False


def is_long(integer: int | LongInteger) -> bool:
    """Whether an integer has more than 64 bits."""
    return isinstance(integer, LongInteger) or not -_INT64_BOUND <= integer < _INT64_BOUND


def reason_against(field: str, integer: int | str, column: str) -> str:
    """Why a record with this integer is dead."""
    digits = str(integer)
    shown = digits if len(digits) <= _SHOWN_DIGITS else f"{digits[:_SHOWN_DIGITS]}..."
    return f"field {field!r} has {shown}, which {column} {INEXACT}"
