"""DescribeTopicPartitions (key 75), versions 0 to 0 (KIP-966): partitions, page by page.

Topics come in the order of their names, at most `response_partition_limit` partitions at once, and never
more than max.request.partition.size.limit; the cursor says where the next page begins. No topics asked for
means all. A page begins in the topic that the cursor names, or in the next one if that is gone.
Topics that the client may not describe are left out of all topics. The operations that the client may do
(KIP-430) are always answered, as in Apache Kafka: the request has no flag for them, and Java's admin client
describes topics by this request. Eligible leaders are reported; the last known ones are not kept here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstem_broker.api.authorization import allows, authorized_operations, may_describe_topic
from mainstem_broker.api.context import INTERNAL_TOPICS, BrokerContext, RequestContext
from mainstem_broker.api.metadata import describe_partition
from mainstem_broker.api.topics import check_topic_name
from mainstem_broker.cluster.view import ClusterView, Topic
from mainstem_broker.errors import (
    InvalidTopic,
    ProtocolError,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from mainstem_broker.protocol.wire import Body
from mainstem_broker.security.acl import Operation, ResourceType

if TYPE_CHECKING:
    from kio.schema.describe_topic_partitions.v0.request import DescribeTopicPartitionsRequest


def handle(broker: BrokerContext, request: DescribeTopicPartitionsRequest, context: RequestContext) -> Body:
    view = broker.view
    named = {topic.name for topic in request.topics}
    denied = {
        name for name in named if not allows(broker, context, Operation.DESCRIBE, ResourceType.TOPIC, name)
    }
    names = sorted(named or (name for name in view.topics if may_describe_topic(broker, context, name)))
    cursor = request.cursor
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
    left = min(
        max(request.response_partition_limit, 1), broker.config.integer("max.request.partition.size.limit")
    )
    topics: list[Body] = []
    next_cursor: Body | None = None
    for name in names:
        if left == 0:
            next_cursor = {"topic_name": name, "partition_index": 0}
            break
        if name in denied:
            topics.append(_failed(name, TopicAuthorizationFailed()))
            continue
        cluster_topic = view.topics.get(name)
        if cluster_topic is None:
            topics.append(_failed(name, UnknownTopicOrPartition()))
            continue
        begin = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        indexes = [index for index in sorted(cluster_topic.assignment.replicas) if index >= begin]
        operations = authorized_operations(broker, context, ResourceType.TOPIC, name)
        topics.append(_described(view, cluster_topic, indexes[:left], operations))
        if len(indexes) > left:
            next_cursor = {"topic_name": name, "partition_index": indexes[left]}
            break
        left -= len(indexes)
    return {"throttle_time": 0, "topics": topics, "next_cursor": next_cursor}


def _described(view: ClusterView, topic: Topic, indexes: list[int], operations: int) -> Body:
    partitions = []
    for index in indexes:
        state = topic.states.get(index)
        partitions.append(
            {
                **describe_partition(view, topic, index),
                "eligible_leader_replicas": () if state is None else state.elr,
                "last_known_elr": (),
            }
        )
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.name in INTERNAL_TOPICS,
        "partitions": partitions,
        "topic_authorized_operations": operations,
    }


def _failed(name: str, error: ProtocolError) -> Body:
    try:
        check_topic_name(name)
    except InvalidTopic as invalid:
        error = invalid
    return {"error_code": error.code, "name": name, "topic_id": None, "partitions": ()}
