from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from mainstem_broker.runtime.turns import batches_in_turns, in_turns


class Turns:
    """Counts the turns that others get."""

    def __init__(self) -> None:
        self.count = 0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.count += 1

    def stop(self) -> None:
        self._task.cancel()


@pytest.mark.parametrize(("count", "pauses"), [(0, 0), (2, 0), (3, 1), (4, 1), (7, 2)])
async def test_others_get_a_turn_after_as_many_items(count: int, pauses: int) -> None:
    """R40."""
    turns = Turns()
    await asyncio.sleep(0)
    assert [item async for item in in_turns(range(count), 3)] == list(range(count))
    assert turns.count == pauses
    turns.stop()


async def test_the_next_item_is_drawn_after_the_pause() -> None:
    """R40: drawing it may be most of the work."""
    turns = Turns()
    await asyncio.sleep(0)
    drawn: list[int] = []

    def draw() -> Iterator[int]:
        for number in range(5):
            drawn.append(turns.count)
            yield number

    async for _ in in_turns(draw(), 2):
        pass
    assert drawn == [0, 0, 1, 1, 2]
    turns.stop()


@pytest.mark.parametrize(("count", "pauses"), [(0, 0), (3, 0), (4, 1), (6, 1), (7, 2)])
async def test_the_items_of_a_turn_come_together(count: int, pauses: int) -> None:
    """R40."""
    turns = Turns()
    await asyncio.sleep(0)
    batches = [list(some) async for some in batches_in_turns(range(count), 3)]
    assert [item for some in batches for item in some] == list(range(count))
    assert all(0 < len(some) <= 3 for some in batches)
    assert turns.count == pauses
    turns.stop()
