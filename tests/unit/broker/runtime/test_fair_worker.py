from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from mainstem_broker.runtime.fair_worker import FairWorker


@pytest.fixture
def worker() -> Iterator[FairWorker]:
    made = FairWorker("test")
    yield made
    made.close(wait=True)


async def test_work_runs_in_another_thread_and_its_error_comes_back(worker: FairWorker) -> None:
    assert await worker.run("a", threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await worker.run("a", lambda: 1 // 0)


async def test_a_client_with_much_work_waits_for_its_own_only(worker: FairWorker) -> None:
    done: list[str] = []
    gate = threading.Event()
    work: list[asyncio.Future[Any]] = [worker.run("first", gate.wait)]
    work += [worker.run("greedy", partial(done.append, f"greedy {number}")) for number in range(3)]
    work += [worker.run("modest", partial(done.append, "modest"))]
    gate.set()
    await asyncio.gather(*work)
    assert done == ["greedy 0", "modest", "greedy 1", "greedy 2"]


async def test_the_connections_of_an_address_share_its_turns(worker: FairWorker) -> None:
    """R40: five hundred connections of one machine delay another machine by one piece of work."""
    done: list[str] = []
    gate = threading.Event()
    work: list[asyncio.Future[Any]] = [worker.run("first", gate.wait)]
    greedy = [f"10.0.0.1:{port}" for port in (1, 1, 2, 3)] + ["::1:4"]
    clients = [*greedy, "10.0.0.2:1", "10.0.0.2:1", "broker 3"]
    work += [worker.run(client, partial(done.append, client)) for client in clients]
    gate.set()
    await asyncio.gather(*work)
    assert done == [
        "10.0.0.1:1",
        "::1:4",
        "10.0.0.2:1",
        "broker 3",
        "10.0.0.1:2",
        "10.0.0.2:1",
        "10.0.0.1:3",
        "10.0.0.1:1",
    ]


async def test_work_that_nobody_waits_for_any_more_is_not_begun(worker: FairWorker) -> None:
    done: list[str] = []
    gate = threading.Event()
    running = worker.run("a", gate.wait)
    given_up = worker.run("b", partial(done.append, "b"))
    last = worker.run("c", partial(done.append, "c"))
    given_up.cancel()
    gate.set()
    await asyncio.gather(running, last)
    assert done == ["c"]


async def test_a_result_that_comes_after_its_waiter_has_gone_is_dropped(worker: FairWorker) -> None:
    gate = threading.Event()
    running = worker.run("a", gate.wait)
    await asyncio.sleep(0)
    running.cancel()
    gate.set()
    assert await worker.run("a", lambda: "next") == "next"


async def test_closing_cancels_what_has_not_begun() -> None:
    worker = FairWorker("test")
    gate = threading.Event()
    running, waiting = worker.run("a", gate.wait), worker.run("a", gate.wait)
    worker.close()
    gate.set()
    assert await running
    assert waiting.cancelled()
    worker.close(wait=True)


async def test_a_worker_with_several_threads_runs_as_many_pieces_together_and_no_more() -> None:
    worker = FairWorker("test", threads=2)
    gates = [threading.Event() for _ in range(3)]
    begun: list[int] = []
    both = threading.Barrier(3)

    def work(number: int) -> None:
        begun.append(number)
        if number < 2:
            both.wait()
        gates[number].wait()

    running = [worker.run("a", partial(work, number)) for number in range(3)]
    await asyncio.to_thread(both.wait)
    assert sorted(begun) == [0, 1]
    gates[1].set()
    await running[1]
    gates[0].set()
    gates[2].set()
    await asyncio.gather(*running)
    assert sorted(begun) == [0, 1, 2]
    worker.close(wait=True)
