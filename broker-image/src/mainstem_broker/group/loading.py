"""What the records of an offsets partition amount to: the last record of each group and each offset. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mainstem_broker.coordinator.record_primitives import Reader
from mainstem_broker.errors import NewerFormat
from mainstem_broker.group.classic.records import GroupMetadata
from mainstem_broker.group.consumer.records import ConsumerGroupKey, ConsumerGroupValue, decode_value
from mainstem_broker.group.offsets.pending_offsets import PendingOffset
from mainstem_broker.group.offsets.records import TOPIC_ID_HEADER, CommittedOffset, OffsetKey
from mainstem_broker.group.records import IGNORED_KEYS, decode_key
from mainstem_broker.protocol.records import Record
from mainstem_broker.protocol.topic_partition import TopicPartition


@dataclass(slots=True)
class LoadedGroup:
    """A group as its records describe it: a classic one has `metadata`, a consumer group `consumer_records`.

    With neither it only has committed offsets. With both, a change of kind was interrupted. `offsets` are
    given with the offsets of their records. `changed_ms` is when the last of `consumer_records` was written,
    -1 without any.
    """

    metadata: GroupMetadata | None = None
    consumer_records: dict[ConsumerGroupKey, ConsumerGroupValue] = field(default_factory=dict)
    offsets: dict[TopicPartition, tuple[CommittedOffset, int]] = field(default_factory=dict)
    changed_ms: int = -1


class LoadedGroups:
    """Takes records in the order of the log; `decode` returns the groups at its end.

    Only the last record of each key is decoded: a log that waits for compaction has many of each.
    """

    def __init__(self) -> None:
        self.unreadable: list[int] = []
        """Offsets of records in another format: a producer can write anything to any topic."""
        self.unknown_kinds: set[int] = set()
        """Versions of keys that this broker does not know. As in Kafka, such records are left alone: nothing
        that this broker serves depends on them, and compaction keeps them for programs that know them."""
        self._last: dict[bytes, Record] = {}
        # By producer id: what its open transaction has committed.
        self._pending: dict[int, dict[bytes, Record]] = {}

    def take_transactional(self, producer_id: int, record: Record) -> None:
        """A record that counts if its producer's next marker is a commit."""
        self._pending.setdefault(producer_id, {})[record.key or b""] = record

    def end_transaction(self, producer_id: int, is_commit: bool) -> None:
        for key, record in self._pending.pop(producer_id, {}).items():
            later = self._last.get(key)
            if is_commit and (later is None or later.offset < record.offset):
                self.take(record)

    def take(self, record: Record) -> None:
        key = record.key or b""
        # Removed first, so that the dictionary is in the order of the last records.
        self._last.pop(key, None)
        if record.value is not None:
            self._last[key] = record
        else:  # it deletes what open transactions have committed before, too
            for records in self._pending.values():
                records.pop(key, None)

    def decode(self) -> dict[str, LoadedGroup]:
        """The groups. To be called once, for it lets go of the records one by one.

        A million of them let go at once would hold up all threads.

        Raises:
            NewerFormat: a value of a kind that is known has a version that is not.
        """
        groups: dict[str, LoadedGroup] = {}
        for last_key in tuple(self._last):
            record = self._last.pop(last_key)
            try:
                self._decode(record, groups)
            except NewerFormat:
                raise
            except ValueError:
                self.unreadable.append(record.offset)
        return groups

    def decode_pending(self) -> Iterator[tuple[int, PendingOffset]]:
        """The offsets of transactions that are open at the log's end, each with its producer id."""
        for producer_id, records in self._pending.items():
            for record in records.values():
                try:
                    key = decode_key(record.key or b"")
                    if isinstance(key, OffsetKey) and record.value is not None:
                        offset = CommittedOffset.decode(record.value, _topic_id(record))
                        partition = (key.topic, key.partition)
                        yield producer_id, PendingOffset(key.group_id, partition, offset, record.offset)
                except NewerFormat:
                    raise
                except ValueError:
                    self.unreadable.append(record.offset)

    def _decode(self, record: Record, groups: dict[str, LoadedGroup]) -> None:
        key_bytes = record.key or b""
        key = decode_key(key_bytes)
        value = record.value
        if key is None:
            version = Reader(key_bytes).int16()
            if version not in IGNORED_KEYS:
                self.unknown_kinds.add(version)
            return
        if value is None:
            return
        # The group is entered only after its value was decoded: an unreadable record alone makes no group.
        if isinstance(key, OffsetKey):
            offset = CommittedOffset.decode(value, _topic_id(record))
            group = groups.setdefault(key.group_id, LoadedGroup())
            group.offsets[key.topic, key.partition] = (offset, record.offset)
        elif isinstance(key, ConsumerGroupKey):
            consumer_value = decode_value(key, value)
            group = groups.setdefault(key.group_id, LoadedGroup())
            group.consumer_records[key] = consumer_value
            group.changed_ms = max(group.changed_ms, record.timestamp_ms)
        else:
            metadata = GroupMetadata.decode(value)
            groups.setdefault(key.group_id, LoadedGroup()).metadata = metadata


def _topic_id(record: Record) -> bytes | None:
    return next((content for name, content in record.headers if name == TOPIC_ID_HEADER), None)
