"""Data and offsets become visible together, once, whoever else is loading (R29, R30)."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyarrow import parquet

from mainstem_loader import warehouse
from mainstem_loader.arrow_arrays import Array
from mainstem_loader.columns import TIMESTAMP_TYPE, Columns
from mainstem_loader.errors import WarehouseError
from mainstem_loader.parquet_files import WrittenFile
from mainstem_loader.query import query
from mainstem_loader.warehouse import CommitOutcome, LoadCommit, OffsetMove, WarehouseTable

TOPIC_ID = "wq6hGbKHTIWkQ8poXwsdww"


def write_file(folder: Path, name: str, offsets: Sequence[int], **columns: Array) -> WrittenFile:
    table = pa.table(
        {
            "_partition": pa.array([0] * len(offsets), pa.int32()),
            "_offset": pa.array(offsets, pa.int64()),
            "_timestamp": pa.array([0] * len(offsets), TIMESTAMP_TYPE),
            "_key": pa.array([None] * len(offsets), pa.binary()),
            **columns,
        }
    )
    path = f"day=2013-01-01/{name}.parquet"
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, folder / path)
    return WrittenFile(
        path=path,
        partition_values={"day": "2013-01-01"},
        rows=len(offsets),
        size_bytes=(folder / path).stat().st_size,
        modified_ms=int(time.time() * 1000),
        columns={field.name: field.type for field in table.schema},
        statistics=json.dumps({"numRecords": len(offsets)}),
    )


def write_letters(folder: Path, name: str, offsets: Sequence[int]) -> WrittenFile:
    path = f"topic=t/{name}.parquet"
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(
        pa.table({"_partition": pa.array([0] * len(offsets), pa.int32()), "_offset": pa.array(offsets)}),
        folder / path,
    )
    size = (folder / path).stat().st_size
    return WrittenFile(
        path, {"topic": "t"}, len(offsets), size, 0, {}, json.dumps({"numRecords": len(offsets)})
    )


def load(
    table: WarehouseTable,
    name: str,
    start: int | None,
    end: int,
    dead: Sequence[int] = (),
    columns: Columns | None = None,
    partition: int = 0,
    **arrays: Array,
) -> LoadCommit:
    return LoadCommit(
        topic_id=TOPIC_ID,
        moves=(OffsetMove(partition, start, end),),
        files=(write_file(Path(table.folder.url), name, range(start or 0, end), **arrays),),
        dead_files=(write_letters(Path(table.dead_letter_folder.url), name, dead),) if dead else (),
        columns=columns or {},
        metadata={"run": name},
    )


def offsets(folder: Path, name: str = "t") -> list[int]:
    return [row["_offset"] for row in query(folder, f"SELECT _offset FROM {name} ORDER BY 1").to_pylist()]


def dead_offsets(folder: Path, table: str = "dead_letters") -> list[int]:
    return [row["_offset"] for row in query(folder, f"SELECT _offset FROM {table} ORDER BY 1").to_pylist()]


def test_a_commit_makes_rows_and_offsets_visible(tmp_path: Path) -> None:
    table = WarehouseTable(tmp_path, "t")
    assert table.committed(TOPIC_ID, 0) is None
    assert table.commit(load(table, "a", None, 3)) is CommitOutcome.COMMITTED
    assert table.committed(TOPIC_ID, 0) == 3
    assert WarehouseTable(tmp_path, "t").committed(TOPIC_ID, 0) == 3
    assert offsets(tmp_path) == [0, 1, 2]


def test_a_commit_without_rows_moves_the_offsets(tmp_path: Path) -> None:
    """A range may hold nothing but control batches."""
    table = WarehouseTable(tmp_path, "t")
    nothing = LoadCommit(TOPIC_ID, (OffsetMove(0, None, 9),), (), (), {}, {})
    assert table.commit(nothing) is CommitOutcome.COMMITTED
    assert WarehouseTable(tmp_path, "t").committed(TOPIC_ID, 0) == 9
    assert offsets(tmp_path) == []


def test_the_same_load_twice_is_refused(tmp_path: Path) -> None:
    one, other = WarehouseTable(tmp_path, "t"), WarehouseTable(tmp_path, "t")
    assert one.commit(load(one, "a", None, 3)) is CommitOutcome.COMMITTED
    assert other.commit(load(other, "b", None, 3)) is CommitOutcome.SUPERSEDED
    assert one.commit(load(one, "c", None, 3)) is CommitOutcome.SUPERSEDED
    assert offsets(tmp_path) == [0, 1, 2]


def test_a_stale_load_that_adds_columns_is_refused(tmp_path: Path) -> None:
    """Adding columns moves a snapshot past the commit that it should have collided with."""
    setup = WarehouseTable(tmp_path, "t")
    setup.commit(load(setup, "a", None, 3))
    stale, fast = WarehouseTable(tmp_path, "t"), WarehouseTable(tmp_path, "t")
    assert fast.commit(load(fast, "b", 3, 5)) is CommitOutcome.COMMITTED
    late = load(stale, "c", 3, 5, columns={"x": pa.int64()}, x=pa.array([1, 2]))
    assert stale.commit(late) is CommitOutcome.SUPERSEDED
    assert offsets(tmp_path) == [0, 1, 2, 3, 4]


def test_loads_of_other_partitions_do_not_disturb(tmp_path: Path) -> None:
    one, other = WarehouseTable(tmp_path, "t"), WarehouseTable(tmp_path, "t")
    assert one.commit(load(one, "a", None, 3)) is CommitOutcome.COMMITTED
    assert other.commit(load(other, "b", None, 2, partition=1)) is CommitOutcome.COMMITTED
    assert offsets(tmp_path) == [0, 0, 1, 1, 2]


def test_columns_added_meanwhile_do_not_disturb(tmp_path: Path) -> None:
    setup = WarehouseTable(tmp_path, "t")
    setup.commit(load(setup, "a", None, 1))
    one, other = WarehouseTable(tmp_path, "t"), WarehouseTable(tmp_path, "t")
    first = load(one, "b", None, 1, partition=1, columns={"x": pa.int64()}, x=pa.array([1]))
    second = load(
        other, "c", 1, 2, columns={"x": pa.int64(), "y": pa.string()}, x=pa.array([2]), y=pa.array(["k"])
    )
    assert one.commit(first) is CommitOutcome.COMMITTED
    assert other.commit(second) is CommitOutcome.COMMITTED
    assert WarehouseTable(tmp_path, "t").payload_columns == {"x": pa.int64(), "y": pa.string()}
    answer = query(tmp_path, "SELECT x, y FROM t ORDER BY x NULLS FIRST").to_pylist()
    assert answer == [{"x": None, "y": None}, {"x": 1, "y": None}, {"x": 2, "y": "k"}]


def test_a_column_of_another_type_needs_another_plan(tmp_path: Path) -> None:
    setup = WarehouseTable(tmp_path, "t")
    setup.commit(load(setup, "a", None, 1))
    one, other = WarehouseTable(tmp_path, "t"), WarehouseTable(tmp_path, "t")
    one.commit(load(one, "b", None, 1, partition=1, columns={"x": pa.string()}, x=pa.array(["k"])))
    late = load(other, "c", 1, 2, columns={"x": pa.int64()}, x=pa.array([2]))
    assert other.commit(late) is CommitOutcome.COLUMNS_MOVED
    assert offsets(tmp_path) == [0, 0]


def test_structs_of_the_table_grow(tmp_path: Path) -> None:
    small, large = pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64()), ("b", pa.string())])
    table = WarehouseTable(tmp_path, "t")
    table.commit(load(table, "a", None, 1, columns={"s": small}, s=pa.array([{"a": 1}], small)))
    table.commit(load(table, "b", 1, 2, columns={"s": large}, s=pa.array([{"a": 2, "b": "k"}], large)))
    assert table.payload_columns == {"s": large}
    answer = query(tmp_path, "SELECT s FROM t ORDER BY _offset").to_pylist()
    assert answer == [{"s": {"a": 1, "b": None}}, {"s": {"a": 2, "b": "k"}}]


def test_a_commit_whose_answer_was_lost_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = WarehouseTable(tmp_path, "t")
    really = warehouse._commit

    def lose_the_answer(*arguments: object) -> None:
        really(*arguments)  # type: ignore[arg-type]
        raise CommitFailedError("the connection broke")

    monkeypatch.setattr(warehouse, "_commit", lose_the_answer)
    assert table.commit(load(table, "a", None, 3)) is CommitOutcome.COMMITTED
    assert offsets(tmp_path) == [0, 1, 2]


def test_a_table_that_never_holds_still_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = WarehouseTable(tmp_path, "t")

    def fail(*_: object) -> None:
        raise CommitFailedError("someone was faster")

    monkeypatch.setattr(warehouse, "_commit", fail)
    with pytest.raises(WarehouseError, match="changed by others 20 times"):
        table.commit(load(table, "a", None, 3))


def test_of_many_loaders_at_once_exactly_one_moves_each_offset(tmp_path: Path) -> None:
    """R29, with real threads and real files: each tries every step from whatever it sees."""
    outcomes: list[CommitOutcome] = []

    def run(number: int) -> None:
        table = WarehouseTable(tmp_path, "t")
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
    assert offsets(tmp_path) == list(range(5 * won))
    assert WarehouseTable(tmp_path, "t").committed(TOPIC_ID, 0) == 5 * won
    assert len(dead_offsets(tmp_path)) == won


def test_dead_letters_of_a_committed_run_are_delivered_once(tmp_path: Path) -> None:
    table = WarehouseTable(tmp_path, "t")
    table.commit(load(table, "a", None, 3, dead=[1]))
    for _ in range(3):
        table.deliver_dead_letters()
        WarehouseTable(tmp_path, "t").deliver_dead_letters()
    assert dead_offsets(tmp_path) == [1]


def test_dead_letters_of_runs_killed_before_delivery_are_delivered_by_the_next(tmp_path: Path) -> None:
    table = WarehouseTable(tmp_path, "t")
    for number in range(30):
        table.commit(
            load(table, f"run{number}", number or None, number + 1, dead=[number] if number % 9 == 0 else ())
        )
    assert not DeltaTable.is_deltatable(str(tmp_path / "dead_letters"))
    WarehouseTable(tmp_path, "t").deliver_dead_letters()
    assert dead_offsets(tmp_path) == [0, 9, 18, 27]
    table.commit(load(table, "last", 30, 31, dead=[30]))
    table.deliver_dead_letters()
    assert dead_offsets(tmp_path) == [0, 9, 18, 27, 30]


def test_dead_letters_of_a_superseded_run_are_never_delivered(tmp_path: Path) -> None:
    one, other = WarehouseTable(tmp_path, "t"), WarehouseTable(tmp_path, "t")
    one.commit(load(one, "a", None, 3, dead=[1]))
    assert other.commit(load(other, "b", None, 3, dead=[2])) is CommitOutcome.SUPERSEDED
    other.deliver_dead_letters()
    assert dead_offsets(tmp_path) == [1]


def test_two_tables_share_the_dead_letters(tmp_path: Path) -> None:
    for name, offset in (("t", 1), ("u", 2)):
        table = WarehouseTable(tmp_path, name)
        table.commit(load(table, f"run-{name}", None, 3, dead=[offset]))
        table.deliver_dead_letters()
    assert dead_offsets(tmp_path) == [1, 2]


def test_a_table_may_have_dead_letters_of_its_own(tmp_path: Path) -> None:
    table = WarehouseTable(tmp_path, "t", "t_rejected")
    table.commit(load(table, "a", None, 3, dead=[1]))
    table.deliver_dead_letters()
    assert dead_offsets(tmp_path, "t_rejected") == [1]
    with pytest.raises(WarehouseError, match="No table can be called 't'"):
        WarehouseTable(tmp_path, "t", "t")


def test_dead_letters_whose_names_were_forgotten_are_told(tmp_path: Path) -> None:
    table = WarehouseTable(tmp_path, "t")
    table.commit(load(table, "a", None, 3, dead=[1]))
    table.commit(load(table, "b", 3, 4))
    log = DeltaTable(tmp_path / "t")
    log.create_checkpoint()
    for commit in sorted((tmp_path / "t" / "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()
    table.reload()
    with pytest.raises(WarehouseError, match="no longer names the dead letters of its run 1"):
        table.deliver_dead_letters()


def test_orphans_are_swept_when_they_are_old(tmp_path: Path) -> None:
    table = WarehouseTable(tmp_path, "t")
    table.commit(load(table, "a", None, 3, dead=[1]))
    young = write_file(Path(table.folder.url), "young", [7])
    old = write_file(Path(table.folder.url), "old", [8])
    old_letters = write_letters(Path(table.dead_letter_folder.url), "old", [8])
    for path in (tmp_path / "t" / old.path, tmp_path / "dead_letters" / old_letters.path):
        os.utime(path, (time.time() - 7200, time.time() - 7200))
    assert WarehouseTable(tmp_path, "t").sweep_orphans(older_than_hours=1) == 2
    assert (tmp_path / "t" / young.path).exists()
    assert offsets(tmp_path) == [0, 1, 2]
    assert dead_offsets(tmp_path) == [1]


def test_sweeping_delivers_dead_letters_first(tmp_path: Path) -> None:
    table = WarehouseTable(tmp_path, "t")
    commit = load(table, "a", None, 3, dead=[1])
    table.commit(commit)
    os.utime(tmp_path / "dead_letters" / commit.dead_files[0].path, (1, 1))
    assert table.sweep_orphans(older_than_hours=0) == 0
    assert dead_offsets(tmp_path) == [1]


@pytest.mark.parametrize("name", ["dead_letters", "", "_hidden", ".hidden", "a/b", ".."])
def test_names_that_no_table_can_have_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(WarehouseError, match="No table can be called"):
        WarehouseTable(tmp_path, name)


def test_a_damaged_log_is_told_in_one_sentence(tmp_path: Path) -> None:
    table = WarehouseTable(tmp_path, "t")
    table.commit(load(table, "a", None, 3))
    (tmp_path / "t" / "_delta_log" / f"{0:020}.json").write_text("garbage")
    with pytest.raises(WarehouseError, match=r"cannot be read or written .*check that it is a Delta table"):
        WarehouseTable(tmp_path, "t")
