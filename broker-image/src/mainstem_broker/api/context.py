"""What a handler is given: the broker it works for, and the request's surroundings."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from mainstem_broker.cluster.member import ClusterMember
from mainstem_broker.cluster.view import ClusterView, Topic
from mainstem_broker.cluster.znodes import group_path
from mainstem_broker.config import BrokerConfig, GroupConfig
from mainstem_broker.errors import (
    InvalidSetting,
    NotLeaderOrFollower,
    StorageError,
    UnknownTopicOrPartition,
)
from mainstem_broker.group.consumer_group import ConsumerPolicy
from mainstem_broker.group.coordinator import OFFSETS_TOPIC, CoordinatorSettings, GroupCoordinator
from mainstem_broker.group.membership import GroupPolicy
from mainstem_broker.group.migration import MigrationPolicy
from mainstem_broker.group.shard import GroupPolicies
from mainstem_broker.protocol.wire import Body, Entity
from mainstem_broker.quota.client_quotas import ClientQuotas
from mainstem_broker.replica.manager import ReplicaManager
from mainstem_broker.replica.partition import Partition

if TYPE_CHECKING:
    from mainstem_broker.api.follower_fetch import FollowerSession

INTERNAL_TOPICS: Final = frozenset((OFFSETS_TOPIC, "__transaction_state"))
"""What brokers keep for themselves: clients may not produce there, and no pattern of theirs matches them."""
ANONYMOUS: Final = "ANONYMOUS"
"""Kafka's name for those who did not authenticate."""
CATCH_UP_TIMEOUT_MS: Final = 1_000
"""The feed of changes takes milliseconds; a ZooKeeper that does not answer, or a controller in the middle of
thousands of elections, takes this long, and then the answer is what this broker knows."""


@dataclass(slots=True)
class BrokerContext:
    """The running broker, as far as APIs need it. `config` is replaced when dynamic settings change."""

    broker_id: int
    config: BrokerConfig
    member: ClusterMember
    replicas: ReplicaManager
    groups: GroupCoordinator = field(init=False)
    quotas: ClientQuotas = field(init=False)
    follower_sessions: dict[int, FollowerSession] = field(default_factory=dict)
    """By the follower's id."""

    def __post_init__(self) -> None:
        self.quotas = ClientQuotas(
            self.config.integer("quota.window.num"), 1000 * self.config.integer("quota.window.size.seconds")
        )
        self.groups = GroupCoordinator(
            _coordinator_settings(
                self.config, lambda group_id: self.group_config(group_id).session_timeout_ms
            ),
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

    def require_topic(self, name: str) -> Topic:
        """The topic of that name.

        Raises:
            UnknownTopicOrPartition: there is none.
        """
        topic = self.view.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"There is no topic '{name}'.")
        return topic

    def group_config(self, group_id: str) -> GroupConfig:
        """The settings of a group: its own over the broker's."""
        overrides = self.view.entity_configs.get(group_path(group_id), {})
        try:
            return self.config.group(overrides)
        except InvalidSetting:
            return self.config.group({})  # written to ZooKeeper by hand: wrong settings do not count

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

    @property
    def version(self) -> int:
        return self.member.view.topics_version

    def topic_id(self, name: str) -> UUID | None:
        topic = self.member.view.topics.get(name)
        return None if topic is None else topic.topic_id

    def name(self, topic_id: UUID) -> str | None:
        return self.member.view.topic_names.get(topic_id)

    def names(self) -> Iterable[str]:
        return (name for name in self.member.view.topics if name not in INTERNAL_TOPICS)

    def partition_count(self, name: str) -> int:
        topic = self.member.view.topics.get(name)
        return 0 if topic is None else len(topic.assignment.replicas)


def _coordinator_settings(
    config: BrokerConfig, session_timeout_ms: Callable[[str], int]
) -> CoordinatorSettings:
    assignors = tuple(name for name in config.string("group.consumer.assignors").split(",") if name)
    policies = GroupPolicies(
        GroupPolicy(config.integer("group.initial.rebalance.delay.ms"), config.integer("group.max.size")),
        ConsumerPolicy(
            session_timeout_ms,
            config.integer("group.consumer.max.size"),
            assignors,
        ),
        MigrationPolicy(config.string("group.consumer.migration.policy").lower()),
    )
    return CoordinatorSettings(
        policies,
        has_consumer_protocol="consumer" in config.string("group.coordinator.rebalance.protocols").split(","),
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
    user: str = ANONYMOUS


Handler = Callable[[BrokerContext, Entity, RequestContext], Body | Awaitable[Body | None] | None]
"""Answers a body, or None for no response. Async only where something must be waited for."""


def milliseconds(duration: Any) -> int:
    """kio's durations are timedeltas."""
    return int(duration.total_seconds() * 1000)
