"""Moves of replicas under load, while brokers die: delayed, never broken, nothing lost (R20, R22)."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from tests.support.clusters import Cluster, StartCluster
from tests.support.load import Load, read_all
from tests.support.moved import ANSWER_SECONDS, Replicas
from tests.support.waiting import wait_until

BYTES_PER_SECOND = 100_000


def set_throttle(replicas: Replicas, topic: str, bytes_per_second: int | None) -> None:
    """Limit what moves of the topic fetch on every live broker, or lift the limit."""
    operation = AlterConfigOpType.DELETE if bytes_per_second is None else AlterConfigOpType.SET
    value = None if bytes_per_second is None else str(bytes_per_second)
    named = "follower.replication.throttled.replicas"
    entries = [ConfigEntry(named, value and "*", incremental_operation=operation)]
    changes = [ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)]
    rate = "follower.replication.throttled.rate"
    for broker_id in replicas.cluster.brokers:
        entries = [ConfigEntry(rate, value, incremental_operation=operation)]
        changes.append(
            ConfigResource(ConfigResource.Type.BROKER, str(broker_id), incremental_configs=entries)
        )
    for change in changes:
        replicas.admin.incremental_alter_configs([change])[change].result(ANSWER_SECONDS)


def check(cluster: Cluster, load: Load, partitions: int) -> None:
    """Every acknowledged message is at its offset, and offsets have no holes.

    A message may be there twice: librdkafka sends again what a leader refused because it was replaced, though
    it may have been copied before. That is what idempotent producers are for (R11).
    """
    for partition in range(partitions):
        records = read_all(cluster.bootstrap_servers, load.topic, partition)
        assert sorted(records) == list(range(len(records))), f"partition {partition} has holes"
        wrong = [
            (offset, number)
            for offset, number in load.acknowledged(partition)
            if records.get(offset) != f"{load.name}-{number}".encode()
        ]
        assert not wrong, f"partition {partition}: {len(wrong)} acknowledged are lost, first {wrong[0]}"


def test_a_move_survives_the_death_of_the_controller_and_of_its_target(
    own_stack: StartCluster, reference: bool
) -> None:
    if reference:
        pytest.skip("Apache Kafka is one broker here")
    cluster = own_stack(4)
    replicas = Replicas(cluster)
    controller = replicas.controller()
    one, two, target = (broker_id for broker_id in cluster.brokers if broker_id != controller)
    replicas.create("moved", [one, two], [two, one], **{"min.insync.replicas": "1"})
    with Load(cluster.bootstrap_servers, "moved", 2, "load", "all") as load:
        load.resume()
        load.wait_for_progress(5_000)
        set_throttle(replicas, "moved", BYTES_PER_SECOND)
        assert replicas.wish("moved", {0: [target, two], 1: [target]}) == {0: "none", 1: "none"}
        before = replicas.listed()
        assert set(before) == {("moved", 0), ("moved", 1)}

        cluster.kill_broker(controller)
        load.wait_for_progress(1_000)
        wait_until(lambda: replicas.controller() not in (-1, controller), "another broker is controller")
        assert replicas.listed() == before, "the new controller carries the moves on"

        cluster.kill_broker(target)
        load.wait_for_progress(1_000)
        assert replicas.listed() == before, "the moves wait"
        assert replicas.leader("moved", 1) == two

        cluster.start_broker(target)
        cluster.start_broker(controller)
        set_throttle(replicas, "moved", None)
        load.wait_for_progress(1_000)
        replicas.wait_moved("moved", 0, [target, two])
        replicas.wait_moved("moved", 1, [target])
        load.wait_for_progress(1_000)
        load.pause()
        check(cluster, load, 2)
    replicas.wait_held("moved", 0, {target, two})
    replicas.wait_held("moved", 1, {target})


def test_a_broker_that_was_down_removes_what_was_moved_away_when_it_comes_back(
    own_stack: StartCluster, reference: bool
) -> None:
    if reference:
        pytest.skip("Apache Kafka is one broker here")
    cluster = own_stack(3)
    replicas = Replicas(cluster)
    replicas.create("left", [1, 2, 3], [3, 1, 2])
    with Load(cluster.bootstrap_servers, "left", 2, "load", "all") as load:
        load.resume()
        load.wait_for_progress(1_000)
        cluster.kill_broker(3)
        wait_until(lambda: 3 not in replicas.in_sync("left", 0), "broker 3 is known to be gone")
        assert replicas.wish("left", {0: [3], 1: [1, 2]}) == {0: "none", 1: "none"}
        replicas.wait_moved("left", 1, [1, 2])
        assert ("left", 0) in replicas.listed(), "this one waits for broker 3"
        assert replicas.wish("left", {0: [2, 1]}) == {0: "none"}
        replicas.wait_moved("left", 0, [2, 1])
        assert replicas.holders("left", 0) == {1, 2, 3}
        cluster.start_broker(3)
        for partition in (0, 1):
            replicas.wait_held("left", partition, {1, 2})
        load.wait_for_progress(1_000)
        load.pause()
        check(cluster, load, 2)


def test_leaders_move_back_by_themselves_when_their_broker_returns(
    own_stack: StartCluster, reference: bool
) -> None:
    if reference:
        pytest.skip("Apache Kafka is one broker here")
    cluster = own_stack(2, {"leader.imbalance.check.interval.seconds": "1"})
    replicas = Replicas(cluster)
    replicas.create("balanced", [1, 2], [2, 1])
    cluster.stop_broker(2)
    wait_until(lambda: replicas.leader("balanced", 1) == 1, "broker 1 leads everything")
    cluster.start_broker(2)
    wait_until(lambda: replicas.leader("balanced", 1) == 2, "broker 2 leads again what it is preferred for")
    assert replicas.leader("balanced", 0) == 1
