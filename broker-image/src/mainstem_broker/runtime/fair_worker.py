"""Threads for work that would hold the event loop, in which clients take turns."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class _Work(NamedTuple):
    run: Callable[[], Any]
    result: asyncio.Future[Any]


class FairWorker:
    """Runs as many pieces of work at a time as it has threads. Called on the event loop only.

    Their number bounds the memory that all of them take. Addresses take turns, and within an address its
    clients do. So a client that brings much work waits for its own only, and so do the many connections that
    one machine may open.

    How much waits is bounded by the callers: a connection is not read from while a batch of its waits, and
    has at most four lookups under way.
    """

    def __init__(self, name: str, *, threads: int = 1) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._idle = threads
        # By address, then by client; the turn of the first one is next.
        self._queues: dict[str, dict[str, deque[_Work]]] = {}

    def run(self, client: str, work: Callable[[], T]) -> asyncio.Future[T]:
        """The result of `work`, or its error. Cancelling it before its turn takes it out of the queue.

        `client` is the name of a connection, `address:port`, or any other name, which is then an address.
        """
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        address = client.rpartition(":")[0] or client
        self._queues.setdefault(address, {}).setdefault(client, deque()).append(_Work(work, result))
        if self._idle:
            self._run_next()
        return result

    def _run_next(self) -> None:
        while self._queues:
            address, clients = next(iter(self._queues.items()))
            client, queue = next(iter(clients.items()))
            work = queue.popleft()
            del self._queues[address], clients[client]
            if queue:
                clients[client] = queue  # behind the others of its address
            if clients:
                self._queues[address] = clients  # behind the others
            if not work.result.done():
                self._idle -= 1
                running = asyncio.get_running_loop().run_in_executor(self._executor, work.run)
                running.add_done_callback(lambda done, work=work: self._finish(work, done))  # type: ignore[misc]
                return

    def _finish(self, work: _Work, done: asyncio.Future[Any]) -> None:
        self._idle += 1
        if not work.result.done():
            if done.cancelled():
                work.result.cancel()
            elif (error := done.exception()) is not None:
                work.result.set_exception(error)
            else:
                work.result.set_result(done.result())
        elif not done.cancelled():
            done.exception()  # nothing waits for it any more
        self._run_next()

    def close(self, *, wait: bool = False) -> None:
        """Drop the work that has not begun. What runs is not waited for, unless `wait` says so."""
        for clients in self._queues.values():
            for queue in clients.values():
                for work in queue:
                    work.result.cancel()
        self._queues.clear()
        self._executor.shutdown(wait=wait, cancel_futures=True)
