from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.support.record_batches import encode_batch
from tests.unit.broker.log.logs import (
    NOW_MS,
    Stored,
    append,
    messages,
    open_log,
    read_all,
    read_batches,
    settings,
)

from mainstem_broker.errors import CorruptMessage, OffsetOutOfRange, StorageError
from mainstem_broker.log.deletion import unlink_all
from mainstem_broker.log.epochs import EpochEntry
from mainstem_broker.log.partition_log import AppendInfo, PartitionLog, parse_directory_name
from mainstem_broker.log.retention import DeletionReason
from mainstem_broker.protocol.batches import crc_matches, parse_batch_header, split_batches

SIZE_BYTES = len(encode_batch(messages([b"x"])))


def follow(log: PartitionLog, base_offset: int, count: int, leader_epoch: int = 0) -> AppendInfo:
    records = encode_batch(messages([b"x"] * count), base_offset=base_offset, leader_epoch=leader_epoch)
    return log.append_as_follower(records, NOW_MS)


# Appending


def test_the_leader_gives_offsets_one_after_another(tmp_path: Path) -> None:
    """R2."""
    log = open_log(tmp_path)
    first, second = append(log, [b"a", b"b"]), append(log, [b"c"], leader_epoch=3)
    assert first == AppendInfo(0, 1, NOW_MS + 1, -1, 0)
    assert second == AppendInfo(2, 2, NOW_MS, -1, 0)
    assert read_all(log) == [Stored(0, b"a"), Stored(1, b"b"), Stored(2, b"c")]


def test_a_stored_batch_differs_from_the_sent_one_only_in_offset_and_epoch(tmp_path: Path) -> None:
    """R7."""
    log = open_log(tmp_path)
    append(log, [b"before"])
    sent = encode_batch(messages([b"a", b"b"]), base_offset=99, leader_epoch=0)
    log.append_as_leader(memoryview(sent), parse_batch_header(sent), 5, NOW_MS)
    stored = read_batches(log, 1)[0]
    header = parse_batch_header(stored)
    assert (header.base_offset, header.partition_leader_epoch) == (1, 5)
    assert crc_matches(header, stored)
    assert stored[16:] == sent[16:]


def test_a_batch_that_is_not_as_long_as_its_header_says_is_a_mistake_of_ours(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    sent = encode_batch(messages([b"a"]))
    with pytest.raises(ValueError, match="batch"):
        log.append_as_leader(sent + b"x", parse_batch_header(sent), 0, NOW_MS)


def test_a_follower_keeps_offsets_and_epochs_as_they_come(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    records = b"".join(
        encode_batch(messages([b"x"] * count), base_offset=base, leader_epoch=epoch)
        for base, count, epoch in ((0, 2, 1), (2, 1, 1), (10, 3, 4))
    )
    info = log.append_as_follower(records, NOW_MS)
    assert (info.first_offset, info.last_offset, log.log_end_offset) == (0, 12, 13)
    assert b"".join(read_batches(log)) == records
    assert log.epochs.entries == (EpochEntry(1, 0), EpochEntry(4, 10))


def test_a_follower_leaves_out_a_partial_last_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    whole = encode_batch(messages([b"x"]))
    log.append_as_follower(whole + encode_batch(messages([b"y"]), base_offset=1)[:-1], NOW_MS)
    assert log.log_end_offset == 1
    with pytest.raises(CorruptMessage, match="no whole batch"):
        log.append_as_follower(whole[:-1], NOW_MS)


def test_a_follower_refuses_what_is_corrupt_or_goes_back_and_takes_nothing(tmp_path: Path) -> None:
    """R6."""
    log = open_log(tmp_path)
    follow(log, 0, 3)
    good = encode_batch(messages([b"x"]), base_offset=3)
    with pytest.raises(CorruptMessage, match="checksum"):
        log.append_as_follower(good + encode_batch(messages([b"y"]), base_offset=4, crc=1), NOW_MS)
    for base in (2, 0):
        with pytest.raises(OffsetOutOfRange, match="log's end, 3"):
            follow(log, base, 3)
    assert log.log_end_offset == 3
    assert log.size_bytes == len(read_batches(log)[0])


def test_each_new_epoch_is_noted_with_its_first_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for epoch in (0, 0, 2, 2, 5):
        append(log, [b"x"], leader_epoch=epoch)
    assert log.epochs.entries == (EpochEntry(0, 0), EpochEntry(2, 2), EpochEntry(5, 4))


# Reading


def test_a_read_is_a_slice_of_the_file_that_holds_whole_batches(tmp_path: Path) -> None:
    """R3: what `sendfile` needs."""
    log = open_log(tmp_path)
    for count in (1, 2, 3):
        append(log, [b"x"] * count)
    found = log.read(1, 1 << 20, log.log_end_offset, True)
    assert found.slice is not None
    assert (found.slice.base_offset, found.end_offset) == (1, 6)
    assert found.slice.position == SIZE_BYTES
    content = (log.directory / f"{0:020d}.log").read_bytes()
    assert found.slice.read() == content[SIZE_BYTES:]
    assert found.slice.file.descriptor >= 0


def test_every_offset_from_start_to_end_is_valid_and_no_other(tmp_path: Path) -> None:
    """R13. Between the high watermark and the log's end the answer is empty, not an error."""
    log = open_log(tmp_path)
    append(log, [b"x"] * 5)
    append(log, [b"x"] * 5)
    log.delete_records_before(2)
    for offset in range(2, 11):
        found = log.read(offset, 1000, 5, True)
        assert (found.slice is None) == (offset >= 5)
        assert found.end_offset == (5 if offset < 5 else offset)
    for offset in (-1, 0, 1, 11):
        with pytest.raises(OffsetOutOfRange, match="between 2 and 10"):
            log.read(offset, 1000, 10, True)


def test_batches_that_begin_at_the_upper_bound_are_left_out(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(10):
        append(log, [b"x"])
    for bound in range(11):
        found = log.read(0, 1 << 20, bound, True)
        assert found.end_offset == bound
        assert (found.slice.read().count(b"\x02x") if found.slice else 0) == bound
    assert log.read(0, 1 << 20, 99, True).end_offset == 10


@pytest.mark.parametrize("reopened", [False, True])
def test_max_bytes_gives_whole_batches_that_fit_and_the_first_whole_when_asked(
    tmp_path: Path, reopened: bool
) -> None:
    """R13, KIP-74."""
    config = settings(index_interval_bytes=200)
    log = open_log(tmp_path, config)
    for _ in range(20):
        append(log, [b"x"])
    if reopened:
        log.close()
        log = open_log(tmp_path, config)
    for offset in range(20):
        for max_bytes in range(0, 25 * SIZE_BYTES, 31):
            fitting = min(max_bytes // SIZE_BYTES, 20 - offset)
            exact = log.read(offset, max_bytes, 20, False)
            assert exact.size_bytes == fitting * SIZE_BYTES
            at_least_one = log.read(offset, max_bytes, 20, True)
            assert at_least_one.size_bytes == max(fitting, 1) * SIZE_BYTES
            assert at_least_one.end_offset == offset + max(fitting, 1)


def test_a_reader_in_sequence_meets_every_record_over_all_segments(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings(segment_bytes=1000, index_interval_bytes=300))
    values = [b"%d" % number for number in range(300)]
    for number in range(0, 300, 3):
        append(log, values[number : number + 3])
    assert len(log.segments) > 5
    for max_bytes in (1, 500, 1 << 20):
        assert read_all(log, max_bytes) == [Stored(number, value) for number, value in enumerate(values)]


def test_reading_in_sequence_looks_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of a read at the log's end does not grow with what lies before it."""
    log = open_log(tmp_path)
    for _ in range(200):
        append(log, [b"x"])
    offset = log.read(0, 1 << 20, 200, True).end_offset

    def looked_up(*_: object) -> bytes:
        raise AssertionError("the file was read")

    monkeypatch.setattr(os, "pread", looked_up)
    for _ in range(50):
        assert log.read(offset, 1 << 20, log.log_end_offset, True).slice is None
        append(log, [b"y"])
        found = log.read(offset, 1 << 20, log.log_end_offset, True)
        assert found.size_bytes == SIZE_BYTES
        offset = found.end_offset


def test_a_slice_survives_the_deletion_of_its_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings(segment_bytes=SIZE_BYTES, retention_ms=0))
    append(log, [b"a"], timestamp_ms=1)
    append(log, [b"b"])
    found = log.read(0, 1000, 2, True)
    assert log.delete_old_segments(NOW_MS, 2)
    assert not (log.directory / f"{0:020d}.log").exists()
    assert found.slice is not None
    ((header, batch),) = split_batches(found.slice.read())
    assert crc_matches(header, batch)


def test_a_slice_survives_truncation_and_what_is_written_after_it(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for value in (b"a", b"b", b"c"):
        append(log, [value])
    found = log.read(0, 1 << 20, 3, True)
    assert found.slice is not None
    before = found.slice.read()
    log.truncate_to(1)
    append(log, [b"longer than what was there"])
    assert found.slice.read() == before
    assert read_all(log) == [Stored(0, b"a"), Stored(1, b"longer than what was there")]
    log.flush()
    assert read_all(open_log(tmp_path, clean=False)) == read_all(log)


@pytest.mark.parametrize(
    ("position", "content"),
    [pytest.param(16, b"\x07", id="magic"), pytest.param(8, b"\x00\x00\x20\x00", id="length")],
)
@pytest.mark.parametrize("max_bytes", [1, SIZE_BYTES + 10])
def test_a_corrupt_stretch_is_reported_not_skipped(
    tmp_path: Path, position: int, content: bytes, max_bytes: int
) -> None:
    log = open_log(tmp_path)
    for _ in range(3):
        append(log, [b"x"])
    with (log.directory / f"{0:020d}.log").open("r+b") as file:
        file.seek(SIZE_BYTES + position)
        file.write(content)
    with pytest.raises(CorruptMessage):
        log.read(1, max_bytes, 3, True)
    assert log.read(0, SIZE_BYTES, 1, True).size_bytes == SIZE_BYTES


# The start and the end


def test_deleting_records_moves_the_start_and_never_back(tmp_path: Path) -> None:
    """R4."""
    log = open_log(tmp_path)
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


def test_the_newest_segment_is_closed_first_when_all_of_it_is_old(tmp_path: Path) -> None:
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


def test_truncation_takes_batches_whole_and_the_log_goes_on(tmp_path: Path) -> None:
    """R19: what a new leader does not have goes."""
    for offset in range(12):
        directory = tmp_path / str(offset)
        log = open_log(directory, settings(segment_bytes=3 * SIZE_BYTES))
        for number in range(6):
            append(log, [b"%d" % number] * 2, leader_epoch=number)
        log.truncate_to(offset)
        kept = offset // 2 * 2
        assert log.log_end_offset == kept
        assert log.epochs.entries == tuple(EpochEntry(n, 2 * n) for n in range(kept // 2))
        append(log, [b"new"], leader_epoch=9)
        assert [stored.offset for stored in read_all(log)] == list(range(kept + 1))
    log.truncate_to(99)
    assert log.log_end_offset == 11


def test_truncation_below_the_start_empties_the_log(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, [b"x"] * 10)
    log.delete_records_before(8)
    log.truncate_to(5)
    assert (log.log_start_offset, log.log_end_offset) == (5, 5)


def test_a_log_begun_afresh_starts_and_ends_where_told(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, [b"x"] * 10)
    log.truncate_fully_and_start_at(1000)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (1000, 1000, 0)
    assert log.epochs.entries == ()
    append(log, [b"y"])
    assert read_all(log) == [Stored(1000, b"y")]


def test_truncation_lowers_the_recovery_point_and_tells_its_owner(tmp_path: Path) -> None:
    """R6: a checkpoint that says more than is true would hide a torn batch."""
    log = open_log(tmp_path)
    for _ in range(4):
        append(log, [b"x"])
    log.mark_flushed(log.flush())
    told: list[int] = []
    log.recovery_point_lowered = lambda: told.append(log.recovery_point)
    log.truncate_to(2)
    assert told == [2]
    log.truncate_to(2)
    assert told == [2]


# Flushing and the end


def test_a_flush_says_up_to_where_everything_is_safe(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, [b"x"] * 4)
    assert log.unflushed_messages == 4
    log.mark_flushed(log.flush(), NOW_MS)
    assert (log.recovery_point, log.unflushed_messages) == (4, 0)


def test_a_truncation_during_a_flush_bounds_what_it_may_claim(tmp_path: Path) -> None:
    """What is written after the cut was not on the disk when the flush was."""
    log = open_log(tmp_path)
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


def test_a_closed_log_opens_again_as_it_was(tmp_path: Path) -> None:
    config = settings(segment_bytes=1000, index_interval_bytes=100)
    log = open_log(tmp_path, config)
    for number in range(40):
        append(log, [b"x", b"y"], timestamp_ms=NOW_MS + number, leader_epoch=number // 7)
    log.delete_records_before(5)
    before = read_all(log)
    log.close()
    again = open_log(tmp_path, config, log_start_offset=5)
    assert read_all(again) == before
    for name in ("log_start_offset", "log_end_offset", "size_bytes"):
        assert getattr(again, name) == getattr(log, name), name
    assert again.epochs.entries == log.epochs.entries
    assert again.recovery_point == again.log_end_offset


def test_a_deleted_log_is_renamed_at_once_and_removed_later(tmp_path: Path) -> None:
    scheduled: list[tuple[Sequence[Path], int]] = []
    log = PartitionLog.open(
        tmp_path / "flights-3",
        settings(file_delete_delay_ms=60_000),
        clean_shutdown=True,
        recovery_point=0,
        log_start_offset=0,
        now_ms=NOW_MS,
        schedule_unlink=lambda paths, delay_ms: scheduled.append((paths, delay_ms)),
    )
    append(log, [b"x"])
    found = log.read(0, 1000, 1, True)
    log.delete()
    (renamed,) = tmp_path.iterdir()
    assert renamed.name.startswith("flights-3.")
    assert renamed.name.endswith("-delete")
    assert scheduled == [([renamed], 60_000)]
    unlink_all([renamed])
    assert found.slice is not None
    assert len(found.slice.read()) == SIZE_BYTES


def test_the_names_of_logs_are_topic_and_partition(tmp_path: Path) -> None:
    assert parse_directory_name("a-b.c_d-12") == ("a-b.c_d", 12)
    for name in ("flights", "flights-", "-0", "flights-x", "flights-٣", "flights-0.abc-delete"):
        with pytest.raises(ValueError, match="topic-partition"):
            parse_directory_name(name)


# A full or failing disk


def test_a_full_disk_refuses_appends_and_harms_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R6."""
    log = open_log(tmp_path)
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


@pytest.mark.parametrize(
    ("function", "operation"),
    [
        pytest.param("fsync", lambda log: log.flush(), id="flush"),
        pytest.param("fsync", lambda log: log.close(), id="close"),
        pytest.param("ftruncate", lambda log: log.truncate_to(1), id="truncate"),
        pytest.param("rename", lambda log: log.delete(), id="delete"),
        pytest.param("pread", lambda log: log.offset_for_timestamp(NOW_MS), id="time look-up"),
        pytest.param("pread", lambda log: log.max_timestamp_offset(), id="latest record"),
        pytest.param("pread", lambda log: log.read(0, 1, 2, True), id="read"),
    ],
)
def test_a_failing_disk_is_a_storage_error_that_names_the_log(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    operation: Callable[[PartitionLog], object],
) -> None:
    """R8: one partition's disk is not another's."""
    log = open_log(tmp_path)
    append(log, [b"x", b"y"])
    append(log, [b"z"])

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, function, fail)
        with pytest.raises(StorageError, match=f"{log.directory}: .* failed: Input/output error"):
            operation(log)
