"""When an event happened, and so which day's partition its row belongs to. Pure.

An event's time is its record's timestamp, or a field of its payload: an ISO 8601 string, UTC unless it names
an offset, or a number of a declared unit since 1970, milliseconds by default, also as a string of its digits
(eight digits are a date). A record whose field is missing
or is not a time is rejected; a tombstone has no payload, so its record's timestamp counts. Times outside of
the years 1 to 9999 cannot be stored. A record without a timestamp, which has -1 in its place (KIP-32), is of
the day 1969-12-31 where the timestamp counts.

A field that is a time of an implausible day is rejected, too: epoch seconds that are read as milliseconds
would otherwise make partitions in January 1970.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Final

import numpy as np
import pyarrow as pa

from mainstem_loader.arrow_arrays import Array, ChunkedArray, Flags, Int32s, Int64s, null_flags
from mainstem_loader.columns import TIMESTAMP_TYPE

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
DAY_MS: Final = 86_400_000
TIME_MS_MIN: Final = (datetime(1, 1, 1, tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)
TIME_MS_MAX: Final = (datetime(9999, 12, 31, tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1) + DAY_MS - 1

_ISO_FORM: Final = re.compile(r"(?:\d{4}-\d\d-\d\d|\d{8}|\d{4}-?W\d\d(?:-?\d)?)(?:[Tt ].+)?", re.ASCII)

_DIGITS: Final = re.compile(r"-?(?:\d{1,7}|\d{9,19})", re.ASCII)

PLAUSIBLE_DAY_MIN: Final = date(2000, 1, 1)
PLAUSIBLE_DAYS_AHEAD: Final = 366


class TimeUnit(StrEnum):
    """The unit of numbers that are times since 1970."""

    SECONDS = "s"
    MILLISECONDS = "ms"
    MICROSECONDS = "us"
    NANOSECONDS = "ns"


_UNITS_PER_S: Final = {
    TimeUnit.SECONDS: 1,
    TimeUnit.MILLISECONDS: 1_000,
    TimeUnit.MICROSECONDS: 1_000_000,
    TimeUnit.NANOSECONDS: 1_000_000_000,
}


@dataclass(frozen=True, slots=True)
class EventTimes:
    """How the time of an event is found.

    Attributes:
        column: holds the event's time; None for the record's timestamp.
        unit: of a column of numbers.
        day_min, day_max: plausible days, inclusive, of times from a column; None for no limit.
    """

    column: str | None = None
    unit: TimeUnit = TimeUnit.MILLISECONDS
    day_min: date | None = None
    day_max: date | None = None


@dataclass(frozen=True, slots=True)
class EventDays:
    """`days`: days since 1970, one for each row; the value of a rejected row means nothing. `dead`: the
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
    times: EventTimes, values: ChunkedArray | None, timestamps_ms: Int64s, tombstones: Flags
) -> EventDays:
    """Days by a field of the payload.

    Args:
        times: names the field, its unit and the plausible days.
        values: the field's column; None when no record has it.
        timestamps_ms: the records' own.
        tombstones: which rows have no payload.
    """
    if values is None:
        times_ms, is_time = timestamps_ms, tombstones
    else:
        times_ms, is_time = _times_of(values.combine_chunks(), times.unit)
        is_time = is_time | tombstones
        times_ms = np.where(tombstones, timestamps_ms, times_ms)
    is_time &= (times_ms >= TIME_MS_MIN) & (times_ms <= TIME_MS_MAX)
    days = np.floor_divide(times_ms, DAY_MS).astype(np.int32)
    is_plausible = tombstones | (
        (days >= _day_number(times.day_min, -(1 << 31))) & (days <= _day_number(times.day_max, (1 << 31) - 1))
    )
    dead: list[tuple[int, str]] = []
    for row in np.flatnonzero(~(is_time & is_plausible)).tolist():
        value = None if values is None else _plain(values[row])
        if value is None:
            dead.append(
                (row, f"the event time, field {times.column!r}, is missing or not of its column's type")
            )
        elif not is_time[row]:
            dead.append((row, f"the event time, field {times.column!r}, is no time: {str(value)[:60]!r}"))
        else:
            day = (EPOCH + timedelta(days=int(days[row]))).date()
            dead.append(
                (
                    row,
                    f"the event time, field {times.column!r}, is {str(value)[:60]!r}, which is the"
                    f" implausible"
                    f" day {day}; declare the unit of numbers, or other plausible days",
                )
            )
    return EventDays(days, dead)


def _plain(value: pa.Scalar[pa.DataType]) -> object:
    """A value to show: a text in place of a time that Python has none for, which is out of its years."""
    try:
        plain: object = value.as_py()
    except (ValueError, OverflowError):
        plain = value.cast(pa.string()).as_py()
    return plain


def _day_number(day: date | None, default: int) -> int:
    return default if day is None else (day - EPOCH.date()).days


def _times_of(values: Array, unit: TimeUnit) -> tuple[Int64s, Flags]:
    """Milliseconds since 1970, and which values are times."""
    if pa.types.is_timestamp(values.type):
        return _milliseconds(values)
    if pa.types.is_date(values.type):
        return _milliseconds(values.cast(pa.timestamp("us")))
    if pa.types.is_integer(values.type):
        numbers, is_time = _numbers(values)
        return _scaled(numbers, unit), is_time
    if pa.types.is_floating(values.type):
        floats = values.fill_null(np.nan).to_numpy(zero_copy_only=False).astype(np.float64)
        floats = floats * (1000 / _UNITS_PER_S[unit])
        is_time = (floats >= TIME_MS_MIN) & (floats <= TIME_MS_MAX)
        return np.floor(np.where(is_time, floats, 0)).astype(np.int64), is_time
    if pa.types.is_string(values.type):
        # Arrow reads either strings that all name an offset, or strings of which none does.
        for kind in (TIMESTAMP_TYPE, pa.timestamp("us")):
            try:
                return _milliseconds(values.cast(kind))
            except pa.ArrowInvalid:
                continue
        return _milliseconds(
            pa.array([_time_of_text(text, unit) for text in values.to_pylist()], TIMESTAMP_TYPE)
        )
    return np.zeros(len(values), dtype=np.int64), np.zeros(len(values), dtype=np.bool_)


def _scaled(numbers: Int64s, unit: TimeUnit) -> Int64s:
    """Milliseconds; what is out of range stays out of range instead of wrapping around."""
    per_second = _UNITS_PER_S[unit]
    if per_second >= 1000:
        return np.floor_divide(numbers, per_second // 1000)
    return np.clip(numbers, -(1 << 52), 1 << 52) * (1000 // per_second)


def _time_of_text(text: str | None, unit: TimeUnit) -> datetime | None:
    if text is None:
        return None
    try:
        if _DIGITS.fullmatch(text):
            return EPOCH + timedelta(microseconds=int(text) * 1_000_000 // _UNITS_PER_S[unit])
        # Python takes any character between date and time: thirteen digits would be a time of the year 1711.
        if _ISO_FORM.fullmatch(text) is None:
            return None
        time = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _milliseconds(timestamps: Array) -> tuple[Int64s, Flags]:
    microseconds, is_time = _numbers(timestamps.cast(TIMESTAMP_TYPE).view(pa.int64()))
    return np.floor_divide(microseconds, 1000), is_time


def _numbers(values: Array) -> tuple[Int64s, Flags]:
    return values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False), ~null_flags(values)
