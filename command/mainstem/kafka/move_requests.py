"""Moves of replicas as requests of the Kafka protocol and what is answered: values, and nothing that sends.

kio is loaded when a request is built: the command starts without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mainstem.kafka.raw_request import reason_of
from mainstem.kafka.reassignment_plan import Replicas, TopicPartition


@dataclass(frozen=True, slots=True)
class Move:
    """A partition whose replicas are being moved; `adding` and `removing` are among `replicas`."""

    topic: str
    partition: int
    replicas: Replicas
    adding: Replicas
    removing: Replicas

    @property
    def origin(self) -> Replicas:
        return tuple(broker for broker in self.replicas if broker not in self.adding)

    @property
    def target(self) -> Replicas:
        return tuple(broker for broker in self.replicas if broker not in self.removing)


def list_request(timeout_seconds: float) -> Any:
    """Which moves are under way? (ListPartitionReassignments)"""
    import datetime as dt

    from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest
    from kio.static.primitive import i32Timedelta

    timeout = i32Timedelta.parse(dt.timedelta(seconds=timeout_seconds))
    return ListPartitionReassignmentsRequest(timeout=timeout, topics=None)


def moves_in(answer: Any) -> dict[TopicPartition, Move]:
    """The moves in the answer to `list_request`."""
    return {
        (topic.name, partition.partition_index): Move(
            topic.name,
            partition.partition_index,
            tuple(partition.replicas),
            tuple(partition.adding_replicas),
            tuple(partition.removing_replicas),
        )
        for topic in answer.topics
        for partition in topic.partitions
    }


def alter_request(targets: Mapping[TopicPartition, Replicas | None], timeout_seconds: float) -> Any:
    """Move to these replicas, or, with None, take a move back. (AlterPartitionReassignments)"""
    import datetime as dt

    from kio.schema.alter_partition_reassignments.v0.request import (
        AlterPartitionReassignmentsRequest,
        ReassignablePartition,
        ReassignableTopic,
    )
    from kio.static.primitive import i32, i32Timedelta

    topics = {
        name: tuple(
            ReassignablePartition(partition_index=i32(partition), replicas=replicas)
            for (topic, partition), replicas in targets.items()
            if topic == name
        )
        for name in {topic for topic, _ in targets}
    }
    return AlterPartitionReassignmentsRequest(
        timeout=i32Timedelta.parse(dt.timedelta(seconds=timeout_seconds)),
        topics=tuple(ReassignableTopic(name=name, partitions=parts) for name, parts in topics.items()),
    )


def refusals_in(answer: Any) -> dict[TopicPartition, str]:
    """Which moves the answer to `alter_request` refuses, and why."""
    return {
        (topic.name, partition.partition_index): reason_of(partition)
        for topic in answer.responses
        for partition in topic.partitions
        if partition.error_code.value != 0
    }
