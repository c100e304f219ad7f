"""The records of committed offsets in `__consumer_offsets`, in Kafka's own format: bytes to values and back.

    key    0, 1   group string, topic string, partition int32
    value  0..4   offset int64, [3+: leader epoch int32], metadata string, commit time int64 ms,
                  [1 only: expiry time int64 ms]

What the primitive types are, and which versions are flexible: `group/records.py`. Written are keys of version
1 and values of version 3; a value with an expiry time of its own is of version 1, as in Kafka. Apache Kafka
keeps the topic's id in a tagged field of version 4, which programs that read this topic from outside do not
know. Ours is a record header, `TOPIC_ID_HEADER`, which they skip. That of Apache Kafka is not read: a topic
that was moved here from another cluster has an id of ours.

Source: Apache Kafka's `OffsetCommitKey/Value.json`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from mainstem_broker.coordinator.record_primitives import INT16, INT32, INT64, Reader, string

TOPIC_ID_HEADER: Final = "topic.id"
"""16 bytes; on records of committed offsets."""

OFFSET_KEY_VERSIONS: Final = (0, 1)
_VALUE_VERSION: Final = 3
_VALUE_VERSION_WITH_EXPIRY: Final = 1
_VALUE_VERSION_FLEXIBLE: Final = 4


@dataclass(frozen=True, slots=True)
class OffsetKey:
    """The key of the offset that a group committed for one partition."""

    group_id: str
    topic: str
    partition: int

    def encode(self) -> bytes:
        return b"".join(
            (
                INT16.pack(OFFSET_KEY_VERSIONS[-1]),
                string(self.group_id),
                string(self.topic),
                INT32.pack(self.partition),
            )
        )


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """How far a group has read one partition: `offset` is the next one to be read.

    - `leader_epoch`: of the last record read; -1 if the client did not send it (KIP-320).
    - `metadata`: any text of the client.
    - `commit_ms`: when it was committed, by the coordinator's clock.
    - `expire_ms`: when it expires, if the client requested that; None: after offsets.retention.minutes.
    - `topic_id`: of the topic that it was committed for; None in records that other brokers wrote.
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
        """The headers of the record."""
        return () if self.topic_id is None else ((TOPIC_ID_HEADER, self.topic_id.bytes),)

    @classmethod
    def decode(cls, value: bytes, topic_id: bytes | None = None) -> CommittedOffset:
        """The value of an offset record; `topic_id` is the content of its header, if it has one.

        Raises:
            ValueError: the bytes are not such a value, or of an unknown version.
        """
        reader = Reader(value)
        version = reader.version(_VALUE_VERSION_FLEXIBLE, _VALUE_VERSION_FLEXIBLE)
        offset = reader.int64()
        leader_epoch = reader.int32() if version >= 3 else -1
        metadata = reader.string()
        commit_ms = reader.int64()
        expire_ms = reader.int64() if version == _VALUE_VERSION_WITH_EXPIRY else -1
        reader.tagged_fields()
        return cls(
            offset,
            leader_epoch,
            metadata,
            commit_ms,
            expire_ms if expire_ms >= 0 else None,
            None if topic_id is None or len(topic_id) != 16 else UUID(bytes=topic_id),
        )
