"""Rewrites, merges and loads through a transform that are killed between any two lines (R29, R30, R33, R34).

A table is as it was or as it is to be.
"""

from __future__ import annotations

import json
import os
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
from tests.unit.loader.test_transformed_loads import Topics

from mainstem_loader.table.commits import WarehouseTable
from mainstem_loader.table.delta import open_table
from mainstem_loader.table.folder import Folder
from mainstem_loader.table.query import query

KILLS = 4
REPOSITORY = Path(__file__).parents[3]

State = tuple[tuple[list[tuple[int, str]], int], list[int]]


def rewrite(cluster: FakeCluster, warehouse: Path, job: str, die_at_line: int | None) -> tuple[int, int]:
    """The exit code and, if it ended by itself, the number of lines."""
    order = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "warehouse": str(warehouse),
        "job": job,
        "die_at_line": die_at_line,
    }
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    arguments = [sys.executable, rewriting_process.__file__, json.dumps(order)]
    ended = subprocess.run(
        arguments,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path},
    )
    return ended.returncode, int(ended.stdout or 0)


def state(warehouse: Path, job: str) -> State:
    """Rows by offset, for a merge with the number of their files, and dead letters by offset."""
    rows = query(warehouse, "SELECT _offset, day FROM t ORDER BY _offset").to_pylist()
    dead = query(warehouse, "SELECT _offset FROM dead_letters ORDER BY _offset").to_pylist()
    table = open_table(Folder.of(warehouse) / "t")
    assert table is not None
    files = len(table.file_uris()) if job == "merge" else 0
    return ([(row["_offset"], str(row["day"])) for row in rows], files), [row["_offset"] for row in dead]


def prepare(cluster: FakeCluster, warehouse: Path, job: str) -> list[int]:
    """Make the table on which the job is done; the offsets of its rows."""
    if job == "transform":
        topics = Topics(cluster, warehouse)
        topics.send({"n": 0}, {"n": 1}, b"nonsense", {"n": 4})
        topics.load(rewriting_process.doubled_evens)
        topics.send({"n": 5}, {"n": 6}, b"nonsense")
        topics.send({"n": 8}, b"nonsense", {"n": 9}, partition=1)
        return [0, 0, 3, 3]
    loads = Loads(cluster, warehouse)
    if job == "merge":
        for number in range(5):
            loads.send({"at": NEW_YEAR_MS + number}, b"nonsense")
            loads.load(event_time_field="at", max_rejected_share=1)
        return [0, 2, 4, 6, 8]
    for day in range(2):
        at_s = (NEW_YEAR_MS + day * DAY_MS) // 1000
        loads.send(*({"at": at_s * 1000}, {"at": at_s + 1}, b"nonsense", {"at": at_s * 1000 + 3}))
    loads.load(event_time_field="at", max_rejected_share=1)
    table = open_table(Folder.of(warehouse) / "t")
    assert table is not None
    table.delete("_offset = 4")
    return [0, 3, 7]


@pytest.mark.processes
@pytest.mark.trial
@pytest.mark.parametrize("job", ["append", "replace", "rewind", "replay", "merge", "transform"])
def test_a_job_that_is_killed_anywhere_happens_once_or_not_at_all(
    cluster: FakeCluster, tmp_path: Path, job: str
) -> None:
    """After the kill the table has either all of the change or nothing, and what follows completes it."""
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    first, whole = tmp_path / "first", tmp_path / "whole"
    offsets = prepare(cluster, first, job)
    before = state(first, job)
    assert [offset for offset, _ in before[0][0]] == offsets
    shutil.copytree(first, whole)
    code, lines = rewrite(cluster, whole, job, None)
    assert code == 0
    after = state(whole, job)
    assert after != before
    assert job != "merge" or after == ((before[0][0], 1), before[1])

    for number in range(KILLS):
        warehouse = tmp_path / str(number)
        shutil.copytree(first, warehouse)
        line = chance.randrange(1, lines)
        note = f"{job}, killed at line {line} of {lines}, seed {seed}"
        code, _ = rewrite(cluster, warehouse, job, line)
        assert code == -signal.SIGKILL, note
        rows, dead = state(warehouse, job)
        # Dead letters follow the commit, at the latest when the next run begins.
        assert (rows, dead) in (before, after, (after[0], before[1])), note
        WarehouseTable(warehouse, "t").deliver_dead_letters()
        assert state(warehouse, job) in (before, after), note
        if job != "rewind" or rows == before[0]:
            code, _ = rewrite(cluster, warehouse, job, None)
            assert code == 0, note
        assert state(warehouse, job) == after, note
