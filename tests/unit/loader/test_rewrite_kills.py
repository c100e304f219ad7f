"""Rewrites that are killed between any two lines (R29, R33): a table is as it was or as it is to be."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.loader import rewriting_process
from tests.unit.loader.fake_cluster import FakeCluster
from tests.unit.loader.test_load_topic import DAY_MS, NEW_YEAR_MS, Loads

from mainstem_loader.table.commits import WarehouseTable
from mainstem_loader.table.delta import open_table
from mainstem_loader.table.folder import Folder
from mainstem_loader.table.query import query

KILLS = 4

State = tuple[list[tuple[int, str]], list[int]]


def rewrite(cluster: FakeCluster, warehouse: Path, job: str, die_at_line: int | None) -> tuple[int, int]:
    """The exit code and, if it ended by itself, the number of lines."""
    order = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "warehouse": str(warehouse),
        "job": job,
        "die_at_line": die_at_line,
    }
    arguments = [sys.executable, rewriting_process.__file__, json.dumps(order)]
    ended = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=False, timeout=60)
    return ended.returncode, int(ended.stdout or 0)


def state(warehouse: Path) -> State:
    """Rows and dead letters by offset."""
    rows = query(warehouse, "SELECT _offset, day FROM t ORDER BY _offset").to_pylist()
    dead = query(warehouse, "SELECT _offset FROM dead_letters ORDER BY _offset").to_pylist()
    return [(row["_offset"], str(row["day"])) for row in rows], [row["_offset"] for row in dead]


@pytest.mark.processes
@pytest.mark.trial
@pytest.mark.parametrize("job", ["append", "replace", "rewind", "replay"])
def test_a_rewrite_that_is_killed_anywhere_happens_once_or_not_at_all(
    cluster: FakeCluster, tmp_path: Path, job: str
) -> None:
    """After the kill the table has either all of the change or nothing, and what follows completes it."""
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    loads = Loads(cluster, tmp_path / "first")
    for day in range(2):
        at_s = (NEW_YEAR_MS + day * DAY_MS) // 1000
        loads.send(*({"at": at_s * 1000}, {"at": at_s + 1}, b"nonsense", {"at": at_s * 1000 + 3}))
    loads.load(event_time_field="at", max_rejected_share=1)
    table = open_table(Folder.of(loads.warehouse) / "t")
    assert table is not None
    table.delete("_offset = 4")
    before = state(loads.warehouse)
    assert before == ([(0, "2013-01-01"), (3, "2013-01-01"), (7, "2013-01-02")], [1, 2, 5, 6])

    whole = tmp_path / "whole"
    shutil.copytree(loads.warehouse, whole)
    code, lines = rewrite(cluster, whole, job, None)
    assert code == 0
    after = state(whole)
    assert after != before

    for number in range(KILLS):
        warehouse = tmp_path / str(number)
        shutil.copytree(loads.warehouse, warehouse)
        line = chance.randrange(1, lines)
        note = f"{job}, killed at line {line} of {lines}, seed {seed}"
        code, _ = rewrite(cluster, warehouse, job, line)
        assert code == -signal.SIGKILL, note
        rows, dead = state(warehouse)
        # Dead letters follow the commit, at the latest when the next run begins.
        assert (rows, dead) in (before, after, (after[0], before[1])), note
        WarehouseTable(warehouse, "t").deliver_dead_letters()
        assert state(warehouse) in (before, after), note
        if job != "rewind" or rows == before[0]:
            code, _ = rewrite(cluster, warehouse, job, None)
            assert code == 0, note
        assert state(warehouse) == after, note


@pytest.mark.processes
@pytest.mark.trial
@pytest.mark.timeout(300)
def test_a_merge_that_is_killed_anywhere_changes_no_row(cluster: FakeCluster, tmp_path: Path) -> None:
    """The next maintenance completes it."""
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    loads = Loads(cluster, tmp_path / "first")
    for number in range(5):
        loads.send({"at": NEW_YEAR_MS + number}, b"nonsense")
        loads.load(event_time_field="at", max_rejected_share=1)
    before = state(loads.warehouse)
    assert len(before[0]) == 5

    def file_count(warehouse: Path) -> int:
        table = open_table(Folder.of(warehouse) / "t")
        assert table is not None
        return len(table.file_uris())

    whole = tmp_path / "whole"
    shutil.copytree(loads.warehouse, whole)
    code, lines = rewrite(cluster, whole, "merge", None)
    assert (code, state(whole), file_count(whole)) == (0, before, 1)
    for number in range(KILLS):
        warehouse = tmp_path / str(number)
        shutil.copytree(loads.warehouse, warehouse)
        line = chance.randrange(1, lines)
        note = f"killed at line {line} of {lines}, seed {seed}"
        code, _ = rewrite(cluster, warehouse, "merge", line)
        assert (code, state(warehouse)) == (-signal.SIGKILL, before), note
        assert file_count(warehouse) in (5, 1), note
        code, _ = rewrite(cluster, warehouse, "merge", None)
        assert (code, state(warehouse), file_count(warehouse)) == (0, before, 1), note
