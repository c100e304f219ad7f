"""Options that are numbers: plain digits, as Java and people write them, and a sentence for anything else.

Typer's own numbers take underscores, blanks and the digits of all scripts, so that `1_000` would mean a
thousand here and nothing to other tools.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import typer

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")  # more digits than Kafka's widest numbers have are a slip
_DECIMAL: Final = re.compile(r"[+-]?[0-9]{1,19}(\.[0-9]{1,19})?")

PARTITIONS_MAX: Final = 100_000
"""Of a topic: the most that librdkafka sends."""
REPLICAS_MAX: Final = 10_000
"""Of a partition: the most that librdkafka sends."""
_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1

_Number = TypeVar("_Number", int, float)


def integer(minimum: int | None = None, maximum: int | None = None) -> dict[str, Any]:
    """The settings of an option or argument of type int: `typer.Option("--rate", **integer(1), help=...)`."""
    return _settings(int, _INTEGER, "a whole number, such as 1000", minimum, maximum)


def decimal(minimum: float | None = None, maximum: float | None = None) -> dict[str, Any]:
    """The settings of an option of type float."""
    return _settings(float, _DECIMAL, "a number, such as 1000 or 0.5", minimum, maximum)


def _settings(
    kind: Callable[[str], _Number],
    pattern: re.Pattern[str],
    wanted: str,
    minimum: _Number | None,
    maximum: _Number | None,
) -> dict[str, Any]:
    def parse(value: str | _Number) -> _Number:
        if isinstance(value, str):
            if not pattern.fullmatch(value):
                raise typer.BadParameter(f"{value!r} is not {wanted}. Write it in plain digits.")
            value = kind(value)
        # Kafka's widest numbers have 64 bits: libraries end with an error of their own at larger ones.
        least, most = (
            _INT64_MIN if minimum is None else minimum,
            _INT64_MAX if maximum is None else maximum,
        )
        if value < least:
            raise typer.BadParameter(f"{value} is less than {least}.")
        if value > most:
            raise typer.BadParameter(f"{value} is more than {most}.")
        return value

    # The bounds are repeated for the help.
    return {"min": minimum, "max": maximum, "parser": parse}
