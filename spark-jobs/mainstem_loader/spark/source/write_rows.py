"""Columns of a DataFrame to the records that are written. Pure.

A DataFrame that is written has a column `value`, and may have these others, as for Spark's Kafka connector:

    key, value  binary or string, null for none
    topic       string   where the option `topic` is not set
    partition   integer  null or no such column: by the key, as the client's partitioner decides
    timestamp   timestamp  null or no such column: the time of the write; not in Spark's connector
    headers     array of struct of key (string) and value (binary)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from mainstem_loader.arrow_arrays import Array, fields_of
from mainstem_loader.errors import SettingsError

_BYTES: Final = "binary or string"
_COLUMNS: Final[Mapping[str, str]] = {
    "key": _BYTES,
    "value": _BYTES,
    "topic": "string",
    "partition": "int",
    "timestamp": "timestamp",
    "headers": "array<struct<key:string,value:binary>>",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One record that is to be written."""

    topic: str
    key: bytes | str | None
    value: bytes | str | None
    partition: int | None
    timestamp_ms: int | None
    headers: list[tuple[str, bytes | None]] | None


def check_write_schema(schema: pa.Schema, topic: str | None) -> None:
    """Whether a DataFrame with this schema can be written.

    Raises:
        SettingsError: a column is missing, unknown or of another type.
    """
    for column in schema:
        if column.name not in _COLUMNS:
            raise SettingsError(
                f"Column {column.name!r} cannot be written to a topic; select only {', '.join(_COLUMNS)}, for"
                " example to_json(struct(*)) as value."
            )
        if not _is_of(column.type, _COLUMNS[column.name]):
            raise SettingsError(
                f"Column {column.name} is {column.type}; to be written it must be {_COLUMNS[column.name]}."
            )
    if "value" not in schema.names:
        raise SettingsError(
            "There is no column value to write; select one, such as to_json(struct(*)) as value."
        )
    if topic is None and "topic" not in schema.names:
        raise SettingsError("No topic is given; write .option('topic', 'TOPIC'), or select a column topic.")


def rows_of(batch: pa.RecordBatch, topic: str | None) -> Iterator[Row]:
    """The rows of a batch whose schema is checked.

    Raises:
        SettingsError: a row has no topic, or a header no key.
    """
    values: dict[str, list[Any]] = {
        name: _times_ms(batch.column(name)) if name == "timestamp" else batch.column(name).to_pylist()
        for name in batch.schema.names
    }
    nothing = [None] * batch.num_rows
    columns = [
        values.get(name, nothing) for name in ("topic", "key", "value", "partition", "timestamp", "headers")
    ]
    for own_topic, key, value, partition, timestamp_ms, headers in zip(*columns, strict=True):
        name = topic or own_topic
        if not name:
            raise SettingsError(
                "A row has no topic; write .option('topic', 'TOPIC'), or fill the column topic."
            )
        yield Row(name, key, value, partition, timestamp_ms, _headers(headers))


def _headers(headers: list[Mapping[str, Any]] | None) -> list[tuple[str, bytes | None]] | None:
    if not headers:
        return None
    if any(header is None or header["key"] is None for header in headers):
        raise SettingsError("A header of a row has no key; fill it, or leave the header out.")
    return [(header["key"], header["value"]) for header in headers]


def _times_ms(times: Array) -> list[int | None]:
    # Rounded down to milliseconds; without the cast's check for what is lost.
    in_ms: list[int | None] = times.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()).to_pylist()
    return in_ms


def _is_of(column_type: pa.DataType, type_name: str) -> bool:
    match type_name:
        case "string":
            return pa.types.is_string(column_type)
        case "int":
            return column_type.equals(pa.int32())
        case "timestamp":
            return pa.types.is_timestamp(column_type) and column_type.tz is not None
        case "binary or string":
            return pa.types.is_binary(column_type) or pa.types.is_string(column_type)
        case _:
            return _are_headers(column_type)


def _are_headers(column_type: pa.DataType) -> bool:
    """Compared by hand, because lists and structs that Spark knows to hold no nulls are other types to
    Arrow."""
    if not pa.types.is_list(column_type) or not pa.types.is_struct(column_type.value_type):
        return False
    return [(member.name, member.type) for member in fields_of(column_type.value_type)] == [
        ("key", pa.string()),
        ("value", pa.binary()),
    ]
