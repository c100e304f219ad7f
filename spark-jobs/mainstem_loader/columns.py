"""The columns of a table: which every table has, and how those out of payloads are named, typed, widened.

Every table has, beside its payload columns:

    day         date       partition column: the day of the event, UTC
    _partition  integer    with `_offset` and `_topic_id` identifies a record; `_topic_partition` in Iceberg
    _offset     long
    _timestamp  timestamp  of the record, UTC, as the producer or the broker set it; null if neither did
    _key        binary     null for a record without key
    _topic_id   string     of the topic, so that one that is created anew under an old name can be told apart
    _run        string     the run that committed the row; the log has the run's offsets and counts
    _headers    array of struct of key and value; only when the load asks for headers
    _rest       string     a JSON object of the fields that fit no column, or whose type is not known yet;
                           only where there are some
    _tombstone  boolean    true for a record whose value is null, which an empty object is not; null for
                           others. Only where there are some, and not of raw values, which are a column

A payload field with one of these names, in upper or lower case, becomes the column `payload_<name>`; so does
a field that looks like the result of that, so no two fields meet in one column. Column names are compared
without case, as Delta demands. A field that differs from a column in case alone, that has a name which Delta
cannot hold, or whose value is not of its column's type goes to `_rest`. Types only ever widen: structs get
members, and integers become doubles, in tables only if nobody has named the type and none is rounded
(`adapt_table`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

import pyarrow as pa

from mainstem_loader.arrow_arrays import fields_of

DAY_COLUMN: Final = "day"
PARTITION_COLUMN: Final = "_partition"
ICEBERG_PARTITION_COLUMN: Final = "_topic_partition"
"""Spark refuses to read an Iceberg table with a column `_partition`, which is one of its metadata columns."""
OFFSET_COLUMN: Final = "_offset"
TIMESTAMP_COLUMN: Final = "_timestamp"
KEY_COLUMN: Final = "_key"
TOPIC_ID_COLUMN: Final = "_topic_id"
RUN_COLUMN: Final = "_run"
HEADERS_COLUMN: Final = "_headers"
REST_COLUMN: Final = "_rest"
TOMBSTONE_COLUMN: Final = "_tombstone"

TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")
DAYS_MIN: Final = -719_162
DAYS_MAX: Final = 2_932_896
MICROSECONDS_MIN: Final = -62_135_596_800_000_000
MICROSECONDS_MAX: Final = 253_402_300_799_999_999
"""Dates and timestamps since 1970 of the years 1 to 9999. Python and some readers have only these."""
HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

RECORD_COLUMNS: Final[Mapping[str, pa.DataType]] = {
    PARTITION_COLUMN: pa.int32(),
    OFFSET_COLUMN: pa.int64(),
    TIMESTAMP_COLUMN: TIMESTAMP_TYPE,
    KEY_COLUMN: pa.binary(),
    TOPIC_ID_COLUMN: pa.string(),
    RUN_COLUMN: pa.string(),
}

OPTIONAL_COLUMNS: Final[Mapping[str, pa.DataType]] = {
    HEADERS_COLUMN: HEADERS_TYPE,
    REST_COLUMN: pa.string(),
    TOMBSTONE_COLUMN: pa.bool_(),
}
"""A table has them only once a load has written some."""

# Columns that Iceberg's readers add to every table. Spark refuses to read a table that has one of its own.
_ICEBERG_METADATA_NAMES: Final = (
    "_change_ordinal",
    "_change_type",
    "_commit_snapshot_id",
    "_deleted",
    "_file",
    "_last_updated_sequence_number",
    "_pos",
    "_row_id",
    "_spec_id",
)
RESERVED_NAMES: Final = frozenset(
    {
        DAY_COLUMN,
        *RECORD_COLUMNS,
        *OPTIONAL_COLUMNS,
        ICEBERG_PARTITION_COLUMN,
        *_ICEBERG_METADATA_NAMES,
    }
)

_RENAMED_PREFIX: Final = "payload_"
_TAKEN: Final = re.compile(
    f"(?:{_RENAMED_PREFIX})*(?:{'|'.join(sorted(RESERVED_NAMES))})", re.IGNORECASE | re.ASCII
)
# Delta and Parquet readers cannot hold these in a column's name (Delta protocol, "Column mapping" lifts it).
_UNFIT: Final = re.compile(r"[ ,;{}()\n\t=\x00]")
_NAME_CHARACTERS_MAX: Final = 255

# Deeper than any table is asked questions about; far below what recursive readers and writers bear.
TYPE_DEPTH_MAX: Final = 32

# An object that is used as a map would make a column, or a member of a struct, of each key.
COLUMNS_MAX: Final = 1000
MEMBERS_MAX: Final = 200

Columns = Mapping[str, pa.DataType]


class TableFormat(StrEnum):
    """What a table of rows is; both have the same columns but for one name."""

    DELTA = "delta"
    ICEBERG = "iceberg"


class ColumnError(ValueError):
    """A field cannot be a column, or not of this type. The message ends up beside the dead letter."""


def partition_column(table_format: TableFormat) -> str:
    """The column with the number of the topic's partition."""
    return ICEBERG_PARTITION_COLUMN if table_format is TableFormat.ICEBERG else PARTITION_COLUMN


def record_columns(table_format: TableFormat) -> dict[str, pa.DataType]:
    """The columns that all rows of a table have, beside the day."""
    return {
        partition_column(table_format) if name == PARTITION_COLUMN else name: kind
        for name, kind in RECORD_COLUMNS.items()
    }


def column_of_field(field: str) -> str:
    """The column a payload field goes to."""
    return _RENAMED_PREFIX + field if _TAKEN.fullmatch(field) else field


def field_of_column(column: str) -> str:
    """The payload field a column comes from: the inverse of `column_of_field`."""
    field = column.removeprefix(_RENAMED_PREFIX)
    return field if field != column and _TAKEN.fullmatch(field) else column


def check_name(field: str, column_names: Iterable[str]) -> None:
    """Whether a field can become a column, or a member, beside the fields `column_names`.

    Raises:
        ColumnError: see there.
    """
    if not field or len(field) > _NAME_CHARACTERS_MAX or _UNFIT.search(field):
        raise ColumnError(f"field {field[:40]!r} cannot be the name of a column")
    # Iceberg names the member b of a struct a by the path a.b, and has no table with two such names.
    path = f"{field}."
    owners = {field[:dot] for dot, character in enumerate(field) if character == "."}
    for other in column_names:
        if other != field and other.casefold() == field.casefold():
            raise ColumnError(f"field {field!r} differs from {other!r} in case alone")
        if other in owners or other.startswith(path):
            raise ColumnError(f"field {field!r} has the name of a path into {other!r}")


def storable_type(value_type: pa.DataType, column_type: pa.DataType | None = None) -> pa.DataType | None:
    """The type a column gets when its values were inferred to be `value_type`; None while that says nothing
    yet, as for a field that was null or an empty list so far. Parts that are as in `column_type` stay so.

    What looks like a timestamp becomes a string: the next value may not look like one.

    Raises:
        ColumnError: nested too deeply, or a nested field cannot be stored.
    """
    return _storable_type(value_type, column_type, 1)


def _storable_type(
    value_type: pa.DataType, column_type: pa.DataType | None, depth: int
) -> pa.DataType | None:
    if value_type == column_type:
        return column_type
    if depth > TYPE_DEPTH_MAX:
        raise ColumnError(f"a value is nested more than {TYPE_DEPTH_MAX} levels deep")
    if pa.types.is_null(value_type):
        return None
    if pa.types.is_temporal(value_type):
        return pa.string()
    if pa.types.is_list(value_type):
        known_item = (
            column_type.value_type if column_type is not None and pa.types.is_list(column_type) else None
        )
        item = _storable_type(value_type.value_type, known_item, depth + 1)
        return None if item is None else pa.list_(item)
    if pa.types.is_struct(value_type):
        known_members = (
            members_of(column_type) if column_type is not None and pa.types.is_struct(column_type) else {}
        )
        members: dict[str, pa.DataType] = {}
        for name, member in members_of(value_type).items():
            if (member_type := _storable_type(member, known_members.get(name), depth + 1)) is not None:
                # Before the name is compared with all others.
                if len(members) >= MEMBERS_MAX:
                    raise ColumnError(f"an object has more than {MEMBERS_MAX} members")
                check_name(name, members)
                members[name] = member_type
        return pa.struct(list(members.items())) if members else None
    return value_type


def members_of(struct: pa.DataType) -> dict[str, pa.DataType]:
    """The members of a struct type by name."""
    return {member.name: member.type for member in fields_of(struct)}


def merge_types(field: str, one: pa.DataType, other: pa.DataType, widen: bool) -> pa.DataType:
    """The type that holds both: structs get the members of both, and where `widen`, integers become doubles.
    Structs that are the items of maps stay as they are.

    Raises:
        ColumnError: there is none.
    """
    if one == other:
        return one
    if widen and {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_map(one) and pa.types.is_map(other):
        # Structs are not merged there: DataFusion reads no older file in whose maps they have fewer members.
        items = {one.item_type, other.item_type}
        if widen and one.key_type == other.key_type and items == {pa.int64(), pa.float64()}:
            return pa.map_(one.key_type, pa.float64())
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(merge_types(field, one.value_type, other.value_type, widen))
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        members = members_of(one)
        for name, member in members_of(other).items():
            if name in members:
                members[name] = merge_types(f"{field}.{name}", members[name], member, widen)
            else:
                if len(members) >= MEMBERS_MAX:
                    raise ColumnError(f"field {field!r} has more than {MEMBERS_MAX} members")
                check_name(name, members)
                members[name] = member
        return pa.struct(list(members.items()))
    raise ColumnError(f"field {field!r} is {name_of_type(other)} where it was {name_of_type(one)} before")


def fits(written: pa.DataType, column_type: pa.DataType) -> bool:
    """Whether a file whose column is `written` can be read as `column_type`: readers fill in missing columns
    and members of structs with nulls, but change no type.
    """
    if pa.types.is_list(written) and pa.types.is_list(column_type):
        return fits(written.value_type, column_type.value_type)
    if pa.types.is_struct(written) and pa.types.is_struct(column_type):
        members = members_of(column_type)
        return all(
            name in members and fits(member, members[name]) for name, member in members_of(written).items()
        )
    return written == column_type


def types_of(names: Iterable[str], columns: Columns) -> dict[str, pa.DataType]:
    """The types of columns by name, `pa.null()` for one that is not there."""
    return {name: columns.get(name, pa.null()) for name in names}


def are_of_types(columns: Columns, types: Columns) -> bool:
    """Whether columns have these types still; `pa.null()` stands for one that is not there."""
    return types_of(types, columns) == types


def merge_found(columns: Columns, settled: Columns, inferred: Iterable[Columns]) -> dict[str, pa.DataType]:
    """`columns` with what several readers found, in their order. What contradicts an earlier one or is beyond
    `COLUMNS_MAX`, is left out: the reader that found it must read again, and set it apart. Types may widen
    but for those of `settled`.
    """
    merged = dict(columns)
    for one in inferred:
        for name, column_type in one.items():
            try:
                if name in merged:
                    merged[name] = merge_types(name, merged[name], column_type, widen=name not in settled)
                elif len(merged) < COLUMNS_MAX:
                    check_name(name, merged)
                    merged[name] = column_type
            except ColumnError:
                continue
    return merged


def fit_all(written: Columns, target: Columns) -> bool:
    """Whether all columns of a file but the record's own can be read as in `target`."""
    return all(
        name in RESERVED_NAMES or (name in target and fits(column_type, target[name]))
        for name, column_type in written.items()
    )


def name_of_type(arrow_type: pa.DataType) -> str:
    """How JSON calls values of the type."""
    if pa.types.is_boolean(arrow_type):
        return "a boolean"
    if pa.types.is_integer(arrow_type):
        return "an integer"
    if pa.types.is_floating(arrow_type) or pa.types.is_decimal(arrow_type):
        return "a number"
    if pa.types.is_list(arrow_type):
        return "an array"
    if pa.types.is_struct(arrow_type):
        return "an object"
    return "a string" if pa.types.is_string(arrow_type) else f"a {arrow_type}"
