"""The offsets that one group has committed, and when they expire. Pure: knows no log and no clock.

An offset belongs to a topic's id, not only to its name: a topic that was deleted and created again has other
records, so an offset of the old topic is treated as missing (`offset_for`). One that another broker wrote,
without an id, belongs to the topic of its name until that is deleted.

An offset is kept while members of the group are subscribed to its topic, and after that for
offsets.retention.minutes, counted from the commit or from the time when the last member left, whichever is
later (KIP-211). In a group that never has members, only the commit counts.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator
from uuid import UUID

from mainstem_broker.group.offsets.records import CommittedOffset
from mainstem_broker.protocol.topic_partition import TopicPartition


class GroupOffsets:
    """By topic and partition; filled by commits once they are replicated, and by loading."""

    def __init__(self) -> None:
        self._committed: dict[TopicPartition, CommittedOffset] = {}
        # Where in the log each one is: a transaction may end after later commits.
        self._record_offsets: dict[TopicPartition, int] = {}

    def __len__(self) -> int:
        return len(self._committed)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(tuple(self._committed))

    def put(self, partition: TopicPartition, offset: CommittedOffset, record_offset: int) -> None:
        """Take in a commit, unless a later one is known; `record_offset` is where in the log it is."""
        if self._record_offsets.get(partition, -1) < record_offset:
            self._committed[partition] = offset
            self._record_offsets[partition] = record_offset

    def remove(self, partition: TopicPartition) -> None:
        self._committed.pop(partition, None)
        self._record_offsets.pop(partition, None)

    def offset_for(self, partition: TopicPartition, topic_id: UUID | None) -> CommittedOffset | None:
        """The offset of a partition of the topic with this id (None: there is no such topic)."""
        offset = self._committed.get(partition)
        if offset is None or offset.topic_id is None or offset.topic_id == topic_id:
            return offset
        return None

    def of_topics(self, topics: Container[tuple[str, UUID | None]]) -> list[TopicPartition]:
        """The partitions with offsets that were committed for these topics.

        Args:
            topics: by name and id; None is the id of offsets that have none.
        """
        return [key for key, offset in self._committed.items() if (key[0], offset.topic_id) in topics]

    def expired(
        self,
        partitions: Iterable[TopicPartition],
        *,
        now_ms: int,
        retention_ms: int,
        empty_since_ms: int | None,
        in_use: Collection[str] | None,
    ) -> list[TopicPartition]:
        """Those of `partitions` whose offsets have expired; all times are times of day.

        Args:
            empty_since_ms: when the last member left; None if the group has members, or never had any.
            in_use: topics that its members read; None if that is unknown: then nothing expires.
        """
        if in_use is None:
            return []
        return [
            partition
            for partition in partitions
            if partition[0] not in in_use
            and (offset := self._committed.get(partition)) is not None
            and now_ms >= _expiry_ms(offset, retention_ms, max(offset.commit_ms, empty_since_ms or 0))
        ]


def _expiry_ms(offset: CommittedOffset, retention_ms: int, idle_since_ms: int) -> int:
    return idle_since_ms + retention_ms if offset.expire_ms is None else offset.expire_ms
