"""Regular expressions over topic names, matched in time that grows with the name alone. Pure.

Members send expressions that the broker evaluates (KIP-848, `SubscribedTopicRegex`), on the loop that serves
everyone: Python's own engine backtracks, and one hostile pattern could stop the broker for minutes. Apache
Kafka takes RE2 for that reason. This is the same idea over a smaller world: a topic's name has 65 different
characters, so a class is a set of those, and an automaton of sets of positions does the rest. Its states are
made when they are first met and kept.

Understood is RE2's syntax but for what cannot matter or cannot be had here: literals, `.`, classes (with
ranges, `^`, `[:alpha:]`, `\\d \\w \\s` and their opposites), groups (also named, not capturing, with flags),
`|`, `* + ? {n,m}` (greedy or not: the same here), `^ $ \\A \\z`, `\\Q...\\E`, the flags `i s m U`. Refused
with a reason: back references and look-around (as by RE2), word boundaries, Unicode classes. A pattern has
to match the whole name.
"""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from typing import Final

from mainstem_broker.errors import InvalidRegularExpression

ALPHABET: Final = frozenset(string.ascii_letters + string.digits + "._-")
"""What topic names are made of."""
INSTRUCTIONS_MAX: Final = 2_000
"""Of a pattern's program; a pattern of a thousand characters that a person wrote needs fewer."""
REPEAT_MAX: Final = 1_000
"""As RE2."""
NESTING_MAX: Final = 100
STATES_KEPT: Final = 2_000

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


# --- What a pattern says ---


@dataclass(frozen=True, slots=True)
class _One:
    """Any one of these characters."""

    characters: frozenset[str]


@dataclass(frozen=True, slots=True)
class _All:
    """One after another; of nothing: the empty text."""

    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Either:
    choices: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    """`most` None: without end."""

    part: _Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class _Edge:
    """The beginning of the name, or its end."""

    is_end: bool


_Node = _One | _All | _Either | _Repeat | _Edge


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0
        self._fold = False

    def parse(self) -> _Node:
        node = self._either()
        if self._at < len(self._text):
            raise self._error("a ')' closes nothing")
        return node

    def _error(self, reason: str) -> InvalidRegularExpression:
        return InvalidRegularExpression(
            f"The regular expression '{self._text}' is not understood at character {self._at}: {reason}."
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

    def _either(self) -> _Node:
        fold = self._fold
        choices = [self._all()]
        while self._take("|"):
            choices.append(self._all())
        self._fold = fold  # flags hold to the end of their group
        return choices[0] if len(choices) == 1 else _Either(tuple(choices))

    def _all(self) -> _Node:
        parts: list[_Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts += self._repeated()
        return _All(tuple(parts))

    def _repeated(self) -> list[_Node]:
        if self._take("\\Q"):
            end = self._text.find("\\E", self._at)
            quoted = self._text[self._at : end] if end >= 0 else self._text[self._at :]
            self._at += len(quoted) + (2 if end >= 0 else 0)
            return [self._literal(character) for character in quoted]
        node = self._single()
        bounds = self._bounds()
        if bounds is None:
            return [node]
        self._take("?")  # what is taken first does not matter: there is only one answer
        if self._bounds() is not None:
            raise self._error("a repetition is repeated")
        return [_Repeat(node, *bounds)]

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
            return None  # a brace that counts nothing is a character
        self._at = end + 1
        low, high = int(least), int(most) if most else (None if comma else int(least))
        if low > REPEAT_MAX or (high is not None and not low <= high <= REPEAT_MAX):
            raise self._error(f"repetitions have to be between 0 and {REPEAT_MAX}, the lower number first")
        return low, high

    def _single(self) -> _Node:
        character = self._next()
        match character:
            case "(":
                return self._group()
            case "[":
                return self._class()
            case ".":
                return _One(ALPHABET)
            case "^":
                return _Edge(is_end=False)
            case "$":
                return _Edge(is_end=True)
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise self._error(f"there is nothing for the '{character}' to repeat")
        return self._literal(character)

    def _literal(self, character: str) -> _One:
        found = frozenset((character,))
        return _One(_folded(found) & ALPHABET if self._fold else found & ALPHABET)

    def _group(self) -> _Node:
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
            return _All(())
        node = self._either()
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
        """After `(?`: whether it was only `(?flags)`, which holds for the rest of the group around."""
        value = True
        while True:
            character = self._next()
            match character:
                case "i":
                    self._fold = value
                case "s" | "m" | "U":
                    pass  # names have no line ends, and there is only one answer
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

    def _escape(self) -> _Node:
        character = self._next()
        if character == "A":
            return _Edge(is_end=False)
        if character == "z":
            return _Edge(is_end=True)
        return _One(self._escaped(character))

    def _escaped(self, character: str) -> frozenset[str]:
        if character.lower() in _CLASSES:
            found = _CLASSES[character.lower()]
            return found if character.islower() else ALPHABET - found
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

    def _class(self) -> _One:
        negated = self._take("^")
        found: set[str] = set()
        first = True
        while first or not self._take("]"):
            first = False
            if self._take("[:"):
                found |= self._named_class()
                continue
            low = self._next()
            if low == "\\":
                low = self._next()
                escaped = self._escaped(low)
                if low.lower() in _CLASSES or len(escaped) != 1:
                    found |= escaped
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
                found |= {character for character in ALPHABET if low <= character <= high}
            else:
                found.add(low)
        characters = _folded(frozenset(found)) if self._fold else frozenset(found)
        return _One(ALPHABET - characters if negated else ALPHABET & characters)

    def _named_class(self) -> frozenset[str]:
        end = self._text.find(":]", self._at)
        name = self._text[self._at : max(end, self._at)]
        found = _NAMED_CLASSES.get(name.removeprefix("^"))
        if found is None:
            raise self._error(f"there is no class '[:{name}:]'")
        self._at = end + 2
        return ALPHABET - found if name.startswith("^") else found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6


def _folded(characters: frozenset[str]) -> frozenset[str]:
    return frozenset(
        other for character in characters for other in (character, character.lower(), character.upper())
    )


# --- The automaton ---


@dataclass(slots=True)
class _State:
    """A set of positions in the program; `after` is filled as characters are met."""

    positions: frozenset[int]
    accepts: bool
    after: dict[str, _State] = field(default_factory=dict)


_Instruction = tuple[frozenset[str] | None, tuple[int, ...], _Edge | None]
"""Characters it takes (None: it takes none), where it goes on, and at which edge only."""

_ACCEPT: Final = 0


class TopicPattern:
    """A compiled pattern.

    Raises:
        InvalidRegularExpression: it is none, or would be too large.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._program: list[_Instruction] = [(None, (), None)]
        first = self._emit(_Parser(pattern).parse(), _ACCEPT)
        self._states: dict[frozenset[int], _State] = {}
        self._first = self._state(self._reach({first}, at_start=True))

    def matches(self, name: str) -> bool:
        """Whether the pattern matches the whole of a topic's name."""
        state = self._first
        for character in name:
            found = state.after.get(character)
            if found is None:
                found = state.after[character] = self._step(state, character)
            state = found
        return state.accepts

    def _add(self, instruction: _Instruction) -> int:
        if len(self._program) >= INSTRUCTIONS_MAX:
            raise InvalidRegularExpression(f"The regular expression '{self._pattern}' is too large.")
        self._program.append(instruction)
        return len(self._program) - 1

    def _emit(self, node: _Node, after: int) -> int:
        """Add what matches the node and goes on at `after`; answer where that begins."""
        match node:
            case _One(characters):
                return self._add((characters, (after,), None))
            case _Edge():
                return self._add((None, (after,), node))
            case _All(parts):
                for part in reversed(parts):
                    after = self._emit(part, after)
                return after
            case _Either(choices):
                return self._add((None, tuple(self._emit(choice, after) for choice in choices), None))
            case _Repeat(part, least, most):
                first = after
                if most is None:
                    first = self._add((None, (), None))
                    self._program[first] = (None, (self._emit(part, first), after), None)
                else:
                    for _ in range(most - least):
                        first = self._add((None, (self._emit(part, first), after), None))
                for _ in range(least):
                    begun = self._emit(part, first)
                    if begun == first:
                        break  # it takes nothing, however often: nested ones would be counted out for hours
                    first = begun
                return first

    def _reach(self, positions: set[int], *, at_start: bool = False, at_end: bool = False) -> frozenset[int]:
        """The positions that can be come to without taking a character."""
        reached: set[int] = set()
        waiting = list(positions)
        while waiting:
            position = waiting.pop()
            if position in reached:
                continue
            reached.add(position)
            characters, following, edge = self._program[position]
            if characters is None and (edge is None or (at_end if edge.is_end else at_start)):
                waiting += following
        return frozenset(reached)

    def _state(self, positions: frozenset[int], *, is_first: bool = True) -> _State:
        accepts = _ACCEPT in self._reach(set(positions), at_start=is_first, at_end=True)
        return _State(positions, accepts)

    def _step(self, state: _State, character: str) -> _State:
        following = {
            position
            for at in state.positions
            if (characters := self._program[at][0]) is not None and character in characters
            for position in self._program[at][1]
        }
        positions = self._reach(following)
        found = self._states.get(positions)
        if found is None:
            if len(self._states) >= STATES_KEPT:
                self._states.clear()
                self._first = _State(self._first.positions, self._first.accepts)
            found = self._states[positions] = self._state(positions, is_first=False)
        return found
