"""The replicas whose logs are being created in threads.

Requests for one of them can wait for it instead of being refused. Nothing else about creating logs belongs
here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from mainstem_broker.protocol.topic_partition import TopicPartition


class ReplicasBeingOpened:
    """A set of partitions. Called on the event loop only."""

    def __init__(self) -> None:
        self._partitions: set[TopicPartition] = set()
        self._changed = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._partitions)

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._partitions

    def add(self, partition: TopicPartition) -> None:
        self._partitions.add(partition)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """They are open, or opening them has failed."""
        self._partitions.difference_update(partitions)
        self._changed.set()  # wakes all who wait now
        self._changed.clear()

    async def wait(self, partitions: Iterable[TopicPartition], timeout_s: float) -> None:
        """Return when none of `partitions` is in the set any more, or when the time is over."""
        awaited = self._partitions.intersection(partitions)
        try:
            async with asyncio.timeout(timeout_s):
                while awaited := awaited & self._partitions:
                    await self._changed.wait()
        except TimeoutError:
            pass
