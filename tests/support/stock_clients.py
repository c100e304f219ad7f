"""The Python clients of Kafka as they come from PyPI, behind one pair of verbs: produce and consume.

Consumers are given their partition (`assign`); groups are no part of this.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final, Protocol

import aiokafka
import confluent_kafka
import kafka
from tests.support.messages import Message
from tests.support.waiting import PATIENCE_SECONDS

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
ANSWER_SECONDS: Final = PATIENCE_SECONDS
LARGEST_BYTES: Final = 64 << 20


class StockClient(Protocol):
    """One client library."""

    name: str

    def produce(
        self,
        bootstrap_servers: str,
        topic: str,
        messages: Sequence[Message],
        codec: str = "none",
        acks: str = "all",
    ) -> list[int]:
        """Send to partition 0 and return the offsets that the broker gave.

        Raises:
            Exception: the client's own, when a message is not acknowledged.
        """
        ...

    def consume(self, bootstrap_servers: str, topic: str, count: int, offset: int = 0) -> list[Message]:
        """The first `count` messages of partition 0 from `offset` on, CRCs checked.

        Raises:
            AssertionError: they do not come in time.
        """
        ...


class Confluent:
    """confluent-kafka: librdkafka."""

    name = "confluent-kafka"

    def produce(
        self,
        bootstrap_servers: str,
        topic: str,
        messages: Sequence[Message],
        codec: str = "none",
        acks: str = "all",
    ) -> list[int]:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "message.max.bytes": LARGEST_BYTES,
                "message.timeout.ms": ANSWER_SECONDS * 1000,
                "linger.ms": 20,
                "compression.type": codec,
                "acks": acks,
            }
        )
        deliveries: list[Any] = []
        failures: list[Any] = []

        def delivered(error: Any, delivery: Any) -> None:
            (failures if error else deliveries).append(error or delivery)

        for message in messages:
            producer.produce(
                topic,
                value=message.value,
                key=message.key,
                headers=list(message.headers),
                timestamp=message.timestamp_ms,
                partition=0,
                on_delivery=delivered,
            )
        producer.flush(ANSWER_SECONDS)
        if failures:
            raise confluent_kafka.KafkaException(failures[0])
        assert len(deliveries) == len(messages), "confluent-kafka did not deliver in time"
        return [delivery.offset() for delivery in deliveries]

    def consume(self, bootstrap_servers: str, topic: str, count: int, offset: int = 0) -> list[Message]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "unused",
                "enable.auto.commit": False,
                "check.crcs": True,
                "fetch.message.max.bytes": LARGEST_BYTES,
                "fetch.max.bytes": LARGEST_BYTES,
                "receive.message.max.bytes": LARGEST_BYTES + 512,
            }
        )
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, 0, offset)])
            results: list[Message] = []
            deadline = time.monotonic() + ANSWER_SECONDS
            while len(results) < count and time.monotonic() < deadline:
                for record in consumer.consume(count - len(results), 0.5):
                    if record.error():
                        raise confluent_kafka.KafkaException(record.error())
                    results.append(
                        Message(
                            record.value(), record.key(), tuple(record.headers() or ()), record.timestamp()[1]
                        )
                    )
        finally:
            consumer.close()
        assert len(results) == count, f"confluent-kafka got {len(results)} of {count} messages"
        return results


# kafka-python and aiokafka have most of their names in common.

_CONSUMER: Final[dict[str, Any]] = {
    "group_id": None,
    "enable_auto_commit": False,
    "check_crcs": True,
    "max_partition_fetch_bytes": LARGEST_BYTES,
    "fetch_max_bytes": LARGEST_BYTES,
}


def _producer(codec: str, acks: str) -> dict[str, Any]:
    return {
        "compression_type": None if codec == "none" else codec,
        "acks": acks if acks == "all" else int(acks),
        "max_request_size": LARGEST_BYTES,
        "linger_ms": 20,
    }


def _fields(message: Message) -> dict[str, Any]:
    return {
        "value": message.value,
        "key": message.key,
        "headers": list(message.headers),
        "partition": 0,
        "timestamp_ms": message.timestamp_ms,
    }


def _message(record: Any) -> Message:
    return Message(record.value, record.key, tuple(record.headers), record.timestamp)


class KafkaPython:
    """kafka-python: pure Python."""

    name = "kafka-python"

    def produce(
        self,
        bootstrap_servers: str,
        topic: str,
        messages: Sequence[Message],
        codec: str = "none",
        acks: str = "all",
    ) -> list[int]:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap_servers,
            **_producer(codec, acks),
            enable_idempotence=False,
            request_timeout_ms=int(ANSWER_SECONDS * 1000),
            delivery_timeout_ms=int(ANSWER_SECONDS * 1000) + 100,
        )
        try:
            answers = [producer.send(topic, **_fields(message)) for message in messages]
            return [answer.get(ANSWER_SECONDS).offset for answer in answers]
        finally:
            producer.close(timeout=5)

    def consume(self, bootstrap_servers: str, topic: str, count: int, offset: int = 0) -> list[Message]:
        consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap_servers, **_CONSUMER)
        try:
            partition = kafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, offset)
            results: list[Message] = []
            deadline = time.monotonic() + ANSWER_SECONDS
            while len(results) < count and time.monotonic() < deadline:
                for records in consumer.poll(timeout_ms=500, max_records=count - len(results)).values():
                    results += map(_message, records)
        finally:
            consumer.close()
        assert len(results) == count, f"kafka-python got {len(results)} of {count} messages"
        return results


class AioKafka:
    """aiokafka: asyncio."""

    name = "aiokafka"

    def produce(
        self,
        bootstrap_servers: str,
        topic: str,
        messages: Sequence[Message],
        codec: str = "none",
        acks: str = "all",
    ) -> list[int]:
        answers = asyncio.run(self._send(bootstrap_servers, topic, messages, codec, acks))
        return [-1 if answer is None else answer.offset for answer in answers]  # None: acks=0

    async def _send(
        self,
        bootstrap_servers: str,
        topic: str,
        messages: Sequence[Message],
        codec: str,
        acks: str,
    ) -> list[Any]:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap_servers, **_producer(codec, acks))
        await producer.start()
        try:
            answers = [await producer.send(topic, **_fields(message)) for message in messages]
            return list(await asyncio.wait_for(asyncio.gather(*answers), ANSWER_SECONDS))
        finally:
            await producer.stop()

    def consume(self, bootstrap_servers: str, topic: str, count: int, offset: int = 0) -> list[Message]:
        return asyncio.run(self._consume(bootstrap_servers, topic, count, offset))

    async def _consume(self, bootstrap_servers: str, topic: str, count: int, offset: int) -> list[Message]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap_servers, **_CONSUMER)
        await consumer.start()
        try:
            partition = aiokafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, offset)
            results: list[Message] = []
            deadline = time.monotonic() + ANSWER_SECONDS
            while len(results) < count and time.monotonic() < deadline:
                found = await consumer.getmany(timeout_ms=500, max_records=count - len(results))
                for records in found.values():
                    results += map(_message, records)
        finally:
            await consumer.stop()
        assert len(results) == count, f"aiokafka got {len(results)} of {count} messages"
        return results


CLIENTS: Final[tuple[StockClient, ...]] = (Confluent(), KafkaPython(), AioKafka())
