"""Checks a cluster's promise: sends numbered records, reads them back, and accounts for every one.

Brokers may be restarted or killed during a verification; that is its purpose. `ledger.py` keeps the account.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from mainstem.errors import ClusterUnreachable
from mainstem.kafka.client import Cluster, sentence_of
from mainstem.records.sending import DELIVERY_TIMEOUT_MS, Acks
from mainstem.trials.ledger import PartitionLedger, Verdict, judge
from mainstem.trials.pauses import PauseMeter

_RECORDS_BETWEEN_READS: Final = 1000
_VALUE_BYTES: Final = 100
_SILENCE_TIMEOUT_SECONDS: Final = 30.0  # outstanding records count as lost after so long without a record
_EXTRA_READ_SECONDS: Final = 0.5  # after the last expected record: anything that still comes is a duplicate
_RECORDS_PER_CALL: Final = 500


class Verification:
    """One producer, one consumer, and a ledger for every partition of `topic`.

    `on_trouble` receives a sentence when no broker can be reached.
    """

    def __init__(
        self, cluster: Cluster, topic: str, partitions: int, acks: Acks, on_trouble: Callable[[str], None]
    ) -> None:
        self.ledgers = {number: PartitionLedger() for number in range(partitions)}
        self.refusals: dict[str, int] = {}
        self.send_seconds = 0.0
        self.last_read_error: str | None = None
        self._stopped = False
        self._sent_count = self._arrived_count = self._refused_count = 0
        self._pauses = PauseMeter(time.monotonic())
        self._cluster, self._topic = cluster, topic
        self._positions = dict.fromkeys(range(partitions), 0)
        self._producer: Producer = cluster.producer(
            {
                "acks": acks.value,
                "enable.idempotence": acks is Acks.ALL,
                "delivery.report.only.error": True,
                "on_delivery": self._note_refusal,
            },
            on_trouble,
            {"linger.ms": 5, "message.timeout.ms": DELIVERY_TIMEOUT_MS},
        )
        self._consumer: Consumer = cluster.consumer({}, on_trouble)
        self._consumer.assign([TopicPartition(topic, number, 0) for number in self.ledgers])

    @property
    def verdict(self) -> Verdict:
        return judge(self.ledgers)

    @property
    def longest_pause_seconds(self) -> float:
        """The longest time during which records were in flight and none arrived."""
        return self._pauses.longest_seconds

    def send(
        self, count: int | None, seconds: float | None, rate: int | None, on_sent: Callable[[int], None]
    ) -> None:
        """Send `count` records, or for `seconds`, and wait until each is acknowledged or refused.

        Records are read at the same time. `rate` limits the records per second. `on_sent` receives how many
        records were sent since its last call.
        """
        started = time.monotonic()
        step = _RECORDS_BETWEEN_READS if rate is None else max(1, min(_RECORDS_BETWEEN_READS, rate // 4))
        for number in self._numbers(count, seconds, rate):
            partition, sequence = number % len(self.ledgers), number // len(self.ledgers)
            self._produce(partition, (b"%d" % sequence).rjust(_VALUE_BYTES))
            self.ledgers[partition].sent = sequence + 1
            self._sent_count += 1
            if (number + 1) % step == 0:
                self._producer.poll(0)
                self._read(0)
                on_sent(step)
        while self._producer.flush(0.2):
            self._read(0)
        self.send_seconds = time.monotonic() - started

    def _produce(self, partition: int, value: bytes) -> None:
        while True:
            try:
                self._producer.produce(self._topic, value, partition=partition)
            except BufferError:
                self._producer.poll(0)
                self._read(0.1)
            except KafkaException as exception:
                raise self._cluster.refusal(exception, "The producer gave up") from exception
            else:
                return

    def stop_sending(self) -> None:
        """End `send` early; the records sent until then are verified."""
        self._stopped = True

    def _numbers(self, count: int | None, seconds: float | None, rate: int | None) -> Iterator[int]:
        started, number = time.monotonic(), 0
        while number != count and not self._stopped:
            yield number
            number += 1
            if rate is not None and number % max(1, rate // 100) == 0:
                while not self._stopped and (early := started + number / rate - time.monotonic()) > 0:
                    self._read(min(early, 0.1))
            if seconds is not None and number % 10 == 0 and time.monotonic() - started > seconds:
                return

    def finish(self) -> None:
        """Read until every acknowledged record has arrived, and a little longer to find duplicates."""
        last_arrival = time.monotonic()
        while time.monotonic() - last_arrival < _SILENCE_TIMEOUT_SECONDS:
            if self._read(0.1):
                last_arrival = time.monotonic()
            elif all(ledger.complete for ledger in self.ledgers.values()) and self._at_the_end():
                break
        self._read(_EXTRA_READ_SECONDS)
        self._consumer.close()

    def _at_the_end(self) -> bool:
        partitions = [TopicPartition(self._topic, number) for number in self.ledgers]
        try:
            (ends,) = self._cluster.offsets(partitions, OffsetSpec.latest())
        except ClusterUnreachable:
            return False  # a leader has just died: the next call asks its successor
        return all(end is not None and self._positions[number] >= end for number, end in ends.items())

    def _read(self, seconds: float) -> int:
        """Account for the records that arrive within `seconds`; returns their number."""
        read = 0
        while messages := self._consumer.consume(_RECORDS_PER_CALL, seconds):
            for message in messages:
                error = message.error()
                if error is not None:
                    self.last_read_error = sentence_of(error)
                    continue
                number = message.partition()
                self.ledgers[number].arrived(int(message.value()))
                self._positions[number] = message.offset() + 1
                read += 1
            seconds = 0
        self._arrived_count += read
        in_flight = self._sent_count > self._arrived_count + self._refused_count
        self._pauses.observe(time.monotonic(), arrived=read > 0, in_flight=in_flight)
        return read

    def _note_refusal(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.ledgers[message.partition()].refused.add(int(message.value() or b"0"))
            self._refused_count += 1
            reason = sentence_of(error)
            self.refusals[reason] = self.refusals.get(reason, 0) + 1
