"""A coordinator of transactions over a real partition (see `LocalPartition`); markers are played, too.

`__transaction_state` has that one partition. Markers wait in `markers` until a test has them
written.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tests.unit.broker.coordinator.local_partition import LocalPartition

from mainstem_broker.coordinator.shards import Shards
from mainstem_broker.protocol.topic_partition import TopicPartition
from mainstem_broker.txn.coordinator import TRANSACTIONS_TOPIC, TransactionCoordinator, TransactionSettings
from mainstem_broker.txn.markers import Markers
from mainstem_broker.txn.shard import TransactionShard
from mainstem_broker.txn.transaction import CLIENT_VERSION_2, Producer

ID = "id"
Answer = TypeVar("Answer")


@dataclass(eq=False)
class WaitingMarkers:
    """Markers that the coordinator wants written."""

    markers: Markers
    done: Callable[[], None]
    is_stopped: bool = False


@dataclass
class PlayedMarkers:
    """Implements `MarkerWriter`."""

    waiting: list[WaitingMarkers] = field(default_factory=list)

    def write(self, markers: Markers, done: Callable[[], None]) -> Callable[[], None]:
        waiting = WaitingMarkers(markers, done)
        self.waiting.append(waiting)

        def stop() -> None:
            waiting.is_stopped = True
            if waiting in self.waiting:
                self.waiting.remove(waiting)

        return stop

    def write_all(self) -> list[Markers]:
        """Have all markers written that wait now."""
        written = list(self.waiting)
        self.waiting.clear()
        for waiting in written:
            waiting.done()
        return [waiting.markers for waiting in written]


class LocalTransactions(LocalPartition):
    """One coordinator; `restart` is another broker, or this one, that begins from the log."""

    def __init__(self, directory: Path, *, followers: bool = False, expiration_ms: int = 604_800_000) -> None:
        super().__init__(directory, TRANSACTIONS_TOPIC, followers=followers, config={})
        self.markers = PlayedMarkers()
        self.last_producer_id = 1000
        self._settings = TransactionSettings(900_000, expiration_ms, 3_600_000, 1_000)
        self.coordinator = self._new()

    def _new(self) -> TransactionCoordinator:
        return TransactionCoordinator(
            self._settings,
            lambda: 1,
            lambda _: self.partition,
            self._take_producer_id,
            self.markers,
            lambda: self.now_ms,
        )

    async def _take_producer_id(self) -> int:
        await asyncio.sleep(0)
        self.last_producer_id += 1
        return self.last_producer_id

    @property
    def shards(self) -> Shards[TransactionShard]:
        return self.coordinator.shards

    async def restart(self) -> None:
        """End the coordinator and begin another one."""
        await self.coordinator.shards.stop()
        self.follow()
        self.coordinator = self._new()
        await self.load()

    @property
    def shard(self) -> TransactionShard:
        shard = self.coordinator.shards.find(0)
        assert shard is not None
        return shard

    # --- What clients ask ---

    async def init(self, expected: Producer | None = None, timeout_ms: int = 60_000) -> Producer:
        return await self.coordinator.init_producer(ID, timeout_ms, expected)

    async def add(
        self, producer: Producer, *partitions: TopicPartition, version: int = CLIENT_VERSION_2
    ) -> None:
        await self.coordinator.add_partitions(ID, producer, frozenset(partitions), version)

    async def end(
        self, producer: Producer, *, committed: bool = True, version: int = CLIENT_VERSION_2
    ) -> Producer:
        return await self.coordinator.end(ID, producer, committed=committed, client_version=version)

    async def replicated(self, request: Awaitable[Answer]) -> Answer:
        """The answer to a request, with broker 2 fetching meanwhile."""
        task = asyncio.ensure_future(request)
        while not task.done():
            self.replicate()
            await asyncio.sleep(0)
        return task.result()


@asynccontextmanager
async def loaded(
    directory: Path, *, followers: bool = False, expiration_ms: int = 604_800_000
) -> AsyncIterator[LocalTransactions]:
    """A coordinator that has loaded an empty partition."""
    local = LocalTransactions(directory, followers=followers, expiration_ms=expiration_ms)
    await local.load()
    try:
        yield local
    finally:
        await local.coordinator.shards.stop()
