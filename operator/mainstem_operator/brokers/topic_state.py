"""Topics and groups as the brokers tell them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TopicPartition = tuple[str, int]
Replicas = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PartitionState:
    """`leader` is None while there is none."""

    leader: int | None
    replicas: Replicas
    in_sync: frozenset[int]


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic in this life of it: `topic_id` is another one when it was deleted and made again."""

    name: str
    topic_id: str
    partitions: Mapping[int, PartitionState]

    @property
    def replication_factor(self) -> int:
        return min((len(partition.replicas) for partition in self.partitions.values()), default=0)

    @property
    def under_replicated(self) -> int:
        return sum(len(item.in_sync) < len(item.replicas) for item in self.partitions.values())

    @property
    def offline(self) -> int:
        return sum(item.leader is None for item in self.partitions.values())


@dataclass(frozen=True, slots=True)
class MoveState:
    """A partition whose replicas are being moved, to `target`; `involved` are those that come and that go."""

    target: Replicas
    involved: frozenset[int]

    @property
    def adding(self) -> frozenset[int]:
        return self.involved & frozenset(self.target)

    @property
    def removing(self) -> frozenset[int]:
        return self.involved - frozenset(self.target)

    @property
    def origin(self) -> frozenset[int]:
        """Who has the data."""
        return (self.involved | frozenset(self.target)) - self.adding


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group as its coordinator reports it.

    `state` is Kafka's word in upper case. `metadata` is what the group has, by partition, for the topic in
    which its coordinator keeps offsets: the record of completed resets (`groups/reset_record.py`).
    """

    group: str
    state: str
    members: int
    committed: Mapping[TopicPartition, int]
    metadata: Mapping[int, str] = field(default_factory=dict)
