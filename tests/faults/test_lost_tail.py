"""Brokers that lost the unsynced end of a log in a crash do not lead on the strength of what they had (R22).

A SIGKILL spares the page cache. What a power cut does to it is played here: between the kill and the start,
the end of the log's file is cut off. The broker comes back within its session (KIP-903, KIP-966).
"""

from __future__ import annotations

import time
from typing import Final

from tests.faults.fault_cluster import BROKERS, FaultCluster
from tests.faults.workload import read_all
from tests.support.messages import Message
from tests.support.stock_clients import Confluent
from tests.support.waiting import wait_until

SYNCED: Final = 60
RECORDS: Final = 100
WAITING_S: Final = 2.0


def test_a_partition_waits_for_the_only_broker_that_has_all_records(plain_cluster: FaultCluster) -> None:
    cluster = plain_cluster
    controller = cluster.controller()
    leader, follower = (broker_id for broker_id in BROKERS if broker_id != controller)
    topic, kept_bytes = _topic_with_records(cluster, (leader, follower))

    cluster.kill(follower)
    cluster.kill(leader)
    _cut(cluster, follower, topic, kept_bytes)
    cluster.start(follower)
    waited_until_s = time.monotonic() + WAITING_S
    while time.monotonic() < waited_until_s:
        assert follower not in cluster.leaders(topic, controller), "a broker leads that has lost records"
    cluster.start(leader)

    wait_until(lambda: cluster.leaders(topic, controller) == {leader}, "who has all records leads")
    cluster.wait_until_whole(topic)
    assert len(read_all(cluster.bootstrap_servers, topic, 0)) == RECORDS
    cluster.delete_topic(topic)


def test_after_a_crash_of_all_the_longest_log_leads(plain_cluster: FaultCluster) -> None:
    cluster = plain_cluster
    cluster.controller()
    first, second, third = BROKERS
    topic, kept_bytes = _topic_with_records(cluster, BROKERS)

    for broker_id in BROKERS:
        cluster.kill(broker_id)
    _cut(cluster, first, topic, kept_bytes)
    _cut(cluster, second, topic, kept_bytes)
    for broker_id in BROKERS:
        cluster.start(broker_id)

    wait_until(lambda: cluster.leaders(topic, first) == {third}, "who has all records leads")
    cluster.wait_until_whole(topic)
    assert len(read_all(cluster.bootstrap_servers, topic, 0)) == RECORDS
    cluster.delete_topic(topic)


def _topic_with_records(cluster: FaultCluster, replicas: tuple[int, ...]) -> tuple[str, int]:
    """A topic of one partition with `RECORDS` records, and the size of its log when it had `SYNCED`."""
    topic = cluster.create_topic(replicas)
    _produce(cluster, topic, SYNCED)
    kept_bytes = cluster.log_path(replicas[0], topic).stat().st_size
    _produce(cluster, topic, RECORDS - SYNCED)
    return topic, kept_bytes


def _produce(cluster: FaultCluster, topic: str, count: int) -> None:
    Confluent().produce(cluster.bootstrap_servers, topic, [Message(b"a value")] * count)


def _cut(cluster: FaultCluster, broker_id: int, topic: str, size_bytes: int) -> None:
    with cluster.log_path(broker_id, topic).open("r+b") as log:
        log.truncate(size_bytes)
