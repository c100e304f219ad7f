"""Rows of a DataFrame as records that are written (R34)."""

from __future__ import annotations

import pyarrow as pa
import pytest

from mainstem_loader.columns import HEADERS_TYPE, TIMESTAMP_TYPE
from mainstem_loader.errors import SettingsError
from mainstem_loader.spark.source.write_rows import Row, check_write_schema, rows_of

TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.string(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "timestamp": TIMESTAMP_TYPE,
    "headers": HEADERS_TYPE,
}
WHOLE = pa.schema(TYPES)


def test_a_row_has_what_its_columns_hold_and_none_for_what_is_null() -> None:
    check_write_schema(WHOLE, None)
    batch = pa.RecordBatch.from_pylist(
        [
            {
                "key": b"k",
                "value": "v",
                "topic": "t",
                "partition": 3,
                "timestamp": 5999,
                "headers": [{"key": "h", "value": b"x"}, {"key": "h", "value": None}],
            },
            {"topic": "u", "headers": []},
        ],
        schema=WHOLE,
    )
    assert list(rows_of(batch, None)) == [
        Row("t", b"k", "v", 3, 5, [("h", b"x"), ("h", None)]),
        Row("u", None, None, None, None, None),
    ]


def test_the_option_topic_comes_before_the_column() -> None:
    batch = pa.RecordBatch.from_pylist([{"value": b"v", "topic": "mine"}])
    assert [row.topic for row in rows_of(batch, "all")] == ["all"]


def test_a_row_without_topic_and_a_header_without_key_are_refused() -> None:
    with pytest.raises(SettingsError, match="A row has no topic"):
        list(rows_of(pa.RecordBatch.from_pylist([{"value": b"v", "topic": None}]), None))
    batch = pa.RecordBatch.from_pylist(
        [{"value": "v", "topic": "t", "headers": [{"key": None, "value": b"x"}]}], schema=WHOLE
    )
    with pytest.raises(SettingsError, match="has no key"):
        list(rows_of(batch, None))


@pytest.mark.parametrize(
    ("columns", "topic", "reason"),
    [
        ([("user", pa.string())], "t", "Column 'user' cannot be written"),
        ([("key", pa.binary())], "t", "no column value"),
        ([("value", pa.int64())], "t", "must be binary or string"),
        ([("value", pa.binary())], None, "No topic is given"),
        ([("value", pa.binary()), ("partition", pa.int64())], "t", "must be int"),
        ([("value", pa.binary()), ("timestamp", pa.timestamp("us"))], "t", "must be timestamp"),
        ([("value", pa.binary()), ("headers", pa.list_(pa.string()))], "t", "must be array<struct"),
    ],
)
def test_columns_that_cannot_be_written_are_refused(
    columns: list[tuple[str, pa.DataType]], topic: str | None, reason: str
) -> None:
    with pytest.raises(SettingsError, match=reason):
        check_write_schema(pa.schema(columns), topic)
