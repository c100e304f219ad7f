"""Handlers of the group protocol with whatever a client may send, over a real coordinator and its log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.static.primitive import i32Timedelta
from tests.unit.broker.api.brokers import context_of, read_by_client
from tests.unit.broker.group.local_coordinator import LocalCoordinator
from tests.unit.broker.protocol.schema_strategies import (
    encode_request,
    entities,
    request_schema,
    unknown_fields,
)

from mainstem_broker.api.api_table import APIS
from mainstem_broker.api.context import RequestContext
from mainstem_broker.cluster.member import ClusterMember
from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.cluster.znodes import BrokerRegistration, Endpoint, TopicAssignment
from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.errors import InvalidRequestBytes
from mainstem_broker.group.coordinator import OFFSETS_TOPIC
from mainstem_broker.protocol.codec import decode_header, decode_request
from mainstem_broker.protocol.wire import Entity
from mainstem_broker.replica.manager import ReplicaManager
from mainstem_broker.replica.partition_state import PartitionState

GROUP_KEYS = (8, 9, 10, 11, 12, 13, 14, 15, 16, 42, 47, 68, 69)
REQUESTS = [
    (key, version)
    for key in GROUP_KEYS
    for version in range(APIS[key].min_version, APIS[key].max_version + 1)
]
SETTINGS = {"broker.id": "1", "zookeeper.connect": "z", "group.initial.rebalance.delay.ms": "0"}


@dataclass
class PlayedMember:
    """Knows the topics "t" of `local` and `__consumer_offsets`, and nothing newer."""

    local: LocalCoordinator
    view: ClusterView = field(default_factory=ClusterView)

    def __post_init__(self) -> None:
        self.view.set_brokers(
            [BrokerRegistration(1, (Endpoint("PLAINTEXT", "PLAINTEXT", "host1", 9091),), None)]
        )
        state = PartitionState(1, 1, (1,), 1, 1)
        for name, topic_id in (
            ("t", self.local.topics.ids["t"]),
            (OFFSETS_TOPIC, self.local.partition.topic_id),
        ):
            self.view.set_topic(TopicAssignment(name, topic_id, {0: (1,)}), {})
            self.view.set_state(name, 0, state)

    async def catch_up(self, timeout_ms: float) -> bool:
        return True


@dataclass
class PlayedReplicas:
    local: LocalCoordinator

    def find(self, topic: str, partition: int) -> Any:
        return self.local.partition if topic == OFFSETS_TOPIC else None


class GroupBroker:
    """A broker that coordinates every group; requests go through the codec both ways."""

    def __init__(self, local: LocalCoordinator) -> None:
        self.context = context_of(
            BrokerConfig(SETTINGS),
            cast(ClusterMember, PlayedMember(local)),
            cast(ReplicaManager, PlayedReplicas(local)),
        )
        local.coordinator = self.context.groups

    async def answer(self, entity: Entity) -> Entity:
        """What the client reads, or None if it has to wait for others.

        Raises:
            AssertionError: the answer has fields that no version of the schema knows.
        """
        key, version = int(entity.__api_key__), int(entity.__version__)
        api = APIS[key]
        frame = memoryview(encode_request(entity, 1, "client"))
        header, position = decode_header(frame)
        request = decode_request(header, frame, position, api.model_for(version))
        if api.partitions_of is not None:
            assert self.context.leads_all(api.partitions_of(self.context, request))
        body = api.handler(
            self.context, request, RequestContext(version, "client", "127.0.0.1:1", "PLAINTEXT")
        )
        if isinstance(body, Awaitable):
            try:
                body = await asyncio.wait_for(body, 0.01)
            except TimeoutError:
                return None
        assert isinstance(body, dict)
        assert unknown_fields(key, body) == []
        return read_by_client(key, version, body)


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
    local = LocalCoordinator(tmp_path_factory.mktemp("data"))
    broker = GroupBroker(local)
    await local.load()
    members = [""]
    for drawn in requested:
        entity = drawn
        if "member_id" in {one.name for one in fields(drawn)}:
            entity = replace(drawn, member_id=data.draw(st.sampled_from(members)))
        try:
            answer = await broker.answer(entity)
        except InvalidRequestBytes:
            continue  # kio draws durations that no frame can hold
        if answer is not None and int(entity.__api_key__) == 11:
            members.append(answer.member_id)
    await local.coordinator.shards.stop()


async def test_a_find_coordinator_names_the_leader_of_the_groups_partition(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    local = LocalCoordinator(tmp_path_factory.mktemp("data"))
    broker = GroupBroker(local)
    for version in range(7):
        schema = request_schema(10, version)
        names = {one.name for one in fields(schema)}
        values: dict[str, Any] = {"coordinator_keys": ("g", "h")} if version >= 4 else {"key": "g"}
        if "key_type" in names:
            values["key_type"] = 0
        answer = await broker.answer(schema(**values))
        result = answer.coordinators if version >= 4 else [answer]
        assert [(one.error_code, one.node_id, one.host, one.port) for one in result] == [
            (0, 1, "host1", 9091)
        ] * len(result)
    await local.coordinator.shards.stop()
