"""What a handler is given: the broker it works for, and the request's surroundings."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from mainstem_broker.cluster.member import ClusterMember
from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.config import BrokerConfig
from mainstem_broker.errors import NotLeaderOrFollower, StorageError, UnknownTopicOrPartition
from mainstem_broker.protocol.codec import Body, Entity
from mainstem_broker.replica.manager import ReplicaManager
from mainstem_broker.replica.partition import Partition

CATCH_UP_TIMEOUT_MS: Final = 1_000
"""The feed of changes takes milliseconds; only a ZooKeeper that does not answer takes this long."""


@dataclass(slots=True)
class BrokerContext:
    """The running broker, as far as APIs need it. `config` is replaced when dynamic settings change."""

    broker_id: int
    config: BrokerConfig
    member: ClusterMember
    replicas: ReplicaManager

    @property
    def view(self) -> ClusterView:
        return self.member.view

    def find_replica(self, topic: str, partition: int) -> Partition:
        """The local replica of a partition.

        Raises:
            StorageError: its disk failed.
            NotLeaderOrFollower: the cluster has the partition, but this broker does not, or not yet.
            UnknownTopicOrPartition: the cluster does not have it.
        """
        found = self.replicas.find(topic, partition)
        if found is not None:
            return found
        if (topic, partition) in self.replicas.offline:
            raise StorageError(f"{topic}-{partition} is offline here: its data directory failed.")
        known = self.view.topics.get(topic)
        if known is not None and partition in known.assignment.replicas:
            raise NotLeaderOrFollower(f"{topic}-{partition} is not on this broker.")
        raise UnknownTopicOrPartition(f"There is no {topic}-{partition}.")

    def leads_all(self, partitions: Iterable[tuple[str, int]]) -> bool:
        """Whether this broker leads all of them, as far as it knows."""
        find = self.replicas.find
        for topic, index in partitions:
            partition = find(topic, index)
            if partition is None or not partition.is_leader:
                return False
        return True

    async def catch_up(self) -> None:
        """Hear what other brokers may know already, before a client is told that it asks the wrong one."""
        await self.member.catch_up(CATCH_UP_TIMEOUT_MS)

    def now_ms(self) -> int:
        return int(time.time() * 1000)


class RequestContext(NamedTuple):
    """`version` is the one the client spoke; the entity is of the API's model version."""

    version: int
    client_id: str | None
    peer: str
    listener: str


Handler = Callable[[BrokerContext, Entity, RequestContext], Body | Awaitable[Body | None] | None]
"""Answers a body, or None for no response. Async only where something must be waited for."""


def milliseconds(duration: Any) -> int:
    """kio's durations are timedeltas."""
    return int(duration.total_seconds() * 1000)
