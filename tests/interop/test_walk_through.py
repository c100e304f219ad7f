"""The walk-through that every Kafka course begins with, by `mainstem` and by Apache Kafka's own tools.

R13, R14, R15, R18, R36: topics, console produce and consume, groups and their offsets, in-sync replicas,
settings, the look-ups in ZooKeeper, a producer and a consumer as applications configure them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.clusters import Cluster, MainstemCluster, RunCluster
from tests.support.command_line import mainstem
from tests.support.course import PARTITIONS, TOPIC, ApacheKafka, Hands, Mainstem, Place, Seen, zookeeper_shell
from tests.support.topics import ANSWER_SECONDS, TopicFactory
from tests.support.waiting import wait_until

from mainstem.records.partitioner import partition_of

USERS = ("ann", "bob", "cho", "dee", "eve")
FAST_RECORDS = 20_000
GROUP, COMMITTING_GROUP = "clicks-readers", "clicks-committers"
LZ4 = "lz4"


@pytest.fixture(scope="module")
def cluster(run_cluster: RunCluster, reference: bool) -> Iterator[MainstemCluster]:
    if reference:
        pytest.skip("Apache Kafka is one broker here, without ZooKeeper")
    with run_cluster(3, {"group.initial.rebalance.delay.ms": "0"}) as running:
        assert isinstance(running, MainstemCluster)
        yield running


@pytest.fixture(params=[Mainstem, ApacheKafka], ids=["by mainstem", "by Apache Kafka's tools"])
def hands(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Hands]:
    """Who walks; what they made is gone afterwards."""
    yield request.param(cluster)
    admin = TopicFactory(cluster).admin
    admin.delete_topics([TOPIC], operation_timeout=ANSWER_SECONDS)[TOPIC].result(ANSWER_SECONDS)
    for answer in admin.delete_consumer_groups([GROUP, COMMITTING_GROUP]).values():
        answer.result(ANSWER_SECONDS)


def clicks(first: int, last: int) -> list[str]:
    """Lines of `user:page`."""
    return [f"{USERS[number % len(USERS)]}:/page/{number}" for number in range(first, last)]


def per_partition(lines: list[str]) -> dict[int, int]:
    """How many of these lines belong in each partition, by the hash that all clients share (R10)."""
    counts = dict.fromkeys(range(PARTITIONS), 0)
    for line in lines:
        counts[partition_of(line.partition(":")[0].encode(), PARTITIONS)] += 1
    return counts


def test_the_course(hands: Hands, cluster: MainstemCluster) -> None:
    hands.create_topic()
    places = hands.places()
    assert sorted(places) == list(range(PARTITIONS))
    assert all(place == Place(place.replicas[0], place.replicas, {1, 2, 3}) for place in places.values())

    # Keyed lines, in two lots; what lies between them is a time that a group can go back to.
    morning, evening = clicks(0, 30), clicks(30, 50)
    began_ms = _now_ms()
    hands.produce(morning)
    noon_ms = _now_ms() + 1
    wait_until(lambda: _now_ms() > noon_ms, "it is later")
    hands.produce(evening)

    # A group reads all from the beginning, with keys and times.
    seen = hands.consume(GROUP, len(morning) + len(evening))
    assert sorted(f"{record.key}:{record.value}" for record in seen) == sorted(morning + evening)
    for user in USERS:  # R17: in order within a partition
        assert _pages_of(user, seen) == [line for line in morning + evening if line.startswith(f"{user}:")]
    assert all(began_ms <= record.timestamp_ms <= _now_ms() for record in seen)
    late = {f"{record.key}:{record.value}" for record in seen if record.timestamp_ms >= noon_ms}
    assert late == set(evening)

    # It is listed and described: everything is committed, nothing is left.
    ends, before_noon = per_partition(morning + evening), per_partition(morning)
    held = {partition for partition, end in ends.items() if end}
    assert GROUP in hands.groups()
    assert _committed(hands, held) == {partition: (ends[partition], ends[partition], 0) for partition in held}

    # It goes back to the beginning, and to noon.
    hands.reset_to_earliest(GROUP)
    assert _committed(hands, held) == {partition: (0, ends[partition], ends[partition]) for partition in held}
    hands.reset_to_time(GROUP, noon_ms)
    assert _committed(hands, held) == {
        partition: (before_noon[partition], ends[partition], ends[partition] - before_noon[partition])
        for partition in held
    }
    assert {f"{one.key}:{one.value}" for one in hands.consume(GROUP, len(evening))} == set(evening)

    # The topic asks for two in-sync replicas from now on.
    hands.set_min_in_sync(2)
    # The client chooses the broker, and each learns of it for itself.
    wait_until(lambda: hands.settings() == {"min.insync.replicas": "2"}, "the brokers know the setting")

    # The look-ups that people of ZooKeeper know.
    ids, first, controller, partitions = zookeeper_shell(
        cluster.zookeeper_port,
        *("ls /brokers/ids", "get /brokers/ids/1", "get /controller"),
        f"ls /brokers/topics/{TOPIC}/partitions",
    )
    registration = json.loads(first)
    assert json.loads(ids) == [1, 2, 3]
    assert f"{registration['host']}:{registration['port']}" == cluster.brokers[1]
    assert json.loads(controller)["brokerid"] in cluster.brokers
    assert json.loads(partitions) == list(range(PARTITIONS))

    # A producer as applications set it up, and a consumer that commits by hand.
    hands.produce_fast(FAST_RECORDS)
    assert _codecs(cluster) == {"none", LZ4}
    hands.consume_committing(COMMITTING_GROUP, len(seen) + FAST_RECORDS)
    left = hands.offsets(COMMITTING_GROUP)
    assert sum(committed for committed, _, _ in left.values()) == len(seen) + FAST_RECORDS
    assert {lag for _, _, lag in left.values()} == {0}


def _now_ms() -> int:
    return int(time.time() * 1000)


def _pages_of(user: str, seen: list[Seen]) -> list[str]:
    return [f"{record.key}:{record.value}" for record in seen if record.key == user]


def _committed(hands: Hands, partitions: set[int]) -> dict[int, tuple[int, int, int]]:
    """Of these partitions: of empty ones some tools commit nothing."""
    return {number: reported for number, reported in hands.offsets(GROUP).items() if number in partitions}


def _codecs(cluster: Cluster) -> set[str]:
    """How the batches of the topic are compressed in the files of the first broker."""
    logs: list[Any] = list((cluster.data_directory / "broker-1").rglob(f"{TOPIC}-?"))
    lines = mainstem("log", "dump", *logs, "--output", "json").stdout.splitlines()
    return {json.loads(line)["codec"] for line in lines}
