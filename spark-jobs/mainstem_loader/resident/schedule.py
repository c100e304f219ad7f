"""Which topic is loaded next, and when. Pure: the caller says what time it is.

A topic is due half of its freshness after its last load began. So a record waits for at most that long, and
the other half is for the load itself. A load reads a bounded number of records; a topic with more is due
again at once, behind all that are due already, so no backlog holds up the others. After a failure the pause
doubles each time, up to a limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

FAILURE_PAUSE_S_MAX: Final = 300.0
_PAUSE_S_MIN: Final = 1.0
_DOUBLINGS_MAX: Final = 10


@dataclass(slots=True)
class _Turn:
    """When a topic is loaded.

    Attributes:
        freshness_s: how old a record that is not loaded may be.
        due_s: when the next load may begin.
        began_s: when the load under way began; None if none is.
        failures: loads that failed since the last that did not.
    """

    freshness_s: float
    due_s: float
    began_s: float | None = None
    failures: int = 0


class Schedule:
    """The turns of all topics, by name. Times are seconds of one clock that never goes back."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}

    def set_topics(self, freshness_of: Mapping[str, float], now_s: float) -> None:
        """Load these topics from now on, by their freshness in seconds. New ones are due at once."""
        for name in self._turns.keys() - freshness_of.keys():
            del self._turns[name]
        for name, freshness_s in freshness_of.items():
            turn = self._turns.setdefault(name, _Turn(freshness_s, now_s))
            if turn.freshness_s != freshness_s:
                turn.freshness_s = freshness_s
                turn.due_s = min(turn.due_s, now_s + _pause_s(turn))

    def take(self, now_s: float) -> str | None:
        """The topic that is due for longest, whose load begins now; None if none is due."""
        due = [(turn.due_s, name) for name, turn in self._turns.items() if turn.began_s is None]
        if not due or min(due)[0] > now_s:
            return None
        name = min(due)[1]
        self._turns[name].began_s = now_s
        return name

    def end(self, name: str, now_s: float, *, failed: bool = False, has_more: bool = False) -> None:
        """A load has ended; of a topic that is gone, too.

        Args:
            name: of the topic.
            now_s: see there.
            failed: whether it brought an error.
            has_more: whether there was more to load than a load reads.
        """
        turn = self._turns.get(name)
        if turn is None or turn.began_s is None:
            return
        if failed:
            turn.failures += 1
            factor = 2 ** min(turn.failures - 1, _DOUBLINGS_MAX)
            turn.due_s = now_s + min(_pause_s(turn) * factor, FAILURE_PAUSE_S_MAX)
        else:
            turn.failures = 0
            turn.due_s = now_s if has_more else max(now_s, turn.began_s + _pause_s(turn))
        turn.began_s = None

    def wait_s(self, now_s: float) -> float | None:
        """How long nothing becomes due; None if nothing will unless a load ends or topics change."""
        due = [turn.due_s for turn in self._turns.values() if turn.began_s is None]
        return max(min(due) - now_s, 0.0) if due else None

    def longest_s(self, now_s: float) -> float:
        """How long the longest load that is under way has lasted."""
        return max(
            (now_s - turn.began_s for turn in self._turns.values() if turn.began_s is not None), default=0.0
        )


def _pause_s(turn: _Turn) -> float:
    return max(turn.freshness_s / 2, _PAUSE_S_MIN)
