"""An event loop without sockets and without waiting: time jumps to the next timer. Deterministic."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(AssertionError):
    """Nothing is left to happen, and the simulation has not ended."""


class _JumpingSelector(selectors.BaseSelector):
    """Watches no file; instead of waiting it moves the clock."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Deadlock("Every task waits for another one.")
        self.now_s += max(timeout, 0)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> Any:
        return None

    def unregister(self, fileobj: Any) -> Any:
        return None

    def get_map(self) -> Mapping[Any, Any]:
        return {}

    def close(self) -> None:
        pass


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs tasks in virtual time."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end; tasks left over are cancelled."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
    finally:
        leftover = asyncio.all_tasks(loop)
        for task in leftover:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*leftover, return_exceptions=True))
        asyncio.set_event_loop(None)
        loop.close()
