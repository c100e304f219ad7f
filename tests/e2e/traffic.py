"""A producer with acks=all and a consumer group that run across a disruption, and what they must agree on."""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaError, Message, Producer
from tests.e2e.installation import BROKERS, Installation
from tests.e2e.kubectl import KubectlError
from tests.faults.checker import check, describe
from tests.faults.history import Acknowledged, Delivery, Failed, History, Sent, Value
from tests.support.waiting import let_pass

PER_SECOND: Final = 100
_PRODUCER: Final = "traffic"
_FLUSH_SECONDS: Final = 120.0
_READ_SECONDS_MAX: Final = 90.0
_IS_ALONE: Final = "PYTEST_XDIST_WORKER" not in os.environ
"""Whether no other test runs beside. How long clients wait says something about Mainstem only then."""


class Traffic:
    """Numbered records to a topic, about a hundred a second, and a group that reads them, while entered.

    Leaving it waits for what was sent, and asserts what a producer with acks=all and idempotence, and a
    consumer group, were promised: every acknowledged record was consumed, is where its acknowledgement said,
    is there once, and in the order of sending (`tests/faults/checker.py`). A group may be given a record
    again after a rebalance, but the same one.

    `first` is the first number, `patience_seconds` how long a record may wait until it is given up, and
    `longest_seconds` how long the slowest may have waited for its acknowledgement, which is judged where
    tests run one at a time, as in trials.
    """

    def __init__(
        self,
        installation: Installation,
        topic: str,
        *,
        first: int = 0,
        patience_seconds: float = _FLUSH_SECONDS,
        longest_seconds: float | None = None,
    ) -> None:
        servers, self._topic, self._first = installation.outside, topic, first
        self._patience_seconds = patience_seconds
        self._longest_seconds = longest_seconds if longest_seconds and _IS_ALONE else patience_seconds
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "acks": "all",
                "enable.idempotence": True,
                "delivery.timeout.ms": int(patience_seconds * 1000),
            }
        )
        self.group = f"traffic-{time.time_ns()}"
        self._settings: dict[str, Any] = {
            "bootstrap.servers": servers,
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 10_000,
        }
        self.acknowledged: set[int] = set()
        self.consumed: set[int] = set()
        self._history = History(deliveries={_PRODUCER: Delivery.EXACTLY_ONCE})
        self._sent_at_s: dict[int, float] = {}
        self._log: dict[int, dict[int, Value]] = {}
        self._stop_sending, self._stop_reading = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._read)]

    @property
    def wait_seconds_max(self) -> float:
        """How long the slowest record waited for its acknowledgement."""
        return max(
            (event.at_s - self._sent_at_s[event.value.sequence] for event in self._history.acknowledged),
            default=0.0,
        )

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        deadline = time.monotonic() + 60
        while not self.consumed and time.monotonic() < deadline:
            let_pass(0.1, "between two looks")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_sending.set()
        self._threads[0].join()
        deadline = time.monotonic() + _READ_SECONDS_MAX
        while kind is None and not self.acknowledged <= self.consumed and time.monotonic() < deadline:
            let_pass(0.1, "between two looks")
        self._stop_reading.set()
        self._threads[1].join()
        print(  # noqa: T201  # pytest shows it with -s, and with a failure
            f"{len(self.acknowledged)} acknowledged, {len(self.consumed)} consumed, "
            f"{len(self._history.failed)} failed, "
            f"the slowest waited {self.wait_seconds_max:.1f} s for its acknowledgement"
        )
        if kind is None:
            self._judge()

    def _judge(self) -> None:
        lost = sorted(self.acknowledged - self.consumed)
        assert not lost, f"{len(lost)} acknowledged records were not consumed, the first are {lost[:5]}"
        assert self.acknowledged, f"nothing was acknowledged: {self._history.failed[:3]}"
        own = {
            partition: {offset: value for offset, value in log.items() if value.sequence in self._sent_at_s}
            for partition, log in self._log.items()
        }
        problems = check(self._history, own)
        assert not problems, describe(problems)
        assert self.wait_seconds_max < self._longest_seconds, "an acknowledgement came too late"

    def _send(self) -> None:
        number = self._first
        while not self._stop_sending.wait(1 / PER_SECOND):
            self._sent_at_s[number] = time.monotonic()
            try:
                self._producer.produce(self._topic, str(number).encode(), on_delivery=self._delivered)
                number += 1
            except BufferError:  # brokers are away, and what waits for them is plenty
                pass
            self._producer.poll(0)
        self._sent_at_s.pop(number, None)  # it was not sent
        self._producer.flush(self._patience_seconds)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        now_s = time.monotonic()
        number, partition = int(message.value() or b"-1"), message.partition()
        value = Value(_PRODUCER, number)
        assert partition is not None
        # Which partition a record goes to is known only now.
        self._history.sent.append(Sent(partition, value, self._sent_at_s[number]))
        if error is not None:
            self._history.failed.append(Failed(partition, value, error.name(), now_s))
            return
        offset = message.offset()
        known = offset is not None and offset >= 0  # the answer that named it may have been lost
        self._history.acknowledged.append(Acknowledged(partition, value, offset if known else None, now_s))
        self.acknowledged.add(number)

    def _read(self) -> None:
        consumer = Consumer(self._settings)
        consumer.subscribe([self._topic])
        while not self._stop_reading.is_set():
            for message in consumer.consume(500, timeout=0.5):
                if message.error() is None:
                    self._note_read(message)
        consumer.close()

    def _note_read(self, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        value = Value(_PRODUCER, int(message.value() or b"-1"))
        before = self._log.setdefault(partition, {}).setdefault(offset, value)
        if before != value:
            self._history.complaints.append(f"partition {partition}, offset {offset}: {before}, then {value}")
        self.consumed.add(value.sequence)


class PodWatch:
    """Which pods there were while it was entered, and how few of them were ready at once."""

    def __init__(self, installation: Installation, selector: str = BROKERS) -> None:
        self._installation, self._selector = installation, selector
        self.fewest_ready = 1_000
        self.seen: dict[str, set[str]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def restarts(self) -> dict[str, int]:
        """How often each pod was replaced."""
        return {name: len(uids) - 1 for name, uids in sorted(self.seen.items())}

    def _watch(self) -> None:
        while not self._stop.wait(0.4):
            try:
                pods = self._installation.pods(self._selector)
            except KubectlError:
                continue
            ready = 0
            for name, pod in pods.items():
                self.seen.setdefault(name, set()).add(str(pod["metadata"]["uid"]))
                conditions = pod["status"].get("conditions") or ()
                serves = any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
                ready += serves and "deletionTimestamp" not in pod["metadata"]
            self.fewest_ready = min(self.fewest_ready, ready)
