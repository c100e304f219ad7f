"""Apache Kafka's Java consumer as a member of a group, driven from Python over py4j.

A JVM is started for it, which ends when this process does, however that ends. What it tells and when is
described at `group_member_process`; `class_path` of its CONFIG names the folder of Apache Kafka's jars.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from py4j.java_gateway import CallbackServerParameters, GatewayParameters, JavaGateway
from py4j.protocol import Py4JJavaError
from tests.support.jvm import launch_jvm

POLL_MS: Final = 100
_CONSUMER: Final = "org.apache.kafka.clients.consumer"
_ASSIGNORS: Final = {
    "range": "RangeAssignor",
    "roundrobin": "RoundRobinAssignor",
    "cooperative-sticky": "CooperativeStickyAssignor",
}


class Listener:
    """A ConsumerRebalanceListener. It is called in a thread of its own, so it must not use the consumer."""

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell

    def onPartitionsAssigned(self, partitions: Any) -> None:  # noqa: N802  # the interface's name
        self._tell(assigned=[one.partition() for one in partitions])

    def onPartitionsRevoked(self, partitions: Any) -> None:  # noqa: N802  # the interface's name
        self._tell(revoked=[one.partition() for one in partitions])

    def onPartitionsLost(self, partitions: Any) -> None:  # noqa: N802  # the interface's name
        self._tell(lost=[one.partition() for one in partitions])

    class Java:
        implements: Final = (f"{_CONSUMER}.ConsumerRebalanceListener",)


def run_java(config: dict[str, Any], tell: Callable[..., None], is_stopping: Callable[[], bool]) -> None:
    gateway = _start_jvm(config["class_path"])
    java = gateway.jvm
    consumer: Any = java.org.apache.kafka.clients.consumer.KafkaConsumer(_properties(java, config))
    topics = java.java.util.ArrayList()
    topics.add(config["topic"])
    consumer.subscribe(topics, Listener(tell))
    timeout = java.java.time.Duration.ofMillis(POLL_MS)
    while not is_stopping():
        records = _offsets(consumer.poll(timeout))
        if not records:
            continue
        # Of the rebalance whose partitions were just read: only `poll` changes either.
        tell(records=records, generation=consumer.groupMetadata().generationId())
        try:
            consumer.commitSync() if config["commit_waits"] else consumer.commitAsync()
            tell(committed=True)
        except Py4JJavaError as error:
            tell(commit_failed=error.java_exception.getClass().getSimpleName())
    consumer.close()
    gateway.shutdown()


def _start_jvm(class_path: str) -> Any:
    port, _ = launch_jvm(class_path)
    gateway = JavaGateway(
        gateway_parameters=GatewayParameters(port=port, auto_convert=True),
        callback_server_parameters=CallbackServerParameters(port=0, daemonize=True),
    )
    callbacks = gateway.get_callback_server()
    gateway.java_gateway_server.resetCallbackClient(
        gateway.java_gateway_server.getCallbackClient().getAddress(), callbacks.get_listening_port()
    )
    return gateway


def _properties(java: Any, config: dict[str, Any]) -> Any:
    bytes_as_they_are = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
    properties = java.java.util.Properties()
    for name, value in {
        "bootstrap.servers": config["servers"],
        "group.id": config["group"],
        "key.deserializer": bytes_as_they_are,
        "value.deserializer": bytes_as_they_are,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "false",
        **_protocol(config),
        **({"group.instance.id": config["instance_id"]} if "instance_id" in config else {}),
    }.items():
        properties.setProperty(name, str(value))
    return properties


def _protocol(config: dict[str, Any]) -> dict[str, Any]:
    if config.get("protocol") == "consumer":
        return {"group.protocol": "consumer"}  # sessions and assignors are the broker's
    return {
        "session.timeout.ms": config["session_ms"],
        "heartbeat.interval.ms": config["heartbeat_ms"],
        "partition.assignment.strategy": f"{_CONSUMER}.{_ASSIGNORS[config.get('assignor', 'range')]}",
    }


def _offsets(records: Any) -> list[list[int]]:
    """Partition and offset of each record, by a few calls for a partition's and not some for a record."""
    results: list[list[int]] = []
    for partition in records.partitions():
        some, number = records.records(partition), partition.partition()
        first, last = some.get(0).offset(), some.get(some.size() - 1).offset()
        assert last - first + 1 == some.size(), "the topic is neither compacted nor transactional"
        results += [[number, offset] for offset in range(first, last + 1)]
    return results
