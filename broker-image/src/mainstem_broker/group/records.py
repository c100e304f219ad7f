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

import struct
from dataclasses import dataclass
from typing import Final
from uuid import UUID

TOPIC_ID_HEADER: Final = "topic.id"
"""16 bytes; on records of committed offsets."""

_OFFSET_KEY_VERSIONS: Final = (0, 1)
_GROUP_KEY_VERSION: Final = 2
_VALUE_VERSION: Final = 3
_VALUE_VERSION_WITH_EXPIRY: Final = 1
_FLEXIBLE_VERSION: Final = 4

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class OffsetKey:
    """Names the offset that a group committed for one partition."""

    group_id: str
    topic: str
    partition: int

    def encode(self) -> bytes:
        return b"".join(
            (
                _INT16.pack(_OFFSET_KEY_VERSIONS[-1]),
                _string(self.group_id),
                _string(self.topic),
                _INT32.pack(self.partition),
            )
        )


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Names a group's own state."""

    group_id: str

    def encode(self) -> bytes:
        return _INT16.pack(_GROUP_KEY_VERSION) + _string(self.group_id)


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
        parts = [_INT16.pack(version), _INT64.pack(self.offset)]
        if version == _VALUE_VERSION:
            parts.append(_INT32.pack(self.leader_epoch))
        parts += (_string(self.metadata), _INT64.pack(self.commit_ms))
        if self.expire_ms is not None:
            parts.append(_INT64.pack(self.expire_ms))
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
        reader = _Reader(value)
        version = reader.version(_FLEXIBLE_VERSION)
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
            _INT16.pack(_VALUE_VERSION),
            _string(self.protocol_type),
            _INT32.pack(self.generation),
            _string(self.protocol),
            _string(self.leader),
            _INT64.pack(self.state_ms),
            _INT32.pack(len(self.members)),
        ]
        for member in self.members:
            parts += (
                _string(member.member_id),
                _string(member.instance_id),
                _string(member.client_id),
                _string(member.client_host),
                _INT32.pack(member.rebalance_timeout_ms),
                _INT32.pack(member.session_timeout_ms),
                _bytes(member.subscription),
                _bytes(member.assignment),
            )
        return b"".join(parts)

    @classmethod
    def decode(cls, value: bytes) -> GroupMetadata:
        """The value of a group record.

        Raises:
            ValueError: as `CommittedOffset.decode`.
        """
        reader = _Reader(value)
        version = reader.version(_FLEXIBLE_VERSION)
        protocol_type = reader.string()
        generation = reader.int32()
        protocol, leader = reader.nullable_string(), reader.nullable_string()
        state_ms = reader.int64() if version >= 2 else -1
        members = tuple(_read_member(reader, version) for _ in range(reader.count()))
        reader.tagged_fields()
        return cls(protocol_type, generation, protocol, leader, state_ms, members)


def _read_member(reader: _Reader, version: int) -> MemberMetadata:
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


def decode_key(key: bytes) -> OffsetKey | GroupKey | None:
    """What a record is about; None for kinds that newer programs write.

    Raises:
        ValueError: the bytes are no key.
    """
    reader = _Reader(key)
    version = reader.int16()
    if version in _OFFSET_KEY_VERSIONS:
        return OffsetKey(reader.string(), reader.string(), reader.int32())
    if version == _GROUP_KEY_VERSION:
        return GroupKey(reader.string())
    return None


def _string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    encoded = text.encode()
    return _INT16.pack(len(encoded)) + encoded


def _bytes(data: bytes) -> bytes:
    return _INT32.pack(len(data)) + data


class _Reader:
    """Reads primitive types one after another; every failure is a ValueError."""

    __slots__ = ("_data", "_flexible", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._flexible = False

    def version(self, highest: int) -> int:
        version = self.int16()
        if not 0 <= version <= highest:
            raise ValueError(f"version {version} is not between 0 and {highest}")
        self._flexible = version >= _FLEXIBLE_VERSION
        return version

    def int16(self) -> int:
        return int(_INT16.unpack(self._take(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self._take(4))[0])

    def int64(self) -> int:
        return int(_INT64.unpack(self._take(8))[0])

    def count(self) -> int:
        count = self._varint() - 1 if self._flexible else self.int32()
        if not 0 <= count <= len(self._data):
            raise ValueError(f"an array of {count} cannot be in {len(self._data)} bytes")
        return count

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise ValueError("a string that must be there is null")
        return text

    def nullable_string(self) -> str | None:
        length = self._varint() - 1 if self._flexible else self.int16()
        return None if length < 0 else str(self._take(length), "utf-8")

    def byte_string(self) -> bytes:
        return self._take(self._varint() - 1 if self._flexible else self.int32())

    def tagged_fields(self) -> dict[int, bytes]:
        """Tag to content; none in versions that are not flexible."""
        if not self._flexible:
            return {}
        return {self._varint(): self._take(self._varint()) for _ in range(self._varint())}

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise ValueError(f"{length} bytes at {self._position} leave the {len(self._data)} that there are")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def _varint(self) -> int:
        result = shift = 0
        while True:
            (byte,) = self._take(1)
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result
            shift += 7
            if shift > 28:
                raise ValueError("a varint is longer than five bytes")
