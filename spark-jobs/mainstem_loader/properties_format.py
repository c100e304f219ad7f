r"""Files of `name=value` lines, as Java's `Properties` reads them.

Lines end at `\n`, `\r` and `\r\n`, and at no other character: `str.splitlines` would cut a value at U+0085 or
U+2028. White space is the space, the tab and the form feed; it does not count around names and values. `=`,
`:` or white space ends a name. `#` and `!` begin a line that is a comment. A backslash at the end of a line
continues it on the next one. `\n`, `\t`, `\\`, `\uXXXX` and the like are the characters that Java reads.

Three things differ from Java. A backslash before any other character stays, so that a regular expression may
be written as it is. White space at the end of a value does not count, unless a backslash stands before it. A
line without any separator is refused, because it is probably the rest of a value that was broken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_BLANKS: Final = " \t\f"
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_NAME: Final = re.compile(r"((?:\\.|[^\\=: \t\f])*)(?:[ \t\f]*[=:][ \t\f]*|[ \t\f]+)", re.DOTALL)
"""A name and its separator."""
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|[\\ntrf=: #!])")
_CONTROL: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


class MalformedLine(ValueError):
    """A line without a separator. The text does not quote it: it may be part of a key or a password."""

    def __init__(self, number: int) -> None:
        super().__init__(
            f"Line {number} is not of the form name=value; a value of several lines has a backslash at"
            " the end of each but the last."
        )


def read_properties(text: str) -> dict[str, str]:
    """The properties in the text of a file; the last value of a name counts.

    Raises:
        MalformedLine: a line has no separator, or nothing before it.
    """
    properties: dict[str, str] = {}
    for number, line in _logical_lines(text):
        entry = _NAME.match(line)
        if entry is None or not entry[1]:
            raise MalformedLine(number)
        properties[_unescaped(entry[1])] = _unescaped(_stripped(line[entry.end() :]))
    return properties


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with those that continue them, by their first number; no comments and no empty ones."""
    first, begun = 0, ""
    lines = (line.lstrip(_BLANKS) for line in (*_LINE_END.split(text), ""))
    for number, line in enumerate(lines, start=1):
        if not first and line[:1] in ("", "#", "!"):
            continue
        first = first or number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            begun += line[:-1]
            continue
        if begun or line:
            yield first, begun + line
        first, begun = 0, ""


def _stripped(value: str) -> str:
    """A value without the white space at its end, but with one that is escaped."""
    stripped = value.rstrip(_BLANKS)
    is_escaped = (len(stripped) - len(stripped.rstrip("\\"))) % 2
    return value[: len(stripped) + is_escaped]


def _unescaped(text: str) -> str:
    characters = _ESCAPE.sub(_character, text)
    # Java writes a character beyond U+FFFF as two escapes.
    return characters.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _character(match: re.Match[str]) -> str:
    escape = match[1]
    return chr(int(escape[1:], 16)) if len(escape) > 1 else _CONTROL.get(escape, escape)
