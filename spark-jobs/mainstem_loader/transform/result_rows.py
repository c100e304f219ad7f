"""Batches of a transform's result to rows of the table, each with its day. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem_loader.arrow_arrays import Array, Int32s, Int64s, null_flags, repeated
from mainstem_loader.columns import (
    DAY_COLUMN,
    OFFSET_COLUMN,
    PARTITION_COLUMN,
    RECORD_COLUMNS,
    RUN_COLUMN,
    TIMESTAMP_COLUMN,
    TOPIC_ID_COLUMN,
)
from mainstem_loader.errors import TransformError
from mainstem_loader.payload.event_time import EPOCH
from mainstem_loader.ranges import OffsetRange
from mainstem_loader.transform.result_columns import ResultColumns

_DAY_US: Final = 86_400_000_000
_DAY_MIN: Final = (date.min - EPOCH.date()).days
_DAY_MAX: Final = (date.max - EPOCH.date()).days


@dataclass(frozen=True, slots=True)
class RowStamp:
    """What all rows of a run have in common.

    Attributes:
        topic_id, run_id: the columns that the loader fills itself.
        ranges: the offsets that the run has read, sorted; rows may name no others.
        day: of rows without a day of their own, in days since 1970.
    """

    topic_id: str
    run_id: str
    ranges: tuple[OffsetRange, ...]
    day: int


def rows_of_batch(batch: pa.RecordBatch, columns: ResultColumns, stamp: RowStamp) -> tuple[Int32s, pa.Table]:
    """The rows of a batch as the table has them, except for the day.

    Returns:
        Days since 1970, one for each row; and the rows.

    Raises:
        TransformError: a row has no day, or names a record that this run has not read.
    """
    count = batch.num_rows
    arrays: dict[str, Array] = {}
    for name, kind in RECORD_COLUMNS.items():
        if name in (TOPIC_ID_COLUMN, RUN_COLUMN):
            arrays[name] = repeated(stamp.topic_id if name == TOPIC_ID_COLUMN else stamp.run_id, kind, count)
        elif name in columns.own:
            arrays[name] = _cast(name, batch.column(name), kind)
        else:
            arrays[name] = repeated(None, kind, count)
    if columns.names_records:
        _check_places(arrays[PARTITION_COLUMN], arrays[OFFSET_COLUMN], stamp.ranges)
    for name, kind in columns.of_files.items():
        arrays[name] = _cast(name, batch.column(name), kind)
    return _days(batch, arrays, columns, stamp), pa.table(arrays)


def _cast(name: str, values: Array, kind: pa.DataType) -> Array:
    if values.type == kind:
        return values
    try:
        cast: Array = values.cast(kind)
    except pa.ArrowInvalid as error:
        raise TransformError(
            f"The transform returns a value in column {name} that is no {kind} ({error})."
        ) from error
    return cast


def _days(batch: pa.RecordBatch, arrays: dict[str, Array], columns: ResultColumns, stamp: RowStamp) -> Int32s:
    if DAY_COLUMN in columns.own:
        days = _numbers(_complete(DAY_COLUMN, batch.column(DAY_COLUMN)).view(pa.int32()))
    elif TIMESTAMP_COLUMN in columns.own:
        times_us = _numbers(_complete(TIMESTAMP_COLUMN, arrays[TIMESTAMP_COLUMN]).view(pa.int64()))
        days = times_us // _DAY_US
    else:
        days = np.full(batch.num_rows, stamp.day, np.int64)
    if len(days) and (days.min() < _DAY_MIN or days.max() > _DAY_MAX):
        raise TransformError(
            "The transform returns a day outside of the years 1 to 9999; correct or filter it."
        )
    return days.astype(np.int32)


def _complete(name: str, values: Array) -> Any:
    if values.null_count:
        raise TransformError(
            f"The transform returns {values.null_count} rows whose {name} is null, so they belong to no day;"
            f" return a column {DAY_COLUMN} without nulls (COALESCE), or leave these rows out."
        )
    return values


def _check_places(partitions: Array, offsets: Array, ranges: Sequence[OffsetRange]) -> None:
    """Whether the rows name records that this run has read: loading again goes by what rows name."""
    unnamed, no_offset = null_flags(partitions), null_flags(offsets)
    if not np.array_equal(unnamed, no_offset):
        raise TransformError(
            f"The transform returns a row with only one of {PARTITION_COLUMN} and {OFFSET_COLUMN}; return"
            " both of the record that the row comes from, or null for both."
        )
    is_read = unnamed.copy()
    partition_of, offset_of = _numbers(partitions), _numbers(offsets)
    for part in ranges:
        is_read |= (partition_of == part.partition) & (offset_of >= part.start) & (offset_of < part.end)
    if not is_read.all():
        row = int(np.flatnonzero(~is_read)[0])
        raise TransformError(
            f"The transform returns a row of offset {offset_of[row]} of partition {partition_of[row]}, which"
            f" this load has not read; take {PARTITION_COLUMN} and {OFFSET_COLUMN} from the view records."
        )


def _numbers(values: Array) -> Int64s:
    """Numbers as numpy has them; null is -1."""
    filled = pc.fill_null(values, pa.scalar(-1, values.type))
    numbers: Int64s = filled.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers
