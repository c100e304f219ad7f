"""When an event happened, and so which day's partition its row belongs to.

An event's time is its record's timestamp, or a field of its payload: an ISO 8601 string, UTC unless it names
an offset, or a number of milliseconds since 1970. A record whose field is missing or is no time is dead; a
tombstone has no payload, so its record's timestamp counts. Times outside of the years 1 to 9999 cannot be
stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa

from mainstem_loader.arrow_arrays import Array, ChunkedArray, Flags, Int32s, Int64s, null_flags
from mainstem_loader.columns import TIMESTAMP_TYPE

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
DAY_MS: Final = 86_400_000
TIME_MS_MIN: Final = (datetime(1, 1, 1, tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)
TIME_MS_MAX: Final = (datetime(9999, 12, 31, tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1) + DAY_MS - 1


@dataclass(frozen=True, slots=True)
class EventDays:
    """`days`: days since 1970, one for each row; what stands there for a dead row means nothing. `dead`: the
    positions of rows without a usable time, rising, and why.
    """

    days: Int32s
    dead: Sequence[tuple[int, str]]


def days_of_records(timestamps_ms: Int64s) -> EventDays:
    """Days by the records' own timestamps."""
    outside = np.flatnonzero((timestamps_ms < TIME_MS_MIN) | (timestamps_ms > TIME_MS_MAX)).tolist()
    dead = [
        (row, f"timestamp {timestamps_ms[row]} ms lies outside of the years 1 to 9999") for row in outside
    ]
    return EventDays(np.floor_divide(timestamps_ms, DAY_MS).astype(np.int32), dead)


def days_of_field(
    field: str, values: ChunkedArray | None, timestamps_ms: Int64s, tombstones: Flags
) -> EventDays:
    """Days by a field of the payload.

    Args:
        field: its name, for reasons.
        values: the field's column; None when no record has it.
        timestamps_ms: the records' own.
        tombstones: which rows have no payload.
    """
    if values is None:
        times_ms, known = timestamps_ms, tombstones
    else:
        times_ms, known = _times_of(values.combine_chunks())
        known = known | tombstones
        times_ms = np.where(tombstones, timestamps_ms, times_ms)
    fitting = known & (times_ms >= TIME_MS_MIN) & (times_ms <= TIME_MS_MAX)
    dead: list[tuple[int, str]] = []
    for row in np.flatnonzero(~fitting).tolist():
        value = None if values is None else values[row].as_py()
        if value is None:
            dead.append((row, f"the event time, field {field!r}, is missing"))
        else:
            dead.append((row, f"the event time, field {field!r}, is no time: {str(value)[:60]!r}"))
    return EventDays(np.floor_divide(times_ms, DAY_MS).astype(np.int32), dead)


def _times_of(values: Array) -> tuple[Int64s, Flags]:
    """Milliseconds since 1970, and for which values they are known."""
    if pa.types.is_timestamp(values.type):
        return _milliseconds(values)
    if pa.types.is_integer(values.type):
        return _numbers(values)
    if pa.types.is_floating(values.type):
        numbers = values.fill_null(np.nan).to_numpy(zero_copy_only=False).astype(np.float64)
        known = (numbers >= TIME_MS_MIN) & (numbers <= TIME_MS_MAX)
        return np.floor(np.where(known, numbers, 0)).astype(np.int64), known
    if pa.types.is_string(values.type):
        # Arrow reads either strings that all name an offset, or strings of which none does.
        for kind in (TIMESTAMP_TYPE, pa.timestamp("us")):
            try:
                return _milliseconds(values.cast(kind))
            except pa.ArrowInvalid:
                continue
        return _milliseconds(pa.array([_time_of_text(text) for text in values.to_pylist()], TIMESTAMP_TYPE))
    return np.zeros(len(values), dtype=np.int64), np.zeros(len(values), dtype=np.bool_)


def _time_of_text(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _milliseconds(timestamps: Array) -> tuple[Int64s, Flags]:
    microseconds, known = _numbers(timestamps.cast(TIMESTAMP_TYPE).view(pa.int64()))
    return np.floor_divide(microseconds, 1000), known


def _numbers(values: Array) -> tuple[Int64s, Flags]:
    return values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False), ~null_flags(values)
