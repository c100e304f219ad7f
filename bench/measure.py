"""The rounds of a run: every workload on every system by turns, and the figures that come out.

Only one system is under load at any moment; the other idles. Each workload is done to one and at once to the
other, so that both meet the same machine, and which goes first changes from round to round.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Final

from bench.bare_socket import BareSocket, restart_until_first_acknowledgement
from bench.processes import cpu_seconds, machine_cpu_seconds, memory_mb, own_cpu_seconds
from bench.report import Figure, Samples
from bench.system import System
from bench.workloads import (
    BATCHES_1_MB,
    BATCHES_16_KB,
    BATCHES_OF_1,
    BATCHES_OF_50,
    Throughput,
    consume,
    create_many_partitions,
    create_topic,
    delete_topic,
    percentile,
    produce,
    produce_one_by_one,
)

SMALL_BYTES: Final = 100
LARGER_BYTES: Final = 200  # the paper's message


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is done; `rounds` is how often everything is."""

    rounds: int
    messages: int
    passes: int
    messages_in_50s: int
    single_messages: int
    synchronous_messages: int
    partitions: int


FULL: Final = Scale(5, 2_000_000, 3, 1_000_000, 200_000, 10_000, 1_000)
QUICK: Final = Scale(1, 300_000, 1, 100_000, 20_000, 1_000, 100)
WARM_UP: Final = Scale(1, 1_000_000, 1, 200_000, 50_000, 3_000, 50)  # of a JVM, mostly
QUICK_WARM_UP: Final = Scale(1, 100_000, 1, 20_000, 5_000, 300, 10)

Say = Callable[[str], None]
AllSamples = dict[str, Samples]
"""By the system's name."""


@dataclass(frozen=True, slots=True)
class Measured:
    """`neighbour_cores`: how many cores other programs used, round by round; some tenths bend ratios."""

    figures: list[Figure]
    neighbour_cores: list[float]


def measure(systems: Sequence[System], scale: Scale, warm_up: Scale, say: Say) -> Measured:
    """Do everything to all `systems` (already started)."""
    samples: AllSamples = {system.name: defaultdict(list) for system in systems}
    say("warming up")
    _round(systems, warm_up, {system.name: defaultdict(list) for system in systems})
    neighbours: list[float] = []
    for number in range(scale.rounds):
        others_before, began = _others_cpu_seconds(systems), time.monotonic()
        _round(_turn(systems, number), scale, samples)
        neighbours.append(max(_others_cpu_seconds(systems) - others_before, 0) / (time.monotonic() - began))
        say(f"round {number + 1} of {scale.rounds}; meanwhile other programs used {neighbours[-1]:.2f} cores")
    for system in systems:
        _memory(system, samples[system.name])
    topics = {system.name: create_topic(system) for system in systems}
    for system in systems:
        produce(system, topics[system.name], messages=1, message_bytes=SMALL_BYTES, batching=BATCHES_OF_1)
    for number in range(scale.rounds):
        say(f"start {number + 1} of {scale.rounds}")
        for system in _turn(systems, number):
            seconds = restart_until_first_acknowledgement(system, topics[system.name])
            samples[system.name]["start-up"].append(seconds)
    return Measured([Figure(*row, samples=samples) for row in FIGURES], neighbours)


def _others_cpu_seconds(systems: Sequence[System]) -> float:
    """CPU time of everything on this machine that has no part in the measurement."""
    pids = [pid for system in systems for pid in (system.broker_pid, *system.companion_pids)]
    return machine_cpu_seconds() - own_cpu_seconds() - sum(cpu_seconds(pid) for pid in pids)


def _turn(systems: Sequence[System], number: int) -> list[System]:
    return [*systems] if number % 2 == 0 else [*reversed(systems)]


@contextlib.contextmanager
def _topics(systems: Sequence[System]) -> Iterator[dict[str, str]]:
    """A topic on each, by the system's name."""
    topics = {system.name: create_topic(system) for system in systems}
    try:
        yield topics
    finally:
        for system in systems:
            delete_topic(system, topics[system.name])


def _round(systems: Sequence[System], scale: Scale, samples: AllSamples) -> None:
    for name, batching in (("16 KB", BATCHES_16_KB), ("1 MB", BATCHES_1_MB)):
        _there_and_back(systems, scale, samples, name, batching)
    for name, batching, messages in (
        ("50 per request", BATCHES_OF_50, scale.messages_in_50s),
        ("1 per request", BATCHES_OF_1, scale.single_messages),
    ):
        with _topics(systems) as topics:
            for system in systems:
                topic = topics[system.name]
                taken = produce(
                    system, topic, messages=messages, message_bytes=LARGER_BYTES, batching=batching
                )
                _keep(samples[system.name], f"produce {name}", taken)
    _one_by_one(systems, scale, samples)
    for system in systems:
        samples[system.name]["many partitions"].append(create_many_partitions(system, scale.partitions))


def _there_and_back(
    systems: Sequence[System],
    scale: Scale,
    samples: AllSamples,
    name: str,
    batching: Mapping[str, object],
) -> None:
    """Produce and read back several times, by the client and by the bare socket, by turns pass by pass.

    Each pass has topics of its own: the client fetches as far as there is something, and a broker's CPU for
    more than is counted would be held against the one that is ahead.
    """
    size = {"messages": scale.messages, "message_bytes": SMALL_BYTES}

    def send(system: System, topic: str) -> Throughput:
        return produce(system, topic, batching=batching, **size)

    def read(system: System, topic: str) -> Throughput:
        return consume(system, topic, **size)

    def send_bare(system: System, topic: str) -> Throughput:
        with BareSocket(system) as bare:
            batch, count = bare.largest_batch(topic, scale.messages // 2)
            return bare.produce_all(topic, batch=batch, count=count, **size)

    def read_bare(system: System, topic: str) -> Throughput:
        with BareSocket(system) as bare:
            return bare.fetch_all(topic, **size)

    works = {"produce": send, "consume": read, "bare produce": send_bare, "bare fetch": read_bare}
    taken: dict[tuple[str, str], list[Throughput]] = defaultdict(list)
    for number in range(scale.passes):
        with _topics(systems) as topics:
            for what, work in works.items():
                for system in _turn(systems, number):
                    taken[system.name, what].append(work(system, topics[system.name]))
    for (system_name, what), passes in taken.items():
        _keep(samples[system_name], f"{what} {name}", reduce(add, passes))
    for system in systems:
        there, back = (samples[system.name][f"{what} {name}, broker cpu"] for what in ("produce", "consume"))
        samples[system.name][f"there and back {name}, broker cpu"].append(there[-1] + back[-1])


def _one_by_one(systems: Sequence[System], scale: Scale, samples: AllSamples) -> None:
    """Synchronous requests, by the client and by the bare socket, by turns pass by pass."""
    count = scale.synchronous_messages
    taken: dict[tuple[str, str], list[float]] = defaultdict(list)
    with _topics(systems) as topics:
        for number in range(scale.passes):
            for system in _turn(systems, number):
                topic = topics[system.name]
                taken[system.name, "synchronous"] += produce_one_by_one(
                    system, topic, messages=count, message_bytes=SMALL_BYTES
                )
                with BareSocket(system) as bare:
                    batch, _ = bare.largest_batch(topic)
                    taken[system.name, "bare synchronous"] += bare.produce_one_by_one(
                        topic, batch=batch, requests=count
                    )
    for (system_name, what), latencies in taken.items():
        for hundredth in (50, 99):
            samples[system_name][f"{what} p{hundredth}"].append(percentile(latencies, hundredth))


def _keep(samples: Samples, name: str, throughput: Throughput) -> None:
    samples[name].append(throughput.messages_per_second)
    samples[f"{name}, broker cpu"].append(throughput.broker_cpu_seconds_per_gb)
    samples[f"{name}, client"].append(throughput.client_cpu_share)


def _memory(system: System, samples: Samples) -> None:
    """After all the load: of the broker, and of everything that belongs to the system."""
    broker = memory_mb(system.broker_pid)
    samples["memory rss"].append(broker["rss"])
    samples["memory pss"].append(broker["pss"])
    companions = sum(memory_mb(pid)["pss"] for pid in system.companion_pids)
    samples["memory all"].append(broker["pss"] + companions)


# Name in the report, key of the samples, unit, whether more is better, bound of the ratio (None: no bound).
FIGURES: Final[tuple[tuple[str, str, str, bool, float | None], ...]] = (
    ("Produce, 16 KB batches", "produce 16 KB", "msg/s", True, 1.0),
    ("Produce, 1 MB batches", "produce 1 MB", "msg/s", True, 1.0),
    ("Consume, 16 KB batches", "consume 16 KB", "msg/s", True, 1.0),
    ("Consume, 1 MB batches", "consume 1 MB", "msg/s", True, 1.0),
    ("Produce by bare socket, 16 KB batches", "bare produce 16 KB", "msg/s", True, 1.0),
    ("Produce by bare socket, 1 MB batches", "bare produce 1 MB", "msg/s", True, 1.0),
    ("Fetch by bare socket, 16 KB batches", "bare fetch 16 KB", "msg/s", True, 1.0),
    ("Fetch by bare socket, 1 MB batches", "bare fetch 1 MB", "msg/s", True, 1.0),
    ("Produce 200 B, 50 per request", "produce 50 per request", "msg/s", True, None),
    ("Produce 200 B, 1 per request", "produce 1 per request", "msg/s", True, 1.3),
    ("Broker CPU, produce, 16 KB batches", "produce 16 KB, broker cpu", "s/GB", False, 0.7),
    ("Broker CPU, produce, 1 MB batches", "produce 1 MB, broker cpu", "s/GB", False, 0.7),
    ("Broker CPU, consume, 16 KB batches", "consume 16 KB, broker cpu", "s/GB", False, 0.7),
    ("Broker CPU, consume, 1 MB batches", "consume 1 MB, broker cpu", "s/GB", False, 0.7),
    ("Broker CPU, in and out, 16 KB batches", "there and back 16 KB, broker cpu", "s/GB", False, 0.7),
    ("Broker CPU, in and out, 1 MB batches", "there and back 1 MB, broker cpu", "s/GB", False, 0.7),
    ("Broker CPU, bare produce, 16 KB batches", "bare produce 16 KB, broker cpu", "s/GB", False, None),
    ("Broker CPU, bare produce, 1 MB batches", "bare produce 1 MB, broker cpu", "s/GB", False, None),
    ("Broker CPU, bare fetch, 16 KB batches", "bare fetch 16 KB, broker cpu", "s/GB", False, None),
    ("Broker CPU, bare fetch, 1 MB batches", "bare fetch 1 MB, broker cpu", "s/GB", False, None),
    ("Synchronous produce, p50", "synchronous p50", "ms", False, None),
    ("Synchronous produce, p99", "synchronous p99", "ms", False, 1.0),
    ("Synchronous by bare socket, p50", "bare synchronous p50", "ms", False, None),
    ("Synchronous by bare socket, p99", "bare synchronous p99", "ms", False, 1.0),
    ("Broker memory after the load (RSS)", "memory rss", "MB", False, 0.3),
    ("Broker memory after the load (PSS)", "memory pss", "MB", False, 0.3),
    ("Memory with ZooKeeper, where it is (PSS)", "memory all", "MB", False, None),
    ("Broker start to first acknowledgement", "start-up", "s", False, 0.3),
    ("Create many partitions, write to each", "many partitions", "s", False, None),
    ("Client CPU, produce, 16 KB batches", "produce 16 KB, client", "s/s", False, None),
    ("Client CPU, produce, 1 MB batches", "produce 1 MB, client", "s/s", False, None),
    ("Client CPU, consume, 16 KB batches", "consume 16 KB, client", "s/s", False, None),
    ("Client CPU, consume, 1 MB batches", "consume 1 MB, client", "s/s", False, None),
    ("Client CPU, produce, 1 per request", "produce 1 per request, client", "s/s", False, None),
)
