"""The transactions of one log that its readers have to know of: open ones, and those just completed. Pure.

In scope: their order, and the first unstable offset that follows from it. Out of scope: producers and their
epochs (`producers`), the index of aborted transactions (`transaction_index`).

A reader with isolation level read_committed may read up to the last stable offset (LSO): the high watermark,
or the first offset of a transaction whose outcome is not certain, if that is lower. The outcome is certain
when the marker is below the high watermark: before that, a new leader may not have it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import NamedTuple

from mainstem_broker.config.setting import INT64_MAX
from mainstem_broker.log.transaction_index import AbortedTransaction


class CompletedTransaction(NamedTuple):
    """A transaction with records, from its first offset to the offset of its marker, both included."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class Transactions:
    """First offsets, rising; a transaction begins at the end of the log, so most are appended.

    - `_open`: of open transactions.
    - `_completed`: (first offset, marker's offset) of those whose marker is not known to be below the high
      watermark. `replicated_to` removes them.
    - `first_unstable_offset`: the lowest of both, or INT64_MAX for none.
    """

    __slots__ = ("_completed", "_open", "first_unstable_offset")

    def __init__(self, open_first_offsets: Iterable[int] = ()) -> None:
        self._open = sorted(open_first_offsets)
        self._completed: list[tuple[int, int]] = []
        self._update()

    def begin(self, first_offset: int) -> None:
        bisect.insort(self._open, first_offset)
        self._update()

    def complete(self, first_offset: int, marker_offset: int) -> None:
        """An open transaction has ended with a marker at `marker_offset`. Nothing is stable for that yet."""
        del self._open[bisect.bisect_left(self._open, first_offset)]
        bisect.insort(self._completed, (first_offset, marker_offset))

    def aborted(self, completed: CompletedTransaction) -> AbortedTransaction:
        """The index entry of a transaction that has just ended.

        Its last stable offset is Kafka's: the first offset of the earliest transaction that is still open, or
        the offset after the marker.
        """
        stable = self._open[0] if self._open else completed.last_offset + 1
        return AbortedTransaction(
            completed.producer_id, completed.first_offset, completed.last_offset, stable
        )

    def replicated_to(self, high_watermark: int) -> None:
        """All before `high_watermark` is replicated. It may not be lower than in former calls."""
        if not self._completed:
            return
        self._completed = [
            (first_offset, marker_offset)
            for first_offset, marker_offset in self._completed
            if marker_offset >= high_watermark
        ]
        self._update()

    def truncate_to(self, end_offset: int) -> None:
        """Drop transactions that began at `end_offset` or later. No marker may lie there."""
        del self._open[bisect.bisect_left(self._open, end_offset) :]
        self._update()

    def keep_completed(self, former: Transactions, end_offset: int) -> None:
        """Take from `former`, the state before a truncation to `end_offset`, what is in no log."""
        kept = {completed for completed in former._completed if completed[1] < end_offset}
        self._completed = sorted(kept.union(self._completed))
        self._update()

    def _update(self) -> None:
        first = self._open[0] if self._open else INT64_MAX
        self.first_unstable_offset = min(first, self._completed[0][0]) if self._completed else first
