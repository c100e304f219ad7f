"""Times as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mainstem.errors import BadInput
from mainstem.times import date_time_ms, duration_ms, event_time_ms, text_of_ms, time_or_none


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("250ms", 250), ("90s", 90_000), ("10m", 600_000), ("2h", 7_200_000), ("1d", 86_400_000)]
    + [("1w", 604_800_000), ("1h30m", 5_400_000), ("0s", 0)],
)
def test_a_duration_is_numbers_with_units(text: str, milliseconds: int) -> None:
    assert duration_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["", "10", "m", "-5m", "5 m", "5y", "1h 30m", "1.5h", "m5"])
def test_anything_else_is_no_duration(text: str) -> None:
    assert duration_ms(text) is None


def test_a_date_time_with_a_zone_is_that_moment() -> None:
    assert date_time_ms("2026-01-31T10:00:00Z") == 1_769_853_600_000
    assert date_time_ms("2026-01-31T12:00:00+02:00") == 1_769_853_600_000


def test_a_date_time_without_a_zone_is_local() -> None:
    local = datetime(2026, 1, 31, 10).astimezone()
    assert date_time_ms("2026-01-31T10:00") == int(local.timestamp() * 1000)
    assert date_time_ms("2026-01-31") == int((local - timedelta(hours=10)).timestamp() * 1000)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "10:00"])
def test_anything_else_is_no_date_time(text: str) -> None:
    assert date_time_ms(text) is None


def test_an_event_time_without_a_zone_is_utc() -> None:
    assert event_time_ms("2026-01-31T10:00:00") == event_time_ms("2026-01-31T10:00:00Z")


def test_an_event_time_that_is_a_number_is_milliseconds() -> None:
    assert event_time_ms(1_769_853_600_000) == 1_769_853_600_000


@pytest.mark.parametrize("value", [None, True, 1.5, -1, 2**63, "soon", [], {}], ids=repr)
def test_anything_else_is_no_event_time(value: object) -> None:
    with pytest.raises(BadInput, match="is not a time"):
        event_time_ms(value)


@given(st.integers(min_value=0, max_value=253_402_300_799_999))
def test_a_time_written_as_text_is_read_back_as_the_same_moment(timestamp_ms: int) -> None:
    text = text_of_ms(timestamp_ms)
    assert datetime.fromisoformat(text) == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
        milliseconds=timestamp_ms
    )


def test_a_record_without_a_timestamp_has_no_time_of_the_year_1969() -> None:
    assert text_of_ms(-1) == "no timestamp"
    assert time_or_none(-1) is None
    assert time_or_none(0) == text_of_ms(0) == "1970-01-01T00:00:00.000Z"


def test_a_year_has_four_digits() -> None:
    assert text_of_ms(-62_135_596_800_000) == "0001-01-01T00:00:00.000Z"


@given(st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_any_timestamp_of_the_protocol_has_a_text(timestamp_ms: int) -> None:
    assert text_of_ms(timestamp_ms)


def test_digits_are_milliseconds_and_no_date_whatever_digits_they_are() -> None:
    """R22: of two texts of milliseconds, none is a time of the year 1711."""
    for digits in ("1711122810305", "1711999999999"):
        assert date_time_ms(digits) is None
        assert event_time_ms(digits) == int(digits)
    with pytest.raises(BadInput, match="is not a time"):
        event_time_ms("9" * 19)
    assert event_time_ms("20130101") == 1_356_998_400_000
    assert event_time_ms("20130101T000000Z") == event_time_ms("2013-01-01T00:00:00Z") == 1_356_998_400_000


@given(st.integers(min_value=0, max_value=253_402_300_799_999))
@example(2_148_544_800_002)
def test_no_time_is_off_by_a_millisecond(timestamp_ms: int) -> None:
    assert date_time_ms(text_of_ms(timestamp_ms)) == event_time_ms(text_of_ms(timestamp_ms)) == timestamp_ms
