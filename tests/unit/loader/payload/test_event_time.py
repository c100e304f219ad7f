"""An event belongs to the day on which it happened (R30)."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem_loader.payload.event_time import (
    EventDays,
    EventTimes,
    TimeUnit,
    days_of_field,
    days_of_records,
)

AT = EventTimes("at")
ZERO = np.zeros(1, dtype=np.int64)


def days_of(values: list[object], kind: pa.DataType) -> EventDays:
    count = len(values)
    column = pa.chunked_array([pa.array(values, kind)])
    return days_of_field(AT, column, np.zeros(count, np.int64), np.zeros(count, np.bool_))


def day(text: str) -> int:
    return (date.fromisoformat(text) - date(1970, 1, 1)).days


@given(st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)))  # noqa: DTZ001  # hypothesis wants them naive
def test_a_record_belongs_to_the_day_of_its_timestamp(when: datetime) -> None:
    ms = (when.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    result = days_of_records(np.array([ms]))
    assert result.days.tolist() == [(when.date() - date(1970, 1, 1)).days]
    assert not result.dead


def test_times_before_1970_belong_to_their_own_day() -> None:
    assert days_of_records(np.array([-1, 0, 86_399_999, 86_400_000])).days.tolist() == [-1, 0, 0, 1]


@pytest.mark.parametrize("ms", [2**62, -(2**62), 253402300800000, -62135596800001])
def test_times_outside_of_the_years_that_can_be_stored_are_dead(ms: int) -> None:
    (dead,) = days_of_records(np.array([ms])).dead
    assert dead == (0, f"timestamp {ms} ms lies outside of the years 1 to 9999")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2013-01-01T05:00:00Z", "2013-01-01"),
        ("2013-01-01T01:00:00+02:00", "2012-12-31"),
        ("2013-01-01T05:00:00", "2013-01-01"),
        ("2013-01-01 05:00:00.123456", "2013-01-01"),
        ("2013-01-01", "2013-01-01"),
        ("20130101T050000Z", "2013-01-01"),
        ("2013-W01-1", "2012-12-31"),
        ("0001-01-01", "0001-01-01"),
        ("9999-12-31T23:59:59Z", "9999-12-31"),
    ],
)
def test_iso_8601_strings_are_times(text: str, expected: str) -> None:
    for values in ([text], [text, "2020-01-01", "2020-01-01T00:00:00Z"]):
        result = days_of(list(values), pa.string())
        assert result.days[0] == day(expected)
        assert not result.dead


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("soon", pa.string()),
        ("", pa.string()),
        ("2013-02-30", pa.string()),
        ("0001-01-01T00:00:00+01:00", pa.string()),
        (2**62, pa.int64()),
        (float("nan"), pa.float64()),
        (1e300, pa.float64()),
        (True, pa.bool_()),
        ([1], pa.list_(pa.int64())),
    ],
    ids=str,
)
def test_what_is_no_time_is_dead_and_the_others_are_not(value: object, kind: pa.DataType) -> None:
    (dead,) = days_of([value], kind).dead
    assert dead[0] == 0
    assert "the event time, field 'at', is no time" in dead[1]
    if pa.types.is_string(kind):
        assert [row for row, _ in days_of(["2013-01-01", value], kind).dead] == [1]


def test_numbers_are_milliseconds() -> None:
    assert days_of([1357016400000, -1], pa.int64()).days.tolist() == [day("2013-01-01"), -1]
    assert days_of([1357016400000.75], pa.float64()).days.tolist() == [day("2013-01-01")]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_any_unit_are_times(unit: Literal["s", "ms", "us", "ns"]) -> None:
    result = days_of([datetime(2013, 1, 1, 23, 59, 59, tzinfo=UTC)], pa.timestamp(unit, "UTC"))
    assert result.days.tolist() == [day("2013-01-01")]


@pytest.mark.parametrize("microseconds", [-62_135_596_800_000_001, 253_402_300_800_000_000])
def test_a_time_that_python_has_none_for_is_dead_with_its_text(microseconds: int) -> None:
    column = pa.chunked_array([pa.array([microseconds], pa.int64()).cast(pa.timestamp("us", "UTC"))])
    ((row, reason),) = days_of_field(AT, column, np.array([0]), np.array([False])).dead
    assert row == 0
    assert "the event time, field 'at', is no time" in reason
    assert "0000-12-31" in reason or "10000-01-01" in reason


def test_a_missing_time_is_dead_but_a_tombstone_has_its_records_time() -> None:
    times = np.array([86_400_000] * 3)
    tombstones = np.array([False, True, False])
    column = pa.chunked_array([pa.array(["2013-01-01", None, None])])
    result = days_of_field(AT, column, times, tombstones)
    assert result.dead == [(2, "the event time, field 'at', is missing or not of its column's type")]
    assert result.days[:2].tolist() == [day("2013-01-01"), 1]
    assert [row for row, _ in days_of_field(AT, None, times, tombstones).dead] == [0, 2]


@pytest.mark.parametrize(("unit", "per_s"), [("s", 1), ("ms", 1_000), ("us", 1_000_000), ("ns", 10**9)])
def test_digits_are_a_number_and_no_date_whatever_digits_they_are(unit: str, per_s: int) -> None:
    """R30: Python reads a date of the year 1711 in some of the texts of milliseconds."""
    seconds = [1_711_122_810, 1_711_999_999]
    texts = [*(str(second * per_s) for second in seconds), "20130101T000000Z", "2013-01-01 00:00", "20130101"]
    times = days_of_field(
        EventTimes("at", TimeUnit(unit)),
        pa.chunked_array([pa.array([*texts, "9" * 19, "1" * 40])]),
        np.zeros(7, dtype=np.int64),
        np.zeros(7, dtype=np.bool_),
    )
    assert times.days[:5].tolist() == [day("2024-03-22"), day("2024-04-01"), 15706, 15706, 15706]
    assert [row for row, _ in times.dead] == ([6] if unit == "ns" else [5, 6])
