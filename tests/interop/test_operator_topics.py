"""Topics and ConsumerGroups by the whole operator, over real brokers and a fake API server (R24, R26)."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from tests.support.clusters import ReachableCluster, SharedCluster
from tests.support.fake_kubernetes import Manifest
from tests.support.manifests import resource
from tests.support.running_operator import RunningOperator, with_operator
from tests.support.waiting import let_pass_async

from mainstem_operator.brokers.admin import Brokers
from mainstem_operator.cluster.throttles.plan import ALL_BROKERS, RATES, RECEIVERS, SENDERS, Change, Operation


@pytest.fixture
def name(local_stack: SharedCluster) -> Any:
    """A topic's name of this test's own; the topic is gone after it."""
    new_name = f"operated-{uuid4().hex[:8]}"
    yield new_name
    admin = AdminClient({"bootstrap.servers": local_stack.bootstrap_servers})
    for future in admin.delete_topics([new_name]).values():
        future.exception()


def brokers_of(operator: RunningOperator, stack: ReachableCluster) -> Brokers:
    """Those that all tests share, now of a BrokerCluster of the operator."""
    operator.kubernetes.apply(cluster())
    return Brokers(stack.bootstrap_servers)


def cluster(**rolling: Any) -> Manifest:
    return resource("BrokerCluster", "events", {"brokers": {"replicas": 3}, "rolling": rolling})


def topic(name: str, object_name: str = "", **spec: Any) -> Manifest:
    return resource(
        "Topic", object_name or name, {"clusterRef": {"name": "events"}, "topicName": name, **spec}
    )


async def has_settings(brokers: Brokers, name: str, settings: dict[str, str]) -> None:
    """Wait until the topic has just these settings: brokers hear of a change one after another."""
    for _ in range(200):
        if await brokers.settings([name]) == {name: settings}:
            return
        await let_pass_async(0.05, "between two looks")
    assert await brokers.settings([name]) == {name: settings}


@with_operator
async def test_a_topic_is_made_grown_changed_and_kept_when_its_manifest_goes(
    operator: RunningOperator, local_stack: SharedCluster, name: str
) -> None:
    brokers = brokers_of(operator, local_stack)
    kubernetes = operator.kubernetes
    kubernetes.apply(topic(name, partitions=2, replicas=1, config={"retention.ms": 60_000}))
    await operator.condition("topics", name, "Ready", "True", "Synced")
    status = kubernetes.get("topics", name)["status"]
    made = (await brokers.topics([name]))[name]
    assert (status["partitions"], status["replicas"], status["topicId"]) == (2, 1, made.topic_id)
    await has_settings(brokers, name, {"retention.ms": "60000"})
    # Partitions up, a setting changed and one taken out: it goes back to its default.
    kubernetes.apply(topic(name, partitions=4, replicas=1, config={"segment.bytes": 1_048_576}))
    await operator.until(lambda: kubernetes.get("topics", name)["status"]["partitions"] == 4, "growth")
    await operator.condition("topics", name, "Ready", "True")
    await has_settings(brokers, name, {"segment.bytes": "1048576"})
    # Fewer partitions are refused, and the rest of the same edit is done.
    kubernetes.apply(topic(name, partitions=3, replicas=1, config={"segment.bytes": 2_097_152}))
    condition = await operator.condition("topics", name, "Ready", "False", "NotSupported")
    assert "has 4 partitions and 3 are requested" in condition["message"]
    await has_settings(brokers, name, {"segment.bytes": "2097152"})
    kubernetes.delete("topics", name)
    assert ("topics", "default", name) not in kubernetes.objects  # no finalizer holds it
    assert name in await brokers.topics([name])


@with_operator
async def test_protection_may_be_taken_off_and_the_topic_deleted_in_one_breath(
    operator: RunningOperator, local_stack: SharedCluster, name: str
) -> None:
    brokers = brokers_of(operator, local_stack)
    kubernetes = operator.kubernetes
    fields: dict[str, Any] = {"partitions": 1, "replicas": 1, "deletionPolicy": "Delete"}
    kubernetes.apply(topic(name, **fields, deletionProtection=True))
    await operator.condition("topics", name, "Ready", "True")
    kubernetes.apply(topic(name, **fields, deletionProtection=False))
    kubernetes.delete("topics", name)
    await operator.until(lambda: ("topics", "default", name) not in kubernetes.objects, "the end")
    assert await brokers.topics([name]) == {}


@with_operator
async def test_a_refusal_of_brokers_is_reported_with_its_reason(
    operator: RunningOperator, local_stack: SharedCluster, name: str
) -> None:
    brokers = brokers_of(operator, local_stack)
    kubernetes = operator.kubernetes
    kubernetes.apply(topic(name, replicas=9))
    condition = await operator.condition("topics", name, "Ready", "False", "NotEnoughBrokers")
    assert condition["message"] == "9 replicas need as many brokers, and 3 are alive."
    kubernetes.apply(topic(name, replicas=1, config={"retention.mss": 1}))
    condition = await operator.condition("topics", name, "Ready", "False", "InvalidConfig")
    assert "retention.mss" in condition["message"]
    assert await brokers.topics([name]) == {}
    kubernetes.apply(topic(name, replicas=1, config={"retention.ms": 1}))
    await operator.condition("topics", name, "Ready", "True")


def has_replicas(operator: RunningOperator, name: str, count: int) -> bool:
    return bool(operator.kubernetes.get("topics", name)["status"]["replicas"] == count)


@with_operator
async def test_replicas_move_within_the_limit_of_the_cluster_and_no_throttle_of_it_is_left(
    operator: RunningOperator, name: str, local_stack: SharedCluster
) -> None:
    """While they do the limit is raised, else it would take minutes; what a person set stays (R25)."""
    producer = Producer({"bootstrap.servers": local_stack.bootstrap_servers})
    brokers = brokers_of(operator, local_stack)
    kubernetes = operator.kubernetes
    kubernetes.apply(topic(name, partitions=1, replicas=1))
    await operator.condition("topics", name, "Ready", "True")
    for _ in range(40):
        producer.produce(name, bytes(100_000))
    producer.flush()
    assert await brokers.put_throttles({name: {SENDERS: Change(Operation.SET, "7:7")}}) == {}
    kubernetes.apply(cluster(moveBytesPerSecond=10_000))
    await operator.condition("brokerclusters", "events", "Stable", "True")
    kubernetes.apply(topic(name, partitions=1, replicas=2))
    await operator.condition("topics", name, "Reassigning", "True")
    (move,) = (await brokers.moves()).values()
    (sender,), (receiver,) = move.origin, move.adding
    limited = await brokers.throttles([name])
    assert limited[name] == {SENDERS: f"7:7,0:{sender}", RECEIVERS: f"0:{receiver}"}
    assert limited[ALL_BROKERS] == dict.fromkeys(RATES, "10000")
    assert kubernetes.get("configmaps", "events-throttles")
    kubernetes.apply(cluster(moveBytesPerSecond=100_000_000))
    await operator.until(lambda: has_replicas(operator, name, 2), "two replicas")
    await operator.until(
        lambda: ("configmaps", "default", "events-throttles") not in kubernetes.objects, "no throttles"
    )
    assert await brokers.throttles([name]) == {name: {SENDERS: "7:7"}, ALL_BROKERS: {}}


@with_operator
async def test_a_topic_waits_for_its_cluster(
    operator: RunningOperator, local_stack: SharedCluster, name: str
) -> None:
    operator.kubernetes.apply(topic(name, replicas=1))
    condition = await operator.condition("topics", name, "Ready", "False", "ClusterNotFound")
    assert condition["message"] == "There is no BrokerCluster events in the namespace default."
    operator.kubernetes.apply(cluster())
    await operator.condition("topics", name, "Ready", "True")
    operator.kubernetes.apply(topic(name, replicas=1, deletionPolicy="Delete"))
    await operator.until(
        lambda: "mainstem.dev/topic" in operator.kubernetes.get("topics", name)["metadata"]["finalizers"],
        "a finalizer",
    )
    # The BrokerCluster goes first: the Topic must not wait for brokers that are gone.
    operator.kubernetes.delete("brokerclusters", "events")
    operator.kubernetes.delete("topics", name)
    await operator.until(lambda: ("topics", "default", name) not in operator.kubernetes.objects, "the end")
