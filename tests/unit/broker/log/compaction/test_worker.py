"""The rate at which the compacting process reads and writes (R5)."""

from __future__ import annotations

import os

import pytest

from mainstem_broker.log.compaction import worker
from mainstem_broker.log.compaction.worker import _Throttle


class PlayedClock:
    """In place of the module `time`; a sleep takes exactly its time."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        assert duration_s > 0
        self.now_s += duration_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> PlayedClock:
    played = PlayedClock()
    monkeypatch.setattr(worker, "time", played)
    return played


def test_r5_a_pass_reads_and_writes_no_faster_than_its_rate(clock: PlayedClock) -> None:
    throttle = _Throttle(1_000, os.getppid())
    for count, done_s in ((500, 100.5), (0, 100.5), (2_500, 103.0)):
        throttle.note_bytes(count)
        assert clock.now_s == pytest.approx(done_s)


def test_work_that_takes_longer_than_the_rate_requires_is_not_paused(clock: PlayedClock) -> None:
    throttle = _Throttle(1_000, os.getppid())
    clock.now_s += 2
    throttle.note_bytes(1_500)
    assert clock.now_s == 102
    throttle.note_bytes(1_000)
    assert clock.now_s == pytest.approx(102.5)


def test_a_pass_ends_after_its_pause_when_the_broker_has_ended(clock: PlayedClock) -> None:
    throttle = _Throttle(1_000, os.getppid() + 1)
    with pytest.raises(SystemExit, match="The broker has ended"):
        throttle.note_bytes(1_000)
    assert clock.now_s == pytest.approx(101)
