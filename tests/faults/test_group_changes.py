"""Twelve members of three kinds of client under change, while brokers restart (R14, R15, R17, R22).

Members join, leave, crash and return. Every record is processed at least once, none by two members of one
generation, and committed offsets never go back. `make groups` goes on for five minutes.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from contextlib import ExitStack
from typing import Any, Final
from uuid import uuid4

from confluent_kafka.admin import AdminClient, NewTopic
from tests.faults.results import Figures
from tests.support.clusters import Cluster, StartCluster
from tests.support.committed_offsets import CommittedOffsets
from tests.support.group_members import Member
from tests.support.group_requests import coordinator_address
from tests.support.load import Load
from tests.support.waiting import PATIENCE_SECONDS, wait_until

SECONDS: Final = float(os.environ.get("GROUPS_SECONDS", "25"))
PARTITIONS: Final = 12
MEMBERS: Final = 12
KINDS: Final = ("confluent", "aiokafka", "java")
PER_SECOND: Final = 2_000
SESSION_MS: Final = 4_000  # what twelve processes on a small machine keep to
SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "offsets.topic.num.partitions": "8",
}


class Changes:
    """The members, what is done to them, and how often."""

    def __init__(self, cluster: Cluster, topic: str, seed: int, started: ExitStack) -> None:
        self.group = f"group-{uuid4().hex[:8]}"
        self.everyone: list[Member] = []
        self.running: list[Member] = []
        self.counts: Counter[str] = Counter()
        self._gone: list[str] = []
        self._cluster, self._topic, self._started = cluster, topic, started
        self._chance = random.Random(seed)

    def start(self, kind: str) -> None:
        member = Member(kind, self._cluster.bootstrap_servers, self.group, self._topic, session_ms=SESSION_MS)
        self.everyone.append(self._started.enter_context(member))
        self.running.append(member)

    def change(self) -> None:
        """Do one of the things that happen."""
        choices = ["broker"]
        choices += ["return"] * 3 if self._gone else []
        choices += ["leave", "crash"] if len(self.running) > MEMBERS // 2 else []
        what = self._chance.choice(choices)
        self.counts[what] += 1
        if what == "return":
            self.start(self._gone.pop(self._chance.randrange(len(self._gone))))
        elif what == "broker":
            broker = self._chance.choice(list(self._cluster.brokers))
            self._chance.choice((self._cluster.kill_broker, self._cluster.stop_broker))(broker)
            self._cluster.start_broker(broker)
        else:
            member = self.running.pop(self._chance.randrange(len(self.running)))
            self._gone.append(member.kind)
            member.stop() if what == "leave" else member.kill()

    def processed(self) -> Counter[tuple[int, int]]:
        """How often each record was processed, by partition and offset."""
        return Counter(record for member in self.everyone for record in tuple(member.records))


def owners_by_generation(members: list[Member]) -> dict[tuple[int, int], set[int]]:
    """By generation and partition: who processed records of it, as places in `members`."""
    owners: dict[tuple[int, int], set[int]] = {}
    for place, member in enumerate(members):
        for event in member.events:
            for partition, _ in event.get("records", ()):
                owners.setdefault((event["generation"], partition), set()).add(place)
    return owners


def test_a_group_of_twelve_under_change_while_brokers_restart(
    own_stack: StartCluster, figures: Figures
) -> None:
    seed = random.randrange(2**32)
    cluster = own_stack(3, SETTINGS)
    topic = f"topic-{uuid4().hex[:8]}"
    admin: Any = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(topic, PARTITIONS, 3)], operation_timeout=PATIENCE_SECONDS)[topic].result(
        PATIENCE_SECONDS
    )
    with ExitStack() as started:
        changes = Changes(cluster, topic, seed, started)
        coordinator_address(cluster.brokers[1], changes.group)
        committed = CommittedOffsets(cluster, changes.group, topic, PARTITIONS)
        started.enter_context(committed.watched())
        load = started.enter_context(
            Load(cluster.bootstrap_servers, topic, PARTITIONS, "load", "all", per_second=PER_SECOND)
        )
        load.resume()
        for number in range(MEMBERS):
            changes.start(KINDS[number % len(KINDS)])
        wait_until(
            lambda: all(member.told("committed") for member in changes.running),
            "all twelve have committed",
            seconds=60,
            step_seconds=0.1,
        )
        began = time.monotonic()
        while time.monotonic() < began + SECONDS:
            load.wait_for_progress(PER_SECOND)  # a second or more, so that there is something to disturb
            changes.change()
        load.pause()
        expected = load.acknowledged_places()

        def is_done() -> bool:
            return expected <= changes.processed().keys()

        try:
            wait_until(is_done, "every acknowledged record was processed", seconds=60, step_seconds=0.5)
        except AssertionError as error:
            missing = sorted(expected - changes.processed().keys())
            words = [f"seed {seed}: {error} Missing: {len(missing)}, as {missing[:5]}"]
            raise AssertionError("\n".join((*words, *map(repr, changes.running)))) from None
    owners = owners_by_generation(changes.everyone)
    processed = changes.processed()
    figures.add(
        f"groups: {SECONDS:.0f} s, seed {seed}: {dict(changes.counts)}, {len({one for one, _ in owners})}"
        f" generations, {len(expected):,} records acknowledged, {processed.total():,} processed,"
        f" {committed.times_answered:,} readings of offsets"
    )
    assert {at: who for at, who in owners.items() if len(who) > 1} == {}, f"seed {seed}"
    assert committed.went_back == [], f"seed {seed}"
    assert committed.times_answered > 10
