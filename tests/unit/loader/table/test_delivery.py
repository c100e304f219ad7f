"""Dead letters become visible once, in the table that was configured when their run was (R30)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Transaction
from tests.unit.loader.table.commits_of_loads import Tables, dead_offsets, load, write_letters

from mainstem_loader.errors import WarehouseError
from mainstem_loader.table.commits import WarehouseTable
from mainstem_loader.table.dead_letters import DEAD_LETTER_SCHEMA
from mainstem_loader.table.delta import add_of_json, commit_files, create_table, json_of_add, open_table
from mainstem_loader.table.parquet_files import WrittenFile


def test_dead_letters_of_runs_killed_before_delivery_are_delivered_by_the_next(tables: Tables) -> None:
    table = tables.open()
    for number in range(30):
        table.commit(
            load(table, f"run{number}", number or None, number + 1, dead=[number] if number % 9 == 0 else ())
        )
    assert not DeltaTable.is_deltatable(str(tables.warehouse / "dead_letters"))
    tables.open().deliver_dead_letters()
    assert tables.dead_offsets() == [0, 9, 18, 27]
    table.commit(load(table, "last", 30, 31, dead=[30]))
    table.deliver_dead_letters()
    assert tables.dead_offsets() == [0, 9, 18, 27, 30]


def test_two_tables_share_the_dead_letters(tables: Tables) -> None:
    for name, offset in (("t", 1), ("u", 2)):
        table = tables.open(name)
        table.commit(load(table, f"run-{name}", None, 3, dead=[offset]))
        table.deliver_dead_letters()
    assert tables.dead_offsets() == [1, 2]


def test_a_table_may_have_dead_letters_of_its_own(tables: Tables) -> None:
    table = tables.open("t", "t_rejected")
    table.commit(load(table, "a", None, 3, dead=[1]))
    table.deliver_dead_letters()
    assert tables.dead_offsets("t_rejected") == [1]
    with pytest.raises(WarehouseError, match="No table can be called 't'"):
        tables.open("t", "t")


def test_dead_letters_whose_names_were_forgotten_are_reported(tmp_path: Path) -> None:
    table = WarehouseTable(tmp_path, "t")
    table.commit(load(table, "a", None, 3, dead=[1]))
    table.commit(load(table, "b", 3, 4))
    forget_old_commits(tmp_path / "t")
    table.reload()
    with pytest.raises(WarehouseError, match="no longer names the dead letters of its run 1"):
        table.deliver_dead_letters()


def forget_old_commits(table: Path) -> None:
    """As cleaning up the log does: only a checkpoint and the newest commit are left."""
    DeltaTable(table).create_checkpoint()
    for commit in sorted((table / "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()


def test_renaming_the_dead_letter_table_moves_no_letters(tables: Tables) -> None:
    table = tables.open("t", "old")
    table.commit(load(table, "a", None, 3, dead=[1]))
    table.deliver_dead_letters()
    renamed = tables.open("t", "new")
    renamed.deliver_dead_letters()
    renamed.commit(load(renamed, "b", 3, 6, dead=[4]))
    renamed.deliver_dead_letters()
    assert tables.dead_offsets("old") == [1]
    assert tables.dead_offsets("new") == [4]


def test_letters_of_a_killed_run_go_to_the_table_that_was_configured_then(tables: Tables) -> None:
    table = tables.open("t", "old")
    table.commit(load(table, "a", None, 3, dead=[1]))
    renamed = tables.open("t", "new")
    renamed.commit(load(renamed, "b", 3, 6, dead=[4]))
    tables.open("t", "newest").deliver_dead_letters()
    assert tables.dead_offsets("old") == [1]
    assert tables.dead_offsets("new") == [4]
    assert not (tables.warehouse / "newest").exists()


def test_after_renaming_loads_go_on_when_the_log_has_forgotten_delivered_runs(tmp_path: Path) -> None:
    table = WarehouseTable(tmp_path, "t", "old")
    table.commit(load(table, "a", None, 3, dead=[1]))
    table.deliver_dead_letters()
    forget_old_commits(tmp_path / "t")
    renamed = WarehouseTable(tmp_path, "t", "new")
    renamed.deliver_dead_letters()
    renamed.commit(load(renamed, "b", 3, 6, dead=[4]))
    renamed.deliver_dead_letters()
    assert dead_offsets(tmp_path, "new") == [4]


def commit_as_earlier_versions(table: WarehouseTable, run: int, letters: WrittenFile) -> None:
    """A run whose commit does not name the table of its dead letters."""
    table.reload()
    metadata = {"deadLetters": {"run": run, "files": [json_of_add(letters)]}}
    moved = [Transaction("mainstem/dead-letters", run)]
    commit_files(DeltaTable(table.folder.url), [], "day", moved, {"mainstem": metadata})
    table.reload()


def deliver_as_earlier_versions(table: WarehouseTable, run: int, letters: WrittenFile) -> None:
    application = f"mainstem/{DeltaTable(table.folder.url).metadata().id}"
    folder = table.dead_letter_folder
    target = open_table(folder) or create_table(
        folder, DEAD_LETTER_SCHEMA.append(pa.field("topic", pa.string())), "topic"
    )
    added = [add_of_json(json_of_add(letters))]
    commit_files(target, added, "topic", [Transaction(application, run)], {})


def test_letters_that_an_earlier_version_delivered_stay_in_their_table_after_a_rename(tmp_path: Path) -> None:
    table = WarehouseTable(tmp_path, "t", "old")
    table.commit(load(table, "a", None, 3))
    first, second = (write_letters(tmp_path / "old", name, [offset]) for name, offset in (("b", 1), ("c", 2)))
    commit_as_earlier_versions(table, 1, first)
    deliver_as_earlier_versions(table, 1, first)
    commit_as_earlier_versions(table, 2, second)
    WarehouseTable(tmp_path, "t", "new").deliver_dead_letters()
    assert dead_offsets(tmp_path, "old") == [1, 2]
    assert not (tmp_path / "new").exists()


def test_a_load_killed_by_an_upgrade_needs_no_more_of_the_log_than_its_own_commit(tmp_path: Path) -> None:
    table = WarehouseTable(tmp_path, "t")
    table.commit(load(table, "a", None, 3))
    first, second = (
        write_letters(tmp_path / "dead_letters", name, [offset]) for name, offset in (("b", 1), ("c", 2))
    )
    commit_as_earlier_versions(table, 1, first)
    deliver_as_earlier_versions(table, 1, first)
    commit_as_earlier_versions(table, 2, second)
    forget_old_commits(tmp_path / "t")
    WarehouseTable(tmp_path, "t").deliver_dead_letters()
    assert dead_offsets(tmp_path) == [1, 2]
