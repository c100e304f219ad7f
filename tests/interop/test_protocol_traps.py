"""What other brokers got wrong and clients stumbled over; `trap_NN` are the numbers of our list of them.

Raw requests, because a stock client hides such a fault until it meets the one release that does not.
"""

from __future__ import annotations

import struct
import time
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.support.clusters import SharedCluster
from tests.support.messages import Message
from tests.support.record_batches import encode_batch, read_headers
from tests.support.topics import TopicFactory
from tests.support.wire import (
    Connection,
    encode_request,
    fetch,
    fetch_fields,
    produce,
    produce_fields,
    request,
)

# Fetch


def test_trap_04_no_preferred_replica_and_no_leader_hint_are_minus_1(leader: Connection, topic: str) -> None:
    """nisshi#62: without the field every later one is shifted; 0 would name broker 0."""
    for version in (11, 12):
        answer = leader.ask("fetch", version, **fetch_fields([(topic, 0, 0)], version=version, max_wait_ms=0))
        partition = answer.responses[0].partitions[0]
        assert partition.preferred_read_replica == -1
        if version == 12:
            assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (-1, -1)
            assert partition.diverging_epoch.end_offset == -1


def test_trap_17_the_first_batch_comes_whole_however_large(leader: Connection, topic: str) -> None:
    """KIP-74: or a reader whose limit is smaller than a message would never get on."""
    produce(leader, topic, 0, encode_batch([Message(b"x" * 50_000)]))

    for limits in (
        {"partition_max_bytes": 10},
        {"max_bytes": 10},
        {"partition_max_bytes": 10, "max_bytes": 10},
    ):
        assert len(list(read_headers(fetch(leader, topic, 0, 0, **limits).records))) == 1


# Produce


def test_trap_08_the_leader_epoch_is_the_brokers(leader: Connection, topic: str) -> None:
    """franz-go#1229: Sarama sends 0, others -1; what is stored is what the leader knows."""
    for epoch in (-1, 0, 5, 2**31 - 1):
        answer = produce(leader, topic, 0, encode_batch([Message(b"x")], leader_epoch=epoch))
        assert answer.error_code == ErrorCode.none

    headers = list(read_headers(fetch(leader, topic, 0, 0).records))
    assert [header.partition_leader_epoch for header in headers] == [0, 0, 0, 0]
    assert [header.base_offset for header in headers] == [0, 1, 2, 3]


def test_trap_33_answers_keep_the_order_of_requests(leader: Connection, topic: str) -> None:
    for _ in range(10):
        leader.send("produce", 9, **produce_fields(topic, 0, encode_batch([Message(b"x")]), acks=-1))
        leader.send("fetch", 12, **fetch_fields([(topic, 0, 0)]))
        leader.send("api_versions", 0)
    for number in range(10):
        assert leader.receive().responses[0].partition_responses[0].base_offset == number
        assert leader.receive().responses[0].partitions[0].high_watermark >= number
        assert leader.receive().api_keys


# ListOffsets and Metadata


def test_trap_26_a_created_topic_is_led_when_the_answer_comes(
    local_stack: SharedCluster, reference: bool
) -> None:
    """redpanda#1256: in metadata of every broker, with leaders that take records at once."""
    if reference:
        pytest.skip("Apache Kafka answers before its brokers know")
    any_broker = next(iter(local_stack.brokers.values()))
    for _ in range(10):
        topic = f"topic-{time.time_ns()}"
        with Connection(any_broker) as connection:
            created = connection.ask(
                "create_topics",
                5,
                topics=[
                    {
                        "name": topic,
                        "num_partitions": 3,
                        "replication_factor": 1,
                        "assignments": [],
                        "configs": [],
                    }
                ],
                timeout=30_000,
                validate_only=False,
            )
            assert created.topics[0].error_code == ErrorCode.none
        for address in local_stack.brokers.values():
            with Connection(address) as connection:
                described = _metadata(connection, topic)
            assert described.error_code == ErrorCode.none, f"{address} does not know {topic}"
            assert all(partition.error_code == ErrorCode.none for partition in described.partitions)
            for partition in described.partitions:
                with Connection(local_stack.brokers[partition.leader_id]) as leader:
                    answer = produce(leader, topic, partition.partition_index, encode_batch([Message(b"x")]))
                    assert answer.error_code == ErrorCode.none
        with Connection(any_broker) as connection:
            connection.ask("delete_topics", 5, topic_names=[topic], timeout=30_000)


def _metadata(connection: Connection, topic: str, *, create: bool = False) -> Any:
    answer = connection.ask(
        "metadata",
        9,
        topics=[{"name": topic}],
        allow_auto_topic_creation=create,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    return answer.topics[0]


def test_trap_40_a_client_id_has_no_meaning(
    local_stack: SharedCluster, topic: str, new_topic: TopicFactory
) -> None:
    fields = produce_fields(topic, 0, encode_batch([Message(b"x")]))
    with Connection(new_topic.leader_address(topic)) as connection:
        for number, client_id in enumerate([None, "", "a=b,c=d", "x" * 10_000, "größe\x00", "../.."]):
            connection.send_frame(encode_request(request("produce", 9, **fields), number, client_id))
            assert connection.receive_frame()[:4] == struct.pack(">i", number)
