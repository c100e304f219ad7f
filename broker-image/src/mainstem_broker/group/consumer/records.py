"""The records of consumer groups (KIP-848) in `__consumer_offsets`, in Kafka's own format.

Belongs here: bytes to values and back. What the values mean for a group belongs to `group.py`.

Keys are an int16 version, which is the kind of record, and strings. Values begin with an int16 version, 0,
and are flexible (`coordinator/record_primitives.py`); a null value (tombstone) deletes the key's entry.
Partitions are an array of {topic id uuid, numbers array of int32}; a question mark means nullable.

    3   group         epoch int32, [tag 0: hash of the subscribed topics' metadata int64]
    5   group member  instance id string?, rack string?, client id string, client host string, topics array
                      of strings, regular expression string?, rebalance timeout int32 ms, assignor string?,
                      [tag 0: of a member of the classic protocol: session timeout int32 ms, protocols
                      array of {name string, metadata bytes}]
    6   group         assignment epoch int32
    7   group member  target partitions
    8   group member  epoch int32, previous epoch int32, state int8, assigned partitions, partitions pending
                      revocation
    16  group regular expression
                      topics array of strings, version int64, time int64 ms

Keys 4 and 16 are ignored when read, and never written. Key 4 (metadata of the subscribed topics) is of Apache
Kafka 4.0, and was replaced by the hash. Key 16 caches what an expression matches, which is computed anew.

Source: Apache Kafka 4.1's `ConsumerGroup*Key/Value.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from typing import Final, Protocol
from uuid import UUID

from mainstem_broker.coordinator.record_primitives import (
    INT16,
    INT32,
    INT64,
    Reader,
    compact_array,
    compact_bytes,
    compact_string,
    string,
    tagged_fields,
)
from mainstem_broker.protocol.topic_partition import TopicIdPartition

GROUP_KEY: Final = 3
MEMBER_KEY: Final = 5
TARGET_EPOCH_KEY: Final = 6
TARGET_KEY: Final = 7
CURRENT_KEY: Final = 8

_VERSION: Final = b"\0\0"

Partitions = frozenset[TopicIdPartition]


class MemberState(IntEnum):
    """How far a member has come towards its target assignment; the numbers are those of the records."""

    STABLE = 1
    UNREVOKED_PARTITIONS = 2
    UNRELEASED_PARTITIONS = 3


@dataclass(frozen=True, slots=True)
class ConsumerGroupKey:
    """The key of a record; `member_id` is empty if the record is about the whole group."""

    kind: int
    group_id: str
    member_id: str = ""

    def encode(self) -> bytes:
        member = string(self.member_id) if self.kind in (MEMBER_KEY, TARGET_KEY, CURRENT_KEY) else b""
        return INT16.pack(self.kind) + string(self.group_id) + member


class ConsumerGroupValue(Protocol):
    """Any of the values below."""

    def encode(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class GroupEpoch:
    """`metadata_hash`: see `ConsumerGroup.metadata_hash`; 0 for unknown."""

    epoch: int
    metadata_hash: int = 0

    def encode(self) -> bytes:
        tags = [(0, INT64.pack(self.metadata_hash))] if self.metadata_hash else []
        return _VERSION + INT32.pack(self.epoch) + tagged_fields(tags)

    @classmethod
    def decode(cls, value: bytes) -> GroupEpoch:
        reader = _reader(value)
        epoch = reader.int32()
        hash_bytes = reader.tagged_fields().get(0)
        return cls(epoch, 0 if hash_bytes is None else Reader(hash_bytes).int64())


@dataclass(frozen=True, slots=True)
class ClassicProtocols:
    """The JoinGroup of a member of the classic protocol (KIP-848, "Online upgrade")."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class ConsumerMemberMetadata:
    """What a member reports of itself; timeouts in ms. `classic` is of members of the classic protocol."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    topic_regex: str | None
    rebalance_timeout_ms: int
    assignor: str | None
    classic: ClassicProtocols | None = None

    @property
    def assigned_by(self) -> tuple[tuple[str, ...], str | None, str | None]:
        """What the group's target assignment depends on."""
        return self.topics, self.topic_regex, self.assignor

    def encode(self) -> bytes:
        tags = []
        if self.classic is not None:
            protocols = [
                compact_string(name) + compact_bytes(metadata) + tagged_fields()
                for name, metadata in self.classic.protocols
            ]
            content = INT32.pack(self.classic.session_timeout_ms) + compact_array(protocols) + tagged_fields()
            # A structure that may be null begins with a byte that says whether it is; null is -1.
            tags.append((0, b"\1" + content))
        return b"".join(
            (
                _VERSION,
                compact_string(self.instance_id),
                compact_string(self.rack_id),
                compact_string(self.client_id),
                compact_string(self.client_host),
                compact_array([compact_string(topic) for topic in self.topics]),
                compact_string(self.topic_regex),
                INT32.pack(self.rebalance_timeout_ms),
                compact_string(self.assignor),
                tagged_fields(tags),
            )
        )

    @classmethod
    def decode(cls, value: bytes) -> ConsumerMemberMetadata:
        reader = _reader(value)
        instance_id, rack_id = reader.nullable_string(), reader.nullable_string()
        client_id, client_host = reader.string(), reader.string()
        topics = tuple(reader.string() for _ in range(reader.count()))
        topic_regex, rebalance_timeout_ms = reader.nullable_string(), reader.int32()
        assignor = reader.nullable_string()
        classic_bytes = reader.tagged_fields().get(0)
        classic = None if classic_bytes is None else _read_classic(classic_bytes)
        return cls(
            instance_id,
            rack_id,
            client_id,
            client_host,
            topics,
            topic_regex,
            rebalance_timeout_ms,
            assignor,
            classic,
        )


def _read_classic(content: bytes) -> ClassicProtocols | None:
    reader = Reader(content, flexible=True)
    if reader.int8() < 0:
        return None
    session_timeout_ms = reader.int32()
    protocols = []
    for _ in range(reader.count()):
        protocols.append((reader.string(), reader.byte_string()))
        reader.tagged_fields()
    return ClassicProtocols(session_timeout_ms, tuple(protocols))


@dataclass(frozen=True, slots=True)
class TargetEpoch:
    """The group epoch that the target assignments were computed for."""

    epoch: int

    def encode(self) -> bytes:
        return _VERSION + INT32.pack(self.epoch) + tagged_fields()

    @classmethod
    def decode(cls, value: bytes) -> TargetEpoch:
        return cls(_reader(value).int32())


@dataclass(frozen=True, slots=True)
class TargetAssignment:
    """The partitions that a member is to have."""

    partitions: Partitions

    def encode(self) -> bytes:
        return _VERSION + _encode_partitions(self.partitions) + tagged_fields()

    @classmethod
    def decode(cls, value: bytes) -> TargetAssignment:
        return cls(_read_partitions(_reader(value)))


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """The partitions that a member has, and its epoch; changed by the steps of `reconciliation.py`.

    - `epoch`: the member epoch, which the next heartbeat has to contain.
    - `previous_epoch`: accepted instead, while the answer with `epoch` may have been lost.
    - `assigned`: what the member may read.
    - `revoking`: what it has to give up; it may be reading that until it reports otherwise.
    """

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Partitions = frozenset()
    revoking: Partitions = frozenset()

    @property
    def held(self) -> Partitions:
        """The partitions that no other member may have."""
        return self.assigned | self.revoking

    def encode(self) -> bytes:
        return b"".join(
            (
                _VERSION,
                INT32.pack(self.epoch),
                INT32.pack(self.previous_epoch),
                bytes((self.state,)),
                _encode_partitions(self.assigned),
                _encode_partitions(self.revoking),
                tagged_fields(),
            )
        )

    @classmethod
    def decode(cls, value: bytes) -> CurrentAssignment:
        reader = _reader(value)
        epoch, previous_epoch, state = reader.int32(), reader.int32(), reader.int8()
        return cls(
            epoch, previous_epoch, MemberState(state), _read_partitions(reader), _read_partitions(reader)
        )


def decode_value(key: ConsumerGroupKey, value: bytes) -> ConsumerGroupValue:
    """The value of a record with this key.

    Raises:
        ValueError: the bytes are not such a value, or of an unknown version.
    """
    decode = _DECODERS.get(key.kind)
    if decode is None:
        raise ValueError(f"there are no values for keys of version {key.kind}")
    return decode(value)


_DECODERS: Final[Mapping[int, Callable[[bytes], ConsumerGroupValue]]] = {
    GROUP_KEY: GroupEpoch.decode,
    MEMBER_KEY: ConsumerMemberMetadata.decode,
    TARGET_EPOCH_KEY: TargetEpoch.decode,
    TARGET_KEY: TargetAssignment.decode,
    CURRENT_KEY: CurrentAssignment.decode,
}


def by_topic(partitions: Iterable[TopicIdPartition]) -> list[tuple[UUID, list[int]]]:
    """Each topic id with the numbers of its partitions, both in order."""
    return [
        (topic_id, [number for _, number in members])
        for topic_id, members in groupby(sorted(partitions, key=_order), key=lambda partition: partition[0])
    ]


def _order(partition: TopicIdPartition) -> tuple[int, int]:
    """A sort key: integers, because UUIDs are slow to compare."""
    topic_id, number = partition
    return topic_id.int, number


def _reader(value: bytes) -> Reader:
    reader = Reader(value)
    reader.version(0, flexible_from=0)
    return reader


def _encode_partitions(partitions: Partitions) -> bytes:
    return compact_array(
        [
            topic_id.bytes + compact_array([INT32.pack(number) for number in numbers]) + tagged_fields()
            for topic_id, numbers in by_topic(partitions)
        ]
    )


def _read_partitions(reader: Reader) -> Partitions:
    partitions: set[TopicIdPartition] = set()
    for _ in range(reader.count()):
        topic_id = reader.uuid()
        partitions.update((topic_id, reader.int32()) for _ in range(reader.count()))
        reader.tagged_fields()
    return frozenset(partitions)
