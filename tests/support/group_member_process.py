"""One member of a group in a process of its own: `python -m tests.support.group_member_process CONFIG`.

CONFIG is JSON: `kind` (confluent, kafka-python, aiokafka, java), `servers`, `group`, `topic`, `session_ms`,
`heartbeat_ms`, `commit_waits` (whether it waits for the answer to a commit; for confluent and java), and
optionally `assignor` (range, roundrobin, cooperative-sticky), `instance_id` and, for confluent and java,
`protocol` (classic, consumer). It reports what happens to it
as lines of JSON on standard output: `{"assigned": [0, 1]}`, `{"revoked": [0]}`, `{"records": [[0, 17]]}`
(partition and offset of each record, before they are committed; with the `generation` in which it got the
partitions, which kafka-python does not say), `{"committed": true}`. Each line has `at`, the steady clock in
ms. SIGTERM makes it leave the group and end.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from typing import Any

import aiokafka
import aiokafka.abc
import confluent_kafka
import kafka
from tests.support.java_group_member import run_java

POLL_SECONDS = 0.1
RECORDS_AT_ONCE = 50

_stopping = False


def tell(**news: Any) -> None:
    sys.stdout.write(json.dumps({**news, "at": time.monotonic_ns() // 1_000_000}) + "\n")
    sys.stdout.flush()


def run_confluent(config: dict[str, Any]) -> None:
    consumer: Any = confluent_kafka.Consumer(
        {
            "bootstrap.servers": config["servers"],
            "group.id": config["group"],
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **_protocol(config),
            "topic.metadata.refresh.interval.ms": 1_000,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
            **({"group.instance.id": config["instance_id"]} if "instance_id" in config else {}),
        }
    )
    generation = -1

    def on_assign(_consumer: Any, partitions: Any) -> None:
        nonlocal generation
        generation = _generation(consumer)
        tell(assigned=[one.partition for one in partitions])

    consumer.subscribe(
        [config["topic"]],
        on_assign=on_assign,
        on_revoke=lambda _, partitions: tell(revoked=[one.partition for one in partitions]),
        on_lost=lambda _, partitions: tell(lost=[one.partition for one in partitions]),
    )
    while not _stopping:
        records = [record for record in consumer.consume(RECORDS_AT_ONCE, POLL_SECONDS) if not record.error()]
        if records:
            tell(records=[[record.partition(), record.offset()] for record in records], generation=generation)
            try:
                consumer.commit(asynchronous=not config["commit_waits"])
                tell(committed=True)
            except confluent_kafka.KafkaException as error:
                tell(commit_failed=error.args[0].name())
    consumer.close()


def _protocol(config: dict[str, Any]) -> dict[str, Any]:
    if config.get("protocol") == "consumer":
        return {"group.protocol": "consumer"}  # sessions and assignors are the broker's
    return {
        "session.timeout.ms": config["session_ms"],
        "heartbeat.interval.ms": config["heartbeat_ms"],
        "partition.assignment.strategy": config.get("assignor", "range"),
    }


def _generation(consumer: Any) -> int:
    """The generation that the client is in; its metadata for producers begins with a name and that number."""
    metadata: bytes = consumer.consumer_group_metadata()
    name = b"CGMDv2:"
    assert metadata.startswith(name)
    return int.from_bytes(metadata[len(name) : len(name) + 4], sys.byteorder, signed=True)


def run_kafka_python(config: dict[str, Any]) -> None:
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python is not typed
        def on_partitions_revoked(self, revoked: Any) -> None:
            tell(revoked=[one.partition for one in revoked])

        def on_partitions_assigned(self, assigned: Any) -> None:
            tell(assigned=[one.partition for one in assigned])

    assignors = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}
    consumer: Any = kafka.KafkaConsumer(
        bootstrap_servers=config["servers"].split(","),
        group_id=config["group"],
        session_timeout_ms=config["session_ms"],
        heartbeat_interval_ms=config["heartbeat_ms"],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        partition_assignment_strategy=[assignors[config.get("assignor", "range")]],
        max_poll_records=RECORDS_AT_ONCE,
        group_instance_id=config.get("instance_id"),
    )
    consumer.subscribe([config["topic"]], listener=Listener())
    while not _stopping:
        # Not less: kafka-python 3.0.12 loses a join that ends between two polls, at any broker.
        result = consumer.poll(timeout_ms=2_000)
        records = [[record.partition, record.offset] for some in result.values() for record in some]
        if records:
            tell(records=records)
            try:
                consumer.commit()
                tell(committed=True)
            except kafka.errors.KafkaError as error:
                tell(commit_failed=type(error).__name__)
    consumer.close()


async def run_aiokafka(config: dict[str, Any]) -> None:
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    generation = -1

    class Listener(aiokafka.abc.ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka is not typed
        async def on_partitions_revoked(self, revoked: Any) -> None:
            tell(revoked=[one.partition for one in revoked])

        async def on_partitions_assigned(self, assigned: Any) -> None:
            nonlocal generation
            generation = consumer._coordinator.generation
            tell(assigned=[one.partition for one in assigned])

    assignors = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}
    consumer: Any = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=config["servers"],
        group_id=config["group"],
        session_timeout_ms=config["session_ms"],
        heartbeat_interval_ms=config["heartbeat_ms"],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        partition_assignment_strategy=(assignors[config.get("assignor", "range")],),
        group_instance_id=config.get("instance_id"),
    )
    consumer.subscribe([config["topic"]], listener=Listener())
    await consumer.start()
    while not _stopping:
        result = await consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000), max_records=RECORDS_AT_ONCE)
        records = [[record.partition, record.offset] for some in result.values() for record in some]
        if records:
            tell(records=records, generation=generation)
            try:
                await consumer.commit()
                tell(committed=True)
            except aiokafka.errors.KafkaError as error:
                tell(commit_failed=type(error).__name__)
    await consumer.stop()


def _stop(*_: object) -> None:
    global _stopping  # one process, one member
    _stopping = True


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    chosen = json.loads(sys.argv[1])
    if chosen["kind"] == "confluent":
        run_confluent(chosen)
    elif chosen["kind"] == "kafka-python":
        run_kafka_python(chosen)
    elif chosen["kind"] == "java":
        run_java(chosen, tell, lambda: _stopping)
    else:
        asyncio.run(run_aiokafka(chosen))
