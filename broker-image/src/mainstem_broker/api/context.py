"""What a handler is given: the broker it works for, and the request's surroundings."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from mainstem_broker.cluster.member import ClusterMember
from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.config import BrokerConfig
from mainstem_broker.errors import NotLeaderOrFollower, StorageError, UnknownTopicOrPartition
from mainstem_broker.group.coordinator import OFFSETS_TOPIC, CoordinatorSettings, GroupCoordinator
from mainstem_broker.group.membership import GroupPolicy
from mainstem_broker.protocol.codec import Body, Entity
from mainstem_broker.replica.manager import ReplicaManager
from mainstem_broker.replica.partition import Partition

if TYPE_CHECKING:
    from mainstem_broker.api.follower_fetch import FollowerSession

CATCH_UP_TIMEOUT_MS: Final = 1_000
"""The feed of changes takes milliseconds; only a ZooKeeper that does not answer takes this long."""


@dataclass(slots=True)
class BrokerContext:
    """The running broker, as far as APIs need it. `config` is replaced when dynamic settings change."""

    broker_id: int
    config: BrokerConfig
    member: ClusterMember
    replicas: ReplicaManager
    groups: GroupCoordinator = field(init=False)
    follower_sessions: dict[int, FollowerSession] = field(default_factory=dict)
    """By the follower's id."""

    def __post_init__(self) -> None:
        self.groups = GroupCoordinator(
            _coordinator_settings(self.config),
            _KnownTopics(self.member),
            lambda index: self.replicas.find(OFFSETS_TOPIC, index),
            self.now_ms,
        )

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


@dataclass(frozen=True, slots=True)
class _KnownTopics:
    """The cluster's topics as groups want to know them."""

    member: ClusterMember

    def topic_id(self, name: str) -> UUID | None:
        topic = self.member.view.topics.get(name)
        return None if topic is None else topic.topic_id

    def partition_count(self, name: str) -> int:
        topic = self.member.view.topics.get(name)
        return 0 if topic is None else len(topic.assignment.replicas)


def _coordinator_settings(config: BrokerConfig) -> CoordinatorSettings:
    return CoordinatorSettings(
        GroupPolicy(config.integer("group.initial.rebalance.delay.ms"), config.integer("group.max.size")),
        session_timeout_ms_min=config.integer("group.min.session.timeout.ms"),
        session_timeout_ms_max=config.integer("group.max.session.timeout.ms"),
        offsets_retention_ms=config.integer("offsets.retention.minutes") * 60_000,
        retention_check_interval_ms=config.integer("offsets.retention.check.interval.ms"),
        commit_timeout_ms=config.integer("offsets.commit.timeout.ms"),
        metadata_size_max=config.integer("offset.metadata.max.bytes"),
    )


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
