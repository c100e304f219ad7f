"""Topics are created, grown and deleted through stock admin clients (R1, R18, R36)."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import NewPartitions
from kio.schema.errors import ErrorCode
from tests.support.clusters import SharedCluster
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.support.stock_clients import CLIENTS
from tests.support.topics import ANSWER_SECONDS, TopicFactory
from tests.support.waiting import wait_until
from tests.support.wire import Connection, fetch, list_offset, produce


@pytest.fixture
def admin(new_topic: TopicFactory) -> Any:
    return new_topic.admin


def test_a_created_topic_has_its_partitions_led_at_once_by_all_brokers(
    local_stack: SharedCluster, new_topic: TopicFactory
) -> None:
    """Trap T26: `created` means that a producer finds leaders, and leaders that know."""
    topic = new_topic(partitions=6)

    metadata = new_topic.admin.list_topics(topic, timeout=ANSWER_SECONDS)
    partitions = metadata.topics[topic].partitions

    assert sorted(partitions) == list(range(6))
    assert {partition.leader for partition in partitions.values()} == set(local_stack.brokers)
    assert all(
        partition.replicas == partition.isrs == [partition.leader] for partition in partitions.values()
    )
    for number in partitions:
        with Connection(new_topic.leader_address(topic, number)) as leader:
            assert produce(leader, topic, number, encode_batch([Message(b"x")])).error_code == ErrorCode.none


def test_producing_to_an_unknown_topic_creates_it(
    local_stack: SharedCluster, new_topic: TopicFactory
) -> None:
    for client in CLIENTS:
        name = f"topic-{uuid4().hex[:12]}"
        assert client.produce(local_stack.bootstrap_servers, name, [Message(b"first")]) == [0], client.name
        assert client.consume(local_stack.bootstrap_servers, name, 1) == [Message(b"first")]
        new_topic.admin.delete_topics([name])[name].result(ANSWER_SECONDS)


def test_a_topic_grows_and_keeps_what_it_has(
    local_stack: SharedCluster, new_topic: TopicFactory, admin: Any
) -> None:
    topic = new_topic()
    CLIENTS[0].produce(local_stack.bootstrap_servers, topic, [Message(b"kept")])

    admin.create_partitions([NewPartitions(topic, 4)], operation_timeout=ANSWER_SECONDS)[topic].result(
        ANSWER_SECONDS
    )

    def leaders() -> set[int]:
        partitions = admin.list_topics(topic, timeout=ANSWER_SECONDS).topics[topic].partitions
        return {partition.leader for partition in partitions.values()} if len(partitions) == 4 else set()

    assert wait_until(leaders, "four partitions are led") == set(local_stack.brokers)
    assert CLIENTS[0].consume(local_stack.bootstrap_servers, topic, 1) == [Message(b"kept")]


def test_a_deleted_topic_is_gone_and_a_new_one_of_its_name_is_empty(
    local_stack: SharedCluster, new_topic: TopicFactory, admin: Any
) -> None:
    """Trap T37: another topic, with another id."""
    topic = new_topic()
    address = new_topic.leader_address(topic)
    CLIENTS[0].produce(local_stack.bootstrap_servers, topic, [Message(b"old")] * 3)
    old_id = _topic_id(address, topic)

    admin.delete_topics([topic], operation_timeout=ANSWER_SECONDS)[topic].result(ANSWER_SECONDS)
    wait_until(
        lambda: topic not in admin.list_topics(timeout=ANSWER_SECONDS).topics,
        "the topic is out of the metadata",
    )
    with Connection(address) as connection:
        assert fetch(connection, topic, 0, 0).error_code == ErrorCode.unknown_topic_or_partition

    new_topic(name=topic)
    with Connection(new_topic.leader_address(topic)) as connection:
        assert list_offset(connection, topic, 0, -1).offset == 0
        assert produce(connection, topic, 0, encode_batch([Message(b"new")])).base_offset == 0
    assert _topic_id(address, topic) != old_id


def _topic_id(address: str, topic: str) -> Any:
    with Connection(address) as connection:
        answer = connection.ask(
            "metadata",
            10,
            topics=[{"topic_id": None, "name": topic}],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        assert answer.topics[0].topic_id
        return answer.topics[0].topic_id
