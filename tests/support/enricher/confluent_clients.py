"""The clients of the loop from confluent-kafka, which is librdkafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from tests.support.enricher.loop import (
    ANSWER_SECONDS,
    GROUP,
    HEARTBEAT_MS,
    ORDERS_MAX,
    POLL_SECONDS,
    SESSION_MS,
    TRANSACTION_TIMEOUT_MS,
    Order,
    TransactionMustAbort,
)
from tests.support.orders import ENRICHED, ORDERS


class ConfluentClients:
    def __init__(self, config: Mapping[str, Any]) -> None:
        self._producer: Any = Producer(
            {
                "bootstrap.servers": config["servers"],
                "transactional.id": config["transactional_id"],
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 1,
                "log_level": 0,
            }
        )
        self._consumer: Any = Consumer(
            {
                "bootstrap.servers": config["servers"],
                "group.id": GROUP,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                # Offsets of a transaction that is still open are waited for.
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        self._polled: list[Order] = []
        self._group_metadata: Any = None
        """Of the generation that gave the present partitions: a later one would not be fenced."""

    def initialize(self) -> None:
        _repeat(self._producer.init_transactions)
        self._consumer.subscribe([ORDERS], on_assign=self._assigned, on_revoke=self._revoked)

    def _assigned(self, _consumer: Any, _partitions: Any) -> None:
        self._group_metadata = self._consumer.consumer_group_metadata()

    def _revoked(self, _consumer: Any, _partitions: Any) -> None:
        self._polled.clear()  # their next owner begins at the committed offsets

    def poll(self) -> list[Order]:
        self._polled.clear()
        message = self._consumer.poll(POLL_SECONDS)
        while message is not None:
            if not message.error():
                key, value = message.key().decode(), message.value().decode()
                self._polled.append(Order(message.partition(), message.offset(), key, value))
            if len(self._polled) == ORDERS_MAX:
                break
            message = self._consumer.poll(0)
        return list(self._polled)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, partition: int, key: str, value: str) -> None:
        try:
            self._producer.produce(ENRICHED, value, key, partition)
        except KafkaException as error:  # the transaction has failed meanwhile
            raise TransactionMustAbort from error

    def send_offsets(self, offsets: Mapping[int, int]) -> None:
        positions = [TopicPartition(ORDERS, partition, offset) for partition, offset in offsets.items()]
        _repeat(
            lambda seconds: self._producer.send_offsets_to_transaction(
                positions, self._group_metadata, seconds
            )
        )

    def commit(self) -> None:
        _repeat(self._producer.commit_transaction)

    def abort(self) -> None:
        # An abort while librdkafka still adds partitions would fail for good (librdkafka#4849).
        self._producer.flush(ANSWER_SECONDS)
        _repeat(self._producer.abort_transaction)

    def reset_positions(self) -> None:
        # Answered when no transaction may still commit an offset of these partitions (KIP-447).
        assigned = self._consumer.assignment()
        for position in self._consumer.committed(assigned, ANSWER_SECONDS) if assigned else ():
            if position.error is not None:
                raise KafkaException(position.error)
            if position.offset < 0:  # none is committed
                position.offset = OFFSET_BEGINNING
            self._consumer.seek(position)


def _repeat(request: Callable[[float], None]) -> None:
    """Send a request again as long as the client library says that it may be.

    Raises:
        TransactionMustAbort: that is what it says.
        KafkaException: the producer is fenced, or the time is over.
    """
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            request(ANSWER_SECONDS)
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                _judge(error)
        else:
            return


def _judge(error: KafkaException) -> None:
    if error.args[0].txn_requires_abort():
        raise TransactionMustAbort from error
    raise error
