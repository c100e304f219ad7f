"""Full and failing disks under a log."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.broker.log.followed_logs import SIZE_BYTES, follow
from tests.unit.broker.log.logs import (
    NOW_MS,
    Stored,
    append,
    find_by_time,
    find_latest,
    open_log,
    read_all,
    settings,
)

from mainstem_broker.errors import StorageError
from mainstem_broker.log.partition_log import PartitionLog


def test_a_full_disk_refuses_appends_and_harms_nothing_else(
    log: PartitionLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R6."""
    append(log, [b"before"])
    real_pwritev = os.pwritev
    with monkeypatch.context() as full:
        full.setattr(
            os, "pwritev", lambda fd, buffers, at: real_pwritev(fd, [bytes(buffers[0]), b"half of it"], at)
        )
        for _ in range(3):
            with pytest.raises(StorageError, match="No space left on device"):
                append(log, [b"too much"], leader_epoch=8)
        with pytest.raises(StorageError):
            follow(log, 1, 1, leader_epoch=8)
        assert read_all(log) == [Stored(0, b"before")]
    assert append(log, [b"after"]).first_offset == 1
    assert log.epochs.latest_epoch == 0
    log.close()
    assert read_all(open_log(tmp_path)) == [Stored(0, b"before"), Stored(1, b"after")]


def test_a_segment_that_cannot_begin_for_lack_of_space_begins_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, settings(segment_bytes=SIZE_BYTES))
    append(log, [b"a"])
    real_open = os.open

    def no_new_files(path: Path, flags: int, *rest: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_open(path, flags, *rest)

    with monkeypatch.context() as full:
        full.setattr(os, "open", no_new_files)
        with pytest.raises(StorageError, match="No space left on device"):
            append(log, [b"b"])
        assert read_all(log) == [Stored(0, b"a")]
    append(log, [b"b"])
    assert read_all(log) == [Stored(0, b"a"), Stored(1, b"b")]


@pytest.mark.parametrize("count", [1, 3], ids=["one segment", "several segments"])
@pytest.mark.parametrize(
    "make_due",
    [
        pytest.param(
            lambda log: log.update_config(replace(log.config, retention_ms=1_000)), id="retention.ms"
        ),
        pytest.param(lambda log: log.delete_records_before(log.log_end_offset), id="DeleteRecords"),
    ],
)
def test_a_full_disk_is_freed_of_all_segments_that_are_due(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    make_due: Callable[[PartitionLog], object],
) -> None:
    """R6: also of the newest one, whose index entries there is no space for."""
    log = open_log(tmp_path, settings(segment_bytes=2 * SIZE_BYTES, index_interval_bytes=0))
    for _ in range(2 * count):
        append(log, [b"x"], timestamp_ms=NOW_MS - 10_000)
    make_due(log)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", fail)
        full.setattr(os, "pwritev", fail)
        full.setattr(Path, "write_bytes", fail)
        assert len(log.delete_old_segments(NOW_MS, log.log_end_offset)) == count
    assert (log.size_bytes, log.log_start_offset, len(log.segments)) == (0, 2 * count, 1)
    append(log, [b"y"])
    log.close()
    assert read_all(open_log(tmp_path)) == [Stored(2 * count, b"y")]


def test_segments_that_are_due_go_though_there_is_no_space_for_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R6."""
    log = open_log(tmp_path, settings(segment_bytes=SIZE_BYTES, retention_ms=1_000))
    for _ in range(3):
        append(log, [b"x"], timestamp_ms=NOW_MS - 10_000)
    real_open = os.open

    def no_new_files(path: Path, flags: int, *rest: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_open(path, flags, *rest)

    with monkeypatch.context() as full:
        full.setattr(os, "open", no_new_files)
        with pytest.raises(StorageError, match="No space left on device"):
            log.delete_old_segments(NOW_MS, 3)
    assert log.log_start_offset == 2
    assert read_all(log) == [Stored(2, b"x")]
    assert [segment.base_offset for segment in log.delete_old_segments(NOW_MS, 3)] == [2]


@pytest.mark.parametrize(
    ("function", "operation"),
    [
        pytest.param("fsync", lambda log: log.flush(), id="flush"),
        pytest.param("fsync", lambda log: log.close(), id="close"),
        pytest.param("ftruncate", lambda log: log.truncate_to(1), id="truncate"),
        pytest.param("rename", lambda log: log.delete(), id="delete"),
        pytest.param("pread", lambda log: find_by_time(log, NOW_MS), id="time look-up"),
        pytest.param("pread", find_latest, id="latest record"),
        pytest.param("pread", lambda log: log.read(0, 1, 2, True), id="read"),
    ],
)
def test_a_failing_disk_is_a_storage_error_that_names_the_log(
    log: PartitionLog,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    operation: Callable[[PartitionLog], object],
) -> None:
    """R8: one partition's disk is not another's."""
    append(log, [b"x", b"y"])
    append(log, [b"z"])

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, function, fail)
        with pytest.raises(StorageError, match=f"{log.directory}: .* failed: Input/output error"):
            operation(log)
