"""Rows reach the files of their days, with bounded memory and open files (R30)."""

from __future__ import annotations

import errno
import json
import random
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from mainstem_loader.arrow_arrays import Array
from mainstem_loader.errors import WarehouseError
from mainstem_loader.table.day_files import DayFiles
from mainstem_loader.table.folder import Folder, explaining_file_errors
from mainstem_loader.table.parquet_files import WrittenFile


def rows(first: int, count: int, **more: Array) -> pa.Table:
    return pa.table({"_offset": pa.array(range(first, first + count)), **more})


def read(folder: Path, written: WrittenFile) -> pa.Table:
    return parquet.ParquetFile(folder / written.path).read()


def offsets_of(folder: Path, written: WrittenFile) -> list[int]:
    return [row["_offset"] for row in read(folder, written).to_pylist()]


def test_rows_go_to_the_file_of_their_day(tmp_path: Path) -> None:
    files = DayFiles(Folder.of(tmp_path), "part-run-0-1")
    files.append(np.array([15706, 15707, 15706], np.int32), rows(0, 3))
    files.append(np.array([15707], np.int32), rows(3, 1))
    written = {one.path: offsets_of(tmp_path, one) for one in files.close()}
    assert written == {
        "day=2013-01-01/part-run-0-1-1.parquet": [0, 2],
        "day=2013-01-02/part-run-0-1-2.parquet": [1, 3],
    }


def test_what_a_commit_needs_is_reported_of_each_file(tmp_path: Path) -> None:
    files = DayFiles(Folder.of(tmp_path), "part")
    files.append(
        np.array([0, 0, 0], np.int32), rows(7, 3, name=pa.array(["b", None, "a"]), x=pa.array([1.5] * 3))
    )
    (written,) = files.close()
    assert written.partition_values == {"day": "1970-01-01"}
    assert written.rows == 3
    assert written.size_bytes == (tmp_path / written.path).stat().st_size
    assert written.columns == {"_offset": pa.int64(), "name": pa.string(), "x": pa.float64()}
    assert json.loads(written.statistics) == {
        "numRecords": 3,
        "minValues": {"_offset": 7, "name": "a"},
        "maxValues": {"_offset": 9, "name": "b"},
        "nullCount": {"_offset": 0, "name": 1, "x": 0},
    }


def test_memory_and_open_files_stay_bounded(tmp_path: Path) -> None:
    seed = 4711
    chance = random.Random(seed)
    files = DayFiles(
        Folder.of(tmp_path),
        "part",
        waiting_bytes_max=4000,
        row_group_bytes=1000,
        file_bytes=10**9,
        open_files_max=5,
    )
    expected: dict[int, list[int]] = {}
    for block in range(60):
        days = np.array([chance.randrange(40) for _ in range(50)], np.int32)
        for index, day in enumerate(days.tolist()):
            expected.setdefault(day, []).append(block * 50 + index)
        files.append(days, rows(block * 50, 50))
        assert files._waiting_bytes <= 4000
        assert len(files._open) <= 5
    results: dict[str, list[int]] = {}
    for written in files.close():
        results.setdefault(written.partition_values["day"], []).extend(offsets_of(tmp_path, written))
    assert sorted(chain.from_iterable(results.values())) == list(range(3000)), f"seed {seed}"
    assert [sorted(results[day]) for day in sorted(results)] == [expected[day] for day in sorted(expected)]


def test_one_day_is_one_file_with_several_row_groups(tmp_path: Path) -> None:
    files = DayFiles(Folder.of(tmp_path), "part", row_group_bytes=1000)
    for block in range(10):
        files.append(np.zeros(100, np.int32), rows(block * 100, 100))
    (written,) = files.close()
    assert parquet.ParquetFile(tmp_path / written.path).num_row_groups > 1
    assert written.rows == 1000


def test_a_file_ends_when_it_is_large(tmp_path: Path) -> None:
    files = DayFiles(Folder.of(tmp_path), "part", row_group_bytes=1000, file_bytes=2000)
    noise = random.Random(1)
    for block in range(10):
        files.append(
            np.zeros(10, np.int32),
            rows(block * 10, 10, v=pa.array([noise.randbytes(200) for _ in range(10)])),
        )
    written = files.close()
    assert len(written) > 2
    assert sum(one.rows for one in written) == 100


def test_new_columns_begin_a_new_file_and_missing_ones_are_null(tmp_path: Path) -> None:
    files = DayFiles(Folder.of(tmp_path), "part", row_group_bytes=1)
    files.append(np.zeros(1, np.int32), rows(0, 1, a=pa.array([1])))
    files.append(np.zeros(1, np.int32), rows(1, 1, a=pa.array([1]), b=pa.array(["x"])))
    files.append(np.zeros(1, np.int32), rows(2, 1, b=pa.array(["y"])))
    tables = [read(tmp_path, one).to_pylist() for one in files.close()]
    assert tables == [
        [{"_offset": 0, "a": 1}],
        [{"_offset": 1, "a": 1, "b": "x"}, {"_offset": 2, "a": None, "b": "y"}],
    ]


def test_rows_that_wait_together_share_their_columns(tmp_path: Path) -> None:
    files = DayFiles(Folder.of(tmp_path), "part")
    files.append(np.zeros(1, np.int32), rows(0, 1, a=pa.array([1])))
    files.append(np.zeros(1, np.int32), rows(1, 1, a=pa.array([1.5]), s=pa.array([{"x": 1}])))
    files.append(np.zeros(1, np.int32), rows(2, 1, s=pa.array([{"y": True}])))
    (written,) = files.close()
    assert written.columns["a"] == pa.float64()
    assert read(tmp_path, written)["s"].to_pylist() == [None, {"x": 1, "y": None}, {"x": None, "y": True}]


@pytest.mark.parametrize("finished", [True, False])
def test_a_task_whose_files_cannot_be_finished_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    """R29: on a full disk; the error that the person sees is the first one."""
    files = DayFiles(Folder.of(tmp_path), "part", row_group_bytes=1)
    files.append(np.array([1, 2], np.int32), rows(0, 2))
    close = parquet.ParquetWriter.close

    def fail_to_close(writer: parquet.ParquetWriter) -> None:
        close(writer)
        raise RuntimeError("file metadata is only available after writer close")

    monkeypatch.setattr(parquet.ParquetWriter, "close", fail_to_close)
    if finished:
        with pytest.raises(RuntimeError, match="file metadata"):
            files.close()
    files.abandon()
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize("finished", [True, False])
def test_a_task_that_fails_leaves_nothing(tmp_path: Path, finished: bool) -> None:
    files = DayFiles(Folder.of(tmp_path), "part", row_group_bytes=1)
    files.append(np.array([1, 2], np.int32), rows(0, 2))
    if finished:
        files.close()
    files.abandon()
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_file_that_cannot_be_deleted_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R29: what stays is swept later."""
    files = DayFiles(Folder.of(tmp_path), "part", row_group_bytes=1)
    files.append(np.array([1, 2], np.int32), rows(0, 2))
    first, second = files.close()
    delete = Folder.delete

    def delete_all_but_the_first(folder: Folder, path: str) -> None:
        if path == first.path:
            raise OSError(errno.EIO, "Input/output error")
        delete(folder, path)

    monkeypatch.setattr(Folder, "delete", delete_all_but_the_first)
    files.abandon()
    assert not (tmp_path / second.path).exists()


def test_a_read_only_warehouse_is_reported_in_one_sentence(tmp_path: Path) -> None:
    error = OSError(errno.EROFS, "Read-only file system")
    with (
        pytest.raises(WarehouseError, match="is on a read-only file system"),
        explaining_file_errors(Folder.of(tmp_path)),
    ):
        raise error
