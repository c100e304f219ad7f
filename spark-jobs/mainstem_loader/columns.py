"""The columns of a table: which every table has, and how those out of payloads are named, typed, widened.

Every table has, beside its payload columns:

    day         date       partition column: the day of the event, UTC
    _partition  integer    with `_offset` names a record, uniquely until the topic is made anew
    _offset     long
    _timestamp  timestamp  of the record, UTC, as the producer or the broker set it
    _key        binary     null for a record without key
    _headers    array of struct of key and value; only when the load asks for headers

A payload field with one of these names, in upper or lower case, becomes the column `payload_<name>`; so does
a field that looks like the result of that, so no two fields meet in one column. Column names are compared
without case, as Delta demands: a field that differs from a column in case alone is refused, and so is a name
that Delta cannot hold. Types only ever widen, and only until the table has the column: a table's column keeps
its type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import pyarrow as pa

from mainstem_loader.arrow_arrays import fields_of

DAY_COLUMN: Final = "day"
PARTITION_COLUMN: Final = "_partition"
OFFSET_COLUMN: Final = "_offset"
TIMESTAMP_COLUMN: Final = "_timestamp"
KEY_COLUMN: Final = "_key"
HEADERS_COLUMN: Final = "_headers"

TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")
HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

RECORD_COLUMNS: Final[Mapping[str, pa.DataType]] = {
    PARTITION_COLUMN: pa.int32(),
    OFFSET_COLUMN: pa.int64(),
    TIMESTAMP_COLUMN: TIMESTAMP_TYPE,
    KEY_COLUMN: pa.binary(),
}

RESERVED_NAMES: Final = frozenset({DAY_COLUMN, *RECORD_COLUMNS, HEADERS_COLUMN})

_RENAMED_PREFIX: Final = "payload_"
_TAKEN: Final = re.compile(
    f"(?:{_RENAMED_PREFIX})*(?:{'|'.join(sorted(RESERVED_NAMES))})", re.IGNORECASE | re.ASCII
)
# Delta and Parquet readers cannot hold these in a column's name (Delta protocol, "Column mapping" lifts it).
_UNFIT: Final = re.compile(r"[ ,;{}()\n\t=\x00]")
_NAME_CHARACTERS_MAX: Final = 255

# Deeper than any table is asked questions about; far below what recursive readers and writers bear.
TYPE_DEPTH_MAX: Final = 32

Columns = Mapping[str, pa.DataType]


class ColumnError(ValueError):
    """A field cannot be a column, or not of this type. The message ends up beside the dead letter."""


def column_of_field(field: str) -> str:
    """The column a payload field goes to."""
    return _RENAMED_PREFIX + field if _TAKEN.fullmatch(field) else field


def field_of_column(column: str) -> str:
    """The payload field a column comes from: the inverse of `column_of_field`."""
    field = column.removeprefix(_RENAMED_PREFIX)
    return field if field != column and _TAKEN.fullmatch(field) else column


def check_name(field: str, known: Iterable[str]) -> None:
    """Whether a field can become a column beside the fields `known`.

    Raises:
        ColumnError: see there.
    """
    if not field or len(field) > _NAME_CHARACTERS_MAX or _UNFIT.search(field):
        raise ColumnError(f"field {field[:40]!r} cannot be the name of a column")
    for other in known:
        if other != field and other.casefold() == field.casefold():
            raise ColumnError(f"field {field!r} differs from {other!r} in case alone")


def storable_type(found: pa.DataType, known: pa.DataType | None = None) -> pa.DataType | None:
    """The type a column gets when its values were inferred to be `found`; None while that says nothing yet,
    as for a field that was null or an empty list so far. Parts that are as in `known` stay so.

    What looks like a timestamp becomes a string: the next value may not look like one.

    Raises:
        ColumnError: nested too deeply, or a nested field cannot be stored.
    """
    return _storable_type(found, known, 1)


def _storable_type(found: pa.DataType, known: pa.DataType | None, depth: int) -> pa.DataType | None:
    if found == known:
        return known
    if depth > TYPE_DEPTH_MAX:
        raise ColumnError(f"a value is nested more than {TYPE_DEPTH_MAX} levels deep")
    if pa.types.is_null(found):
        return None
    if pa.types.is_temporal(found):
        return pa.string()
    if pa.types.is_list(found):
        known_item = known.value_type if known is not None and pa.types.is_list(known) else None
        item = _storable_type(found.value_type, known_item, depth + 1)
        return None if item is None else pa.list_(item)
    if pa.types.is_struct(found):
        known_members = members_of(known) if known is not None and pa.types.is_struct(known) else {}
        members: dict[str, pa.DataType] = {}
        for name, member in members_of(found).items():
            if (member_type := _storable_type(member, known_members.get(name), depth + 1)) is not None:
                check_name(name, members)
                members[name] = member_type
        return pa.struct(list(members.items())) if members else None
    return found


def members_of(struct: pa.DataType) -> dict[str, pa.DataType]:
    """The members of a struct type by name."""
    return {member.name: member.type for member in fields_of(struct)}


def merge_types(field: str, one: pa.DataType, other: pa.DataType, widen: bool) -> pa.DataType:
    """The type that holds both: structs get the members of both, and where `widen`, integers become doubles.

    Raises:
        ColumnError: there is none.
    """
    if one == other:
        return one
    if widen and {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(merge_types(field, one.value_type, other.value_type, widen))
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        members = members_of(one)
        for name, member in members_of(other).items():
            if name in members:
                members[name] = merge_types(f"{field}.{name}", members[name], member, widen)
            else:
                check_name(name, members)
                members[name] = member
        return pa.struct(list(members.items()))
    raise ColumnError(f"field {field!r} is {name_of_type(other)} where it was {name_of_type(one)} before")


def fits(written: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a file whose column is `written` can be read as `wanted`: readers fill in missing columns and
    members of structs with nulls, but change no type.
    """
    if pa.types.is_list(written) and pa.types.is_list(wanted):
        return fits(written.value_type, wanted.value_type)
    if pa.types.is_struct(written) and pa.types.is_struct(wanted):
        members = members_of(wanted)
        return all(
            name in members and fits(member, members[name]) for name, member in members_of(written).items()
        )
    return written == wanted


def merge_found(columns: Columns, settled: Columns, found: Iterable[Columns]) -> dict[str, pa.DataType]:
    """`columns` with what several readers found, in their order. What contradicts an earlier one is left out:
    whoever found it must read again, and call it dead. Types may widen but for those of `settled`.
    """
    merged = dict(columns)
    for one in found:
        for name, column_type in one.items():
            try:
                if name in merged:
                    merged[name] = merge_types(name, merged[name], column_type, widen=name not in settled)
                else:
                    check_name(name, merged)
                    merged[name] = column_type
            except ColumnError:
                continue
    return merged


def fit_all(written: Columns, wanted: Columns) -> bool:
    """Whether all columns of a file but the record's own can be read as `wanted`."""
    return all(
        name in RESERVED_NAMES or (name in wanted and fits(column_type, wanted[name]))
        for name, column_type in written.items()
    )


def name_of_type(found: pa.DataType) -> str:
    """How JSON calls values of the type."""
    if pa.types.is_boolean(found):
        return "a boolean"
    if pa.types.is_integer(found):
        return "an integer"
    if pa.types.is_floating(found) or pa.types.is_decimal(found):
        return "a number"
    if pa.types.is_list(found):
        return "an array"
    if pa.types.is_struct(found):
        return "an object"
    return "a string" if pa.types.is_string(found) else f"a {found}"
