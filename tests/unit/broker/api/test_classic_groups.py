"""Handlers of the group protocol with whatever a client may send, over a real coordinator and its log."""

from __future__ import annotations

import asyncio
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.static.primitive import i32Timedelta
from tests.unit.broker.api.brokers import LocalBroker
from tests.unit.broker.protocol.schema_strategies import (
    entities,
    request_schema,
)

from mainstem_broker.api.api_table import APIS
from mainstem_broker.errors import InvalidRequestBytes
from mainstem_broker.group.coordinator import OFFSETS_TOPIC
from mainstem_broker.protocol.wire import Entity

GROUP_KEYS = (8, 9, 10, 11, 12, 13, 14, 15, 16, 42, 47, 68, 69)
REQUESTS = [
    (key, version)
    for key in GROUP_KEYS
    for version in range(APIS[key].min_version, APIS[key].max_version + 1)
]


async def group_broker(directory: Path) -> LocalBroker:
    """A broker that coordinates every group."""
    broker = LocalBroker(directory, {"group.initial.rebalance.delay.ms": "0"})
    for topic in ("t", OFFSETS_TOPIC):
        broker.create(topic)
    shards = broker.context.groups.shards
    shards.follow(0)
    await shards.loading(0)
    return broker


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


@settings(max_examples=100)
@given(requested=st.lists(requests(), min_size=1, max_size=12), data=st.data())
async def test_whatever_clients_ask_of_groups_they_get_an_answer_in_their_schema(
    tmp_path_factory: pytest.TempPathFactory, requested: list[Entity], data: st.DataObject
) -> None:
    broker = await group_broker(tmp_path_factory.mktemp("data"))
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


async def test_a_find_coordinator_names_the_leader_of_the_groups_partition(tmp_path: Path) -> None:
    broker = await group_broker(tmp_path)
    for version in range(7):
        request: dict[str, Any] = {"coordinator_keys": ["g", "h"]} if version >= 4 else {"key": "g"}
        if version >= 1:
            request["key_type"] = 0
        body = await broker.answer("FindCoordinator", version, request)
        found = body["coordinators"] if version >= 4 else [body]
        assert [(one["error_code"], one["node_id"], one["host"], one["port"]) for one in found] == [
            (0, 1, "host1", 9091)
        ] * len(found)
    await broker.context.groups.shards.stop()
