"""Brokers are restarted one at a time, whatever happens meanwhile, under a producer and a consumer (R25)."""

from __future__ import annotations

import random
from functools import partial
from typing import Final

import pytest
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
