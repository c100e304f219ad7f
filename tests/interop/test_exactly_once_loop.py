"""Orders are enriched exactly once while brokers, coordinators and clients are killed (R9, R11, R12).

The application is `tests/support/enricher`: two instances in one group, whose transactions hold the orders
that they copied and the offsets that they consumed. `make exactly-once` goes on with faults for five minutes
for each client (`LOOP_SECONDS=300`). `LOOP_SEED` repeats the faults of a former run, not their timing.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.clusters import Cluster, StartCluster
from tests.support.command_line import mainstem_json
from tests.support.enricher.loop import SESSION_MS, TRANSACTION_TIMEOUT_MS
from tests.support.enricher.processes import INSTANCES, Enrichers
from tests.support.orders import ENRICHED, ORDERS, Orders
from tests.support.waiting import PATIENCE_SECONDS, let_pass, wait_until

SECONDS: Final = float(os.environ.get("LOOP_SECONDS", "0"))
"""How long faults are injected after each kind was injected once."""
PARTITIONS: Final = 3
PROGRESS: Final = 50
"""Committed records that have to follow each fault."""
FAULTS: Final = ("coordinator", "broker", "killed instance", "paused instance", "instance paused for long")
LONG_PAUSE_SECONDS: Final = max(SESSION_MS, TRANSACTION_TIMEOUT_MS) / 1000 + 2
"""The group and the coordinator of transactions have given the instance up by then."""
PROGRESS_SECONDS: Final = 300.0
"""Without one committed order. It promises nothing: 180 s were too short once for JVMs at idle priority, on
two cores with a load of 20."""
SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.session.timeout.ms": str(SESSION_MS),
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "min.insync.replicas": "2",
}


class EnrichedOrders:
    """What a consumer of the output has read: orders of each key, in order."""

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
        self._consumer.assign([TopicPartition(ENRICHED, index, 0) for index in range(PARTITIONS)])
        self.read: dict[str, list[str]] = defaultdict(list)

    def poll(self, seconds: float = 0.2) -> None:
        for message in self._consumer.consume(1000, seconds):
            if message.error():
                continue  # of a broker that is down
            order, _, _transaction = message.value().decode().partition("@")
            self.read[message.key().decode()].append(order)

    @property
    def count(self) -> int:
        return sum(map(len, self.read.values()))

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def cluster(own_stack: StartCluster) -> Cluster:
    cluster = own_stack(3, SETTINGS)
    admin: Any = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    topics = [NewTopic(name, PARTITIONS, 3) for name in (ORDERS, ENRICHED)]
    for created in admin.create_topics(topics, operation_timeout=PATIENCE_SECONDS).values():
        created.result(PATIENCE_SECONDS)
    return cluster


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kind", "protocol"), [("confluent", "classic"), ("java", "classic"), ("java", "consumer")]
)
def test_each_order_is_enriched_exactly_once(
    cluster: Cluster, kind: str, protocol: str, tmp_path: Path
) -> None:
    seed = int(os.environ.get("LOOP_SEED", random.randrange(2**32)))
    print(f"seed {seed}")  # noqa: T201  # repeats the choice of faults
    chance = random.Random(seed)
    orders, committed = Orders(cluster), EnrichedOrders(cluster, "read_committed")
    with Enrichers(kind, protocol, cluster.bootstrap_servers, tmp_path / "enrichers") as enrichers:
        await_enriched(committed, PROGRESS, enrichers)
        faults: Counter[str] = Counter()
        for fault in kinds_of_faults(chance):
            inject(fault, cluster, enrichers, committed, chance)
            await_enriched(committed, committed.count + PROGRESS, enrichers)
            faults[fault] += 1
        orders.stop()
        await_enriched(committed, orders.count, enrichers)
        committed.poll(1.0)  # duplicates come last
    print(  # noqa: T201
        f"{orders.count} orders, faults {dict(faults)},"
        f" {enrichers.ended_by_themselves} instances ended by themselves"
    )
    assert committed.read == orders.sent
    committed.close()
    everything = read_everything(cluster, orders)
    assert {key: set(read) for key, read in everything.read.items()} == {
        key: set(sent) for key, sent in orders.sent.items()
    }
    print(f"{everything.count - orders.count} aborted copies")  # noqa: T201
    assert everything.count > orders.count, "no reader has seen an aborted record"


def kinds_of_faults(chance: random.Random) -> Iterator[str]:
    """Each kind once, then any until the time is over."""
    deadline = time.monotonic() + SECONDS
    yield from FAULTS
    while time.monotonic() < deadline:
        yield chance.choice(FAULTS)


def inject(
    fault: str, cluster: Cluster, enrichers: Enrichers, committed: EnrichedOrders, chance: random.Random
) -> None:
    """A fault and its end; between them the other brokers or the other instance have to make progress."""
    number = chance.randrange(INSTANCES)
    let_pass(chance.random() * 0.2, "the fault meets transactions in any step")
    if fault == "killed instance":
        enrichers.replace(number)
    elif fault in ("paused instance", "instance paused for long"):
        enrichers.pause(number)
        if fault == "instance paused for long":
            let_pass(LONG_PAUSE_SECONDS, "it is the pause itself")
        await_enriched(committed, committed.count + PROGRESS, enrichers)
        enrichers.resume(number)
    else:
        broker_id = (
            coordinator(cluster, enrichers.transactional_id(number))
            if fault == "coordinator"
            else chance.choice(sorted(cluster.brokers))
        )
        cluster.kill_broker(broker_id)
        await_enriched(committed, committed.count + PROGRESS, enrichers)
        cluster.start_broker(broker_id)


def coordinator(cluster: Cluster, transactional_id: str) -> int:
    """Which broker it is; an instance that was started just now may still be unknown."""

    def listed() -> list[int]:
        rows = mainstem_json("transaction", "list", cluster=cluster)
        return [int(row["coordinator"]) for row in rows if row["transactional_id"] == transactional_id]

    return wait_until(listed, f"{transactional_id} is listed", PROGRESS_SECONDS)[0]


def await_enriched(committed: EnrichedOrders, count: int, enrichers: Enrichers) -> None:
    """Read until `count` orders are committed; instances that end meanwhile are started again.

    Raises:
        AssertionError: no order was committed for `PROGRESS_SECONDS`.
    """
    while (before := committed.count) < count:

        def is_more() -> bool:
            enrichers.start_ended()
            committed.poll()
            return committed.count > before

        try:
            wait_until(is_more, f"more than {before} orders are enriched", PROGRESS_SECONDS)
        except AssertionError as error:
            error.add_note(enrichers.last_words())
            raise


def read_everything(cluster: Cluster, orders: Orders) -> EnrichedOrders:
    """Aborted records too: up to the ends of all partitions."""
    everything = EnrichedOrders(cluster, "read_uncommitted")

    def is_read() -> bool:
        before = everything.count
        everything.poll(1.0)
        return everything.count == before >= orders.count

    wait_until(is_read, "all records are read")
    everything.close()
    return everything
