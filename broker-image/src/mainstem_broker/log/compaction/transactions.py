"""What a compaction pass has to know of transactions: which were aborted, and which have nothing left. Pure.

Everything that a pass may touch lies below the last stable offset, so the outcome of each transaction in it
is known.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

import numpy as np

from mainstem_broker.log.compaction.records import Flags, RecordTable, is_control, is_transactional
from mainstem_broker.log.transaction_index import AbortedTransaction


class AbortedBatches:
    """The aborted transactions of a log, by producer."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """`aborted` are those that overlap what is read."""
        self._aborted: dict[int, list[AbortedTransaction]] = {}
        for transaction in sorted(aborted, key=_last_offset):
            self._aborted.setdefault(transaction.producer_id, []).append(transaction)

    def flags(self, table: RecordTable) -> Flags:
        """For each batch whether it holds records of an aborted transaction. Markers do not."""
        flags: Flags = np.zeros(len(table.headers), dtype=np.bool_)
        if self._aborted:
            of_transactions = is_transactional(table.headers) & ~is_control(table.headers)
            for number in np.flatnonzero(of_transactions).tolist():
                producer_id = int(table.headers["producer_id"][number])
                flags[number] = self._contains(producer_id, table.base_offset(number))
        return flags

    def _contains(self, producer_id: int, offset: int) -> bool:
        transactions = self._aborted.get(producer_id, [])  # they do not overlap
        number = bisect.bisect_left(transactions, offset, key=_last_offset)
        return number < len(transactions) and transactions[number].first_offset <= offset


class MarkersWithoutBatches:
    """Finds markers of transactions of which no batch is left in the log (KIP-98, KIP-534).

    Such a marker decides nothing any more. A marker is needed as long as there is a batch of its transaction,
    even an empty one: without the marker, a replica that reads the log would take the transaction for open.
    """

    def __init__(self) -> None:
        self._with_batches: set[int] = set()
        """Producers with a batch since their last marker."""

    def flags(self, table: RecordTable) -> Flags:
        """For each batch whether it is such a marker. Tables have to come in the order of the log, from its
        start on.
        """
        flags: Flags = np.zeros(len(table.headers), dtype=np.bool_)
        numbers = np.flatnonzero(is_transactional(table.headers))
        if not len(numbers):
            return flags
        # The batches of each producer one after another: a marker behind another marker, or behind nothing,
        # has no batches.
        producer_ids = table.headers["producer_id"][numbers]
        order = np.argsort(producer_ids, kind="stable")
        numbers, producer_ids = numbers[order], producer_ids[order]
        is_marker = is_control(table.headers)[numbers]
        is_first = np.append(True, producer_ids[1:] != producer_ids[:-1])
        is_last = np.append(is_first[1:], True)
        has_batches = np.append(False, ~is_marker[:-1])
        has_batches[is_first] = [one in self._with_batches for one in producer_ids[is_first].tolist()]
        flags[numbers] = is_marker & ~has_batches
        for producer_id, ends_with_marker in zip(
            producer_ids[is_last].tolist(), is_marker[is_last].tolist(), strict=True
        ):
            if ends_with_marker:
                self._with_batches.discard(producer_id)
            else:
                self._with_batches.add(producer_id)
        return flags


def _last_offset(transaction: AbortedTransaction) -> int:
    return transaction.last_offset
