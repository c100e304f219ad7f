"""Times that others can write end no look (R25)."""

from __future__ import annotations

import datetime as dt

import pytest

from mainstem_operator.api.timestamps import moment_noted


def test_a_time_with_its_zone_is_read() -> None:
    expected = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
    assert moment_noted("2026-11-21T12:00:00Z") == moment_noted("2026-11-21T13:00:00+01:00") == expected


@pytest.mark.parametrize("text", [None, "", "yesterday", 5, "2026-11-21", "2026-11-21T12:00:00"])
def test_what_is_no_moment_is_none(text: object) -> None:
    """Without a zone it cannot be compared with those that have one."""
    assert moment_noted(text) is None
