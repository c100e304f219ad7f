"""The paper's consumers while they and brokers come and go (R16, R17): §3.2 of the paper.

One owner for each partition, every message at least once, offsets that never go back, and an end to each
rebalance within what the back-off allows.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.faults.results import Figures
from tests.support.clusters import MainstemCluster, RunCluster
from tests.support.command_line import mainstem_json
from tests.support.load import Load
from tests.support.ownership import OwnershipWatch, deliveries_of_others
from tests.support.paper_consumers import PaperConsumer
from tests.support.waiting import PATIENCE_SECONDS, wait_until

from mainstem.zookeeper_tree import ZooKeeperTree

PARTITIONS: Final = 12
CONSUMERS: Final = 5
SESSION_MS: Final = 2_000
SETTINGS: Final[dict[str, Any]] = {
    "zookeeper_session_timeout_ms": SESSION_MS,
    "rebalance_backoff_ms": 200,
    "rebalance_max_retries": 15,
    "auto_commit_interval_ms": 200,
}
TICK_MS: Final = 500  # of the stack's ZooKeeper: sessions end in such steps
ANSWERS_MS: Final = 2_000  # what ZooKeeper and processes take on a busy machine, back-off aside
BOUND_MS: Final = SETTINGS["rebalance_backoff_ms"] * SETTINGS["rebalance_max_retries"] + ANSWERS_MS
START_MS: Final = 10_000  # of an interpreter, and its imports, on a busy machine


@pytest.fixture
def cluster(run_cluster: RunCluster, reference: bool) -> Iterator[MainstemCluster]:
    if reference:
        pytest.skip("this Apache Kafka has no ZooKeeper")
    with run_cluster(2, {"offsets.topic.replication.factor": "2"}) as running:
        assert isinstance(running, MainstemCluster)
        yield running


class Group:
    """Consumers that come and go, and how long the group took to share the topic anew each time."""

    def __init__(self, cluster: MainstemCluster, seed: int, started: ExitStack) -> None:
        self.chance = random.Random(seed)
        self.cluster = cluster
        self.group = f"group-{uuid4().hex[:8]}"
        self.topic = f"topic-{uuid4().hex[:8]}"
        self.zookeeper = f"127.0.0.1:{cluster.zookeeper_port}"
        self.everyone: list[PaperConsumer] = []
        self.running: list[PaperConsumer] = []
        self.took_ms: list[tuple[str, int]] = []
        self._started = started
        admin: Any = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        created = admin.create_topics(
            [NewTopic(self.topic, PARTITIONS, 2)], operation_timeout=PATIENCE_SECONDS
        )
        created[self.topic].result(PATIENCE_SECONDS)
        self.offsets: dict[int, int] = {}
        self._tree = started.enter_context(ZooKeeperTree(self.zookeeper))
        self.watch = OwnershipWatch(self.zookeeper, self.group, self.topic)
        started.enter_context(self.watch.running())

    def join(self, count: int = 1) -> None:
        for _ in range(count):
            name = f"c{len(self.everyone)}"
            consumer = PaperConsumer(self.zookeeper, self.group, self.topic, name, SETTINGS)
            self.everyone.append(self._started.enter_context(consumer))
            self.running.append(consumer)
        self.settle(f"{count} join", START_MS)

    def leave(self) -> None:
        self._anyone().stop()
        self.settle("1 leaves", 0)

    def crash(self, count: int = 1) -> None:
        for _ in range(count):
            self._anyone().kill()
        self.settle(f"{count} killed", SESSION_MS + TICK_MS)

    def freeze(self) -> None:
        """One stops for longer than its session, and comes back."""
        frozen = self._anyone()
        frozen.pause()
        self.settle("1 stopped", SESSION_MS + TICK_MS)
        frozen.go_on()
        self.running.append(frozen)
        self.settle("1 goes on", 0)

    def break_broker(self) -> None:
        broker = self.chance.choice(list(self.cluster.brokers))
        self.cluster.kill_broker(broker)
        self.settle(f"broker {broker} killed", 0)
        self.cluster.start_broker(broker)
        self.settle(f"broker {broker} back", 0)

    def _anyone(self) -> PaperConsumer:
        return self.running.pop(self.chance.randrange(len(self.running)))

    def settle(self, what: str, before_ms: int) -> None:
        """Wait until the topic is shared; `before_ms` pass before anyone can notice."""
        began = time.monotonic()
        try:
            wait_until(
                lambda: self.watch.is_shared(len(self.running), PARTITIONS),
                f"the topic is shared by {len(self.running)} after: {what}",
                seconds=(before_ms + BOUND_MS) / 1000,
            )
        except AssertionError as error:
            owners = f"owners {self.watch.owners}, registered {sorted(self.watch.registered)}"
            raise AssertionError("\n".join((str(error), owners, *map(repr, self.everyone)))) from None
        self.took_ms.append((what, round((time.monotonic() - began) * 1000)))
        self.read_offsets()

    def read_offsets(self) -> None:
        """Read the offset registry; none has gone back."""
        nodes = self._tree.children(f"/consumers/{self.group}/offsets/{self.topic}")
        now = {int(node.path.rpartition("/")[2]): int(node.data) for node in nodes}
        assert {number: offset for number, offset in self.offsets.items() if now[number] < offset} == {}
        self.offsets = now


def test_five_consumers_and_two_brokers_come_and_go(cluster: MainstemCluster, figures: Figures) -> None:
    seed = random.randrange(2**32)
    with ExitStack() as started:
        group = Group(cluster, seed, started)
        group.join(CONSUMERS)
        load = started.enter_context(
            Load(cluster.bootstrap_servers, group.topic, PARTITIONS, "load", "all", per_second=1_500)
        )
        load.resume()
        steps = [group.crash, lambda: group.crash(2), group.leave, group.freeze, group.break_broker]
        group.chance.shuffle(steps)
        for step in steps:
            load.wait_for_progress(300)
            step()
            if len(group.running) < CONSUMERS:
                group.join(CONSUMERS - len(group.running))
        load.pause()
        expected = load.acknowledged_places()
        wait_until(
            lambda: (
                not expected - {one[2:] for consumer in group.everyone for one in tuple(consumer.deliveries)}
            ),
            f"all of {len(expected)} acknowledged messages are delivered (seed {seed})",
            seconds=30,
            step_seconds=0.2,
        )
        owners = mainstem_json("zk", "ls", f"/consumers/{group.group}/owners/{group.topic}", cluster=cluster)
        assert len(owners) == PARTITIONS and all(one["ephemeral"] for one in owners)
        ids = mainstem_json("zk", "ls", f"/consumers/{group.group}/ids", cluster=cluster)
        assert len(ids) == CONSUMERS
        registration = mainstem_json("zk", "get", ids[0]["path"], cluster=cluster)["data"]
        assert registration["subscription"] == {group.topic: 1}
        for consumer in group.running:
            consumer.stop()
        group.read_offsets()
    deliveries = sum(len(one.deliveries) for one in group.everyone)
    strangers = {
        one.name: wrong
        for one in group.everyone
        if (
            wrong := deliveries_of_others(one.deliveries, f"{group.group}_{one.name}-", group.watch.tenures())
        )
    }
    figures.add(
        f"paper's consumers: seed {seed}, {len(expected):,} messages, {deliveries:,} deliveries,"
        f" {len(group.watch.tenures())} tenures, {group.watch.missed_count()} claims and releases unseen,"
        f" {sum(map(len, strangers.values()))} deliveries by others than the owner;"
        f" ms until shared anew: {json.dumps(group.took_ms)}"
    )
    assert len(group.offsets) == PARTITIONS
    for number, offset in group.offsets.items():
        assert offset == load.acknowledged(number)[-1][0] + 1, "the registry says that all was consumed"
    # A tenure that came and went between two readings of the registry proves nothing against its owner.
    assert not strangers or group.watch.missed_count() > 0, f"seed {seed}: {strangers}"
