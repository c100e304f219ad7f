"""Loads through a transform that are killed between any two lines (R29, R34): each record counts once."""

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
from tests.unit.loader import transforming_process
from tests.unit.loader.fake_cluster import FakeCluster
from tests.unit.loader.test_transformed_loads import Topics

from mainstem_loader.table.commits import WarehouseTable
from mainstem_loader.table.query import query, tables

KILLS = 8
REPOSITORY = Path(__file__).parents[3]


def load(
    cluster: FakeCluster, warehouse: Path, die_at_line: int | None, max_records: int | None = None
) -> tuple[int, int]:
    """The exit code and, if it ended by itself, the number of lines."""
    order = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "warehouse": str(warehouse),
        "max_records": max_records,
        "die_at_line": die_at_line,
    }
    ended = subprocess.run(
        [sys.executable, transforming_process.__file__, json.dumps(order)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
        },
    )
    return ended.returncode, int(ended.stdout or 0)


def rows(warehouse: Path) -> list[int]:
    if not (warehouse / "t" / "_delta_log").exists():
        return []
    return [row["n"] for row in query(warehouse, "SELECT n FROM t ORDER BY n").to_pylist()]


def dead(warehouse: Path) -> list[int]:
    if not warehouse.exists() or "dead_letters" not in tables(warehouse):
        return []
    sql = "SELECT _partition * 100 + _offset AS place FROM dead_letters ORDER BY 1"
    return [row["place"] for row in query(warehouse, sql).to_pylist()]


@pytest.mark.processes
@pytest.mark.trial
def test_a_load_that_is_killed_anywhere_happens_once_or_not_at_all(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    first = tmp_path / "first"
    topics = Topics(cluster, first)
    topics.send({"n": 0}, {"n": 1}, b"nonsense", {"n": 4})
    assert load(cluster, first, None)[0] == 0
    before = [0, 0, 4, 4]
    assert rows(first) == before
    topics.send({"n": 5}, {"n": 6}, b"nonsense")
    topics.send({"n": 8}, b"nonsense", {"n": 9}, partition=1)
    after = [0, 0, 4, 4, 6, 6, 8, 8]
    all_dead = [2, 6, 101]

    whole = tmp_path / "whole"
    shutil.copytree(first, whole)
    code, lines = load(cluster, whole, None)
    assert code == 0
    assert (rows(whole), dead(whole)) == (after, all_dead)

    for number in range(KILLS):
        warehouse = tmp_path / str(number)
        shutil.copytree(first, warehouse)
        line = chance.randrange(1, lines)
        note = f"killed at line {line} of {lines}, seed {seed}"
        code, _ = load(cluster, warehouse, line)
        assert code == -signal.SIGKILL, note
        assert rows(warehouse) in (before, after), note
        if rows(warehouse) == after:
            # Dead letters follow the commit, at the latest when the next run begins.
            WarehouseTable(warehouse, "t").deliver_dead_letters()
            assert dead(warehouse) == all_dead, note
        code, _ = load(cluster, warehouse, None)
        assert code == 0, note
        assert (rows(warehouse), dead(warehouse)) == (after, all_dead), note
