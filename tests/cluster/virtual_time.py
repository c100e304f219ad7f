"""An event loop without sockets and without waiting: time jumps to the next timer. Deterministic.

No more than tasks, futures and timers need: a simulated history is mostly these, and on asyncio's own loop
with another clock it takes a sixth longer.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from heapq import heappop, heappush
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Deadlock(AssertionError):
    """Nothing is left to happen, and the simulation has not ended."""


class Livelock(AssertionError):
    """Tasks wake each other again and again, and time stands still."""


ROUNDS_MAX = 20_000
"""Of the loop without any time passing; a history has some hundred at most."""


class Process(dict[asyncio.Task[Any], None]):
    """The tasks of one simulated process; none begins, and no timer goes off, once it has been killed."""

    is_killed = False

    def kill(self) -> None:
        self.is_killed = True
        for task in list(self):
            task.cancel()
        self.clear()


OWNER: contextvars.ContextVar[Process | None] = contextvars.ContextVar("OWNER", default=None)
"""The process that is running: a task that is made here becomes one of its own."""

Context = contextvars.Context


class _Call:
    """What asyncio calls a handle: a callback to be called soon, or at its time."""

    __slots__ = ("_when_s", "arguments", "callback", "context")

    def __init__(
        self,
        callback: Callable[..., object],
        arguments: tuple[Any, ...],
        context: Context | None,
        when_s: float,
    ) -> None:
        self.callback: Callable[..., object] | None = callback
        self.arguments = arguments
        self.context = contextvars.copy_context() if context is None else context
        self._when_s = when_s

    def cancel(self) -> None:
        self.callback = None
        self.arguments = ()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self._when_s


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs tasks in virtual time. Timers of one moment go off in the order in which they were set.

    An error in a callback that is no task's ends the whole run.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._soon: deque[_Call] = deque()
        self._timers: list[tuple[float, int, _Call]] = []
        self._timers_set = 0
        self.thread_delay_s: Callable[[], float] = lambda: 0.0
        """How long work for a thread takes."""

    def close(self) -> None:
        self._soon.clear()
        self._timers.clear()
        super().close()

    def time(self) -> float:
        return self._now_s

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: object = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=None if name is None else str(name), context=context)
        tasks = OWNER.get() if context is None else context.get(OWNER)
        if tasks is not None and tasks.is_killed:
            task.cancel()
        elif tasks is not None:
            tasks[task] = None
            task.add_done_callback(lambda done: tasks.pop(done, None))
        return task

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> Any:
        call = _Call(callback, args, context, self._now_s)
        self._soon.append(call)
        return call

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> Any:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> Any:
        call = _Call(callback, args, context, when)
        self._timers_set += 1
        heappush(self._timers, (when, self._timers_set, call))
        return call

    def run_in_executor(self, executor: object, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Work for a thread is done at once, so that equal seeds make equal histories, and heard of later."""
        done: asyncio.Future[T] = self.create_future()

        def tell(give: Callable[[Any], object], what: object) -> None:
            if not done.done():
                give(what)

        delay_s = self.thread_delay_s()
        try:
            self.call_later(delay_s, tell, done.set_result, func(*args))
        except Exception as error:  # noqa: BLE001  # the future's, as of a thread
            self.call_later(delay_s, tell, done.set_exception, error)
        return done

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Receives errors that nobody awaits: of tasks that a crash left behind, which do not count."""

    def run_until_complete(self, future: Any) -> Any:
        main = asyncio.ensure_future(future, loop=self)
        asyncio._set_running_loop(self)
        try:
            self._run_until_done(main)
        finally:
            asyncio._set_running_loop(None)
        return main.result()

    def _run_until_done(self, main: asyncio.Future[Any]) -> None:
        soon, timers = self._soon, self._timers
        rounds = 0
        while not main.done():
            if not soon:
                while timers and timers[0][2].cancelled():
                    heappop(timers)
                if not timers:
                    raise Deadlock("Every task waits for another one.")
                if timers[0][0] > self._now_s:
                    self._now_s = timers[0][0]
                    rounds = 0
            while timers and timers[0][0] <= self._now_s:
                timer = heappop(timers)[2]
                owner = timer.context.get(OWNER)
                if owner is None or not owner.is_killed:
                    soon.append(timer)
            rounds += 1
            if rounds > ROUNDS_MAX:
                raise Livelock(f"Time stands still at {self._now_s:.3f} s.")
            for _ in range(len(soon)):
                call = soon.popleft()
                if call.callback is not None:
                    call.context.run(call.callback, *call.arguments)


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end; tasks left over are cancelled."""
    loop = VirtualLoop()
    try:
        result: T = loop.run_until_complete(main)
        return result
    finally:
        leftover = asyncio.all_tasks(loop)
        for task in leftover:
            task.cancel()
        try:
            # What happens meanwhile is no part of the story, and must not hide how it ended.
            with suppress(Exception):
                loop.run_until_complete(_ended(leftover))
        finally:
            loop.close()


async def _ended(tasks: Iterable[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
