"""Metadata (key 3), versions 0 to 12, and DescribeCluster (key 60), versions 0 and 1.

- Metadata answers from this broker's view of the cluster, brought up to date where topics that another
  broker knows might be missing. No topics (v0: an empty list, later: null) means all. Unknown topics are
  created if the broker and the request (v4 on) allow it: the answer is then LEADER_NOT_AVAILABLE, which
  clients ask again for. The topics of coordinators get the settings that coordinators need.
- A partition without a live leader has error LEADER_NOT_AVAILABLE, leader -1 and its real leader epoch.
- A topic of which no partition is known yet is never answered as a success without partitions.
- A topic that the client may not describe is left out of an answer about all topics, and is
  TOPIC_AUTHORIZATION_FAILED for a client that names it, whether it exists or not. So is one that would be
  created, where the client may not create it.
- v5 offline replicas; v7 leader epoch; v8 to v10 authorized operations; v9 flexible; v10 topic ids; v12
  topics requested by id.
- DescribeCluster names brokers and controller (KIP-700). A client that asks for controllers to connect to
  (v1, KIP-919) gets MISMATCHED_ENDPOINT_TYPE: this is a broker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from mainstem_broker.api.authorization import (
    allows_on_cluster,
    authorized_operations,
    may_describe_requested,
    may_describe_topic,
    require_topic,
)
from mainstem_broker.api.context import INTERNAL_TOPICS, BrokerContext, RequestContext
from mainstem_broker.api.find_coordinator import COORDINATOR_TOPICS
from mainstem_broker.api.topics import check_topic_name, create_topic, require_creation
from mainstem_broker.cluster.view import ClusterView, Topic
from mainstem_broker.errors import (
    InvalidRequest,
    InvalidTopic,
    LeaderNotAvailable,
    MismatchedEndpointType,
    ProtocolError,
    TopicAlreadyExists,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedEndpointType,
)
from mainstem_broker.protocol.wire import Body, Entity
from mainstem_broker.quota.client_quotas import Mutations
from mainstem_broker.security.acl import Operation, ResourceType

if TYPE_CHECKING:
    from kio.schema.describe_cluster.v1.request import DescribeClusterRequest
    from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic

BROKER_ENDPOINT: Final = 1
CONTROLLER_ENDPOINT: Final = 2


def handle(
    broker: BrokerContext, request: MetadataRequest, context: RequestContext
) -> Body | Awaitable[Body | None]:
    view = broker.view
    if request.topics is None or (context.version == 0 and not request.topics):
        return _all(broker, request, context)
    if len(request.topics) > 1:
        # Each topic is answered once, as in Apache Kafka: an answer may be a thousand times as large as a
        # name.
        topics_by_key = {topic_key(requested): requested for requested in request.topics}
        if len(topics_by_key) < len(request.topics):
            request = replace(request, topics=tuple(topics_by_key.values()))
    if context.version < 12 and any(
        requested.name is None or _has_id(requested) for requested in request.topics
    ):
        # Versions 10 and 11 have the fields, but only 12 may use them, as in Apache Kafka.
        failures = [_failed(requested.name or "", InvalidRequest()) for requested in request.topics]
        return _answer(broker, request, context, failures)
    refusals = _refusals(broker, request, context)
    if all(_is_known(view, requested) or topic_key(requested) in refusals for requested in request.topics):
        topics = [_refused_or_known(broker, requested, refusals) for requested in request.topics]
        return _answer(broker, request, context, topics)
    return _look_again(broker, request, context, refusals)


async def _all(broker: BrokerContext, request: MetadataRequest, context: RequestContext) -> Body:
    await broker.catch_up()
    topics = [
        _known(broker.view, topic)
        for name, topic in sorted(broker.view.topics.items())
        if may_describe_topic(broker, context, name)
    ]
    return _answer(broker, request, context, topics)


Refusals = Mapping[tuple[UUID | None, str | None], ProtocolError]
"""Why a client may not see a requested topic, by `topic_key`."""


def topic_key(requested: MetadataRequestTopic) -> tuple[UUID | None, str | None]:
    """What a request names a topic by."""
    return (requested.topic_id, None) if _has_id(requested) else (None, requested.name)


def _refusals(broker: BrokerContext, request: MetadataRequest, context: RequestContext) -> Refusals:
    """A topic that is requested by its id, and may not be described, does not exist for the client."""
    refusals: dict[tuple[UUID | None, str | None], ProtocolError] = {}
    if broker.authorizer is None:
        return refusals
    for requested in request.topics:
        if _has_id(requested):
            name = broker.view.topic_names.get(requested.topic_id)
            if name is not None and not may_describe_requested(broker, context, name):
                refusals[topic_key(requested)] = UnknownTopicId()
        else:
            try:
                require_topic(broker, context, Operation.DESCRIBE, requested.name)
            except ProtocolError as error:
                refusals[topic_key(requested)] = error
    return refusals


def _refused_or_known(broker: BrokerContext, requested: MetadataRequestTopic, refusals: Refusals) -> Body:
    refusal = refusals.get(topic_key(requested))
    if refusal is None:
        return _asked(broker.view, requested)
    return _failed(requested.name, refusal, topic_id=requested.topic_id if _has_id(requested) else None)


def _is_known(view: ClusterView, requested: MetadataRequestTopic) -> bool:
    """Whether the view has the topic with all its partitions; one just made may still lack their states."""
    name = view.topic_names.get(requested.topic_id) if _has_id(requested) else requested.name
    topic = None if name is None else view.topics.get(name)
    return topic is not None and len(topic.states) == len(topic.assignment.replicas)


def _has_id(requested: MetadataRequestTopic) -> bool:
    return requested.topic_id is not None and requested.topic_id.int != 0


def _asked(view: ClusterView, requested: MetadataRequestTopic) -> Body:
    if _has_id(requested):
        name = view.topic_names.get(requested.topic_id)
        if name is None:
            return _failed(requested.name, UnknownTopicId(), topic_id=requested.topic_id)
        return _known(view, view.topics[name])
    topic = view.topics.get(requested.name)
    if topic is not None:
        return _known(view, topic)
    try:
        check_topic_name(requested.name)
    except InvalidTopic as error:
        return _failed(requested.name, error)
    return _failed(requested.name, UnknownTopicOrPartition())


async def _look_again(
    broker: BrokerContext, request: Entity, context: RequestContext, refusals: Refusals
) -> Body:
    """Answer after hearing the latest news; create what is still unknown, if that is wanted."""
    await broker.catch_up()
    view = broker.view
    creates = request.allow_auto_topic_creation and broker.config.flag("auto.create.topics.enable")
    failures: dict[str, ProtocolError] = {}
    mutations = context.mutations(broker, strict=False)
    for requested in request.topics:
        name = requested.name
        if (
            not creates
            or _is_known(view, requested)
            or _has_id(requested)
            or topic_key(requested) in refusals
        ):
            continue
        try:
            check_topic_name(name)
            if name not in view.topics:
                require_creation(broker, context, name)
            await _create(broker, name, mutations)
            failures[name] = LeaderNotAvailable()
        except TopicAlreadyExists:
            failures[name] = LeaderNotAvailable()  # created by another one just now
        except (InvalidTopic, TopicAuthorizationFailed) as error:
            failures[name] = error
        except ProtocolError:
            failures[name] = UnknownTopicOrPartition()
    topics = [
        _failed(requested.name, failures[requested.name])
        if requested.name in failures and not _is_known(view, requested)
        else _refused_or_known(broker, requested, refusals)
        for requested in request.topics
    ]
    return _answer(broker, request, context, topics) | {"throttle_time": mutations.wait_ms}


async def _create(broker: BrokerContext, name: str, mutations: Mutations) -> None:
    """Create a topic as it would be without this request: coordinators need theirs with their settings."""
    topic = COORDINATOR_TOPICS.get(name)
    await create_topic(
        broker,
        name,
        partition_count=-1 if topic is None else topic.partition_count(broker.config),
        replication_factor=-1 if topic is None else topic.replication_factor(broker.config),
        overrides=None if topic is None else topic.overrides(broker.config),
        mutations=mutations,
    )


def _answer(
    broker: BrokerContext, request: MetadataRequest, context: RequestContext, topics: list[Body]
) -> Body:
    operations: Body = {}
    if getattr(request, "include_cluster_authorized_operations", False):  # versions 8 to 10
        operations["cluster_authorized_operations"] = cluster_operations(broker, context)
    if getattr(request, "include_topic_authorized_operations", False):
        for topic in topics:
            if topic["error_code"] == 0:
                topic["topic_authorized_operations"] = authorized_operations(
                    broker, context, ResourceType.TOPIC, topic["name"]
                )
    return operations | {
        "throttle_time": 0,
        "brokers": [
            {"node_id": broker_id, "host": host, "port": port, "rack": rack}
            for broker_id, host, port, rack in _brokers(broker, context)
        ],
        "cluster_id": broker.view.cluster_id,
        "controller_id": broker.view.controller_id,
        "topics": topics,
    }


def cluster_operations(broker: BrokerContext, context: RequestContext) -> int:
    """The operations on the cluster that the client may do, as bits; none for those that may not ask."""
    if not allows_on_cluster(broker, context, Operation.DESCRIBE, quietly=True):
        return 0
    return authorized_operations(broker, context, ResourceType.CLUSTER)


def _brokers(broker: BrokerContext, context: RequestContext) -> list[tuple[int, str, int, str | None]]:
    """Live brokers that have the listener the client came through; others it could not reach."""
    brokers = []
    for broker_id, registration in sorted(broker.view.brokers.items()):
        endpoint = registration.endpoint(context.listener)
        if endpoint is not None:
            brokers.append((broker_id, endpoint.host, endpoint.port, registration.rack))
    return brokers


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


def handle_describe_cluster(
    broker: BrokerContext, request: DescribeClusterRequest, context: RequestContext
) -> Body:
    try:
        _check_endpoint_type(request.endpoint_type)
    except ProtocolError as error:
        return {
            "throttle_time": 0,
            "error_code": error.code,
            "error_message": error.message,
            "cluster_id": "",
            "controller_id": -1,
            "brokers": (),
        }
    operations: Body = {}
    if request.include_cluster_authorized_operations:
        operations["cluster_authorized_operations"] = cluster_operations(broker, context)
    return operations | {
        "throttle_time": 0,
        "error_code": 0,
        # Clients do not look at a message without an error; `mainstem cluster status` shows it.
        "error_message": broker.member.outage,
        "cluster_id": broker.view.cluster_id,
        "controller_id": broker.view.controller_id,
        "brokers": [
            {"broker_id": broker_id, "host": host, "port": port, "rack": rack}
            for broker_id, host, port, rack in _brokers(broker, context)
        ],
    }


def _check_endpoint_type(endpoint_type: int) -> None:
    """Raise if the client wants to talk to something else than brokers."""
    if endpoint_type == CONTROLLER_ENDPOINT:
        raise MismatchedEndpointType(
            "This is a broker, and the cluster has no controllers to connect to: give its address as"
            " bootstrap server, not as bootstrap controller."
        )
    if endpoint_type != BROKER_ENDPOINT:
        raise UnsupportedEndpointType(f"There are no endpoints of type {endpoint_type}.")
