"""The record of a classic group in `__consumer_offsets`, in Kafka's own format: bytes to values and back.

    key    2      group string
    value  0..4   protocol type string, generation int32, protocol string?, leader string?,
                  [2+: time of the last change of state int64 ms], members array of:
                    member id string, [3+: instance id string?], client id string, client host string,
                    [1+: rebalance timeout int32 ms], session timeout int32 ms, subscription bytes,
                    assignment bytes

What the primitive types are, and which versions are flexible: `group/records.py`. Written are values of
version 3.

Source: Apache Kafka's `GroupMetadataKey/Value.json`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mainstem_broker.coordinator.record_primitives import INT16, INT32, INT64, Reader, byte_string, string

GROUP_KEY_VERSION: Final = 2
_VALUE_VERSION: Final = 3
_VALUE_VERSION_FLEXIBLE: Final = 4


@dataclass(frozen=True, slots=True)
class GroupKey:
    """The key of a group's own record."""

    group_id: str

    def encode(self) -> bytes:
        return INT16.pack(GROUP_KEY_VERSION) + string(self.group_id)


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """A member in its group's record; timeouts in ms."""

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
    """A group at the end of its last rebalance: stable with these members, or empty without any.

    `state_ms` is when that was, by the time of day. `protocol` and `leader` are None if it is empty.
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
            ValueError: the bytes are not such a value, or of an unknown version.
        """
        reader = Reader(value)
        version = reader.version(_VALUE_VERSION_FLEXIBLE, _VALUE_VERSION_FLEXIBLE)
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
