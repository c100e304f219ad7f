"""What consumers of the classic protocol send each other through the broker: bytes to values and back. Pure.

In a group with members of both protocols the broker assigns partitions, so it reads the subscriptions of
classic members and writes their assignments (KIP-848, "Online upgrade"). Both begin with an int16 version;
versions above 3 begin as 3 does.

    subscription  topics array of strings, user data bytes?, [1+: owned partitions array of {topic string,
                  numbers array of int32}], [2+: generation int32], [3+: rack string?]
    assignment    partitions as above, user data bytes?

Source: Apache Kafka's `ConsumerProtocolSubscription.json` and `ConsumerProtocolAssignment.json`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mainstem_broker.coordinator.record_primitives import INT16, INT32, Reader, string

CONSUMER_PROTOCOL_TYPE: Final = "consumer"

_VERSION_MAX: Final = 3
_NULL: Final = b"\xff\xff\xff\xff"


@dataclass(frozen=True, slots=True)
class Subscription:
    """`owned`: topics and partitions that the member has, of `generation`; -1: it did not send which."""

    version: int
    topics: tuple[str, ...]
    owned: tuple[tuple[str, int], ...] = ()
    generation: int = -1
    rack_id: str | None = None

    @classmethod
    def decode(cls, metadata: bytes) -> Subscription:
        """The metadata of a member's protocol.

        Raises:
            ValueError: the bytes are in another format.
        """
        reader = Reader(metadata)
        version = reader.int16()
        if version < 0:
            raise ValueError(f"version {version} is below 0")
        topics = tuple(reader.string() for _ in range(reader.count()))
        reader.nullable_byte_string()
        owned = _read_partitions(reader) if version >= 1 else ()
        generation = reader.int32() if version >= 2 else -1
        rack_id = reader.nullable_string() if version >= 3 else None
        return cls(version, topics, owned, generation, rack_id)


def encode_assignment(partitions: Iterable[tuple[str, int]], version: int) -> bytes:
    """An assignment for a member whose subscription is of this version."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    parts = [INT16.pack(min(version, _VERSION_MAX)), INT32.pack(len(by_topic))]
    for topic, numbers in by_topic.items():
        parts += (string(topic), INT32.pack(len(numbers)), *map(INT32.pack, numbers))
    return b"".join((*parts, _NULL))


def decode_assignment(assignment: bytes) -> tuple[tuple[str, int], ...]:
    """Topics and partitions; none for an empty assignment, which a member has before its first one.

    Raises:
        ValueError: the bytes are in another format.
    """
    if not assignment:
        return ()
    reader = Reader(assignment)
    reader.int16()
    return _read_partitions(reader)


def _read_partitions(reader: Reader) -> tuple[tuple[str, int], ...]:
    partitions = []
    for _ in range(reader.count()):
        topic = reader.string()
        partitions += [(topic, reader.int32()) for _ in range(reader.count())]
    return tuple(partitions)
