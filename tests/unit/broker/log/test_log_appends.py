"""Appending to a log, as leader and as follower."""

from __future__ import annotations

import pytest
from tests.support.record_batches import encode_batch
from tests.unit.broker.log.followed_logs import follow
from tests.unit.broker.log.logs import NOW_MS, Stored, append, messages, read_all, read_batches

from mainstem_broker.errors import CorruptMessage, OffsetOutOfRange
from mainstem_broker.log.partition_log import AppendInfo, PartitionLog
from mainstem_broker.protocol.batches import crc_matches, parse_batch_header


def test_the_leader_gives_offsets_one_after_another(log: PartitionLog) -> None:
    """R2."""
    first, second = append(log, [b"a", b"b"]), append(log, [b"c"], leader_epoch=3)
    assert first == AppendInfo(0, 1, NOW_MS + 1, -1, 0)
    assert second == AppendInfo(2, 2, NOW_MS, -1, 0)
    assert read_all(log) == [Stored(0, b"a"), Stored(1, b"b"), Stored(2, b"c")]


def test_a_stored_batch_differs_from_the_sent_one_only_in_offset_and_epoch(log: PartitionLog) -> None:
    """R7."""
    append(log, [b"before"])
    sent = encode_batch(messages([b"a", b"b"]), base_offset=99, leader_epoch=0)
    log.append_as_leader(memoryview(sent), parse_batch_header(sent), 5, NOW_MS)
    stored = read_batches(log, 1)[0]
    header = parse_batch_header(stored)
    assert (header.base_offset, header.partition_leader_epoch) == (1, 5)
    assert crc_matches(header, stored)
    assert stored[16:] == sent[16:]


def test_a_batch_that_is_not_as_long_as_its_header_says_is_a_mistake_of_ours(log: PartitionLog) -> None:
    sent = encode_batch(messages([b"a"]))
    with pytest.raises(ValueError, match="batch"):
        log.append_as_leader(sent + b"x", parse_batch_header(sent), 0, NOW_MS)


def test_a_follower_leaves_out_a_partial_last_batch(log: PartitionLog) -> None:
    whole = encode_batch(messages([b"x"]))
    log.append_as_follower(whole + encode_batch(messages([b"y"]), base_offset=1)[:-1], NOW_MS)
    assert log.log_end_offset == 1
    with pytest.raises(CorruptMessage, match="no whole batch"):
        log.append_as_follower(whole[:-1], NOW_MS)


def test_a_follower_refuses_what_is_corrupt_or_goes_back_and_takes_nothing(log: PartitionLog) -> None:
    """R6."""
    follow(log, 0, 3)
    good = encode_batch(messages([b"x"]), base_offset=3)
    with pytest.raises(CorruptMessage, match="checksum"):
        log.append_as_follower(good + encode_batch(messages([b"y"]), base_offset=4, crc=1), NOW_MS)
    for base in (2, 0):
        with pytest.raises(OffsetOutOfRange, match="log's end, 3"):
            follow(log, base, 3)
    assert log.log_end_offset == 3
    assert log.size_bytes == len(read_batches(log)[0])
