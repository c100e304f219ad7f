"""Handlers of the group protocol with whatever a client may send, over a real coordinator and its log."""

from __future__ import annotations

import asyncio
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.static.primitive import i32Timedelta
from tests.support.group_requests import join_fields
from tests.unit.broker.api.brokers import LocalBroker, coordinating_broker
from tests.unit.broker.api.test_access import REQUESTS as REQUESTS_BY_NAME
from tests.unit.broker.api.test_access import TOPIC_ID, errors_in
from tests.unit.broker.protocol.schema_strategies import (
    entities,
    request_schema,
)

from mainstem_broker.api.api_table import APIS, Api
from mainstem_broker.errors import (
    GroupIdNotFound,
    IllegalGeneration,
    InvalidRequestBytes,
    MemberIdRequired,
    NonEmptyGroup,
    NotCoordinator,
    UnknownMemberId,
)
from mainstem_broker.protocol.wire import Body, Entity

SESSION_MS = 60_000
"""Much longer than a test, also on a machine that is busy."""
OF_ONE_GROUP = (8, 9, 11, 12, 13, 14, 15, 42, 47, 68, 69)
GROUP_KEYS = (*OF_ONE_GROUP, 10, 16)
REQUESTS = [
    (key, version)
    for key in GROUP_KEYS
    for version in range(APIS[key].min_version, APIS[key].max_version + 1)
]


@st.composite
def requests(draw: st.DrawFn) -> Entity:
    """Any request, often about a group that others are about too, from a member that may be in it."""
    key, version = draw(st.sampled_from(REQUESTS))
    entity = draw(entities(request_schema(key, version)))
    names = {one.name for one in fields(entity)}
    changes: dict[str, Any] = {}
    if "group_id" in names:
        changes["group_id"] = draw(st.sampled_from(["g", "g", "h", ""]))
    if key == 11:
        changes["protocol_type"] = "consumer"
        if draw(st.booleans()):
            changes["session_timeout"] = i32Timedelta.parse(timedelta(seconds=10))
    if key in (8, 12, 14) and draw(st.booleans()):
        generation = "generation_id_or_member_epoch" if key == 8 else "generation_id"
        changes[generation] = type(getattr(entity, generation))(draw(st.integers(-1, 3)))
    return replace(entity, **changes)


@settings(max_examples=50)  # each waits for some answers that do not come
@given(requested=st.lists(requests(), min_size=1, max_size=12), data=st.data())
async def test_whatever_clients_ask_of_groups_they_get_an_answer_in_their_schema(
    tmp_path_factory: pytest.TempPathFactory, requested: list[Entity], data: st.DataObject
) -> None:
    broker = await coordinating_broker(tmp_path_factory.mktemp("data"))
    members = [""]
    for drawn in requested:
        entity = drawn
        if "member_id" in {one.name for one in fields(drawn)}:
            entity = replace(drawn, member_id=data.draw(st.sampled_from(members)))
        try:
            body = await asyncio.wait_for(broker.answer_to(entity), 0.01)
        except TimeoutError:
            continue  # it has to wait for others
        except InvalidRequestBytes:
            continue  # kio draws durations that no frame can hold
        assert body is not None
        if int(entity.__api_key__) == 11:
            members.append(body["member_id"])
    await broker.context.groups.shards.stop()


async def test_a_find_coordinator_names_the_leader_of_the_groups_partition(coordinator: LocalBroker) -> None:
    for version in range(7):
        request: dict[str, Any] = {"coordinator_keys": ["g", "h"]} if version >= 4 else {"key": "g"}
        if version >= 1:
            request["key_type"] = 0
        body = await coordinator.answer("FindCoordinator", version, request)
        found = body["coordinators"] if version >= 4 else [body]
        assert [(one["error_code"], one["node_id"], one["host"], one["port"]) for one in found] == [
            (0, 1, "host1", 9091)
        ] * len(found)


async def join(broker: LocalBroker, version: int, **more: Any) -> Body:
    """A member of the group "g" joins, with a second request if it is sent back for its id."""
    fields = join_fields("g", "", version, protocols=[("range", b"metadata")], session_ms=SESSION_MS)
    request = {**fields, **more}
    body = await broker.answer("JoinGroup", version, request)
    assert (body["error_code"] == MemberIdRequired.code) == (version >= 4), "KIP-394"
    if version >= 4:
        body = await broker.answer("JoinGroup", version, {**request, "member_id": body["member_id"]})
    assert body["error_code"] == 0
    return body


async def sync(broker: LocalBroker, member_id: str, generation: int = 1) -> Body:
    request = {
        "group_id": "g",
        "generation_id": generation,
        "member_id": member_id,
        "assignments": [{"member_id": member_id, "assignment": b"all"}],
    }
    return await broker.answer("SyncGroup", 3, request)


async def stable_group(broker: LocalBroker) -> str:
    """The id of the only member of "g"."""
    joined = await join(broker, 5)
    answer = await sync(broker, joined["member_id"], joined["generation_id"])
    assert (answer["error_code"], answer["assignment"]) == (0, b"all")
    return str(joined["member_id"])


@pytest.mark.parametrize("version", range(10))
async def test_trap_02_every_version_of_join_group_forms_a_group(
    coordinator: LocalBroker, version: int
) -> None:
    joined = await join(coordinator, version)
    assert (joined["generation_id"], joined["protocol_name"]) == (1, "range")
    assert joined["leader"] == joined["member_id"]
    assert [(one["member_id"], one["metadata"]) for one in joined["members"]] == [
        (joined["member_id"], b"metadata")
    ]


@pytest.mark.parametrize(
    ("version", "requested", "timeout_ms"),
    [
        (0, {}, SESSION_MS),
        (1, {"rebalance_timeout": -1}, SESSION_MS),
        (9, {"rebalance_timeout": 7_000}, 7_000),
    ],
)
async def test_trap_29_without_a_rebalance_timeout_it_is_the_sessions(
    coordinator: LocalBroker, version: int, requested: dict[str, int], timeout_ms: int
) -> None:
    await join(coordinator, version, **requested)
    (member,) = coordinator.context.groups.classic_group("g").members
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (SESSION_MS, timeout_ms)


@pytest.mark.parametrize(("version", "skips"), [(8, False), (9, True)])
async def test_a_static_leader_that_returns_assigns_nothing(
    coordinator: LocalBroker, version: int, skips: bool
) -> None:
    """KIP-814; before, it gets another leader."""
    request = join_fields("g", "", version, instance_id="i", session_ms=SESSION_MS)
    first = await coordinator.answer("JoinGroup", version, request)
    assert (await sync(coordinator, first["member_id"]))["error_code"] == 0
    again = await coordinator.answer("JoinGroup", version, request)
    assert (again["error_code"], again["generation_id"], again["skip_assignment"]) == (0, 1, skips)
    assert (again["leader"] == again["member_id"]) is skips


async def test_a_member_of_another_generation_or_of_none_gets_that_error(coordinator: LocalBroker) -> None:
    member_id = await stable_group(coordinator)
    for name, generation, error in (
        (member_id, 1, 0),
        (member_id, 2, IllegalGeneration.code),
        ("nobody", 1, UnknownMemberId.code),
    ):
        request = {"group_id": "g", "generation_id": generation, "member_id": name}
        assert (await coordinator.answer("Heartbeat", 3, request))["error_code"] == error
        assert (await sync(coordinator, name, generation))["error_code"] == error


async def test_several_members_leave_by_one_request_and_each_is_answered(coordinator: LocalBroker) -> None:
    leaving = {"group_id": "g", "member_id": await stable_group(coordinator)}
    members = [{"member_id": "nobody"}, {"member_id": leaving["member_id"]}]
    body = await coordinator.answer("LeaveGroup", 3, {"group_id": "g", "members": members})
    assert body["error_code"] == 0
    assert [one["error_code"] for one in body["members"]] == [UnknownMemberId.code, 0]
    assert coordinator.context.groups.classic_group("g").is_empty
    leaving["member_id"] = await stable_group(coordinator)
    codes = [(await coordinator.answer("LeaveGroup", 2, leaving))["error_code"] for _ in range(2)]
    assert codes == [0, UnknownMemberId.code]


async def test_a_group_is_described_with_its_members_and_one_that_is_not_there_as_dead(
    coordinator: LocalBroker,
) -> None:
    member_id = await stable_group(coordinator)
    for version, error in ((5, 0), (6, GroupIdNotFound.code)):
        body = await coordinator.answer("DescribeGroups", version, {"groups": ["g", "none"]})
        known, unknown = body["groups"]
        assert (known["error_code"], known["group_state"]) == (0, "Stable")
        assert (known["protocol_type"], known["protocol_data"]) == ("consumer", "range")
        assert known["members"] == [
            {
                "member_id": member_id,
                "group_instance_id": None,
                "client_id": "client",
                "client_host": "/127.0.0.1",
                "member_metadata": b"metadata",
                "member_assignment": b"all",
            }
        ]
        assert (unknown["error_code"], unknown["group_state"], unknown["members"]) == (error, "Dead", ())


@pytest.mark.parametrize(
    ("states", "types", "is_listed"),
    [
        ([], [], True),
        (["stable"], ["Classic"], True),
        (["Empty"], [], False),
        ([], ["consumer"], False),
        (["Empty", "Stable"], ["consumer", "classic"], True),
    ],
)
async def test_groups_are_listed_by_state_and_type(
    coordinator: LocalBroker, states: list[str], types: list[str], is_listed: bool
) -> None:
    """KIP-518, KIP-848"""
    await stable_group(coordinator)
    body = await coordinator.answer("ListGroups", 5, {"states_filter": states, "types_filter": types})
    listed = [(one["group_id"], one["group_state"], one["group_type"]) for one in body["groups"]]
    assert (body["error_code"], listed) == (0, [("g", "Stable", "classic")] if is_listed else [])


async def test_only_groups_without_members_are_deleted(coordinator: LocalBroker) -> None:
    async def delete() -> list[int]:
        body = await coordinator.answer("DeleteGroups", 2, {"groups_names": ["none", "g"]})
        return [one["error_code"] for one in body["results"]]

    member_id = await stable_group(coordinator)
    assert await delete() == [GroupIdNotFound.code, NonEmptyGroup.code]
    await coordinator.answer("LeaveGroup", 0, {"group_id": "g", "member_id": member_id})
    assert await delete() == [GroupIdNotFound.code, 0]
    assert await delete() == [GroupIdNotFound.code] * 2


@pytest.mark.parametrize("api", [APIS[key] for key in OF_ONE_GROUP], ids=lambda api: api.name)
async def test_trap_21_a_broker_that_does_not_coordinate_a_group_says_so_to_every_request(
    broker: LocalBroker, api: Api
) -> None:
    broker.create("t", topic_id=TOPIC_ID)
    body = await broker.answer(api.name, api.max_version, REQUESTS_BY_NAME[api.name])
    assert set(errors_in(body)) == {"not_coordinator"}
    assert body.get("error_code", NotCoordinator.code) == NotCoordinator.code, "where clients look first"
