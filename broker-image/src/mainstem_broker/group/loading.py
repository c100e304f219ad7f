"""What the records of an offsets partition amount to: the last word on each group and each offset. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from mainstem_broker.group.consumer_records import ConsumerGroupKey, ConsumerGroupValue, decode_value
from mainstem_broker.group.offsets import TopicPartition
from mainstem_broker.group.records import (
    TOPIC_ID_HEADER,
    CommittedOffset,
    GroupMetadata,
    OffsetKey,
    decode_key,
)
from mainstem_broker.protocol.records import Record


@dataclass(slots=True)
class LoadedGroup:
    """A group as its records tell of it: classic with `metadata`, of KIP-848 with `consumer_records`.

    With neither it only has committed offsets. With both, a change from one kind to the other was cut short.
    """

    metadata: GroupMetadata | None = None
    consumer_records: dict[ConsumerGroupKey, ConsumerGroupValue] = field(default_factory=dict)
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)


class LoadedGroups:
    """Takes records in the order of the log; `decode` tells what they say in the end.

    Only the last record of each key is decoded: a log that waits for compaction has many of each.
    """

    def __init__(self) -> None:
        self.unreadable: list[int] = []
        """Offsets of records that are no such records: a producer can write anything to any topic."""
        self._last: dict[bytes, Record] = {}

    def take(self, record: Record) -> None:
        key = record.key or b""
        # Taken out first, so that the order stays that of the last records.
        self._last.pop(key, None)
        if record.value is not None:
            self._last[key] = record

    def decode(self) -> dict[str, LoadedGroup]:
        groups: dict[str, LoadedGroup] = {}
        for record in self._last.values():
            try:
                _decode(record, groups)
            except ValueError:
                self.unreadable.append(record.offset)
        return groups


def _decode(record: Record, groups: dict[str, LoadedGroup]) -> None:
    key = decode_key(record.key or b"")
    value = record.value
    if key is None or value is None:
        return
    if isinstance(key, OffsetKey):
        topic_id = next((content for name, content in record.headers if name == TOPIC_ID_HEADER), None)
        offset = CommittedOffset.decode(value, topic_id)
        groups.setdefault(key.group_id, LoadedGroup()).offsets[key.topic, key.partition] = offset
    elif isinstance(key, ConsumerGroupKey):
        told = decode_value(key, value)
        groups.setdefault(key.group_id, LoadedGroup()).consumer_records[key] = told
    else:
        metadata = GroupMetadata.decode(value)
        groups.setdefault(key.group_id, LoadedGroup()).metadata = metadata
