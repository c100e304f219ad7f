"""Topics are created, grown and deleted through stock admin clients (R1, R18, R36)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from uuid import uuid4

import kafka
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


@pytest.fixture
def broker(local_stack: SharedCluster) -> Iterator[Connection]:
    with Connection(next(iter(local_stack.brokers.values()))) as connection:
        yield connection


# Creating


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


def test_partitions_are_placed_where_the_caller_says(
    local_stack: SharedCluster, broker: Connection, admin: Any
) -> None:
    name = f"topic-{uuid4().hex[:12]}"
    last = max(local_stack.brokers)
    answer = broker.ask(
        "create_topics",
        5,
        topics=[
            {
                "name": name,
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [{"partition_index": n, "broker_ids": [last]} for n in range(2)],
                "configs": [],
            }
        ],
        timeout=30_000,
        validate_only=False,
    )
    try:
        assert answer.topics[0].error_code == ErrorCode.none
        partitions = admin.list_topics(name, timeout=ANSWER_SECONDS).topics[name].partitions
        assert [partition.leader for partition in partitions.values()] == [last, last]
    finally:
        admin.delete_topics([name])[name].result(ANSWER_SECONDS)


def test_kafka_python_and_librdkafka_agree_on_the_topics(
    local_stack: SharedCluster, new_topic: TopicFactory
) -> None:
    topics = {new_topic(), new_topic(partitions=3)}
    python = kafka.KafkaAdminClient(bootstrap_servers=local_stack.bootstrap_servers)
    try:
        listed = set(python.list_topics())
    finally:
        python.close()

    assert topics <= listed
    assert topics <= set(new_topic.admin.list_topics(timeout=ANSWER_SECONDS).topics)


# Auto-creation


def test_producing_to_an_unknown_topic_creates_it(
    local_stack: SharedCluster, new_topic: TopicFactory
) -> None:
    for client in CLIENTS:
        name = f"topic-{uuid4().hex[:12]}"
        assert client.produce(local_stack.bootstrap_servers, name, [Message(b"first")]) == [0], client.name
        assert client.consume(local_stack.bootstrap_servers, name, 1) == [Message(b"first")]
        new_topic.admin.delete_topics([name])[name].result(ANSWER_SECONDS)


# Growing and deleting


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


# The cluster


def test_every_broker_and_the_controller_are_described(local_stack: SharedCluster, admin: Any) -> None:
    described = admin.describe_cluster().result(ANSWER_SECONDS)

    assert {node.id: f"{node.host}:{node.port}" for node in described.nodes} == local_stack.brokers
    assert described.controller.id in local_stack.brokers
    assert described.cluster_id


NOT_LEADER: Final = {ErrorCode.not_leader_or_follower}


def test_a_broker_that_does_not_lead_says_so(local_stack: SharedCluster, new_topic: TopicFactory) -> None:
    topic = new_topic(partitions=1)
    leader = new_topic.leader_address(topic)
    others = [address for address in local_stack.brokers.values() if address != leader]
    for address in others:
        with Connection(address) as connection:
            assert produce(connection, topic, 0, encode_batch([Message(b"x")])).error_code in NOT_LEADER
            assert fetch(connection, topic, 0, 0).error_code in NOT_LEADER
            assert list_offset(connection, topic, 0, -1).error_code in NOT_LEADER
