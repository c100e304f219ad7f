"""What a log remembers of its producers over rolls, restarts, truncation and broken files (R11)."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pytest
from hypothesis import settings as example_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.folders import new_folder
from tests.support.record_batches import encode_batch
from tests.unit.broker.log.logs import NOW_MS, messages, open_log, settings

from mainstem_broker.errors import OutOfOrderSequenceNumber
from mainstem_broker.log import partition_log
from mainstem_broker.log.dump import NotALog, ProducerDump, dump_snapshot
from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.log.producer_snapshot_format import decode_snapshot, encode_snapshot
from mainstem_broker.log.verification import verify_log
from mainstem_broker.protocol.batches import parse_batch_header

SMALL: Final = settings(segment_bytes=300)
"""Three batches of a record each to a segment."""


def encode(
    producer_id: int, sequence: int, count: int = 1, epoch: int = 0, base_offset: int = 0, attributes: int = 0
) -> bytes:
    return encode_batch(
        messages([b"v"] * count),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        base_offset=base_offset,
        attributes=attributes,
        leader_epoch=0,
    )


def send(log: PartitionLog, producer_id: int, sequence: int, count: int = 1, epoch: int = 0) -> int:
    """The first offset of a client's batch, whether it is written now or was before."""
    batch = encode(producer_id, sequence, count, epoch)
    header = parse_batch_header(batch)
    result = log.producers.check(header)
    info = log.append_as_leader(batch, header, 0, NOW_MS) if result is None else log.repeated(header, result)
    return info.first_offset


def fill(log: PartitionLog, count: int, producer_id: int = 7, sequence: int = 0) -> None:
    for number in range(count):
        send(log, producer_id, sequence + number)


def snapshots(log: PartitionLog) -> list[int]:
    return sorted(int(path.stem) for path in log.directory.glob("*.snapshot"))


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def path_of(log: PartitionLog, offset: int) -> Path:
    return log.directory / f"{offset:020d}.snapshot"


# --- When they are written, when they go ---


def test_long_segments_have_snapshots_in_between_of_which_the_newest_two_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_log, "SNAPSHOT_BATCHES", 10)
    log = open_log(tmp_path, settings(segment_bytes=2500))
    fill(log, 25)
    assert snapshots(log) == [10, 20]
    records = b"".join(encode(7, at, base_offset=at) for at in range(25, 37))
    log.append_as_follower(records, NOW_MS)
    second = bases(log)[1]
    assert snapshots(log) == [second, 37]
    fill(log, 20, sequence=37)
    assert snapshots(log) == [second, 47, 57]
    log.truncate_to(50)
    assert snapshots(log) == [second, 47, 50]
    assert [send(log, 7, at) for at in (49, 50)] == [49, 50]


def test_a_clean_stop_leaves_a_snapshot_at_the_end_and_the_next_start_reads_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, settings())
    fill(log, 10)
    log.close()
    assert snapshots(log) == [10]
    monkeypatch.setattr("mainstem_broker.log.producer_snapshots.scan_headers", None)
    log = open_log(tmp_path, settings())
    assert [send(log, 7, at) for at in range(5, 10)] == [5, 6, 7, 8, 9]
    assert send(log, 7, 10) == 10


def test_snapshots_leave_with_their_segments(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL)
    fill(log, 10)
    log.update_config(settings(retention_bytes=0))
    log.delete_old_segments(NOW_MS, log.log_end_offset)
    assert (snapshots(log), bases(log)) == ([10], [10])
    assert send(log, 7, 9) == 9
    log.mark_flushed(log.flush())
    again = open_log(tmp_path, SMALL, clean=False, recovery_point=0, log_start_offset=10)
    assert send(again, 7, 9) == 9  # though its record is gone (KIP-360)


def test_a_start_removes_snapshots_of_no_segment_and_unfinished_ones(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL)
    fill(log, 10)
    log.close()
    held = path_of(log, 10).read_bytes()
    for stray in (1, 2, 4, 11, 99):
        path_of(log, stray).write_bytes(held)
    path_of(log, 98).with_suffix(".snapshot.tmp").write_bytes(held)
    (log.directory / "notes.snapshot").write_bytes(b"not ours")
    again = open_log(tmp_path, SMALL)
    (log.directory / "notes.snapshot").unlink()
    assert snapshots(again) == [*bases(again)[1:], 10]
    assert send(again, 7, 10) == 10


def test_a_full_disk_costs_a_snapshot_and_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings: Sequence[MutableMapping[str, Any]]
) -> None:
    log = open_log(tmp_path, SMALL)

    def no_space(_path: Path, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", no_space)
        fill(log, 10)
        log.truncate_to(9)
        log.close()
    assert snapshots(log) == []
    assert {warning["event"] for warning in warnings} == {"producer snapshot not written"}
    log = open_log(tmp_path, SMALL)
    assert send(log, 7, 8) == 8
    assert snapshots(log) == bases(log)[1:]


# --- What is remembered ---


def test_what_a_torn_tail_held_was_never_sent(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL)
    fill(log, 8)
    newest = log.segments[-1]
    with newest.path(".log").open("r+b") as file:
        file.truncate(newest.size_bytes - 1)
    log = open_log(tmp_path, SMALL, clean=False, recovery_point=4)
    assert log.log_end_offset == 7
    assert [send(log, 7, at) for at in (3, 6, 7, 8)] == [3, 6, 7, 8]


def test_after_a_crash_snapshots_past_the_recovery_point_are_not_believed(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL)
    fill(log, 10)
    wrong = open_log(tmp_path / "other", SMALL)
    fill(wrong, 10, producer_id=8)
    offset = snapshots(log)[-1]
    path_of(log, offset).write_bytes(encode_snapshot(wrong.producers))
    again = open_log(tmp_path, SMALL, clean=False, recovery_point=offset - 1)
    assert again.producers.states.keys() == {7}
    assert snapshots(again) == bases(again)[1:]
    assert decode_snapshot(path_of(again, offset).read_bytes()).states.keys() == {7}, "a truncation needs it"


@pytest.mark.parametrize(
    "content", [b"", bytes(56), b"\x00\x01garbage that is long enough"], ids=["empty", "zeros", "garbage"]
)
@pytest.mark.parametrize("how_many", ["last", "all"])
def test_a_broken_snapshot_is_dropped_and_the_log_read_instead(
    tmp_path: Path, content: bytes, how_many: str, warnings: Sequence[MutableMapping[str, Any]]
) -> None:
    log = open_log(tmp_path, SMALL)
    fill(log, 10)
    log.close()
    for offset in snapshots(log)[-1:] if how_many == "last" else snapshots(log):
        path_of(log, offset).write_bytes(content)
    log = open_log(tmp_path, SMALL)
    assert {warning["event"] for warning in warnings} == {"producer snapshot is broken and dropped"}
    assert send(log, 7, 9) == 9
    assert snapshots(log) == bases(log)[1:]
    log.close()
    warning_count = len(warnings)
    open_log(tmp_path, SMALL)
    assert len(warnings) == warning_count


def test_an_empty_segment_gets_its_snapshot_back_before_those_before_it_leave(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL)
    fill(log, 10)
    log.truncate_to(8)
    log.close()
    path_of(log, 8).write_bytes(b"")
    log = open_log(tmp_path, SMALL)
    assert snapshots(log) == bases(log)[1:] == [4, 8]
    log.update_config(settings(retention_bytes=0))
    log.delete_old_segments(NOW_MS, log.log_end_offset)
    log = open_log(tmp_path, SMALL, clean=False, recovery_point=8, log_start_offset=8)
    assert send(log, 7, 7) == 7  # though its record is gone (KIP-360)


def test_what_a_broken_segment_held_is_unknown_and_the_log_opens(
    tmp_path: Path, warnings: Sequence[MutableMapping[str, Any]]
) -> None:
    log = open_log(tmp_path, SMALL)
    fill(log, 10)
    log.close()
    for path in log.directory.glob("*.snapshot"):
        path.unlink()
    with (log.directory / f"{0:020d}.log").open("r+b") as file:
        file.seek(16)
        file.write(b"\x63")
    log = open_log(tmp_path, SMALL)
    assert "producers of a broken segment are unknown" in {warning["event"] for warning in warnings}
    assert send(log, 7, 9) == 9


def test_a_snapshot_from_before_the_first_segment_does_not_count(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL)
    fill(log, 10)
    held = path_of(log, bases(log)[1]).read_bytes()
    log.update_config(settings(retention_bytes=0))
    log.delete_old_segments(NOW_MS, log.log_end_offset)
    log.close()
    path_of(log, 10).unlink()
    path_of(log, 3).write_bytes(held)
    log = open_log(tmp_path, SMALL, log_start_offset=10)
    assert not log.producers.states
    assert send(log, 7, 10) == 10


def test_a_producer_found_by_reading_the_log_is_as_old_as_the_file(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings())
    batch = encode_batch(messages([b"v"], 5), producer_id=7, producer_epoch=0, base_sequence=0)
    log.append_as_leader(batch, parse_batch_header(batch), 0, NOW_MS)
    os.utime(log.directory / f"{0:020d}.log", (NOW_MS / 1000, NOW_MS / 1000))
    log = open_log(tmp_path, settings(), clean=False)
    assert log.producers.states[7].last_timestamp_ms == NOW_MS


def test_duplicates_are_answered_with_the_brokers_stamp_only_where_it_stamps(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings(message_timestamp_type="LogAppendTime"))
    batch = encode(7, 0, count=3, attributes=0x08)
    header = parse_batch_header(batch)
    written = log.append_as_leader(batch, header, 0, NOW_MS + 50)
    assert written.log_append_time_ms == header.max_timestamp
    result = log.producers.check(header)
    assert result is not None
    assert log.repeated(header, result) == written
    log.update_config(settings())
    assert log.repeated(header, result).log_append_time_ms == -1


# --- Looking into them ---


def test_a_snapshot_is_shown_producer_by_producer(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings())
    send(log, 7, 2**31 - 1, count=3, epoch=2)
    log.close()
    shown = dump_snapshot(path_of(log, 3))
    assert shown.problems == []
    assert shown.producers == [ProducerDump(7, 2, 2**31 - 1, 1, 2, 2, NOW_MS, -1, -1)]


def test_a_broken_snapshot_is_a_problem_of_its_log(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings())
    fill(log, 3)
    log.close()
    assert verify_log(log.directory).problems == []
    path = path_of(log, 3)
    path.write_bytes(path.read_bytes()[:-1])
    for result in (verify_log(log.directory), verify_log(path), dump_snapshot(path)):
        assert [str(problem) for problem in result.problems] == [
            f"{path}: it does not match its checksum; a restart does without it"
        ]
    with pytest.raises(NotALog, match=r"name a \.snapshot file"):
        dump_snapshot(log.directory)


# --- Against a model ---


@dataclass(frozen=True)
class Written:
    producer_id: int
    epoch: int
    sequence: int
    count: int
    base_offset: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.count

    @property
    def next_sequence(self) -> int:
        return (self.sequence + self.count) % 2**31


class ProducersModel(RuleBasedStateMachine):
    """`batches` is all that was written and not taken back, though retention may have dropped it."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = new_folder()
        self.batches: list[Written] = []
        self.start = self.flushed = 0
        self.often = mock.patch.object(partition_log, "SNAPSHOT_BATCHES", 7)
        self.often.start()

    @initialize(segment_bytes=st.sampled_from([200, 400, 3000]))
    def open_first(self, segment_bytes: int) -> None:
        self.config = settings(segment_bytes=segment_bytes, retention_ms=-1)
        self.log = open_log(self.directory, self.config)

    def teardown(self) -> None:
        self.often.stop()
        shutil.rmtree(self.directory)

    def last_of(self, producer_id: int) -> Written | None:
        return next((one for one in reversed(self.batches) if one.producer_id == producer_id), None)

    def following(self, producer_id: int, count: int, new_epoch: bool, base_offset: int) -> Written:
        last = self.last_of(producer_id)
        if last is None:
            return Written(producer_id, 0, 2**31 - 3, count, base_offset)
        if new_epoch:
            return Written(producer_id, last.epoch + 1, 0, count, base_offset)
        return Written(producer_id, last.epoch, last.next_sequence, count, base_offset)

    @rule(
        producer_id=st.integers(1, 3),
        count=st.integers(1, 3),
        new_epoch=st.sampled_from([False] * 5 + [True]),
    )
    def append_as_leader(self, producer_id: int, count: int, new_epoch: bool) -> None:
        batch = self.following(producer_id, count, new_epoch, self.log.log_end_offset)
        assert send(self.log, producer_id, batch.sequence, count, batch.epoch) == batch.base_offset
        self.batches.append(batch)

    @rule(
        producer_ids=st.lists(st.integers(1, 3), min_size=1, max_size=8),
        count=st.integers(1, 3),
        gap=st.sampled_from([0, 0, 5]),
    )
    def append_as_follower(self, producer_ids: list[int], count: int, gap: int) -> None:
        records = b""
        offset = self.log.log_end_offset + gap
        for producer_id in producer_ids:
            batch = self.following(producer_id, count, False, offset)
            self.batches.append(batch)
            records += encode(producer_id, batch.sequence, count, batch.epoch, offset)
            offset += count
        self.log.append_as_follower(records, NOW_MS)

    @rule(producer_id=st.integers(1, 3), ahead=st.integers(1, 3))
    def send_out_of_order(self, producer_id: int, ahead: int) -> None:
        last = self.last_of(producer_id)
        if last is not None:
            with pytest.raises(OutOfOrderSequenceNumber):
                send(self.log, producer_id, (last.next_sequence + ahead) % 2**31, 1, last.epoch)

    @rule(share=st.floats(0, 1), short=st.booleans())
    def truncate(self, share: float, short: bool) -> None:
        length = self.log.log_end_offset - self.start
        offset = self.start + (max(0, length - int(6 * share)) if short else int(length * share))
        before = self.log.log_end_offset
        self.log.truncate_to(offset)
        if self.log.log_end_offset < before:
            first = self.log.segments[0]
            if first.size_bytes == 0 and first.base_offset == self.start:
                # The batch across the log's start went whole: its offsets may be given again.
                self.batches = [one for one in self.batches if one.next_offset <= self.start]
            self.batches = [one for one in self.batches if one.next_offset <= self.log.log_end_offset]
            self.flushed = min(self.flushed, self.log.log_end_offset)

    @rule()
    def start_over(self) -> None:
        self.start = self.log.log_end_offset + 4
        self.log.truncate_fully_and_start_at(self.start)
        self.batches = []
        self.flushed = min(self.flushed, self.start)

    @rule(retention_bytes=st.integers(0, 1500))
    def apply_retention(self, retention_bytes: int) -> None:
        self.log.update_config(settings(retention_bytes=retention_bytes, retention_ms=-1))
        self.log.delete_old_segments(NOW_MS, self.log.log_end_offset)
        self.log.update_config(self.config)
        self.start = self.log.log_start_offset

    @rule()
    def flush(self) -> None:
        self.log.mark_flushed(self.log.flush())
        self.flushed = self.log.log_end_offset

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        if clean:
            self.log.close()
            self.flushed = self.log.log_end_offset
        self.log = open_log(
            self.directory,
            self.config,
            clean=clean,
            recovery_point=self.flushed,
            log_start_offset=self.start,
        )

    @precondition(lambda self: self.start == 0)
    @rule(which=st.integers(0, 5), flip=st.booleans())
    def break_a_snapshot_and_restart(self, which: int, flip: bool) -> None:
        """Only while the log holds all that was written: nobody can know the rest. A broken snapshot that the
        start had no need to read is whole again afterwards.
        """
        self.log.close()
        paths = sorted(self.log.directory.glob("*.snapshot"))
        path = paths[which] if which < len(paths) else None
        if path is not None:
            whole = path.read_bytes()
            broken = bytes([*whole[:-1], whole[-1] ^ 4]) if flip else whole[:-3]
            path.write_bytes(broken)
        self.log = open_log(self.directory, self.config)
        self.flushed = self.log.log_end_offset
        if path is not None and path.exists() and path.read_bytes() == broken:
            path.write_bytes(whole)

    @invariant()
    def every_producer_is_known_by_its_last_batches(self) -> None:
        states = self.log.producers.states
        assert states.keys() == {batch.producer_id for batch in self.batches}
        for producer_id, state in states.items():
            own = [one for one in self.batches if one.producer_id == producer_id]
            of_epoch = [one for one in own if one.epoch == own[-1].epoch]
            assert (state.epoch, state.next_sequence) == (own[-1].epoch, own[-1].next_sequence)
            expected = [(one.first_offset, one.last_offset + 1) for one in state.batches]
            assert expected
            assert expected == [(one.base_offset, one.next_offset) for one in of_epoch[-len(expected) :]]

    @invariant()
    def snapshots_belong_to_the_log(self) -> None:
        held = snapshots(self.log)
        assert all(self.log.segments[0].base_offset <= at <= self.log.log_end_offset for at in held)
        assert set(bases(self.log)[1:]) <= set(held), "every segment but the first begins with one"
        for offset in held:
            states = decode_snapshot(path_of(self.log, offset).read_bytes()).states
            earlier = [one for one in self.batches if one.next_offset <= offset]
            before = {one.producer_id: one.next_offset - 1 for one in earlier}
            assert {key: state.batches[-1].last_offset for key, state in states.items()} == before


TestProducersModel = ProducersModel.TestCase
TestProducersModel.settings = example_settings(max_examples=40, stateful_step_count=40)
