"""Waiting: for what has to happen, or for time itself. Only here do tests outside of virtual time sleep.

`wait_until` waits for an event, `settle` until nothing is due in this event loop, and `let_pass` for the
clock. That needs a reason: a time that is long enough on one machine is too short on a busy one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

Found = TypeVar("Found")

PATIENCE_SECONDS: Final = 60.0
"""How long tests wait for what has to happen. It ends tests that hang, and promises nothing: what has to be
fast has a bound of its own. Four tests side by side, with Spark and Java, make two cores late by seconds."""
_TURNS: Final = 20


def wait_until(
    condition: Callable[[], Found],
    what: str,
    seconds: float = PATIENCE_SECONDS,
    step_seconds: float = 0.02,
    seen: Callable[[], object] | None = None,
) -> Found:
    """Ask `condition` until its answer is true, and return that answer.

    Args:
        seen: tells how far it is; the time begins anew whenever that changes. Without it, the answer tells.

    Raises:
        AssertionError: nothing has changed for `seconds`; the message is `what`, and what was seen last.
    """
    wait = _Wait(condition, what, seconds, seen)
    while not (result := wait.ask()):
        time.sleep(step_seconds)
    return result


async def wait_until_async(
    condition: Callable[[], Found],
    what: str = "it",
    seconds: float = PATIENCE_SECONDS,
    step_seconds: float = 0.001,
    seen: Callable[[], object] | None = None,
) -> Found:
    """As `wait_until`, for what happens in this event loop."""
    wait = _Wait(condition, what, seconds, seen)
    while not (result := wait.ask()):  # noqa: ASYNC110  # nothing tells
        await asyncio.sleep(step_seconds)
    return result


async def settle() -> None:
    """Let everything run that is due in this event loop, and what becomes due by that; timers do not."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def let_pass(seconds: float, reason: str) -> None:
    """Stand still for a time that is itself what the test is about, as a pause or an interval.

    Args:
        reason: why no event can be awaited instead.
    """
    del reason  # for readers
    time.sleep(seconds)


async def let_pass_async(seconds: float, reason: str) -> None:
    """As `let_pass`, while the event loop runs."""
    del reason
    await asyncio.sleep(seconds)


class _Wait(Generic[Found]):
    def __init__(
        self, condition: Callable[[], Found], what: str, seconds: float, seen: Callable[[], object] | None
    ) -> None:
        self._condition = condition
        self._what = what
        self._seconds = seconds
        self._look = seen
        self._seen: object = None
        self._deadline_s = time.monotonic() + seconds

    def ask(self) -> Found:
        """The answer, true or false."""
        answer = self._condition()
        if answer:
            return answer
        seen = self._look() if self._look is not None else answer
        if seen != self._seen:
            self._seen = seen
            self._deadline_s = time.monotonic() + self._seconds
        elif time.monotonic() > self._deadline_s:
            last = "" if seen is None or seen is False else f" Last seen: {seen!r}"
            raise AssertionError(f"Within {self._seconds} s it never came true that {self._what}.{last}")
        return answer
