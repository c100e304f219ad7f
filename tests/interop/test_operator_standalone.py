"""The same manifests without Kubernetes, on the local stack (R27)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.support.clusters import SharedCluster

from mainstem_operator.api.fields import InvalidSpec
from mainstem_operator.brokers.admin import Brokers
from mainstem_operator.standalone import Statuses, apply_manifests


def manifest(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "mainstem.dev/v1beta1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"clusterRef": {"name": "local"}, **spec},
    }


def test_a_topic_and_a_group_are_brought_about_and_a_reset_happens_once(
    local_stack: SharedCluster, tmp_path: Path
) -> None:
    servers = local_stack.bootstrap_servers
    name = f"standalone-{uuid4().hex[:8]}"
    path = tmp_path / "statuses.json"

    def apply(*manifests: dict[str, Any]) -> list[str]:
        applied = asyncio.run(apply_manifests(Brokers(servers), manifests, Statuses(path)))
        return [item.ready["reason"] for item in applied]

    topic = manifest("Topic", name, partitions=2, replicas=3, config={"retention.ms": 60_000})
    assert apply(topic) == ["Synced"]
    assert apply(topic) == ["Synced"]
    consumer = Consumer({"bootstrap.servers": servers, "group.id": name, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(name, 0, 5)], asynchronous=False)
    group = manifest("ConsumerGroup", name, reset={"requestId": "1", "to": "earliest"})
    assert apply(group) == ["Observed"]

    def committed() -> int:
        result: int = consumer.committed([TopicPartition(name, 0)], timeout=60)[0].offset
        return result

    assert committed() == 0
    consumer.commit(offsets=[TopicPartition(name, 0, 5)], asynchronous=False)
    assert apply(group, topic) == ["Synced", "Observed"]
    assert committed() == 5
    consumer.close()
    admin = AdminClient({"bootstrap.servers": servers})
    for future in (*admin.delete_topics([name]).values(), *admin.delete_consumer_groups([name]).values()):
        future.result()


def test_what_needs_kubernetes_is_refused(tmp_path: Path) -> None:
    cluster = manifest("BrokerCluster", "events", brokers={"replicas": 3})
    with pytest.raises(InvalidSpec, match="kind must be one of Topic, User, ConsumerGroup, Secret, not"):
        asyncio.run(apply_manifests(Brokers("127.0.0.1:1"), [cluster], Statuses(tmp_path / "statuses.json")))
