from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from tests.cluster.virtual_time import run_in_virtual_time

from mainstem_broker.runtime.timeout import Timeout

WAITS = st.lists(st.tuples(st.floats(0.01, 10), st.floats(0, 10), st.booleans()), max_size=8)


@given(waits=WAITS)
def test_it_expires_when_the_last_wait_is_over_and_only_then(waits: list[tuple[float, float, bool]]) -> None:
    """Each wait: how long it may take, when the next begins, whether what it waits for has come by then."""

    async def test() -> None:
        loop = asyncio.get_running_loop()
        expired: list[float] = []
        timeout = Timeout(lambda: expired.append(loop.time()))
        expected: list[float] = []
        for duration_s, pause_s, comes in waits:
            timeout.begin(duration_s)
            until_s = loop.time() + duration_s
            await asyncio.sleep(pause_s)
            if until_s < loop.time() - 0.01:
                expected.append(until_s)
            elif abs(until_s - loop.time()) <= 0.01:
                return  # at the same time: either is right
            if comes:
                timeout.end()
            elif pause_s < duration_s and waits[-1] == (duration_s, pause_s, comes):
                timeout.close()
        assert [round(at, 2) for at in expired] == [round(at, 2) for at in expected]

    run_in_virtual_time(test())


def test_a_wait_that_was_closed_does_not_expire() -> None:
    async def test() -> None:
        expired: list[None] = []
        timeout = Timeout(lambda: expired.append(None))
        timeout.begin(1)
        timeout.close()
        await asyncio.sleep(10)
        assert expired == []

    run_in_virtual_time(test())


async def test_it_expires_by_the_clock_of_uvloop_that_counts_milliseconds() -> None:
    over = asyncio.Event()
    timeout = Timeout(over.set)
    for duration_s in (0.0101, 0.0049, 0.0007):
        over.clear()
        timeout.begin(duration_s)
        async with asyncio.timeout(60):
            await over.wait()
