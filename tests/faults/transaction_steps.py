"""A transaction of a stock producer, step by step; also as a process that dies at one of the steps.

`python -m tests.faults.transaction_steps SERVERS NAME TOPIC FIRST_PARTITION STEP` goes to the step and kills
itself there.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from enum import Enum
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from tests.support.waiting import let_pass

ANSWER_S: Final = 60.0
RECORDS_PER_PARTITION: Final = 3
OFFSET: Final = 7
"""What a transaction commits for its group."""
IN_FLIGHT_S: Final = 0.003
"""From the request of an end to the kill: about what the answer takes."""


class Step(Enum):
    """How far a transaction is. The ends are requested, and being carried out, or answered."""

    INITIALIZED = "initialized"
    SENT = "records are being sent"
    WRITTEN = "records are written"
    OFFSETS_ADDED = "offsets are added"
    COMMIT_REQUESTED = "commit is requested"
    ABORT_REQUESTED = "abort is requested"
    COMMITTED = "commit is answered"
    ABORTED = "abort is answered"


class SteppedTransaction:
    """One transaction in two partitions, `first_partition` and the next one, and a group's offset.

    The group has the name of the transactional id. `is_committed` is what the client was answered; None: not
    yet.
    """

    def __init__(self, servers: str, name: str, topic: str, first_partition: int) -> None:
        self.name = name
        self.is_committed: bool | None = None
        self.partitions = (first_partition, first_partition + 1)
        self.values = [f"{name}/{number}" for number in range(2 * RECORDS_PER_PARTITION)]
        self._servers = servers
        self._topic = topic
        self._producer: Any = Producer(
            {
                "bootstrap.servers": servers,
                "transactional.id": name,
                "transaction.timeout.ms": 30_000,
                "linger.ms": 0,
                "log_level": 0,
            }
        )

    def go_to(self, step: Step) -> threading.Thread | None:
        """Do all before the step; returns the thread that carries out an end which is only requested."""
        self._initialize()
        self._producer.begin_transaction()
        if step is Step.INITIALIZED:
            return None
        self._send()
        if step is Step.SENT:
            return None
        self._producer.flush(ANSWER_S)
        if step is Step.WRITTEN:
            return None
        self._add_offsets()
        if step is Step.OFFSETS_ADDED:
            return None
        if step in (Step.COMMITTED, Step.ABORTED):
            self.end(committed=step is Step.COMMITTED)
            return None
        thread = threading.Thread(target=self.end, kwargs={"committed": step is Step.COMMIT_REQUESTED})
        thread.start()
        return thread

    def go_on(self, step: Step) -> None:
        """Do all after the step, in another thread than an end that was requested, and commit."""
        if self.is_committed is not None:
            return
        try:
            if step is Step.INITIALIZED:
                self._send()
            if step in (Step.INITIALIZED, Step.SENT, Step.WRITTEN):
                self._add_offsets()
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self.end(committed=False)
            return
        self.end(committed=True)

    def end(self, *, committed: bool) -> None:
        """Commit, or abort, which also follows where the client library says so."""
        try:
            self._repeat(self._producer.commit_transaction if committed else self._producer.abort_transaction)
        except KafkaException as error:
            if not committed or not error.args[0].txn_requires_abort():
                raise
            self._repeat(self._producer.abort_transaction)
            committed = False
        self.is_committed = committed

    def take_over(self) -> None:
        """Initialize another instance, as a process does that starts again: it aborts what is open."""
        self._initialize()

    def _initialize(self) -> None:
        self._repeat(self._producer.init_transactions)

    def _send(self) -> None:
        for number, value in enumerate(self.values):
            partition = self.partitions[number % 2]
            self._producer.produce(self._topic, value=value.encode(), partition=partition)
        self._producer.poll(0)

    def _add_offsets(self) -> None:
        consumer: Any = Consumer({"bootstrap.servers": self._servers, "group.id": self.name, "log_level": 0})
        try:
            offsets = [TopicPartition(self._topic, self.partitions[0], OFFSET)]
            metadata = consumer.consumer_group_metadata()
            self._repeat(lambda _: self._producer.send_offsets_to_transaction(offsets, metadata, ANSWER_S))
        finally:
            consumer.close()

    def committed_offset(self) -> int | None:
        """The group's offset; None if it has none."""
        consumer: Any = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": self.name,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        try:
            [result] = consumer.committed([TopicPartition(self._topic, self.partitions[0])], ANSWER_S)
        finally:
            consumer.close()
        return result.offset if result.offset >= 0 else None

    @staticmethod
    def _repeat(request: Any) -> None:
        """Send again as long as the client library says that it may."""
        deadline_s = time.monotonic() + ANSWER_S
        while True:
            try:
                request(ANSWER_S)
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline_s:
                    raise
            else:
                return


def main() -> None:
    servers, name, topic, first_partition, step_name = sys.argv[1:]
    transaction = SteppedTransaction(servers, name, topic, int(first_partition))
    if transaction.go_to(Step[step_name]) is not None:
        let_pass(IN_FLIGHT_S, "the request is under way")
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
