"""Requests that wait until their records are replicated, by the offset that they wait for. Pure."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from mainstem_broker.errors import ProtocolError


@dataclass(slots=True, eq=False)
class Acknowledgement:
    """A request that waits until everything before `offset` is below the high watermark. Immutable.

    `settle` is called once: with this and None when that is so, or with this and the error that prevents it.
    """

    offset: int
    settle: Callable[[Acknowledgement, ProtocolError | None], None]


class Acknowledgements:
    """The waiting requests of one partition, by rising offset."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[Acknowledgement] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, acknowledgement: Acknowledgement) -> None:
        waiting = self._waiting
        if waiting and waiting[-1].offset > acknowledgement.offset:
            # A repeated batch has the offset of its first append, and later batches already wait.
            bisect.insort(waiting, acknowledgement, key=lambda each: each.offset)
        else:
            waiting.append(acknowledgement)

    def remove(self, acknowledgement: Acknowledgement) -> None:
        """Stop waiting, as after a timeout. An acknowledgement that is settled is ignored."""
        try:
            self._waiting.remove(acknowledgement)
        except ValueError:
            pass

    def settle(self, high_watermark: int) -> None:
        """Settle all that wait for an offset up to `high_watermark`."""
        while self._waiting and self._waiting[0].offset <= high_watermark:
            acknowledgement = self._waiting.popleft()
            acknowledgement.settle(acknowledgement, None)

    def refuse(self, error: ProtocolError) -> None:
        """Settle all with `error`. What is added meanwhile goes on waiting."""
        waiting, self._waiting = self._waiting, deque()
        for acknowledgement in waiting:
            acknowledgement.settle(acknowledgement, error)
