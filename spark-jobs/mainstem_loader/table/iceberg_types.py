"""Types of Iceberg's columns as Arrow's, and values of statistics as Iceberg writes them (pure)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from pyiceberg import types
from pyiceberg.conversions import to_bytes
from pyiceberg.schema import Schema

from mainstem_loader.columns import TIMESTAMP_TYPE, Columns

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TYPES: Final[tuple[tuple[type, pa.DataType], ...]] = (
    (types.BooleanType, pa.bool_()),
    (types.IntegerType, pa.int32()),
    (types.LongType, pa.int64()),
    (types.FloatType, pa.float32()),
    (types.DoubleType, pa.float64()),
    (types.DateType, pa.date32()),
    (types.TimestampType, pa.timestamp("us")),
    (types.TimestamptzType, TIMESTAMP_TYPE),
    (types.StringType, pa.string()),
    (types.BinaryType, pa.binary()),
)


def schema_of(columns: Columns) -> Schema:
    """The schema of a new table: columns that are not nested, with ids from 1 on."""
    kinds = {arrow: kind for kind, arrow in _TYPES}
    return Schema(
        *(
            types.NestedField(number, name, kinds[arrow](), required=False)
            for number, (name, arrow) in enumerate(columns.items(), 1)
        )
    )


def arrow_type(column_type: Any) -> pa.DataType:
    """The Arrow type whose values the loader writes for a column; with null in it, if it writes none."""
    for kind, arrow in _TYPES:
        if isinstance(column_type, kind):
            return arrow
    if isinstance(column_type, types.DecimalType):
        return pa.decimal128(column_type.precision, column_type.scale)
    if isinstance(column_type, types.ListType):
        return pa.list_(arrow_type(column_type.element_type))
    if isinstance(column_type, types.MapType):
        return pa.map_(arrow_type(column_type.key_type), arrow_type(column_type.value_type))
    if isinstance(column_type, types.StructType):
        return pa.struct([(member.name, arrow_type(member.field_type)) for member in column_type.fields])
    return pa.null()


def storable(arrow: pa.DataType) -> pa.DataType:
    """The type that a column of an Iceberg table has where a Delta table has this one."""
    if arrow in (pa.int8(), pa.int16()):
        return pa.int32()
    if pa.types.is_list(arrow):
        return pa.list_(storable(arrow.value_type))
    if pa.types.is_map(arrow):
        return pa.map_(storable(arrow.key_type), storable(arrow.item_type))
    if pa.types.is_struct(arrow):
        members = [arrow.field(index) for index in range(arrow.num_fields)]
        return pa.struct([(member.name, storable(member.type)) for member in members])
    return arrow


def paths(name: str, arrow: pa.DataType) -> Iterator[str]:
    """The path of a column, and those of all that is in it, as Iceberg writes them."""
    yield name
    if pa.types.is_list(arrow):
        yield from paths(f"{name}.element", arrow.value_type)
    elif pa.types.is_map(arrow):
        yield from paths(f"{name}.key", arrow.key_type)
        yield from paths(f"{name}.value", arrow.item_type)
    elif pa.types.is_struct(arrow):
        for index in range(arrow.num_fields):
            member = arrow.field(index)
            yield from paths(f"{name}.{member.name}", member.type)


def is_writable(arrow: pa.DataType) -> bool:
    """Whether the loader writes values of a column's type, see `arrow_type`."""
    if pa.types.is_list(arrow):
        return is_writable(arrow.value_type)
    if pa.types.is_map(arrow):
        return is_writable(arrow.key_type) and is_writable(arrow.item_type)
    if pa.types.is_struct(arrow):
        return all(is_writable(arrow.field(index).type) for index in range(arrow.num_fields))
    return not pa.types.is_null(arrow)


def metrics(schema: Schema, statistics: str) -> dict[str, Any]:
    """Statistics of a file, as of `parquet_files`, by the ids of the table's columns (Iceberg specification,
    "Data File Fields").
    """
    found: Mapping[str, Any] = json.loads(statistics)
    rows = found["numRecords"]
    nulls, minima, maxima = (found.get(name, {}) for name in ("nullCount", "minValues", "maxValues"))
    value_counts: dict[int, int] = {}
    null_counts: dict[int, int] = {}
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    for column in schema.fields:
        if column.name not in nulls:
            continue
        value_counts[column.field_id] = rows
        null_counts[column.field_id] = nulls[column.name]
        if column.name in minima and column.name in maxima:
            bounds = [_bound(column.field_type, values[column.name]) for values in (minima, maxima)]
            if bounds[0] is not None and bounds[1] is not None:
                lower[column.field_id], upper[column.field_id] = bounds[0], bounds[1]
    return {
        "value_counts": value_counts,
        "null_value_counts": null_counts,
        "nan_value_counts": {},
        "column_sizes": {},
        "lower_bounds": lower,
        "upper_bounds": upper,
    }


def _bound(column_type: Any, value: Any) -> bytes | None:
    """A minimum or maximum; None for a type whose statistics have another order or form."""
    if isinstance(column_type, types.IntegerType | types.LongType) and isinstance(value, int):
        number_or_text: int | str = value
    elif isinstance(column_type, types.StringType) and isinstance(value, str):
        number_or_text = value
    elif isinstance(column_type, types.DateType) and isinstance(value, str):
        number_or_text = days_of(value)
    elif isinstance(column_type, types.TimestamptzType) and isinstance(value, str):
        number_or_text = (datetime.fromisoformat(value) - _EPOCH) // timedelta(microseconds=1)
    else:
        return None
    return bytes(to_bytes(column_type, number_or_text))


def days_of(day: str) -> int:
    """Days since 1970 of an ISO date."""
    return (date.fromisoformat(day) - _EPOCH.date()).days
