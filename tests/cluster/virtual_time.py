"""An event loop without sockets and without waiting: time jumps to the next timer. Deterministic."""

from __future__ import annotations

import asyncio
import contextvars
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(AssertionError):
    """Nothing is left to happen, and the simulation has not ended."""


class Livelock(AssertionError):
    """Tasks wake each other again and again, and time stands still."""


ROUNDS_MAX = 20_000
"""Of the loop without any time passing; a history has some hundred at most."""


class _JumpingSelector(selectors.BaseSelector):
    """Watches no file; instead of waiting it moves the clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._rounds = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Deadlock("Every task waits for another one.")
        if timeout > 0:
            self.now_s += timeout
            self._rounds = 0
        self._rounds += 1
        if self._rounds > ROUNDS_MAX:
            raise Livelock(f"Time stands still at {self.now_s:.3f} s.")
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

        self.set_task_factory(_owned_task)

    def time(self) -> float:
        return self._jumping.now_s


OWNER: contextvars.ContextVar[dict[asyncio.Task[Any], None] | None] = contextvars.ContextVar(
    "OWNER", default=None
)
"""The tasks of the process that is running: a task that is made here becomes one of them."""


def _owned_task(
    loop: asyncio.AbstractEventLoop, work: Any, context: contextvars.Context | None = None
) -> asyncio.Task[Any]:
    task = asyncio.Task(work, loop=loop, context=context)
    tasks = OWNER.get() if context is None else context.get(OWNER)
    if tasks is not None:
        tasks[task] = None
        task.add_done_callback(lambda done: tasks.pop(done, None))
    return task


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
