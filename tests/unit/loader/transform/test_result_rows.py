"""Batches of a transform's result as rows of the table (R34)."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

from mainstem_loader.columns import TIMESTAMP_TYPE
from mainstem_loader.errors import TransformError
from mainstem_loader.ranges import OffsetRange
from mainstem_loader.transform.result_columns import result_columns
from mainstem_loader.transform.result_rows import RowStamp, rows_of_batch

STAMP = RowStamp("topic-id", "run-id", (OffsetRange(0, 10, 20), OffsetRange(1, 0, 5)), 15_706)
NEW_YEAR = datetime(2013, 1, 1, 23, 59, tzinfo=UTC)


def rows(columns: dict[str, Any], schema: dict[str, pa.DataType]) -> tuple[list[int], list[dict[str, Any]]]:
    batch = pa.record_batch(
        [pa.array(columns[name], kind) for name, kind in schema.items()], schema=pa.schema(schema)
    )
    days, table = rows_of_batch(batch, result_columns(batch.schema, {}), STAMP)
    return days.tolist(), table.to_pylist()


PLACE: dict[str, pa.DataType] = {"_partition": pa.int32(), "_offset": pa.int64()}


def test_a_row_gets_the_runs_columns_and_keeps_its_own() -> None:
    days, (row,) = rows(
        {"_partition": [1], "_offset": [4], "_timestamp": [NEW_YEAR], "n": [7]},
        {**PLACE, "_timestamp": TIMESTAMP_TYPE, "n": pa.int64()},
    )
    assert days == [15_706]
    assert row == {
        "_partition": 1,
        "_offset": 4,
        "_timestamp": NEW_YEAR,
        "_key": None,
        "_topic_id": "topic-id",
        "_run": "run-id",
        "n": 7,
    }


def test_the_day_is_the_results_or_that_of_the_time_or_that_of_the_load() -> None:
    times = {"_timestamp": [NEW_YEAR], "day": [date(1969, 12, 31)]}
    assert rows(times, {"_timestamp": TIMESTAMP_TYPE, "day": pa.date32()})[0] == [-1]
    before_1970 = [datetime(1969, 12, 31, 23, tzinfo=UTC)]
    assert rows({"_timestamp": before_1970}, {"_timestamp": TIMESTAMP_TYPE})[0] == [-1]
    assert rows({"n": [1]}, {"n": pa.int64()})[0] == [STAMP.day]


def test_offsets_of_any_integer_type_are_taken() -> None:
    _, (row,) = rows({"_partition": [0], "_offset": [10]}, {"_partition": pa.int64(), "_offset": pa.int32()})
    assert (row["_partition"], row["_offset"]) == (0, 10)


def test_rows_of_no_record_may_stand_beside_those_of_records() -> None:
    _, found = rows({"_partition": [0, None], "_offset": [19, None]}, PLACE)
    assert [row["_offset"] for row in found] == [19, None]


@pytest.mark.parametrize(("partition", "offset"), [(0, 9), (0, 20), (1, 5), (2, 0), (0, -1), (-1, -1)])
def test_a_row_of_a_record_that_was_not_read_is_refused(partition: int, offset: int) -> None:
    """Loading again would take it for a row of that record."""
    with pytest.raises(TransformError, match=f"offset {offset} of partition {partition}"):
        rows({"_partition": [0, partition], "_offset": [10, offset]}, PLACE)


@pytest.mark.parametrize(
    ("columns", "schema", "reason"),
    [
        ({"_partition": [0], "_offset": [None]}, PLACE, "only one of _partition and _offset"),
        ({"_partition": [None], "_offset": [10]}, PLACE, "only one of _partition and _offset"),
        ({"day": [None]}, {"day": pa.date32()}, "1 rows whose day is null"),
        ({"_timestamp": [None]}, {"_timestamp": TIMESTAMP_TYPE}, "1 rows whose _timestamp is null"),
        (
            {"_partition": [2**40], "_offset": [1]},
            {"_partition": pa.int64(), "_offset": pa.int64()},
            "column _partition",
        ),
    ],
)
def test_what_is_no_place_or_day_is_refused(
    columns: dict[str, Any], schema: dict[str, pa.DataType], reason: str
) -> None:
    with pytest.raises(TransformError, match=reason):
        rows(columns, schema)


def test_a_day_outside_of_the_calendar_is_refused() -> None:
    far = pa.array([10_000_000], pa.int32()).cast(pa.date32())
    batch = pa.record_batch([far], names=["day"])
    with pytest.raises(TransformError, match="years 1 to 9999"):
        rows_of_batch(batch, result_columns(batch.schema, {}), STAMP)


def test_an_empty_batch_has_no_rows() -> None:
    assert rows({"_partition": [], "_offset": []}, PLACE) == ([], [])
