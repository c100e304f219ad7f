"""Each step of a transaction x kill -9 of coordinator, leader or client: all or nothing (R9, R11).

For each kill, one transaction is brought to each step; then the broker is killed under all of them, or each
client kills itself. What read_committed consumers see of a transaction is all of its records and its offset,
or nothing, as its client was answered. How long readers of its partitions wait is shown at the end of the
run.
"""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.faults.results import Figures
from tests.faults.test_transaction_histories import SETTINGS, coordinator_of, wait_until_in_sync
from tests.faults.transaction_steps import IN_FLIGHT_S, OFFSET, Step, SteppedTransaction
from tests.support.clusters import Cluster, RunCluster
from tests.support.waiting import PATIENCE_SECONDS, let_pass

ROOT: Final = Path(__file__).parents[2]
BEFORE: Final = "before"
AFTER: Final = "after"
"""A plain record, written after the kill: readers of a partition continue when they get it."""
END: Final = "end"
"""A plain record, written when every transaction has ended: nothing of them can come later."""
CONTINUE_S_MAX: Final = 45.0
"""Well above an election and the start of a coordinator; transactions would time out after 30 s."""
CLIENT_OUTCOMES: Final[dict[Step, tuple[bool, ...]]] = {
    Step.COMMIT_REQUESTED: (False, True),
    Step.COMMITTED: (True,),
}
"""Whether a transaction may be committed whose client died at the step; at all others it must not be."""


@pytest.fixture(scope="module")
def cluster(run_cluster: RunCluster) -> Iterator[Cluster]:
    """Three brokers; each test leaves them whole."""
    with run_cluster(3, SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def admin(cluster: Cluster) -> Any:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})


def new_topic(admin: Any, leaders: Sequence[int]) -> str:
    """A topic with two partitions for each step, led by these two brokers."""
    name = f"topic-{uuid4().hex[:8]}"
    replicas = [[leader, *({1, 2, 3} - {leader})] for leader in leaders] * len(Step)
    topic = NewTopic(name, len(replicas), replica_assignment=replicas)
    admin.create_topics([topic], operation_timeout=PATIENCE_SECONDS)[name].result(PATIENCE_SECONDS)
    return name


def new_transactions(cluster: Cluster, topic: str, coordinator: int) -> dict[Step, SteppedTransaction]:
    """One for each step, all with this coordinator, which is that of some id."""
    names = (name for _ in count() if coordinator_of(cluster, name := uuid4().hex[:8]) == coordinator)
    return {
        step: SteppedTransaction(cluster.bootstrap_servers, next(names), topic, 2 * number)
        for number, step in enumerate(Step)
    }


class WaitingReader:
    """Reads all partitions with read_committed until the last plain record of each has come.

    A transaction that had written nothing when the broker died writes its records behind the record that says
    that readers continue, so only the record that follows the end of all transactions ends the reading.

    The reader and the producer of the plain records are connected before anything is killed: what is measured
    is not how long they take to start.
    """

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.values: set[str] = set()
        self._topic = topic
        self._producer: Any = Producer(
            {"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True, "log_level": 0}
        )
        self._thread = threading.Thread(target=self._read)
        self._is_at_start = threading.Event()
        self.continued_s: dict[int, float] = {}
        """By partition: when the plain record came that was written after the kill."""
        self._ended: set[int] = set()
        self._deadline_s = float("inf")
        self._consumer: Any = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": "not used",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 50,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(2 * len(Step))])

    def start(self) -> None:
        """Begin to read, and return when records come."""
        self._write(BEFORE)
        self._thread.start()
        assert self._is_at_start.wait(CONTINUE_S_MAX)

    def write_after(self) -> None:
        """Write the plain records that readers wait for, when the partitions have leaders again."""
        self._write(AFTER)

    def finish(self) -> None:
        """Wait until everything was read that was written before; every transaction must have ended."""
        self._write(END)
        self._deadline_s = time.monotonic() + CONTINUE_S_MAX
        self._thread.join()

    def _write(self, value: str) -> None:
        for number in range(2 * len(Step)):
            self._producer.produce(self._topic, value=value.encode(), partition=number)
        assert self._producer.flush(CONTINUE_S_MAX) == 0

    def _read(self) -> None:
        while len(self._ended) < 2 * len(Step) and time.monotonic() < self._deadline_s:
            for message in self._consumer.consume(100, 0.05):
                if message.error():
                    assert message.error().code() != KafkaError._AUTO_OFFSET_RESET, message.error().str()
                    continue
                value = message.value().decode()
                if value == AFTER:
                    self.continued_s[message.partition()] = time.monotonic()
                elif value == END:
                    self._ended.add(message.partition())
                elif value == BEFORE:
                    self._is_at_start.set()
                else:
                    self.values.add(value)
        self._consumer.close()


def judge(
    transactions: dict[Step, SteppedTransaction], reader: WaitingReader, struck_s: float, victim: str
) -> list[str]:
    """Check that each is all or nothing; the lines that say how long readers waited."""
    lines = []
    for step, transaction in transactions.items():
        visible = reader.values & set(transaction.values)
        offset = transaction.committed_offset()
        case = f"{victim} killed, {step.value}"
        continued_s = max(reader.continued_s.get(number, math.inf) for number in transaction.partitions)
        waited_s = continued_s - struck_s
        assert waited_s < CONTINUE_S_MAX, f"{case}: readers of its partitions continue after {waited_s} s"
        if transaction.is_committed is None:
            allowed = CLIENT_OUTCOMES.get(step, (False,))
            assert bool(visible) in allowed, f"{case}: {sorted(visible)} are visible"
            is_committed = bool(visible)
        else:
            is_committed = transaction.is_committed
        expected = set(transaction.values) if is_committed else set()
        assert visible == expected, f"{case}: {len(visible)} of {len(transaction.values)} are visible"
        assert offset == (OFFSET if is_committed else None), f"{case}: the offset is {offset}"
        outcome = "committed" if is_committed else "aborted"
        lines.append(f"{case}: {outcome}, readers continue after {waited_s:.1f} s")
    return lines


@pytest.mark.parametrize("victim", ["coordinator", "leader"])
def test_r11_a_broker_dies_at_each_step(cluster: Cluster, admin: Any, figures: Figures, victim: str) -> None:
    coordinator = coordinator_of(cluster, "any")
    leaders = sorted({1, 2, 3} - {coordinator})
    killed = coordinator if victim == "coordinator" else leaders[0]
    topic = new_topic(admin, leaders)
    transactions = new_transactions(cluster, topic, coordinator)
    # Those whose end is only requested come last: it takes as long as a request.
    ordered = sorted(transactions, key=lambda step: step in (Step.COMMIT_REQUESTED, Step.ABORT_REQUESTED))
    reader = WaitingReader(cluster, topic)
    reader.start()
    ending = {step: transactions[step].go_to(step) for step in ordered}
    let_pass(IN_FLIGHT_S, "the requests are under way")
    cluster.kill_broker(killed)
    struck_s = time.monotonic()
    threads = [threading.Thread(target=reader.write_after)]
    threads += [
        threading.Thread(target=transaction.go_on, args=(step,))
        for step, transaction in transactions.items()
        if ending[step] is None
    ]
    for thread in threads:
        thread.start()
    for thread in (*threads, *(thread for thread in ending.values() if thread is not None)):
        thread.join(2 * CONTINUE_S_MAX)
        assert not thread.is_alive()
    reader.finish()
    cluster.start_broker(killed)
    wait_until_in_sync(admin)
    assert all(transaction.is_committed is not None for transaction in transactions.values())
    for step in (Step.COMMITTED, Step.ABORTED, Step.ABORT_REQUESTED):
        assert transactions[step].is_committed is (step is Step.COMMITTED)
    for line in judge(transactions, reader, struck_s, victim):
        figures.add(line)


def test_r11_a_client_dies_at_each_step(cluster: Cluster, admin: Any, figures: Figures) -> None:
    topic = new_topic(admin, (1, 2))
    transactions = new_transactions(cluster, topic, coordinator_of(cluster, "any"))
    reader = WaitingReader(cluster, topic)
    reader.start()
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.faults.transaction_steps", cluster.bootstrap_servers),
                *(transaction.name, topic, str(transaction.partitions[0]), step.name),
            ],
            cwd=ROOT,
        )
        for step, transaction in transactions.items()
    ]
    for process in processes:
        assert process.wait(60) == -signal.SIGKILL
    struck_s = time.monotonic()
    threads = [threading.Thread(target=transaction.take_over) for transaction in transactions.values()]
    for thread in threads:
        thread.start()
    reader.write_after()
    for thread in threads:
        thread.join()
    reader.finish()
    for line in judge(transactions, reader, struck_s, "client"):
        figures.add(line)
