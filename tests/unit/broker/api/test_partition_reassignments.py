"""The answers to requests that move replicas (R20); `tests/interop/test_reassignment.py` has the moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.unit.broker.api.brokers import LocalBroker

from mainstem_broker.cluster.reassignment import move_of
from mainstem_broker.protocol.topic_partition import TopicPartition


async def alter(
    broker: LocalBroker, *moves: tuple[int, list[int] | None], topic: str = "t", **more: Any
) -> list[str]:
    """The error of each move, which is a partition with its target; null takes a move back."""
    partitions = [{"partition_index": index, "replicas": target} for index, target in moves]
    request = {"timeout": 20, "topics": [{"name": topic, "partitions": partitions}], **more}
    body = await broker.answer("AlterPartitionReassignments", 1, request)
    (answer,) = body["responses"]
    assert [result["partition_index"] for result in answer["partitions"]] == [index for index, _ in moves]
    return [ErrorCode(result["error_code"]).name for result in answer["partitions"]]


async def moving(
    broker: LocalBroker, topics: dict[str, Sequence[int]] | None
) -> dict[TopicPartition, tuple[Sequence[int], ...]]:
    """By partition: replicas, those that are added and those that are removed."""
    named = None
    if topics is not None:
        named = [{"name": name, "partition_indexes": indexes} for name, indexes in topics.items()]
    body = await broker.answer("ListPartitionReassignments", 0, {"topics": named})
    assert body["error_code"] == 0
    assert all(topic["partitions"] for topic in body["topics"])
    return {
        (topic["name"], one["partition_index"]): (
            one["replicas"],
            one["adding_replicas"],
            one["removing_replicas"],
        )
        for topic in body["topics"]
        for one in topic["partitions"]
    }


async def test_a_partition_that_is_named_twice_is_answered_for_each_target(broker: LocalBroker) -> None:
    """A move that was written must not be answered as refused: nobody would take it back."""
    broker.create("t", (1,))
    assert await alter(broker, (0, [2]), (0, [7]), (0, [3]), (0, [])) == [
        "none",
        "invalid_replica_assignment",
        "none",
        "invalid_replica_assignment",
    ]
    assert move_of(broker.view.topics["t"].assignment, 0).target == (3,)


@pytest.mark.parametrize(
    ("partition", "target", "error"),
    [
        (0, [], "invalid_replica_assignment"),
        (0, [2, 2], "invalid_replica_assignment"),
        (0, [1, 9], "invalid_replica_assignment"),
        (0, None, "no_reassignment_in_progress"),
        (5, [2], "unknown_topic_or_partition"),
    ],
)
async def test_what_cannot_be_meant_is_refused_alone(
    broker: LocalBroker, partition: int, target: list[int] | None, error: str
) -> None:
    broker.create("t", (1, 1))
    assert await alter(broker, (partition, target), (1, [2])) == [error, "none"]
    assert (await moving(broker, None)).keys() == {("t", 1)}


async def test_topics_that_are_not_there_or_are_being_deleted_are_not_moved(broker: LocalBroker) -> None:
    broker.create("doomed")
    broker.view.pending_deletions.add("doomed")
    for topic in ("none", "doomed"):
        assert await alter(broker, (0, [2]), topic=topic) == ["unknown_topic_or_partition"]
    assert await moving(broker, {"none": [0], "doomed": [0]}) == {}


async def test_moves_are_listed_replaced_and_taken_back(broker: LocalBroker) -> None:
    """KIP-455"""
    broker.create("t", (1, 1))
    assert await alter(broker, (0, [3])) == ["none"]
    assert await moving(broker, None) == {("t", 0): ((3, 1), (3,), (1,))}
    assert await alter(broker, (0, [2])) == ["none"]
    listed = {("t", 0): ((2, 3, 1), (2, 3), (3, 1))}
    assert await moving(broker, {"t": [1, 0], "none": [0]}) == listed
    assert await moving(broker, {"t": [1]}) == {}
    assert await alter(broker, (0, None)) == ["none"]
    assert move_of(broker.view.topics["t"].assignment, 0).target == (1,)


async def test_a_replica_that_a_partition_has_may_be_kept_though_its_broker_is_down(
    broker: LocalBroker,
) -> None:
    broker.create("t", (3,))
    broker.set_live(1, 2)
    assert await alter(broker, (0, [3, 1])) == ["none"]


async def test_the_number_of_replicas_changes_only_if_the_request_allows_it(broker: LocalBroker) -> None:
    """KIP-860"""
    broker.create("t", (1,))
    keeping: Any = {"allow_replication_factor_change": False}
    assert await alter(broker, (0, [2, 3]), **keeping) == ["invalid_replication_factor"]
    for target in ([2], [3]):  # beside a move under way, the replicas that it leads to count
        assert await alter(broker, (0, target), **keeping) == ["none"]
    assert await alter(broker, (0, [2, 3])) == ["none"]
