"""R6 with real processes: nothing acknowledged is lost to kill -9."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.broker.log import appender
from tests.unit.broker.log.logs import Stored, open_log, read_all

from mainstem_broker.log.verification import verify_log

ROOT = Path(__file__).parents[4]


@pytest.mark.processes
def test_every_acknowledged_record_survives_kill_minus_nine(tmp_path: Path) -> None:
    acknowledged = -1
    for _ in range(5):
        expected = random.randrange(1, 200)  # seeded by the test run, which prints its seed
        with subprocess.Popen(
            [sys.executable, "-m", "tests.unit.broker.log.appender", str(tmp_path / "t-0")],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        ) as process:
            try:
                assert process.stdout is not None
                for _ in range(expected):
                    acknowledged = int(process.stdout.readline())
                process.kill()
                for line in process.stdout.read().split(b"\n")[:-1]:
                    acknowledged = int(line)
            finally:
                process.kill()
        log = open_log(tmp_path, appender.CONFIG, clean=False)
        stored = read_all(log)
        assert stored == [Stored(offset, b"%d" % offset) for offset in range(len(stored))]
        assert log.log_end_offset == len(stored) > acknowledged
        assert verify_log(log.directory).problems == []
        assert log.epochs.epoch_of(acknowledged) == log.epochs.latest_epoch
