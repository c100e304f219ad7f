"""Transactions on three brokers that replicate: their rate, and how long a commit takes (R9).

Both systems get the same client, which speaks the first protocol of transactions (KIP-98). The topic has
three replicas; so have the coordinators' topics.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from confluent_kafka import Producer

from bench.report import Samples
from bench.system import Cluster
from bench.workloads import (
    ANSWER_SECONDS,
    BATCHES_16_KB,
    CHUNK,
    QUEUED_MESSAGES_MAX,
    Miscounted,
    broker_cpu_seconds,
    client_settings,
    create_topic,
    delete_topic,
    end_offset,
    percentile,
)

MESSAGE_BYTES: Final = 100
REPLICAS: Final = 3
PARTITIONS_PER_COMMIT: Final = 3
WARM_UP_COMMITS: Final = 50


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured: seconds by the interval between two commits, and how many single commits."""

    intervals_s: Mapping[float, float]
    commits: int


FULL: Final = Scale({0.1: 8.0, 10.0: 20.0}, 1_000)
QUICK: Final = Scale({0.1: 1.0, 10.0: 1.0}, 50)


@dataclass(frozen=True, slots=True)
class _Rate:
    """Committed messages of `MESSAGE_BYTES` to one partition, the last commit included."""

    messages: int
    seconds: float
    broker_cpu_seconds: float


def measure(cluster: Cluster, samples: Samples, scale: Scale) -> None:
    """One round; adds a value for each figure of `FIGURES`."""
    for interval_s, seconds in scale.intervals_s.items():
        rate = _produce(cluster, interval_s, seconds)
        samples[f"commits {interval_s:g} s"].append(rate.messages / rate.seconds)
        cpu_per_gb = rate.broker_cpu_seconds / (rate.messages * MESSAGE_BYTES / 1e9)
        samples[f"commits {interval_s:g} s, cpu"].append(cpu_per_gb)
    latencies, cpu_seconds = _commit_one_by_one(cluster, scale.commits)
    samples["commit p50"].append(percentile(latencies, 50))
    samples["commit p99"].append(percentile(latencies, 99))
    samples["commit, cpu"].append(1000 * cpu_seconds / scale.commits)


def _producer(cluster: Cluster, settings: Mapping[str, object]) -> Any:
    producer: Any = Producer(
        client_settings(
            cluster,
            {
                "transactional.id": f"bench-{uuid4().hex[:12]}",
                "queue.buffering.max.messages": QUEUED_MESSAGES_MAX,
                "queue.buffering.max.kbytes": 1 << 20,
                **settings,
            },
        )
    )
    producer.init_transactions(ANSWER_SECONDS)
    return producer


def _produce(cluster: Cluster, interval_s: float, seconds: float) -> _Rate:
    """Send to one partition as fast as the client can, with a commit every `interval_s`.

    Raises:
        Miscounted: another number of messages and markers is in the partition afterwards.
    """
    topic = create_topic(cluster, replicas=REPLICAS)
    producer = _producer(cluster, BATCHES_16_KB)
    producer.list_topics(topic, timeout=ANSWER_SECONDS)
    chunk = [{"value": b"x" * MESSAGE_BYTES}] * (CHUNK // 10)
    sent = commits = 0
    cpu, began = broker_cpu_seconds(cluster), time.perf_counter()
    while time.perf_counter() - began < seconds:
        producer.begin_transaction()
        end = time.perf_counter() + interval_s
        while time.perf_counter() < end:
            if len(producer) + len(chunk) > QUEUED_MESSAGES_MAX:
                producer.poll(0)
                time.sleep(0.001)
                continue
            sent += producer.produce_batch(topic, chunk, partition=0)
        producer.commit_transaction(ANSWER_SECONDS)
        commits += 1
    rate = _Rate(sent, time.perf_counter() - began, broker_cpu_seconds(cluster) - cpu)
    _check_is_committed(cluster, topic, sent, commits)
    delete_topic(cluster, topic)
    return rate


def _check_is_committed(cluster: Cluster, topic: str, messages: int, markers: int) -> None:
    """Compare the last stable offset, which follows the answer to a commit, once the markers are written."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while (stored := end_offset(cluster, topic)) != messages + markers:
        if time.monotonic() > deadline:
            raise Miscounted(f"{cluster.name} stored {stored} of {messages} messages and {markers} markers.")
        time.sleep(0.05)


def _commit_one_by_one(cluster: Cluster, commits: int) -> tuple[list[float], float]:
    """Transactions in three partitions: (milliseconds of each commit, CPU seconds of all brokers).

    The messages are acknowledged before, so that the commit is all that is measured.
    """
    topic = create_topic(cluster, PARTITIONS_PER_COMMIT, REPLICAS)
    producer = _producer(cluster, {"linger.ms": 0})
    producer.list_topics(topic, timeout=ANSWER_SECONDS)
    latencies: list[float] = []
    cpu = 0.0
    for number in range(-WARM_UP_COMMITS, commits):
        if number == 0:
            cpu = broker_cpu_seconds(cluster)
        producer.begin_transaction()
        for partition in range(PARTITIONS_PER_COMMIT):
            producer.produce(topic, b"x" * MESSAGE_BYTES, partition=partition)
        producer.flush(ANSWER_SECONDS)
        began = time.perf_counter()
        producer.commit_transaction(ANSWER_SECONDS)
        if number >= 0:
            latencies.append((time.perf_counter() - began) * 1000)
    cpu = broker_cpu_seconds(cluster) - cpu
    delete_topic(cluster, topic)
    return latencies, cpu


# As in `measure.py`.
FIGURES: Final[tuple[tuple[str, str, str, bool, float | None], ...]] = (
    ("Transactions, a commit every 100 ms", "commits 0.1 s", "msg/s", True, 1.0),
    ("Transactions, a commit every 10 s", "commits 10 s", "msg/s", True, 1.0),
    ("3 brokers' CPU, a commit every 100 ms", "commits 0.1 s, cpu", "s/GB", False, 1.0),
    ("3 brokers' CPU, a commit every 10 s", "commits 10 s, cpu", "s/GB", False, 1.0),
    ("Commit of three partitions, p50", "commit p50", "ms", False, 1.0),
    ("Commit of three partitions, p99", "commit p99", "ms", False, 1.0),
    ("3 brokers' CPU, such a transaction", "commit, cpu", "ms", False, 1.0),
)
