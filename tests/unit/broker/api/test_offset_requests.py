from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.support.group_requests import commit_fields, fetch_fields
from tests.support.waiting import settle
from tests.unit.broker.api.brokers import LocalBroker
from tests.unit.broker.api.test_access import errors_in

from mainstem_broker.errors import (
    GroupIdNotFound,
    IllegalGeneration,
    InvalidGroupId,
    NotCoordinator,
    OffsetMetadataTooLarge,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from mainstem_broker.group.coordinator import OFFSETS_TOPIC
from mainstem_broker.protocol.topic_partition import TopicPartition
from mainstem_broker.protocol.wire import Body
from mainstem_broker.replica.partition_state import PartitionState

NOT_THERE = "not-there"
TO_DELETE = {"group_id": "g", "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}]}
MILLENNIA_MS = 9_000 * 365 * 86_400_000
NOTHING = (-1, -1, "", 0)
"""What is fetched of a partition without a committed offset."""


async def commit(
    broker: LocalBroker, version: int, offsets: dict[TopicPartition, int], **more: Any
) -> list[int]:
    """The error codes, by partition."""
    body = await broker.answer("OffsetCommit", version, commit_fields("g", offsets, version, **more))
    return [one["error_code"] for topic in body["topics"] for one in topic["partitions"]]


async def group_fetched(
    broker: LocalBroker, version: int, partitions: dict[str, list[int]] | None, topic_id: UUID | None = None
) -> Body:
    request = fetch_fields("g", partitions, version, topic_id=topic_id)
    body = await broker.answer("OffsetFetch", version, request)
    group: Body = body["groups"][0] if version >= 8 else body
    return group


async def fetch(
    broker: LocalBroker, version: int, partitions: dict[str, list[int]] | None
) -> dict[TopicPartition, tuple[int, int, str, int]]:
    """By partition: offset, leader epoch, metadata, error code."""
    group = await group_fetched(broker, version, partitions)
    assert group["error_code"] == 0
    return {
        (topic["name"], one["partition_index"]): (
            one["committed_offset"],
            one["committed_leader_epoch"],
            one["metadata"],
            one["error_code"],
        )
        for topic in group["topics"]
        for one in topic["partitions"]
    }


@pytest.mark.parametrize("version", range(2, 10))
async def test_trap_15_what_is_committed_is_fetched_with_its_epoch_and_metadata(
    coordinator: LocalBroker, version: int
) -> None:
    assert await fetch(coordinator, 1, {"t": [0]}) == {("t", 0): NOTHING}
    assert await commit(coordinator, version, {("t", 0): 5, ("t", 1): 6}, metadata="note") == [0, 0]
    epoch = 3 if version >= 6 else -1
    committed = {("t", 0): (5, epoch, "note", 0), ("t", 1): (6, epoch, "note", 0)}
    for fetch_version in range(1, 10):
        named = await fetch(coordinator, fetch_version, {"t": [0, 1], NOT_THERE: [0]})
        assert named == {**committed, (NOT_THERE, 0): NOTHING}
        if fetch_version >= 2:
            assert await fetch(coordinator, fetch_version, None) == committed


async def test_topics_are_named_by_id_in_version_10(coordinator: LocalBroker) -> None:
    topic_id, nobody = coordinator.view.topics["t"].topic_id, uuid4()
    assert await commit(coordinator, 10, {("t", 0): 5}, topic_id=topic_id) == [0]
    assert await commit(coordinator, 10, {("t", 0): 6}, topic_id=nobody) == [UnknownTopicId.code]
    for requested in ({"t": [0]}, None):
        (topic,) = (await group_fetched(coordinator, 10, requested, topic_id))["topics"]
        (partition,) = topic["partitions"]
        assert (topic["topic_id"], partition["committed_offset"]) == (topic_id, 5)
    (topic,) = (await group_fetched(coordinator, 10, {"t": [0]}, nobody))["topics"]
    (partition,) = topic["partitions"]
    assert (partition["committed_offset"], partition["error_code"]) == (-1, UnknownTopicId.code)


async def test_trap_34_a_commit_for_a_partition_that_is_not_there_is_refused_alone(
    coordinator: LocalBroker,
) -> None:
    offsets = {("t", 0): 5, ("t", 99): 5, (NOT_THERE, 0): 5}
    unknown = UnknownTopicOrPartition.code
    assert await commit(coordinator, 8, offsets) == [0, unknown, unknown]
    assert await fetch(coordinator, 8, None) == {("t", 0): (5, 3, "", 0)}


async def test_a_topic_that_another_broker_has_made_is_heard_of_before_a_commit_is_refused(
    coordinator: LocalBroker,
) -> None:
    coordinator.cluster.on_catch_up = lambda: coordinator.create("new")
    assert await commit(coordinator, 8, {("new", 0): 5}) == [0]


async def test_metadata_has_a_largest_size(coordinator: LocalBroker) -> None:
    """offset.metadata.max.bytes"""
    assert await commit(coordinator, 8, {("t", 0): 5}, metadata="x" * 4_096) == [0]
    too_large = OffsetMetadataTooLarge.code
    assert await commit(coordinator, 8, {("t", 0): 6}, metadata="x" * 4_097) == [too_large]
    assert (await fetch(coordinator, 8, {"t": [0]}))["t", 0][0] == 5


@pytest.mark.parametrize(
    ("version", "requested", "retention_ms"),
    [
        (2, {"retention_time": 60_000}, 60_000),
        (2, {"retention_time": MILLENNIA_MS}, MILLENNIA_MS),
        (4, {"retention_time": 0}, 0),
        (4, {"retention_time": -1}, None),
        (5, {}, None),
    ],
)
async def test_an_early_client_may_say_for_how_long_its_offsets_are_kept(
    coordinator: LocalBroker, version: int, requested: dict[str, int], retention_ms: int | None
) -> None:
    request = commit_fields("g", {("t", 0): 5}, version) | requested
    await coordinator.answer("OffsetCommit", version, request)
    offset = coordinator.context.groups.committed("g", None)["t", 0]
    kept_ms = None if offset.expire_ms is None else offset.expire_ms - offset.commit_ms
    assert kept_ms == retention_ms


async def test_a_commit_of_a_generation_that_is_not_there_is_refused_and_stores_nothing(
    coordinator: LocalBroker,
) -> None:
    refused = await commit(coordinator, 8, {("t", 0): 5}, member_id="m", generation=1)
    assert refused == [IllegalGeneration.code]
    assert await fetch(coordinator, 8, {"t": [0]}) == {("t", 0): NOTHING}


async def test_trap_21_another_broker_never_says_that_nothing_is_committed(broker: LocalBroker) -> None:
    """A client would begin at auto.offset.reset. Version 1 has errors in partitions only."""
    code = NotCoordinator.code
    (topic,) = (await group_fetched(broker, 1, {"t": [0]}))["topics"]
    assert [one["error_code"] for one in topic["partitions"]] == [code]
    for version in range(2, 11):
        group = await group_fetched(broker, version, {"t": [0]})
        assert (group["error_code"], list(group["topics"])) == (code, [])


async def delete(broker: LocalBroker, group_id: str, partitions: dict[str, list[int]]) -> Body:
    topics = [
        {"name": name, "partitions": [{"partition_index": index} for index in indexes]}
        for name, indexes in partitions.items()
    ]
    return await broker.answer("OffsetDelete", 0, {"group_id": group_id, "topics": topics})


async def test_offsets_are_deleted_one_by_one(coordinator: LocalBroker) -> None:
    """KIP-496"""
    await commit(coordinator, 8, {("t", 0): 5, ("t", 1): 6})
    body = await delete(coordinator, "g", {"t": [0, 9], NOT_THERE: [0]})
    codes = [one["error_code"] for topic in body["topics"] for one in topic["partitions"]]
    unknown = UnknownTopicOrPartition.code
    assert (body["error_code"], codes) == (0, [0, unknown, unknown])
    assert await fetch(coordinator, 8, {"t": [0, 1]}) == {("t", 0): NOTHING, ("t", 1): (6, 3, "", 0)}
    assert (await delete(coordinator, "none", {"t": [1]}))["error_code"] == GroupIdNotFound.code
    assert (await delete(coordinator, "", {"t": [1]}))["error_code"] == InvalidGroupId.code


@pytest.mark.parametrize(
    ("name", "version", "request_fields"),
    [
        ("OffsetCommit", 8, commit_fields("g", {("t", 1): 6}, 8)),
        ("OffsetDelete", 0, TO_DELETE),
        ("DeleteGroups", 2, {"groups_names": ["g"]}),
    ],
)
async def test_what_changes_a_group_is_answered_when_it_is_replicated(
    coordinator: LocalBroker, name: str, version: int, request_fields: dict[str, Any]
) -> None:
    await commit(coordinator, 8, {("t", 0): 5})
    coordinator.set_state(OFFSETS_TOPIC, 0, PartitionState(1, 0, (1, 2), 1, 1))
    answering = asyncio.create_task(coordinator.answer(name, version, request_fields))
    await settle()
    assert not answering.done()
    coordinator.set_state(OFFSETS_TOPIC, 0, PartitionState(1, 0, (1,), 1, 2))
    assert list(errors_in(await answering)) == []
