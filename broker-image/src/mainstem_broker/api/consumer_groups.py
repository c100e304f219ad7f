"""Groups of KIP-848: ConsumerGroupHeartbeat (key 68, versions 0 to 1) and ConsumerGroupDescribe (69, 0 to 1).

- ConsumerGroupHeartbeat is the only request by which members join, follow what is assigned to them and leave.
  v0 has the broker make a member's id; v1 wants it from the member, and knows regular expressions, which
  match only topics that the client may describe.
- ConsumerGroupDescribe: GROUP_ID_NOT_FOUND for groups of the classic protocol, after which tools ask with
  DescribeGroups. v1 reports which members speak the classic protocol. Members are not described to a client
  that may not describe all topics that they read.
- OffsetCommit and OffsetFetch of such groups are those of all groups (`committed_offsets.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from mainstem_broker.api.authorization import (
    authorized_operations,
    may_describe_requested,
    may_describe_topic,
    require,
    require_topic,
)
from mainstem_broker.api.context import BrokerContext, RequestContext, milliseconds
from mainstem_broker.errors import ProtocolError, TopicAuthorizationFailed
from mainstem_broker.group.consumer.group import ConsumerGroup
from mainstem_broker.group.consumer.member import ConsumerMember
from mainstem_broker.group.consumer.records import Partitions, by_topic
from mainstem_broker.group.messages import ConsumerHeartbeat, HeartbeatAnswer, TopicVisibility
from mainstem_broker.protocol.topic_partition import TopicIdPartition
from mainstem_broker.protocol.wire import Body
from mainstem_broker.security.acl import Operation, ResourceType

if TYPE_CHECKING:
    from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest
    from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest

OWN_ID_VERSION: Final = 1

CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1


def handle_heartbeat(
    broker: BrokerContext, request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> Body | Awaitable[Body]:
    member_id = request.member_id
    if not member_id and context.version < OWN_ID_VERSION and request.member_epoch == 0:
        member_id = str(uuid4())
    rebalance_timeout_ms = milliseconds(request.rebalance_timeout)
    heartbeat = ConsumerHeartbeat(
        0,
        member_id,
        request.member_epoch,
        request.instance_id,
        request.rack_id,
        rebalance_timeout_ms if rebalance_timeout_ms >= 0 else None,
        request.subscribed_topic_names,
        request.subscribed_topic_regex if context.version >= OWN_ID_VERSION else None,
        request.server_assignor,
        _partitions(request.topic_partitions),
        context.client_id or "",
        "/" + context.host,
        _visibility(broker, context),
    )
    interval_ms = broker.group_config(request.group_id).heartbeat_interval_ms
    try:
        for topic in request.subscribed_topic_names or ():
            require_topic(broker, context, Operation.DESCRIBE, topic)
        answer = broker.groups.consumer_heartbeat(request.group_id, heartbeat)
    except ProtocolError as error:
        return _answered(HeartbeatAnswer(None, 0, None, error.code, error.message), interval_ms)
    if answer.done():
        return _answered(answer.result(), interval_ms)

    async def later() -> Body:
        return _answered(await answer, interval_ms)

    return later()


def _visibility(broker: BrokerContext, context: RequestContext) -> TopicVisibility | None:
    """Of topics that a regular expression of the client matches; None if it may see all."""
    authorizer = broker.authorizer
    if authorizer is None:
        return None
    return TopicVisibility(
        lambda name: may_describe_topic(broker, context, name),
        (context.principal, context.host, authorizer.version),
    )


def _partitions(owned_topics: Any) -> Partitions | None:
    if owned_topics is None:
        return None
    return frozenset(
        (topic.topic_id, number)
        for topic in owned_topics
        if topic.topic_id is not None
        for number in topic.partitions
    )


def _answered(answer: HeartbeatAnswer, interval_ms: int) -> Body:
    assignment = None
    if answer.assignment is not None:
        assignment = {
            "topic_partitions": [
                {"topic_id": topic_id, "partitions": numbers}
                for topic_id, numbers in by_topic(answer.assignment)
            ]
        }
    return {
        "throttle_time": 0,
        "error_code": answer.error_code,
        "error_message": answer.error_message,
        "member_id": answer.member_id,
        "member_epoch": answer.member_epoch,
        "heartbeat_interval": 0 if answer.error_code else interval_ms,
        "assignment": assignment,
    }


def handle_describe(
    broker: BrokerContext, request: ConsumerGroupDescribeRequest, context: RequestContext
) -> Body:
    return {
        "throttle_time": 0,
        "groups": [_described(broker, group_id, request, context) for group_id in request.group_ids],
    }


def _described(
    broker: BrokerContext, group_id: str, request: ConsumerGroupDescribeRequest, context: RequestContext
) -> Body:
    body: dict[str, Any] = {
        "error_code": 0,
        "error_message": None,
        "group_id": group_id,
        "group_state": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": (),
    }
    try:
        require(broker, context, Operation.DESCRIBE, ResourceType.GROUP, group_id)
        if request.include_authorized_operations:
            body["authorized_operations"] = authorized_operations(
                broker, context, ResourceType.GROUP, group_id
            )
        group = broker.groups.consumer_group(group_id)
        _require_topics_of(broker, context, group)
    except ProtocolError as error:
        return {**body, "error_code": error.code, "error_message": error.message}
    return {
        **body,
        "group_state": group.state.value,
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "members": [
            _described_member(broker, member, group.targets.get(member.member_id, frozenset()))
            for member in group.members.values()
        ],
    }


def _require_topics_of(broker: BrokerContext, context: RequestContext, group: ConsumerGroup) -> None:
    """Raise TopicAuthorizationFailed if the group reads topics that the client may not see."""
    if broker.authorizer is None:
        return
    names = broker.view.topic_names
    topics: set[str] = set()
    for member in group.members.values():
        topics.update(member.metadata.topics)
        assigned = member.current.assigned | group.targets.get(member.member_id, frozenset())
        topics.update(names[topic_id] for topic_id, _ in assigned if topic_id in names)
    if not all(may_describe_requested(broker, context, topic) for topic in sorted(topics)):
        raise TopicAuthorizationFailed(f"Group '{group.group_id}' reads topics that you may not describe.")


def _described_member(broker: BrokerContext, member: ConsumerMember, target: Partitions) -> Body:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.metadata.rack_id,
        "member_epoch": member.current.epoch,
        "client_id": member.metadata.client_id,
        "client_host": member.metadata.client_host,
        "subscribed_topic_names": member.metadata.topics,
        "subscribed_topic_regex": member.metadata.topic_regex,
        "assignment": _named(broker, member.current.assigned),
        "target_assignment": _named(broker, target),
        "member_type": CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    }


def _named(broker: BrokerContext, partitions: Iterable[TopicIdPartition]) -> Body:
    """Without those of topics that are gone."""
    names = broker.view.topic_names
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "topic_name": names[topic_id], "partitions": numbers}
            for topic_id, numbers in by_topic(partitions)
            if topic_id in names
        ]
    }
