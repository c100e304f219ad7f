"""A block of decoded records divided into rows, each with its day, and rejected records with their reasons.
Pure.

Four index spaces meet here, and each has a type of its own:

    record  a position in the block, as decoded
    value   a position among the values that are parsed: those of records whose timestamp can be stored
    row     a position in the table that the payload's reader returned; fewer than values, as some are
    rejected kept    a position in the rows that remain after those without a usable event time are rejected

Only `divide_block` converts between them, always from the later space to records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType

import numpy as np
import pyarrow as pa

from mainstem_loader.arrow_arrays import Int32s, Int64s, null_flags, of_numbers
from mainstem_loader.columns import Columns
from mainstem_loader.payload.event_time import (
    EventDays,
    EventTimes,
    days_of_field,
    days_of_records,
)
from mainstem_loader.payload.readers import PayloadFormat, PayloadReader

RecordIndexes = NewType("RecordIndexes", Int64s)


@dataclass(frozen=True, slots=True)
class PayloadSettings:
    """How values become columns.

    Attributes:
        format: of the values.
        schema_registry: the URL of the registry that knows their schemas, if the format needs one.
        columns: those whose type is settled, by the table or by the load.
        times: how the time of an event is found.
        with_headers: whether rows have the records' headers.
    """

    format: PayloadFormat
    columns: Columns
    times: EventTimes
    with_headers: bool = False
    schema_registry: str | None = None


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A record that becomes no row. `record`: its position in the block."""

    record: int
    reason: str


@dataclass(frozen=True, slots=True)
class DividedBlock:
    """What became of a block.

    Attributes:
        records: for each row the position of its record in the block, rising.
        columns: the payload's columns, a row for each of `records`.
        days: the day of each row, in days since 1970.
        rejected: all other records of the block, in order of position.
    """

    records: RecordIndexes
    columns: pa.Table
    days: Int32s
    rejected: Sequence[RejectedRecord]


def divide_block(block: pa.RecordBatch, payload: PayloadReader, settings: PayloadSettings) -> DividedBlock:
    """Parse the values of a block and find the day of each row.

    Args:
        block: decoded records, see `decode`.
        payload: of the task; it learns from the block.
        settings: see there.
    """
    timestamps_ms = block.column("timestamp_ms").to_numpy()
    by_timestamp = days_of_records(timestamps_ms)
    record_of_value = _positions_without(by_timestamp, block.num_rows)
    rejected = [RejectedRecord(record, reason) for record, reason in by_timestamp.dead]
    values = block.column("value")
    parsed = payload.parse(
        values if len(record_of_value) == block.num_rows else values.take(of_numbers(record_of_value))
    )
    rejected += [RejectedRecord(int(record_of_value[value]), reason) for value, reason in parsed.dead]
    record_of_row = record_of_value[parsed.rows]
    if settings.times.column is None:
        by_row = EventDays(by_timestamp.days[record_of_row], ())
    else:
        by_row = days_of_field(
            settings.times,
            parsed.columns.column(settings.times.column)
            if settings.times.column in parsed.columns.column_names
            else None,
            timestamps_ms[record_of_row],
            null_flags(values)[record_of_row],
        )
    rejected += [RejectedRecord(int(record_of_row[row]), reason) for row, reason in by_row.dead]
    columns = parsed.columns
    row_of_kept = _positions_without(by_row, len(record_of_row))
    if by_row.dead:
        columns = columns.take(of_numbers(row_of_kept))
    return DividedBlock(
        RecordIndexes(record_of_row[row_of_kept]),
        columns,
        by_row.days[row_of_kept],
        sorted(rejected, key=lambda one: one.record),
    )


def _positions_without(days: EventDays, count: int) -> Int64s:
    """The positions from 0 to `count` that have a day."""
    has_day = np.ones(count, dtype=np.bool_)
    has_day[[position for position, _ in days.dead]] = False
    return np.flatnonzero(has_day)
