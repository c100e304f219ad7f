from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.unit.broker.api.brokers import LocalBroker, run

from mainstem_broker.replica.partition_state import PartitionState
from mainstem_broker.security.acl import OPERATIONS_ON, ResourceType

Cursor = tuple[str, int] | None


def page(
    broker: LocalBroker, *names: str, limit: int = 2_000, cursor: Cursor = None
) -> tuple[list[tuple[str, list[int]]], Cursor]:
    """(topics with the partitions that are told of each, where the next page begins)."""
    requests: dict[str, Any] = {
        "topics": [{"name": name} for name in names],
        "response_partition_limit": limit,
        "cursor": cursor and {"topic_name": cursor[0], "partition_index": cursor[1]},
    }
    answer = run(broker.answer("DescribeTopicPartitions", 0, requests))
    following = answer["next_cursor"]
    return (
        [
            (topic["name"], [one["partition_index"] for one in topic["partitions"]])
            for topic in answer["topics"]
        ],
        following and (following["topic_name"], following["partition_index"]),
    )


@pytest.fixture
def topics(broker: LocalBroker) -> LocalBroker:
    """a, b and c with 3, 2 and 2 partitions."""
    for name, count in (("c", 2), ("a", 3), ("b", 2)):
        broker.create(name, [1] * count)
    return broker


@pytest.mark.parametrize("limit", range(1, 9))
def test_pages_hold_what_was_asked_for_and_nothing_twice(topics: LocalBroker, limit: int) -> None:
    reports: list[tuple[str, int]] = []
    cursor: Cursor = None
    for _ in range(10):
        result, cursor = page(topics, limit=limit, cursor=cursor)
        partitions = [(name, index) for name, indexes in result for index in indexes]
        assert 0 < len(partitions) <= limit
        reports += partitions
        if cursor is None:
            break
    assert reports == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("c", 0), ("c", 1)]


def test_a_topic_is_reported_with_all_operations_where_nobody_is_authorized(broker: LocalBroker) -> None:
    """KIP-430. The request has no flag for it, and Java's admin client describes topics by it."""
    broker.create("t")
    (topic,) = run(broker.answer("DescribeTopicPartitions", 0, {"topics": [{"name": "t"}]}))["topics"]
    expected = sum(1 << operation for operation in OPERATIONS_ON[ResourceType.TOPIC])
    assert topic["topic_authorized_operations"] == expected


def test_a_page_begins_behind_a_topic_that_is_gone(topics: LocalBroker) -> None:
    assert page(topics, cursor=("aa", 7)) == ([("b", [0, 1]), ("c", [0, 1])], None)
    assert page(topics, cursor=("d", 0)) == ([], None)
    # Named ones that are gone are answered with an error, and the cursor is about them alone.
    named = page(topics, "aa", "b", cursor=("aa", 1))
    assert named == ([("aa", []), ("b", [0, 1])], None)


def test_a_page_is_no_larger_than_the_broker_allows(tmp_path: Any) -> None:
    broker = LocalBroker(tmp_path, {"max.request.partition.size.limit": "2"})
    broker.create("a", [1] * 3)
    assert page(broker) == ([("a", [0, 1])], ("a", 2))


@pytest.mark.parametrize(
    ("name", "error"), [("nowhere", "unknown_topic_or_partition"), ("no/name", "invalid_topic_exception")]
)
def test_an_unknown_topic_is_reported_beside_the_others(topics: LocalBroker, name: str, error: str) -> None:
    request = {"topics": [{"name": name}, {"name": "a"}], "response_partition_limit": 10, "cursor": None}
    answer = run(topics.answer("DescribeTopicPartitions", 0, request))
    assert {topic["name"]: ErrorCode(topic["error_code"]).name for topic in answer["topics"]} == {
        name: error,
        "a": "none",
    }


def test_eligible_leaders_are_reported(broker: LocalBroker) -> None:
    broker.create("t", [1])
    broker.set_state("t", 0, PartitionState(1, 1, (1,), 1, partition_epoch=5, elr=(2, 3)))
    answer = run(broker.answer("DescribeTopicPartitions", 0, {"topics": [], "cursor": None}))
    (partition,) = answer["topics"][0]["partitions"]
    assert (partition["leader_id"], partition["eligible_leader_replicas"]) == (1, (2, 3))
    assert answer["topics"][0]["topic_id"] == broker.view.topics["t"].topic_id
