"""What a pass leaves of a log, case by case (R5)."""

from __future__ import annotations

import errno
import io
import pickle
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.unit.broker.log.compaction.compacted_logs import (
    Crash,
    batches_of,
    compact,
    compacted_settings,
    failing_after,
    job_of,
    log_of,
    records_of,
)
from tests.unit.broker.log.logs import NOW_MS, compressed_batch, open_log

from mainstem_broker.config.setting import INT64_MAX
from mainstem_broker.errors import CorruptMessage, StorageError
from mainstem_broker.log.compaction import key_map, records
from mainstem_broker.log.compaction.compaction_pass import run
from mainstem_broker.log.compaction.facts import CompactedGroup
from mainstem_broker.log.compaction.messages import LENGTH, CompactionEnd, CompactionFailed, Order
from mainstem_broker.log.segment import CLEANED_SUFFIX, LOG_SUFFIX, Segment, segment_path
from mainstem_broker.log.verification import verify_log
from mainstem_broker.protocol.batches import split_batches
from mainstem_broker.protocol.compression import Codec


def test_segments_are_merged_up_to_segment_bytes(tmp_path: Path) -> None:
    log = log_of(tmp_path, [[(b"%d" % number, b"x")] for number in range(9)], compacted_settings())
    compact(log, job_of(log, segment_bytes=300))
    assert [segment.base_offset for segment in log.segments] == [0, 4, 8]
    assert log.size_bytes == sum(segment.size_bytes for segment in log.segments)
    assert [offset for offset, _, _ in records_of(log)] == list(range(9))


def test_a_tombstone_goes_after_its_horizon_and_not_before(tmp_path: Path) -> None:
    config = compacted_settings(delete_retention_ms=1000)
    log = log_of(tmp_path, [[(b"a", b"1")], [(b"a", None)], [(b"b", b"1")], [(b"b", b"2")]], config)
    compact(log)
    assert records_of(log)[0] == (1, b"a", None)
    assert batches_of(log)[1][0].has_delete_horizon
    assert batches_of(log)[1][0].base_timestamp == NOW_MS + 1000
    log.first_dirty_offset = 0
    compact(log, job_of(log, now_ms=NOW_MS + 999))
    assert (1, b"a", None) in records_of(log)
    log.first_dirty_offset = 0
    compact(log, job_of(log, now_ms=NOW_MS + 1000))
    assert b"a" not in [key for _, key, _ in records_of(log)]


def test_a_tombstone_may_stay_for_ever(tmp_path: Path) -> None:
    """Its horizon would lie beyond the largest time that a batch can hold."""
    config = compacted_settings(delete_retention_ms=INT64_MAX)
    log = log_of(tmp_path, [[(b"a", b"1")], [(b"a", None), (b"c", b"1")], [(b"b", b"1")]], config)
    times = [header.max_timestamp for header, _ in batches_of(log)]
    for _ in range(2):
        log.first_dirty_offset = 0
        compact(log)
    assert records_of(log)[:2] == [(1, b"a", None), (2, b"c", b"1")]
    marked = next(header for header, _ in batches_of(log) if header.has_delete_horizon)
    assert (marked.base_timestamp, marked.max_timestamp) == (INT64_MAX, times[1])


def test_a_tombstone_that_the_map_has_not_reached_gets_no_horizon(tmp_path: Path) -> None:
    """It would be dropped by the pass that reaches it, before consumers had their time to see it."""
    content = [[(b"%d" % number, b"x")] for number in range(800)]
    log = log_of(tmp_path, [*content, [(b"0", None)], [(b"z", b"")]], compacted_settings(segment_bytes=2**20))
    log._segments.roll(log.log_end_offset, log.config, NOW_MS)
    end = compact(log)
    assert end.map_end_offset == 768, "three quarters of the smallest map"
    assert records_of(log)[0] == (0, b"0", b"x")
    assert not any(header.has_delete_horizon for header, _ in batches_of(log))
    compact(log)
    assert records_of(log)[0] == (1, b"1", b"x")
    assert (800, b"0", None) in records_of(log)


def test_r5_a_full_map_does_not_end_the_pass_before_a_key_that_is_new(tmp_path: Path) -> None:
    """768 keys fill the smallest map; the batches after them change some of these keys."""
    content = [[(b"%d" % number, b"x")] for number in range(768)]
    content += [[(b"%d" % number, b"y"), (b"%d" % number, b"z")] for number in range(20)]
    content += [[(b"new", b"x")], [(b"0", b"x")]]
    log = log_of(tmp_path, content, compacted_settings(segment_bytes=2**20))
    log._segments.roll(log.log_end_offset, log.config, NOW_MS)
    assert compact(log).map_end_offset == 768 + 2 * 20
    assert [offset for offset, _, _ in records_of(log)] == [*range(20, 768), *range(769, 808, 2), 808, 809]


def test_a_pass_ends_before_an_offset_that_a_slot_cannot_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_map, "OFFSETS_MAX", 5)
    content = [[(b"a", b"%d" % number), (b"b", b"%d" % number)] for number in range(6)]
    log = log_of(tmp_path, content, compacted_settings(segment_bytes=2**20))
    log._segments.roll(log.log_end_offset, log.config, NOW_MS)
    ends = [compact(log).map_end_offset for _ in range(3)]
    assert ends == [4, 8, 12]
    assert [offset for offset, _, _ in records_of(log)] == [10, 11]


def test_a_live_producers_last_batch_stays_though_it_is_empty(tmp_path: Path) -> None:
    """Else a restart that finds no snapshot would not know the producer's sequence (R11)."""
    log = log_of(
        tmp_path,
        [[(b"a", b"1")], [(b"a", b"2")], [(b"a", b"3")]],
        compacted_settings(),
        producer_id=7,
    )
    compact(log, job_of(log, last_offsets={7: 0}, segment_bytes=10_000))
    header, records = batches_of(log)[0]
    assert records == []
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 0)
    assert (header.base_offset, header.last_offset, header.max_timestamp) == (0, 0, -1)


def _messages(key: bytes) -> list[Message]:
    return [Message(b"t", key, (), NOW_MS)]


@pytest.mark.parametrize("renames", range(16))
def test_r6_a_crash_while_files_change_places_brings_nothing_back(tmp_path: Path, renames: int) -> None:
    """The last segment of the group has nothing left: only an empty batch says that the group covers it."""
    config = compacted_settings()
    log = log_of(
        tmp_path, [[(b"a", b"1")], [(b"b", None)], [(b"a", b"2")], [(b"a", None)], [(b"c", b"1")]], config
    )
    (group, _) = run(job_of(log, segment_bytes=10_000), lambda _: None)
    assert isinstance(group, CompactedGroup)
    with failing_after(renames, Crash()), suppress(Crash):
        log.take_compacted(group, NOW_MS)
    log = open_log(tmp_path, config, clean=False, recovery_point=5)
    before = [(0, b"a", b"1"), (1, b"b", None), (2, b"a", b"2"), (3, b"a", None), (4, b"c", b"1")]
    after = [(1, b"b", None), (3, b"a", None), (4, b"c", b"1")]
    assert records_of(log) == (before if renames < 3 else after)
    assert log.log_end_offset == 5


@pytest.mark.parametrize("renames", range(13))
def test_r6_a_disk_that_fails_while_files_change_places_leaves_the_log_as_it_was_or_out_of_use(
    tmp_path: Path, renames: int
) -> None:
    """Also a full one: a log whose list of segments says other than its directory would skip records."""
    config = compacted_settings()
    log = log_of(tmp_path, [[(b"a", b"1")], [(b"b", b"1")], [(b"a", b"2")], [(b"c", b"1")]], config)
    (group, _) = run(job_of(log, segment_bytes=10_000), lambda _: None)
    assert isinstance(group, CompactedGroup)
    failures: list[str] = []
    log.disk_failed = lambda: failures.append("failed")
    with (
        failing_after(renames, OSError(errno.ENOSPC, "No space left on device")),
        pytest.raises(StorageError),
    ):
        log.take_compacted(group, NOW_MS)
    expected = [(0, b"a", b"1"), (1, b"b", b"1"), (2, b"a", b"2"), (3, b"c", b"1")]
    if renames < 3:
        assert not failures
        assert records_of(log) == expected
        assert not [*log.directory.glob("*.cleaned"), *log.directory.glob("*.swap")]
    else:
        assert failures
        expected = expected[1:]
    assert records_of(open_log(tmp_path, config, clean=False, recovery_point=4)) == expected


def test_r6_too_many_open_files_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(tmp_path, [[(b"a", b"1")], [(b"a", b"2")], [(b"c", b"1")]], compacted_settings())
    (group, _) = run(job_of(log, segment_bytes=10_000), lambda _: None)
    assert isinstance(group, CompactedGroup)

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(Segment, "load_sealed", fail)
        with pytest.raises(StorageError):
            log.take_compacted(group, NOW_MS)
    assert records_of(log) == [(0, b"a", b"1"), (1, b"a", b"2"), (2, b"c", b"1")]


def test_r6_a_crash_between_an_inputs_log_and_its_indexes_leaves_no_index_of_other_positions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output is larger than the first input here, so the input's index could be its own."""
    config = compacted_settings(segment_bytes=200, index_interval_bytes=1)
    batches = [[(b"%d" % (number % 9), b"value")] for number in range(12)]
    log = log_of(tmp_path, batches, config)
    (group, _) = run(job_of(log, segment_bytes=10_000), lambda _: None)
    assert isinstance(group, CompactedGroup)

    def crash(segment: Segment) -> list[Path]:
        segment.path(LOG_SUFFIX).rename(segment.path(LOG_SUFFIX + ".deleted"))
        raise OSError(errno.EIO, "the power is gone")

    with monkeypatch.context() as patched:
        patched.setattr(Segment, "mark_deleted", crash)
        with pytest.raises(StorageError):
            log.take_compacted(group, NOW_MS)
    log = open_log(tmp_path, config, clean=False, recovery_point=12)
    assert log.segments[0].next_offset == group.end_offset
    log.close()
    assert verify_log(log.directory).problems == []


def test_a_pass_that_fails_leaves_nothing_of_the_group_that_it_was_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk would stay full of it. Groups before it may be taken still."""
    log = log_of(tmp_path, [[(b"a", b"1")], [(b"b", b"2")], [(b"c", b"1")]], compacted_settings())
    messages = run(job_of(log), lambda _: None)
    first = next(messages)
    assert isinstance(first, CompactedGroup)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Segment, "write", fail)
    with pytest.raises(OSError, match="No space"):
        next(messages)
    assert log.take_compacted(first, NOW_MS)
    assert not list(log.directory.glob("*.cleaned"))


@pytest.mark.parametrize("limit", ["PLAIN_BYTES_MAX", "RECORDS_MAX"])
def test_batches_that_inflate_to_much_are_read_few_at_a_time(
    tmp_path: Path, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last batch of the segment stays, and no other empty one, however it is cut into tables."""
    config = compacted_settings(segment_bytes=10_000)
    log = open_log(tmp_path, config)
    for number in range(9):
        batch = compressed_batch([Message(b"v" * 5_000, b"%d" % (number % 2), (), NOW_MS)], Codec.GZIP)
        ((header, _),) = split_batches(batch)
        log.append_as_leader(batch, header, 0, NOW_MS)
    log.update_config(compacted_settings())
    log.append_as_leader(batch, header, 0, NOW_MS)
    monkeypatch.setattr(records, limit, 1)
    sizes: list[int] = []
    read_table = records.read_table

    def counted(stretch: bytes, batches: NDArray[np.void]) -> records.RecordTable:
        table = read_table(stretch, batches)
        sizes.append(len(table.headers))
        return table

    monkeypatch.setattr(records, "read_table", counted)
    assert compact(log).map_end_offset == 9
    assert sizes == [1] * 18
    assert [(header.base_offset, len(kept)) for header, kept in batches_of(log)] == [(7, 1), (8, 1), (9, 1)]


@pytest.mark.parametrize("renames", [3, 6, 9])
def test_r6_left_overs_of_a_pass_that_was_killed_cost_nothing_when_a_later_group_changes_places(
    tmp_path: Path, renames: int
) -> None:
    """Recovery concludes from unfinished files of a lower offset that inputs of later groups are there."""
    config = compacted_settings()
    log = log_of(tmp_path, [[(b"z", b"1")], [(b"a", b"1")], [(b"a", b"2")], [(b"c", b"1")]], config)
    log.delete_records_before(1)
    assert log.delete_old_segments(NOW_MS, 4)
    (group, _) = run(job_of(log, segment_bytes=10_000), lambda _: None)
    assert isinstance(group, CompactedGroup)
    segment_path(log.directory, 0, LOG_SUFFIX + CLEANED_SUFFIX).write_bytes(b"unfinished")
    with (
        failing_after(renames, OSError(errno.EIO, "the power is gone")),
        pytest.raises(StorageError),
    ):
        log.take_compacted(group, NOW_MS)
    log = open_log(tmp_path, config, clean=False, recovery_point=4, log_start_offset=1)
    assert records_of(log) == [(2, b"a", b"2"), (3, b"c", b"1")]


def test_a_group_whose_segments_went_meanwhile_is_refused(tmp_path: Path) -> None:
    log = log_of(tmp_path, [[(b"a", b"1")], [(b"a", b"2")], [(b"a", b"3")]], compacted_settings())
    (group, _) = run(job_of(log, segment_bytes=10_000), lambda _: None)
    assert isinstance(group, CompactedGroup)
    log.delete_records_before(1)
    assert log.delete_old_segments(NOW_MS, 3)
    assert not log.take_compacted(group, NOW_MS)
    assert not list(log.directory.glob("*.cleaned"))


def test_r6_a_batch_with_a_wrong_checksum_ends_the_pass(tmp_path: Path) -> None:
    """It would get a right one by being written anew."""
    log = log_of(
        tmp_path, [[(b"a", b"1"), (b"b", b"1")], [(b"a", b"2")], [(b"c", b"")]], compacted_settings()
    )
    path = log.segments[0].path(".log")
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptMessage, match="does not match its checksum"):
        list(run(job_of(log), lambda _: None))


def test_records_that_cannot_be_read_stay_as_they_are(tmp_path: Path) -> None:
    log = log_of(tmp_path, [[(b"a", b"1")]], compacted_settings())
    garbage = encode_batch(_messages(b"a"), records=b"garbage" * 9)
    ((header, _),) = split_batches(garbage)
    log.append_as_leader(garbage, header, 0, NOW_MS)
    log.append_as_leader(garbage, header, 0, NOW_MS)
    compact(log)
    assert log.segments[1].path(".log").read_bytes()[61:] == b"garbage" * 9


@pytest.mark.processes
def test_the_process_answers_each_order_and_ends_with_its_input(tmp_path: Path) -> None:
    log = log_of(tmp_path, [[(b"a", b"1")], [(b"a", b"2")], [(b"c", b"")]], compacted_settings())
    order = Order(job_of(log), 1e9)
    wrong = Order(replace(order.job, directory=tmp_path / "gone"), 1e9)
    orders = b"".join(LENGTH.pack(len(it)) + it for it in (pickle.dumps(wrong), pickle.dumps(order)))
    answer = subprocess.run(
        [sys.executable, "-m", "mainstem_broker.log.compaction.worker"],
        input=orders,
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    )
    stream, messages = io.BytesIO(answer.stdout), []
    while prefix := stream.read(LENGTH.size):
        messages.append(pickle.loads(stream.read(*LENGTH.unpack(prefix))))
    assert [type(message) for message in messages] == [
        CompactionFailed,
        CompactedGroup,
        CompactedGroup,
        CompactionEnd,
    ]
    assert messages[0].error_number == errno.ENOENT
