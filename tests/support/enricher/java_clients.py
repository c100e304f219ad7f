"""The clients of the loop from Apache Kafka's Java library, driven over py4j."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from py4j.java_gateway import CallbackServerParameters, GatewayParameters, JavaGateway, is_instance_of
from py4j.protocol import Py4JJavaError
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
from tests.support.jvm import launch_jvm
from tests.support.orders import ENRICHED, ORDERS

_SERIALIZATION: Final = "org.apache.kafka.common.serialization"
_TIMEOUT: Final = "org.apache.kafka.common.errors.TimeoutException"
_ABORTABLE: Final = "org.apache.kafka.common.KafkaException"
_FATAL: Final = (
    "org.apache.kafka.common.errors.ProducerFencedException",
    "org.apache.kafka.common.errors.InvalidProducerEpochException",
    "org.apache.kafka.common.errors.InvalidPidMappingException",
    "org.apache.kafka.common.errors.OutOfOrderSequenceException",
    "org.apache.kafka.common.errors.AuthorizationException",
    "org.apache.kafka.common.errors.UnsupportedVersionException",
)
"""After these the producer cannot go on. The process ends, and a new one begins at the committed offsets."""


class _Listener:
    """A ConsumerRebalanceListener that knows which partitions the consumer holds.

    Without a listener the consumer of `group.protocol=consumer` gives partitions up and joins its group again
    in a thread of its own, while the application is in a transaction with records of these partitions. The
    offsets would then be sent with the epoch of the new membership, which the coordinator has no reason to
    refuse. With a listener the consumer waits for `poll`, and no transaction is open then.

    `poll` calls it in another thread than the one that polls, so it must not use the consumer.
    """

    def __init__(self) -> None:
        self.held: set[int] = set()

    def onPartitionsAssigned(self, partitions: Any) -> None:  # noqa: N802  # the interface's name
        self.held |= {one.partition() for one in partitions}

    def onPartitionsRevoked(self, partitions: Any) -> None:  # noqa: N802  # the interface's name
        self.held -= {one.partition() for one in partitions}

    def onPartitionsLost(self, partitions: Any) -> None:  # noqa: N802  # the interface's name
        self.held -= {one.partition() for one in partitions}

    class Java:
        implements: Final = ("org.apache.kafka.clients.consumer.ConsumerRebalanceListener",)


class JavaClients:
    def __init__(self, config: Mapping[str, Any]) -> None:
        port, _ = launch_jvm(config["class_path"], sys.stderr.buffer)
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, auto_convert=True),
            callback_server_parameters=CallbackServerParameters(port=0, daemonize=True),
        )
        jvm_end: Any = self._gateway.java_gateway_server
        jvm_end.resetCallbackClient(
            jvm_end.getCallbackClient().getAddress(), self._gateway.get_callback_server().get_listening_port()
        )
        self._listener = _Listener()
        self._java: Any = self._gateway.jvm
        clients = self._java.org.apache.kafka.clients
        self._producer: Any = clients.producer.KafkaProducer(
            self._properties(
                {
                    "bootstrap.servers": config["servers"],
                    "transactional.id": config["transactional_id"],
                    "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                    "linger.ms": 1,
                    "key.serializer": f"{_SERIALIZATION}.StringSerializer",
                    "value.serializer": f"{_SERIALIZATION}.StringSerializer",
                }
            )
        )
        self._consumer: Any = clients.consumer.KafkaConsumer(
            self._properties(
                {
                    "bootstrap.servers": config["servers"],
                    "group.id": GROUP,
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": "false",
                    # Offsets of a transaction that is still open are waited for.
                    "isolation.level": "read_committed",
                    "max.poll.records": ORDERS_MAX,
                    "key.deserializer": f"{_SERIALIZATION}.StringDeserializer",
                    "value.deserializer": f"{_SERIALIZATION}.StringDeserializer",
                    **_group_settings(config["protocol"]),
                }
            )
        )

    def _properties(self, settings: Mapping[str, Any]) -> Any:
        properties = self._java.java.util.Properties()
        for name, value in settings.items():
            properties.setProperty(name, str(value))
        return properties

    def initialize(self) -> None:
        self._repeat(self._producer.initTransactions)
        topics = self._java.java.util.ArrayList()
        topics.add(ORDERS)
        self._consumer.subscribe(topics, self._listener)

    def poll(self) -> list[Order]:
        polled = self._consumer.poll(self._java.java.time.Duration.ofMillis(int(POLL_SECONDS * 1000)))
        # A consumer that was fenced tells its listener, and then joins again in a thread of its own. Until
        # that thread has dropped the partitions, `poll` may return what was fetched before.
        return [
            Order(record.partition(), record.offset(), record.key(), record.value())
            for partition in polled.partitions()
            if partition.partition() in self._listener.held
            for record in polled.records(partition)
        ]

    def begin(self) -> None:
        self._producer.beginTransaction()

    def send(self, partition: int, key: str, value: str) -> None:
        record = self._java.org.apache.kafka.clients.producer.ProducerRecord(ENRICHED, partition, key, value)
        self._request(self._producer.send, record)

    def send_offsets(self, offsets: Mapping[int, int]) -> None:
        positions = self._java.java.util.HashMap()
        for partition, offset in offsets.items():
            position = self._java.org.apache.kafka.clients.consumer.OffsetAndMetadata(offset)
            positions.put(self._partition(partition), position)
        self._request(self._producer.sendOffsetsToTransaction, positions, self._consumer.groupMetadata())

    def commit(self) -> None:
        # A commit that timed out may have succeeded. The library demands the same call again.
        try:
            self._repeat(self._producer.commitTransaction)
        except Py4JJavaError as error:
            if self._is(error, _TIMEOUT):
                raise
            self._judge(error)

    def abort(self) -> None:
        self._repeat(self._producer.abortTransaction)

    def reset_positions(self) -> None:
        assigned = self._consumer.assignment()
        # Answered when no transaction may still commit an offset of these partitions (KIP-447).
        committed = self._repeat(lambda: self._consumer.committed(assigned))
        for partition in assigned:
            offset = committed.get(partition)
            if offset is None:
                self._consumer.seekToBeginning(self._java.java.util.Collections.singleton(partition))
            else:
                self._consumer.seek(partition, offset.offset())

    def _partition(self, partition: int) -> Any:
        return self._java.org.apache.kafka.common.TopicPartition(ORDERS, partition)

    def _repeat(self, request: Callable[[], Any]) -> Any:
        """Make a call again while it times out, as the library's documentation says; the call's result.

        Raises:
            Py4JJavaError: it failed otherwise, or the time is over.
        """
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                return request()
            except Py4JJavaError as error:
                if not self._is(error, _TIMEOUT) or time.monotonic() > deadline:
                    raise

    def _request(self, request: Callable[..., Any], *arguments: Any) -> None:
        """Do something inside of a transaction. Whatever its outcome is, the transaction may be aborted."""
        try:
            request(*arguments)
        except Py4JJavaError as error:
            self._judge(error)

    def _judge(self, error: Py4JJavaError) -> None:
        if self._is(error, _ABORTABLE) and not any(self._is(error, name) for name in _FATAL):
            raise TransactionMustAbort from error
        raise error

    def _is(self, error: Py4JJavaError, class_name: str) -> bool:
        return bool(is_instance_of(self._gateway, error.java_exception, class_name))


def _group_settings(protocol: str) -> dict[str, Any]:
    if protocol == "consumer":
        return {"group.protocol": "consumer"}  # sessions are the broker's
    return {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}
