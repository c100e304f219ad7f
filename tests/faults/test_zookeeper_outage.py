"""ZooKeeper is away for many sessions: no client notices, and its return moves no leadership (R41)."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

import confluent_kafka
import pytest
from confluent_kafka import KafkaException
from kio.schema.errors import ErrorCode
from tests.faults.fault_cluster import BROKERS, SESSION_S, FaultCluster
from tests.faults.results import Figures, Result, result_of
from tests.faults.trial import PARTITIONS, WARM_UP_MESSAGES, settle_and_judge
from tests.faults.workload import Workload
from tests.support.waiting import let_pass, wait_until
from tests.support.wire import Connection

AWAY_S: Final = 10.0 * SESSION_S
WAIT_S_MAX: Final = 2.5
"""The longest that a client may wait, with room for a busy machine; without an outage it is some 0.1 s."""
INTERVAL_S: Final = 0.1
ANSWER_S: Final = 10.0


class GroupAtWork:
    """A producer with acks=1 and without retries, and a group that reads and commits what it sends."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._servers = bootstrap_servers
        self._topic = topic
        self._sending, self._reading = threading.Event(), threading.Event()
        self._sending.set()
        self._reading.set()
        self.sent = 0
        self.failed: list[str] = []
        self.read: Counter[int] = Counter()
        self.longest_commit_s = 0.0
        self._threads = [threading.Thread(target=self._produce), threading.Thread(target=self._consume)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        wait_until(lambda: len(self.read) > 10, "the group reads", 30.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sending.clear()
        self._threads[0].join()
        if error is None:
            wait_until(lambda: len(self.read) >= self.sent, "the group has read everything", 30.0)
        self._reading.clear()
        self._threads[1].join()

    def _produce(self) -> None:
        producer: Any = confluent_kafka.Producer(
            {"bootstrap.servers": self._servers, "acks": 1, "retries": 0, "log_level": 0}
        )

        def delivered(error: object, _message: object) -> None:
            if error is not None:
                self.failed.append(f"acks=1: {error}")

        while self._sending.is_set():
            producer.produce(self._topic, str(self.sent).encode(), on_delivery=delivered)
            self.sent += 1
            producer.poll(INTERVAL_S)
            let_pass(INTERVAL_S / 2, "a steady rate of records")
        producer.flush(ANSWER_S)

    def _consume(self) -> None:
        consumer: Any = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": f"group of {self._topic}",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        consumer.subscribe([self._topic])
        try:
            while self._reading.is_set():
                messages = [each for each in consumer.consume(100, INTERVAL_S) if each.error() is None]
                self.read.update(int(message.value()) for message in messages)
                if messages:
                    self._commit(consumer)
        finally:
            consumer.close()

    def _commit(self, consumer: Any) -> None:
        begun_s = time.monotonic()
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            self.failed.append(f"commit: {error}")
        self.longest_commit_s = max(self.longest_commit_s, time.monotonic() - begun_s)


def stop(cluster: FaultCluster) -> None:
    """Connections to the ensemble are refused. Its sessions survive its return."""
    cluster.stack.stop_zookeeper()


def start(cluster: FaultCluster) -> None:
    cluster.stack.start_zookeeper()


def suspend(cluster: FaultCluster) -> None:
    """Connections to the ensemble are accepted and not answered. Its sessions end when it goes on."""
    os.kill(cluster.stack.state()["zookeeper"]["pid"], signal.SIGSTOP)


def go_on(cluster: FaultCluster) -> None:
    os.kill(cluster.stack.state()["zookeeper"]["pid"], signal.SIGCONT)


@pytest.mark.parametrize(("strike", "mend"), [(stop, start), (suspend, go_on)], ids=["stopped", "suspended"])
def test_no_request_fails_without_zookeeper_and_its_return_moves_no_leadership(
    wired_cluster: FaultCluster,
    results: list[Result],
    figures: Figures,
    strike: Callable[[FaultCluster], None],
    mend: Callable[[FaultCluster], None],
) -> None:
    cluster, name = wired_cluster, f"ZooKeeper {strike.__name__} for {AWAY_S:.0f} s"
    cluster.controller()
    topic, read_topic = (cluster.create_topic(BROKERS, PARTITIONS) for _ in range(2))
    with (
        GroupAtWork(cluster.bootstrap_servers, read_topic) as group,
        Workload(cluster.bootstrap_servers, topic, PARTITIONS) as load,
    ):
        load.wait_for_messages(WARM_UP_MESSAGES)
        epochs = _leader_epochs(cluster, topic)
        struck_s = load.note(name)
        strike(cluster)
        try:
            let_pass(AWAY_S / 2, "ZooKeeper is away")
            refusal = _create_topic(cluster)
            let_pass(max(struck_s + AWAY_S - time.monotonic(), 0), "ZooKeeper is away")
        finally:
            load.note("return of ZooKeeper")
            mend(cluster)
        let_pass(3 * SESSION_S, "sessions that are lost would be over")
        assert _leader_epochs(cluster, topic) == epochs, "somebody was elected"
        ended_s = settle_and_judge(cluster, load, topic)
    result = result_of(load.history, name, "", struck_s, ended_s)
    results.append(result)
    figures.add(
        f"{name}: longest wait {result.silence_s:.2f} s for an acknowledgement,"
        f" {group.longest_commit_s:.2f} s for a commit; {result.acknowledged} + {group.sent} acknowledged"
    )
    assert result.failed == 0
    assert result.silence_s < WAIT_S_MAX
    assert not group.failed
    assert group.longest_commit_s < WAIT_S_MAX
    assert group.read == Counter(range(group.sent)), "records with acks=1 were lost or read twice"
    assert refusal.startswith("ZooKeeper has not answered for")
    cluster.delete_topic(read_topic)


def _leader_epochs(cluster: FaultCluster, topic: str) -> list[int]:
    with cluster.connection(BROKERS[0]) as connection:
        answer = connection.ask("metadata", 8, topics=[{"name": topic}], **_METADATA)
    return sorted(int(partition.leader_epoch) for partition in answer.topics[0].partitions)


_METADATA: Final = {
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}


def _create_topic(cluster: FaultCluster) -> str:
    """Ask for a new topic; returns the error's message."""
    new = {
        "name": "unwritten",
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
    }
    with Connection(f"127.0.0.1:{cluster.stack.broker_port(BROKERS[0])}", ANSWER_S) as connection:
        answer = connection.ask("create_topics", 4, topics=[new], timeout=8_000, validate_only=False)
    assert answer.topics[0].error_code == ErrorCode.request_timed_out
    return str(answer.topics[0].error_message)


def test_a_leader_that_stands_still_without_zookeeper_answers_nobody_when_it_goes_on(
    wired_cluster: FaultCluster, results: list[Result]
) -> None:
    """SIGSTOP for longer than all leases, while the ensemble is away and comes back."""
    cluster, name = wired_cluster, "SIGSTOP of the leader without ZooKeeper"
    controller = cluster.controller()
    leader, follower = (broker_id for broker_id in BROKERS if broker_id != controller)
    topic = cluster.create_topic((leader, follower, controller), PARTITIONS)
    with Workload(cluster.bootstrap_servers, topic, PARTITIONS) as load:
        load.wait_for_messages(WARM_UP_MESSAGES)
        struck_s = load.note(name)
        cluster.stack.stop_zookeeper()
        let_pass(2 * SESSION_S, "ZooKeeper is away for longer than a session")
        cluster.pause(leader)
        try:
            let_pass(SESSION_S, "the leader is paused for a session")
            cluster.stack.start_zookeeper()
            back_s = time.monotonic()
            load.wait_for_acknowledgements(back_s, 40.0)
            assert leader not in cluster.leaders(topic, broker_id=follower)
        finally:
            cluster.resume(leader)
        ended_s = settle_and_judge(cluster, load, topic)
    results.append(result_of(load.history, name, "leader", struck_s, ended_s))
