"""What `__consumer_offsets` holds: keys and values in Kafka's own format, so that Kafka's tools read ours.

Lives here: bytes to values and back. Must not: what the values mean for a group.

Every key and value begins with an int16 version. Integers are big endian; a string is an int16 length and
UTF-8, an array an int32 count, bytes an int32 length; a length of -1 is null. Version 4 of the values is
flexible instead (KIP-482): lengths are unsigned varints, one more than the length, and tagged fields end
each structure. A null value (tombstone) takes the key's entry away.

    offset key    0, 1   group string, topic string, partition int32
    offset value  0..4   offset int64, [3+: leader epoch int32], metadata string, commit time int64 ms,
                         [1 only: expiry time int64 ms]
    group key     2      group string
    group value   0..4   protocol type string, generation int32, protocol string?, leader string?,
                         [2+: time of the last change of state int64 ms], members array of:
                           member id string, [3+: instance id string?], client id string, client host string,
                           [1+: rebalance timeout int32 ms], session timeout int32 ms, subscription bytes,
                           assignment bytes

Written are keys of version 1 and 2 and values of version 3; an offset value with an expiry time of its own is
of version 1, as in Kafka. Apache Kafka keeps the topic's id in a tagged field of version 4, which programs
that read this topic from outside do not know. Ours is a record header, `TOPIC_ID_HEADER`: they skip it.

Source: Apache Kafka's `OffsetCommitKey/Value.json` and `GroupMetadataKey/Value.json`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from mainstem_broker.group import consumer_records
from mainstem_broker.group.consumer_records import ConsumerGroupKey
from mainstem_broker.group.record_primitives import INT16, INT32, INT64, Reader, byte_string, string

TOPIC_ID_HEADER: Final = "topic.id"
"""16 bytes; on records of committed offsets."""

_OFFSET_KEY_VERSIONS: Final = (0, 1)
_GROUP_KEY_VERSION: Final = 2
_VALUE_VERSION: Final = 3
_VALUE_VERSION_WITH_EXPIRY: Final = 1
FLEXIBLE_VALUE_VERSION: Final = 4


@dataclass(frozen=True, slots=True)
class OffsetKey:
    """Names the offset that a group committed for one partition."""

    group_id: str
    topic: str
    partition: int

    def encode(self) -> bytes:
        return b"".join(
            (
                INT16.pack(_OFFSET_KEY_VERSIONS[-1]),
                string(self.group_id),
                string(self.topic),
                INT32.pack(self.partition),
            )
        )


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Names a group's own state."""

    group_id: str

    def encode(self) -> bytes:
        return INT16.pack(_GROUP_KEY_VERSION) + string(self.group_id)


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """How far a group has read one partition: `offset` is the next to be read.

    - `leader_epoch`: of the last record read, -1 if the client did not say (KIP-320).
    - `commit_ms`: when it was committed, by the coordinator's clock.
    - `expire_ms`: when it is to be forgotten, where the client asked for that; None: offsets.retention.
    - `topic_id`: of the topic that it was committed for; None in records that others wrote.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int | None = None
    topic_id: UUID | None = None

    def encode(self) -> bytes:
        version = _VALUE_VERSION if self.expire_ms is None else _VALUE_VERSION_WITH_EXPIRY
        parts = [INT16.pack(version), INT64.pack(self.offset)]
        if version == _VALUE_VERSION:
            parts.append(INT32.pack(self.leader_epoch))
        parts += (string(self.metadata), INT64.pack(self.commit_ms))
        if self.expire_ms is not None:
            parts.append(INT64.pack(self.expire_ms))
        return b"".join(parts)

    @property
    def headers(self) -> tuple[tuple[str, bytes], ...]:
        """Those of the record."""
        return () if self.topic_id is None else ((TOPIC_ID_HEADER, self.topic_id.bytes),)

    @classmethod
    def decode(cls, value: bytes, topic_id: bytes | None = None) -> CommittedOffset:
        """The value of an offset record; `topic_id` is its header's, if it has one.

        Raises:
            ValueError: the bytes are no such value, or of a version that does not exist yet.
        """
        reader = Reader(value)
        version = reader.version(FLEXIBLE_VALUE_VERSION, FLEXIBLE_VALUE_VERSION)
        offset = reader.int64()
        leader_epoch = reader.int32() if version >= 3 else -1
        metadata = reader.string()
        commit_ms = reader.int64()
        expire_ms = reader.int64() if version == _VALUE_VERSION_WITH_EXPIRY else -1
        tagged = reader.tagged_fields()
        identity = topic_id if topic_id is not None else tagged.get(0)
        return cls(
            offset,
            leader_epoch,
            metadata,
            commit_ms,
            expire_ms if expire_ms >= 0 else None,
            None if identity is None or len(identity) != 16 else UUID(bytes=identity),
        )


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """A member as its group's record tells of it; timeouts in ms."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A group in its last lasting state: stable with these members, or empty without any.

    `state_ms` is when it came to that, by the wall's clock. `protocol` and `leader` are null when empty.
    """

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_ms: int
    members: tuple[MemberMetadata, ...] = ()

    def encode(self) -> bytes:
        parts = [
            INT16.pack(_VALUE_VERSION),
            string(self.protocol_type),
            INT32.pack(self.generation),
            string(self.protocol),
            string(self.leader),
            INT64.pack(self.state_ms),
            INT32.pack(len(self.members)),
        ]
        for member in self.members:
            parts += (
                string(member.member_id),
                string(member.instance_id),
                string(member.client_id),
                string(member.client_host),
                INT32.pack(member.rebalance_timeout_ms),
                INT32.pack(member.session_timeout_ms),
                byte_string(member.subscription),
                byte_string(member.assignment),
            )
        return b"".join(parts)

    @classmethod
    def decode(cls, value: bytes) -> GroupMetadata:
        """The value of a group record.

        Raises:
            ValueError: as `CommittedOffset.decode`.
        """
        reader = Reader(value)
        version = reader.version(FLEXIBLE_VALUE_VERSION, FLEXIBLE_VALUE_VERSION)
        protocol_type = reader.string()
        generation = reader.int32()
        protocol, leader = reader.nullable_string(), reader.nullable_string()
        state_ms = reader.int64() if version >= 2 else -1
        members = tuple(_read_member(reader, version) for _ in range(reader.count()))
        reader.tagged_fields()
        return cls(protocol_type, generation, protocol, leader, state_ms, members)


def _read_member(reader: Reader, version: int) -> MemberMetadata:
    member_id = reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout_ms = reader.int32() if version >= 1 else -1
    session_timeout_ms = reader.int32()
    subscription, assignment = reader.byte_string(), reader.byte_string()
    reader.tagged_fields()
    return MemberMetadata(
        member_id,
        instance_id,
        client_id,
        client_host,
        # Version 0 is from before there were two timeouts.
        rebalance_timeout_ms if version >= 1 else session_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    )


def decode_key(key: bytes) -> OffsetKey | GroupKey | ConsumerGroupKey | None:
    """What a record is about; None for kinds that are not read here, or that newer programs write.

    Raises:
        ValueError: the bytes are no key.
    """
    reader = Reader(key)
    version = reader.int16()
    if version in _OFFSET_KEY_VERSIONS:
        return OffsetKey(reader.string(), reader.string(), reader.int32())
    if version == _GROUP_KEY_VERSION:
        return GroupKey(reader.string())
    if version in (consumer_records.GROUP_KEY, consumer_records.TARGET_EPOCH_KEY):
        return ConsumerGroupKey(version, reader.string())
    if version in (consumer_records.MEMBER_KEY, consumer_records.TARGET_KEY, consumer_records.CURRENT_KEY):
        return ConsumerGroupKey(version, reader.string(), reader.string())
    return None
