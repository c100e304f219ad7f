"""Decoded records as rows of a DataFrame (R34)."""

from __future__ import annotations

import pyarrow as pa
import pytest

from mainstem_loader.columns import HEADERS_TYPE, TIMESTAMP_TYPE
from mainstem_loader.errors import SettingsError
from mainstem_loader.spark.source.rows import RowBuilder, check_schema, default_schema

PAYLOAD = pa.struct([pa.field("user", pa.string()), pa.field("n", pa.int32())])


def block(values: list[bytes | None], timestamp_ms: int = 5) -> pa.RecordBatch:
    count = len(values)
    return pa.record_batch(
        {
            "offset": pa.array(range(10, 10 + count), pa.int64()),
            "timestamp_ms": pa.array([timestamp_ms] * count, pa.int64()),
            "key": pa.array([None] * count, pa.binary()),
            "value": pa.array(values, pa.binary()),
        }
    )


def test_rows_have_exactly_the_columns_of_the_schema() -> None:
    types: dict[str, pa.DataType] = {
        "offset": pa.int64(),
        "topic": pa.string(),
        "timestamp": TIMESTAMP_TYPE,
        "value": pa.binary(),
    }
    schema = pa.schema(types)
    rows = RowBuilder(schema).rows(block([b"a", None]), "t", 3)
    assert rows.schema.equals(schema)
    assert [(row["offset"], row["topic"], row["value"]) for row in rows.to_pylist()] == [
        (10, "t", b"a"),
        (11, "t", None),
    ]
    assert rows.column("timestamp").cast(pa.int64()).to_pylist() == [5000, 5000]


@pytest.mark.parametrize("timestamp_ms", [1 << 62, -(1 << 62)])
def test_a_timestamp_that_spark_cannot_hold_is_null(timestamp_ms: int) -> None:
    builder = RowBuilder(pa.schema([("timestamp", TIMESTAMP_TYPE)]))
    assert builder.rows(block([b"a"], timestamp_ms), "t", 0).to_pylist() == [{"timestamp": None}]


def test_values_that_cannot_be_parsed_stay_rows_with_a_reason() -> None:
    schema = pa.schema([("payload", PAYLOAD), ("payload_error", pa.string()), ("offset", pa.int64())])
    values = [b'{"user":"ann","n":1}', b"no", None, b'{"n":"x","other":[1]}', b'{"n":99999999999}']
    rows = RowBuilder(schema).rows(block(values), "t", 0).to_pylist()
    assert [row["offset"] for row in rows] == [10, 11, 12, 13, 14]
    assert [row["payload"] for row in rows] == [
        {"user": "ann", "n": 1},
        None,
        None,
        {"user": None, "n": None},
        None,
    ]
    assert [row["payload_error"] is None for row in rows] == [True, False, True, True, False]


def test_the_schema_of_the_connector_gets_headers_and_payload_on_request() -> None:
    assert default_schema(False, None, None) == (
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,"
        " timestampType int"
    )
    assert default_schema(True, "json", "n long").endswith(
        "headers array<struct<key:string,value:binary>>, payload struct<n long>, payload_error string"
    )
    with pytest.raises(SettingsError, match="payloadSchema"):
        default_schema(False, "json", None)


@pytest.mark.parametrize(
    ("column", "kind", "payload", "reason"),
    [
        ("offset", pa.int32(), None, "it must be bigint"),
        ("user", pa.string(), None, "no column 'user'"),
        ("payload", PAYLOAD, None, "says how they are read"),
        ("payload", pa.string(), "json", "must be a struct"),
        ("payload_error", pa.string(), None, "add .option"),
    ],
)
def test_a_column_that_cannot_be_filled_is_refused(
    column: str, kind: pa.DataType, payload: str | None, reason: str
) -> None:
    with pytest.raises(SettingsError, match=reason):
        check_schema(pa.schema([(column, kind)]), payload)


def test_headers_are_asked_for_only_where_the_schema_has_them() -> None:
    assert RowBuilder(pa.schema([("headers", HEADERS_TYPE)])).with_headers
    assert not RowBuilder(pa.schema([("key", pa.binary())])).with_headers
    assert RowBuilder(pa.schema([("timestampType", pa.int32())])).with_timestamp_type
