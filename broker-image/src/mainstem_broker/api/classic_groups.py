"""Groups and their members: JoinGroup (key 11, versions 0 to 9), Heartbeat (12, 0 to 4), LeaveGroup (13, 0 to
5), SyncGroup (14, 0 to 5), DescribeGroups (15, 0 to 6), ListGroups (16, 0 to 5) and DeleteGroups (42, 0 to
2).

- JoinGroup and SyncGroup are answered when the group is ready to go on. Join v0 has one timeout for session
  and rebalance; v4 sends a new member back for its id (KIP-394); v5 static members (KIP-345); v7 protocol
  type; v8 reason; v9 the leader may skip the assignment (KIP-814). Sync v3 static members; v5 protocol type
  and name.
- Heartbeat v3 static members. LeaveGroup v3 several members at once, also static ones by their instance id.
- DescribeGroups v3 authorized operations; v6 says that a group does not
  exist, where lower versions show it as Dead; groups of KIP-848 do not exist for it (`consumer_groups.py`).
  ListGroups v4 filters by state (KIP-518), v5 by type.
- Join, sync and heartbeat in a group of KIP-848 are those of a member that still speaks this protocol.
  LeaveGroup removes all kinds of members: Java's admin client removes members by it.
- v0 and v1 of JoinGroup are what librdkafka before 2.11 looks for to tell whether there are groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from mainstem_broker.api.authorization import allows, allows_on_cluster, authorized_operations, require
from mainstem_broker.api.context import BrokerContext, RequestContext, milliseconds
from mainstem_broker.errors import GroupIdNotFound, ProtocolError
from mainstem_broker.group.classic.rebalancing import ClassicState
from mainstem_broker.group.coordinator import OFFSETS_TOPIC
from mainstem_broker.group.kind import GroupKind
from mainstem_broker.group.messages import Join, JoinAnswer, Sync, SyncAnswer
from mainstem_broker.protocol.wire import Body, Entity
from mainstem_broker.security.acl import Operation, ResourceType

if TYPE_CHECKING:
    from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
    from kio.schema.describe_groups.v6.request import DescribeGroupsRequest
    from kio.schema.heartbeat.v4.request import HeartbeatRequest
    from kio.schema.join_group.v9.request import JoinGroupRequest
    from kio.schema.leave_group.v5.request import LeaveGroupRequest
    from kio.schema.list_groups.v5.request import ListGroupsRequest
    from kio.schema.sync_group.v5.request import SyncGroupRequest

NAME_IN_MEMBER_ID_LENGTH_MAX: Final = 255
"""Of the client's name for itself; an id is a string of 32,767 bytes at most, and people read it."""


def partitions_of(broker: BrokerContext, request: Entity) -> Iterator[tuple[str, int]]:
    """Of requests about one group."""
    return iter(((OFFSETS_TOPIC, broker.groups.offsets_partition(request.group_id)),))


def partitions_of_named(broker: BrokerContext, group_ids: Iterable[str]) -> Iterator[tuple[str, int]]:
    return ((OFFSETS_TOPIC, broker.groups.offsets_partition(group_id)) for group_id in group_ids)


# --- Members ---


def handle_join(
    broker: BrokerContext, request: JoinGroupRequest, context: RequestContext
) -> Body | Awaitable[Body]:
    session_timeout_ms = milliseconds(request.session_timeout)
    rebalance_timeout_ms = milliseconds(request.rebalance_timeout)
    if context.version == 0 or rebalance_timeout_ms < 0:
        rebalance_timeout_ms = session_timeout_ms  # what -1 does: brod#465
    instance_id = request.group_instance_id
    client_id = context.client_id or ""
    fresh_id = f"{(instance_id or client_id)[:NAME_IN_MEMBER_ID_LENGTH_MAX]}-{uuid4()}"
    protocols = tuple((protocol.name, protocol.metadata) for protocol in request.protocols)

    def request_with(number: int) -> Join:
        return Join(
            number,
            request.member_id,
            fresh_id,
            instance_id,
            client_id,
            "/" + context.peer.rpartition(":")[0],
            session_timeout_ms,
            rebalance_timeout_ms,
            request.protocol_type,
            protocols,
            must_know_id=context.version >= 4,
            may_skip_assignment=context.version >= 9,
        )

    def body(answer: JoinAnswer) -> Body:
        return _joined(answer, context.version)

    try:
        return _answer_when_ready(broker.groups.join(request.group_id, request_with), body)
    except ProtocolError as error:
        return body(JoinAnswer(request.member_id, error.code))


def _answer_when_ready(answer: asyncio.Future[Any], body: Callable[[Any], Body]) -> Body | Awaitable[Body]:
    async def later() -> Body:
        return body(await answer)

    return body(answer.result()) if answer.done() else later()


def _joined(answer: JoinAnswer, version: int) -> Body:
    return {
        "throttle_time": 0,
        "error_code": answer.error_code,
        "generation_id": answer.generation,
        "protocol_type": answer.protocol_type,
        # Null is allowed from version 7 on.
        "protocol_name": answer.protocol if version >= 7 else answer.protocol or "",
        "leader": answer.leader,
        "skip_assignment": answer.skip_assignment,
        "member_id": answer.member_id,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "metadata": member.metadata,
            }
            for member in answer.members
        ],
    }


def handle_sync(
    broker: BrokerContext, request: SyncGroupRequest, _context: RequestContext
) -> Body | Awaitable[Body]:
    assignments = tuple((given.member_id, given.assignment) for given in request.assignments)

    def request_with(number: int) -> Sync:
        return Sync(
            number,
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            request.protocol_type,
            request.protocol_name,
            assignments,
        )

    try:
        return _answer_when_ready(broker.groups.sync(request.group_id, request_with), _synced)
    except ProtocolError as error:
        return _synced(SyncAnswer(error.code))


def _synced(answer: SyncAnswer) -> Body:
    return {
        "throttle_time": 0,
        "error_code": answer.error_code,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol,
        "assignment": answer.assignment,
    }


def handle_heartbeat(broker: BrokerContext, request: HeartbeatRequest, _context: RequestContext) -> Body:
    error_code = 0
    try:
        broker.groups.heartbeat(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )
    except ProtocolError as error:
        error_code = error.code
    return {"throttle_time": 0, "error_code": error_code}


def handle_leave(broker: BrokerContext, request: LeaveGroupRequest, context: RequestContext) -> Body:
    if context.version < 3:
        return {"throttle_time": 0, "error_code": _leave(broker, request.group_id, request.member_id, None)}
    try:
        broker.groups.require_coordinated(request.group_id)
    except ProtocolError as error:
        return {"throttle_time": 0, "error_code": error.code, "members": ()}
    return {
        "throttle_time": 0,
        "error_code": 0,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "error_code": _leave(broker, request.group_id, member.member_id, member.group_instance_id),
            }
            for member in request.members
        ],
    }


def _leave(broker: BrokerContext, group_id: str, member_id: str, instance_id: str | None) -> int:
    try:
        broker.groups.leave(group_id, member_id, instance_id)
    except ProtocolError as error:
        return error.code
    return 0


# --- Looking at groups ---


def named_groups(broker: BrokerContext, request: Entity) -> Iterator[tuple[str, int]]:
    """Of ConsumerGroupDescribe."""
    return partitions_of_named(broker, request.group_ids)


def described_groups(broker: BrokerContext, request: DescribeGroupsRequest) -> Iterator[tuple[str, int]]:
    """Of DescribeGroups."""
    return partitions_of_named(broker, request.groups)


def handle_describe(broker: BrokerContext, request: DescribeGroupsRequest, context: RequestContext) -> Body:
    return {
        "throttle_time": 0,
        "groups": [_described(broker, group_id, request, context) for group_id in request.groups],
    }


def _described(
    broker: BrokerContext, group_id: str, request: DescribeGroupsRequest, context: RequestContext
) -> Body:
    nothing: dict[str, Any] = {
        "error_code": 0,
        "error_message": None,
        "group_id": group_id,
        "group_state": "",
        "protocol_type": "",
        "protocol_data": "",
        "members": (),
    }
    try:
        require(broker, context, Operation.DESCRIBE, ResourceType.GROUP, group_id)
        if request.include_authorized_operations:
            nothing["authorized_operations"] = authorized_operations(
                broker, context, ResourceType.GROUP, group_id
            )
        group = broker.groups.classic_group(group_id)
    except GroupIdNotFound as error:
        if context.version < 6:
            return {**nothing, "group_state": ClassicState.DEAD.value}
        return {
            **nothing,
            "error_code": error.code,
            "error_message": error.message,
            "group_state": ClassicState.DEAD.value,
        }
    except ProtocolError as error:
        return {**nothing, "error_code": error.code, "error_message": error.message}
    is_stable = group.state is ClassicState.STABLE
    return {
        **nothing,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type or "",
        # Before it is stable, nothing is agreed on.
        "protocol_data": (group.protocol or "") if is_stable else "",
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata(group.protocol) if is_stable else b"",
                "member_assignment": member.assignment if is_stable else b"",
            }
            for member in group.members
        ],
    }


def handle_list(broker: BrokerContext, request: ListGroupsRequest, context: RequestContext) -> Body:
    sees_all = allows_on_cluster(broker, context, Operation.DESCRIBE, quietly=True)
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    groups: list[Body] = []
    error_code = 0
    try:
        groups += [
            _listed(group)
            for group in broker.groups.groups()
            if _is_wanted(group, states, types)
            and (
                sees_all
                or allows(
                    broker,
                    context,
                    Operation.DESCRIBE,
                    ResourceType.GROUP,
                    group.group_id,
                    quietly=True,
                )
            )
        ]
    except ProtocolError as error:
        error_code = error.code
    return {"throttle_time": 0, "error_code": error_code, "groups": groups}


def _is_wanted(group: GroupKind, states: set[str], types: set[str]) -> bool:
    has_state = not states or group.state.value.lower() in states
    return has_state and (not types or group.group_type.value in types)


def _listed(group: GroupKind) -> Body:
    return {
        "group_id": group.group_id,
        "protocol_type": group.protocol_type or "",
        "group_state": group.state.value,
        "group_type": group.group_type.value,
    }


def deleted_groups(broker: BrokerContext, request: DeleteGroupsRequest) -> Iterator[tuple[str, int]]:
    """Of DeleteGroups."""
    return partitions_of_named(broker, request.groups_names)


async def handle_delete(broker: BrokerContext, request: DeleteGroupsRequest, context: RequestContext) -> Body:
    results = [
        {"group_id": group_id, "error_code": await _delete(broker, group_id, context)}
        for group_id in request.groups_names
    ]
    return {"throttle_time": 0, "results": results}


async def _delete(broker: BrokerContext, group_id: str, context: RequestContext) -> int:
    try:
        require(broker, context, Operation.DELETE, ResourceType.GROUP, group_id)
        await broker.groups.delete_group(group_id)
    except ProtocolError as error:
        return error.code
    return 0
