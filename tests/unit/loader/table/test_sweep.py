"""Orphans are deleted when no run can commit them any more, by the table that they were written for."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.unit.loader.table.commits_of_loads import DAY, Tables, load, write_file, write_letters

from mainstem_loader.columns import TableFormat
from mainstem_loader.errors import SettingsError
from mainstem_loader.table.commits import CommitOutcome, WarehouseTable
from mainstem_loader.table.dead_letters import letters_path
from mainstem_loader.table.folder import Folder
from mainstem_loader.table.parquet_files import FileOrigin, file_name, origin_of_file
from mainstem_loader.table.sweep import COMMIT_WITHIN_HOURS, ORPHAN_HOURS_MIN

RUN = "20130101T000000-0123abcd"
OTHER_RUN = "20130101T000000-89abcdef"


def make_old(*paths: Path) -> None:
    old_s = time.time() - ORPHAN_HOURS_MIN * 3600 - 60
    for path in paths:
        os.utime(path, (old_s, old_s))


def test_orphans_are_swept_when_they_are_old(tables: Tables) -> None:
    table = tables.open()
    committed = load(table, file_name(RUN, 0, 0) + "-1", None, 3, dead=[1])
    table.commit(committed)
    folder, letters = Path(table.folder.url), Path(table.dead_letter_folder.url)
    young = write_file(folder, file_name(OTHER_RUN, 0, 1) + "-1", [7])
    old = write_file(folder, file_name(OTHER_RUN, 0, 2) + "-1", [8])
    old_letters = write_letters(letters, f"{table.unique_name}-{file_name(OTHER_RUN, 0, 2)}", [8])
    make_old(folder / old.path, letters / old_letters.path)
    make_old(*(folder / written.path for written in committed.files))
    assert tables.open().sweep_orphans(ORPHAN_HOURS_MIN) == 2
    assert (folder / young.path).exists()
    assert tables.offsets() == [0, 1, 2]
    assert tables.dead_offsets() == [1]


def test_a_file_that_is_committed_during_a_sweep_stays(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R29: it is an orphan, and old, when files are listed."""
    table = tables.open()
    table.commit(load(table, file_name(RUN, 0, 0) + "-1", None, 3))
    late = load(table, file_name(OTHER_RUN, 0, 0) + "-1", 3, 5)
    make_old(*(Path(table.folder.url) / written.path for written in late.files))
    list_files = Folder.files

    def list_and_commit(self: Folder) -> list[tuple[str, float]]:
        files = list_files(self)
        monkeypatch.setattr(Folder, "files", list_files)
        assert tables.open().commit(late) is CommitOutcome.COMMITTED
        return files

    monkeypatch.setattr(Folder, "files", list_and_commit)
    assert table.sweep_orphans(ORPHAN_HOURS_MIN) == 0
    assert tables.offsets() == [0, 1, 2, 3, 4]


def test_letters_that_another_table_has_not_delivered_yet_are_not_swept(tables: Tables) -> None:
    other = tables.open("u")
    other.commit(load(other, file_name(OTHER_RUN, 0, 0) + "-1", None, 3))
    folder = Path(other.dead_letter_folder.url)
    letters = write_letters(folder, f"{other.unique_name}-{file_name(OTHER_RUN, 0, 0)}", [1])
    make_old(folder / letters.path)
    table = tables.open()
    table.commit(load(table, file_name(RUN, 0, 0) + "-1", None, 3))
    assert table.sweep_orphans(ORPHAN_HOURS_MIN) == 0
    assert (folder / letters.path).exists()


def test_letters_of_tables_with_long_names_are_swept_by_their_own(tables: Tables) -> None:
    """R30: files begin with the table's name, of which only a part and a digest fit."""
    one, other = tables.open("x" * 248 + "1"), tables.open("x" * 248 + "2")
    one.commit(load(one, file_name(RUN, 0, 0) + "-1", None, 3))
    path = letters_path("t", other.unique_name, file_name(OTHER_RUN, 0, 0))
    orphan = tables.warehouse / "dead_letters" / path
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"PAR1")
    make_old(orphan)
    assert one.sweep_orphans(ORPHAN_HOURS_MIN) == 0
    other.commit(load(other, file_name(RUN, 0, 0) + "-2", None, 3))
    assert other.sweep_orphans(ORPHAN_HOURS_MIN) == 1


def test_letters_of_a_table_of_the_same_name_and_another_format_are_not_swept(tmp_path: Path) -> None:
    delta, iceberg = (Tables(tmp_path, table_format).open() for table_format in TableFormat)
    folder = Path(delta.dead_letter_folder.url)
    for table, other in ((delta, iceberg), (iceberg, delta)):
        table.commit(load(table, file_name(RUN, 0, 0) + "-1", None, 3))
        letters = write_letters(folder, f"{other.unique_name}-{file_name(OTHER_RUN, 0, 0)}", [1])
        make_old(folder / letters.path)
        assert table.sweep_orphans(ORPHAN_HOURS_MIN) == 0
        (folder / letters.path).unlink()


def test_files_that_no_load_wrote_are_not_swept(tables: Tables) -> None:
    table = tables.open()
    table.commit(load(table, file_name(RUN, 0, 0) + "-1", None, 3))
    foreign = Path(table.folder.url) / f"day={DAY}" / "00000-0-8f2b.parquet"
    foreign.write_text("mine")
    make_old(foreign)
    assert table.sweep_orphans(ORPHAN_HOURS_MIN) == 0
    assert foreign.exists()


def test_files_of_a_snapshot_that_can_still_be_read_are_not_swept(iceberg_tables: Tables) -> None:
    table = iceberg_tables.open()
    committed = load(table, file_name(RUN, 0, 0) + "-1", None, 3)
    table.commit(committed)
    make_old(*(Path(table.folder.url) / written.path for written in committed.files))
    first = iceberg_tables.iceberg().current_snapshot().snapshot_id
    iceberg_tables.iceberg().delete("_offset >= 0")
    assert iceberg_tables.open().sweep_orphans(ORPHAN_HOURS_MIN) == 0
    assert iceberg_tables.iceberg().scan(snapshot_id=first).to_arrow().num_rows == 3
    iceberg_tables.iceberg().maintenance.expire_snapshots().by_ids([first]).commit()
    assert iceberg_tables.open().sweep_orphans(ORPHAN_HOURS_MIN) == 1


def test_a_warehouse_below_a_tables_folder_is_not_swept(tables: Tables) -> None:
    table = tables.open()
    table.commit(load(table, file_name(RUN, 0, 0) + "-1", None, 3))
    inner = Tables(Path(table.folder.url), tables.format)
    below = inner.open("u")
    committed = load(below, file_name(OTHER_RUN, 0, 0) + "-1", None, 3)
    below.commit(committed)
    make_old(*(Path(below.folder.url) / written.path for written in committed.files))
    assert table.sweep_orphans(ORPHAN_HOURS_MIN) == 0
    assert inner.offsets("u") == [0, 1, 2]


def test_sweeping_delivers_dead_letters_first(tables: Tables) -> None:
    table = tables.open()
    commit = load(table, file_name(RUN, 0, 0) + "-1", None, 3, dead=[1])
    table.commit(commit)
    make_old(*(Path(table.dead_letter_folder.url) / written.path for written in commit.dead_files))
    assert table.sweep_orphans(ORPHAN_HOURS_MIN) == 0
    assert tables.dead_offsets() == [1]


@pytest.mark.parametrize("hours", [0, 1, ORPHAN_HOURS_MIN - 1])
def test_files_that_a_running_load_may_commit_are_never_swept(tables: Tables, hours: int) -> None:
    table = tables.open()
    with pytest.raises(SettingsError, match="24 hours at the earliest"):
        table.sweep_orphans(hours)
    assert ORPHAN_HOURS_MIN >= 2 * COMMIT_WITHIN_HOURS


def test_a_sweep_is_due_once_a_day(tables: Tables) -> None:
    assert not WarehouseTable(tables.warehouse, "t", catalog=tables.catalog).is_sweep_due()
    table = tables.open()
    table.commit(load(table, file_name(RUN, 0, 0) + "-1", None, 3))
    assert table.is_sweep_due()
    table.sweep_orphans(ORPHAN_HOURS_MIN)
    table.reload()
    assert not table.is_sweep_due()


@pytest.mark.parametrize(
    ("path", "origin"),
    [
        (f"day=2013-01-01/{file_name(RUN, 3, 12)}-1.parquet", FileOrigin(RUN, None)),
        (f"topic=t/my-part-table-{file_name(RUN, 3, 12)}.parquet", FileOrigin(RUN, "my-part-table")),
        ("day=2013-01-01/part-00000-c000.snappy.parquet", None),
        ("_delta_log/00000000000000000000.json", None),
    ],
)
def test_the_name_of_a_file_says_which_run_wrote_it(path: str, origin: FileOrigin | None) -> None:
    assert origin_of_file(path) == origin
