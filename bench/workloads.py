"""What is done to a system: each function does one thing to one partition and returns what that took.

The client is confluent-kafka (librdkafka) with the same settings for both systems, in this process; its CPU
time is measured as well, since a figure near the client's limit says nothing about the broker. Every
workload counts what arrived: a figure for messages that were lost would be none.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.processes import cpu_seconds, own_cpu_seconds
from bench.system import Cluster

ANSWER_SECONDS: Final = 120.0
CHUNK: Final = 10_000  # messages handed to the client by one call
# By one call from the client: ten thousand take 2 MB of Python's objects, which are mapped and unmapped again
# for each call; a thousand lie in the memory of those before, and the client reads half as much again.
READ_CHUNK: Final = 1_000
QUEUED_MESSAGES_MAX: Final = 500_000
BATCHES_16_KB: Final[Mapping[str, object]] = {"batch.size": 16_384, "linger.ms": 5}
BATCHES_1_MB: Final[Mapping[str, object]] = {"batch.size": 1_000_000, "linger.ms": 5}
BATCHES_OF_50: Final[Mapping[str, object]] = {"batch.num.messages": 50, "linger.ms": 5}
BATCHES_OF_1: Final[Mapping[str, object]] = {"batch.num.messages": 1, "linger.ms": 0}


Acks = int | str
"""0, 1, or "all"."""


class Miscounted(Exception):
    """A system did not keep, or not give back, what it acknowledged."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Messages of `message_bytes` through one partition, `seconds` from the first to the last."""

    messages: int
    message_bytes: int
    seconds: float
    broker_cpu_seconds: float
    client_cpu_seconds: float

    def __add__(self, other: Throughput) -> Throughput:
        """Both, one after the other."""
        return Throughput(
            self.messages + other.messages,
            self.message_bytes,
            self.seconds + other.seconds,
            self.broker_cpu_seconds + other.broker_cpu_seconds,
            self.client_cpu_seconds + other.client_cpu_seconds,
        )

    @property
    def messages_per_second(self) -> float:
        return self.messages / self.seconds

    @property
    def broker_cpu_seconds_per_gb(self) -> float:
        """Per 10^9 bytes of message values."""
        return self.broker_cpu_seconds / (self.messages * self.message_bytes / 1e9)

    @property
    def client_cpu_share(self) -> float:
        """CPU seconds of the client per second; near 1 its Python thread was the limit."""
        return self.client_cpu_seconds / self.seconds


def client_settings(system: Cluster, settings: Mapping[str, object] | None = None) -> dict[str, object]:
    # Without its log: it complains of every connection that a starting broker refuses.
    return {"bootstrap.servers": system.bootstrap_servers, "log_level": 0, **(settings or {})}


def create_topic(system: Cluster, partitions: int = 1, replicas: int = 1) -> str:
    name = f"bench-{uuid4().hex[:12]}"
    admin: Any = AdminClient(client_settings(system))
    topic = NewTopic(name, partitions, replicas)
    admin.create_topics([topic], operation_timeout=ANSWER_SECONDS)[name].result(ANSWER_SECONDS)
    return name


def delete_topic(system: Cluster, name: str) -> None:
    admin: Any = AdminClient(client_settings(system))
    admin.delete_topics([name], operation_timeout=ANSWER_SECONDS)[name].result(ANSWER_SECONDS)


def produce(
    system: Cluster,
    topic: str,
    *,
    messages: int,
    message_bytes: int,
    batching: Mapping[str, object],
    acks: Acks = 1,
) -> Throughput:
    """Send `messages` to partition 0 as fast as the client can.

    Raises:
        Miscounted: another number of messages is in the partition afterwards.
    """
    producer: Any = Producer(
        client_settings(
            system,
            {
                "acks": acks,
                "queue.buffering.max.messages": QUEUED_MESSAGES_MAX,
                "queue.buffering.max.kbytes": 1 << 20,
                **batching,
            },
        )
    )
    producer.list_topics(topic, timeout=ANSWER_SECONDS)
    stored_before = end_offset(system, topic)
    chunk = [{"value": b"x" * message_bytes}] * CHUNK
    sent = 0
    broker_cpu, client_cpu, began = broker_cpu_seconds(system), own_cpu_seconds(), time.perf_counter()
    while sent < messages:
        if len(producer) + CHUNK > QUEUED_MESSAGES_MAX:
            # The broker is behind. Trying again and again would take the cores that it needs.
            producer.poll(0)
            time.sleep(0.001)
            continue
        sent += producer.produce_batch(topic, chunk[: messages - sent], partition=0)
    producer.flush(ANSWER_SECONDS)
    seconds = time.perf_counter() - began
    broker_cpu, client_cpu = broker_cpu_seconds(system) - broker_cpu, own_cpu_seconds() - client_cpu
    stored = end_offset(system, topic) - stored_before
    if stored != messages:
        raise Miscounted(f"{system.name} stored {stored} of {messages} messages.")
    return Throughput(messages, message_bytes, seconds, broker_cpu, client_cpu)


def consume(system: Cluster, topic: str, *, messages: int, message_bytes: int) -> Throughput:
    """Read partition 0 from its beginning, `messages` of it.

    Raises:
        Miscounted: fewer come.
    """
    consumer: Any = Consumer(
        client_settings(
            system,
            {
                "group.id": "bench",
                "enable.auto.commit": False,
                # Never stop fetching: the client's queue takes the whole partition, so that its pauses
                # (fetch.queue.backoff.ms, a second) are not what is measured.
                "queued.min.messages": 10_000_000,
                "queued.max.messages.kbytes": 2_000_000,
                "fetch.queue.backoff.ms": 1,
            },
        )
    )
    consumer.list_topics(topic, timeout=ANSWER_SECONDS)
    broker_cpu, client_cpu, began = broker_cpu_seconds(system), own_cpu_seconds(), time.perf_counter()
    consumer.assign([TopicPartition(topic, 0, 0)])
    read = 0
    while read < messages:
        got = consumer.consume(min(READ_CHUNK, messages - read), 5)
        if not got:
            raise Miscounted(f"{system.name} gave back {read} of {messages} messages.")
        read += len(got)
    seconds = time.perf_counter() - began
    broker_cpu, client_cpu = broker_cpu_seconds(system) - broker_cpu, own_cpu_seconds() - client_cpu
    consumer.close()
    return Throughput(messages, message_bytes, seconds, broker_cpu, client_cpu)


def produce_one_by_one(
    system: Cluster, topic: str, *, messages: int, message_bytes: int, acks: Acks = 1
) -> list[float]:
    """Milliseconds from each produce to its acknowledgement, each sent after the one before."""
    producer: Any = Producer(client_settings(system, {"acks": acks, "linger.ms": 0}))
    producer.list_topics(topic, timeout=ANSWER_SECONDS)
    value = b"x" * message_bytes
    latencies: list[float] = []
    for _ in range(messages):
        began = time.perf_counter()
        producer.produce(topic, value, partition=0)
        producer.flush(ANSWER_SECONDS)
        latencies.append((time.perf_counter() - began) * 1000)
    return latencies


def percentile(values: list[float], hundredth: int) -> float:
    return statistics.quantiles(values, n=100)[hundredth - 1]


def create_many_partitions(system: Cluster, partitions: int) -> float:
    """Seconds from asking for a topic to an acknowledged message in every partition of it."""
    producer: Any = Producer(
        client_settings(
            system,
            {
                "acks": 1,
                "retry.backoff.ms": 20,
                "topic.metadata.refresh.fast.interval.ms": 20,
            },
        )
    )
    producer.list_topics("no-such-topic", timeout=ANSWER_SECONDS)
    began = time.perf_counter()
    topic = create_topic(system, partitions)
    for partition in range(partitions):
        producer.produce(topic, b"x", partition=partition)
    producer.flush(ANSWER_SECONDS)
    seconds = time.perf_counter() - began
    stored = sum(end_offset(system, topic, partition) for partition in (0, partitions - 1))
    if stored != 2:
        raise Miscounted(f"{system.name} did not store a message in every one of {partitions} partitions.")
    delete_topic(system, topic)
    return seconds


def broker_cpu_seconds(system: Cluster) -> float:
    return sum(cpu_seconds(pid) for pid in system.broker_pids)


def end_offset(system: Cluster, topic: str, partition: int = 0) -> int:
    consumer: Any = Consumer(client_settings(system, {"group.id": "bench"}))
    deadline = time.monotonic() + ANSWER_SECONDS
    try:
        while True:
            try:
                return int(
                    consumer.get_watermark_offsets(TopicPartition(topic, partition), ANSWER_SECONDS)[1]
                )
            except KafkaException:
                # Apache Kafka says that a topic is created before its broker knows of it.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
    finally:
        consumer.close()
