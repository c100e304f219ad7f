"""Groups while brokers are killed: members go on, committed offsets never go back (R14, R15, R22)."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode
from tests.support.clusters import Cluster, StartCluster
from tests.support.group_members import Member
from tests.support.group_requests import coordinator_address, fetch_fields
from tests.support.load import Load
from tests.support.waiting import wait_until
from tests.support.wire import Connection

PARTITIONS = 6
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "offsets.topic.num.partitions": "8",
}


@pytest.fixture
def group() -> str:
    return f"group-{uuid4().hex[:12]}"


def replicated_topic(cluster: Cluster) -> str:
    admin: Any = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    topic = f"topic-{uuid4().hex[:12]}"
    admin.create_topics([NewTopic(topic, PARTITIONS, 3)], operation_timeout=20)[topic].result(20)
    return topic


class Watch:
    """Asks for a group's committed offsets all the time, wherever it is answered; notes what goes back.

    `times_answered` counts answers without an error.
    """

    def __init__(self, cluster: Cluster, group: str, topic: str) -> None:
        self.committed: dict[int, int] = {}
        self.went_back: list[tuple[int, int, int]] = []
        self.times_answered = 0
        self._addresses = list(cluster.brokers.values())
        self._group, self._topic = group, topic
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._ended.set()
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.01):
            for address in self._addresses:
                try:
                    with Connection(address, timeout_seconds=2) as connection:
                        fields = fetch_fields(self._group, {self._topic: list(range(PARTITIONS))}, 7)
                        answer = connection.ask("offset_fetch", 7, **fields)
                except (OSError, ConnectionError):
                    continue  # that broker is down
                if answer.error_code == ErrorCode.none:
                    self._compare(answer.topics[0].partitions)

    def _compare(self, partitions: Any) -> None:
        self.times_answered += 1
        for one in partitions:
            number, offset = int(one.partition_index), int(one.committed_offset)
            before = self.committed.get(number, -1)
            if offset < before:
                self.went_back.append((number, before, offset))
            self.committed[number] = offset


def broker_at(cluster: Cluster, address: str) -> int:
    return next(broker for broker, at in cluster.brokers.items() if at == address)


@pytest.mark.parametrize("kind", ["confluent", "aiokafka"])
def test_a_group_outlives_the_broker_that_coordinates_it(
    kind: str, own_stack: StartCluster, group: str
) -> None:
    cluster = own_stack(3, SETTINGS)
    topic = replicated_topic(cluster)
    address = coordinator_address(cluster.brokers[1], group)
    watch = Watch(cluster, group, topic)
    with ExitStack() as started:
        members = [
            started.enter_context(Member(kind, cluster.bootstrap_servers, group, topic, session_ms=10_000))
            for _ in range(2)
        ]
        load = started.enter_context(Load(cluster.bootstrap_servers, topic, PARTITIONS, "load", "all"))
        started.enter_context(watch.running())
        load.resume()
        wait_until(lambda: all(one.told("committed") for one in members), "both commit", seconds=30)
        events = [list(one.events) for one in members]
        cluster.kill_broker(broker_at(cluster, address))
        counts = [len(one.told("committed")) for one in members]
        wait_until(
            lambda: all(
                len(one.told("committed")) > count + 5 for one, count in zip(members, counts, strict=True)
            ),
            "both commit again, at another coordinator",
            seconds=60,
        )
        assert coordinator_address(load_address(cluster, address), group) != address
        load.pause()
        wanted = {(number, offset) for number in range(PARTITIONS) for offset, _ in load.acknowledged(number)}
        wait_until(
            lambda: wanted <= {record for one in members for record in tuple(one.records)},
            "every acknowledged record was processed",
            seconds=60,
        )
        if kind == "confluent":
            # The next coordinator knows the members: nobody has to join anew.
            for one, before in zip(members, events, strict=True):
                news = [
                    event for event in one.events[len(before) :] if "assigned" in event or "lost" in event
                ]
                assert news == []
    assert watch.times_answered > 10
    assert watch.went_back == []


def load_address(cluster: Cluster, but: str) -> str:
    return next(address for address in cluster.brokers.values() if address != but)


def test_groups_under_change_while_brokers_restart(own_stack: StartCluster, group: str) -> None:
    """Members of three kinds of client join, leave, crash and return; every record is processed.

    The seed is printed with a failure.
    """
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    cluster = own_stack(3, SETTINGS)
    topic = replicated_topic(cluster)
    coordinator_address(cluster.brokers[1], group)
    watch = Watch(cluster, group, topic)
    kinds = ("confluent", "aiokafka", "java")
    everyone: list[Member] = []
    with ExitStack() as started:

        def begin() -> Member:
            member = started.enter_context(
                Member(chance.choice(kinds), cluster.bootstrap_servers, group, topic, session_ms=2_000)
            )
            everyone.append(member)
            return member

        running = [begin() for _ in range(4)]
        load = started.enter_context(Load(cluster.bootstrap_servers, topic, PARTITIONS, "load", "all"))
        started.enter_context(watch.running())
        load.resume()
        load.wait_for_progress(1_000)
        until = time.monotonic() + 25
        while time.monotonic() < until:
            what = chance.choice(("join", "leave", "crash", "broker"))
            if what == "join" and len(running) < 6:
                running.append(begin())
            elif what in ("leave", "crash") and len(running) > 2:
                member = running.pop(chance.randrange(len(running)))
                member.stop() if what == "leave" else member.kill()
            elif what == "broker":
                broker = chance.choice(list(cluster.brokers))
                chance.choice((cluster.kill_broker, cluster.stop_broker))(broker)
                cluster.start_broker(broker)
            load.wait_for_progress(200)
        load.pause()
        wanted = {(number, offset) for number in range(PARTITIONS) for offset, _ in load.acknowledged(number)}
        processed: Counter[tuple[int, int]] = Counter()

        def is_done() -> bool:
            processed.clear()
            for member in everyone:
                processed.update(tuple(member.records))
            return wanted <= processed.keys()

        try:
            wait_until(is_done, "every acknowledged record was processed", seconds=60, step_seconds=0.2)
        except AssertionError as error:
            missing = sorted(wanted - processed.keys())
            raise AssertionError(
                f"seed {seed}: {error} Missing: {missing[:5]} and {len(missing)} in all.\n"
                + "\n".join(map(repr, running))
            ) from None
    assert watch.went_back == [], f"seed {seed}"
    assert watch.times_answered > 10
