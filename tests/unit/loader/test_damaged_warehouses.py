"""Warehouses that others have damaged or altered, and disks that are full (R29, R30, R33)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, QueryBuilder
from tests.support.small_disk import can_mount, small_disk
from tests.unit.loader.fake_cluster import FakeCluster
from tests.unit.loader.test_load_topic import Loads
from tests.unit.loader.test_rewrite_rows import EVERYTHING, fill, places

from mainstem_loader.chosen_offsets import ChosenOffsets
from mainstem_loader.columns import TableFormat
from mainstem_loader.errors import DiskFullError, WarehouseError
from mainstem_loader.load_status import load_status
from mainstem_loader.maintain_table import maintain
from mainstem_loader.ranges import OffsetRange
from mainstem_loader.rewrite_rows import rewind
from mainstem_loader.table import delivery
from mainstem_loader.table.commits import WarehouseTable
from mainstem_loader.table.delta import commit_files

DISK_BYTES = 4 << 20


@pytest.fixture
def loads(cluster: FakeCluster, tmp_path: Path) -> Loads:
    found = Loads(cluster, tmp_path)
    for n in range(3):
        found.send({"n": n})
        found.load()
    return found


def delta(loads: Loads) -> DeltaTable:
    return DeltaTable(str(loads.warehouse / "t"))


def test_a_missing_data_file_is_named_and_its_rows_can_be_added_again(loads: Loads) -> None:
    """R33: somebody has vacuumed too much. Loads add rows as before."""
    lost = Path(delta(loads).file_uris()[0].removeprefix("file://"))
    lost.unlink()
    files = loads.files()
    said = rf"{lost.name}, which is not there\. .*DeltaTable\.repair"
    with pytest.raises(WarehouseError, match=said):
        fill(loads)
    with pytest.raises(WarehouseError, match=said):
        fill(loads, replace_rows=True)
    with pytest.raises(WarehouseError, match=said):
        rewind(loads.settings(), ChosenOffsets(ranges=(OffsetRange(0, 1, 3),)))
    assert files <= loads.files()
    loads.send({"n": 3})
    assert loads.load().loaded == 1
    with pytest.raises(WarehouseError, match=said):
        maintain(loads.settings())
    delta(loads).repair()
    assert len(places(loads)) == 3
    assert fill(loads).loaded == 1
    assert places(loads) == [(0, n) for n in range(4)]


def test_a_damaged_data_file_is_a_reason_and_not_a_crash(loads: Loads) -> None:
    """R33."""
    damaged = Path(delta(loads).file_uris()[0].removeprefix("file://"))
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-40] + bytes(40))
    with pytest.raises(WarehouseError, match="The files of table t cannot be read"):
        fill(loads)
    damaged.write_bytes(whole)
    assert fill(loads).read == 0


class PanicException(BaseException):
    """Named as that of PyO3, which cannot be imported."""


@pytest.mark.parametrize(
    ("owner", "function", "act"),
    [
        (DeltaTable, "is_deltatable", Loads.load),
        (DeltaTable, "__init__", Loads.load),
        (DeltaTable, "history", Loads.load),
        (DeltaTable, "metadata", Loads.load),
        (DeltaTable, "create_write_transaction", Loads.load),
        (DeltaTable, "get_add_actions", lambda loads: maintain(loads.settings())),
        (QueryBuilder, "execute", fill),
        (DeltaTable, "metadata", lambda loads: load_status(loads.settings())),
    ],
)
def test_a_panic_of_the_delta_library_is_an_error_with_the_tables_name(
    loads: Loads, monkeypatch: pytest.MonkeyPatch, owner: Any, function: str, act: Callable[[Loads], object]
) -> None:
    """It passes `except Exception`, and would end the process that loads the tables of many topics."""

    def panic(*_: object, **__: object) -> None:
        raise PanicException("index out of bounds: the len is 0\nnote: run with RUST_BACKTRACE=1")

    loads.send({"n": 3})
    with monkeypatch.context() as patch:
        patch.setattr(owner, function, panic)
        with pytest.raises(
            WarehouseError, match=r"/t cannot be .*gave up: index out of bounds: the len is 0\)"
        ):
            act(loads)
    assert loads.load().loaded == 1
    assert places(loads) == [(0, n) for n in range(4)]


def test_a_commit_that_panicked_after_it_was_made_is_recognised(
    loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = DeltaTable.create_write_transaction

    def panic(*arguments: Any, **more: Any) -> None:
        plain(*arguments, **more)
        monkeypatch.setattr(DeltaTable, "create_write_transaction", plain)
        raise PanicException("no answer")

    loads.send({"n": 3})
    monkeypatch.setattr(DeltaTable, "create_write_transaction", panic)
    assert loads.load().loaded == 1
    assert places(loads) == [(0, n) for n in range(4)]


def test_a_damaged_table_of_dead_letters_is_named(loads: Loads) -> None:
    loads.send(b"nonsense")
    loads.load(max_rejected_share=1)
    for commit in (loads.warehouse / "dead_letters" / "_delta_log").glob("*.json"):
        commit.write_text("garbage")
    for act in (fill, lambda loads: load_status(loads.settings())):
        with pytest.raises(WarehouseError, match=r"The table in .*/dead_letters cannot be read"):
            act(loads)


def test_an_append_only_table_is_loaded_and_its_rows_are_not_replaced(loads: Loads) -> None:
    """R33: it says which property forbids it, and works once that is changed back."""
    delta(loads).alter.set_table_properties({"delta.appendOnly": "true"})
    loads.send({"n": 3})
    assert loads.load().loaded == 1
    with pytest.raises(WarehouseError, match=r"append-only.* delta\.appendOnly to false"):
        rewind(loads.settings(), EVERYTHING)
    with pytest.raises(WarehouseError, match="append-only"):
        fill(loads, replace_rows=True)
    assert fill(loads).read == 0
    (warning,) = maintain(loads.settings()).warnings
    assert "append-only" in warning
    delta(loads).alter.set_table_properties({"delta.appendOnly": "false"})
    assert rewind(loads.settings(), EVERYTHING).removed == 4
    assert loads.load().loaded == 4


def fill_up(disk: Path) -> None:
    """Leave not one block."""
    with (disk / "ballast").open("wb", buffering=0) as file:
        size_bytes = DISK_BYTES
        while size_bytes:
            try:
                file.write(bytes(size_bytes))
            except OSError:
                size_bytes //= 2


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as mount_point:
        yield mount_point


@pytest.mark.processes
@pytest.mark.skipif(not can_mount(), reason="only root can mount the small disk that this test fills")
@pytest.mark.parametrize("full_at", ["data files", "commit", "dead letters"])
def test_what_a_full_disk_stopped_is_loaded_once_when_there_is_space(
    cluster: FakeCluster, disk: Path, full_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R29, R30: whatever the disk had no room for."""
    loads = Loads(cluster, disk / "tables")
    loads.send({"n": 0})
    loads.load()
    loads.send({"n": 1}, b"nonsense", {"n": 3})
    with monkeypatch.context() as patch:
        match full_at:
            case "data files":
                fill_up(disk)
            case "commit":
                commit = WarehouseTable.commit

                def commit_when_full(table: WarehouseTable, *arguments: Any) -> Any:
                    fill_up(disk)
                    return commit(table, *arguments)

                patch.setattr(WarehouseTable, "commit", commit_when_full)
            case _:

                def commit_files_when_full(*arguments: Any) -> None:
                    fill_up(disk)
                    commit_files(*arguments)

                patch.setattr(delivery, "commit_files", commit_files_when_full)
        with pytest.raises(DiskFullError, match="is full") as raised:
            loads.load(max_rejected_share=1)
    is_committed = full_at == "dead letters"
    assert ("nothing of this run was loaded" in str(raised.value)) is not is_committed
    assert ("dead letters of a run that was committed" in str(raised.value)) is is_committed
    assert [row["n"] for row in loads.rows("n")] == ([0, 1, 3] if is_committed else [0])
    # Full as it is, the disk stops the next load, too.
    with pytest.raises(DiskFullError):
        loads.load(max_rejected_share=1)
    (disk / "ballast").unlink()
    assert loads.load(max_rejected_share=1).loaded == (0 if is_committed else 2)
    assert loads.load(max_rejected_share=1).loaded == 0
    assert [row["n"] for row in loads.rows("n")] == [0, 1, 3]
    assert [row["_offset"] for row in loads.dead()] == [2]


@pytest.mark.processes
@pytest.mark.skipif(not can_mount(), reason="only root can mount the disk that this test makes read-only")
@pytest.mark.parametrize("table_format", list(TableFormat))
@pytest.mark.parametrize("holds", ["nothing", "the warehouse", "the table"])
def test_a_read_only_disk_is_named_and_loads_continue_once_it_is_not(
    cluster: FakeCluster, disk: Path, table_format: TableFormat, holds: str
) -> None:
    """Whatever is written first: a folder, the catalog, the table or its files."""
    loads = Loads(cluster, disk / "tables", table_format)
    loads.send({"n": 0})
    match holds:
        case "the warehouse":
            loads.warehouse.mkdir()
        case "the table":
            loads.load()
            loads.send({"n": 1})
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(WarehouseError, match=r"^/.*/tables\S* is on a read-only file system.* mount it"):
        loads.load()
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    loads.load()
    assert [row["n"] for row in loads.rows("n")] == ([0, 1] if holds == "the table" else [0])


def test_a_restored_table_is_not_loaded_on_before_its_missing_rows_are_added(loads: Loads) -> None:
    """R29: offsets outlive Delta's RESTORE, so a load would leave out the rows that it removed."""
    table = delta(loads)
    table.restore(table.version() - 1)
    assert len(places(loads)) == 2
    loads.send({"n": 3})
    with pytest.raises(WarehouseError, match=r"was restored to an older version.*load backfill"):
        loads.load()
    maintain(loads.settings())
    with pytest.raises(WarehouseError, match="was restored to an older version"):
        loads.load()
    assert fill(loads).loaded == 1
    assert loads.load().loaded == 1
    assert places(loads) == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_dead_letters_can_be_read_after_their_table_was_removed(loads: Loads) -> None:
    """R30: those of earlier loads were delivered, and their files are gone; they do not come back."""
    loads.send(b"nonsense")
    loads.load(max_rejected_share=1)
    shutil.rmtree(loads.warehouse / "dead_letters")
    loads.send({"n": 4})
    assert loads.load().loaded == 1
    loads.send(b"more nonsense")
    loads.load(max_rejected_share=1)
    assert [row["value"] for row in loads.dead()] == [b"more nonsense"]
