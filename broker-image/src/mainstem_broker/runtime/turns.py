"""Turns of the event loop: long work is done in turns, and others get theirs in between (R40).

`in_turns` counts items, where each takes about as long. `Turn` measures, where they differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from time import perf_counter
from typing import Final, TypeVar

ITEMS_PER_TURN: Final = 200
"""Of some ten microseconds each, as most of what is done for each partition: a few milliseconds a turn."""
TURN_S: Final = 0.005
"""As long as the requests of a connection take the loop without a pause (`server/connection.py`)."""

T = TypeVar("T")


async def in_turns(items: Iterable[T], per_turn: int = ITEMS_PER_TURN) -> AsyncIterator[T]:
    """The items, with a pause after each `per_turn` of them. Fewer items are one turn, without a pause.

    What the items stand for may change in each pause, and with it the collection that they come from: pass a
    copy of one that others change.
    """
    for count, item in enumerate(items, start=1):
        yield item
        if count % per_turn == 0:  # before the next one is drawn, which may be work as well
            await asyncio.sleep(0)


async def batches_in_turns(items: Sequence[T], per_turn: int = ITEMS_PER_TURN) -> AsyncIterator[Sequence[T]]:
    """As `in_turns`, the items of each turn together: for what is worked out once for all of them."""
    for start in range(0, len(items), per_turn):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + per_turn]


class Turn:
    """Measures for how long a coroutine has had the event loop."""

    def __init__(self) -> None:
        self._ends_s = perf_counter() + TURN_S

    async def pause_if_over(self) -> None:
        """Let others have the loop, if this has had it for `TURN_S`; to be called between steps."""
        if perf_counter() >= self._ends_s:
            await asyncio.sleep(0)
            self._ends_s = perf_counter() + TURN_S
