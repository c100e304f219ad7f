"""A coordinator of transactions over a real partition in a folder; replication and markers are played.

`__transaction_state` has one partition, led by broker 1. With `followers`, broker 2 is in sync and takes
nothing by itself: `replicate` lets it have all there is. Markers wait in `markers` until a test has them
written.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from tests.unit.broker.replica.replicas import valid_lease

from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.protocol.topic_partition import TopicPartition
from mainstem_broker.replica.partition import Partition
from mainstem_broker.replica.partition_state import PartitionState
from mainstem_broker.txn.coordinator import TRANSACTIONS_TOPIC, TransactionCoordinator, TransactionSettings
from mainstem_broker.txn.markers import Markers
from mainstem_broker.txn.shard import TransactionShard
from mainstem_broker.txn.transaction import CLIENT_VERSION_2, Producer

NOW_MS = 1_750_000_000_000
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


class LocalTransactions:
    """One coordinator; `restart` is another broker, or this one, that begins from the log."""

    def __init__(self, directory: Path, *, followers: bool = False, expiration_ms: int = 604_800_000) -> None:
        broker = BrokerConfig({"broker.id": "1", "zookeeper.connect": "z"})
        log = PartitionLog.open(
            directory / f"{TRANSACTIONS_TOPIC}-0",
            broker.topic({"cleanup.policy": "compact"}),
            clean_shutdown=True,
            recovery_point=0,
            log_start_offset=0,
            now_ms=NOW_MS,
        )
        self.now_ms = NOW_MS
        self.lease = valid_lease()
        self.partition = Partition(TRANSACTIONS_TOPIC, 0, uuid4(), log, 1, self.lease)
        self.markers = PlayedMarkers()
        self.epoch = 0
        self.last_producer_id = 1000
        self._partition_epoch = 0
        self._replicas: tuple[int, ...] = (1, 2) if followers else (1,)
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

    # --- Leadership ---

    def lead(self) -> None:
        """Have broker 1 elected, after one of which it heard nothing; the ids are loaded after a while."""
        self.epoch += 2
        self._set_state(1)

    def follow(self) -> None:
        """Broker 2 leads from now on."""
        self.epoch += 1
        self._set_state(2)

    def _set_state(self, leader: int) -> None:
        self._partition_epoch += 1
        state = PartitionState(
            leader, self.epoch, self._replicas, 1, self._partition_epoch, incarnations={1: 0, 2: 0}
        )
        self.partition.update_state(state, self._replicas, self.now_ms)
        self.coordinator.shards.follow(0)

    async def load(self) -> None:
        """Lead, and wait until the transactional ids are there."""
        self.lead()
        loading = self.coordinator.shards.loading(0)
        while not loading.done():
            self.replicate()
            await asyncio.sleep(0)
        await loading

    async def restart(self, *, loses_tail: bool = False) -> None:
        """End the coordinator and begin another one; without what was not replicated, if it `loses_tail`."""
        await self.coordinator.shards.stop()
        self.follow()
        if loses_tail:
            self.partition.log.truncate_to(self.partition.high_watermark)
        self.coordinator = self._new()
        await self.load()

    def replicate(self) -> None:
        """Broker 2 has fetched everything."""
        if self._replicas == (1,):
            return
        end = self.partition.log.log_end_offset
        self.partition.read_as_follower(
            2, 0, end, -1, 1, leader_epoch=self.epoch, min_one_batch=False, now_ms=self.now_ms
        )

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


def partitions(*indexes: int) -> Iterable[TopicPartition]:
    return [("t", index) for index in indexes]


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
