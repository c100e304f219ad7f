"""Brokers are restarted one at a time, whatever happens meanwhile, under a producer and a consumer (R25)."""

from __future__ import annotations

import random
from functools import partial
from typing import Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import ConfigResource
from tests.e2e.installation import (
    BROKERS,
    CLUSTER,
    OPERATOR,
    Installation,
    cluster_spec,
    wait_until,
)
from tests.e2e.traffic import PodWatch, Traffic

ROLL_SECONDS_MAX: Final = 240.0
WAIT_SECONDS_MAX: Final = 2.0  # for an acknowledgement, while brokers are restarted in order; measured: 0.6 s
DEPLOYMENT: Final = "deployment/mainstem-operator"
EACH_ONCE: Final = {f"{CLUSTER}-broker-{number}": 1 for number in range(3)}


def test_e23_a_changed_setting_restarts_each_broker_once_or_none(mainstem: Installation, topic: str) -> None:
    """None for what brokers take while they run; taken out of the manifest it is as it was."""
    name, before = "log.cleaner.delete.retention.ms", mainstem.uids()
    default = broker_setting(mainstem, name)
    with Traffic(mainstem, topic, longest_seconds=WAIT_SECONDS_MAX), PodWatch(mainstem) as watch:
        for value, reported in (("7200000", "7200000"), (None, default)):
            mainstem.patch_cluster({"brokers": {"config": {name: value}}})
            wait_until(partial(runs_with, mainstem, name, reported), f"{name} is {reported}")
        mainstem.settled()
        assert mainstem.uids() == before
        begin_roll(mainstem)
        mainstem.settled(ROLL_SECONDS_MAX)
    assert watch.restarts == EACH_ONCE
    assert watch.fewest_ready >= 2
    assert mainstem.status("brokercluster", CLUSTER)["lastRoll"]["finished"]


@pytest.mark.long
def test_e24_a_bad_image_stops_after_one_pod_and_its_mending_heals(
    mainstem: Installation, topic: str
) -> None:
    before = mainstem.uids()
    with Traffic(mainstem, topic):
        mainstem.patch_cluster({"brokers": {"image": "mainstem/nothing:never"}})
        wait_until(lambda: "ImagePull" in mainstem.namespace.kubectl("get", "pods"), "the image is missed")
        reported = mainstem.until("brokercluster", CLUSTER, "Stable", "False", "Rolling")
        assert "restarted" in reported["message"]
        after = mainstem.uids()
        assert sum(before[name] == uid for name, uid in after.items()) == 2
        mainstem.until("brokercluster", CLUSTER, "Ready")
        mainstem.patch_cluster({"brokers": {"image": None}})
        mainstem.settled(ROLL_SECONDS_MAX)
    assert sum(before[name] == uid for name, uid in mainstem.uids().items()) == 2


@pytest.mark.long
def test_e25_a_topic_of_one_replica_does_not_hold_up_a_roll(mainstem: Installation, name: str) -> None:
    settings = {"min.insync.replicas": 1}  # two, as elsewhere, would refuse acks=all
    mainstem.apply("Topic", name, partitions=3, replicas=1, config=settings, deletionPolicy="Delete")
    mainstem.until("topic", name, "Ready")
    producer = Producer({"bootstrap.servers": mainstem.outside, "acks": "all"})
    for number in range(300):
        producer.produce(name, str(number).encode())
    assert producer.flush(30) == 0
    with PodWatch(mainstem) as watch:
        begin_roll(mainstem)
        mainstem.settled(ROLL_SECONDS_MAX)
    assert watch.restarts == EACH_ONCE
    with Traffic(mainstem, name, first=300) as traffic:
        pass
    assert set(range(300)) <= traffic.consumed


@pytest.mark.long
def test_e26_an_operator_killed_in_mid_roll_is_followed_by_one_that_goes_on(
    mainstem: Installation, topic: str
) -> None:
    with Traffic(mainstem, topic), PodWatch(mainstem) as watch:
        begin_roll(mainstem)
        wait_for_first_restart(mainstem, watch)
        kill(mainstem, OPERATOR)
        mainstem.settled(ROLL_SECONDS_MAX)
    assert watch.restarts == EACH_ONCE
    assert watch.fewest_ready >= 2


@pytest.mark.long
def test_e27_a_pod_deleted_during_a_roll_does_not_stop_it(mainstem: Installation, topic: str) -> None:
    with Traffic(mainstem, topic), PodWatch(mainstem) as watch:
        begin_roll(mainstem)
        first = wait_for_first_restart(mainstem, watch)
        victim = next(name for name in EACH_ONCE if name != first)
        mainstem.namespace.kubectl("delete", "pod", victim, "--wait=false")
        mainstem.settled(ROLL_SECONDS_MAX)
    assert all(1 <= count <= 2 for count in watch.restarts.values()), watch.restarts


@pytest.mark.long
def test_e28_all_brokers_deleted_at_once_come_back_with_all_records(
    mainstem: Installation, topic: str
) -> None:
    for end in (delete, kill):
        with Traffic(mainstem, topic, first=1_000_000 * (end is kill)):
            before = set(mainstem.uids().values())
            end(mainstem, BROKERS)
            wait_until(partial(are_others, mainstem, before), "they go")
            mainstem.settled(ROLL_SECONDS_MAX)


@pytest.mark.long
def test_e29_objects_that_others_delete_are_made_again(mainstem: Installation, topic: str) -> None:
    """Pods of a StatefulSet that is deleted without them are taken up again, and not restarted."""
    before = mainstem.uids()
    objects = [
        ("statefulset", f"{CLUSTER}-broker"),
        ("service", f"{CLUSTER}-bootstrap"),
        ("configmap", f"{CLUSTER}-broker"),
        ("poddisruptionbudget", f"{CLUSTER}-broker"),
    ]
    old = {name + kind: mainstem.namespace.get(kind, name)["metadata"]["uid"] for kind, name in objects}
    with Traffic(mainstem, topic):
        for kind, name in objects:
            mainstem.namespace.kubectl("delete", kind, name, "--cascade=orphan")
        for kind, name in objects:
            wait_until(partial(made_again, mainstem, kind, name, old[name + kind]), f"{kind} {name}")
        mainstem.settled()
    assert mainstem.uids() == before


@pytest.mark.long
def test_e40_of_two_operators_one_acts_and_their_replacement_repeats_nothing(
    mainstem: Installation, topic: str
) -> None:
    try:
        mainstem.install(cluster_spec(), replicas=2)
        mainstem.namespace.wait_ready(DEPLOYMENT)
        wait_until(lambda: len(mainstem.pods(OPERATOR)) == 2, "two operators")
        acts = len(mainstem.events("RestartingPod"))
        with Traffic(mainstem, topic), PodWatch(mainstem) as watch:
            begin_roll(mainstem)
            wait_for_first_restart(mainstem, watch)
            mainstem.namespace.kubectl("rollout", "restart", DEPLOYMENT)
            mainstem.settled(ROLL_SECONDS_MAX)
            mainstem.namespace.wait_ready(DEPLOYMENT)
        assert watch.restarts == EACH_ONCE
        assert watch.fewest_ready >= 2
        assert len(mainstem.events("RestartingPod")) == acts + 3
    finally:
        mainstem.install(cluster_spec())
        mainstem.namespace.wait_ready(DEPLOYMENT)


def broker_setting(mainstem: Installation, name: str) -> str:
    """A setting that broker 0 runs with, as a stock client reads it."""
    mainstem.topics()  # the client is kept: it hears where brokers are, which may have got other nodes
    resource = ConfigResource(ConfigResource.Type.BROKER, "0")
    return str(mainstem.admin.describe_configs([resource])[resource].result()[name].value)


def runs_with(mainstem: Installation, name: str, value: str) -> bool:
    return broker_setting(mainstem, name) == value


def begin_roll(mainstem: Installation) -> None:
    """Change a setting that brokers read when they start."""
    changed = 300_000 + random.randrange(100_000)
    mainstem.patch_cluster({"brokers": {"config": {"log.retention.check.interval.ms": changed}}})
    mainstem.until("brokercluster", CLUSTER, "Progressing", "True", "Rolling")


def wait_for_first_restart(mainstem: Installation, watch: PodWatch) -> str:
    """The pod that is replaced first, once it is."""
    wait_until(lambda: any(count == 1 for count in watch.restarts.values()), "the first restart")
    return next(name for name, count in watch.restarts.items() if count)


def are_others(mainstem: Installation, before: set[str]) -> bool:
    """Whether none of the pods is one of `before`, by uid."""
    return before.isdisjoint(mainstem.uids().values())


def delete(mainstem: Installation, selector: str) -> None:
    mainstem.namespace.kubectl("delete", "pods", f"--selector={selector}", "--wait=false")


def kill(mainstem: Installation, selector: str) -> None:
    """End pods at once, without a word of farewell."""
    mainstem.namespace.kubectl("delete", "pods", f"--selector={selector}", "--grace-period=0", "--force")


def made_again(mainstem: Installation, kind: str, name: str, old: str) -> bool:
    """Whether the object is there with another uid than `old`."""
    path = ["--output=jsonpath={.metadata.uid}", "--ignore-not-found"]
    return mainstem.namespace.kubectl("get", kind, name, *path) not in ("", old)
