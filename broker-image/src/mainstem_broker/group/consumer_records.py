"""What `__consumer_offsets` holds of groups of the protocol of KIP-848, in Kafka's own format.

Lives here: bytes to values and back. Must not: what the values mean for a group (`consumer_group.py`).

Keys are an int16 version, which tells the kind, and strings; values begin with an int16 version, 0, and are
flexible (`record_primitives.py`). A null value (tombstone) takes the key's entry away. Partitions are an
array of {topic id uuid, numbers array of int32}; a question mark is nullable.

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

Key 4 (metadata of the subscribed topics) is of Apache Kafka 4.0; the hash has taken its place. Like key 16 it
is passed over when read: what an expression matches is found anew. Ours is not written, for the same reason.

Source: Apache Kafka 4.1's `ConsumerGroup*Key/Value.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from typing import Final, Protocol
from uuid import UUID

from mainstem_broker.group.record_primitives import (
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

GROUP_KEY: Final = 3
MEMBER_KEY: Final = 5
TARGET_EPOCH_KEY: Final = 6
TARGET_KEY: Final = 7
CURRENT_KEY: Final = 8

_VERSION: Final = b"\0\0"

Partition = tuple[UUID, int]
"""A partition by its topic's id."""
Partitions = frozenset[Partition]


class MemberState(IntEnum):
    """How far a member is on its way to its target assignment; the numbers are those of the records."""

    STABLE = 1
    UNREVOKED_PARTITIONS = 2
    UNRELEASED_PARTITIONS = 3


@dataclass(frozen=True, slots=True)
class ConsumerGroupKey:
    """What a record is about; `member_id` is empty for what concerns the whole group."""

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
        told = reader.tagged_fields().get(0)
        return cls(epoch, 0 if told is None else Reader(told).int64())


@dataclass(frozen=True, slots=True)
class ClassicProtocols:
    """What a member that speaks the classic protocol said when it joined (KIP-848, online upgrade)."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class ConsumerMemberMetadata:
    """A member as it described itself; timeouts in ms. `classic` is None if it speaks the new protocol."""

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
        """What of a member its group's targets depend on."""
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
        told = reader.tagged_fields().get(0)
        classic = None if told is None else _read_classic(told)
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
    """What a member is to have."""

    partitions: Partitions

    def encode(self) -> bytes:
        return _VERSION + _encode_partitions(self.partitions) + tagged_fields()

    @classmethod
    def decode(cls, value: bytes) -> TargetAssignment:
        return cls(_read_partitions(_reader(value)))


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """What a member has, and in which epoch; see `reconciliation.py` for what moves these.

    - `epoch`: what its next heartbeat has to say.
    - `previous_epoch`: what it may say instead, if it did not hear of the other one.
    - `assigned`: what it may read.
    - `revoking`: what it has to give up, and may still read until it says that it has.
    """

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Partitions = frozenset()
    revoking: Partitions = frozenset()

    @property
    def held(self) -> Partitions:
        """What nobody else may have."""
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
        ValueError: the bytes are no such value, or of a version that does not exist yet.
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


def by_topic(partitions: Iterable[Partition]) -> list[tuple[UUID, list[int]]]:
    """The numbers of each topic's partitions, in order."""
    return [
        (topic_id, [number for _, number in some])
        for topic_id, some in groupby(sorted(partitions, key=_order), key=lambda partition: partition[0])
    ]


def _order(partition: Partition) -> tuple[int, int]:
    """UUIDs themselves are slow to compare."""
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
    found: set[Partition] = set()
    for _ in range(reader.count()):
        topic_id = reader.uuid()
        found.update((topic_id, reader.int32()) for _ in range(reader.count()))
        reader.tagged_fields()
    return frozenset(found)
