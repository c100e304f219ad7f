"""What moves a log's start and end: DeleteRecords, retention, truncation."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.unit.broker.log.followed_logs import SIZE_BYTES, follow
from tests.unit.broker.log.logs import NOW_MS, Stored, append, open_log, read_all, settings

from mainstem_broker.errors import OffsetOutOfRange, StorageError
from mainstem_broker.log.checkpoints import read_epochs
from mainstem_broker.log.leader_epochs import EpochEntry
from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.log.retention import DeletionReason
from mainstem_broker.log.segment import Segment


def test_deleting_records_moves_the_start_and_never_back(log: PartitionLog) -> None:
    """R4."""
    append(log, [b"x"] * 10, leader_epoch=2)
    assert log.delete_records_before(4) == 4
    assert log.delete_records_before(3) == 4
    assert not log.maybe_increment_log_start_offset(4)
    assert log.epochs.entries == (EpochEntry(2, 4),)
    assert [stored.offset for stored in read_all(log)] == list(range(4, 10))
    with pytest.raises(OffsetOutOfRange):
        log.delete_records_before(11)


def test_segments_before_the_start_go_with_the_next_check(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings(segment_bytes=SIZE_BYTES, retention_ms=-1))
    for _ in range(4):
        append(log, [b"x"])
    log.delete_records_before(2)
    deleted = log.delete_old_segments(NOW_MS, 4)
    assert [(segment.base_offset, segment.reason) for segment in deleted] == [
        (0, DeletionReason.LOG_START),
        (1, DeletionReason.LOG_START),
    ]
    assert log.delete_old_segments(NOW_MS, 4) == []


def test_old_segments_go_and_the_start_follows(tmp_path: Path) -> None:
    """R4."""
    log = open_log(tmp_path, settings(segment_bytes=SIZE_BYTES, retention_ms=1000))
    for age_ms in (5000, 4000, 100, 50):
        append(log, [b"x"], timestamp_ms=NOW_MS - age_ms)
    assert log.delete_old_segments(NOW_MS, 1) != []
    assert log.log_start_offset == 1, "nothing from the high watermark on"
    assert [segment.base_offset for segment in log.delete_old_segments(NOW_MS, 4)] == [1]
    assert log.log_start_offset == 2
    assert [stored.offset for stored in read_all(log)] == [2, 3]


def test_an_empty_segment_takes_the_place_of_a_newest_one_that_is_old(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings(retention_ms=1000))
    append(log, [b"x"] * 3, timestamp_ms=1)
    assert len(log.delete_old_segments(NOW_MS, 3)) == 1
    assert (log.log_start_offset, log.log_end_offset, len(log.segments)) == (3, 3, 1)
    assert log.delete_old_segments(NOW_MS, 3) == []
    append(log, [b"y"])
    assert read_all(log) == [Stored(3, b"y")]


def test_records_without_timestamps_age_with_their_file(tmp_path: Path) -> None:
    config = settings(retention_ms=1000)
    log = open_log(tmp_path, config)
    append(log, [b"x"], timestamp_ms=-1)
    log.close()
    os.utime(log.directory / f"{0:020d}.log", (0, 1))
    log = open_log(tmp_path, config)
    assert log.delete_old_segments(1001, 1) == []
    assert len(log.delete_old_segments(2001, 1)) == 1


def test_truncation_below_the_start_empties_the_log(log: PartitionLog) -> None:
    append(log, [b"x"] * 10)
    log.delete_records_before(8)
    log.truncate_to(5)
    assert (log.log_start_offset, log.log_end_offset) == (5, 5)


def test_a_log_begun_afresh_starts_and_ends_where_reported(log: PartitionLog) -> None:
    append(log, [b"x"] * 10)
    log.truncate_fully_and_start_at(1000)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (1000, 1000, 0)
    assert log.epochs.entries == ()
    append(log, [b"y"])
    assert read_all(log) == [Stored(1000, b"y")]


def test_nothing_is_appended_before_a_truncation_is_written_down(log: PartitionLog) -> None:
    """R6: a checkpoint that says more than is true would hide a torn batch."""
    for _ in range(4):
        append(log, [b"x"])
    log.mark_flushed(log.flush())
    ends: list[tuple[int, int]] = []

    def write(truncated: PartitionLog) -> None:
        ends.append((truncated.log_end_offset, truncated.recovery_point))
        truncated.truncations_written = truncated.truncation_count

    log.write_truncations = write
    log.truncate_to(2)
    assert log.last_lowering == log.truncation_count == 1
    assert ends == []
    append(log, [b"y"])
    append(log, [b"y"])
    assert ends == [(2, 2)]


def test_a_truncation_syncs_nothing(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """It happens on the event loop; thousands may follow a failover."""
    for epoch in range(4):
        append(log, [b"x"], leader_epoch=epoch)
    log.mark_flushed(log.flush())
    monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("an fsync on the event loop"))
    log.truncate_to(2)
    log.truncate_fully_and_start_at(9)


def test_a_copy_begins_with_the_whole_batch_that_holds_the_start(log: PartitionLog) -> None:
    """R4, R19: DeleteRecords may end within a batch, of which a new replica gets all (KAFKA-6975)."""
    log.truncate_fully_and_start_at(5)
    follow(log, 0, 10, leader_epoch=3)
    assert (log.log_start_offset, log.log_end_offset) == (5, 10)
    assert log.epochs.entries == (EpochEntry(3, 5),)
    assert [segment.base_offset for segment in log.segments] == [0]
    assert log.read(5, 10_000, 10, min_one_batch=True).end_offset == 10
    with pytest.raises(OffsetOutOfRange):
        log.read(4, 10_000, 10, min_one_batch=True)
    follow(log, 10, 2, leader_epoch=3)
    assert log.log_end_offset == 12


@pytest.mark.parametrize("clean", [True, False])
def test_a_copy_that_begins_below_its_start_opens_again_as_it_was(
    log: PartitionLog, tmp_path: Path, clean: bool
) -> None:
    """R6."""
    log.truncate_fully_and_start_at(5)
    log.mark_flushed(log.flush())
    follow(log, 0, 10)
    assert log.recovery_point == 0, "nothing of the batch is durable yet"
    if clean:
        log.close()
    log = open_log(tmp_path, clean=clean, log_start_offset=5)
    assert (log.log_start_offset, log.log_end_offset) == (5, 10)
    assert [stored.offset for stored in read_all(log)] == list(range(5, 10))


def test_a_full_disk_leaves_a_copy_empty_at_its_start_until_it_is_tried_again(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R19."""
    log.truncate_fully_and_start_at(5)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(Segment, "write", fail)
        with pytest.raises(StorageError):
            follow(log, 0, 10)
    assert (log.log_start_offset, log.log_end_offset) == (5, 5)
    follow(log, 0, 10)
    assert (log.log_start_offset, log.log_end_offset) == (5, 10)


@pytest.mark.parametrize(("base_offset", "count"), [(0, 5), (3, 2)])
def test_a_batch_that_ends_at_the_start_of_an_empty_log_is_refused(
    log: PartitionLog, base_offset: int, count: int
) -> None:
    log.truncate_fully_and_start_at(5)
    with pytest.raises(OffsetOutOfRange):
        follow(log, base_offset, count)


def test_a_log_with_records_refuses_a_batch_that_begins_below_its_end(log: PartitionLog) -> None:
    append(log, [b"x"] * 5)
    log.delete_records_before(3)
    with pytest.raises(OffsetOutOfRange):
        follow(log, 3, 10)


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("recovery_point", [0, 3, 6])
def test_no_epoch_begins_past_the_end_after_a_crash_between_a_truncation_and_its_checkpoint(
    log: PartitionLog, tmp_path: Path, is_full: bool, recovery_point: int
) -> None:
    """The file still has the epochs of what is gone; whatever is written next, it has not."""
    for epoch in (1, 1, 1, 2, 2, 2, 3, 3):
        append(log, [b"x"], leader_epoch=epoch)
    log.begin_epoch(4)
    log.write_epochs()
    if is_full:
        log.truncate_fully_and_start_at(2)
    else:
        log.truncate_to(5)
    end_offset = log.log_end_offset
    assert read_epochs(tmp_path / "t-0").entries[-1] == (4, 8)

    again = open_log(tmp_path, clean=False, recovery_point=min(recovery_point, end_offset))
    assert again.log_end_offset == end_offset
    assert all(entry.start_offset <= end_offset for entry in again.epochs.entries)
    assert again.epochs.latest_epoch < 3
    again.flush()
    assert read_epochs(again.directory).entries == again.epochs.entries


@pytest.mark.parametrize("offset", [50, 5])
def test_a_full_disk_leaves_a_log_as_it_was_when_it_cannot_begin_afresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    """R7: a follower whose next record is gone at the leader is asked to start over, and may be elected."""
    log = open_log(tmp_path)
    append(log, [b"x"] * 10)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(Segment, "create", fail)
        with pytest.raises(StorageError) as failure:
            log.truncate_fully_and_start_at(offset)
    assert not failure.value.is_failure
    assert [stored.offset for stored in read_all(log)] == list(range(10))
    append(log, [b"y"])
    assert log.log_end_offset == 11
    log.truncate_fully_and_start_at(offset)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (offset, offset, 0)
    log.close()
    assert open_log(tmp_path, clean=True, log_start_offset=offset).log_end_offset == offset


def test_a_log_begins_afresh_where_one_of_its_segments_begins(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings(segment_bytes=SIZE_BYTES))
    for _ in range(4):
        append(log, [b"x"])
    log.truncate_fully_and_start_at(2)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (2, 2, 0)
    append(log, [b"y"])
    assert [stored.offset for stored in read_all(log)] == [2]
    log.close()
    log = open_log(tmp_path, clean=True, log_start_offset=2)
    assert [segment.base_offset for segment in log.segments] == [2]
    assert [stored.offset for stored in read_all(log)] == [2]
