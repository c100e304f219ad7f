"""Compaction of transactions: aborted records, markers, and the index of aborted transactions (R5, R11)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.broker.log.compaction.compacted_logs import (
    batches_of,
    compact,
    compacted_settings,
    job_of,
    records_of,
)
from tests.unit.broker.log.logs import NOW_MS, append, open_log, settings
from tests.unit.broker.log.transactional import abort, aborted, commit, write

from mainstem_broker.log.dump import dump_log
from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.log.verification import verify_log

TAIL = 99


def with_tail(log: PartitionLog) -> PartitionLog:
    """Batches of another producer behind, as the newest segment is never compacted."""
    write(log, TAIL, key=b"tail")
    commit(log, TAIL)
    write(log, TAIL, key=b"tail")
    return log


def markers(log: PartitionLog) -> list[tuple[int, str]]:
    """(offset, outcome) of the markers of other producers than the tail's."""
    return [
        (batch.base_offset, batch.marker)
        for segment in dump_log(log.directory)
        for batch in segment
        if batch.marker is not None and batch.producer_id != TAIL
    ]


def keys(log: PartitionLog) -> list[bytes | None]:
    return [
        key
        for header, records in batches_of(log)
        for _, key, _ in records
        if not header.is_control and key != b"tail"
    ]


def test_aborted_records_go_and_the_marker_and_its_entry_stay(tmp_path: Path) -> None:
    log = open_log(tmp_path, compacted_settings())
    write(log, 1, key=b"a")
    write(log, 1, key=b"b")
    abort(log, 1)
    with_tail(log)
    compact(log)
    assert keys(log) == []
    assert markers(log) == [(2, "abort")]
    assert aborted(log) == [(1, 0, 2)]
    assert verify_log(log.directory).problems == []


def test_a_key_equal_to_a_markers_key_is_a_key_like_others(tmp_path: Path) -> None:
    log = open_log(tmp_path, compacted_settings())
    write(log, 1, key=bytes([0, 0, 0, 1]))
    commit(log, 1)
    with_tail(log)
    compact(log)
    assert keys(log) == [bytes([0, 0, 0, 1])]
    assert markers(log) == [(1, "commit")]


def test_nothing_is_compacted_at_or_above_an_open_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path, compacted_settings())
    write(log, 1, key=b"k")
    commit(log, 1)
    write(log, 2, key=b"k")
    with_tail(log)
    assert compact(log).map_end_offset == 2


def test_a_segment_with_aborted_transactions_is_replaced_with_its_index(tmp_path: Path) -> None:
    config = compacted_settings(segment_bytes=1_000)
    log = open_log(tmp_path, config)
    append(log, [b"plain"])
    write(log, 1)
    abort(log, 1)
    log.update_config(settings(cleanup_policy="compact", segment_bytes=14, min_cleanable_dirty_ratio=0.0))
    append(log, [b"tail"])
    compact(log, job_of(log, segment_bytes=1_000))
    assert aborted(log) == [(1, 1, 2)]
    log.close()
    assert aborted(open_log(tmp_path, config)) == [(1, 1, 2)]


# --- Markers of transactions of which nothing is left ---

RETENTION_MS = 1_000


def log_without_batches(directory: Path, end: Callable[[PartitionLog, int], int]) -> PartitionLog:
    """A log from which a pass has taken all batches of producer 1's transaction, whose marker is at 2."""
    log = open_log(directory, compacted_settings(delete_retention_ms=RETENTION_MS))
    write(log, 1, key=b"a")
    write(log, 1, key=b"b")
    end(log, 1)
    for key in (b"a", b"b"):
        write(log, 2, key=key)
    commit(log, 2)
    compact_all(log)
    assert [offset for offset, _, _ in records_of(log)][:2] == [2, 3]
    return log


def compact_all(
    log: PartitionLog, now_ms: int = NOW_MS, *, marker_epochs: dict[int, int] | None = None
) -> None:
    """One pass that merges all segments, but for the newest."""
    with_tail(log)
    job = job_of(log, now_ms, marker_epochs=marker_epochs, segment_bytes=100_000)
    compact(log, replace(job, config=replace(job.config, delete_retention_ms=RETENTION_MS)))


@pytest.mark.parametrize("end", [commit, abort])
def test_a_marker_without_batches_goes_after_its_horizon_and_not_before(
    tmp_path: Path, end: Callable[[PartitionLog, int], int]
) -> None:
    log = log_without_batches(tmp_path, end)
    outcome = end.__name__
    assert (2, outcome) in markers(log)
    compact_all(log, NOW_MS)
    ((header, _),) = [batch for batch in batches_of(log) if batch[0].base_offset == 2]
    assert header.has_delete_horizon
    assert header.base_timestamp == NOW_MS + RETENTION_MS
    assert header.max_timestamp == NOW_MS
    assert (2, outcome) in markers(log)
    compact_all(log, NOW_MS + RETENTION_MS - 1)
    assert (2, outcome) in markers(log)
    compact_all(log, NOW_MS + RETENTION_MS)
    assert (2, outcome) not in markers(log)
    assert verify_log(log.directory).problems == []


def test_an_aborted_transaction_is_indexed_as_long_as_it_has_batches(tmp_path: Path) -> None:
    log = log_without_batches(tmp_path, abort)
    assert aborted(log) == [(1, 0, 2)]
    compact_all(log)
    assert aborted(log) == []
    write(log, 1, key=b"c")
    commit(log, 1)
    log.close()
    log = open_log(tmp_path, log.config, clean=False)
    assert aborted(log) == []
    assert log.producers.states[1].transaction_first_offset == -1


def test_a_marker_stays_while_an_empty_batch_of_its_transaction_does(tmp_path: Path) -> None:
    log = open_log(tmp_path, compacted_settings(delete_retention_ms=0))
    write(log, 1, key=b"k")
    commit(log, 1)
    write(log, 2, key=b"k")
    commit(log, 2)
    for _ in range(3):
        with_tail(log)
        compact(log, job_of(log, last_offsets={1: 0}, segment_bytes=100_000))
    empty, marker = batches_of(log)[:2]
    assert (empty[0].base_offset, empty[0].record_count) == (0, 0)
    assert marker[0].is_control
    assert not marker[0].has_delete_horizon


def test_a_live_producers_marker_stays_without_its_record(tmp_path: Path) -> None:
    log = log_without_batches(tmp_path, commit)
    for now_ms in (NOW_MS, NOW_MS + RETENTION_MS):
        compact_all(log, now_ms, marker_epochs={1: 0})
    header, records = batches_of(log)[0]
    assert (header.base_offset, header.producer_id, header.producer_epoch) == (2, 1, 0)
    assert header.is_control
    assert records == []
    log.close()
    log = open_log(tmp_path, log.config, clean=False)
    assert log.producers.states[1].epoch == 0
    compact_all(log, NOW_MS + RETENTION_MS)
    assert batches_of(log)[0][0].base_offset > 2
