"""Flushing a log while it is appended to, truncated and deleted."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.unit.broker.log.followed_logs import SIZE_BYTES
from tests.unit.broker.log.logs import NOW_MS, append, open_log, settings

from mainstem_broker.log import checkpoints
from mainstem_broker.log.leader_epochs import EpochEntry
from mainstem_broker.log.partition_log import PartitionLog


def test_a_flush_of_a_log_that_is_deleted_meanwhile_is_no_failure_of_its_disk(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, [b"x"])
    failures: list[str] = []
    log.disk_failed = lambda: failures.append("disk")
    write_epochs = checkpoints.write_epochs

    def deleting(directory: Path, entries: Iterable[EpochEntry]) -> None:
        log.delete()
        write_epochs(directory, entries)

    monkeypatch.setattr(checkpoints, "write_epochs", deleting)
    log.flush()
    assert failures == []


def test_a_flush_says_up_to_where_everything_is_safe(log: PartitionLog) -> None:
    append(log, [b"x"] * 4)
    log.mark_flushed(log.flush(), NOW_MS)
    assert log.recovery_point == 4


def test_a_truncation_during_a_flush_bounds_what_it_may_claim(log: PartitionLog) -> None:
    """What is written after the cut was not on the disk when the flush was."""
    for _ in range(4):
        append(log, [b"x"])
    flushed = log.flush()
    log.truncate_to(2)
    append(log, [b"y"] * 10)
    log.mark_flushed(flushed)
    assert log.recovery_point == 2
    log.mark_flushed(log.flush())
    assert log.recovery_point == 12


def test_flushes_are_due_by_count_by_time_and_after_a_roll(tmp_path: Path) -> None:
    """R3."""
    log = open_log(tmp_path, settings(flush_messages=3))
    append(log, [b"x"] * 2)
    assert not log.flush_is_due(NOW_MS)
    append(log, [b"x"])
    assert log.flush_is_due(NOW_MS)
    log.update_config(settings(flush_ms=1000))
    assert not log.flush_is_due(NOW_MS + 999)
    assert log.flush_is_due(NOW_MS + 1000)
    log.mark_flushed(log.flush(), NOW_MS + 1000)
    assert not log.flush_is_due(NOW_MS + 5000)
    log.update_config(settings(segment_bytes=SIZE_BYTES))
    append(log, [b"x"])
    append(log, [b"x"])
    assert log.flush_is_due(NOW_MS)


def test_fewer_than_flush_messages_are_acknowledged_before_they_are_durable(tmp_path: Path) -> None:
    """R3."""
    log = open_log(tmp_path, settings(flush_messages=3))
    append(log, [b"x"] * 2)
    assert log.acknowledgeable_offset == 2
    append(log, [b"x"] * 5)
    assert log.acknowledgeable_offset == 2
    log.mark_flushed(log.flush())
    assert log.acknowledgeable_offset == 7
    log.update_config(settings())
    append(log, [b"x"] * 100)
    assert log.acknowledgeable_offset == 107


def test_the_acknowledgeable_offset_lies_between_batches(tmp_path: Path) -> None:
    """R3: consumers would be sent all of the batch that it lay in."""
    log = open_log(tmp_path, settings(flush_messages=5))
    append(log, [b"x"] * 10)
    assert log.acknowledgeable_offset == 0
    log.mark_flushed(log.flush())
    assert log.acknowledgeable_offset == 10
    append(log, [b"x"] * 3)
    append(log, [b"x"] * 10)
    assert log.acknowledgeable_offset == 13
    log.truncate_to(11)
    assert log.acknowledgeable_offset == log.log_end_offset == 10
    append(log, [b"x"] * 10)
    assert log.acknowledgeable_offset == 10
    log.update_config(settings())
    append(log, [b"x"])
    log.update_config(settings(flush_messages=1))
    assert log.acknowledgeable_offset == 10


def test_a_flush_reaches_every_segment_since_the_recovery_point_and_the_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, settings(segment_bytes=SIZE_BYTES))
    for _ in range(4):
        append(log, [b"x"])
    log.mark_flushed(2)
    synced: set[str] = set()
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    log.flush()
    assert {f"{base:020d}.log" for base in (1, 2, 3)} <= synced
    assert {f"{base:020d}{suffix}" for base in (1, 2) for suffix in (".index", ".timeindex")} <= synced
    assert {"leader-epoch-checkpoint.tmp", "t-0", tmp_path.name} <= synced
    assert f"{0:020d}.log" not in synced


def test_a_flush_in_a_thread_bears_appends_rolls_and_deletions_meanwhile(tmp_path: Path) -> None:
    config = settings(segment_bytes=5 * SIZE_BYTES, retention_bytes=20 * SIZE_BYTES)
    log = open_log(tmp_path, config)
    stop = threading.Event()
    failures: list[Exception] = []
    flushed: list[int] = []

    def flush_again_and_again() -> None:
        try:
            while not stop.is_set():
                flushed.append(log.flush())
        except Exception as error:  # noqa: BLE001  # a thread has no caller to raise to
            failures.append(error)

    thread = threading.Thread(target=flush_again_and_again)
    thread.start()
    number = 0
    while len(flushed) < 20 and not failures:
        append(log, [b"x"], leader_epoch=number // 50)
        number += 1
        if number % 40 == 0:
            log.delete_old_segments(NOW_MS, log.log_end_offset)
        if number % 170 == 0:
            log.truncate_to(log.log_end_offset - 3)
    stop.set()
    thread.join()
    assert failures == []
    assert flushed[-1] <= number
