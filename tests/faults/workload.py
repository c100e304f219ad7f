"""Clients at work while faults happen: producers, readers, and some that ask for the latest offset.

Each client has a thread of its own and notes what it sees in a `History`; nothing is judged here. The
producers are the stock ones of `producers.py`, readers are librdkafka's (confluent-kafka). A stock client
would ask only whom it takes for the leader, so every broker has someone who asks it in any case.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from kio.schema.errors import ErrorCode
from tests.faults.history import Delivery, Fault, History, Read, Value, Watermark
from tests.faults.producers import ABOUT_CONNECTIONS, METADATA_MS, REQUEST_TIMEOUT_MS, produce
from tests.support.machine_pauses import PauseWitness
from tests.support.waiting import let_pass, wait_until
from tests.support.wire import Connection

REREAD_INTERVAL_S: Final = 2.0
QUIET_S_MAX: Final = 20.0
ASK_INTERVAL_S: Final = 0.05
ASK_TIMEOUT_S: Final = 1.0

_CONSUMER: Final[Mapping[str, object]] = {
    "topic.metadata.refresh.interval.ms": METADATA_MS,
    "socket.timeout.ms": REQUEST_TIMEOUT_MS,
    "reconnect.backoff.max.ms": 200,
    "log_level": 0,
    "group.id": "unused",
    "enable.auto.commit": False,
    "auto.offset.reset": "error",  # a position that is not there any more is a broken promise
    "check.crcs": True,
    "fetch.wait.max.ms": 100,
}
_HARMLESS: Final = ABOUT_CONNECTIONS | {KafkaError._PARTITION_EOF}


class Workload:
    """Clients on `partitions` partitions of a topic, producers of each kind, from `with` to `finish`."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int) -> None:
        self.history = History(deliveries={delivery.value: delivery for delivery in Delivery})
        self._servers = bootstrap_servers
        self._topic = topic
        self._partitions = partitions
        self._witness = PauseWitness()
        self._sending = threading.Event()
        self._sending.set()
        self._running = threading.Event()
        self._running.set()
        self._threads = [
            *(
                self._thread(
                    produce, delivery, bootstrap_servers, topic, partitions, self.history, self._sending
                )
                for delivery in Delivery
            ),
            self._thread(self._follow),
            self._thread(self._read_again),
            *(self._thread(self._ask_latest, address) for address in bootstrap_servers.split(",")),
        ]

    def __enter__(self) -> Self:
        self._witness.start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._sending.clear()
        self._running.clear()
        for thread in self._threads:
            thread.join()
        self._witness.stop()
        self.history.pauses = self._witness.pauses

    def note(self, fault: str) -> float:
        """Note that something is done to the cluster now; answers the time."""
        now_s = time.monotonic()
        self.history.faults.append(Fault(fault, now_s))
        return now_s

    def wait_for_acknowledgements(self, sent_after_s: float, seconds: float) -> None:
        """Wait until every partition has acknowledged a message that was sent after that moment.

        Raises:
            AssertionError: one did not; the message says what brokers know of it and clients received.
        """
        try:
            wait_until(
                lambda: len(self.history.first_acknowledgement_after_s(sent_after_s)) == self._partitions,
                f"all partitions of {self._topic} acknowledge again",
                seconds,
                step_seconds=0.1,
            )
        except AssertionError as error:
            error.add_note(self._account(sent_after_s))
            raise

    def _account(self, from_s: float) -> str:
        """What each broker knows of the topic, and what clients received since `from_s`."""
        reported = Counter(
            (event.partition, event.error) for event in self.history.failed if event.at_s >= from_s
        )
        acknowledged = self.history.first_acknowledgement_after_s(from_s)
        return "\n".join(
            [
                *(f"{address} knows of {self._known_at(address)}" for address in self._servers.split(",")),
                f"acknowledged again after, by partition: {acknowledged}",
                f"messages given up, by partition and error: {dict(reported)}",
                *self.history.producer_errors[-3:],
            ]
        )

    def _known_at(self, address: str) -> str:
        try:
            with Connection(address, ASK_TIMEOUT_S) as connection:
                answer = connection.ask("metadata", 1, topics=[{"name": self._topic}])
        except OSError as error:
            return f"nothing: {type(error).__name__}"
        return ", ".join(
            f"{partition.partition_index}: leader {partition.leader_id}, in sync {list(partition.isr_nodes)}"
            for partition in answer.topics[0].partitions
        )

    def wait_for_messages(self, count: int, seconds: float = 20.0) -> None:
        """Wait until `count` more are acknowledged."""
        goal = len(self.history.acknowledged) + count
        wait_until(
            lambda: len(self.history.acknowledged) >= goal, f"{count} more messages are acknowledged", seconds
        )

    def finish(self) -> dict[int, dict[int, Value]]:
        """Stop the clients, the producers first, and read what the log holds: value by offset."""
        self.__exit__(None, None, None)
        return {
            partition: dict(read_all(self._servers, self._topic, partition))
            for partition in range(self._partitions)
        }

    # --- Clients ---

    def _thread(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        return threading.Thread(target=work, args=arguments, name=work.__name__)

    def _follow(self) -> None:
        """Read from the beginning, and then what comes."""
        consumer = self._consumer()
        try:
            while self._running.is_set():
                self._note_reads(consumer.consume(1_000, 0.05), "tail")
        finally:
            consumer.close()

    def _read_again(self) -> None:
        """Read everything from the beginning, again and again, with a new client each time."""
        for number in range(1_000_000):
            consumer = self._consumer()
            try:
                end_s = time.monotonic() + REREAD_INTERVAL_S
                while self._running.is_set() and time.monotonic() < end_s:
                    self._note_reads(consumer.consume(1_000, 0.05), f"reader {number}")
            finally:
                consumer.close()
            if not self._running.is_set():
                return

    def _consumer(self) -> Any:
        consumer: Any = confluent_kafka.Consumer({**_CONSUMER, "bootstrap.servers": self._servers})
        consumer.assign([TopicPartition(self._topic, partition, 0) for partition in range(self._partitions)])
        return consumer

    def _note_reads(self, messages: Sequence[Any], reader: str) -> None:
        now_s = time.monotonic()
        for message in messages:
            error = message.error()
            if error is None:
                value = Value.decode(message.value())
                self.history.reads.append(Read(reader, message.partition(), message.offset(), value, now_s))
            elif error.code() not in _HARMLESS:
                self.history.complaints.append(f"{reader}: {error.name()}: {error.str()}")

    def _ask_latest(self, address: str) -> None:
        """Ask one broker for the latest offsets, leader or not: one that was deposed must not answer."""
        topics = [
            {
                "name": self._topic,
                "partitions": [
                    {"partition_index": partition, "timestamp": -1} for partition in range(self._partitions)
                ],
            }
        ]
        while self._running.is_set():
            try:
                with Connection(address, ASK_TIMEOUT_S) as connection:
                    while self._running.is_set():
                        asked_s = time.monotonic()
                        answer = connection.ask(
                            "list_offsets", 3, replica_id=-1, isolation_level=0, topics=topics
                        )
                        now_s = time.monotonic()
                        self.history.watermarks += [
                            Watermark(address, partition.partition_index, partition.offset, asked_s, now_s)
                            for partition in answer.topics[0].partitions
                            if partition.error_code == ErrorCode.none
                        ]
                        let_pass(ASK_INTERVAL_S, "a steady rate of questions")
            except OSError:
                let_pass(ASK_INTERVAL_S, "it is away, or says nothing")


def read_all(servers: str, topic: str, partition: int) -> list[tuple[int, Value]]:
    """Every record of a partition to its present end, as (offset, value).

    Raises:
        AssertionError: the end is not reached in time.
    """
    consumer: Any = confluent_kafka.Consumer(
        {**_CONSUMER, "bootstrap.servers": servers, "enable.partition.eof": True, "fetch.wait.max.ms": 10}
    )
    results: list[tuple[int, Value]] = []
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        deadline_s = time.monotonic() + QUIET_S_MAX
        while time.monotonic() < deadline_s:
            for message in consumer.consume(10_000, 0.05):
                error = message.error()
                if error is None:
                    results.append((message.offset(), Value.decode(message.value())))
                elif error.code() == KafkaError._PARTITION_EOF:
                    return results
                elif error.code() not in _HARMLESS:
                    raise KafkaException(error)
    finally:
        consumer.close()
    raise AssertionError(f"the end of {topic}-{partition} was not reached after {len(results)} records")
