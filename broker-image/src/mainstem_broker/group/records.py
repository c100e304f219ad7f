"""What `__consumer_offsets` holds: keys and values in Kafka's own format, so that Kafka's tools read ours.

Belongs here: which kinds of records there are. The format of each is documented where it is read and written:
`offsets/records.py`, `classic/records.py` and `consumer/records.py`.

Every key and value begins with an int16 version; that of a key is the kind of record. Integers are big
endian; a string is an int16 length and UTF-8, an array an int32 count, bytes an int32 length; a length of -1
is null, which a question mark allows. Version 4 of the values of offsets and classic groups is flexible
instead (KIP-482): lengths are unsigned varints, one more than the length, and tagged fields end each
structure. A null value (tombstone) deletes the key's entry.
"""

from __future__ import annotations

from typing import Final

from mainstem_broker.coordinator.record_primitives import Reader
from mainstem_broker.group.classic.records import GROUP_KEY_VERSION, GroupKey
from mainstem_broker.group.consumer.records import (
    CURRENT_KEY,
    GROUP_KEY,
    MEMBER_KEY,
    TARGET_EPOCH_KEY,
    TARGET_KEY,
    ConsumerGroupKey,
)
from mainstem_broker.group.offsets.records import OFFSET_KEY_VERSIONS, OffsetKey

IGNORED_KEYS: Final = frozenset((4, 16))
"""Kinds of consumer groups' records that are known and not read (`consumer/records.py`)."""


def decode_key(key: bytes) -> OffsetKey | GroupKey | ConsumerGroupKey | None:
    """The key of a record; None for kinds that are not read here, or that newer programs write.

    Raises:
        ValueError: the bytes are not a key.
    """
    reader = Reader(key)
    version = reader.int16()
    if version in OFFSET_KEY_VERSIONS:
        return OffsetKey(reader.string(), reader.string(), reader.int32())
    if version == GROUP_KEY_VERSION:
        return GroupKey(reader.string())
    if version in (GROUP_KEY, TARGET_EPOCH_KEY):
        return ConsumerGroupKey(version, reader.string())
    if version in (MEMBER_KEY, TARGET_KEY, CURRENT_KEY):
        return ConsumerGroupKey(version, reader.string(), reader.string())
    return None
