"""Pauses of the machine: a witness that could not run notes when."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace

import pytest
from tests.support import machine_pauses as module
from tests.support.machine_pauses import SLEEP_S, PauseWitness, paused_s
from tests.support.waiting import let_pass


@pytest.fixture
def witness() -> Iterator[PauseWitness]:
    """One that watches."""
    watching = PauseWitness()
    watching.start()
    yield watching
    watching.stop()


@pytest.mark.processes
def test_a_witness_that_could_not_run_notes_the_time(witness: PauseWitness) -> None:
    assert witness._process is not None
    started_s = time.monotonic()
    os.kill(witness._process.pid, signal.SIGSTOP)
    let_pass(0.2, "it is the pause itself")
    os.kill(witness._process.pid, signal.SIGCONT)
    witness.stop()
    assert paused_s(witness.pauses, started_s, time.monotonic()) >= 0.2 - SLEEP_S


@pytest.mark.processes
def test_a_signal_to_the_process_group_of_a_run_does_not_end_its_witness(witness: PauseWitness) -> None:
    assert witness._process is not None
    assert os.getpgid(witness._process.pid) != os.getpgid(0)


def test_a_witness_writes_no_pause_before_its_end_as_nobody_reads_until_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_end = threading.Event()
    written = io.StringIO()
    ticks = count()

    class Input(io.StringIO):
        def read(self, _: int | None = -1) -> str:
            may_end.wait()
            return ""

    def wake_up_late() -> float:
        tick = next(ticks)
        if tick == 5_000:
            assert written.getvalue() == "watching\n"
            may_end.set()
        return float(tick)

    monkeypatch.setattr("sys.stdin", Input())
    monkeypatch.setattr("sys.stdout", written)
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=lambda _: None, monotonic=wake_up_late))
    module.main()
    assert len(written.getvalue().splitlines()) > 5_000


def test_of_a_pause_only_the_part_within_the_time_counts() -> None:
    assert paused_s([(1.0, 3.0), (4.0, 4.5), (9.0, 10.0)], 2.0, 9.5) == 1.0 + 0.5 + 0.5
