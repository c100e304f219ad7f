"""How late the event loop runs what is due: the time that every client waits beside its own request.

A callback that is due every `TICK_INTERVAL_S` notes how late it came. A thread looks meanwhile whether the
loop stands still, and notes what it is executing then, because nothing on the loop can say so afterwards.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from types import FrameType
from typing import Final

import structlog

from mainstem_broker.server.request_times import RequestTimes

logger = structlog.get_logger(__name__)

TICK_INTERVAL_S: Final = 0.05
STALL_S: Final = 1.0
"""Longer than this is logged: a client that waits as long notices."""
LOOK_INTERVAL_S: Final = STALL_S / 4
FRAMES_NAMED: Final = 3


class LoopLag:
    """Measures the loop that `start` is called on, until `stop`. `times` is the histogram."""

    def __init__(self) -> None:
        self.times = RequestTimes()
        self._timer: asyncio.TimerHandle | None = None
        self._ended = threading.Event()
        self._ticked_s = 0.0
        self._executing: str | None = None
        """What the loop was executing when it had not ticked for most of `STALL_S`; written by the thread."""

    def start(self) -> None:
        """Begin to measure, in this thread's running loop."""
        self._loop = asyncio.get_running_loop()
        self._ticked_s = time.monotonic()
        self._wait_for_tick()
        threading.Thread(
            target=self._watch, args=(threading.get_ident(),), name="loop lag", daemon=True
        ).start()

    def stop(self) -> None:
        """End it; safe to call if it was never started."""
        self._ended.set()
        if self._timer is not None:
            self._timer.cancel()

    def _wait_for_tick(self) -> None:
        self._due_s = time.monotonic() + TICK_INTERVAL_S
        self._timer = self._loop.call_later(TICK_INTERVAL_S, self._tick)

    def _tick(self) -> None:
        self._ticked_s = time.monotonic()
        # The loop counts whole milliseconds, so it may come a little early.
        lag_s = max(self._ticked_s - self._due_s, 0.0)
        executing, self._executing = self._executing, None
        self.times.observe(lag_s)
        if lag_s > STALL_S:
            logger.warning(
                "the event loop stood still: all clients waited",
                lag_s=round(lag_s, 2),
                executing=executing or "unknown: the process or the machine may have been suspended",
            )
        self._wait_for_tick()

    def _watch(self, loop_thread: int) -> None:
        """In a thread of its own: note what the loop's thread executes when no tick has come for too long."""
        while not self._ended.wait(LOOK_INTERVAL_S):
            if self._executing is None and time.monotonic() - self._ticked_s > STALL_S - LOOK_INTERVAL_S:
                frame = sys._current_frames().get(loop_thread)  # noqa: SLF001  # documented
                if frame is not None:
                    self._executing = _description(frame)


def _description(frame: FrameType | None) -> str:
    """The innermost frames, the called one first."""
    names: list[str] = []
    while frame is not None and len(names) < FRAMES_NAMED:
        code = frame.f_code
        names.append(f"{code.co_qualname} ({code.co_filename.rpartition('/')[2]}:{frame.f_lineno})")
        frame = frame.f_back
    return " < ".join(names)
