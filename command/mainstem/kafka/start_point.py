"""Where a consumer begins, as people say it (`--from`, `--to`), and the offset that means in a partition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from mainstem.errors import BadInput
from mainstem.times import date_time_ms, duration_ms, text_of_ms
from mainstem.whole_numbers import is_whole_number

# Ten digits are a time in seconds, and thirteen one in milliseconds, from the year 2001 to 2286.
_MS_BY_DIGITS: Final = {10: 1000, 13: 1}


class Kind(Enum):
    BEGINNING = "beginning"
    END = "end"
    OFFSET = "offset"
    LAST = "last"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class StartPoint:
    """`number` is an offset, a count of records per partition, or ms since 1970, as `kind` says."""

    kind: Kind
    number: int = 0


def parse_start(text: str, now_ms: int, option: str = "--from") -> StartPoint:
    """The start that `text`, the value of `option`, means.

    `beginning`; `end`; an offset as `1200`; the last records of each partition as `-10`; an ISO 8601 date or
    date-time (local unless it names a zone) as `2026-01-31T10:00`; a time ago as `10m`, `2h`, `1d`.

    Raises:
        BadInput: none of these.
    """
    match text:
        case "beginning" | "earliest":
            return StartPoint(Kind.BEGINNING)
        case "end" | "latest":
            return StartPoint(Kind.END)
    sign = "-" if text.startswith("-") else ""
    if is_whole_number(digits := text.removeprefix(sign)):
        return StartPoint(Kind.LAST if sign else Kind.OFFSET, int(digits))
    if (ago_ms := duration_ms(text)) is not None:
        return StartPoint(Kind.TIME, max(0, now_ms - ago_ms))
    if (time_ms := date_time_ms(text)) is not None:
        return StartPoint(Kind.TIME, max(0, time_ms))  # a request gives negative times another meaning
    raise BadInput(
        f"{option} does not understand {text!r}: write beginning, end, an offset (1200), the last N records "
        "(-10), a date or date-time (2026-01-31T10:00), or a time ago (10m)."
    )


def require_within(start: StartPoint, ends: Iterable[int]) -> None:
    """Check a start by its offset against the ends of the partitions that it is for.

    Raises:
        BadInput: the offset lies beyond all of them, so that nothing would be read. It may be a time.
    """
    known_ends = list(ends)
    if start.kind is not Kind.OFFSET or start.number <= max(known_ends, default=start.number):
        return
    end_text = "its end" if len(known_ends) == 1 else "the end of every partition"
    unit_ms = _MS_BY_DIGITS.get(len(str(start.number)))
    hint = "" if unit_ms is None else f" If it is a time, write {text_of_ms(start.number * unit_ms)}."
    raise BadInput(f"Offset {start.number:,} lies beyond {end_text} ({max(known_ends):,}).{hint}")


def offset_to_start_at(start: StartPoint, earliest: int, latest: int, at_time: int | None) -> int:
    """The offset in a partition that holds the offsets `earliest` up to, not including, `latest`.

    `at_time` is the offset of the first record at or after the start's time, if there is one. An offset
    outside the partition means its nearer end.
    """
    match start.kind:
        case Kind.BEGINNING:
            return earliest
        case Kind.END:
            return latest
        case Kind.OFFSET:
            return min(max(start.number, earliest), latest)
        case Kind.LAST:
            return max(latest - start.number, earliest)
        case Kind.TIME:
            return latest if at_time is None else at_time
