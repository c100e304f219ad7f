"""Offsets that were committed inside transactions which have not ended (KIP-98, KIP-447). Pure.

They are in the log, but count only when the transaction's commit marker is in the log too, and are dropped
when it is aborted. Until then a fetch of stable offsets is refused for their partitions: the producer that
wrote what was read up to there may still commit.

A marker takes effect when it is replicated (`end`); from the moment it is written (`close`), what the
producer commits belongs to its next transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import NamedTuple, TypeAlias

from mainstem_broker.group.offsets.records import CommittedOffset
from mainstem_broker.protocol.topic_partition import TopicPartition


class PendingOffset(NamedTuple):
    """An offset in the log; `record_offset` is where: a later commit of the same partition wins."""

    group_id: str
    partition: TopicPartition
    offset: CommittedOffset
    record_offset: int


_Transaction: TypeAlias = dict[tuple[str, TopicPartition], PendingOffset]


class PendingOffsets:
    """All of one partition of `__consumer_offsets`, by producer id."""

    def __init__(self) -> None:
        self._open: dict[int, _Transaction] = {}
        self._closed: list[_Transaction] = []
        # By group: how many transactions, open or closed, have an offset of each partition.
        self._partitions: dict[str, Counter[TopicPartition]] = {}

    def add(self, producer_id: int, offsets: Iterable[PendingOffset]) -> None:
        """Take in what a producer has committed; it replaces what the same transaction committed before."""
        transaction = self._open.setdefault(producer_id, {})
        for pending in offsets:
            key = (pending.group_id, pending.partition)
            if key not in transaction:
                self._partitions.setdefault(pending.group_id, Counter())[pending.partition] += 1
            transaction[key] = pending

    def close(self, producer_id: int) -> Collection[PendingOffset]:
        """The offsets of a transaction whose marker is written now; when it is replicated, `end` has to be
        called, in the order of the markers. Until then deleted offsets go out of the collection.

        If it is empty from the beginning, there is nothing to end.
        """
        transaction = self._open.pop(producer_id, None)
        if not transaction:
            return ()
        self._closed.append(transaction)
        return transaction.values()

    def end(self) -> None:
        """The marker of the transaction that was closed first is replicated."""
        for pending in self._closed.pop(0).values():
            self._count_down(pending)

    def remove(
        self, group_id: str, partitions: Collection[TopicPartition], before_record_offset: int
    ) -> None:
        """Drop what was committed of these partitions before they were deleted from the group (KIP-496)."""
        for transaction in (*self._open.values(), *self._closed):
            for partition in partitions:
                pending = transaction.get((group_id, partition))
                if pending is not None and pending.record_offset < before_record_offset:
                    del transaction[group_id, partition]
                    self._count_down(pending)

    def _count_down(self, pending: PendingOffset) -> None:
        partitions = self._partitions[pending.group_id]
        partitions[pending.partition] -= 1
        if partitions[pending.partition] == 0:
            del partitions[pending.partition]
        if not partitions:
            del self._partitions[pending.group_id]

    def partitions(self, group_id: str) -> Collection[TopicPartition]:
        """The partitions for which a transaction may still commit an offset of the group."""
        return self._partitions.get(group_id, {}).keys()

    def clear(self) -> None:
        self._open.clear()
        self._closed.clear()
        self._partitions.clear()
