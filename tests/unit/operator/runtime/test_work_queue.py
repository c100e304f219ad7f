"""The queue: one look for many events, one task per key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.support.waiting import settle

from mainstem_operator.runtime.work_queue import Key, WorkQueue

A, B = Key("cluster", "prod", "a"), Key("cluster", "prod", "b")


async def worked(
    queue: WorkQueue, look: Callable[[Key], Awaitable[float | None]], done: asyncio.Event
) -> None:
    """Two tasks work until `done`."""
    tasks = [asyncio.create_task(queue.work(look)) for _ in range(2)]
    await asyncio.wait_for(done.wait(), 5)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_burst_of_events_is_one_look() -> None:
    queue, looks, done = WorkQueue(), list[Key](), asyncio.Event()

    async def look(key: Key) -> None:
        looks.append(key)
        if len(looks) == 2:
            done.set()

    for _ in range(300):
        queue.add(A, 0.01)
    queue.add(B, 0.02)
    await worked(queue, look, done)
    assert looks == [A, B]


async def test_what_happens_during_a_look_is_looked_at_after_it_and_never_beside_it() -> None:
    queue, done = WorkQueue(), asyncio.Event()
    busy, looks = 0, 0

    async def look(key: Key) -> None:
        nonlocal busy, looks
        assert busy == 0
        busy += 1
        if looks == 0:
            queue.add(A, 0)
            await settle()  # the other task is idle all the while
        busy -= 1
        looks += 1
        if looks == 2:
            done.set()

    queue.add(A, 0)
    await worked(queue, look, done)
    assert looks == 2


async def test_a_look_may_ask_for_another_and_an_earlier_one_wins() -> None:
    queue, done, looks = WorkQueue(), asyncio.Event(), 0

    async def look(key: Key) -> float | None:
        nonlocal looks
        looks += 1
        if looks == 2:
            done.set()
        return 0.01

    queue.add(A, 3600)
    queue.add(A, 0)
    await worked(queue, look, done)
    assert looks == 2
