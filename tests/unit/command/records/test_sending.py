"""The account of records that are sent, with a producer that only queues them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, Message

from mainstem.interruption import Interruption
from mainstem.kafka.client import Cluster
from mainstem.records.lines import Record
from mainstem.records.sending import Sender

Delivery = Callable[[KafkaError | None, Message | None], None]


class Producer:
    """Queues records, and is interrupted by SIGINT at the chosen calls.

    Args:
        interrupted_at: `produce` receives the signal once this many records are queued.
        full_at: with this many queued records the queue is full until the next `poll`.
        interrupted_when_full: that `poll` receives the signal.
        interrupted_failure: `flush` receives the signal before it reports a failed record.
    """

    def __init__(
        self,
        interrupted_at: int = -1,
        full_at: int = -1,
        interrupted_when_full: bool = False,
        interrupted_failure: bool = False,
    ) -> None:
        self.values: list[bytes | None] = []
        self._interrupted_at, self._full_at = interrupted_at, full_at
        self._interrupted_when_full = interrupted_when_full
        self._interrupted_failure = interrupted_failure
        self._on_delivery: Delivery | None = None

    def produce(
        self, _topic: str, value: bytes | None, _key: object, _partition: int, on_delivery: Delivery, **_: Any
    ) -> None:
        if len(self.values) == self._full_at:
            raise BufferError
        self.values.append(value)
        self._on_delivery = on_delivery
        if len(self.values) == self._interrupted_at:
            signal.raise_signal(signal.SIGINT)

    def poll(self, _timeout_s: float) -> None:
        self._full_at = -1
        if self._interrupted_when_full:
            signal.raise_signal(signal.SIGINT)

    def flush(self, _timeout_s: float) -> int:
        if self._interrupted_failure and self._on_delivery is not None:
            signal.raise_signal(signal.SIGINT)
            self._on_delivery(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION), None)
            self._on_delivery = None
        return 0


class QueueingCluster:
    """A cluster whose only producer is `queue`."""

    def __init__(self, queue: Producer) -> None:
        self._queue = queue
        self.producer_settings: dict[str, object] = {}

    def topic_settings(self, _topic: str) -> None:
        return None

    def producer(
        self, settings: dict[str, object], _on_trouble: object, defaults: dict[str, object]
    ) -> Producer:
        self.producer_settings = {**defaults, **settings}
        return self._queue


@pytest.fixture(autouse=True)
def _signal_handler() -> Iterator[None]:
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


def sender_of(producer: Producer) -> Sender:
    interruption = Interruption()
    interruption.install()
    return Sender(cast("Cluster", QueueingCluster(producer)), "t", print, interruption=interruption)


def records(count: int) -> Iterator[Record]:
    for number in range(count):
        yield b"%d" % number, None, 0


@pytest.mark.parametrize(("interrupted_at", "full_at"), [(1, -1), (7, -1), (1000, -1), (8, 7)], ids=str)
def test_a_record_that_is_being_sent_during_an_interruption_is_counted(
    interrupted_at: int, full_at: int
) -> None:
    """R36. Otherwise a run that is resumed sends it again, and does not say so."""
    producer = Producer(interrupted_at, full_at)
    sender = sender_of(producer)
    with pytest.raises(KeyboardInterrupt):
        sender.send(records(5000))
    sent = sender.give_up()
    assert len(producer.values) == interrupted_at
    assert (sent.records, sent.acknowledged, sent.resume_at) == (interrupted_at,) * 3


def test_the_wait_for_a_full_queue_is_interrupted() -> None:
    """R36. It may take as long as no broker answers."""
    sender = sender_of(Producer(full_at=3, interrupted_when_full=True))
    with pytest.raises(KeyboardInterrupt):
        sender.send(records(5))
    assert sender.give_up().resume_at == 3


def test_the_reading_of_records_is_interrupted_at_once() -> None:
    """R36. A terminal or a FIFO may have no next line for long."""

    def interrupted() -> Iterator[Record]:
        yield b"0", None, 0
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the reading went on")

    sender = sender_of(Producer())
    with pytest.raises(KeyboardInterrupt):
        sender.send(interrupted())
    assert sender.give_up().resume_at == 1


def test_a_failure_that_is_reported_during_an_interruption_is_counted() -> None:
    """R36."""
    sender = sender_of(Producer(interrupted_failure=True))
    sender.send(records(2))
    with pytest.raises(KeyboardInterrupt):
        sender.finish()
    sent = sender.give_up()
    assert (sent.records, sent.acknowledged, sent.resume_at) == (2, 1, 0)


class FailingProducer(Producer):
    """Reports that one record has failed."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self._code: int | None = code

    def flush(self, _timeout_s: float) -> int:
        if self._code is not None and self._on_delivery is not None:
            self._on_delivery(KafkaError(self._code), None)
            self._code = None
        return 0


class LimitedCluster(QueueingCluster):
    """A cluster whose topic takes batches of up to 1000 bytes, and may accept none for a reason."""

    def __init__(self, queue: Producer, not_writable: str | None) -> None:
        super().__init__(queue)
        self._not_writable = not_writable

    def topic_settings(self, _topic: str) -> Any:
        return {"max.message.bytes": SimpleNamespace(value="1000")}

    def why_not_writable(self, _topic: str) -> str | None:
        return self._not_writable


@pytest.mark.parametrize(
    ("code", "not_writable", "reason"),
    [
        (KafkaError._MSG_TIMED_OUT, None, "the partition's leader did not acknowledge it within 60 s"),
        (KafkaError._MSG_TIMED_OUT, "partition 0 has no leader", "partition 0 has no leader"),
        (
            KafkaError.MSG_SIZE_TOO_LARGE,
            None,
            "a record is larger than max.message.bytes of the topic (1,000)",
        ),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "", "Topic authorization failed"),
    ],
)
def test_a_record_that_failed_is_not_acknowledged_and_has_its_reason(
    code: int, not_writable: str | None, reason: str
) -> None:
    cluster = LimitedCluster(FailingProducer(code), not_writable)
    sender = Sender(cast("Cluster", cluster), "t", print)
    sender.send(records(3))
    sent = sender.finish()
    assert (sent.records, sent.acknowledged, sent.resume_at) == (3, 2, 0)
    assert list(sent.failed.values()) == [1]
    assert next(iter(sent.failed)).startswith(reason)


@pytest.mark.parametrize(("acks", "is_idempotent"), [("all", True), ("1", False), ("0", False)])
def test_what_all_replicas_acknowledge_is_sent_by_an_idempotent_producer(
    acks: str, is_idempotent: bool
) -> None:
    """R11: a batch that is sent again after a lost answer is stored once. librdkafka's default is another."""
    cluster = QueueingCluster(Producer())
    Sender(cast("Cluster", cluster), "t", print, acks=acks)
    assert cluster.producer_settings["acks"] == acks
    assert cluster.producer_settings["enable.idempotence"] is is_idempotent
    assert cluster.producer_settings["partitioner"] == "murmur2_random", "as in the Java client (R10)"
