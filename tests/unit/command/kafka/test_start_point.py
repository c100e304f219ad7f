"""Where a consumer begins (R13: rewind by offset or by time)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.errors import BadInput
from mainstem.kafka.start_point import Kind, StartPoint, offset_to_start_at, parse_start

NOW_MS = 1_769_853_600_000  # 2026-01-31T10:00:00Z


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("beginning", StartPoint(Kind.BEGINNING)),
        ("earliest", StartPoint(Kind.BEGINNING)),
        ("end", StartPoint(Kind.END)),
        ("latest", StartPoint(Kind.END)),
        ("0", StartPoint(Kind.OFFSET, 0)),
        ("1200", StartPoint(Kind.OFFSET, 1200)),
        ("-10", StartPoint(Kind.LAST, 10)),
        ("10m", StartPoint(Kind.TIME, NOW_MS - 600_000)),
        ("2026-01-31T09:00:00Z", StartPoint(Kind.TIME, NOW_MS - 3_600_000)),
    ],
)
def test_a_start_is_understood_as_people_write_it(text: str, start: StartPoint) -> None:
    assert parse_start(text, NOW_MS) == start


@pytest.mark.parametrize("text", ["", "-", "--5", "5.0", "now", "10 minutes", "²"])
def test_what_is_not_understood_is_answered_with_what_would_be(text: str) -> None:
    with pytest.raises(BadInput, match="write beginning, end, an offset"):
        parse_start(text, NOW_MS)


def test_a_time_ago_before_1970_is_1970() -> None:
    assert parse_start("5000w", NOW_MS) == StartPoint(Kind.TIME, 0)


@pytest.mark.parametrize(("number", "offset"), [(5, 100), (100, 100), (150, 150), (200, 200), (500, 200)])
def test_an_offset_is_where_it_says_or_the_nearer_end(number: int, offset: int) -> None:
    assert (
        offset_to_start_at(StartPoint(Kind.OFFSET, number), earliest=100, latest=200, at_time=None) == offset
    )


@given(
    st.sampled_from([Kind.BEGINNING, Kind.END, Kind.OFFSET, Kind.LAST]),
    st.integers(0, 2**62),
    st.integers(0, 2**40),
    st.integers(0, 2**40),
)
def test_the_offset_lies_in_the_partition_whatever_the_start(
    kind: Kind, number: int, earliest: int, size: int
) -> None:
    offset = offset_to_start_at(StartPoint(kind, number), earliest, earliest + size, None)
    assert earliest <= offset <= earliest + size


@pytest.mark.parametrize("text", ["1960-01-01", "1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.998Z"])
def test_a_time_before_1970_is_1970(text: str) -> None:
    """R13: in a request -1 means the end and -2 the beginning, so that a group would skip its records."""
    assert parse_start(text, NOW_MS) == StartPoint(Kind.TIME, 0)


def test_the_last_no_records_are_none() -> None:
    assert parse_start("-0", NOW_MS) == StartPoint(Kind.LAST, 0)
    assert offset_to_start_at(StartPoint(Kind.LAST, 0), earliest=100, latest=200, at_time=None) == 200


@pytest.mark.parametrize("text", ["9" * 5000, "-" + "9" * 5000, "9" * 5000 + "d"], ids=["", "-", "d"])
def test_a_number_of_any_length_is_answered_with_a_sentence(text: str) -> None:
    with pytest.raises(BadInput, match="write beginning, end, an offset"):
        parse_start(text, NOW_MS)
