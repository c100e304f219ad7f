"""Pauses of the machine: a witness that could not run notes when."""

from __future__ import annotations

import os
import signal
import time

import pytest
from tests.support.machine_pauses import SLEEP_S, PauseWitness, paused_s
from tests.support.waiting import let_pass


@pytest.mark.processes
def test_a_witness_that_could_not_run_notes_the_time() -> None:
    witness = PauseWitness()
    witness.start()
    try:
        assert witness._process is not None
        started_s = time.monotonic()
        os.kill(witness._process.pid, signal.SIGSTOP)
        let_pass(0.2, "it is the pause itself")
        os.kill(witness._process.pid, signal.SIGCONT)
    finally:
        witness.stop()
    assert paused_s(witness.pauses, started_s, time.monotonic()) >= 0.2 - SLEEP_S


def test_of_a_pause_only_the_part_within_the_time_counts() -> None:
    assert paused_s([(1.0, 3.0), (4.0, 4.5), (9.0, 10.0)], 2.0, 9.5) == 1.0 + 0.5 + 0.5
