"""Three brokers that replicate, ours and Apache Kafka's by turns: what acks=all costs (R21).

Topics have three replicas and min.insync.replicas 2. All brokers of a system count towards its CPU. Only one
system is under load at any moment; the other idles.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench import idempotence, transactions
from bench.apache_kafka import ApacheKafka, new_cluster_id
from bench.report import Figure, Samples
from bench.system import Cluster
from bench.workloads import (
    BATCHES_1_MB,
    BATCHES_16_KB,
    Throughput,
    create_topic,
    delete_topic,
    percentile,
    produce,
    produce_one_by_one,
)
from mainstem.local.ports import free_ports
from mainstem.local.stack import Stack

BROKERS: Final = 3
MESSAGE_BYTES: Final = 100
SETTINGS: Final[Mapping[str, str]] = {
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}

Say = Callable[[str], None]


class ReplicatedMainstem:
    """Three brokers and their ZooKeeper, as `mainstem up --brokers 3` runs them."""

    name = "Mainstem"

    def __init__(self, directory: Path) -> None:
        self._stack = Stack(directory, brokers=BROKERS, port=0, broker_settings=SETTINGS)

    @property
    def bootstrap_servers(self) -> str:
        return self._stack.bootstrap_servers

    @property
    def broker_pids(self) -> tuple[int, ...]:
        return tuple(self._stack.broker_pid(broker_id) for broker_id in self._stack.broker_ids)

    def start(self) -> None:
        self._stack.start()

    def stop(self) -> None:
        self._stack.stop()


class ReplicatedApacheKafka:
    """Three nodes, each broker and controller."""

    name = "Apache Kafka"

    def __init__(self, directory: Path, jars: Path) -> None:
        first = free_ports(2 * BROKERS)
        pairs = [(port, port + BROKERS) for port in range(first, first + BROKERS)]
        voters = ",".join(f"{number}@127.0.0.1:{pair[1]}" for number, pair in enumerate(pairs, start=1))
        cluster_id = new_cluster_id()
        self._nodes = [
            ApacheKafka(
                directory / str(number),
                jars,
                SETTINGS,
                node_id=number,
                ports=pair,
                voters=voters,
                cluster_id=cluster_id,
            )
            for number, pair in enumerate(pairs, start=1)
        ]

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.bootstrap_servers for node in self._nodes)

    @property
    def broker_pids(self) -> tuple[int, ...]:
        return tuple(node.broker_pid for node in self._nodes)

    def start(self) -> None:
        for node in self._nodes:
            node.spawn_broker()
        for node in self._nodes:
            node.await_port()

    def stop(self) -> None:
        for node in self._nodes:
            node.stop()


def measure_replicated(
    clusters: Sequence[Cluster], *, rounds: int, messages: int, synchronous_messages: int, say: Say
) -> list[Figure]:
    """What acks=all costs on all clusters, which are started."""

    def measure(cluster: Cluster, samples: Samples, number: int) -> None:
        _round(cluster, samples, messages, synchronous_messages, swap=number % 2 == 0)

    return _by_turns(clusters, "three brokers", rounds, measure, FIGURES, say)


def measure_transactions(
    clusters: Sequence[Cluster], *, rounds: int, scale: transactions.Scale, say: Say
) -> list[Figure]:
    """What transactions cost on all clusters, which are started."""

    def measure(cluster: Cluster, samples: Samples, _: int) -> None:
        transactions.measure(cluster, samples, scale)

    return _by_turns(clusters, "transactions", rounds, measure, transactions.FIGURES, say)


def _by_turns(
    clusters: Sequence[Cluster],
    what: str,
    rounds: int,
    measure: Callable[[Cluster, Samples, int], None],
    figures: Sequence[tuple[str, str, str, bool, float | None]],
    say: Say,
) -> list[Figure]:
    """Each round on all clusters, in alternating order, after a round that warms a JVM up."""
    samples: dict[str, Samples] = {cluster.name: defaultdict(list) for cluster in clusters}
    discarded: dict[str, Samples] = {cluster.name: defaultdict(list) for cluster in clusters}
    for number in range(-1, rounds):
        say(f"{what}: warming up" if number < 0 else f"{what}: round {number + 1} of {rounds}")
        for cluster in clusters if number % 2 == 0 else reversed(clusters):
            measure(cluster, (discarded if number < 0 else samples)[cluster.name], number)
    return [Figure(*row, samples=samples) for row in figures]


def _round(
    cluster: Cluster, samples: Samples, messages: int, synchronous_messages: int, *, swap: bool
) -> None:
    """One round; `swap` says which of the two runs that tell the cost of idempotence comes first."""
    for name, batching in (("16 KB", BATCHES_16_KB), ("1 MB", BATCHES_1_MB)):
        taken = _produce(cluster, messages, batching)
        samples[f"all {name}"].append(taken.messages_per_second)
        samples[f"all {name}, cpu"].append(taken.broker_cpu_seconds_per_gb)
    taken = _produce(cluster, messages, {**BATCHES_16_KB, "enable.idempotence": True})
    samples["idempotent"].append(taken.messages_per_second)
    samples["idempotent, cpu"].append(taken.broker_cpu_seconds_per_gb)
    rates = idempotence.rates(
        cluster,
        messages=messages,
        message_bytes=MESSAGE_BYTES,
        replicas=BROKERS,
        idempotent_first=swap,
    )
    samples["idempotent share"].append(rates[True] / rates[False])
    topic = create_topic(cluster, replicas=BROKERS)
    latencies = produce_one_by_one(
        cluster, topic, messages=synchronous_messages, message_bytes=MESSAGE_BYTES, acks="all"
    )
    samples["all p50"].append(percentile(latencies, 50))
    samples["all p99"].append(percentile(latencies, 99))
    delete_topic(cluster, topic)


def _produce(cluster: Cluster, messages: int, settings: Mapping[str, object]) -> Throughput:
    """To a topic of its own, with acks=all."""
    topic = create_topic(cluster, replicas=BROKERS)
    taken = produce(
        cluster, topic, messages=messages, message_bytes=MESSAGE_BYTES, batching=settings, acks="all"
    )
    delete_topic(cluster, topic)
    return taken


# As in `measure.py`.
FIGURES: Final[tuple[tuple[str, str, str, bool, float | None], ...]] = (
    ("3 brokers, acks=all, 16 KB batches", "all 16 KB", "msg/s", True, 1.0),
    ("3 brokers, acks=all, 1 MB batches", "all 1 MB", "msg/s", True, 1.0),
    ("3 brokers, acks=all, idempotent, 16 KB", "idempotent", "msg/s", True, 1.0),
    ("... of the rate without it, by a bare socket", "idempotent share", "", True, None),
    ("3 brokers' CPU, acks=all, 16 KB batches", "all 16 KB, cpu", "s/GB", False, 1.0),
    ("3 brokers' CPU, acks=all, 1 MB batches", "all 1 MB, cpu", "s/GB", False, 1.0),
    ("3 brokers' CPU, idempotent, 16 KB", "idempotent, cpu", "s/GB", False, 1.0),
    ("3 brokers, synchronous acks=all, p50", "all p50", "ms", False, 1.0),
    ("3 brokers, synchronous acks=all, p99", "all p99", "ms", False, 1.0),
)
