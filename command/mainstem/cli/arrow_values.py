"""Values of query results as JSON has them, none of them dropped, rounded or equal to another.

Arrow's own `to_pylist` raises for days outside of the years 1 to 9999, and for structs whose members share a
name; it cuts nanoseconds. JSON has no form for some values. Here they are text: NaN and infinite numbers as
PostgreSQL writes them, decimals with all digits, intervals and durations as ISO 8601 (`P1M2DT1.5S`), days and
times beyond four digits of the year as ISO 8601's expanded form (`+12026-01-31`). Bytes that are not UTF-8
are base64 under the member's name with `_base64`, as `mainstem consume` writes them.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from itertools import count, islice, pairwise
from typing import Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

_UNITS_PER_SECOND: Final = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = _EPOCH.toordinal()
_DAY_SECONDS: Final = 86_400
# The Gregorian calendar repeats after that many days and years.
_CYCLE_DAYS: Final = 146_097
_CYCLE_YEARS: Final = 400


@dataclass(frozen=True, slots=True)
class Base64:
    """Bytes that are not text."""

    text: str


def is_bytes(kind: Any) -> bool:
    """Whether values of an Arrow type are bytes."""
    types = pa.types
    return (
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


def unique_names(names: Sequence[str]) -> list[str]:
    """The names, with `_2`, `_3` and so on after those that are there already: objects in JSON need them, and
    the columns of a join share names.
    """
    unique: list[str] = []
    taken = set(names)
    used: set[str] = set()
    numbers: dict[str, Iterator[int]] = {}
    for name in names:
        candidate = name
        while candidate in used or (candidate is not name and candidate in taken):
            candidate = f"{name}_{next(numbers.setdefault(name, count(2)))}"
        used.add(candidate)
        unique.append(candidate)
    return unique


def json_objects(names: Sequence[str], columns: Sequence[list[Any]]) -> list[dict[str, Any]]:
    """Rows as JSON objects; names that repeat are numbered."""
    plain = unique_names(names)
    encoded = unique_names([*plain, *(f"{name}_base64" for name in plain)])[len(plain) :]
    rows: list[dict[str, Any]] = []
    for values in zip(*columns, strict=True):
        row: dict[str, Any] = {}
        for name, encoded_name, value in zip(plain, encoded, values, strict=True):
            if isinstance(value, Base64):
                row[encoded_name] = value.text
            else:
                row[name] = value
        rows.append(row)
    return rows


def json_values(array: Any) -> list[Any]:
    """The values of an Arrow array as JSON has them; bytes that are not UTF-8 as `Base64`."""
    if isinstance(array, pa.ChunkedArray):
        return [value for chunk in array.chunks for value in json_values(chunk)]
    kind, types = array.type, pa.types
    if types.is_dictionary(kind):
        return json_values(array.dictionary_decode())
    if types.is_struct(kind):
        members = [json_values(member) for member in array.flatten()]
        names = [kind.field(n).name for n in range(kind.num_fields)]
        objects = json_objects(names, members) if members else [{} for _ in range(len(array))]
        return [value if there else None for value, there in zip(objects, _is_there(array), strict=True)]
    if types.is_map(kind):
        pairs = zip(_in_list(json_values(array.keys)), _in_list(json_values(array.items)), strict=True)
        return _cut([list(pair) for pair in pairs], array, first=array.offsets[0].as_py())
    if types.is_nested(kind) and not types.is_union(kind) and not types.is_run_end_encoded(kind):  # a list
        return _cut(_in_list(json_values(array.flatten())), array, first=0)
    if types.is_floating(kind):
        return [_number(value) for value in array.to_pylist()]
    if types.is_decimal(kind):
        return [None if value is None else _decimal(value) for value in array.to_pylist()]
    if is_bytes(kind):
        return [None if value is None else _text_or_base64(value) for value in array.to_pylist()]
    if types.is_interval(kind):
        return [None if value is None else _interval(*value) for value in array.to_pylist()]
    if types.is_temporal(kind):
        return _times(array)
    return [value if _is_plain(value) else str(value) for value in array.to_pylist()]


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int)


def _is_there(array: Any) -> list[bool]:
    there: list[bool] = array.is_valid().to_pylist()
    return there


def _in_list(values: list[Any]) -> list[Any]:
    return [{"base64": value.text} if isinstance(value, Base64) else value for value in values]


def _cut(items: list[Any], array: Any, first: int) -> list[Any]:
    """The lists of an array out of the items of all of them; those of nulls are not among the items, or
    before `first`."""
    rest = islice(items, first, None)
    if pa.types.is_map(array.type):  # whose items are those of nulls, too
        offsets = array.offsets.to_pylist()
        lengths = [end - begin for begin, end in pairwise(offsets)]
        lists = [list(islice(rest, length)) for length in lengths]
        return [one if there else None for one, there in zip(lists, _is_there(array), strict=True)]
    lengths = pc.list_value_length(array).to_pylist()
    return [None if length is None else list(islice(rest, length)) for length in lengths]


def _number(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _decimal(value: Decimal) -> str:
    return format(value, "f")


def _text_or_base64(value: bytes) -> str | Base64:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return encoded(value)


def encoded(value: bytes) -> Base64:
    """Bytes as base64, also those of text."""
    return Base64(base64.b64encode(value).decode())


def years_are_plain(column: Any) -> bool:
    """Whether all days or timestamps of a column are of the years 1 to 9999, which all readers know."""
    kind = column.type
    if pa.types.is_date32(kind):
        units_per_day, counts = 1, column.cast(pa.int32())
    else:
        units_per_second = 1000 if pa.types.is_date64(kind) else _UNITS_PER_SECOND[kind.unit]
        units_per_day, counts = _DAY_SECONDS * units_per_second, column.cast(pa.int64())
    extremes = [pc.min(counts).as_py(), pc.max(counts).as_py()]
    # A day less at both ends, for the time zone.
    return all(n is None or -719_161 < n // units_per_day < 2_932_896 for n in extremes)


def _times(array: Any) -> list[Any]:
    kind, types = array.type, pa.types
    if types.is_date32(kind):
        return [None if days is None else _date(days) for days in array.cast(pa.int32()).to_pylist()]
    if types.is_date64(kind):
        days = (None if ms is None else ms // 86_400_000 for ms in array.cast(pa.int64()).to_pylist())
        return [None if day is None else _date(day) for day in days]
    width = pa.int32() if types.is_time32(kind) else pa.int64()
    counts = array.cast(width).to_pylist()
    unit = _UNITS_PER_SECOND[kind.unit]
    if types.is_duration(kind):
        return [None if value is None else _duration(value, unit) for value in counts]
    if types.is_time(kind):
        return [None if value is None else _clock(value // unit, value % unit, unit) for value in counts]
    zone = _zone(kind.tz)
    return [None if value is None else _time(value, unit, zone) for value in counts]


def _zone(name: str | None) -> tzinfo | None:
    """What Arrow calls by `name`: an offset such as +05:30, or a name of the time zone database."""
    if name is None:
        return None
    if name[:1] in {"+", "-"}:
        hours, _, minutes = name[1:].partition(":")
        offset = timedelta(hours=int(hours), minutes=int(minutes or 0))
        return timezone(-offset if name[0] == "-" else offset)
    return UTC if name == "UTC" else ZoneInfo(name)


def _date(days: int) -> str:
    day, cycles = _day_in_calendar(days)
    return f"{_year(day.year, cycles)}-{day:%m-%d}"


def _day_in_calendar(days: int) -> tuple[date, int]:
    """A day of the years 2 to 9998, and by how many cycles it is before the day that is meant."""
    ordinal = days + _EPOCH_DAY
    cycles = 0
    if not date(2, 1, 1).toordinal() <= ordinal < date(9999, 1, 1).toordinal():
        cycles = (ordinal - date(2000, 1, 1).toordinal()) // _CYCLE_DAYS
    return date.fromordinal(ordinal - cycles * _CYCLE_DAYS), cycles


def _year(year: int, cycles: int) -> str:
    year += cycles * _CYCLE_YEARS
    return f"{year:04}" if 0 <= year <= 9999 else f"{year:+05}"


def _time(value: int, units_per_second: int, zone: tzinfo | None) -> str:
    seconds, fraction = divmod(value, units_per_second)
    days, seconds = divmod(seconds, _DAY_SECONDS)
    day, cycles = _day_in_calendar(days)
    time = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(seconds=seconds)
    separator = " "
    if zone is not None:
        time, separator = time.astimezone(zone), "T"
    clock = _clock(time.hour * 3600 + time.minute * 60 + time.second, fraction, units_per_second)
    offset = "" if zone is None else time.isoformat()[19:]
    return f"{_year(time.year, cycles)}-{time:%m-%d}{separator}{clock}{offset}"


def _clock(seconds: int, fraction: int, units_per_second: int) -> str:
    """As Python writes it: six digits after the point, none if they are zeros, nine if needed."""
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    nanoseconds = fraction * (1_000_000_000 // units_per_second)
    if nanoseconds == 0:
        return text
    return f"{text}.{nanoseconds:09}" if nanoseconds % 1000 else f"{text}.{nanoseconds // 1000:06}"


def _interval(months: int, days: int, nanoseconds: int) -> str:
    """ISO 8601, with a sign for each part, as PostgreSQL's `iso_8601`."""
    years, months = int(months / 12), int(math.fmod(months, 12))
    date_part = "".join(f"{n}{unit}" for n, unit in ((years, "Y"), (months, "M"), (days, "D")) if n)
    return f"P{date_part}{_time_part(nanoseconds)}" if date_part or nanoseconds else "PT0S"


def _duration(value: int, units_per_second: int) -> str:
    nanoseconds = value * (1_000_000_000 // units_per_second)
    sign = -1 if nanoseconds < 0 else 1
    days, rest = divmod(abs(nanoseconds), _DAY_SECONDS * 1_000_000_000)
    return _interval(0, sign * days, sign * rest)


def _time_part(nanoseconds: int) -> str:
    if nanoseconds == 0:
        return ""
    sign = "-" if nanoseconds < 0 else ""
    seconds, fraction = divmod(abs(nanoseconds), 1_000_000_000)
    parts = [f"{sign}{n}{unit}" for n, unit in ((seconds // 3600, "H"), (seconds // 60 % 60, "M")) if n]
    if seconds % 60 or fraction:
        digits = f".{fraction:09}".rstrip("0") if fraction else ""
        parts.append(f"{sign}{seconds % 60}{digits}S")
    return f"T{''.join(parts)}"
