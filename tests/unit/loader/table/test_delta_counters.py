"""Counters of Delta tables are those that the library finds, whatever checkpoints there are (R29)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyarrow import parquet
from tests.unit.loader.table.commits_of_loads import TOPIC_ID, load

from mainstem_loader.errors import WarehouseError
from mainstem_loader.table.commits import WarehouseTable
from mainstem_loader.table.folder import Folder

PARTITIONS = range(5)


def committed(table: WarehouseTable) -> list[int | None]:
    return [table.committed(TOPIC_ID, partition) for partition in PARTITIONS]


def fill(table: WarehouseTable, *ends: int) -> None:
    """Load each partition up to its end, in commits of their own."""
    for partition, end in enumerate(ends):
        table.reload()
        start = table.committed(TOPIC_ID, partition)
        table.commit(load(table, f"{partition}-{end}", start, end, partition=partition))


@pytest.fixture
def table(tmp_path: Path) -> WarehouseTable:
    """Of five partitions, the last of which was never loaded."""
    table = WarehouseTable(tmp_path, "t")
    fill(table, 3, 5, 7, 9)
    return table


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files of the log that were read, one by one, and the counters that the library was asked for."""
    found: list[str] = []
    plain = Folder.open_to_read

    def open_to_read(folder: Folder, path: str) -> Any:
        found.append(Path(path).name)
        return plain(folder, path)

    def transaction_version(_: DeltaTable, name: str) -> int | None:
        found.append(name)
        return None

    monkeypatch.setattr(Folder, "open_to_read", open_to_read)
    monkeypatch.setattr(DeltaTable, "transaction_version", transaction_version)
    return found


def test_each_commit_is_read_once_for_all_counters(table: WarehouseTable, reads: list[str]) -> None:
    """Of a log of a thousand partitions, too, and after each commit only what is new."""
    newest = table.version
    fresh = WarehouseTable(table.warehouse, "t")
    for _ in range(3):
        assert committed(fresh) == [3, 5, 7, 9, None]
    commits = [f"{version:020}.json" for version in range(newest + 1)]
    assert sorted(reads) == sorted(["_last_checkpoint", *commits])
    fill(table, 4)
    reads.clear()
    fresh.reload()
    for _ in range(3):
        assert committed(fresh) == [4, 5, 7, 9, None]
    assert reads == [f"{version:020}.json" for version in range(newest + 1, table.version + 1)]


def checkpoint(folder: Path) -> None:
    DeltaTable(folder).create_checkpoint()


def shorten(folder: Path) -> None:
    """As a clean-up does after a checkpoint."""
    checkpoint(folder)
    for commit in (folder / "_delta_log").glob("*.json"):
        if int(commit.stem) < DeltaTable(folder).version():
            commit.unlink()


def divide(folder: Path) -> None:
    """As Spark does with large checkpoints (`delta.checkpoint.partSize`)."""
    shorten(folder)
    (whole,) = (folder / "_delta_log").glob("*.checkpoint.parquet")
    rows = parquet.read_table(whole)
    for part in (0, 1):
        name = whole.name.replace(".parquet", f".{part + 1:010}.{2:010}.parquet")
        parquet.write_table(rows.slice(part * 5, None if part else 5), whole.with_name(name))
    whole.unlink()
    hint(folder, parts=2)


def hint(folder: Path, **more: Any) -> None:
    path = folder / "_delta_log" / "_last_checkpoint"
    path.write_text(json.dumps(json.loads(path.read_text()) | more))


def name_another_kind(folder: Path) -> None:
    """The library reads it, if the table has such a checkpoint."""
    checkpoint(folder)
    hint(folder, v2Checkpoint={"path": "x"})


def lose_the_hint(folder: Path) -> None:
    shorten(folder)
    (folder / "_delta_log" / "_last_checkpoint").unlink()


@pytest.mark.parametrize("act", [checkpoint, shorten, divide, name_another_kind, lose_the_hint])
def test_counters_are_read_from_every_checkpoint(table: WarehouseTable, act: Callable[[Path], None]) -> None:
    act(Path(table.folder.url))
    assert committed(WarehouseTable(table.warehouse, "t")) == [3, 5, 7, 9, None]
    fill(WarehouseTable(table.warehouse, "t"), 4)
    for one in (table, WarehouseTable(table.warehouse, "t")):
        one.reload()
        assert committed(one) == [4, 5, 7, 9, None]


def test_counters_of_a_table_that_was_made_anew_are_its_own(table: WarehouseTable) -> None:
    version = table.version
    assert committed(table) == [3, 5, 7, 9, None]
    shutil.rmtree(table.folder.url)
    other = WarehouseTable(table.warehouse, "t")
    fill(other, 1, 2, 3, 4)
    assert other.version == version
    table.reload()
    assert committed(table) == [1, 2, 3, 4, None]


def test_a_log_that_others_shorten_before_it_is_read_is_named(table: WarehouseTable) -> None:
    late = WarehouseTable(table.warehouse, "t")
    fill(table, 4)
    shorten(Path(table.folder.url))
    with pytest.raises(WarehouseError, match=r"removed 0+\d\.json from the log .* Run this again"):
        committed(late)
    late.reload()
    assert committed(late) == [4, 5, 7, 9, None]
