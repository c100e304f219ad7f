"""Topics for tests: created with a name of their own, awaited, deleted afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import wait
from typing import Any, Final, Self
from uuid import uuid4

from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from kio.schema.errors import ErrorCode
from tests.support.clusters import ReachableCluster, is_reference
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.wire import Connection, list_offset

ANSWER_SECONDS: Final = PATIENCE_SECONDS


class TopicFactory:
    """Creates topics on one cluster, and deletes what it created when the `with` block ends."""

    def __init__(self, cluster: ReachableCluster) -> None:
        self.cluster = cluster
        self.admin: Any = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        self._created: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._created:
            answers = self.admin.delete_topics(
                self._created, operation_timeout=ANSWER_SECONDS, request_timeout=ANSWER_SECONDS
            )
            # A client whose own thread collects it as garbage ends the process (librdkafka's assertion), so
            # none may be left alone with an answer under way.
            wait(answers.values())

    def __call__(
        self,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        *,
        prefix: str = "topic",
        name: str | None = None,
    ) -> str:
        """A new topic; a `name` was of this test alone before, as that of a topic that is made anew."""
        name = name or unique_name(prefix)
        answers = self.admin.create_topics(
            [NewTopic(name, partitions, 1, config=dict(config or {}))],
            operation_timeout=ANSWER_SECONDS,
            request_timeout=ANSWER_SECONDS,
        )
        answers[name].result(ANSWER_SECONDS)
        self._created.append(name)
        if is_reference(self.cluster):
            # Apache Kafka says "created" before its brokers know. Ours must not, so it gets no such help.
            wait_until(lambda: all(self._is_led(name, n) for n in range(partitions)), f"{name} has leaders")
        return name

    def grow(self, topic: str, partitions: int) -> None:
        """Gives a topic so many partitions. Every broker knows them when this returns: the answer of one says
        nothing about the views of the others, and a client may ask any.
        """
        # With its own limit, librdkafka lets the broker answer before the new partitions are led.
        answers = self.admin.create_partitions(
            [NewPartitions(topic, partitions)],
            operation_timeout=ANSWER_SECONDS,
            request_timeout=ANSWER_SECONDS,
        )
        answers[topic].result(ANSWER_SECONDS)
        wait_until(
            lambda: all(self._led_at(one, topic) == partitions for one in self.cluster.brokers.values()),
            f"all brokers know {partitions} partitions of {topic}",
        )

    def _led_at(self, address: str, topic: str) -> int:
        """How many partitions of a topic have a leader, as the broker at `address` says."""
        with Connection(address) as connection:
            answer = connection.ask("metadata", 4, topics=[{"name": topic}], allow_auto_topic_creation=False)
        return sum(partition.error_code == ErrorCode.none for partition in answer.topics[0].partitions)

    def _is_led(self, topic: str, partition: int) -> bool:
        with Connection(self.cluster.brokers[1]) as connection:
            return bool(list_offset(connection, topic, partition, -1).error_code == ErrorCode.none)

    def leader_address(self, topic: str, partition: int = 0) -> str:
        """`host:port` of the broker that leads a partition."""
        metadata = self.admin.list_topics(topic, timeout=ANSWER_SECONDS)
        broker = metadata.brokers[metadata.topics[topic].partitions[partition].leader]
        return f"{broker.host}:{broker.port}"


def unique_name(prefix: str) -> str:
    """The name of a topic, a group, a user or a client that no other test uses: `topic-0123456789ab`."""
    return f"{prefix}-{uuid4().hex[:12]}"
