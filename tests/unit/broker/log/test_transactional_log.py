"""Transactions in a log's files: appends, restarts, truncation, rolling, retention (R11, R12)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.broker.log.logs import NOW_MS, open_log, settings
from tests.unit.broker.log.transactional import (
    abort,
    aborted,
    commit,
    first_unstable,
    transactional_batch,
    write,
)

from mainstem_broker.errors import OutOfOrderSequenceNumber
from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.log.segment import segment_path
from mainstem_broker.log.transaction_index import TransactionIndex
from mainstem_broker.protocol.batches import parse_batch_header

SMALL_SEGMENTS = settings(segment_bytes=200)
"""Two batches, or a batch and a marker."""


def index_files(tmp_path: Path) -> list[int]:
    return sorted(int(path.stem) for path in (tmp_path / "t-0").glob("*" + TransactionIndex.SUFFIX))


def restart(log: PartitionLog, tmp_path: Path, *, clean: bool, recovery_point: int = 0) -> PartitionLog:
    if clean:
        log.close()
    return open_log(tmp_path, log.config, clean=clean, recovery_point=recovery_point)


def test_a_marker_without_records_is_no_aborted_transaction(log: PartitionLog, tmp_path: Path) -> None:
    abort(log, 1)
    assert aborted(log) == []
    assert index_files(tmp_path) == []
    assert log.producers.states[1].coordinator_epoch == 0


def test_an_abort_is_indexed_in_the_segment_of_its_marker(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL_SEGMENTS)
    for _ in range(6):
        write(log, 1)
    marker_offset = abort(log, 1)
    assert index_files(tmp_path) == [log.segments[-1].base_offset]
    assert aborted(log, 0, 1) == [(1, 0, marker_offset)]


def test_an_index_that_a_crash_tore_or_lost_is_made_anew(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL_SEGMENTS)
    for producer_id in range(4):
        write(log, producer_id)
    for producer_id in range(4):
        abort(log, producer_id)
    expected = aborted(log)
    files = index_files(tmp_path)
    for at, content in zip(files, (b"", b"torn"), strict=False):
        segment_path(tmp_path / "t-0", at, TransactionIndex.SUFFIX).write_bytes(content)
    assert aborted(restart(log, tmp_path, clean=False)) == expected
    assert index_files(tmp_path) == files


def test_a_broken_index_of_a_sealed_segment_is_made_anew_after_a_clean_stop(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL_SEGMENTS)
    write(log, 1)
    write(log, 2)
    abort(log, 2)
    abort(log, 1)
    write(log, 3)
    write(log, 3)
    expected = aborted(log)
    log.close()
    for at in index_files(tmp_path):
        path = segment_path(tmp_path / "t-0", at, TransactionIndex.SUFFIX)
        path.write_bytes(path.read_bytes()[:-1])
    assert aborted(open_log(tmp_path, SMALL_SEGMENTS)) == expected


def test_truncation_leaves_the_epochs_of_a_marker_whose_producer_has_no_other_batch_left(
    log: PartitionLog,
) -> None:
    write(log, 2)
    commit(log, 1, epoch=4)
    write(log, 1, epoch=4)
    log.truncate_to(2)
    assert log.producers.states[1].epoch == 4
    assert log.producers.states[1].coordinator_epoch == 0


def test_retention_drops_indexes_with_their_segments(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings(segment_bytes=200, retention_bytes=0))
    write(log, 1)
    abort(log, 1)
    write(log, 2)
    write(log, 2)
    abort(log, 2)
    log.delete_old_segments(NOW_MS, log.log_end_offset)
    assert aborted(log) == []
    assert index_files(tmp_path) == []
    assert log.log_start_offset == log.log_end_offset


def test_an_index_entry_that_finds_no_space_is_written_when_the_segment_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, SMALL_SEGMENTS)
    write(log, 1)
    with monkeypatch.context() as full:
        full.setattr(TransactionIndex, "write", _no_space)
        abort(log, 1)
    assert aborted(log) == [(1, 0, 1)]
    assert index_files(tmp_path) == []
    write(log, 2)
    assert index_files(tmp_path) == [0]


def _no_space(_index: TransactionIndex) -> None:
    raise OSError(28, "No space left on device")


def test_a_follower_has_the_same_transactions_as_its_leader(tmp_path: Path) -> None:
    leader, follower = open_log(tmp_path / "1"), open_log(tmp_path / "2", SMALL_SEGMENTS)
    for producer_id in (1, 2, 3):
        write(leader, producer_id)
    abort(leader, 2)
    abort(leader, 1)
    fetched = leader.read(0, 1 << 20, leader.log_end_offset, True)
    assert fetched.slice is not None
    follower.append_as_follower(fetched.slice.read(), NOW_MS)
    assert aborted(follower) == aborted(leader)
    assert first_unstable(follower) == first_unstable(leader) == 2
    assert follower.producers.states.keys() == leader.producers.states.keys()


def test_the_second_version_raises_the_epoch_with_each_marker(log: PartitionLog) -> None:
    """KIP-890: the sequence of the next transaction begins with 0."""
    write(log, 1, 3, epoch=0)
    commit(log, 1, epoch=1)
    gap = parse_batch_header(transactional_batch(1, 3, epoch=1))
    with pytest.raises(OutOfOrderSequenceNumber):
        log.producers.check(gap)
    assert log.producers.check(parse_batch_header(transactional_batch(1, 0, epoch=1))) is None
