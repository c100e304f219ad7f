"""Stalls of the event loop are measured, and those that a client notices are logged with their cause."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs
from tests.support.waiting import let_pass, let_pass_async
from tests.unit.broker.server.peers import until

from mainstem_broker.server import loop_lag
from mainstem_broker.server.loop_lag import LoopLag
from mainstem_broker.server.request_times import BUCKET_ENDS_S

STALL_S = 0.2


@pytest.fixture
def lag(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopLag]:
    monkeypatch.setattr(loop_lag, "STALL_S", STALL_S)
    monkeypatch.setattr(loop_lag, "LOOK_INTERVAL_S", STALL_S / 4)
    lag = LoopLag()
    yield lag
    lag.stop()


def stand_still() -> None:
    let_pass(2 * STALL_S, "the loop's own thread stands still: this is the fault")


async def test_a_stall_is_measured_and_logged_with_what_was_executed(lag: LoopLag) -> None:
    with capture_logs() as lines:
        lag.start()
        await until(lambda: sum(lag.times.buckets) >= 1)
        stand_still()
        await until(lambda: lines)
    assert lines[0]["event"] == "the event loop stood still: all clients waited"
    assert lines[0]["lag_s"] > STALL_S
    assert " < stand_still (test_loop_lag.py:" in lines[0]["executing"]
    slow = [count for end, count in zip(BUCKET_ENDS_S, lag.times.buckets, strict=False) if end > STALL_S]
    assert sum(slow) + lag.times.buckets[-1] >= 1
    assert lag.times.sum_s > STALL_S


async def test_short_delays_are_counted_and_not_logged(lag: LoopLag, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        loop_lag, "STALL_S", 60.0
    )  # a busy machine delays the loop for longer than the fixture's
    with capture_logs() as lines:
        lag.start()
        await until(lambda: sum(lag.times.buckets) >= 3)
        await asyncio.sleep(0)
    assert lines == []


async def test_nothing_is_measured_after_the_stop(lag: LoopLag) -> None:
    lag.start()
    lag.stop()
    await let_pass_async(2 * loop_lag.TICK_INTERVAL_S, "it would have measured twice")
    assert sum(lag.times.buckets) == 0


async def test_what_was_never_started_can_be_stopped(lag: LoopLag) -> None:
    lag.stop()
