"""Loads that are killed between any two lines (R29, R30): every record is there once, whatever the format."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.loader import loading_process
from tests.unit.loader.fake_cluster import FakeCluster
from tests.unit.loader.test_load_topic import Loads

from mainstem_loader.columns import TableFormat

KILLS = 6
RECORDS = 40


def start(loads: Loads, die_at_line: int | None) -> subprocess.Popen[str]:
    order = {
        "bootstrap_servers": loads.cluster.bootstrap_servers,
        "topic": "t",
        "warehouse": str(loads.warehouse),
        "format": loads.format,
        "max_records": RECORDS // 4,
        "spark": False,
        "die_at": None,
        "die_at_line": die_at_line,
    }
    arguments = [sys.executable, loading_process.__file__, json.dumps(order)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> tuple[int, int]:
    """The exit code and, if it ended by itself, the number of lines."""
    output, _ = process.communicate(timeout=120)
    words = output.split()
    return process.returncode, int(words[-1]) if "done" in words else 0


def send_all(loads: Loads) -> None:
    """Every fifth does not parse, fields come up under way, and types of others show late."""
    for number in range(RECORDS):
        loads.send(b"nonsense" if number % 5 == 0 else record(number))


def record(number: int) -> dict[str, object]:
    is_late = number >= RECORDS // 2
    return {
        "n": number,
        f"f{number // 10}": 1,
        "part": number + 0.5 if is_late else number,
        "tags": ["x"] if is_late else [],
    }


def check_once(loads: Loads, note: str) -> None:
    rows = [row["_offset"] for row in loads.rows("_offset")]
    dead = [row["_offset"] for row in loads.dead()]
    assert rows == [number for number in range(RECORDS) if number % 5], note
    assert dead == [number for number in range(RECORDS) if not number % 5], note
    if loads.format is TableFormat.DELTA:  # rows of Iceberg tables are not adapted to types that show late
        sent = [record(number) for number in rows]
        for field in ("part", "tags"):
            assert [row[field] for row in loads.rows(field)] == [one[field] for one in sent], note


@pytest.mark.processes
@pytest.mark.trial
@pytest.mark.parametrize("table_format", list(TableFormat))
def test_a_load_that_is_killed_anywhere_loses_and_doubles_nothing(
    cluster: FakeCluster, tmp_path: Path, table_format: TableFormat
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    whole = Loads(cluster, tmp_path / "whole", table_format)
    send_all(whole)
    code, lines = end(start(whole, None))
    assert code == 0
    check_once(whole, "not killed")
    loads = Loads(cluster, tmp_path / "killed", table_format)
    send_all(loads)
    note = f"{table_format}, {lines} lines, seed {seed}:"
    for number in range(KILLS):
        line = chance.randrange(1, max(lines // (number + 1), 2))
        note += f" {line}"
        # Every third beside one that goes on, so that one overtakes the other.
        other = start(loads, None) if number % 3 == 2 else None
        code, _ = end(start(loads, line))
        assert code in (-signal.SIGKILL, 0), note
        if other is not None:
            assert end(other)[0] == 0, note
            check_once(loads, note)
    assert end(start(loads, None))[0] == 0, note
    check_once(loads, note)
