"""What the records of an offsets partition amount to: the last word on each group and each offset. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from mainstem_broker.group.offsets import TopicPartition
from mainstem_broker.group.records import (
    TOPIC_ID_HEADER,
    CommittedOffset,
    GroupKey,
    GroupMetadata,
    OffsetKey,
    decode_key,
)
from mainstem_broker.protocol.records import Record


@dataclass(slots=True)
class LoadedGroup:
    """A group as its records tell of it; without `metadata` it only has committed offsets."""

    metadata: GroupMetadata | None = None
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)


class LoadedGroups:
    """Takes records in the order of the log."""

    def __init__(self) -> None:
        self.groups: dict[str, LoadedGroup] = {}
        self.unreadable: list[int] = []
        """Offsets of records that are no such records: a producer can write anything to any topic."""

    def take(self, record: Record) -> None:
        try:
            self._take(record)
        except ValueError:
            self.unreadable.append(record.offset)

    def _take(self, record: Record) -> None:
        key = decode_key(record.key or b"")
        if key is None:
            return
        value = record.value
        if value is None:
            known = self.groups.get(key.group_id)
            if known is None:
                return
            if isinstance(key, GroupKey):
                known.metadata = None
            else:
                known.offsets.pop((key.topic, key.partition), None)
            if known.metadata is None and not known.offsets:
                del self.groups[key.group_id]
        elif isinstance(key, OffsetKey):
            topic_id = next((content for name, content in record.headers if name == TOPIC_ID_HEADER), None)
            offset = CommittedOffset.decode(value, topic_id)
            self._group(key.group_id).offsets[key.topic, key.partition] = offset
        else:
            self._group(key.group_id).metadata = GroupMetadata.decode(value)

    def _group(self, group_id: str) -> LoadedGroup:
        return self.groups.setdefault(group_id, LoadedGroup())
