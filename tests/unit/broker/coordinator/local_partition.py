"""The partition of an internal topic that a coordinator keeps, in a folder; only the replication is played.

Broker 1 leads it. With `followers`, broker 2 is in sync and takes nothing by itself: `replicate` lets it have
all there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.unit.broker.replica.replicas import valid_lease

from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.coordinator.shards import Shards
from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.replica.partition import Partition
from mainstem_broker.replica.partition_state import PartitionState

NOW_MS = 1_750_000_000_000


class LocalPartition:
    """Leadership of the partition; a subclass has the coordinator, and says how another one begins."""

    def __init__(self, directory: Path, topic: str, *, followers: bool, config: Mapping[str, str]) -> None:
        broker = BrokerConfig({"broker.id": "1", "zookeeper.connect": "z"})
        log = PartitionLog.open(
            directory / f"{topic}-0",
            broker.topic({"cleanup.policy": "compact", **config}),
            clean_shutdown=True,
            recovery_point=0,
            log_start_offset=0,
            now_ms=NOW_MS,
        )
        self.now_ms = NOW_MS
        self.lease = valid_lease()
        self.partition = Partition(topic, 0, uuid4(), log, 1, self.lease)
        self._replicas: tuple[int, ...] = (1, 2) if followers else (1,)
        self.isr: tuple[int, ...] = self._replicas
        self.epoch = 0
        self.partition_epoch = 0

    @property
    def shards(self) -> Shards[Any]:
        """Those of the coordinator."""
        raise NotImplementedError

    def lead(self) -> None:
        """Have broker 1 elected, after one of which it heard nothing; the state is loaded after a while."""
        self.epoch += 2
        self._set_state(1)

    def follow(self) -> None:
        """Broker 2 leads from now on."""
        self.epoch += 1
        self._set_state(2)

    def _set_state(self, leader: int) -> None:
        self.partition_epoch += 1
        state = PartitionState(
            leader, self.epoch, self.isr, 1, self.partition_epoch, incarnations={1: 0, 2: 0}
        )
        self.partition.update_state(state, self._replicas, self.now_ms)
        self.shards.follow(0)

    async def load(self) -> None:
        """Lead, and wait until the state is there."""
        self.lead()
        loading = self.shards.loading(0)
        while self.isr != (1,) and not loading.done():
            self.replicate()
            await asyncio.sleep(0)
        await loading

    def replicate(self) -> None:
        """Broker 2, if there is one, has fetched everything."""
        if self._replicas == (1,):
            return
        end = self.partition.log.log_end_offset
        self.partition.read_as_follower(
            2, 0, end, -1, 1, leader_epoch=self.epoch, min_one_batch=False, now_ms=self.now_ms
        )
