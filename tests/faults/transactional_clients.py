"""Stock clients that write transactions or read them, each in a thread, and note a history.

The history is judged by `tests/support/anomalies`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from tests.support.anomalies.history import Assign, End, EndRequest, Isolation, Operation, Poll, Record, Send
from tests.support.waiting import let_pass

ANSWER_S: Final = 60.0
"""How long a client may take: longer than any election."""
TRANSACTION_TIMEOUT_MS: Final = 20_000
HARMLESS: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
    }
)
"""Errors of a consumer while brokers are away; it goes on by itself."""


class SharedHistory:
    """Operations of several threads, in the order in which they are noted."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._lock = threading.Lock()

    def note(self, operation: Operation) -> int:
        """Append; returns its place."""
        with self._lock:
            self.operations.append(operation)
            return len(self.operations) - 1


class TransactionalWriter:
    """A producer that writes one transaction after another, of which some are aborted.

    Now and then it is abandoned in the middle of a transaction, and another instance takes over its id.
    """

    def __init__(self, servers: str, name: str, topic: str, partitions: int, history: SharedHistory) -> None:
        self.name = name
        self.committed = self.aborted = self.abandoned = 0
        self._servers = servers
        self._topic = topic
        self._partitions = partitions
        self._history = history
        self._number = 0
        self._zombies: list[Any] = []
        """Kept, so that nothing closes them in an orderly way."""

    def run(self, running: threading.Event, seed: int) -> None:
        """Write until `running` is cleared; what is open then is ended."""
        source = random.Random(seed)
        while running.is_set():
            producer = self._initialized()
            try:
                while running.is_set():
                    self._transaction(producer, source)
                    if source.random() < 0.03:
                        self._abandon(producer)
                        break
            except KafkaException:
                # It was fenced by the coordinator, which had given the transaction up.
                self._zombies.append(producer)
        self._initialized()  # aborts what an abandoned one left open

    def _initialized(self) -> Any:
        producer: Any = Producer(
            {
                "bootstrap.servers": self._servers,
                "transactional.id": self.name,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 1,
                "log_level": 0,
            }
        )
        deadline_s = time.monotonic() + ANSWER_S
        while True:
            try:
                producer.init_transactions(ANSWER_S)
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline_s:
                    raise
            else:
                return producer

    def _transaction(self, producer: Any, source: random.Random) -> None:
        self._number += 1
        transaction = f"{self.name}/{self._number}"
        producer.begin_transaction()
        self._write(producer, transaction, source)
        is_commit = source.random() < 0.7
        if not is_commit:
            # An abort while librdkafka still adds partitions would fail for good (librdkafka#4849).
            producer.flush(ANSWER_S)
        try:
            if is_commit:
                self._history.note(EndRequest(self.name, transaction, True))
                _retried(producer.commit_transaction)
                self.committed += 1
            else:
                self._abort(producer, transaction)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            is_commit = False
            self._abort(producer, transaction)
        self._history.note(End(self.name, transaction, is_commit))

    def _abort(self, producer: Any, transaction: str) -> None:
        self._history.note(EndRequest(self.name, transaction, False))
        _retried(producer.abort_transaction)
        self.aborted += 1

    def _abandon(self, producer: Any) -> None:
        """Leave a transaction open, with its records in the log."""
        self._number += 1
        producer.begin_transaction()
        self._write(producer, f"{self.name}/{self._number}", random.Random(self._number))
        producer.flush(ANSWER_S)
        self._zombies.append(producer)
        self.abandoned += 1

    def _write(self, producer: Any, transaction: str, source: random.Random) -> None:
        for number in range(source.randint(1, 8)):
            partition = source.randrange(self._partitions)
            send = Send(self.name, transaction, partition, f"{transaction}/{number}")
            place = self._history.note(send)

            def delivered(error: Any, message: Any, send: Send = send, place: int = place) -> None:
                if error is None and message.offset() >= 0:
                    self._history.operations[place] = send._replace(offset=message.offset())

            producer.produce(
                self._topic, value=send.value.encode(), partition=partition, on_delivery=delivered
            )
            producer.poll(0)
        if source.random() < 0.5:
            producer.flush(ANSWER_S)
        let_pass(source.random() * 0.02, "the order of concurrent steps varies")


def _retried(end: Any) -> None:
    """Repeat the end of a transaction as long as the client library says that it may be repeated."""
    deadline_s = time.monotonic() + ANSWER_S
    while True:
        try:
            end(ANSWER_S)
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline_s:
                raise
        else:
            return


class HistoryReader:
    """Reads all partitions of a topic from their starts."""

    def __init__(
        self,
        servers: str,
        name: str,
        topic: str,
        partitions: int,
        isolation: Isolation,
        history: SharedHistory,
    ) -> None:
        self.name = name
        self.complaints: list[str] = []
        self._isolation = isolation
        self._history = history
        self._at_end: set[int] = set()
        self._partitions = partitions
        self._consumer: Any = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "not used",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": isolation.value,
                "fetch.wait.max.ms": 50,
                "log_level": 0,
            }
        )
        history.note(Assign(name, dict.fromkeys(range(partitions), 0)))
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])

    def follow(self, running: threading.Event) -> None:
        """Read until `running` is cleared."""
        while running.is_set():
            self._poll()
        self._consumer.close()

    def read_to_the_end(self) -> None:
        """Read what is there now; no transaction may be open.

        Raises:
            AssertionError: the ends are not reached in time.
        """
        deadline_s = time.monotonic() + ANSWER_S
        while len(self._at_end) < self._partitions:
            assert time.monotonic() < deadline_s, f"{self.name} has only reached the ends of {self._at_end}"
            self._poll()
        self._consumer.close()

    def _poll(self) -> None:
        self._take(self._consumer.consume(500, 0.1))

    def _take(self, messages: Sequence[Any]) -> None:
        records: list[Record] = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(Record(message.partition(), message.offset(), message.value().decode()))
                self._at_end.discard(message.partition())
            elif error.code() == KafkaError._PARTITION_EOF:
                self._at_end.add(message.partition())
            elif error.code() not in HARMLESS:
                self.complaints.append(f"{self.name}: {error.name()}: {error.str()}")
        if records:
            self._history.note(Poll(self.name, self._isolation, tuple(records)))
