"""The words of a `.proto` text, with the limits of what a text may cost.

Source: "Protocol Buffers Language Specification", the sections on lexical elements.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NoReturn

from mainstem_registry.errors import invalid_schema
from mainstem_registry.schemas.limits import TEXT_BYTES_MAX

TOKENS_MAX: Final = 200_000
"""Of one text; as much work as the largest JSON that is allowed."""
NUMBER: Final = "number"
NAME: Final = "name"
TEXT: Final = "text"
SYMBOL: Final = "symbol"

_TOKEN: Final = re.compile(
    r"(?P<space>(?:[ \t\r\n\f\v]+|//[^\n]*|/\*.*?\*/)+)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<number>0[xX][0-9A-Fa-f]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"""|(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    r"|(?P<symbol>[-{}()\[\];,=.<>:+/])",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(
    r"\\(?:[xX](?P<hex>[0-9A-Fa-f]{1,2})|(?P<octal>[0-7]{1,3})|u(?P<four>[0-9A-Fa-f]{4})"
    r"|U(?P<eight>[0-9A-Fa-f]{8})|(?P<letter>.))",
    re.DOTALL,
)
_LETTERS: Final = {
    "a": b"\a", "b": b"\b", "f": b"\f", "n": b"\n", "r": b"\r", "t": b"\t", "v": b"\v",
    "\\": b"\\", "'": b"'", '"': b'"', "?": b"?",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Token:
    """A word, number, string or symbol, and where it begins. The last token of a text is the symbol ""."""

    kind: str
    text: str
    position: int


class Tokens:
    """The tokens of a text, from the first to the last.

    Raises:
        RegistryError: a character means nothing, or there are too many.
    """

    def __init__(self, text: str) -> None:
        if len(text.encode("utf-8", "surrogatepass")) > TEXT_BYTES_MAX:
            raise invalid_schema(f"its text is longer than {TEXT_BYTES_MAX} bytes.")
        self._text = text
        self._tokens: list[Token] = []
        self._next = 0
        position = 1 if text.startswith("\ufeff") else 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                self._fail(position, f"{text[position : position + 1]!r} means nothing here")
            if match.lastgroup != "space":
                self._tokens.append(Token(str(match.lastgroup), match.group(), position))
                if len(self._tokens) > TOKENS_MAX:
                    raise invalid_schema(f"it has more than {TOKENS_MAX} words.")
            position = match.end()
        self._tokens.append(Token(SYMBOL, "", len(text)))

    @property
    def count(self) -> int:
        return len(self._tokens)

    @property
    def ended(self) -> bool:
        """Whether all tokens are taken but the last, which stands for the end."""
        return self._next == len(self._tokens) - 1

    @property
    def current(self) -> Token:
        return self._tokens[self._next]

    @property
    def following(self) -> Token:
        """The token after the current one."""
        return self._tokens[min(self._next + 1, len(self._tokens) - 1)]

    def take(self) -> Token:
        """The current token; the next one becomes current."""
        token = self.current
        if self._next < len(self._tokens) - 1:
            self._next += 1
        return token

    def takes(self, text: str) -> bool:
        """Whether the current token is this word or symbol, which is then taken."""
        token = self.current
        if token.text != text or token.kind == TEXT:
            return False
        self.take()
        return True

    def expect(self, text: str) -> None:
        if not self.takes(text):
            self.fail(f"{text!r} is missing")

    def name(self) -> str:
        if self.current.kind != NAME:
            self.fail("a name is missing")
        return self.take().text

    def full_name(self) -> str:
        """Names with dots between them, and perhaps one before them."""
        parts = ["." if self.takes(".") else "", self.name()]
        while self.takes("."):
            parts += [".", self.name()]
        return "".join(parts)

    def integer(self, minimum: int, maximum: int) -> int:
        """A whole number, with its sign."""
        at = self.current
        negative = self.takes("-")
        if self.current.kind != NUMBER:
            self.fail("a number is missing")
        value = _whole(self.take().text)
        if value is None:
            self.fail("the number must be a whole one", at)
        value = -value if negative else value
        if not minimum <= value <= maximum:
            self.fail(f"the number must be between {minimum} and {maximum}", at)
        return value

    def octets(self) -> bytes:
        """A string; several in a row are one."""
        if self.current.kind != TEXT:
            self.fail("a string is missing")
        parts = []
        while self.current.kind == TEXT:
            token = self.take()
            try:
                parts.append(_unescaped(token.text[1:-1]))
            except ValueError:
                self.fail("the string has an escape that means nothing", token)
        return b"".join(parts)

    def string(self) -> str:
        """A string that is UTF-8."""
        at = self.current
        try:
            return self.octets().decode()
        except UnicodeDecodeError:
            self.fail("the string is not UTF-8", at)

    def skip_braces(self) -> None:
        """Pass over a value in braces."""
        depth = 0
        while True:
            token = self.take()
            if token.kind == SYMBOL and token.text in ("{", "[", "<"):
                depth += 1
            elif token.kind == SYMBOL and token.text in ("}", "]", ">"):
                depth -= 1
            elif self.ended and not token.text:
                self.fail("'}' is missing")
            if depth <= 0:
                return

    def fail(self, reason: str, token: Token | None = None) -> NoReturn:
        """Refuse the text, for a reason at a token."""
        at = token or self.current
        self._fail(at.position, f"{reason}, before {at.text[:40]!r}" if at.text else f"{reason} at its end")

    def _fail(self, position: int, reason: str) -> NoReturn:
        raise invalid_schema(f"line {self._text.count(chr(10), 0, position) + 1}: {reason}.")


def _whole(text: str) -> int | None:
    """The value of a decimal, octal or hexadecimal literal; None if it is none, or absurdly long."""
    if len(text) > 30 or not text.replace("x", "").replace("X", "").isalnum():
        return None
    try:
        if text[:2] in ("0x", "0X"):
            return int(text, 16)
        return int(text, 8) if len(text) > 1 and text.startswith("0") else int(text)
    except ValueError:
        return None


def number_of(text: str) -> float:
    """The value of a number's literal, whole or not."""
    whole = _whole(text)
    return float(text) if whole is None else whole


def _unescaped(text: str) -> bytes:
    parts, position = [], 0
    while (found := text.find("\\", position)) >= 0:
        parts.append(text[position:found].encode("utf-8", "surrogatepass"))
        match = _ESCAPE.match(text, found)
        if match is None:
            raise ValueError(text)
        parts.append(_escape(match))
        position = match.end()
    parts.append(text[position:].encode("utf-8", "surrogatepass"))
    return b"".join(parts)


def _escape(match: re.Match[str]) -> bytes:
    if digits := match["hex"]:
        return bytes((int(digits, 16),))
    if digits := match["octal"]:
        return bytes((int(digits, 8) & 0xFF,))
    if digits := match["four"] or match["eight"]:
        return chr(int(digits, 16)).encode()  # ValueError beyond Unicode, and for surrogates
    letter = match["letter"]
    if letter not in _LETTERS:
        raise ValueError(letter)
    return _LETTERS[letter]
