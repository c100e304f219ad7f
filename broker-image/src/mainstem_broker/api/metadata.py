"""Metadata (key 3), versions 0 to 12, and DescribeCluster (key 60), versions 0 and 1.

- Metadata answers from this broker's view of the cluster, brought up to date where topics that another
  broker knows might be missing. No topics asked for (v0: none, later: null) means all. Unknown topics are
  created if the broker and the request (v4 on) allow it: the answer is then LEADER_NOT_AVAILABLE, which
  clients ask again for.
- A partition without a live leader has error LEADER_NOT_AVAILABLE, leader -1 and its real leader epoch.
- A topic of which no partition is known yet is never answered as a success without partitions.
- v5 offline replicas; v7 leader epoch; v8 to v10 authorized operations (not known: the schema's default);
  v9 flexible; v10 topic ids; v12 topics asked for by id.
- DescribeCluster names brokers and controller (KIP-700).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from mainstem_broker.api.context import INTERNAL_TOPICS, BrokerContext, RequestContext
from mainstem_broker.api.topics import check_topic_name, create_topic
from mainstem_broker.cluster.view import ClusterView, Topic
from mainstem_broker.errors import (
    InvalidRequest,
    InvalidTopic,
    LeaderNotAvailable,
    ProtocolError,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from mainstem_broker.protocol.wire import Body, Entity


def handle(broker: BrokerContext, request: Entity, context: RequestContext) -> Body | Awaitable[Body | None]:
    view = broker.view
    if request.topics is None or (context.version == 0 and not request.topics):
        return _all(broker, context)
    if context.version < 12 and any(asked.name is None or _has_id(asked) for asked in request.topics):
        # Versions 10 and 11 have the fields, but only 12 may use them, as in Apache Kafka.
        failures = [_failed(asked.name or "", InvalidRequest()) for asked in request.topics]
        return _answer(broker, context, failures)
    if all(_is_known(view, asked) for asked in request.topics):
        return _answer(broker, context, [_asked(view, asked) for asked in request.topics])
    return _look_again(broker, request, context)


async def _all(broker: BrokerContext, context: RequestContext) -> Body:
    await broker.catch_up()
    view = broker.view
    return _answer(broker, context, [_known(view, topic) for _, topic in sorted(view.topics.items())])


def _is_known(view: ClusterView, asked: Any) -> bool:
    """Whether the view has the topic with all its partitions; one just made may still lack their states."""
    name = view.topic_names.get(asked.topic_id) if _has_id(asked) else asked.name
    topic = None if name is None else view.topics.get(name)
    return topic is not None and len(topic.states) == len(topic.assignment.replicas)


def _has_id(asked: Any) -> bool:
    return asked.topic_id is not None and asked.topic_id.int != 0


def _asked(view: ClusterView, asked: Any) -> Body:
    if _has_id(asked):
        name = view.topic_names.get(asked.topic_id)
        if name is None:
            return _failed(asked.name, UnknownTopicId(), topic_id=asked.topic_id)
        return _known(view, view.topics[name])
    topic = view.topics.get(asked.name)
    if topic is not None:
        return _known(view, topic)
    try:
        check_topic_name(asked.name)
    except InvalidTopic as error:
        return _failed(asked.name, error)
    return _failed(asked.name, UnknownTopicOrPartition())


async def _look_again(broker: BrokerContext, request: Entity, context: RequestContext) -> Body:
    """Answer after hearing the latest news; create what is still unknown, if that is wanted."""
    await broker.catch_up()
    view = broker.view
    creates = request.allow_auto_topic_creation and broker.config.flag("auto.create.topics.enable")
    failures: dict[str, ProtocolError] = {}
    for asked in request.topics:
        name = asked.name
        if not creates or _is_known(view, asked) or _has_id(asked):
            continue
        try:
            check_topic_name(name)
            await create_topic(broker, name, partition_count=-1, replication_factor=-1)
            failures[name] = LeaderNotAvailable()
        except TopicAlreadyExists:
            failures[name] = LeaderNotAvailable()  # created by another one just now
        except InvalidTopic as error:
            failures[name] = error
        except ProtocolError:
            failures[name] = UnknownTopicOrPartition()
    topics = [
        _failed(asked.name, failures[asked.name])
        if asked.name in failures and not _is_known(view, asked)
        else _asked(view, asked)
        for asked in request.topics
    ]
    return _answer(broker, context, topics)


def _answer(broker: BrokerContext, context: RequestContext, topics: list[Body]) -> Body:
    return {
        "throttle_time": 0,
        "brokers": [
            {"node_id": broker_id, "host": host, "port": port, "rack": rack}
            for broker_id, host, port, rack in _brokers(broker, context)
        ],
        "cluster_id": broker.view.cluster_id,
        "controller_id": broker.view.controller_id,
        "topics": topics,
    }


def _brokers(broker: BrokerContext, context: RequestContext) -> list[tuple[int, str, int, str | None]]:
    """Live brokers that have the listener the client came through; others it could not reach."""
    found = []
    for broker_id, registration in sorted(broker.view.brokers.items()):
        endpoint = registration.endpoint(context.listener)
        if endpoint is not None:
            found.append((broker_id, endpoint.host, endpoint.port, registration.rack))
    return found


def _known(view: ClusterView, topic: Topic) -> Body:
    if not topic.states:
        return _failed(topic.name, LeaderNotAvailable(), topic_id=topic.topic_id)
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.name in INTERNAL_TOPICS,
        "partitions": [
            describe_partition(view, topic, partition) for partition in sorted(topic.assignment.replicas)
        ],
    }


def describe_partition(view: ClusterView, topic: Topic, partition: int) -> Body:
    """A partition as Metadata and DescribeTopicPartitions answer it."""
    replicas = topic.assignment.replicas[partition]
    state = topic.states.get(partition)
    serving = view.brokers_for(topic.topic_id, partition)
    leader = -1 if state is None or state.leader not in serving else state.leader
    return {
        "error_code": 0 if leader >= 0 else LeaderNotAvailable.code,
        "partition_index": partition,
        "leader_id": leader,
        "leader_epoch": -1 if state is None else state.leader_epoch,
        "replica_nodes": replicas,
        "isr_nodes": () if state is None else state.isr,
        "offline_replicas": [broker for broker in replicas if broker not in serving],
    }


def _failed(name: str | None, error: ProtocolError, topic_id: Any = None) -> Body:
    return {"error_code": error.code, "name": name, "topic_id": topic_id, "partitions": ()}


def handle_describe_cluster(broker: BrokerContext, _request: Entity, context: RequestContext) -> Body:
    return {
        "throttle_time": 0,
        "error_code": 0,
        "cluster_id": broker.view.cluster_id,
        "controller_id": broker.view.controller_id,
        "brokers": [
            {"broker_id": broker_id, "host": host, "port": port, "rack": rack}
            for broker_id, host, port, rack in _brokers(broker, context)
        ],
    }
