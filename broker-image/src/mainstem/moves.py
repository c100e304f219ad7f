"""Moves of replicas as the cluster knows them: asked for, listed, throttled, taken back.

The stock client has no call for them, so `asking.py` sends them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from mainstem.asking import ask_any, reason_of
from mainstem.client import ADMIN_TIMEOUT_SECONDS, Cluster
from mainstem.errors import ClusterRefused
from mainstem.reassignment_plan import Replicas, TopicPartition

_RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_THROTTLED: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


@dataclass(frozen=True, slots=True)
class Move:
    """A partition whose replicas are being moved; `adding` and `removing` are among `replicas`."""

    topic: str
    partition: int
    replicas: Replicas
    adding: Replicas
    removing: Replicas

    @property
    def origin(self) -> Replicas:
        return tuple(broker for broker in self.replicas if broker not in self.adding)

    @property
    def target(self) -> Replicas:
        return tuple(broker for broker in self.replicas if broker not in self.removing)


def moves_under_way(cluster: Cluster) -> dict[TopicPartition, Move]:
    """All partitions whose replicas are being moved now."""
    import datetime as dt

    from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest
    from kio.static.primitive import i32Timedelta

    timeout = i32Timedelta.parse(dt.timedelta(seconds=ADMIN_TIMEOUT_SECONDS))
    answer = ask_any(cluster, ListPartitionReassignmentsRequest(timeout=timeout, topics=None))
    if answer.error_code.value != 0:
        raise ClusterRefused(f"The moves under way are not told: {reason_of(answer)}")
    return {
        (topic.name, partition.partition_index): Move(
            topic.name,
            partition.partition_index,
            tuple(partition.replicas),
            tuple(partition.adding_replicas),
            tuple(partition.removing_replicas),
        )
        for topic in answer.topics
        for partition in topic.partitions
    }


def wish_for(
    cluster: Cluster, targets: Mapping[TopicPartition, Replicas | None]
) -> dict[TopicPartition, str]:
    """Ask for these replicas, or, with None, for the end of a move; answers the refusals."""
    import datetime as dt

    from kio.schema.alter_partition_reassignments.v0.request import (
        AlterPartitionReassignmentsRequest,
        ReassignablePartition,
        ReassignableTopic,
    )
    from kio.static.primitive import i32, i32Timedelta

    topics = {
        name: tuple(
            ReassignablePartition(partition_index=i32(partition), replicas=replicas)
            for (topic, partition), replicas in targets.items()
            if topic == name
        )
        for name in {topic for topic, _ in targets}
    }
    request = AlterPartitionReassignmentsRequest(
        timeout=i32Timedelta.parse(dt.timedelta(seconds=ADMIN_TIMEOUT_SECONDS)),
        topics=tuple(ReassignableTopic(name=name, partitions=parts) for name, parts in topics.items()),
    )
    answer = ask_any(cluster, request)
    if answer.error_code.value != 0:
        raise ClusterRefused(f"The replicas are not moved: {reason_of(answer)}")
    return {
        (topic.name, partition.partition_index): reason_of(partition)
        for topic in answer.responses
        for partition in topic.partitions
        if partition.error_code.value != 0
    }


def throttle(
    cluster: Cluster, plan: Mapping[TopicPartition, tuple[Replicas, Replicas]], bytes_per_second: int
) -> None:
    """Limit what the moves of `plan` (present and new replicas) take from each broker's network (KIP-73)."""
    live = {broker.broker_id for broker in cluster.description().brokers}
    brokers = live & {broker for before, after in plan.values() for broker in (*before, *after)}
    rates = [_set(name, str(bytes_per_second)) for name in _RATES]
    changes = [_broker(broker, rates) for broker in sorted(brokers)]
    for topic in sorted({topic for topic, _ in plan}):
        senders, receivers = [], []
        for (name, partition), (before, after) in sorted(plan.items()):
            if name == topic:
                senders += [f"{partition}:{broker}" for broker in before]
                receivers += [f"{partition}:{broker}" for broker in after if broker not in before]
        named = zip(_THROTTLED, (senders, receivers), strict=True)
        changes.append(_topic(topic, [_set(setting, ",".join(replicas)) for setting, replicas in named]))
    _alter(cluster, changes)


def unthrottle(cluster: Cluster, topics: Iterable[str] | None) -> None:
    """Take the limits on moves of these topics (None: of all) away again, and then those of the brokers."""
    limited = _limited_topics(cluster, cluster.topics() if topics is None else topics)
    if limited:
        brokers = sorted(broker.broker_id for broker in cluster.description().brokers)
        _alter(
            cluster,
            [_topic(topic, [_delete(name) for name in _THROTTLED]) for topic in limited]
            + [_broker(broker, [_delete(name) for name in _RATES]) for broker in brokers],
        )


def _limited_topics(cluster: Cluster, topics: Iterable[str]) -> list[str]:
    asked = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in sorted(set(topics))]
    if not asked:
        return []
    answers = cluster.admin.describe_configs(asked, request_timeout=ADMIN_TIMEOUT_SECONDS)
    settings = {
        resource.name: cluster.result(future, f"The settings of {resource.name} are not told")
        for resource, future in answers.items()
    }
    return [
        topic
        for topic, entries in settings.items()
        if any(name in entries and entries[name].value for name in _THROTTLED)
    ]


def _alter(cluster: Cluster, changes: list[ConfigResource]) -> None:
    for change in changes:  # one by one: librdkafka takes one broker per request
        answers = cluster.admin.incremental_alter_configs([change], request_timeout=ADMIN_TIMEOUT_SECONDS)
        cluster.result(answers[change], "The limit on moves was not changed")


def _broker(broker: int, entries: list[ConfigEntry]) -> ConfigResource:
    return ConfigResource(ConfigResource.Type.BROKER, str(broker), incremental_configs=entries)


def _topic(topic: str, entries: list[ConfigEntry]) -> ConfigResource:
    return ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)


def _set(name: str, value: str) -> ConfigEntry:
    return ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)


def _delete(name: str) -> ConfigEntry:
    return ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE)
