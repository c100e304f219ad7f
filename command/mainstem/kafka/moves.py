"""Moves of replicas in a cluster: begun, listed, throttled, cancelled.

The stock client cannot send these requests, so `routed_requests.py` does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from mainstem.errors import ClusterRefused
from mainstem.kafka.client import ADMIN_TIMEOUT_SECONDS, Cluster
from mainstem.kafka.move_requests import Move, alter_request, list_request, moves_in, refusals_in
from mainstem.kafka.raw_request import reason_of
from mainstem.kafka.reassignment_plan import Replicas, TopicPartition
from mainstem.kafka.routed_requests import ask_any

_RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_THROTTLED: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


def moves_under_way(cluster: Cluster) -> dict[TopicPartition, Move]:
    """All partitions whose replicas are being moved now."""
    answer = ask_any(cluster, list_request(ADMIN_TIMEOUT_SECONDS))
    if answer.error_code.value != 0:
        raise ClusterRefused(f"The moves under way could not be read: {reason_of(answer)}")
    return moves_in(answer)


def wish_for(
    cluster: Cluster, targets: Mapping[TopicPartition, Replicas | None]
) -> dict[TopicPartition, str]:
    """Ask for these replicas, or, with None, for the end of a move; answers the refusals."""
    answer = ask_any(cluster, alter_request(targets, ADMIN_TIMEOUT_SECONDS))
    if answer.error_code.value != 0:
        raise ClusterRefused(f"The replicas are not moved: {reason_of(answer)}")
    return refusals_in(answer)


def throttle(
    cluster: Cluster,
    plan: Mapping[TopicPartition, tuple[Replicas, Replicas]],
    under_way: Mapping[TopicPartition, Move],
    bytes_per_second: int,
) -> None:
    """Limit what the moves of `plan` (present and new replicas) take from each broker's network (KIP-73).

    The limit also holds for moves of the same topics that are under way: setting the list of limited replicas
    anew must not make them unlimited.
    """
    topics = {topic for topic, _ in plan}
    moves = [*plan.items()]
    moves += [(key, (move.origin, move.replicas)) for key, move in under_way.items() if key[0] in topics]
    live = {broker.broker_id for broker in cluster.description().brokers}
    brokers = live & {broker for _, (before, after) in moves for broker in (*before, *after)}
    rates = [_set(name, str(bytes_per_second)) for name in _RATES]
    changes = [_broker(broker, rates) for broker in sorted(brokers)]
    for topic in sorted(topics):
        senders: set[str] = set()
        receivers: set[str] = set()
        for (name, partition), (before, after) in moves:
            if name == topic:
                senders |= {f"{partition}:{broker}" for broker in before}
                receivers |= {f"{partition}:{broker}" for broker in after if broker not in before}
        named = zip(_THROTTLED, (senders, receivers), strict=True)
        entries = [_set(setting, ",".join(sorted(replicas))) for setting, replicas in named]
        changes.append(_topic(topic, entries))
    _alter(cluster, changes)


def unthrottle(cluster: Cluster, topics: Collection[str]) -> None:
    """Remove the limits on moves of these topics, and those of the brokers if no other topic is limited.

    The limit of a broker counts for the moves of all topics, also for those that others have begun.
    """
    existing = set(cluster.topics())
    limited = limited_topics(cluster, existing & set(topics))
    if not limited:
        return
    _alter(cluster, [_topic(topic, [_delete(name) for name in _THROTTLED]) for topic in limited])
    if not limited_topics(cluster, existing.difference(limited)):
        brokers = sorted(broker.broker_id for broker in cluster.description().brokers)
        _alter(cluster, [_broker(broker, [_delete(name) for name in _RATES]) for broker in brokers])


def limited_topics(cluster: Cluster, topics: Iterable[str]) -> list[str]:
    """Those of the existing `topics` with replicas whose moves are limited, in their order."""
    resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in sorted(topics)]
    if not resources:
        return []
    answers = cluster.admin.describe_configs(resources, request_timeout=ADMIN_TIMEOUT_SECONDS)
    settings = {
        resource.name: cluster.result(future, f"The settings of {resource.name} could not be read")
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
