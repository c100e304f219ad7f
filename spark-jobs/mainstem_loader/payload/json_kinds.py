"""Which fields of a JSON record fit their columns, found record by record.

Arrow's reader stops at the first value that does not fit and may not say which. Where many do not, asking it
about ever smaller blocks takes long; parsing each record once in Python and comparing kinds is some twenty
times faster. Fields that do not fit are set apart as JSON text, so the rest of the record becomes a row. The
verdicts here are sure but not complete: what passes is still for Arrow's reader to judge.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation, localcontext
from json import JSONDecoder
from typing import Final

import orjson
import pyarrow as pa

from mainstem_loader.columns import (
    COLUMNS_MAX,
    MEMBERS_MAX,
    TYPE_DEPTH_MAX,
    ColumnError,
    check_name,
    members_of,
    merge_types,
)
from mainstem_loader.exact_numbers import (
    float_or_integer,
    integer_of_digits,
    is_exact,
    is_long,
    reason_against,
)

_WHITESPACE: Final = " \t\r\n"

# Finds where values end; numbers are not converted, since they may have any length.
_VALUES: Final = JSONDecoder(parse_int=len, parse_float=len)

_INTEGER: Final = re.compile(r"-?[0-9]+")
_FLOAT: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_INTEGER_BOUND: Final = 1 << 63
_INTEGER_DIGITS: Final = 19
_DIGITS_MAX: Final = 1100  # more than any 64-bit integer is written with, and its zeros behind the point

TOO_LARGE: Final = "a number is too large for a double"
"""The reason against a record with a number such as 1e400, which is JSON."""

# Returns whether the column can hold the value.
Fits = Callable[[object], bool]

# Arrow's reader takes these for numbers, orjson does not.
_NUMBER_WORDS: Final = (b"NaN", b"Inf")  # Arrow reads Infinity in this spelling, too


@dataclass(frozen=True, slots=True)
class SplitRecord:
    """A record without the fields that do not fit. `rest`: those, as a JSON object; None if all fit."""

    text: bytes
    rest: str | None


class KindCheck:
    """Compares records with columns.

    Args:
        fixed: fields whose type stays.
        found: fields whose type may still widen, so any number will do for a number.
    """

    def __init__(self, fixed: Mapping[str, pa.DataType], inferred: Mapping[str, pa.DataType]) -> None:
        self._types = {**fixed, **inferred}
        self._fits_of = {
            field: _fits(column_type, widens=field not in fixed) for field, column_type in self._types.items()
        }

        self._integers = {field for field, column_type in fixed.items() if pa.types.is_integer(column_type)}
        self._nested = {
            field: self._types[field] for field in fixed if pa.types.is_nested(self._types[field])
        }

    def split(self, text: bytes) -> SplitRecord | str:
        """Set the fields of a record apart that do not fit; the reason if the text is not JSON."""
        try:
            record = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            return (
                SplitRecord(text, None) if any(word in text for word in _NUMBER_WORDS) else _reason_of(error)
            )
        # Arrow makes nothing of a null where there is no column, and so has to be this.
        misfits = {
            field
            for field, value in record.items()
            if value is not None and not self._field_fits(field, value)
        }
        if not misfits:
            return SplitRecord(text, None)
        whole = {
            field
            for field in misfits
            if field in self._integers and type(record[field]) is float and record[field].is_integer()
        }
        nested = {field: self._nested[field] for field in misfits if field in self._nested}
        return _split_text(text.decode(), misfits, whole, self._integers, nested, self._field_fits)

    def _field_fits(self, field: str, value: object) -> bool:
        fits = self._fits_of.get(field)
        if fits is not None:
            return fits(value)
        if len(self._types) >= COLUMNS_MAX:
            return False
        try:
            check_name(field, self._types)
            _shape(value, 1)
        except ColumnError:
            return False
        return True


def _split_text(
    text: str,
    misfits: AbstractSet[str],
    whole: AbstractSet[str],
    integers: AbstractSet[str],
    nested: Mapping[str, pa.DataType],
    field_fits: Callable[[str, object], bool],
) -> SplitRecord | str:
    """Divide the fields of valid JSON by name, their values as they were written: parsing and writing them
    again would round long numbers and lose one of two equal names.

    Args:
        text: of the record.
        misfits: fields that do not fit.
        whole: those of them that may be whole numbers in another spelling, such as 30.0 or 3e1. If they are,
            they fit as integers.
        integers: fields whose columns are of integers. One that is too large for its column is set apart with
            its whole record, which is dead: nobody would look for an id elsewhere.
        nested: the misfits whose columns are of arrays or objects, and their types: whole numbers in them may
            be in another spelling as well.
        field_fits: whether a value fits the column of a field.
    """
    fitting: dict[str, str] = {}
    rest: dict[str, str] = {}
    position = _skip_space(text, _skip_space(text, 0) + 1)
    try:
        while text[position] != "}":
            begin = position
            name, position = _VALUES.raw_decode(text, position)
            position = _skip_space(text, _skip_space(text, position) + 1)
            value_begin = position
            _, position = _VALUES.raw_decode(text, position)
            written = text[begin:position]
            fits = name not in misfits
            if name in whole and (integer := _integer_text(text[value_begin:position])) is not None:
                written, fits = f"{text[begin:value_begin]}{integer}", True
            elif name in misfits and name in integers and _is_inexact(text[value_begin:position]):
                return reason_against(name, text[value_begin:position], "its column of integers")
            elif name in nested:
                value_text = _integers_spelled_out(text[value_begin:position], nested[name])
                if field_fits(name, orjson.loads(value_text)):
                    written, fits = f"{text[begin:value_begin]}{value_text}", True
            if name in fitting or name in rest:
                return f"field {name!r} appears twice"
            (fitting if fits else rest)[name] = written
            position = _skip_space(text, position)
            if text[position] == ",":
                position = _skip_space(text, position + 1)
    except RecursionError:
        return SplitRecord(b"{}", text)
    rest_text = f"{{{','.join(rest.values())}}}" if rest else None
    return SplitRecord(f"{{{','.join(fitting.values())}}}".encode(), rest_text)


def _is_inexact(value: str) -> bool:
    """Whether the text of a value is an integer, or another whole number that a double would round."""
    if _INTEGER.fullmatch(value):
        return True
    return _FLOAT.fullmatch(value) is not None and type(float_or_integer(value)) is int


def _integers_spelled_out(text: str, kind: pa.DataType) -> str:
    """The text of a JSON value of that type, in which whole numbers in the places of integers have no point
    and no exponent. Everything else stays as it was written.
    """
    if pa.types.is_integer(kind):
        return _integer_text(text) or text
    item_type: pa.DataType | None = None
    members: Mapping[str, pa.DataType] = {}
    if pa.types.is_list(kind) and text[0] == "[":
        item_type = kind.value_type
    elif pa.types.is_struct(kind) and text[0] == "{":
        members = members_of(kind)
    else:
        return text
    pieces = list[str]()
    copied = 0
    position = _skip_space(text, 1)
    while text[position] not in "]}":
        value_type = item_type
        if item_type is None:
            name, position = _VALUES.raw_decode(text, position)
            value_type = members.get(name)
            position = _skip_space(text, _skip_space(text, position) + 1)
        value_begin = position
        _, position = _VALUES.raw_decode(text, position)
        if value_type is not None:
            value_text = _integers_spelled_out(text[value_begin:position], value_type)
            pieces += (text[copied:value_begin], value_text)
            copied = position
        position = _skip_space(text, position)
        if text[position] == ",":
            position = _skip_space(text, position + 1)
    return "".join((*pieces, text[copied:]))


def _integer_text(number: str) -> str | None:
    """The digits of a number that is a 64-bit integer in whatever spelling; None if it is none, as -0.0."""
    with localcontext(prec=_DIGITS_MAX):
        try:
            value = Decimal(number)
        except InvalidOperation:
            return None
        # The exponent first: numbers such as 1e999999 have too many digits to write out.
        if value.adjusted() >= _INTEGER_DIGITS or value != value.to_integral_value():
            return None
        if value.is_zero() and value.is_signed():
            return None  # Integers have no -0.0.
        integer = int(value)
    return str(integer) if -_INTEGER_BOUND <= integer < _INTEGER_BOUND else None


def _skip_space(text: str, position: int) -> int:
    while text[position] in _WHITESPACE:
        position += 1
    return position


def split_all(text: bytes) -> SplitRecord | str:
    """Set all fields apart, for a record that no column can take anything of."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return _reason_of(error)
    return SplitRecord(b"{}", text.decode())


def wider_types(text: bytes, types: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """The fields whose columns could hold what they have in a record, if doubles were in the places of some
    integers: the types that the columns need for that.

    Args:
        text: of the record.
        types: of columns with integers of 64 bits, by field.
    """
    try:
        record = json.loads(text, parse_int=integer_of_digits, parse_float=_number)
    except (ValueError, RecursionError):
        return {}
    wider: dict[str, pa.DataType] = {}
    for field, column_type in types.items() if isinstance(record, dict) else ():
        value = record.get(field)
        wider_type = _with_doubles(value, column_type)
        if wider_type != column_type and _fits(wider_type, widens=False)(value):
            wider[field] = wider_type
    return wider


def _number(digits: str) -> int | float | str:
    """A JSON number with a point or an exponent: an integer if a column of integers takes it for one, and its
    digits if no double holds it.
    """
    integer = _integer_text(digits)
    number = float_or_integer(digits) if integer is None else int(integer)
    return digits if number in (math.inf, -math.inf) else number


def _reason_of(error: orjson.JSONDecodeError) -> str:
    return TOO_LARGE if "infinity when parsed" in str(error) else f"not JSON: {error}"


def _with_doubles(value: object, kind: pa.DataType) -> pa.DataType:
    """The type with doubles for those integers in whose place the value has another number."""
    if pa.types.is_int64(kind):
        is_large = type(value) is int and is_long(value) and is_exact(value)
        return pa.float64() if isinstance(value, float) or is_large else kind
    if pa.types.is_list(kind) and isinstance(value, list):
        item_type = kind.value_type
        for item in value:
            item_type = _with_doubles(item, item_type)
        return kind if item_type == kind.value_type else pa.list_(item_type)
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return pa.struct(
            [(name, _with_doubles(value.get(name), member)) for name, member in members_of(kind).items()]
        )
    return kind


def type_of_value(value: object) -> pa.DataType:
    """The type that Arrow's reader infers of a JSON value; null where the value does not say.

    Raises:
        ColumnError: an array mixes kinds.
    """
    match value:
        case None:
            return pa.null()
        case bool():
            return pa.bool_()
        case int():
            return pa.float64() if is_long(value) else pa.int64()
        case float():
            return pa.float64()
        case list():
            item_type: pa.DataType = pa.null()
            for item in value:
                item_type = _type_of_both(item_type, type_of_value(item))
            return pa.list_(item_type)
        case dict():
            return pa.struct([(name, type_of_value(member)) for name, member in value.items()])
        case _:
            return pa.string()


def _type_of_both(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if pa.types.is_null(one) or pa.types.is_null(other):
        return other if pa.types.is_null(one) else one
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(_type_of_both(one.value_type, other.value_type))
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        members = members_of(one)
        for name, member in members_of(other).items():
            members[name] = _type_of_both(members.get(name, pa.null()), member)
        return pa.struct(list(members.items()))
    return merge_types("", one, other, widen=True)


def names_of(text: bytes) -> frozenset[str]:
    """The names of a record's fields; none if the text is not JSON."""
    try:
        return frozenset(orjson.loads(text))
    except orjson.JSONDecodeError:
        return frozenset()


def split_fields(text: bytes, names: AbstractSet[str]) -> SplitRecord | str:
    """Set the named fields apart of a record, if it has any of them."""
    if not names & names_of(text):
        return SplitRecord(text, None)
    return _split_text(text.decode(), names, frozenset(), frozenset(), {}, lambda _name, _value: False)


def _fits(column_type: pa.DataType, widens: bool) -> Fits:
    if pa.types.is_boolean(column_type):
        return lambda value: isinstance(value, bool)
    if pa.types.is_integer(column_type) and not widens:
        bound = 1 << (column_type.bit_width - 1)
        return lambda value: type(value) is int and -bound <= value < bound
    if pa.types.is_integer(column_type) or pa.types.is_floating(column_type):
        return lambda value: type(value) in (int, float)
    if pa.types.is_decimal(column_type):
        return lambda value: type(value) in (int, float, str)
    if pa.types.is_list(column_type):
        item_fits = _fits(column_type.value_type, widens)
        return lambda value: (
            isinstance(value, list) and all(item is None or item_fits(item) for item in value)
        )
    if pa.types.is_struct(column_type):
        member_fits = {name: _fits(member, widens) for name, member in members_of(column_type).items()}
        return lambda value: isinstance(value, dict) and _struct_fits(value, member_fits)
    return lambda value: isinstance(value, str)


def _struct_fits(value: Mapping[str, object], member_fits: Mapping[str, Fits]) -> bool:
    added = 0
    for name, member in value.items():
        fits = member_fits.get(name)
        if fits is not None:
            if member is not None and not fits(member):
                return False
            continue
        if _says_nothing(member):
            continue
        added += 1
        try:
            check_name(name, member_fits)
            _shape(member, 2)
        except ColumnError:
            return False
    return not added or len(member_fits) + added <= MEMBERS_MAX


def _shape(value: object, depth: int) -> object:
    """What kind of value it is, down to the items of arrays; None while that is open, as for a null.

    Raises:
        ColumnError: an array mixes kinds, or an object has members that no struct can have.
    """
    if depth > TYPE_DEPTH_MAX:
        raise ColumnError("nested too deeply")
    if isinstance(value, list):
        item: object = None
        for element in value:
            item = _merged(item, _shape(element, depth + 1))
        return [item]
    if isinstance(value, dict):
        if len(value) > MEMBERS_MAX:
            raise ColumnError("an object with too many members")
        members: dict[str, object] = {}
        for name, member in value.items():
            if not _says_nothing(member, depth + 1):
                check_name(name, members)
                members[name] = _shape(member, depth + 1)
        return members
    return None if value is None else float if type(value) is int else type(value)


def _says_nothing(value: object, depth: int = 1) -> bool:
    """Whether a value has no type, so that Arrow makes no member of it whatever its name."""
    if depth > TYPE_DEPTH_MAX:
        return False
    if isinstance(value, list):
        return all(_says_nothing(item, depth + 1) for item in value)
    if isinstance(value, dict):
        return all(_says_nothing(member, depth + 1) for member in value.values())
    return value is None


def _merged(one: object, other: object) -> object:
    if one is None or other is None or one == other:
        return other if one is None else one
    if isinstance(one, list) and isinstance(other, list):
        return [_merged(one[0], other[0])]
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: _merged(one.get(name), other.get(name)) for name in {**one, **other}}
    raise ColumnError("an array mixes kinds of values")
