"""Parses regular expressions over topic names into trees. Pure; `topic_patterns.py` matches names with them.

The syntax is RE2's, except for what cannot matter for topic names or is unsupported. Supported are literals,
`.`, classes (with ranges, `^`, `[:alpha:]`, `\\d \\w \\s` and their opposites), groups (also named, without
capture, with flags), `|`, `* + ? {n,m}` (greedy or not, which makes no difference here), `^ $ \\A \\z`,
`\\Q...\\E`, and the flags `i s m U`. Refused with a reason are back references and look-around (as by RE2),
word boundaries and Unicode classes.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Final

from mainstem_broker.errors import InvalidRegularExpression
from mainstem_broker.whole_numbers import is_whole_number

ALPHABET: Final = frozenset(string.ascii_letters + string.digits + "._-")
"""The characters of topic names."""
REPEAT_MAX: Final = 1_000
"""The same as in RE2."""
NESTING_MAX: Final = 100

_CLASSES: Final = {
    "d": frozenset(string.digits),
    "w": frozenset(string.ascii_letters + string.digits + "_"),
    "s": frozenset[str](),
}
_NAMED_CLASSES: Final = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "ascii": ALPHABET,
    "blank": frozenset[str](),
    "cntrl": frozenset[str](),
    "digit": frozenset(string.digits),
    "graph": ALPHABET,
    "lower": frozenset(string.ascii_lowercase),
    "print": ALPHABET,
    "punct": frozenset("._-"),
    "space": frozenset[str](),
    "upper": frozenset(string.ascii_uppercase),
    "word": frozenset(string.ascii_letters + string.digits + "_"),
    "xdigit": frozenset(string.hexdigits),
}
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Matches any one of these characters."""

    characters: frozenset[str]


@dataclass(frozen=True, slots=True)
class Concatenation:
    """Matches its parts one after another; without parts, the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alternation:
    """Matches what any of its choices matches."""

    choices: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repetition:
    """Matches the part at least `least` and at most `most` times; None: without limit."""

    part: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Anchor:
    """Matches the empty text at the beginning of the name, or at its end."""

    is_end: bool


Node = AnyOf | Concatenation | Alternation | Repetition | Anchor


class PatternParser:
    """Parses one pattern, by recursive descent.

    Raises:
        InvalidRegularExpression: with the position of the first mistake.
    """

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0
        self._fold = False

    def parse(self) -> Node:
        node = self._alternation()
        if self._at < len(self._text):
            raise self._error("a ')' has no '('")
        return node

    def _error(self, reason: str) -> InvalidRegularExpression:
        return InvalidRegularExpression(
            f"The regular expression '{self._text}' is invalid at character {self._at}: {reason}."
        )

    def _take(self, expected: str) -> bool:
        if self._text.startswith(expected, self._at):
            self._at += len(expected)
            return True
        return False

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise self._error("it ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _alternation(self) -> Node:
        fold = self._fold
        choices = [self._concatenation()]
        while self._take("|"):
            choices.append(self._concatenation())
        self._fold = fold  # flags hold to the end of their group
        return choices[0] if len(choices) == 1 else Alternation(tuple(choices))

    def _concatenation(self) -> Node:
        parts: list[Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts += self._repeated()
        return Concatenation(tuple(parts))

    def _repeated(self) -> list[Node]:
        if self._take("\\Q"):
            end = self._text.find("\\E", self._at)
            quoted = self._text[self._at : end] if end >= 0 else self._text[self._at :]
            self._at += len(quoted) + (2 if end >= 0 else 0)
            return [self._literal(character) for character in quoted]
        node = self._single()
        bounds = self._bounds()
        if bounds is None:
            return [node]
        self._take("?")  # greedy or not does not matter: only whether the name matches
        if self._bounds() is not None:
            raise self._error("a repetition is repeated")
        return [Repetition(node, *bounds)]

    def _bounds(self) -> tuple[int, int | None] | None:
        if self._take("*"):
            return 0, None
        if self._take("+"):
            return 1, None
        if self._take("?"):
            return 0, 1
        if self._text[self._at : self._at + 1] != "{":
            return None
        end = self._text.find("}", self._at)
        least, comma, most = self._text[self._at + 1 : max(end, self._at + 1)].partition(",")
        if not _is_number(least) or (most and not _is_number(most)):
            return None  # a brace that is no repetition stands for itself
        self._at = end + 1
        low, high = int(least), int(most) if most else (None if comma else int(least))
        if low > REPEAT_MAX or (high is not None and not low <= high <= REPEAT_MAX):
            raise self._error(f"repetitions have to be between 0 and {REPEAT_MAX}, the lower number first")
        return low, high

    def _single(self) -> Node:
        character = self._next()
        match character:
            case "(":
                return self._group()
            case "[":
                return self._class()
            case ".":
                return AnyOf(ALPHABET)
            case "^":
                return Anchor(is_end=False)
            case "$":
                return Anchor(is_end=True)
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise self._error(f"there is nothing for the '{character}' to repeat")
        return self._literal(character)

    def _literal(self, character: str) -> AnyOf:
        characters = frozenset((character,))
        return AnyOf(_folded(characters) & ALPHABET if self._fold else characters & ALPHABET)

    def _group(self) -> Node:
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise self._error(f"groups are nested more than {NESTING_MAX} deep")
        fold = self._fold
        if self._take("?P<") or (self._is_name_group() and self._take("?<")):
            end = self._text.find(">", self._at)
            if end < 0 or not self._text[self._at : end].isidentifier():
                raise self._error("the group's name is not a word that ends with '>'")
            self._at = end + 1
        elif self._take("?") and self._flags():
            self._depth -= 1
            return Concatenation(())
        node = self._alternation()
        if not self._take(")"):
            raise self._error("a '(' is not closed")
        self._fold = fold
        self._depth -= 1
        return node

    def _is_name_group(self) -> bool:
        return self._text[self._at : self._at + 2] == "?<" and self._text[
            self._at + 2 : self._at + 3
        ] not in (
            "=",
            "!",
        )

    def _flags(self) -> bool:
        """Read flags after `(?`; returns whether it is `(?flags)`, which hold to the outer group's end."""
        value = True
        while True:
            character = self._next()
            match character:
                case "i":
                    self._fold = value
                case "s" | "m" | "U":
                    pass  # names have no line ends, and greediness does not matter
                case "-":
                    value = False
                case ":":
                    return False
                case ")":
                    return True
                case _:
                    raise self._error(
                        "look-around and other groups than '(?:', '(?P<name>' and flags are unknown"
                    )

    def _escape(self) -> Node:
        character = self._next()
        if character == "A":
            return Anchor(is_end=False)
        if character == "z":
            return Anchor(is_end=True)
        return AnyOf(self._escaped(character))

    def _escaped(self, character: str) -> frozenset[str]:
        if character.lower() in _CLASSES:
            characters = _CLASSES[character.lower()]
            return characters if character.islower() else ALPHABET - characters
        if character == "x":
            end = self._text.find("}", self._at) if self._take("{") else self._at + 2
            digits = self._text[self._at : max(end, self._at)]
            if (
                not digits
                or not all(digit in string.hexdigits for digit in digits)
                or int(digits, 16) > 0x10FFFF
            ):
                raise self._error("'\\x' needs a character's number in base 16")
            self._at = end + (self._text[end : end + 1] == "}")
            return self._literal(chr(int(digits, 16))).characters
        if character in _ESCAPES:
            return frozenset()
        if character.isalnum():
            raise self._error(f"'\\{character}' is unknown here")
        return self._literal(character).characters

    def _class(self) -> AnyOf:
        negated = self._take("^")
        characters: set[str] = set()
        first = True
        while first or not self._take("]"):
            first = False
            if self._take("[:"):
                characters |= self._named_class()
                continue
            low = self._next()
            if low == "\\":
                low = self._next()
                escaped = self._escaped(low)
                if low.lower() in _CLASSES or len(escaped) != 1:
                    characters |= escaped
                    continue
                (low,) = escaped
            if self._text[self._at : self._at + 1] == "-" and self._text[self._at + 1 : self._at + 2] not in (
                "",
                "]",
            ):
                self._at += 1
                high = self._next()
                if high == "\\":
                    high = max(self._escaped(self._next()), default="\0")
                if high < low:
                    raise self._error("a range ends before it begins")
                characters |= {between for between in ALPHABET if low <= between <= high}
            else:
                characters.add(low)
        matching = _folded(frozenset(characters)) if self._fold else frozenset(characters)
        return AnyOf(ALPHABET - matching if negated else ALPHABET & matching)

    def _named_class(self) -> frozenset[str]:
        end = self._text.find(":]", self._at)
        name = self._text[self._at : max(end, self._at)]
        characters = _NAMED_CLASSES.get(name.removeprefix("^"))
        if characters is None:
            raise self._error(f"there is no class '[:{name}:]'")
        self._at = end + 2
        return ALPHABET - characters if name.startswith("^") else characters


def _is_number(text: str) -> bool:
    return is_whole_number(text) and len(text) <= 6


def _folded(characters: frozenset[str]) -> frozenset[str]:
    return frozenset(
        other for character in characters for other in (character, character.lower(), character.upper())
    )
