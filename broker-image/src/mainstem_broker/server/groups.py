"""Puts the group coordinator together: its settings, and what it needs to know of topics and replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from uuid import UUID

from mainstem_broker.api.context import INTERNAL_TOPICS
from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.group.bridge.migration import MigrationPolicy
from mainstem_broker.group.classic.rebalancing import ClassicPolicy
from mainstem_broker.group.consumer.group import ConsumerPolicy
from mainstem_broker.group.coordinator import OFFSETS_TOPIC, CoordinatorSettings, GroupCoordinator
from mainstem_broker.group.shard import GroupPolicies
from mainstem_broker.replica.partition import Partition


def group_coordinator(
    config: BrokerConfig,
    view: ClusterView,
    find_replica: Callable[[str, int], Partition | None],
    session_timeout_ms: Callable[[str], int],
    now_ms: Callable[[], int],
) -> GroupCoordinator:
    """The coordinator of all groups whose partition of `__consumer_offsets` is led here.

    `session_timeout_ms` gives that of a group of KIP-848, which has settings of its own.
    """
    return GroupCoordinator(
        _settings(config, session_timeout_ms),
        _TopicsOfView(view),
        lambda index: find_replica(OFFSETS_TOPIC, index),
        now_ms,
    )


@dataclass(frozen=True, slots=True)
class _TopicsOfView:
    """The cluster's topics as groups need them."""

    view: ClusterView

    @property
    def version(self) -> int:
        return self.view.topics_version

    def topic_id(self, name: str) -> UUID | None:
        topic = self.view.topics.get(name)
        return None if topic is None else topic.topic_id

    def name(self, topic_id: UUID) -> str | None:
        return self.view.topic_names.get(topic_id)

    def names(self) -> Iterable[str]:
        return (name for name in self.view.topics if name not in INTERNAL_TOPICS)

    def partition_count(self, name: str) -> int:
        topic = self.view.topics.get(name)
        return 0 if topic is None else len(topic.assignment.replicas)


def _settings(config: BrokerConfig, session_timeout_ms: Callable[[str], int]) -> CoordinatorSettings:
    assignors = tuple(name for name in config.string("group.consumer.assignors").split(",") if name)
    policies = GroupPolicies(
        ClassicPolicy(config.integer("group.initial.rebalance.delay.ms"), config.integer("group.max.size")),
        ConsumerPolicy(
            session_timeout_ms,
            config.integer("group.consumer.max.size"),
            assignors,
            hides_topics=config.optional_string("authorizer.class.name") is not None,
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
