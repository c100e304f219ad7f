from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from mainstem_broker.runtime.pending import Pending


def test_who_waits_is_called_at_once_in_order_and_later_comers_too() -> None:
    pending: Pending[int] = Pending()
    called: list[tuple[str, int]] = []
    pending.add_done_callback(lambda done: called.append(("first", done.result())))
    pending.add_done_callback(lambda done: called.append(("second", done.result())))
    assert not pending.done()
    pending.set_result(5)
    assert called == [("first", 5), ("second", 5)]
    pending.add_done_callback(lambda done: called.append(("late", done.result())))
    assert called[-1] == ("late", 5)
    assert (pending.done(), pending.cancelled(), pending.exception()) == (True, False, None)


def test_one_that_raises_is_logged_and_the_others_are_called() -> None:
    pending: Pending[int] = Pending()
    called: list[int] = []

    def fail(_: Pending[int]) -> None:
        raise OSError("its own affair")

    pending.add_done_callback(fail)
    pending.add_done_callback(lambda done: called.append(done.result()))
    with capture_logs() as logs:
        pending.set_result(5)
    assert called == [5]
    assert [entry["event"] for entry in logs] == ["an answer was not taken"]


def test_it_is_settled_once() -> None:
    pending: Pending[int] = Pending()
    pending.cancel()
    pending.cancel()
    assert pending.cancelled()
    with pytest.raises(asyncio.CancelledError):
        pending.result()
    with pytest.raises(asyncio.InvalidStateError):
        pending.set_result(1)
    given: Pending[int] = Pending()
    given.set_result(1)
    given.cancel()
    assert not given.cancelled()
    assert given.result() == 1


async def test_it_can_be_awaited_before_and_after_and_its_error_is_raised() -> None:
    loop = asyncio.get_running_loop()
    pending: Pending[int] = Pending()
    loop.call_soon(pending.set_result, 5)
    assert await pending == 5
    assert await pending == 5
    failed: Pending[int] = Pending()
    loop.call_soon(failed.set_exception, ValueError("why"))
    with pytest.raises(ValueError, match="why"):
        await failed


async def test_a_task_that_is_cancelled_cancels_what_it_awaits() -> None:
    pending: Pending[int] = Pending()
    task = asyncio.ensure_future(pending)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pending.cancelled()
