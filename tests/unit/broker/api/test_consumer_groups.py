from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from tests.support.group_requests import commit_fields
from tests.unit.broker.api.brokers import LocalBroker

from mainstem_broker.errors import (
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    InvalidGroupId,
    InvalidRegularExpression,
    InvalidRequest,
    ProtocolError,
    StaleMemberEpoch,
    UnknownMemberId,
    UnsupportedAssignor,
)
from mainstem_broker.protocol.wire import Body

JOINS = {
    "group_id": "g",
    "member_id": "m",
    "member_epoch": 0,
    "rebalance_timeout": 60_000,
    "subscribed_topic_names": ["t"],
    "topic_partitions": [],
}


async def heartbeat(broker: LocalBroker, version: int = 1, **fields: Any) -> Body:
    """By default of a member that joins and reads the topic "t"."""
    return await broker.answer("ConsumerGroupHeartbeat", version, {**JOINS, **fields})


def assigned(broker: LocalBroker) -> list[Body]:
    """All partitions of "t"."""
    return [{"topic_id": broker.view.topics["t"].topic_id, "partitions": [0, 1]}]


async def test_a_member_learns_its_epoch_its_partitions_and_when_to_come_again(
    coordinator: LocalBroker,
) -> None:
    body = await heartbeat(coordinator)
    assert (body["error_code"], body["member_id"], body["member_epoch"]) == (0, "m", 1)
    assert body["heartbeat_interval"] == 5_000
    assert body["assignment"]["topic_partitions"] == assigned(coordinator)
    follows: Any = dict.fromkeys(("subscribed_topic_names", "topic_partitions")) | {"rebalance_timeout": -1}
    body = await heartbeat(coordinator, member_epoch=1, **follows)
    assert (body["member_epoch"], body["assignment"]) == (1, None), "nothing has changed"
    metadata = coordinator.context.groups.consumer_group("g").members["m"].metadata
    assert (metadata.topics, metadata.rebalance_timeout_ms) == (("t",), 60_000)
    assert (await heartbeat(coordinator, member_epoch=-1, **follows))["member_epoch"] == -1
    assert not coordinator.context.groups.consumer_group("g").members


async def test_the_broker_makes_the_ids_of_members_that_speak_version_0(coordinator: LocalBroker) -> None:
    ids = {(await heartbeat(coordinator, 0, member_id=""))["member_id"] for _ in range(2)}
    assert ids == coordinator.context.groups.consumer_group("g").members.keys()
    assert len(ids) == 2
    assert (await heartbeat(coordinator, 1, member_id=""))["error_code"] == InvalidRequest.code


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"member_epoch": 5}, UnknownMemberId),
        ({"server_assignor": "sticky"}, UnsupportedAssignor),
        ({"subscribed_topic_regex": "("}, InvalidRegularExpression),
        ({"group_id": ""}, InvalidGroupId),
        ({"topic_partitions": None}, InvalidRequest),
        ({"topic_partitions": [{"topic_id": UUID(int=1), "partitions": [0]}]}, InvalidRequest),
    ],
)
async def test_a_heartbeat_that_is_refused_says_why(
    coordinator: LocalBroker, fields: dict[str, Any], error: type[ProtocolError]
) -> None:
    body = await heartbeat(coordinator, **fields)
    assert (body["error_code"], body["heartbeat_interval"], body["assignment"]) == (error.code, 0, None)
    assert body["error_message"]


async def test_a_member_of_another_epoch_may_neither_go_on_nor_commit_nor_fetch(
    coordinator: LocalBroker,
) -> None:
    await heartbeat(coordinator)
    assert (await heartbeat(coordinator, member_epoch=7))["error_code"] == FencedMemberEpoch.code
    for epoch, error in ((1, 0), (0, StaleMemberEpoch.code)):
        fields = commit_fields("g", {("t", 0): 5}, 9, member_id="m", generation=epoch)
        body = await coordinator.answer("OffsetCommit", 9, fields)
        assert body["topics"][0]["partitions"][0]["error_code"] == error
        asks = {"group_id": "g", "member_id": "m", "member_epoch": epoch, "topics": None}
        (group,) = (await coordinator.answer("OffsetFetch", 9, {"groups": [asks]}))["groups"]
        assert (group["error_code"], len(group["topics"])) == (error, 0 if error else 1)


async def test_offsets_of_topics_that_members_read_are_not_deleted(coordinator: LocalBroker) -> None:
    await heartbeat(coordinator)
    topics = [{"name": "t", "partitions": [{"partition_index": 0}]}]
    body = await coordinator.answer("OffsetDelete", 0, {"group_id": "g", "topics": topics})
    assert body["topics"][0]["partitions"][0]["error_code"] == GroupSubscribedToTopic.code


async def test_a_group_is_described_with_its_members_and_a_tool_of_the_other_protocol_is_sent_elsewhere(
    coordinator: LocalBroker,
) -> None:
    await heartbeat(coordinator, instance_id="i", rack_id="r")
    body = await coordinator.answer("ConsumerGroupDescribe", 1, {"group_ids": ["g", "none", ""]})
    group, unknown, nameless = body["groups"]
    assert unknown["error_code"] == GroupIdNotFound.code
    assert nameless["error_code"] == InvalidGroupId.code
    assert (group["error_code"], group["group_state"], group["assignor_name"]) == (0, "Stable", "uniform")
    assert (group["group_epoch"], group["assignment_epoch"]) == (1, 1)
    (member,) = group["members"]
    for name in ("assignment", "target_assignment"):
        told = member.pop(name)["topic_partitions"]
        assert told == [{"topic_name": "t", **one} for one in assigned(coordinator)]
    assert member == {
        "member_id": "m",
        "instance_id": "i",
        "rack_id": "r",
        "member_epoch": 1,
        "client_id": "client",
        "client_host": "/127.0.0.1",
        "subscribed_topic_names": ("t",),
        "subscribed_topic_regex": None,
        "member_type": 1,
    }
    for version, error in ((5, 0), (6, GroupIdNotFound.code)):
        (described,) = (await coordinator.answer("DescribeGroups", version, {"groups": ["g"]}))["groups"]
        assert (described["error_code"], described["group_state"]) == (error, "Dead")


async def test_what_a_member_has_is_reported_beside_what_it_is_to_have(coordinator: LocalBroker) -> None:
    await heartbeat(coordinator)
    await heartbeat(coordinator, member_id="n")
    (group,) = (await coordinator.answer("ConsumerGroupDescribe", 1, {"group_ids": ["g"]}))["groups"]
    assert (group["group_state"], group["group_epoch"]) == ("Reconciling", 2)
    counts = {
        member["member_id"]: [
            sum(len(topic["partitions"]) for topic in member[name]["topic_partitions"])
            for name in ("assignment", "target_assignment")
        ]
        for member in group["members"]
    }
    assert counts == {"m": [2, 1], "n": [0, 1]}


@pytest.mark.parametrize(("types", "is_listed"), [(["consumer"], True), (["classic"], False)])
async def test_a_group_is_listed_by_its_type(
    coordinator: LocalBroker, types: list[str], is_listed: bool
) -> None:
    await heartbeat(coordinator)
    body = await coordinator.answer("ListGroups", 5, {"states_filter": [], "types_filter": types})
    listed = [(one["group_id"], one["group_type"], one["protocol_type"]) for one in body["groups"]]
    assert listed == ([("g", "consumer", "consumer")] if is_listed else [])
