from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st
from tests.support.messages import Message
from tests.unit.broker.log.logs import NOW_MS, append, compressed_batch, messages, open_log, settings

from mainstem_broker.log import time_lookup
from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.log.time_lookup import TimestampOffset
from mainstem_broker.protocol.batches import (
    BatchHeader,
    parse_batch_header,
    read_records,
    validate_for_append,
)
from mainstem_broker.protocol.compression import Codec
from mainstem_broker.protocol.records import Record


def append_at(log: PartitionLog, timestamps_ms: list[int], leader_epoch: int = 0) -> None:
    batch = compressed_batch([Message(b"x", timestamp_ms=at) for at in timestamps_ms], Codec.NONE)
    log.append_as_leader(batch, parse_batch_header(batch), leader_epoch, NOW_MS)


def offset_at(log: PartitionLog, timestamp_ms: int) -> int | None:
    found = log.offset_for_timestamp(timestamp_ms)
    return None if found is None else found.offset


@pytest.mark.parametrize("codec", list(Codec))
def test_the_exact_record_is_found_inside_its_batch(tmp_path: Path, codec: Codec) -> None:
    """R13: rewind by time."""
    log = open_log(tmp_path)
    batch = compressed_batch(messages([b"a", b"b", b"c"]), codec)
    log.append_as_leader(batch, parse_batch_header(batch), 4, NOW_MS)
    assert log.offset_for_timestamp(NOW_MS + 1) == TimestampOffset(1, NOW_MS + 1, 4)
    assert log.offset_for_timestamp(0) == TimestampOffset(0, NOW_MS, 4)
    assert log.offset_for_timestamp(NOW_MS + 3) is None


def test_the_epoch_is_that_of_the_record_not_of_the_leader(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_at(log, [10], leader_epoch=1)
    append_at(log, [20], leader_epoch=5)
    assert log.offset_for_timestamp(5) == TimestampOffset(0, 10, 1)
    assert log.offset_for_timestamp(15) == TimestampOffset(1, 20, 5)


def test_records_stamped_by_the_broker_all_have_the_batches_time(tmp_path: Path) -> None:
    config = settings(message_timestamp_type="LogAppendTime")
    log = open_log(tmp_path, config)
    valid = validate_for_append(
        compressed_batch(messages([b"a", b"b"], timestamp_ms=5), Codec.LZ4),
        config,
        produce_version=9,
        now_ms=NOW_MS,
    )
    info = log.append_as_leader(valid.batch, valid.header, 0, NOW_MS)
    assert info.log_append_time_ms == NOW_MS
    assert log.offset_for_timestamp(6) == TimestampOffset(0, NOW_MS, 0)
    assert log.max_timestamp_offset() == TimestampOffset(0, NOW_MS, 0)


def test_nothing_below_the_log_start_is_found(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_at(log, [30, 10, 20, 30, 5])
    append_at(log, [7])
    log.delete_records_before(1)
    assert offset_at(log, 10) == 1
    assert log.max_timestamp_offset() == TimestampOffset(3, 30, 0)
    log.delete_records_before(4)
    assert offset_at(log, 1) == 4
    assert log.max_timestamp_offset() == TimestampOffset(5, 7, 0)
    log.delete_records_before(6)
    assert offset_at(log, 1) is None
    assert log.max_timestamp_offset() is None


def test_the_first_of_several_latest_records_is_the_latest(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.max_timestamp_offset() is None
    append_at(log, [-1])
    assert log.max_timestamp_offset() is None
    append_at(log, [5, 9, 9])
    append_at(log, [9, 3])
    assert log.max_timestamp_offset() == TimestampOffset(2, 9, 0)


@example_settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=4), max_size=15),
    start=st.integers(0, 40),
    reopen=st.booleans(),
)
def test_every_time_leads_to_the_first_record_at_or_after_it(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], start: int, reopen: bool
) -> None:
    directory = tmp_path_factory.mktemp("times")
    config = settings(segment_bytes=400, index_interval_bytes=100)
    log = open_log(directory, config)
    for timestamps_ms in batches:
        append_at(log, timestamps_ms)
    times = [at for timestamps_ms in batches for at in timestamps_ms]
    start = min(start, len(times))
    log.delete_records_before(start)
    if reopen:
        log.close()
        log = open_log(directory, config, log_start_offset=start)
    for wanted in range(-1, 62):
        expected = next((n for n, at in enumerate(times) if n >= start and at >= wanted), None)
        assert offset_at(log, wanted) == expected
    latest = log.max_timestamp_offset()
    if start == len(times):
        assert latest is None
    else:
        assert latest is not None
        assert latest.timestamp == max(times[start:])
        assert latest.offset == times.index(latest.timestamp, start)


def test_a_look_up_opens_one_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path, settings(index_interval_bytes=0))
    for number in range(50):
        append(log, [b"x", b"y"], timestamp_ms=NOW_MS + number * 10)
    opened: list[int] = []

    def read_and_remember(header: BatchHeader, batch: bytes) -> Iterator[Record]:
        opened.append(header.base_offset)
        return read_records(header, batch)

    monkeypatch.setattr(time_lookup, "read_records", read_and_remember)
    assert offset_at(log, NOW_MS + 251) == 51
    assert opened == [50]
