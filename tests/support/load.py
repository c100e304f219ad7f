"""Producers that keep a topic under load while brokers come and go, and remember what was acknowledged."""

from __future__ import annotations

import threading
import time
from array import array
from typing import Any, Final, Self

import confluent_kafka
from tests.support.waiting import wait_until

STEP_SECONDS: Final = 0.004
PER_SECOND: Final = 10_000  # enough to be always in flight
KEY: Final = b"k" * 200  # makes the messages of an ordinary size
QUIET_SECONDS_MAX: Final = 20.0


class Load:
    """One producer with numbered messages, round-robin over a topic's partitions, in a thread of its own.

    The value of message N is `NAME-N`; at most `per_second` are sent. It sends each message at most once
    (no retries): so a message that was acknowledged can be in the log only once, and one that failed at most
    once.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        partitions: int,
        name: str,
        acks: str,
        per_second: int = PER_SECOND,
    ) -> None:
        self.topic = topic
        self.name = name
        self._per_step = max(1, round(per_second * STEP_SECONDS))
        self._partitions = partitions
        self._producer: Any = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "acks": acks,
                "message.send.max.retries": 0,
                "message.timeout.ms": 30_000,
                "queue.buffering.max.messages": 20_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "linger.ms": 2,
                "log_level": 0,
            }
        )
        self._acknowledged = [(array("q"), array("q")) for _ in range(partitions)]
        self.failed_count = 0
        self._sent_count = 0
        self._wanted = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._wanted.set()
        self._thread.join()
        self._producer.purge()
        self._producer.flush(5)

    @property
    def acknowledged_count(self) -> int:
        return sum(len(offsets) for offsets, _ in self._acknowledged)

    def acknowledged(self, partition: int) -> list[tuple[int, int]]:
        """(offset, number) of every acknowledged message of a partition, in the order of the answers."""
        return list(zip(*self._acknowledged[partition], strict=True))

    def acknowledged_places(self) -> set[tuple[int, int]]:
        """(partition, offset) of every acknowledged message."""
        return {
            (partition, offset)
            for partition, (offsets, _) in enumerate(self._acknowledged)
            for offset in offsets
        }

    def resume(self) -> None:
        self._wanted.set()

    def pause(self) -> None:
        """Stop sending, and wait until every message sent is acknowledged or failed."""
        self._wanted.clear()
        wait_until(lambda: len(self._producer) == 0, f"the producer {self.name} has its answers")

    def wait_for_progress(self, messages: int) -> None:
        """Wait until `messages` more are acknowledged."""
        goal = self.acknowledged_count + messages
        wait_until(lambda: self.acknowledged_count >= goal, f"{messages} more messages of {self.name} pass")

    def _run(self) -> None:
        while not self._ended.is_set():
            if self._wanted.is_set():
                self._send_some()
            self._producer.poll(STEP_SECONDS)

    def _send_some(self) -> None:
        try:
            for _ in range(self._per_step):
                self._producer.produce(
                    self.topic,
                    f"{self.name}-{self._sent_count}".encode(),
                    KEY,
                    partition=self._sent_count % self._partitions,
                    on_delivery=self._delivered,
                )
                self._sent_count += 1
        except BufferError:
            pass  # the queue is full while the broker is away

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed_count += 1
            return
        offsets, numbers = self._acknowledged[message.partition()]
        offsets.append(message.offset())
        numbers.append(int(message.value().rpartition(b"-")[2]))


def read_all(bootstrap_servers: str, topic: str, partition: int) -> dict[int, bytes]:
    """Every record of a partition: value by offset; see `read_to_end`."""
    records = read_to_end(bootstrap_servers, topic, partition)
    results = {record.offset(): record.value() for record in records}
    assert len(results) == len(records)
    return results


def read_to_end(
    bootstrap_servers: str, topic: str, partition: int = 0, *, is_committed: bool = False
) -> list[Any]:
    """Every record of a partition from offset 0 to its end, as librdkafka has it. CRCs are checked.

    With `is_committed`, of transactions only what is committed, up to the first that is open.

    Raises:
        AssertionError: the end is not reached in time.
        confluent_kafka.KafkaException: the client found something wrong.
    """
    consumer: Any = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if is_committed else "read_uncommitted",
            # The end is reported when a fetch there comes back empty. The markers of a transaction may follow
            # the answer to its end.
            "fetch.wait.max.ms": 500 if is_committed else 10,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    results: list[Any] = []
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
        last_news = time.monotonic()
        while True:
            # A short wait: it lasts until all 10,000 are there, however many already are.
            messages = consumer.consume(10_000, 0.05)
            if messages:
                last_news = time.monotonic()
            quiet_seconds = time.monotonic() - last_news
            assert quiet_seconds < QUIET_SECONDS_MAX, (
                f"{topic}-{partition} gave nothing more after {len(results)} records, and no end"
            )
            for message in messages:
                error = message.error()
                if error is None:
                    results.append(message)
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    return results
                else:
                    raise confluent_kafka.KafkaException(error)
    finally:
        consumer.close()
