"""Upkeep of tables: merges beside loads and rewrites, and what is deleted."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import duckdb
import pytest
from tests.unit.loader.deletion_vectors import delete_by_vector
from tests.unit.loader.fake_cluster import FakeCluster
from tests.unit.loader.test_load_topic import DAY_MS, NEW_YEAR_MS, Loads

from mainstem_loader.chosen_offsets import ChosenOffsets
from mainstem_loader.columns import TableFormat
from mainstem_loader.errors import SettingsError, WarehouseError
from mainstem_loader.load_topic import LoadOutcome, load_topic
from mainstem_loader.maintain_table import MaintenanceReport, maintain
from mainstem_loader.rewrite_rows import backfill
from mainstem_loader.spark.executors import InProcessExecutor
from mainstem_loader.table.commits import CommitOutcome, LoadCommit, WarehouseTable
from mainstem_loader.table.delta import open_table
from mainstem_loader.table.folder import Folder
from mainstem_loader.task_runs import TaskRuns


@pytest.fixture
def loads(cluster: FakeCluster, tmp_path: Path) -> Loads:
    return Loads(cluster, tmp_path)


def load_often(loads: Loads, count: int = 5) -> None:
    """A file of each of two days by each load, with columns that come and widen."""
    for n in range(count):
        late: dict[str, object] = {"n": n, f"new{n}": "x"}
        loads.send({"n": n})
        loads.send(late, time_ms=NEW_YEAR_MS + DAY_MS, partition=1)
        assert loads.load().loaded == 2


def named_files(loads: Loads) -> set[str]:
    table = open_table(Folder.of(loads.warehouse) / "t")
    assert table is not None
    return set(table.file_uris())


def age(loads: Loads, hours: int) -> None:
    """Let all data files look as old as that."""
    then = time.time() - hours * 3600
    for path in loads.warehouse.rglob("*.parquet"):
        os.utime(path, (then, then))


def upkeep(loads: Loads, **more: Any) -> MaintenanceReport:
    return maintain(loads.settings(), executor=InProcessExecutor(), **more)


def test_small_files_become_one_for_each_day_and_no_row_changes(loads: Loads) -> None:
    load_often(loads)
    before = loads.rows("*")
    offsets = [loads.table().committed(loads.load().topic_id, partition) for partition in (0, 1)]
    report = upkeep(loads)
    assert report.days == ("2013-01-01", "2013-01-02")
    assert (report.files_before, report.files_after, report.warnings) == (10, 2, ())
    assert len(named_files(loads)) == 2
    assert loads.rows("*") == before
    assert [loads.table().committed(loads.load().topic_id, partition) for partition in (0, 1)] == offsets
    named = ", ".join(f"'{path}'" for path in named_files(loads))
    with duckdb.connect() as engine:
        read = engine.execute(f"SELECT count(*), sum(n) FROM read_parquet([{named}])").fetchall()
    assert read == [(10, 20)]
    again = upkeep(loads)
    assert (again.days, again.files_before) == ((), 0)


def test_rows_that_others_deleted_by_deletion_vectors_stay_deleted(loads: Loads) -> None:
    """The log still counts them in the number of a file's rows."""
    load_often(loads)
    loads.send({"n": 5}, {"n": 6}, {"n": 7})
    loads.load()
    delete_by_vector(loads.warehouse / "t", "n", 6)
    before = loads.rows("*")
    report = upkeep(loads)
    assert (len(report.days), report.files_after) == (2, 2)
    assert loads.rows("*") == before
    assert len(before) == 12
    loads.send({"n": 8})
    assert loads.load().loaded == 1


@pytest.mark.parametrize("widens", [False, True])
def test_what_a_live_load_commits_during_a_merge_stays(
    loads: Loads, monkeypatch: pytest.MonkeyPatch, widens: bool
) -> None:
    load_often(loads)
    loads.send({"n": 5, "later": 1} if widens else {"n": 5})
    plain = WarehouseTable.rewrite
    entered: list[int] = []

    def after_a_load(table: WarehouseTable, commit: LoadCommit) -> CommitOutcome:
        entered.append(1)
        if len(entered) == 1:
            assert loads.load().loaded == 1
        return plain(table, commit)

    monkeypatch.setattr(WarehouseTable, "rewrite", after_a_load)
    report = upkeep(loads)
    assert len(report.days) == 2
    assert len(loads.rows("n")) == 11


@pytest.mark.parametrize("other", ["merge", "replace", "a program's merge"])
def test_a_merge_gives_way_to_whoever_changed_its_rows_first(
    loads: Loads, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    load_often(loads)
    before = loads.rows("n", "_offset")
    plain = WarehouseTable.rewrite

    def after_another(table: WarehouseTable, commit: LoadCommit) -> CommitOutcome:
        monkeypatch.setattr(WarehouseTable, "rewrite", plain)
        if other == "merge":
            upkeep(loads)
        elif other == "replace":
            backfill(loads.settings(), ChosenOffsets(), True, InProcessExecutor())
        else:
            merged = open_table(Folder.of(loads.warehouse) / "t")
            assert merged is not None
            merged.optimize.compact()
        return plain(table, commit)

    monkeypatch.setattr(WarehouseTable, "rewrite", after_another)
    report = upkeep(loads)
    assert report.days == ()
    assert loads.rows("n", "_offset") == before


def test_a_backfill_that_a_merge_overtook_is_done_again(
    loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_often(loads)
    before = loads.rows("n", "_offset")
    plain = WarehouseTable.rewrite

    def after_a_merge(table: WarehouseTable, commit: LoadCommit) -> CommitOutcome:
        monkeypatch.setattr(WarehouseTable, "rewrite", plain)
        assert len(upkeep(loads).days) == 2
        return plain(table, commit)

    monkeypatch.setattr(WarehouseTable, "rewrite", after_a_merge)
    assert backfill(loads.settings(), ChosenOffsets(), True, InProcessExecutor()).loaded == 10
    assert loads.rows("n", "_offset") == before


def test_replaced_files_stay_for_readers_and_go_when_they_left_long_ago(loads: Loads) -> None:
    load_often(loads)
    old = named_files(loads)
    age(loads, 1000)  # of days long ago, which are merged only now
    report = upkeep(loads)
    assert (len(report.days), report.files_deleted) == (2, 0)
    assert all(Path(path).exists() for path in old)
    merged = open_table(Folder.of(loads.warehouse) / "t")
    assert merged is not None
    assert set(merged.vacuum(0, enforce_retention_duration=False)) == {
        path.partition("/t/")[2] for path in old
    }
    assert len(loads.rows("n")) == 10


def test_files_that_a_running_load_may_commit_are_never_deleted(loads: Loads) -> None:
    load_often(loads)
    with pytest.raises(SettingsError, match="after 24 hours at the earliest, not 23"):
        upkeep(loads, keep_hours=23)
    loads.send({"n": 9})

    class Slow(InProcessExecutor):
        """Twelve hours pass between the files and the commit."""

        def run(self, *arguments: Any) -> list[Any]:
            results = super().run(*arguments)
            age(loads, 13)
            assert upkeep(loads, keep_hours=24).files_deleted == 0
            return results

    assert loads.load(Slow()).loaded == 1
    assert len(loads.rows("n")) == 11


def test_orphans_are_deleted_when_they_are_old(loads: Loads) -> None:
    load_often(loads, 1)
    orphan = loads.warehouse / "t" / "day=2013-01-01" / "part-20130101T000000-0123abcd-0-1-1.parquet"
    orphan.write_bytes(b"PAR1")
    assert upkeep(loads).files_deleted == 0
    age(loads, 25)
    assert upkeep(loads, keep_hours=24).files_deleted == 1
    assert not orphan.exists()
    assert len(loads.rows("n")) == 2


def test_orphans_are_deleted_although_no_merge_is_possible(
    loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_often(loads)
    orphan = loads.warehouse / "t" / "day=2013-01-01" / "part-20130101T000000-0123abcd-0-1-1.parquet"
    orphan.write_bytes(b"PAR1")
    age(loads, 1000)

    def fail(*_: object) -> None:
        raise WarehouseError("a file is damaged")

    monkeypatch.setattr(TaskRuns, "run_copies", fail)
    with pytest.raises(WarehouseError, match="a file is damaged"):
        upkeep(loads)
    assert not orphan.exists()


def test_an_iceberg_table_is_swept_and_not_merged(cluster: FakeCluster, tmp_path: Path) -> None:
    loads = Loads(cluster, tmp_path, TableFormat.ICEBERG)
    load_often(loads)
    files = loads.files()
    report = upkeep(loads)
    assert (report.days, report.files_deleted) == ((), 0)
    assert report.warnings[0].startswith("Small files of Iceberg table t were not merged")
    assert loads.files() == files


def test_a_table_that_does_not_exist_is_named(loads: Loads) -> None:
    with pytest.raises(WarehouseError, match="There is no table t; load the topic first"):
        upkeep(loads)


def test_a_failed_merge_leaves_no_file(loads: Loads) -> None:
    load_often(loads)
    files = loads.files()

    class Failing(InProcessExecutor):
        def run(self, *arguments: Any) -> list[Any]:
            super().run(*arguments)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        maintain(loads.settings(), executor=Failing())
    assert loads.files() == files
    assert load_topic(loads.settings()).outcome is LoadOutcome.UP_TO_DATE
