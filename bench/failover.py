"""Three brokers with 1,000 partitions: how long they take to start, and to replace the dead leader of all.

Every partition has three replicas and the same preferred leader, which is then killed: the worst case of a
failover. ZooKeeper's session is what `mainstem up` sets; min.insync.replicas is 2. Only Mainstem is measured.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.replicated import BROKERS, SETTINGS
from bench.report import OURS, Figure, Samples
from bench.workloads import ANSWER_SECONDS, Miscounted
from mainstem.local.stack import Stack

PARTITIONS: Final = 1_000
TOPIC: Final = "failover"
LEADER: Final = 1
LOOK_S: Final = 0.02
"""Between two looks at the cluster; a look at 1,000 partitions takes about as long."""

Say = Callable[[str], None]


def measure_failover(directory: Path, *, rounds: int, say: Say) -> list[Figure]:
    """In each round: start, create, kill the leader and start it again, stop all and start all again."""
    samples: Samples = defaultdict(list)
    for number in range(rounds):
        say(f"{PARTITIONS} partitions: round {number + 1} of {rounds}")
        _round(directory / f"failover-{number}", samples)
    return [Figure(name, key, "s", False, None, {OURS: samples}) for name, key in FIGURES]


def _round(directory: Path, samples: Samples) -> None:
    stack = Stack(directory, BROKERS, port=0, broker_settings=SETTINGS)
    try:
        samples["start empty"].append(_seconds(stack.start))
        samples["create"].append(_seconds(lambda: _create(stack)))
        _produce_everywhere(stack)

        stack.kill_broker(LEADER)
        began_s = time.perf_counter()
        _await(stack, _is_led_by_others)
        samples["failover led"].append(time.perf_counter() - began_s)
        _produce_everywhere(stack)
        samples["failover acknowledged"].append(time.perf_counter() - began_s)

        began_s = time.perf_counter()
        stack.start_broker(LEADER)
        samples["return serves"].append(time.perf_counter() - began_s)
        _await(stack, _is_whole)
        samples["return whole"].append(time.perf_counter() - began_s)

        samples["stop"].append(_seconds(stack.stop))
        began_s = time.perf_counter()
        stack.start()
        samples["start serves"].append(time.perf_counter() - began_s)
        _await(stack, _is_whole)
        samples["start whole"].append(time.perf_counter() - began_s)
    finally:
        stack.stop()


def _seconds(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def _admin(stack: Stack) -> Any:
    return AdminClient({"bootstrap.servers": stack.bootstrap_servers, "log_level": 0})


def _create(stack: Stack) -> None:
    replicas = [LEADER, *(broker_id for broker_id in stack.broker_ids if broker_id != LEADER)]
    topic = NewTopic(TOPIC, PARTITIONS, replica_assignment=[replicas] * PARTITIONS)
    admin = _admin(stack)
    admin.create_topics([topic], operation_timeout=ANSWER_SECONDS)[TOPIC].result(ANSWER_SECONDS)
    _await(stack, _is_whole)


def _await(stack: Stack, reached: Callable[[list[Any]], bool]) -> None:
    """Ask for the topic's partitions until they are as wanted.

    Raises:
        Miscounted: they never are.
    """
    admin = _admin(stack)
    deadline_s = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline_s:
        topic = admin.list_topics(TOPIC, timeout=ANSWER_SECONDS).topics[TOPIC]
        partitions = list(topic.partitions.values())
        if topic.error is None and len(partitions) == PARTITIONS and reached(partitions):
            return
        time.sleep(LOOK_S)
    raise Miscounted(f"{PARTITIONS} partitions did not become what was wanted in {ANSWER_SECONDS:.0f} s.")


def _is_whole(partitions: list[Any]) -> bool:
    return all(partition.leader >= 0 and len(partition.isrs) == BROKERS for partition in partitions)


def _is_led_by_others(partitions: list[Any]) -> bool:
    return all(partition.leader not in (-1, LEADER) for partition in partitions)


def _produce_everywhere(stack: Stack) -> None:
    """Have a record acknowledged by all in-sync replicas of every partition.

    Raises:
        Miscounted: one was not.
    """
    failed: list[Any] = []
    producer: Any = Producer(
        {
            "bootstrap.servers": stack.bootstrap_servers,
            "log_level": 0,
            "acks": "all",
            "linger.ms": 0,
            "retry.backoff.ms": 20,
            "topic.metadata.refresh.fast.interval.ms": 20,
            "on_delivery": lambda error, _message: failed.append(error) if error else None,
        }
    )
    for partition in range(PARTITIONS):
        producer.produce(TOPIC, b"x", partition=partition)
    left = producer.flush(ANSWER_SECONDS)
    if left or failed:
        raise Miscounted(f"{left + len(failed)} of {PARTITIONS} records were not acknowledged.")


FIGURES: Final = (
    (f"Start of {BROKERS} brokers and ZooKeeper, empty", "start empty"),
    (f"{PARTITIONS} partitions of 3: create, all in sync", "create"),
    (f"{PARTITIONS} leaders killed: all led again", "failover led"),
    (f"{PARTITIONS} leaders killed: acks=all taken again on all", "failover acknowledged"),
    ("The killed broker's start, until it serves", "return serves"),
    ("The killed broker's start, until all are in sync", "return whole"),
    (f"{PARTITIONS} partitions of 3: clean stop of all", "stop"),
    (f"{PARTITIONS} partitions of 3: start of all, until they serve", "start serves"),
    (f"{PARTITIONS} partitions of 3: start of all, until all are in sync", "start whole"),
)
