"""Transactions while brokers are killed: the history has no anomaly that Kafka forbids (R9, R11, R17).

Stock producers commit, abort and vanish; brokers are killed with kill -9, half of them as the coordinator of
one of the transactional ids. The judge is `tests/support/anomalies`. `TRANSACTION_SECONDS=300` goes on for
five minutes; the seed is printed, and `TRANSACTION_SEED` repeats the choices (not the timing).
"""

from __future__ import annotations

import os
import random
import threading
import time
from contextlib import ExitStack
from typing import Any, Final
from uuid import uuid4

from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode
from tests.faults.results import Figures
from tests.faults.transactional_clients import HistoryReader, SharedHistory, TransactionalWriter
from tests.support.anomalies.anomalies import Anomaly, describe
from tests.support.anomalies.check import check, forbidden
from tests.support.anomalies.history import Isolation
from tests.support.clusters import Cluster, StartCluster
from tests.support.waiting import PATIENCE_SECONDS, let_pass, wait_until
from tests.support.wire import Connection

SECONDS: Final = float(os.environ.get("TRANSACTION_SECONDS", "40"))
PARTITIONS: Final = 4
WRITERS: Final = 4
SETTINGS: Final = {
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "auto.create.topics.enable": "false",
}


def coordinator_of(cluster: Cluster, transactional_id: str) -> int:
    """The broker that coordinates a transactional id."""

    def find() -> int:
        with Connection(cluster.brokers[1]) as connection:
            answer = connection.ask("find_coordinator", 3, key=transactional_id, key_type=1)
        return int(answer.node_id) if answer.error_code == ErrorCode.none else 0

    return wait_until(find, f"the coordinator of {transactional_id} is known", seconds=30, step_seconds=0.1)


def wait_until_in_sync(admin: Any) -> None:
    """Wait until every replica of every topic is in its in-sync set."""

    def all_in_sync() -> bool:
        topics = admin.list_topics(timeout=PATIENCE_SECONDS).topics.values()
        return all(
            set(partition.isrs) == set(partition.replicas)
            for topic in topics
            for partition in topic.partitions.values()
        )

    wait_until(all_in_sync, "all replicas are in sync", seconds=60, step_seconds=0.2)


def test_r11_no_anomaly_while_brokers_and_coordinators_are_killed(
    own_stack: StartCluster, figures: Figures
) -> None:
    seed = int(os.environ.get("TRANSACTION_SEED", random.randrange(2**32)))
    print(f"TRANSACTION_SEED={seed}")  # noqa: T201
    source = random.Random(seed)
    cluster = own_stack(3, SETTINGS)
    servers, topic = cluster.bootstrap_servers, f"topic-{uuid4().hex[:8]}"
    admin: Any = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    admin.create_topics([NewTopic(topic, PARTITIONS, 3)], operation_timeout=PATIENCE_SECONDS)[topic].result(
        PATIENCE_SECONDS
    )
    history = SharedHistory()
    writers = [
        TransactionalWriter(servers, f"writer-{number}", topic, PARTITIONS, history)
        for number in range(WRITERS)
    ]
    followers = [
        HistoryReader(servers, f"follower, {isolation.value}", topic, PARTITIONS, isolation, history)
        for isolation in Isolation
    ]
    errors: list[BaseException] = []
    kills = 0
    with ExitStack() as stack:
        writing, reading = threading.Event(), threading.Event()
        for event in (reading, writing):
            event.set()
        reader_threads = [_start(reader.follow, errors, reading) for reader in followers]
        writer_threads = [
            _start(writer.run, errors, writing, seed + number) for number, writer in enumerate(writers)
        ]
        stack.callback(reading.clear)
        stack.callback(writing.clear)
        began_s = time.monotonic()
        while time.monotonic() < began_s + SECONDS and not errors:
            let_pass(source.uniform(0.5, 2.0), "transactions without a fault, and in various steps")
            is_coordinator = source.random() < 0.5
            victim = (
                coordinator_of(cluster, source.choice(writers).name)
                if is_coordinator
                else source.choice(sorted(cluster.brokers))
            )
            cluster.kill_broker(victim)
            kills += 1
            let_pass(source.uniform(0.0, 3.0), "the broker is away")
            cluster.start_broker(victim)
            wait_until_in_sync(admin)
        writing.clear()
        _join(writer_threads)
        reading.clear()
        _join(reader_threads)
    assert not errors, errors
    last_readers = [
        HistoryReader(servers, f"last, {isolation.value}", topic, PARTITIONS, isolation, history)
        for isolation in Isolation
    ]
    for reader in last_readers:
        reader.read_to_the_end()
    assert not [text for reader in (*followers, *last_readers) for text in reader.complaints]

    findings = check(history.operations)
    bad = forbidden(findings)
    assert not bad, f"TRANSACTION_SEED={seed}\n{describe(bad)}"
    committed, aborted, abandoned = (
        sum(getattr(writer, name) for writer in writers) for name in ("committed", "aborted", "abandoned")
    )
    figures.add(
        f"transactions: {committed} committed, {aborted} aborted, {abandoned} abandoned, {kills} brokers"
        f" killed (seed {seed})"
    )
    assert committed > 10 * WRITERS
    assert aborted > 0
    # What read_uncommitted shows proves that there was something to hide.
    assert any(finding.anomaly is Anomaly.UNCOMMITTED_ABORTED_READ for finding in findings)


def _start(work: Any, errors: list[BaseException], *arguments: object) -> threading.Thread:
    def run() -> None:
        try:
            work(*arguments)
        except BaseException as error:  # noqa: BLE001  # for the test's thread
            errors.append(error)

    thread = threading.Thread(target=run, name=work.__qualname__)
    thread.start()
    return thread


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), f"{thread.name} goes on for too long"
