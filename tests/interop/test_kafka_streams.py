"""A Kafka Streams application with exactly_once_v2, while its brokers and itself are killed (R9, R11).

`make streams` goes on with faults for five minutes (`STREAMS_SECONDS=300`).
"""

from __future__ import annotations

import os
import random
import struct
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.clusters import Cluster, StartCluster
from tests.support.command_line import mainstem_json
from tests.support.java_streams import APPLICATION_ID, COUNTS, StreamsApplication
from tests.support.orders import ENRICHED, ORDERS, Orders
from tests.support.waiting import wait_until

SECONDS: Final = float(os.environ.get("STREAMS_SECONDS", "0"))
"""How long faults are played after each kind was played once."""
PARTITIONS: Final = 3
PROGRESS: Final = 100
"""Committed records that have to follow each fault."""
SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "min.insync.replicas": "2",
}


class Output:
    """What a consumer of both output topics has read: values and counts of each key, in order."""

    def __init__(self, cluster: Cluster, isolation: str) -> None:
        self._consumer: Any = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": f"readers-{isolation}",
                "enable.auto.commit": False,
                "isolation.level": isolation,
                "log_level": 0,
            }
        )
        self._consumer.assign(
            [TopicPartition(topic, index, 0) for topic in (ENRICHED, COUNTS) for index in range(PARTITIONS)]
        )
        self.values: dict[str, list[str]] = defaultdict(list)
        self.counts: dict[str, list[int]] = defaultdict(list)

    def read(self, seconds: float = 0.2) -> None:
        """Take what there is."""
        for message in self._consumer.consume(1000, seconds):
            if message.error():
                continue  # of a broker that is down
            key = message.key().decode()
            if message.topic() == ENRICHED:
                self.values[key].append(message.value().decode())
            else:
                self.counts[key].append(struct.unpack(">q", message.value())[0])

    def close(self) -> None:
        self._consumer.close()

    @property
    def smallest_count(self) -> int:
        """Records in the topic that has fewer."""
        return min(sum(map(len, self.values.values())), sum(map(len, self.counts.values())))


@pytest.fixture
def cluster(own_stack: StartCluster) -> Cluster:
    cluster = own_stack(3, SETTINGS)
    admin: Any = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    topics = [NewTopic(name, PARTITIONS, 3) for name in (ORDERS, ENRICHED, COUNTS)]
    for created in admin.create_topics(topics, operation_timeout=60).values():
        created.result(60)
    return cluster


@pytest.fixture
def application(cluster: Cluster, tmp_path: Path) -> Iterator[StreamsApplication]:
    application = StreamsApplication(cluster.bootstrap_servers, tmp_path / "application")
    application.start()
    yield application
    application.kill()


def test_each_order_has_its_effect_exactly_once(cluster: Cluster, application: StreamsApplication) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201  # repeats the choice of faults
    chance = random.Random(seed)
    orders, committed = Orders(cluster), Output(cluster, "read_committed")
    await_output(committed, PROGRESS, application)
    for fault in faults(chance):
        if fault == "application":
            application.kill()
            application.start()
        else:
            broker_id = coordinator(cluster) if fault == "coordinator" else chance.choice([1, 2, 3])
            cluster.kill_broker(broker_id)
            await_output(committed, committed.smallest_count + PROGRESS, application)
            cluster.start_broker(broker_id)
        await_output(committed, committed.smallest_count + PROGRESS, application)
    orders.stop()
    await_output(committed, orders.count, application)
    committed.read(1.0)  # what comes too often comes last
    assert committed.values == orders.sent
    assert committed.counts == {key: list(range(1, len(sent) + 1)) for key, sent in orders.sent.items()}
    committed.close()
    assert_uncommitted_has_all(cluster, orders)


def faults(chance: random.Random) -> Iterator[str]:
    """Each kind once, then any until the time is over."""
    deadline = time.monotonic() + SECONDS
    yield from ("coordinator", "application", "broker")
    while time.monotonic() < deadline:
        yield chance.choice(("coordinator", "application", "broker"))


def coordinator(cluster: Cluster) -> int:
    """The broker that coordinates one of the application's transactions."""
    listed = mainstem_json("transaction", "list", cluster=cluster)
    return int(
        next(row["coordinator"] for row in listed if row["transactional_id"].startswith(APPLICATION_ID))
    )


def await_output(output: Output, count: int, application: StreamsApplication) -> None:
    """Read until both topics have `count` records."""

    def is_there() -> bool:
        assert application.state != "ERROR", application.log()[-4000:]
        output.read()
        return output.smallest_count >= count

    wait_until(is_there, f"{count} orders are committed", 120)


def assert_uncommitted_has_all(cluster: Cluster, orders: Orders) -> None:
    """A reader of everything sees no less; aborted records come on top."""
    everything = Output(cluster, "read_uncommitted")

    def is_all_there() -> bool:
        everything.read()
        return everything.smallest_count >= orders.count

    wait_until(is_all_there, "all is read", 60)
    assert {key: set(values) for key, values in everything.values.items()} == {
        key: set(values) for key, values in orders.sent.items()
    }
    everything.close()
