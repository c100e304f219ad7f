"""Leader epochs of a log: which epoch's leader wrote from which offset on (KIP-101, KIP-279).

In scope: the list and its look-ups, without files (`checkpoints` stores it as `leader-epoch-checkpoint`). Out
of scope: who leads, and what a follower does with an answer.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Final, NamedTuple

UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1


class EpochEntry(NamedTuple):
    """The first offset written under an epoch."""

    epoch: int
    start_offset: int


class EpochCache:
    """Epochs and their start offsets; both strictly rise.

    `assign` adds at the end; truncation of the log's end removes there, deletion of its start removes there.
    """

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        self._entries: list[EpochEntry] = []
        self.latest_epoch = UNDEFINED_EPOCH
        for entry in entries:
            self.assign(*entry)

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        return tuple(self._entries)

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Note that `epoch` begins at `start_offset`; answers whether that was news.

        An entry that contradicts the new one (same or later epoch, same or later start) goes: the log was
        written anew from there.
        """
        if epoch < 0 or (epoch == self.latest_epoch and start_offset >= self._entries[-1].start_offset):
            return False
        while self._entries and (
            self._entries[-1].epoch >= epoch or self._entries[-1].start_offset >= start_offset
        ):
            self._entries.pop()
        self._entries.append(EpochEntry(epoch, start_offset))
        self.latest_epoch = epoch
        return True

    def epoch_of(self, offset: int) -> int:
        """The epoch that wrote `offset`, or -1."""
        number = bisect.bisect_right(self._entries, offset, key=lambda entry: entry.start_offset)
        return self._entries[number - 1].epoch if number else UNDEFINED_EPOCH

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The (epoch, end offset) up to which the log of a follower with latest epoch `epoch` may agree.

        The latest epoch ends at the log's end; one below the first known ends where that begins (in its own
        name); any other is answered by the largest known that is not above it, which ends where the next
        begins. Unknown later epochs, and -1, have no answer: (-1, -1).
        """
        if epoch == UNDEFINED_EPOCH or epoch > self.latest_epoch:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self.latest_epoch:
            return epoch, log_end_offset
        number = bisect.bisect_right(self._entries, epoch, key=lambda entry: entry.epoch)
        if number == 0:
            return epoch, self._entries[0].start_offset
        return self._entries[number - 1].epoch, self._entries[number].start_offset

    def truncate_from_end(self, end_offset: int) -> bool:
        """Forget epochs that begin at `end_offset` or later; answers whether there were any."""
        kept = [entry for entry in self._entries if entry.start_offset < end_offset]
        changed = len(kept) < len(self._entries)
        self._replace(kept)
        return changed

    def truncate_from_start(self, start_offset: int) -> bool:
        """Forget what lies before `start_offset`; the epoch that holds it now begins there."""
        number = bisect.bisect_right(self._entries, start_offset, key=lambda entry: entry.start_offset)
        if number == 0:
            return False
        holding = EpochEntry(self._entries[number - 1].epoch, start_offset)
        changed = number > 1 or holding != self._entries[0]
        self._replace([holding, *self._entries[number:]])
        return changed

    def clear(self) -> None:
        self._replace([])

    def _replace(self, entries: list[EpochEntry]) -> None:
        self._entries = entries
        self.latest_epoch = entries[-1].epoch if entries else UNDEFINED_EPOCH
