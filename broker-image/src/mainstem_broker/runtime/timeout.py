"""A timeout that hardly ever ends: one timer for many waits, one after another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

_CLOCK_GRAIN_S: Final = 0.002
"""uvloop counts milliseconds, so a timer may find its time not quite reached."""


class Timeout:
    """Calls `expire` once the time of the wait under way is over.

    A wait costs one reading of the clock, not a timer that is set and cancelled, as each fetch of a follower
    would. The timer of a wait that has ended goes on, and is moved when it comes up.
    """

    __slots__ = ("_due_s", "_expire", "_loop", "_timer", "_until_s")

    def __init__(self, expire: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._expire = expire
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0  # when it comes up
        self._until_s: float | None = None

    def begin(self, duration_s: float) -> None:
        """A wait begins, in place of the one before."""
        self._until_s = self._loop.time() + duration_s
        if self._timer is None or self._due_s > self._until_s + _CLOCK_GRAIN_S:
            if self._timer is not None:
                self._timer.cancel()
            self._set_timer()

    def end(self) -> None:
        """The wait is over: what it waited for has come."""
        self._until_s = None

    def close(self) -> None:
        """There will be no more waits."""
        self._until_s = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_time(self) -> None:
        self._timer = None
        if self._until_s is None:
            return
        if self._until_s - self._loop.time() < _CLOCK_GRAIN_S:
            self._until_s = None
            self._expire()
        else:
            self._set_timer()

    def _set_timer(self) -> None:
        assert self._until_s is not None
        self._due_s = self._until_s
        self._timer = self._loop.call_at(self._until_s, self._on_time)
