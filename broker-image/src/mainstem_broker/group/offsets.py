"""The offsets that one group has committed. Pure: knows neither the log that keeps them nor the time.

An offset belongs to a topic's id, not only to its name: a topic that was deleted and made again has other
records, so what was committed for the old one is as good as not there (`offset_for`).

How long an offset is kept (KIP-211): as long as members of the group are subscribed to the topic; after that
for offsets.retention.minutes, counted from when the group lost its last member or from the commit, whichever
is later. A group that never has members is counted from the commit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from uuid import UUID

from mainstem_broker.group.records import CommittedOffset

TopicPartition = tuple[str, int]


class GroupOffsets:
    """By topic and partition; filled by commits once they are stored, and by loading."""

    def __init__(self) -> None:
        self._committed: dict[TopicPartition, CommittedOffset] = {}

    def __len__(self) -> int:
        return len(self._committed)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(tuple(self._committed))

    def put(self, partition: TopicPartition, offset: CommittedOffset) -> None:
        self._committed[partition] = offset

    def remove(self, partition: TopicPartition) -> None:
        self._committed.pop(partition, None)

    def offset_for(self, partition: TopicPartition, topic_id: UUID | None) -> CommittedOffset | None:
        """What was committed for a partition of the topic with this id (None: there is no such topic)."""
        found = self._committed.get(partition)
        if found is None or found.topic_id is None or found.topic_id == topic_id:
            return found
        return None

    def of_topics(self, topic_ids: Collection[UUID]) -> list[TopicPartition]:
        """Those that were committed for these topics."""
        return [key for key, offset in self._committed.items() if offset.topic_id in topic_ids]

    def expired(
        self, *, now_ms: int, retention_ms: int, empty_since_ms: int | None, in_use: Collection[str] | None
    ) -> list[TopicPartition]:
        """Those that have not been needed for long enough; all times by the wall's clock.

        Args:
            empty_since_ms: since when the group has had no members; None if it has some, or never had any.
            in_use: topics that its members read; None if that is not known, when all count as in use.
        """
        if in_use is None:
            return []
        return [
            partition
            for partition, offset in self._committed.items()
            if partition[0] not in in_use
            and now_ms >= _expiry_ms(offset, retention_ms, max(offset.commit_ms, empty_since_ms or 0))
        ]


def _expiry_ms(offset: CommittedOffset, retention_ms: int, idle_since_ms: int) -> int:
    return idle_since_ms + retention_ms if offset.expire_ms is None else offset.expire_ms
