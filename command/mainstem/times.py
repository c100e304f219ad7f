"""Times as people write them, to milliseconds since 1970 (UTC), which is what the protocol carries."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from mainstem.errors import BadInput

_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION: Final = re.compile(r"([0-9]{1,19})(ms|s|m|h|d|w)")
_ISO_FORM: Final = re.compile(r"(?:\d{4}-\d\d-\d\d|\d{8}|\d{4}-?W\d\d(?:-?\d)?)(?:[Tt ].+)?", re.ASCII)
_DIGITS: Final = re.compile(r"\d{1,7}|\d{9,19}", re.ASCII)
_INT64_MAX: Final = 2**63 - 1
_NO_TIMESTAMP: Final = -1  # of a record of an old producer (KIP-32)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def _from_iso(text: str) -> datetime:
    """Python takes any character between date and time, so that thirteen digits, which are milliseconds since
    1970, would be a date and a time of the year 1711.

    Raises:
        ValueError: it is no ISO 8601 date or date-time.
    """
    if _ISO_FORM.fullmatch(text) is None:
        raise ValueError(text)
    return datetime.fromisoformat(text)


def duration_ms(text: str) -> int | None:
    """`90s`, `10m`, `1h30m`, `2d` in milliseconds; None if `text` is not of that form."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(int(number) * _UNIT_MS[unit] for number, unit in parts)


def duration_text(milliseconds: int) -> str:
    """`milliseconds` in the largest unit that divides it, which `duration_ms` reads: `7d`, `1500ms`."""
    unit = next(unit for unit in ("w", "d", "h", "m", "s", "ms") if milliseconds % _UNIT_MS[unit] == 0)
    unit = "d" if unit == "w" else unit  # people say 7 days
    return f"{milliseconds // _UNIT_MS[unit]}{unit}"


def date_time_ms(text: str) -> int | None:
    """An ISO 8601 date or date-time, in milliseconds; None if `text` is none.

    Without a zone it is the local time of this machine.
    """
    try:
        return _milliseconds(_from_iso(text))
    except (ValueError, OverflowError):
        return None


def event_time_ms(value: object) -> int:
    """The time in a field of an event: milliseconds as a number or its digits, or ISO 8601 text (UTC if it
    names no zone). Eight digits are a date.

    Raises:
        BadInput: it is neither; the message shows it.
    """
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _INT64_MAX:
        return value
    if isinstance(value, str):
        if _DIGITS.fullmatch(value) and int(value) <= _INT64_MAX:
            return int(value)
        try:
            time = _from_iso(value)
            # The zone of the machine that sends an event says nothing about the event.
            return _milliseconds(time.replace(tzinfo=UTC) if time.tzinfo is None else time)
        except (ValueError, OverflowError):
            pass
    raise BadInput(
        f"{value!r} is not a time: give milliseconds since 1970, or ISO 8601 as 2026-01-31T10:00:00Z"
    )


def text_of_ms(timestamp_ms: int) -> str:
    """ISO 8601 in UTC with milliseconds, as 2026-01-31T10:00:00.000Z; the number itself beyond year 9999.

    `no timestamp` for Kafka's timestamp of a record that has none.
    """
    if timestamp_ms == _NO_TIMESTAMP:
        return "no timestamp"
    second = _text_of_second(timestamp_ms // 1000)
    return str(timestamp_ms) if second is None else f"{second}.{timestamp_ms % 1000:03}Z"


def time_or_none(timestamp_ms: int) -> str | None:
    """`text_of_ms`; None for the timestamp of a record that has none."""
    return None if timestamp_ms == _NO_TIMESTAMP else text_of_ms(timestamp_ms)


@lru_cache(maxsize=4096)  # records come in bursts of the same second
def _text_of_second(seconds: int) -> str | None:
    try:
        # `strftime` of some systems writes fewer than four digits of an early year.
        return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()
    except (ValueError, OverflowError, OSError):
        return None


def _milliseconds(time: datetime) -> int:
    # A double, such as `timestamp()`, is off by a millisecond in a quarter of the times from 2038 on.
    return (time.astimezone(UTC) - _EPOCH) // _MILLISECOND
