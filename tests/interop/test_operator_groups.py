"""ConsumerGroups by the whole operator, over real brokers and a fake API server (R26)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.support.clusters import ReachableCluster, SharedCluster
from tests.support.fake_kubernetes import Manifest
from tests.support.manifests import resource
from tests.support.running_operator import RunningOperator, with_operator
from tests.support.topics import TopicFactory
from tests.support.waiting import PATIENCE_SECONDS

from mainstem_operator.brokers.admin import Brokers


@pytest.fixture
def consumed(local_stack: SharedCluster, new_topic: TopicFactory) -> Iterator[tuple[str, str]]:
    """A topic with ten records, and a group that has committed offset 4 of them."""
    topic, group = new_topic(), f"observed-{uuid4().hex[:8]}"
    servers = local_stack.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers})
    for number in range(10):
        producer.produce(topic, str(number), timestamp=1_700_000_000_000 + number * 1000)
    assert producer.flush(PATIENCE_SECONDS) == 0
    commit(servers, group, topic, 4)
    yield topic, group
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.delete_consumer_groups([group]).values():
        future.exception()


def brokers_of(operator: RunningOperator, stack: ReachableCluster) -> Brokers:
    """Those that all tests share, now of a BrokerCluster of the operator."""
    operator.kubernetes.apply(resource("BrokerCluster", "events", {"brokers": {"replicas": 3}}))
    return Brokers(stack.bootstrap_servers)


def commit(servers: str, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def group_manifest(group: str, **spec: Any) -> Manifest:
    return resource("ConsumerGroup", group, {"clusterRef": {"name": "events"}, **spec})


def reset(group: str, request_id: str, to: str, **arguments: Any) -> Manifest:
    return group_manifest(group, reset={"requestId": request_id, "to": to, **arguments})


async def committed(brokers: Brokers, group: str) -> int:
    result = (await brokers.groups([group]))[group]
    assert not isinstance(result, str)
    return next(iter(result.committed.values()))


async def is_done(operator: RunningOperator, group: str, request_id: str) -> Manifest:
    """Wait until a reset is done; its note."""

    def done() -> bool:
        last = operator.kubernetes.get("consumergroups", group)["status"]["lastReset"]
        return bool(last["requestId"] == request_id and last["state"] == "Done")

    await operator.until(done, request_id)
    result: Manifest = operator.kubernetes.get("consumergroups", group)["status"]["lastReset"]
    return result


@with_operator
async def test_a_reset_is_carried_out_once_and_can_be_undone(
    operator: RunningOperator, local_stack: SharedCluster, consumed: tuple[str, str]
) -> None:
    topic, group = consumed
    brokers = brokers_of(operator, local_stack)
    kubernetes = operator.kubernetes
    expected = {
        "a": (reset(group, "a", "earliest"), 0),
        "b": (reset(group, "b", "latest"), 10),
        "c": (reset(group, "c", "offset", offset=3), 3),
        "d": (reset(group, "d", "shift", shiftBy=-2), 1),
        "e": (reset(group, "e", "datetime", datetime="2023-11-14T22:13:27Z"), 7),
        "f": (reset(group, "f", "shift", shiftBy=99), 10),
        "g": (reset(group, "g", "undo"), 7),
    }
    before = 4
    for request_id, (manifest, offset) in expected.items():
        kubernetes.apply(manifest)
        last = await is_done(operator, group, request_id)
        change = {"topic": topic, "partition": 0, "before": before, "after": offset}
        assert last["offsets"] == [change], request_id
        assert await committed(brokers, group) == offset, request_id
        before = offset
    # The same request again, after the group has gone on: nothing happens.
    await asyncio.to_thread(commit, brokers.bootstrap_servers, group, topic, 9)
    kubernetes.annotate("consumergroups", group, {"look": "again"})
    await operator.until(
        lambda: kubernetes.get("consumergroups", group)["status"]["totalLag"] == 1, "another look"
    )
    assert await committed(brokers, group) == 9


@with_operator
async def test_a_request_is_carried_out_once_though_its_object_is_deleted_and_a_failed_one_keeps_the_undo(
    operator: RunningOperator, local_stack: SharedCluster, consumed: tuple[str, str]
) -> None:
    _, group = consumed
    brokers = brokers_of(operator, local_stack)
    kubernetes = operator.kubernetes
    kubernetes.apply(reset(group, "a", "latest"))
    await is_done(operator, group, "a")
    await asyncio.to_thread(commit, brokers.bootstrap_servers, group, consumed[0], 9)
    kubernetes.delete("consumergroups", group)
    kubernetes.apply(reset(group, "a", "latest"))
    again = await is_done(operator, group, "a")
    assert "carried out before" in again["message"]
    assert await committed(brokers, group) == 9
    kubernetes.apply(reset(group, "b", "earliest", topics=["there-is-no-such-topic"]))
    await operator.until(
        lambda: kubernetes.get("consumergroups", group)["status"]["lastReset"]["state"] == "Failed", "b"
    )
    kubernetes.delete("consumergroups", group)
    kubernetes.apply(reset(group, "c", "undo"))
    await is_done(operator, group, "c")
    assert await committed(brokers, group) == 4
