"""Clients that take more than their quota are slowed down, not refused, and the answers say so (R38)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import confluent_kafka
import pytest
from kazoo.client import KazooClient
from kio.schema.errors import ErrorCode
from tests.support.clusters import Cluster, MainstemCluster
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.support.stock_clients import CLIENTS
from tests.support.topics import ANSWER_SECONDS, TopicFactory
from tests.support.waiting import wait_until
from tests.support.wire import Connection, fetch_fields, produce, produce_fields

SPAN_SECONDS = 10
"""What an idle client has saved up: Kafka averages over eleven windows of a second, less the present one."""


@contextmanager
def quota(cluster: Cluster, kind: str, value: float, **entity: str | None) -> Iterator[None]:
    """A quota while the block runs, known to all brokers; entity types are written with `_`."""
    entries = [
        {"entity_type": name.replace("_", "-"), "entity_name": given} for name, given in entity.items()
    ]

    def alter(*, remove: bool) -> None:
        with Connection(cluster.brokers[1]) as connection:
            change = {"key": kind, "value": value, "remove": remove}
            answer = connection.ask(
                "alter_client_quotas", 1, entries=[{"entity": entries, "ops": [change]}], validate_only=False
            )
            assert answer.entries[0].error_code == ErrorCode.none, answer.entries[0].error_message

    alter(remove=False)
    wait_until(
        lambda: all(is_known(address, entries, kind, value) for address in cluster.brokers.values()),
        "the quota is known",
    )
    yield
    alter(remove=True)


def is_known(address: str, entity: list[dict[str, str | None]], kind: str, value: float) -> bool:
    with Connection(address) as connection:
        components = [
            {
                "entity_type": part["entity_type"],
                "match_type": 1 if part["entity_name"] is None else 0,
                "match": part["entity_name"],
            }
            for part in entity
        ]
        answer = connection.ask("describe_client_quotas", 1, components=components, strict=True)
        return any((one.key, one.value) == (kind, value) for entry in answer.entries for one in entry.values)


@pytest.fixture
def client_id() -> str:
    return f"client-{uuid4().hex[:12]}"


def throttle_ms(answer: Any) -> float:
    return float(answer.throttle_time.total_seconds() * 1000)


def test_a_producer_gets_a_time_to_wait_and_its_connection_is_not_read_from_meanwhile(
    local_stack: Cluster, new_topic: TopicFactory, client_id: str
) -> None:
    """KIP-219: the answer comes at once, the next one only when the time is over."""
    topic = new_topic()
    batch = encode_batch([Message(b"x" * 1_000)])
    with (
        quota(local_stack, "producer_byte_rate", len(batch) // 12, client_id=client_id),
        Connection(new_topic.leader_address(topic), client_id=client_id) as connection,
    ):
        fields = produce_fields(topic, 0, batch)
        begun = time.monotonic()
        answer = connection.ask("produce", 9, **fields)
        wait = throttle_ms(answer) / 1000
        assert 1.5 < wait < 6, "the request is a little larger than ten seconds' worth"
        assert time.monotonic() - begun < wait
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.none
        connection.ask("api_versions", 0)
        assert time.monotonic() - begun > wait - 0.1
        with Connection(new_topic.leader_address(topic), client_id="another") as other:
            assert throttle_ms(other.ask("produce", 9, **fields)) == 0


def test_a_consumer_gets_no_more_at_once_than_it_need_not_wait_for(
    local_stack: Cluster, new_topic: TopicFactory, client_id: str, reference: bool
) -> None:
    if reference:
        pytest.skip("Apache Kafka answers nothing first where the answer's other bytes are too many")
    topic = new_topic()
    batch = encode_batch([Message(b"x" * 10_000)])
    address = new_topic.leader_address(topic)
    with Connection(address) as producer:
        for _ in range(30):
            assert produce(producer, topic, 0, batch).error_code == ErrorCode.none
    with (
        quota(local_stack, "consumer_byte_rate", len(batch), client_id=client_id),
        Connection(address, client_id=client_id) as connection,
    ):
        fields = fetch_fields([(topic, 0, 0)], max_wait_ms=0)
        first = connection.ask("fetch", 12, **fields)
        assert len(first.responses[0].partitions[0].records) == SPAN_SECONDS * len(batch)
        assert throttle_ms(first) == 0
        assert throttle_ms(connection.ask("fetch", 12, **fields)) > 1_000


def test_a_request_quota_counts_the_brokers_time(local_stack: Cluster, client_id: str) -> None:
    with (
        quota(local_stack, "request_percentage", 0.0001, client_id=client_id),
        Connection(local_stack.brokers[1], client_id=client_id) as connection,
    ):
        waits = [throttle_ms(connection.ask("metadata", 9, **METADATA)) for _ in range(3)]
        assert max(waits) > 0
        assert max(waits) <= 1_000, "Kafka bounds this wait by one window"


METADATA = {
    "topics": None,
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}


def test_a_stock_producer_keeps_to_its_rate_and_loses_nothing(
    local_stack: Cluster, new_topic: TopicFactory, client_id: str
) -> None:
    topic = new_topic()
    rate, count, size = 50_000, 53, 10_000
    with quota(local_stack, "producer_byte_rate", rate, client_id=client_id):
        producer: Any = confluent_kafka.Producer(
            {
                "bootstrap.servers": local_stack.bootstrap_servers,
                "client.id": client_id,
                "linger.ms": 0,
                "batch.num.messages": 1,
            }
        )
        begun = time.monotonic()
        for _ in range(count):
            producer.produce(topic, b"x" * size, partition=0)
        assert producer.flush(ANSWER_SECONDS) == 0
        spent = time.monotonic() - begun
    over = count * size - rate * SPAN_SECONDS
    assert spent > over / rate / 2, "what was not saved up has to wait"
    assert len(CLIENTS[0].consume(local_stack.bootstrap_servers, topic, count)) == count


def test_quotas_lie_in_zookeeper_where_kafka_keeps_them(local_stack: Cluster, client_id: str) -> None:
    """R18."""
    if not isinstance(local_stack, MainstemCluster):
        pytest.skip("Apache Kafka 4 has no ZooKeeper")
    user = f"user/{client_id}"
    shell = KazooClient(f"127.0.0.1:{local_stack.zookeeper_port}")
    shell.start()
    try:
        with quota(local_stack, "producer_byte_rate", 1e9, user=user, client_id=None):
            text, _ = shell.get(f"/config/users/user%2F{client_id}/clients/<default>")
            assert json.loads(text) == {"version": 1, "config": {"producer_byte_rate": "1000000000"}}
    finally:
        shell.stop()
        shell.close()
