"""Decoded records to the columns of a DataFrame, as Arrow. Pure.

The columns are those of Spark's Kafka connector; a DataFrame has all of them, or those that its schema names,
because Spark does not tell a Python data source which columns a query needs:

    key, value     binary
    topic          string
    partition      integer
    offset         long
    timestamp      timestamp   null where it is outside of what Spark can hold
    timestampType  integer     0 the producer's time, 1 the broker's
    headers        array of struct of key (string) and value (binary)
    payload        struct      the fields of a value that is parsed; a field that is missing or of another
    type is null
    payload_error  string      why a value could not be parsed; null where it was
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem_loader.arrow_arrays import Array, fields_of, of_numbers, repeated
from mainstem_loader.columns import HEADERS_TYPE, TIMESTAMP_TYPE, column_of_field
from mainstem_loader.errors import SettingsError
from mainstem_loader.payload.json_payload import JsonPayload

PAYLOAD_COLUMN: Final = "payload"
PAYLOAD_ERROR_COLUMN: Final = "payload_error"
HEADERS_COLUMN: Final = "headers"
TIMESTAMP_TYPE_COLUMN: Final = "timestampType"

SPARK_TYPES: Final[Mapping[str, str]] = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    TIMESTAMP_TYPE_COLUMN: "int",
    HEADERS_COLUMN: "array<struct<key:string,value:binary>>",
    PAYLOAD_ERROR_COLUMN: "string",
}
_ARROW_TYPES: Final[Mapping[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIMESTAMP_TYPE,
    TIMESTAMP_TYPE_COLUMN: pa.int32(),
    HEADERS_COLUMN: HEADERS_TYPE,
    PAYLOAD_ERROR_COLUMN: pa.string(),
}

# Microseconds in 64 bits.
_TIMESTAMP_MS_MAX: Final = (1 << 63) // 1000 - 1


def default_schema(include_headers: bool, payload: str | None, payload_schema: str | None) -> str:
    """The schema of a DataFrame for which none was given, as Spark SQL writes it.

    Raises:
        SettingsError: values are parsed, and nothing says which fields they have.
    """
    columns = {
        name: kind
        for name, kind in SPARK_TYPES.items()
        if name != PAYLOAD_ERROR_COLUMN and (name != HEADERS_COLUMN or include_headers)
    }
    if payload is not None:
        if payload_schema is None:
            raise SettingsError(
                "Values are parsed, and their fields are not declared; add .option('payloadSchema',"
                " 'user string, page string'), or a schema with a column payload."
            )
        columns |= {PAYLOAD_COLUMN: f"struct<{payload_schema}>", PAYLOAD_ERROR_COLUMN: "string"}
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def check_schema(schema: pa.Schema, payload: str | None) -> None:
    """Whether a DataFrame can have these columns.

    Raises:
        SettingsError: one is unknown, has another type, or cannot be filled.
    """
    for column in schema:
        if column.name == PAYLOAD_COLUMN:
            if payload is None or not pa.types.is_struct(column.type):
                raise SettingsError(
                    "The schema has a column payload; it must be a struct of the fields of the values, and"
                    " .option('payload', 'json') says how they are read."
                )
        elif column.name not in _ARROW_TYPES:
            raise SettingsError(
                f"The data source has no column {column.name!r}; there are {', '.join(SPARK_TYPES)} and"
                f" {PAYLOAD_COLUMN}."
            )
        elif not column.type.equals(_ARROW_TYPES[column.name]):
            raise SettingsError(
                f"Column {column.name} of the schema is {column.type}; it must be {SPARK_TYPES[column.name]}."
            )
        elif column.name == PAYLOAD_ERROR_COLUMN and payload is None:
            raise SettingsError("The schema has a column payload_error; add .option('payload', 'json').")


class RowBuilder:
    """Makes the rows of one task, block after block.

    Args:
        schema: of the DataFrame, as Spark maps it to Arrow; checked by `check_schema`. Batches have exactly
            this schema, because Spark compares it.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._payload: JsonPayload | None = None
        if PAYLOAD_COLUMN in schema.names or PAYLOAD_ERROR_COLUMN in schema.names:
            self._payload = JsonPayload(
                {column_of_field(member.name): member.type for member in self._payload_members()}
            )

    @property
    def with_headers(self) -> bool:
        """Whether the decoder must add headers."""
        return HEADERS_COLUMN in self._schema.names

    @property
    def with_timestamp_type(self) -> bool:
        """Whether the decoder must add timestamp types."""
        return TIMESTAMP_TYPE_COLUMN in self._schema.names

    def rows(self, block: pa.RecordBatch, topic: str, partition: int) -> pa.RecordBatch:
        """The rows of a decoded block, one for each record and in the same order."""
        parsed = {} if self._payload is None else self._parse(self._payload, block.column("value"))
        columns = [
            parsed[name] if name in parsed else _column(name, block, topic, partition)
            for name in self._schema.names
        ]
        return pa.record_batch(
            [
                array if array.type == column.type else array.cast(column.type)
                for array, column in zip(columns, self._schema, strict=True)
            ],
            schema=self._schema,
        )

    def _payload_members(self) -> list[pa.Field[pa.DataType]]:
        if PAYLOAD_COLUMN not in self._schema.names:
            return []
        return list(fields_of(self._schema.field(PAYLOAD_COLUMN).type))

    def _parse(self, payload: JsonPayload, values: Array) -> dict[str, Array]:
        parsed = payload.parse(values)
        # The row of each record, null for those that could not be parsed: `take` then gives null.
        row_of = np.zeros(len(values), np.int64)
        has_row = np.zeros(len(values), np.bool_)
        row_of[parsed.rows] = np.arange(len(parsed.rows))
        has_row[parsed.rows] = True
        rows = of_numbers(row_of, None if has_row.all() else ~has_row)
        members = self._payload_members()
        arrays = [
            parsed.columns.column(column_of_field(member.name)).combine_chunks().take(rows)
            if column_of_field(member.name) in parsed.columns.column_names
            else repeated(None, member.type, len(values))
            for member in members
        ]
        reasons = dict(parsed.dead)
        errors: Array = pa.array([reasons.get(index) for index in range(len(values))], pa.string())
        columns = {PAYLOAD_ERROR_COLUMN: errors}
        if members:
            is_null = pc.or_(values.is_null(), rows.is_null())
            columns[PAYLOAD_COLUMN] = pa.StructArray.from_arrays(
                [array.cast(member.type) for array, member in zip(arrays, members, strict=True)],
                fields=members,
                mask=is_null,
            )
        return columns


def _column(name: str, block: pa.RecordBatch, topic: str, partition: int) -> Array:
    match name:
        case "topic":
            return repeated(topic, pa.string(), block.num_rows)
        case "partition":
            return repeated(partition, pa.int32(), block.num_rows)
        case "timestamp":
            timestamps_ms = block.column("timestamp_ms").to_numpy()
            unfit = np.abs(timestamps_ms) > _TIMESTAMP_MS_MAX
            array: Array = of_numbers(timestamps_ms * 1000, unfit if unfit.any() else None).view(
                TIMESTAMP_TYPE
            )
            return array
        case "timestampType":
            return block.column("timestamp_type")
        case _:
            return block.column(name)
