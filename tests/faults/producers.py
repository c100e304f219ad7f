"""The stock producers of a workload: acks=all, one message per partition and interval, each message unique.

Which client keeps which promise (`history.Delivery`), with settings that are defaults unless listed here:

- ONCE is kafka-python without retries. librdkafka would not do: after NOT_LEADER_OR_FOLLOWER it sends a
  message again though it is to make no retry, and the leader may have appended it before it was deposed
  (brokers answer so, Apache Kafka's too, when a leadership ends while followers are waited for).
- RETRIED is librdkafka (confluent-kafka); EXACTLY_ONCE is the same with idempotence.

No client learns of a leader that falls silent. It finds the new one with its next metadata request, which
is set to 1 s (of 300), and gives up a request that nobody answers after 5 s (of 30 and 60): both would add
to what is measured of the cluster.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

import confluent_kafka
import kafka
from confluent_kafka import KafkaError
from kafka.errors import KafkaError as KafkaPythonError
from tests.faults.history import Acknowledged, Delivery, Failed, History, Sent, Value
from tests.support.waiting import let_pass

SEND_INTERVAL_S: Final = 0.01
"""The resolution of the times measured."""
METADATA_MS: Final = 1_000
REQUEST_TIMEOUT_MS: Final = 5_000
LAST_ANSWERS_S: Final = 20.0

ABOUT_CONNECTIONS: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._RESOLVE,
    }
)
"""librdkafka's news of broken connections, which it mends by itself."""


def produce(
    delivery: Delivery, servers: str, topic: str, partitions: int, history: History, sending: threading.Event
) -> None:
    """Send for as long as `sending` is set, then wait for the last answers."""
    name = delivery.value
    producer = _KafkaPython if delivery is Delivery.ONCE else _Librdkafka
    client = producer(delivery, servers, topic, history)
    sequence = 0
    while sending.is_set():
        due_s = time.monotonic() + SEND_INTERVAL_S
        for partition in range(partitions):
            value = Value(name, sequence)
            history.sent.append(Sent(partition, value, time.monotonic()))
            client.send(partition, value)
        sequence += 1
        client.wait_until(due_s)
    client.close()


class _KafkaPython:
    def __init__(self, _delivery: Delivery, servers: str, topic: str, history: History) -> None:
        self._topic = topic
        self._history = history
        self._client = kafka.KafkaProducer(
            bootstrap_servers=servers,
            acks="all",
            enable_idempotence=False,
            retries=0,
            metadata_max_age_ms=METADATA_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            delivery_timeout_ms=REQUEST_TIMEOUT_MS + 100,
            reconnect_backoff_max_ms=200,
        )

    def send(self, partition: int, value: Value) -> None:
        def acknowledged(answer: Any) -> None:
            self._history.acknowledged.append(Acknowledged(partition, value, answer.offset, time.monotonic()))

        def failed(error: BaseException) -> None:
            self._history.failed.append(Failed(partition, value, type(error).__name__, time.monotonic()))

        try:
            answer = self._client.send(self._topic, value.encode(), partition=partition)
        except KafkaPythonError as error:
            failed(error)
        else:
            answer.add_callback(acknowledged)
            answer.add_errback(failed)

    def wait_until(self, due_s: float) -> None:
        let_pass(max(due_s - time.monotonic(), 0), "the next record is due then")

    def close(self) -> None:
        self._client.flush(LAST_ANSWERS_S)
        self._client.close(timeout=5)


class _Librdkafka:
    def __init__(self, delivery: Delivery, servers: str, topic: str, history: History) -> None:
        self._name = delivery.value
        self._topic = topic
        self._history = history
        self._client: Any = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "acks": "all",
                "enable.idempotence": delivery is Delivery.EXACTLY_ONCE,
                "linger.ms": 0,
                "topic.metadata.refresh.interval.ms": METADATA_MS,
                "request.timeout.ms": REQUEST_TIMEOUT_MS,
                "socket.timeout.ms": REQUEST_TIMEOUT_MS,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
                "error_cb": self._told,
            }
        )

    def _told(self, error: Any) -> None:
        if error.code() not in ABOUT_CONNECTIONS:
            self._history.producer_errors.append(f"{self._name}: {error.name()}: {error.str()}")

    def send(self, partition: int, value: Value) -> None:
        self._client.produce(
            self._topic, value.encode(), partition=partition, on_delivery=self._answered(partition, value)
        )

    def _answered(self, partition: int, value: Value) -> Callable[[Any, Any], None]:
        def answered(error: Any, message: Any) -> None:
            now_s = time.monotonic()
            if error is None:
                self._history.acknowledged.append(Acknowledged(partition, value, message.offset(), now_s))
            else:
                self._history.failed.append(Failed(partition, value, error.name(), now_s))

        return answered

    def wait_until(self, due_s: float) -> None:
        while (left_s := due_s - time.monotonic()) > 0:
            self._client.poll(left_s)

    def close(self) -> None:
        self._client.flush(LAST_ANSWERS_S)
        if len(self._client):
            self._history.complaints.append(
                f"producer {self._name}: {len(self._client)} messages were never answered"
            )
