"""Matches regular expressions with topic names, in time that grows with the length of the name only. Pure.

Members send expressions that the broker evaluates (KIP-848, `SubscribedTopicRegex`), on the loop that serves
all clients. Python's own engine backtracks, so one hostile pattern could stop the broker for minutes; Apache
Kafka uses RE2 for that reason. This is the same idea for a smaller alphabet: topic names have 65 different
characters, so a class is a set of those, and the pattern becomes an automaton whose states are sets of
positions in a program. States are made when they are first reached, and kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from mainstem_broker.errors import InvalidRegularExpression
from mainstem_broker.group.consumer.pattern_parser import (
    Alternation,
    Anchor,
    AnyOf,
    Concatenation,
    Node,
    PatternParser,
    Repetition,
)

INSTRUCTIONS_MAX: Final = 2_000
"""Of a pattern's program; a pattern of a thousand characters that a person wrote needs fewer."""
STATES_KEPT: Final = 2_000
"""The cache is cleared when it has as many states: a hostile pattern has exponentially many."""


@dataclass(slots=True)
class _State:
    """A set of positions in the program; `after` caches the next state for each character."""

    positions: frozenset[int]
    accepts: bool
    after: dict[str, _State] = field(default_factory=dict)


_Instruction = tuple[frozenset[str] | None, tuple[int, ...], Anchor | None]
"""The characters that it consumes (None: none), the next positions, and where it applies only."""

_ACCEPT: Final = 0


class TopicPattern:
    """A compiled pattern, which has to match the whole name.

    Raises:
        InvalidRegularExpression: the pattern is invalid or too large.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._program: list[_Instruction] = [(None, (), None)]
        first = self._emit(PatternParser(pattern).parse(), _ACCEPT)
        self._states: dict[frozenset[int], _State] = {}
        self._first = self._state(self._reach({first}, at_start=True))

    def matches(self, name: str) -> bool:
        """Whether the pattern matches the whole of a topic's name."""
        state = self._first
        for character in name:
            following = state.after.get(character)
            if following is None:
                following = state.after[character] = self._step(state, character)
            state = following
        return state.accepts

    def _add(self, instruction: _Instruction) -> int:
        if len(self._program) >= INSTRUCTIONS_MAX:
            raise InvalidRegularExpression(f"The regular expression '{self._pattern}' is too large.")
        self._program.append(instruction)
        return len(self._program) - 1

    def _emit(self, node: Node, after: int) -> int:
        """Add instructions that match the node and continue at `after`; returns where they begin."""
        match node:
            case AnyOf(characters):
                return self._add((characters, (after,), None))
            case Anchor():
                return self._add((None, (after,), node))
            case Concatenation(parts):
                for part in reversed(parts):
                    after = self._emit(part, after)
                return after
            case Alternation(choices):
                return self._add((None, tuple(self._emit(choice, after) for choice in choices), None))
            case Repetition(part, least, most):
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
                        break  # it matches only the empty text: repeating that, nested, would take hours
                    first = begun
                return first

    def _reach(self, positions: set[int], *, at_start: bool = False, at_end: bool = False) -> frozenset[int]:
        """The positions that are reached without consuming a character."""
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
        cached = self._states.get(positions)
        if cached is None:
            if len(self._states) >= STATES_KEPT:
                # Begin again from the first state, which must not lead to the old ones any more.
                self._states.clear()
                self._first = _State(self._first.positions, self._first.accepts)
            cached = self._states[positions] = self._state(positions, is_first=False)
        return cached
