"""The partitions of one internal topic that this broker leads, each with its shard.

Belongs here: loading a shard when a leadership begins, closing it when the leadership ends, and periodic
upkeep. Which partition a key belongs to is `key_placement.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import structlog

from mainstem_broker.coordinator.journal import Journal
from mainstem_broker.coordinator.shard import Shard
from mainstem_broker.replica.partition import Partition

logger = structlog.get_logger(__name__)

AnyShard = TypeVar("AnyShard", bound=Shard)


class Shards(Generic[AnyShard]):
    """Shards by partition index. `follow` is called as leadership changes, `stop` once.

    `find_partition` returns the local replica of a partition of the topic, or None if there is none.
    """

    def __init__(
        self,
        topic: str,
        find_partition: Callable[[int], Partition | None],
        make_shard: Callable[[Journal], AnyShard],
        upkeep_interval_ms: int,
    ) -> None:
        self._topic = topic
        self._find_partition = find_partition
        self._make_shard = make_shard
        self._upkeep_interval_ms = upkeep_interval_ms
        self._shards: dict[int, AnyShard] = {}
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._upkeep: asyncio.Task[None] | None = None
        self._is_stopped = False

    def __iter__(self) -> Iterator[AnyShard]:
        """All shards, loaded or not; leadership may change during the iteration."""
        return iter(tuple(self._shards.values()))

    def find(self, index: int) -> AnyShard | None:
        return self._shards.get(index)

    def loading(self, index: int) -> asyncio.Task[None]:
        """The task that loads a shard, also after it has ended."""
        return self._loading[index]

    def follow(self, index: int) -> None:
        """Compare a partition's shard with its leadership: begin to load one, or close it."""
        partition = self._find_partition(index)
        shard = self._shards.get(index)
        if shard is not None:
            if shard.journal.partition is partition and shard.journal.is_current:
                return
            # Also if this broker leads again, in a later epoch: another leader may have written in between.
            self._close(index)
        if self._is_stopped or partition is None or not partition.is_leader:
            return
        shard = self._shards[index] = self._make_shard(Journal(partition))
        self._loading[index] = asyncio.create_task(shard.load(), name=f"load {self._topic}-{index}")
        if self._upkeep is None:
            self._upkeep = asyncio.create_task(self._run_upkeep(), name=f"upkeep of {self._topic}")

    def follow_all(self) -> None:
        """As `follow`, for all partitions that have a shard."""
        for index in tuple(self._shards):
            self.follow(index)

    async def stop(self) -> None:
        """Close all shards; no leadership that begins later is followed."""
        self._is_stopped = True
        tasks = [*self._loading.values(), *(() if self._upkeep is None else (self._upkeep,))]
        for index in tuple(self._shards):
            self._close(index)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _close(self, index: int) -> None:
        self._loading.pop(index).cancel()
        self._shards.pop(index).close()

    async def _run_upkeep(self) -> None:
        while True:
            await asyncio.sleep(self._upkeep_interval_ms / 1000)
            for shard in self:
                try:
                    if shard.is_loaded:
                        await shard.upkeep()
                except Exception:
                    logger.exception("upkeep failed", partition=repr(shard.journal.partition))
                await asyncio.sleep(0)  # let requests through between two partitions
