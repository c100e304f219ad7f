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
from tests.support.clusters import ReachableCluster, SharedCluster
from tests.support.stock_clients import CLIENTS
from tests.support.topics import ANSWER_SECONDS, TopicFactory
from tests.support.waiting import wait_until
from tests.support.wire import Connection

SPAN_SECONDS = 10
"""What an idle client has saved up: Kafka averages over eleven windows of a second, less the present one."""


@contextmanager
def quota(cluster: ReachableCluster, kind: str, value: float, **entity: str | None) -> Iterator[None]:
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


def test_a_stock_producer_keeps_to_its_rate_and_loses_nothing(
    local_stack: SharedCluster, new_topic: TopicFactory, client_id: str
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


def test_quotas_lie_in_zookeeper_where_kafka_keeps_them(local_stack: SharedCluster, client_id: str) -> None:
    """R18."""
    if local_stack.is_reference:
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
