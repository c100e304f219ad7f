"""The network between simulated brokers: delays, breaks, cuts in one direction, messages that come late.

A call is a request and an answer over a connection, as `server/peers.py` makes them: whatever goes wrong, the
caller sees PeerUnavailable, and does not know whether the request arrived.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from mainstem_broker.errors import PeerUnavailable, ProtocolError

if TYPE_CHECKING:
    from tests.cluster.simulated_broker import SimulatedBroker

Answer = TypeVar("Answer")

CLIENT = 0
"""The place where clients are; it is never cut off."""
DELAY_S_MAX = 0.004
LONG_DELAY_S_MAX = 0.4
TIMEOUT_S = 0.6


class Network:
    """Who is up, and what is between them."""

    def __init__(self, source: random.Random, trouble: float) -> None:
        """`trouble` is the share of messages that are delayed, lost or late, 0 to 1."""
        self._random = source
        self._trouble = trouble
        self.brokers: dict[int, SimulatedBroker] = {}
        self.cut: set[tuple[int, int]] = set()
        """Directed: messages from the first to the second do not arrive."""
        self.calm = False
        self._late: set[asyncio.Task[Any]] = set()

    async def call(
        self, origin: int, target: int, handle: Callable[[SimulatedBroker], Awaitable[Answer]]
    ) -> Answer:
        """Have `handle` run at the target, and get its answer back.

        Raises:
            PeerUnavailable: anything went wrong.
        """
        if not self.calm and self._random.random() < self._trouble / 4:
            # The caller gives up, but what it sent still arrives, later than what it sends next.
            late = asyncio.create_task(self._deliver_late(origin, target, handle))
            self._late.add(late)
            late.add_done_callback(self._late.discard)
            await asyncio.sleep(self._random.random() * DELAY_S_MAX)
            raise PeerUnavailable("the connection broke")
        await self._travel(origin, target)
        answer = await self._ask(target, handle)
        await self._travel(target, origin)
        return answer

    async def _deliver_late(
        self, origin: int, target: int, handle: Callable[[SimulatedBroker], Awaitable[Any]]
    ) -> None:
        try:
            await asyncio.sleep(self._random.random() * LONG_DELAY_S_MAX)
            await self._travel(origin, target)
            await self._ask(target, handle)
        except (PeerUnavailable, ProtocolError):
            pass

    async def _ask(self, target: int, handle: Callable[[SimulatedBroker], Awaitable[Answer]]) -> Answer:
        broker = self.brokers.get(target)
        if broker is None:
            raise PeerUnavailable("connection refused")
        task: asyncio.Task[Answer] = broker.spawn(handle(broker))
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            assert caller is not None
            # When all are killed at once, the caller ends as well: its end must not become an answer to it.
            if task.cancelled() and not broker.alive and not caller.cancelling():
                raise PeerUnavailable("the connection was reset") from None
            task.cancel()
            raise

    async def _travel(self, origin: int, target: int) -> None:
        delay_s = self._random.random() * DELAY_S_MAX
        if not self.calm and self._random.random() < self._trouble:
            delay_s = self._random.random() * LONG_DELAY_S_MAX
        await asyncio.sleep(delay_s)
        if (origin, target) in self.cut:
            await asyncio.sleep(TIMEOUT_S)
            raise PeerUnavailable("no answer")
        for place in (origin, target):
            broker = self.brokers.get(place)
            if broker is not None and not broker.running.is_set():
                await broker.running.wait()
