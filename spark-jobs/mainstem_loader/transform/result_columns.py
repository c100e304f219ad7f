"""Whether the result of a transform can be rows of the table, and which types its columns get. Pure.

Columns that every table has keep their meaning where the result has them:

    _partition, _offset     name the record that a row comes from; both or neither
    _timestamp, _key        of that record
    _headers, _rest, _tombstone
                            as in any load that has them
    day                     the table's partition; of `_timestamp` where it is missing, and where that is
                            missing, too, the day of the load

`_topic_id` and `_run` are the loader's own. All other columns take the place of the payload's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from mainstem_loader.arrow_arrays import fields_of
from mainstem_loader.columns import (
    COLUMNS_MAX,
    DAY_COLUMN,
    HEADERS_COLUMN,
    HEADERS_TYPE,
    KEY_COLUMN,
    OFFSET_COLUMN,
    OPTIONAL_COLUMNS,
    PARTITION_COLUMN,
    RECORD_COLUMNS,
    RUN_COLUMN,
    TIMESTAMP_COLUMN,
    TIMESTAMP_TYPE,
    TOPIC_ID_COLUMN,
    TYPE_DEPTH_MAX,
    ColumnError,
    Columns,
    check_name,
    fits,
    merge_types,
)
from mainstem_loader.errors import TransformError

_OWN_COLUMNS: Final[Mapping[str, pa.DataType]] = {
    **{
        name: RECORD_COLUMNS[name] for name in (PARTITION_COLUMN, OFFSET_COLUMN, TIMESTAMP_COLUMN, KEY_COLUMN)
    },
    **OPTIONAL_COLUMNS,
    DAY_COLUMN: pa.date32(),
}
_STAMPED: Final = frozenset({TOPIC_ID_COLUMN, RUN_COLUMN})

# A value of the key's type is one of each of these, too.
_WIDER: Final[Mapping[pa.DataType, tuple[pa.DataType, ...]]] = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64()),
    pa.int16(): (pa.int32(), pa.int64()),
    pa.int32(): (pa.int64(), pa.float64()),
    pa.float32(): (pa.float64(),),
}
_SCALARS: Final = frozenset(
    {
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
        TIMESTAMP_TYPE,
    }
)


@dataclass(frozen=True, slots=True)
class ResultColumns:
    """The columns that a result's rows get, by the result's names.

    Attributes:
        own: those of `_OWN_COLUMNS` that the result has.
        others: the result's, with their types in the table.
    """

    own: Columns
    others: Columns

    @property
    def of_files(self) -> dict[str, pa.DataType]:
        """The columns beyond the record's own, as a commit names them."""
        return {
            **self.others,
            **{name: kind for name, kind in self.own.items() if name in OPTIONAL_COLUMNS},
        }

    @property
    def names_records(self) -> bool:
        """Whether rows say which record they come from."""
        return OFFSET_COLUMN in self.own


def result_columns(result: pa.Schema, table: Columns) -> ResultColumns:
    """Compare a result with the table.

    Args:
        result: as Spark maps it to Arrow.
        table: the columns that the table has beyond those of every table; empty for a new one.

    Raises:
        TransformError: with the column, and what to do.
    """
    if not result.names:
        raise TransformError(
            "The transform returns no columns; end it with a query, such as SELECT ... FROM records."
        )
    if len(result.names) > COLUMNS_MAX:
        raise TransformError(
            f"The transform returns {len(result.names)} columns; a table can have {COLUMNS_MAX}."
        )
    own: dict[str, pa.DataType] = {}
    others: dict[str, pa.DataType] = {}
    of_table = {name.casefold(): name for name in table}
    for column in result:
        if column.name in own or column.name in others:
            raise TransformError(f"The transform returns two columns {column.name}; rename one.")
        if column.name in _OWN_COLUMNS:
            own[column.name] = _OWN_COLUMNS[column.name]
            _check_castable(column.name, column.type, own[column.name])
        else:
            others[column.name] = _type_in_table(column, of_table, table, others)
    if (PARTITION_COLUMN in own) != (OFFSET_COLUMN in own):
        raise TransformError(
            f"The transform returns only one of {PARTITION_COLUMN} and {OFFSET_COLUMN}, which name a record"
            " together; return both, or neither."
        )
    return ResultColumns(own, others)


def _type_in_table(
    column: pa.Field[pa.DataType], of_table: Mapping[str, str], table: Columns, others: Columns
) -> pa.DataType:
    name = column.name
    if name.casefold() in {*_STAMPED, *_OWN_COLUMNS}:
        raise TransformError(
            f"The transform returns a column {name}, whose name is the loader's own; rename it (AS)."
        )
    try:
        check_name(name, others)
    except ColumnError as error:
        raise TransformError(f"The transform's result cannot be stored: {error}; rename it (AS).") from error
    kind = storable(name, column.type)
    present = of_table.get(name.casefold())
    if present is None:
        return kind
    if present != name:
        raise TransformError(
            f"The transform returns a column {name}, and the table has {present}; names that differ in case"
            " alone cannot be told apart. Rename it (AS)."
        )
    if fits(kind, table[name]):
        return kind
    if table[name] in _WIDER.get(kind, ()):
        return table[name]
    try:
        merge_types(name, table[name], kind, widen=False)
    except ColumnError as error:
        raise TransformError(
            f"The transform returns column {name} as {kind}, and the table has it as {table[name]}; cast it,"
            " rename it, or load into another table."
        ) from error
    return kind


def storable(name: str, kind: pa.DataType, depth: int = 1) -> pa.DataType:
    """The type a column gets whose values Spark gives as `kind`.

    Raises:
        TransformError: the table's format has none, or none that all its readers know.
    """
    if depth > TYPE_DEPTH_MAX:
        raise TransformError(
            f"The transform returns column {name} nested more than {TYPE_DEPTH_MAX} levels deep; flatten it."
        )
    if pa.types.is_list(kind):
        return pa.list_(storable(name, kind.value_type, depth + 1))
    if pa.types.is_struct(kind) and kind.num_fields:
        return pa.struct(
            [
                (member.name, storable(f"{name}.{member.name}", member.type, depth + 1))
                for member in fields_of(kind)
            ]
        )
    if kind in _SCALARS or pa.types.is_decimal128(kind):
        return kind
    hint = "cast it to a type that has one"
    if pa.types.is_map(kind):
        hint = "use map_entries or to_json"
    elif pa.types.is_timestamp(kind):
        hint = "cast it to timestamp, which has a time zone"
    elif pa.types.is_null(kind):
        hint = "cast it, such as CAST(NULL AS string)"
    raise TransformError(
        f"The transform returns column {name} as {kind}, for which tables have no type; {hint}."
    )


def _check_castable(name: str, kind: pa.DataType, wanted: pa.DataType) -> None:
    is_number = pa.types.is_integer(kind) and pa.types.is_integer(wanted)
    if not (kind == wanted or is_number or (name == HEADERS_COLUMN and _is_headers(kind))):
        raise TransformError(
            f"The transform returns column {name} as {kind}; in a table it is {wanted}. Cast it, or rename it"
            " (AS)."
        )


def _is_headers(kind: pa.DataType) -> bool:
    """Whether it is the type of headers, whatever the name of the items."""
    return pa.types.is_list(kind) and kind.value_type == HEADERS_TYPE.value_type
