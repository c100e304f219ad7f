"""Data and offsets become visible together, once, whoever else is loading (R29, R30)."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError
from tests.unit.loader.table.commits_of_loads import TOPIC_ID, Tables, load, offsets

from mainstem_loader.columns import RECORD_COLUMNS, Columns, TableFormat
from mainstem_loader.errors import WarehouseError
from mainstem_loader.table.commits import CommitOutcome, LoadCommit, OffsetMove, WarehouseTable
from mainstem_loader.table.delta import create_table
from mainstem_loader.table.delta_store import DeltaSnapshot
from mainstem_loader.table.folder import Folder
from mainstem_loader.table.formats import Change, CommitConflictError
from mainstem_loader.table.parquet_files import file_name, new_run_id
from mainstem_loader.table.query import query, tables
from mainstem_loader.table.sweep import COMMIT_WITHIN_HOURS


def test_a_commit_without_rows_moves_the_offsets(tables: Tables) -> None:
    """A range may hold nothing but control batches."""
    table = tables.open()
    nothing = LoadCommit("a", time.time(), TOPIC_ID, (OffsetMove(0, None, 9),), (), (), {}, {})
    assert table.commit(nothing) is CommitOutcome.COMMITTED
    assert tables.open().committed(TOPIC_ID, 0) == 9
    assert tables.offsets() == []


def test_the_same_load_twice_is_refused(tables: Tables) -> None:
    one, other = tables.open(), tables.open()
    assert one.commit(load(one, "a", None, 3)) is CommitOutcome.COMMITTED
    assert other.commit(load(other, "b", None, 3)) is CommitOutcome.SUPERSEDED
    assert one.commit(load(one, "c", None, 3)) is CommitOutcome.SUPERSEDED
    assert tables.offsets() == [0, 1, 2]


def test_a_stale_load_that_adds_columns_is_refused(tables: Tables) -> None:
    """Adding columns moves a snapshot past the commit that it should have collided with."""
    setup = tables.open()
    setup.commit(load(setup, "a", None, 3))
    stale, fast = tables.open(), tables.open()
    assert fast.commit(load(fast, "b", 3, 5)) is CommitOutcome.COMMITTED
    late = load(stale, "c", 3, 5, columns={"x": pa.int64()}, x=pa.array([1, 2]))
    assert stale.commit(late) is CommitOutcome.SUPERSEDED
    assert tables.offsets() == [0, 1, 2, 3, 4]


def test_loads_of_other_partitions_do_not_disturb(tables: Tables) -> None:
    one, other = tables.open(), tables.open()
    assert one.commit(load(one, "a", None, 3)) is CommitOutcome.COMMITTED
    assert other.commit(load(other, "b", None, 2, partition=1)) is CommitOutcome.COMMITTED
    assert tables.offsets() == [0, 0, 1, 1, 2]


def test_columns_added_meanwhile_do_not_disturb(tables: Tables) -> None:
    setup = tables.open()
    setup.commit(load(setup, "a", None, 1))
    one, other = tables.open(), tables.open()
    first = load(one, "b", None, 1, partition=1, columns={"x": pa.int64()}, x=pa.array([1]))
    second = load(
        other, "c", 1, 2, columns={"x": pa.int64(), "y": pa.string()}, x=pa.array([2]), y=pa.array(["k"])
    )
    assert one.commit(first) is CommitOutcome.COMMITTED
    assert other.commit(second) is CommitOutcome.COMMITTED
    assert tables.open().payload_columns == {"x": pa.int64(), "y": pa.string()}
    answer = sorted(tables.rows("x", "y"), key=lambda row: row["x"] or 0)
    assert answer == [{"x": None, "y": None}, {"x": 1, "y": None}, {"x": 2, "y": "k"}]


def test_a_column_of_another_type_needs_another_plan(tables: Tables) -> None:
    setup = tables.open()
    setup.commit(load(setup, "a", None, 1))
    one, other = tables.open(), tables.open()
    one.commit(load(one, "b", None, 1, partition=1, columns={"x": pa.string()}, x=pa.array(["k"])))
    late = load(other, "c", 1, 2, columns={"x": pa.int64()}, x=pa.array([2]))
    assert other.commit(late) is CommitOutcome.COLUMNS_MOVED
    assert tables.offsets() == [0, 0]


def test_structs_of_the_table_grow(tables: Tables) -> None:
    small, large = pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64()), ("b", pa.string())])
    table = tables.open()
    table.commit(load(table, "a", None, 1, columns={"s": small}, s=pa.array([{"a": 1}], small)))
    table.commit(load(table, "b", 1, 2, columns={"s": large}, s=pa.array([{"a": 2, "b": "k"}], large)))
    assert table.payload_columns == {"s": large}
    assert tables.rows("s") == [{"s": {"a": 1, "b": None}}, {"s": {"a": 2, "b": "k"}}]


def failing_after_commit(tables: Tables, failure: Exception) -> Any:
    """The commit of a table's snapshot, whose answer is lost."""
    commit = snapshot_class(tables).commit

    def lose_the_answer(snapshot: Any, change: Change) -> None:
        commit(snapshot, change)
        raise failure

    return lose_the_answer


def snapshot_class(tables: Tables) -> Any:
    if tables.format is TableFormat.DELTA:
        return DeltaSnapshot
    from mainstem_loader.table.iceberg_store import IcebergSnapshot

    return IcebergSnapshot


def store_failure(tables: Tables) -> Exception:
    """How the format's library says that it does not know whether it has committed."""
    if tables.format is TableFormat.DELTA:
        return DeltaError("503 Slow Down")
    from pyiceberg.exceptions import CommitStateUnknownException

    failure: Exception = CommitStateUnknownException("503 Slow Down")
    return failure


@pytest.mark.parametrize("failure", ["refused", "store", "system"])
@pytest.mark.parametrize("has_rows", [True, False], ids=["rows", "no rows"])
def test_a_commit_whose_answer_was_lost_is_recognised(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, failure: str, has_rows: bool
) -> None:
    """By the run's id, because a commit without rows names no file to recognise it by."""
    table = tables.open()
    error = {
        "refused": CommitConflictError("the answer was lost"),
        "store": store_failure(tables),
        "system": OSError("broken pipe"),
    }[failure]
    commit = load(table, "a", None, 3, dead=[1])
    commit = commit if has_rows else replace(commit, files=())
    with monkeypatch.context() as patch:
        patch.setattr(snapshot_class(tables), "commit", failing_after_commit(tables, error))
        assert table.commit(commit) is CommitOutcome.COMMITTED
    table.deliver_dead_letters()
    assert (tables.offsets() if has_rows else []) == ([0, 1, 2] if has_rows else [])
    assert tables.dead_offsets() == [1]


def test_a_lost_answer_is_recognised_behind_commits_of_others(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, other = tables.open(), tables.open()
    kind = snapshot_class(tables)
    commit = kind.commit

    def lose_the_answer(snapshot: Any, change: Change) -> None:
        monkeypatch.setattr(kind, "commit", commit)
        commit(snapshot, change)
        for partition in range(1, 4):
            other.reload()
            other.commit(load(other, f"other{partition}", None, 1, partition=partition))
        raise CommitConflictError("the answer was lost")

    monkeypatch.setattr(kind, "commit", lose_the_answer)
    assert table.commit(replace(load(table, "a", None, 3), files=())) is CommitOutcome.COMMITTED


def test_a_store_that_breaks_before_the_commit_fails_the_run(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tables.open()

    def fail(*_: object) -> None:
        raise store_failure(tables)

    monkeypatch.setattr(snapshot_class(tables), "commit", fail)
    with pytest.raises(WarehouseError, match="503 Slow Down"):
        table.commit(load(table, "a", None, 3))


def test_a_run_whose_files_may_have_been_swept_is_not_committed(tables: Tables) -> None:
    table = tables.open()
    late = replace(load(table, "a", None, 3), started_s=time.time() - COMMIT_WITHIN_HOURS * 3600 - 1)
    with pytest.raises(WarehouseError, match="took more than 12 hours"):
        table.commit(late)
    assert table.committed(TOPIC_ID, 0) is None


def test_a_table_that_never_holds_still_is_given_up(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tables.open()

    def fail(*_: object) -> None:
        raise CommitConflictError("someone was faster")

    monkeypatch.setattr(snapshot_class(tables), "commit", fail)
    with pytest.raises(WarehouseError, match="changed by others 20 times"):
        table.commit(load(table, "a", None, 3))


def test_of_many_loaders_at_once_exactly_one_moves_each_offset(tables: Tables) -> None:
    """R29, with real threads and real files: each tries every step from whatever it sees."""
    outcomes: list[CommitOutcome] = []

    def run(number: int) -> None:
        table = tables.open()
        for step in range(6):
            table.reload()
            start = table.committed(TOPIC_ID, 0)
            plain = load(table, f"{number}-{step}", start, (start or 0) + 5, [number])
            commit = replace(plain, columns={f"c{step}": pa.int64()})
            outcomes.append(table.commit(commit))
            table.deliver_dead_letters()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    won = outcomes.count(CommitOutcome.COMMITTED)
    assert len(outcomes) == 24
    assert tables.offsets() == list(range(5 * won))
    assert tables.open().committed(TOPIC_ID, 0) == 5 * won
    assert len(tables.dead_offsets()) == won


@pytest.mark.parametrize("name", ["dead_letters", "", "_hidden", ".hidden", "a/b", ".."])
def test_names_that_no_table_can_have_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(WarehouseError, match="No table can be called"):
        WarehouseTable(tmp_path, name)


def test_columns_that_no_delta_table_can_have_are_reported_in_one_sentence(tmp_path: Path) -> None:
    """As a struct that a transform returns."""
    twice = pa.struct([("id", pa.int64()), ("ID", pa.int64())])
    table = WarehouseTable(tmp_path, "t")
    with pytest.raises(WarehouseError, match=r"Duplicate field name .*'ID'\)\. Nothing was committed; give"):
        table.commit(load(table, "a", None, 3, columns={"x": twice}))
    table = WarehouseTable(tmp_path, "t")
    assert table.commit(load(table, "b", None, 3)) is CommitOutcome.COMMITTED
    with pytest.raises(WarehouseError, match=r"Duplicate field name .*'ID'\)\. Nothing was committed; give"):
        table.commit(load(table, "c", 3, 4, columns={"x": twice}))
    assert offsets(tmp_path) == [0, 1, 2]


def test_a_damaged_log_is_reported_in_one_sentence(tmp_path: Path) -> None:
    table = WarehouseTable(tmp_path, "t")
    table.commit(load(table, "a", None, 3))
    (tmp_path / "t" / "_delta_log" / f"{0:020}.json").write_text("garbage")
    with pytest.raises(WarehouseError, match=r"cannot be read or written .*check that it is a Delta table"):
        WarehouseTable(tmp_path, "t")


def create_old_table(folder: Path, columns: Columns) -> None:
    """As an earlier version of the loader did, which knew neither `_topic_id` nor `_run`."""
    own = {name: kind for name, kind in RECORD_COLUMNS.items() if name not in ("_topic_id", "_run")}
    fields = [*own.items(), *columns.items(), ("day", pa.date32())]
    create_table(Folder.of(folder), pa.schema(fields), "day")


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"_run": pa.int64()}, "_run"),
        ({"_run": pa.string()}, "_run"),
        ({"_Run": pa.string()}, "_Run"),
        ({"_rest": pa.string()}, "_rest"),
        ({"_topic_id": pa.string(), "_run": pa.int64()}, "_run"),
        ({"_topic_id": pa.string(), "_run": pa.string(), "_tombstone": pa.string()}, "_tombstone"),
    ],
)
def test_payload_columns_of_earlier_versions_are_not_taken_for_the_loaders_own(
    tmp_path: Path, columns: Columns, named: str
) -> None:
    create_old_table(tmp_path / "t", columns)
    with pytest.raises(WarehouseError, match=f"Column {named} of table t holds a field of the payload"):
        WarehouseTable(tmp_path, "t").check_columns()


def test_tables_of_this_version_and_earlier_ones_without_such_columns_are_loaded_on(tmp_path: Path) -> None:
    create_old_table(tmp_path / "t", {})
    table = WarehouseTable(tmp_path, "t")
    table.check_columns()
    table.commit(load(table, "a", None, 3, columns={"_rest": pa.string()}, _rest=pa.array(["{}"] * 3)))
    table.check_columns()
    assert offsets(tmp_path) == [0, 1, 2]


OWN_FIELDS = [*RECORD_COLUMNS.items(), ("day", pa.date32())]


@pytest.mark.parametrize(
    ("fields", "partition_by", "words"),
    [
        ([("id", pa.int64()), ("country", pa.string())], ["country"], "is partitioned by country instead"),
        ([("id", pa.int64()), ("day", pa.date32())], [], "has no partitions"),
        (OWN_FIELDS, ["day", "_topic_id"], "is partitioned by day, _topic_id instead"),
        ([("id", pa.int64()), ("day", pa.date32())], ["day"], "it has no column _partition"),
        ([*OWN_FIELDS[:-1], ("day", pa.string())], ["day"], "its column day is string instead of date32"),
        (
            [(name, pa.string() if name == "_offset" else kind) for name, kind in OWN_FIELDS],
            ["day"],
            "its column _offset is string instead of int64",
        ),
    ],
)
def test_a_table_of_another_program_is_refused_and_stays_as_it_is(
    tmp_path: Path, fields: list[tuple[str, pa.DataType]], partition_by: list[str], words: str
) -> None:
    """R29: a commit into it would leave a table that nobody can read."""
    DeltaTable.create(str(tmp_path / "t"), Schema.from_arrow(pa.schema(fields)), partition_by=partition_by)
    with pytest.raises(WarehouseError, match=f"{words}.*load into another table"):
        WarehouseTable(tmp_path, "t")
    assert DeltaTable(str(tmp_path / "t")).version() == 0


@pytest.mark.parametrize("name", ["t", "dead_letters"])
@pytest.mark.parametrize("path", ["data.parquet", "day=2026-01-01/x.parquet", "metadata/v1.metadata.json"])
def test_no_table_is_made_among_the_files_of_another_program(tmp_path: Path, name: str, path: str) -> None:
    """R29: it would read the rows as its own, and maintenance would delete its files."""
    file = tmp_path / name / path
    file.parent.mkdir(parents=True)
    file.write_bytes(b"theirs")
    with pytest.raises(WarehouseError, match=f"holds {path} of another program, but no Delta table"):
        WarehouseTable(tmp_path, "t").check_columns()


def test_a_table_is_made_beside_what_killed_loads_and_file_systems_leave(tmp_path: Path) -> None:
    left = new_run_id(0.0)
    for path in (
        f"day=2026-01-01/{file_name(left, 0, 1)}-1.parquet",
        ".DS_Store",
        "_delta_log/.tmp",
        "_SUCCESS",
    ):
        file = tmp_path / "t" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
    WarehouseTable(tmp_path, "t").check_columns()


def test_dead_letters_are_not_added_to_a_table_of_another_program(tmp_path: Path) -> None:
    """R30: that is found out before rows are written."""
    fields = [("topic", pa.string()), ("_offset", pa.string())]
    DeltaTable.create(
        str(tmp_path / "dead_letters"), Schema.from_arrow(pa.schema(fields)), partition_by=["topic"]
    )
    with pytest.raises(WarehouseError, match=r"column _offset is string.*another table for dead letters"):
        WarehouseTable(tmp_path, "t").check_columns()


@pytest.mark.parametrize("place", ["file", "file/below", "link"])
def test_a_warehouse_that_is_or_lies_below_a_file_is_refused(tmp_path: Path, place: str) -> None:
    """R29: the error names the file, before anything is written and for queries as well."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    first = tmp_path / Path(place).parts[0]
    words = f"{tmp_path / place} cannot be a folder of the warehouse, because {first} is not a folder"
    with pytest.raises(WarehouseError, match=re.escape(words)):
        WarehouseTable(tmp_path / place, "t")
    with pytest.raises(WarehouseError, match=re.escape(words)):
        tables(tmp_path / place)
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


@pytest.mark.parametrize("names", [("file", "dead_letters"), ("t", "file")])
def test_a_table_whose_folder_is_a_file_is_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    """R29: also the one of dead letters, which is only written after the rows."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(WarehouseError, match=re.escape(f"because {tmp_path / 'file'} is not a folder")):
        WarehouseTable(tmp_path, *names)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("character", ["%", "#", "?", "[", "\\", "]", "^", "|", "\n"])
def test_paths_that_the_delta_library_cannot_use_are_refused_before_anything_is_written(
    tmp_path: Path, character: str
) -> None:
    """R29: parts of the Delta library decode them, others do not, so files and log would part."""
    with pytest.raises(WarehouseError, match=re.escape(f"in which {character!r} is not what it is")):
        WarehouseTable(tmp_path / f"a{character}20b", "t")
    for name, dead_letters in ((f"a{character}20b", "dead_letters"), ("t", f"a{character}20b")):
        with pytest.raises(WarehouseError, match=re.escape(f"because {character!r} is another character")):
            WarehouseTable(tmp_path, name, dead_letters)
    assert list(tmp_path.iterdir()) == []


def test_folders_that_the_delta_library_cannot_use_do_not_stop_questions(tmp_path: Path) -> None:
    """R29: with `[` the library panics."""
    for name in ("a[1]", "b^2", "c|d", "e%20f", "g\\h", "i\nj"):
        (tmp_path / name).mkdir()
    assert query(tmp_path, "SELECT 1 AS one").to_pylist() == [{"one": 1}]
