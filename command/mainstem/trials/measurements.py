"""Measures a cluster with one producer and one consumer of librdkafka: throughput and latency.

These are the figures of one client process, of which a cluster serves many. `bench/` in the source compares
brokers with each other.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import OffsetSpec

from mainstem.errors import BadInput, ClusterRefused
from mainstem.kafka.client import PARTITION_EOF, Cluster, Offsets, sentence_of
from mainstem.records.sending import DELIVERY_TIMEOUT_MS, Acks, Compression
from mainstem.trials.latencies import Latencies

_SAMPLES_MAX: Final = 100_000
_VALUES: Final = 1000
_RECORDS_BETWEEN_POLLS: Final = 1000
_ANSWER_TIMEOUT_SECONDS: Final = 10.0
_WORDS: Final = ("click", "view", "cart", "home", "search", "user", "page", "order", "item", "price")
_SEED: Final = 20110612  # the same values in every run, so that runs can be compared

OnProgress = Callable[[int], None]


def producer_settings(
    acks: Acks, compression: Compression, batch_size: int, linger_ms: float
) -> dict[str, object]:
    """The settings of a producer that is measured."""
    return {
        "acks": acks.value,
        "compression.type": compression.value,
        "batch.size": batch_size,
        "batch.num.messages": 1_000_000,  # so that batch.size decides
        "linger.ms": linger_ms,
        "message.timeout.ms": DELIVERY_TIMEOUT_MS,
        "queue.buffering.max.messages": 500_000,
    }


def _values(size: int) -> list[bytes]:
    """Values that compress about as events do."""
    chosen = random.Random(_SEED)
    words = size // min(map(len, _WORDS)) + 1
    return [
        f"{number:08x} {' '.join(chosen.choices(_WORDS, k=words))}".encode()[:size].ljust(size)
        for number in range(_VALUES)
    ]


def measure_sending(
    cluster: Cluster,
    topic: str,
    records: int,
    size_bytes: int,
    settings: dict[str, object],
    on_progress: OnProgress,
    on_trouble: Callable[[str], None],
) -> tuple[float, Latencies | None]:
    """Send records of `size_bytes` each as fast as possible.

    Returns the seconds until all were acknowledged, and the latencies of a sample of them.

    Raises:
        ClusterRefused: some were not acknowledged.
    """
    latencies: list[float] = []
    errors: list[KafkaError] = []

    def on_sampled_delivery(error: KafkaError | None, message: Message) -> None:
        if error is None:
            latencies.append(message.latency())

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            errors.append(error)

    producer = cluster.producer({**settings, "on_delivery": on_delivery}, on_trouble)
    values, step = _values(size_bytes), max(1, records // _SAMPLES_MAX)
    produce, poll = producer.produce, producer.poll
    started = time.perf_counter()
    for number in range(records):
        while True:
            try:
                if number % step:
                    produce(topic, values[number % _VALUES])
                else:
                    produce(topic, values[number % _VALUES], on_delivery=on_sampled_delivery)
            except BufferError:
                poll(0.1)
            except KafkaException as exception:
                raise cluster.refusal(exception, "The records were not sent") from exception
            else:
                break
        if number % _RECORDS_BETWEEN_POLLS == 0:
            poll(0)
            on_progress(min(_RECORDS_BETWEEN_POLLS, records - number))
    while producer.flush(1.0):
        pass
    seconds = time.perf_counter() - started
    if errors:
        raise ClusterRefused(
            f"{len(errors):,} of {records:,} records were not acknowledged: {sentence_of(errors[0])}"
        )
    return seconds, Latencies.of(latencies)


def measure_reading(
    cluster: Cluster,
    topic: str,
    records: int | None,
    on_progress: OnProgress,
    on_trouble: Callable[[str], None],
) -> tuple[int, int, float]:
    """Read up to `records` records of a topic from its beginning, or all.

    Returns the number of records, their bytes, and the seconds that reading took.

    Raises:
        BadInput: the topic is empty.
        ClusterRefused: a partition has no leader, or reading failed.
    """
    partitions = cluster.topic(topic).topic_partitions()
    answers = cluster.offsets(partitions, OffsetSpec.earliest(), OffsetSpec.latest())
    earliest, latest = map(_require_leaders, answers)
    available = sum(latest[number] - offset for number, offset in earliest.items())
    if available == 0:
        raise BadInput(f"Topic {topic} is empty: fill it first, or leave --topic out.")
    limit = available if records is None else min(records, available)
    consumer = cluster.consumer({"enable.partition.eof": True}, on_trouble)
    open_partitions = {number for number, offset in earliest.items() if offset < latest[number]}
    read = size_bytes = 0
    started = time.perf_counter()
    consumer.assign([TopicPartition(topic, number, earliest[number]) for number in open_partitions])
    while read < limit and open_partitions:
        read_before = read
        for message in consumer.consume(500, 0.1):
            error = message.error()
            if error is None:
                read += 1
                size_bytes += len(message)
            elif error.code() == PARTITION_EOF:
                open_partitions.discard(message.partition())
            else:
                raise ClusterRefused(f"Reading {topic} failed: {sentence_of(error)}")
        on_progress(read - read_before)
    seconds = time.perf_counter() - started
    consumer.close()
    return read, size_bytes, seconds


def measure_latency(
    cluster: Cluster,
    topic: str,
    records: int,
    size_bytes: int,
    settings: dict[str, object],
    on_progress: OnProgress,
    on_trouble: Callable[[str], None],
) -> tuple[Latencies | None, Latencies | None]:
    """Send records to partition 0, each after the one before it was consumed.

    Returns the times until a record was acknowledged, and until it was consumed.

    Raises:
        ClusterRefused: a record was not acknowledged or did not arrive.
    """
    acknowledged_seconds: list[float] = []
    consumed_seconds: list[float] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        acknowledged_seconds.append(message.latency())

    producer = cluster.producer({**settings, "on_delivery": on_delivery}, on_trouble)
    (ends,) = cluster.offsets([TopicPartition(topic, 0)], OffsetSpec.latest())
    consumer = cluster.consumer({}, on_trouble)
    consumer.assign([TopicPartition(topic, 0, _require_leaders(ends)[0])])
    values = _values(size_bytes)
    warm_up = min(records, 100)  # connections are opened, and code runs for the first time
    for number in range(warm_up + records):
        started = time.perf_counter()
        producer.produce(topic, values[number % _VALUES], partition=0)
        message = consumer.poll(_ANSWER_TIMEOUT_SECONDS)
        seconds = time.perf_counter() - started
        try:
            producer.flush(_ANSWER_TIMEOUT_SECONDS)
        except KafkaException as exception:
            raise cluster.refusal(exception, "A record was not acknowledged") from exception
        if message is None or message.error() is not None:
            reason = "nothing came" if message is None else sentence_of(message.error())
            raise ClusterRefused(f"Record {number:,} was not consumed: {reason}")
        consumed_seconds.append(seconds)
        if number >= warm_up:
            on_progress(1)
    consumer.close()
    return Latencies.of(acknowledged_seconds[warm_up:]), Latencies.of(consumed_seconds[warm_up:])


def _require_leaders(offsets: Offsets) -> dict[int, int]:
    known_offsets = {number: offset for number, offset in offsets.items() if offset is not None}
    for number in sorted(offsets.keys() - known_offsets.keys()):
        raise ClusterRefused(
            f"Partition {number} has no leader that answers: see `mainstem cluster status`, then run this"
            " again."
        )
    return known_offsets
