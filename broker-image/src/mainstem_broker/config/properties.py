"""The form of a settings file: `name=value` lines, as Java's `Properties` writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from mainstem_broker.errors import InvalidSetting

_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|[\\ntrf=: #!])")
_CONTROL: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    r"""Read a `.properties` file: `#` and `!` begin comments; later lines win.

    A backslash at the end of a line continues it on the next one. `\n`, `\t`, `\\`, `\uXXXX` and the like are
    the characters that Java reads. Other than there, a backslash before another character stays, so that a
    regular expression may be written as it is.

    Raises:
        InvalidSetting: a line without `=`. The message names the line, and does not quote it: it may be part
            of a key or a password.
    """
    properties: dict[str, str] = {}
    for number, line in _logical_lines(text):
        if not line or line[0] in "#!":
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise InvalidSetting(
                f"Line {number} is not of the form name=value; a value of several lines has a backslash at"
                " the end of each but the last."
            )
        properties[name.strip()] = _ESCAPE.sub(_unescaped, value.strip())
    return properties


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without the white space around them, with those that continue them; by their first number."""
    first, parts = 0, ""
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        first = first or number
        is_comment = not parts and stripped[:1] in ("#", "!")
        backslashes = len(stripped) - len(stripped.rstrip("\\"))
        if backslashes % 2 and not is_comment:
            parts += stripped[:-1]
            continue
        yield first, parts + stripped
        first, parts = 0, ""
    if parts:
        yield first, parts


def _unescaped(match: re.Match[str]) -> str:
    escape = match[1]
    if len(escape) > 1:
        return chr(int(escape[1:], 16))
    return _CONTROL.get(escape, escape)
