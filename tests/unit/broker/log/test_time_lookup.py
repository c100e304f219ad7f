from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.unit.broker.log.logs import (
    NOW_MS,
    append,
    compressed_batch,
    find_by_time,
    find_latest,
    messages,
    open_log,
    settings,
)

from mainstem_broker.log import time_lookup
from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.log.time_lookup import WALKED_AT_ONCE_BYTES, Stretch, TimestampOffset
from mainstem_broker.protocol.batch_validation import validate_for_append
from mainstem_broker.protocol.batches import BatchHeader, parse_batch_header, read_record_heads, rewrite
from mainstem_broker.protocol.compression import Codec, compress
from mainstem_broker.protocol.records import RecordHead


def append_at(log: PartitionLog, timestamps_ms: list[int], leader_epoch: int = 0) -> None:
    batch = compressed_batch([Message(b"x", timestamp_ms=at) for at in timestamps_ms], Codec.NONE)
    log.append_as_leader(batch, parse_batch_header(batch), leader_epoch, NOW_MS)


def offset_at(log: PartitionLog, timestamp_ms: int) -> int | None:
    match = find_by_time(log, timestamp_ms)
    return None if match is None else match.offset


@pytest.mark.parametrize("codec", list(Codec))
def test_the_exact_record_is_found_inside_its_batch(log: PartitionLog, codec: Codec) -> None:
    """R13: rewind by time."""
    batch = compressed_batch(messages([b"a", b"b", b"c"]), codec)
    log.append_as_leader(batch, parse_batch_header(batch), 4, NOW_MS)
    assert find_by_time(log, NOW_MS + 1) == TimestampOffset(1, NOW_MS + 1, 4)
    assert find_by_time(log, 0) == TimestampOffset(0, NOW_MS, 4)
    assert find_by_time(log, NOW_MS + 3) is None


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
    assert find_by_time(log, 6) == TimestampOffset(0, NOW_MS, 0)
    assert find_latest(log) == TimestampOffset(0, NOW_MS, 0)


def test_the_first_of_several_latest_records_is_the_latest(log: PartitionLog) -> None:
    assert find_latest(log) is None
    append_at(log, [-1])
    assert find_latest(log) is None
    append_at(log, [5, 9, 9])
    append_at(log, [9, 3])
    assert find_latest(log) == TimestampOffset(2, 9, 0)


@example_settings(max_examples=60)
@given(
    batches=st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=4), max_size=15),
    start=st.integers(0, 40),
    reopen=st.booleans(),
    walked_at_once_bytes=st.sampled_from((0, 200, time_lookup.WALKED_AT_ONCE_BYTES)),
)
def test_every_time_leads_to_the_first_record_at_or_after_it(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[int]],
    start: int,
    reopen: bool,
    walked_at_once_bytes: int,
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
    with mock.patch.object(time_lookup, "WALKED_AT_ONCE_BYTES", walked_at_once_bytes):
        for target in range(-1, 62):
            expected = next((n for n, at in enumerate(times) if n >= start and at >= target), None)
            assert offset_at(log, target) == expected
        latest = find_latest(log)
    if start == len(times):
        assert latest is None
    else:
        assert latest is not None
        assert latest.timestamp == max(times[start:])
        assert latest.offset == times.index(latest.timestamp, start)


def test_what_the_index_does_not_tell_is_walked_in_parts_elsewhere(log: PartitionLog) -> None:
    """R40: a first record of the far future leaves the index without entries for the rest of the segment."""
    future_ms = NOW_MS + 10**9
    append_at(log, [future_ms])
    while log.size_bytes < 3 * time_lookup.WALKED_AT_ONCE_BYTES:
        append_at(log, [NOW_MS])
    last_offset = log.log_end_offset
    append_at(log, [future_ms + 1])

    near = log.first_batch_for_timestamp(future_ms + 1, 0)
    assert isinstance(near, Stretch)
    assert WALKED_AT_ONCE_BYTES < near.position < 2 * WALKED_AT_ONCE_BYTES
    assert find_by_time(log, future_ms + 1) == TimestampOffset(last_offset, future_ms + 1, 0)


def test_the_largest_timestamp_of_a_cut_segment_needs_a_walk_only_if_it_may_be_cut_off(
    log: PartitionLog,
) -> None:
    for timestamp_ms in (50, 10, 30, 20):
        append_at(log, [timestamp_ms])
    log.delete_records_before(1)
    assert log.largest_timestamp().rest is not None
    assert find_latest(log) == TimestampOffset(2, 30, 0)
    append_at(log, [60])
    assert log.largest_timestamp() == (60, None, None)
    assert find_latest(log) == TimestampOffset(4, 60, 0)


def test_a_look_up_opens_one_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path, settings(index_interval_bytes=0))
    for number in range(50):
        append(log, [b"x", b"y"], timestamp_ms=NOW_MS + number * 10)
    opened: list[int] = []

    def read_and_remember(header: BatchHeader, batch: bytes) -> Iterator[RecordHead]:
        opened.append(header.base_offset)
        return read_record_heads(header, batch)

    monkeypatch.setattr(time_lookup, "read_record_heads", read_and_remember)
    assert offset_at(log, NOW_MS + 251) == 51
    assert opened == [50]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_a_batch_that_cannot_be_decoded_counts_by_its_header(log: PartitionLog, codec: Codec) -> None:
    """It is stored as it came, and a lookup must neither fail for good nor cost what a client chooses."""
    append_at(log, [NOW_MS])
    plain = b"".join(b"\x0c\x00\x00\x00\x01\x01\x00" for _ in range(1_100_000))
    header = replace(
        parse_batch_header(encode_batch([Message(b"x", timestamp_ms=NOW_MS + 5)], attributes=int(codec))),
        record_count=1_100_000,
        last_offset_delta=1_099_999,
    )
    for payload in (compress(codec, plain), b"garbage"):
        stored, batch = rewrite(header, payload)
        log.append_as_leader(batch, stored, 0, NOW_MS)
    assert find_by_time(log, NOW_MS + 1) == TimestampOffset(1, NOW_MS + 5, 0)
    log.delete_records_before(1_100_002)
    assert find_latest(log) == TimestampOffset(1_100_002, NOW_MS + 5, 0)
