"""Idempotent producers where a partition leads, follows and changes between both (R11)."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.record_batches import encode_batch
from tests.unit.broker.log.logs import NOW_MS, messages, read_batches, settings
from tests.unit.broker.replica.replicas import fetch, lead, new_replica

from mainstem_broker.errors import (
    InvalidTxnState,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
    StorageError,
)
from mainstem_broker.log.partition_log import AppendInfo
from mainstem_broker.log.segment import Segment
from mainstem_broker.replica.acknowledgements import Acknowledgement
from mainstem_broker.replica.client_batches import append_batch
from mainstem_broker.replica.divergence import Divergence
from mainstem_broker.replica.partition import Partition

US, THEM = 1, 2


def replica(directory: Path, broker: int = US, **config: object) -> Partition:
    return new_replica(directory / str(broker), settings(**config), broker=broker)


def send(
    to: Partition,
    sequence: int,
    count: int = 1,
    *,
    producer_id: int = 7,
    epoch: int = 0,
    acks: int = 1,
    attributes: int = 0,
) -> AppendInfo:
    batch = encode_batch(
        messages([b"v"] * count),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=attributes,
    )
    return append_batch(to, batch, acks=acks, produce_version=9, now_ms=NOW_MS)


def copy(leader: Partition, follower: Partition) -> None:
    """All that the follower lacks, as its fetches would bring it."""
    for batch in read_batches(leader.log, follower.log.log_end_offset):
        follower.append_from_leader(
            batch,
            leader_epoch=leader.leader_epoch,
            high_watermark=leader.high_watermark,
            log_start_offset=0,
            now_ms=NOW_MS,
        )


@pytest.fixture
def led(tmp_path: Path) -> Partition:
    partition = replica(tmp_path)
    lead(partition, US, 3, isr=(US,))
    return partition


def test_r11_a_batch_sent_again_is_answered_as_the_first_time_and_written_once(led: Partition) -> None:
    send(led, 0, 5, producer_id=8)
    first = send(led, 0, 3)
    assert send(led, 0, 3) == first
    assert (first.first_offset, first.last_offset, led.log.log_end_offset) == (5, 7, 8)


def test_who_repeats_an_early_batch_need_not_wait_for_later_ones(tmp_path: Path) -> None:
    partition = replica(tmp_path)
    lead(partition, US, 3)
    settled: list[int] = []
    for sequence in (0, 1, 2, 0):
        info = send(partition, sequence, acks=-1)
        waiting = Acknowledgement(info.last_offset + 1, lambda one, _error: settled.append(one.offset))
        assert not partition.acknowledge(waiting)
    for offset, expected in ((1, [1, 1]), (3, [1, 1, 2, 3])):
        fetch(partition, THEM, offset)
        assert settled == expected


def test_r11_a_first_batch_that_came_before_the_leadership_is_not_overtaken_by_those_behind_it(
    tmp_path: Path,
) -> None:
    """Five may be on their way to a broker that hears between two of them that it leads."""
    partition = replica(tmp_path)
    lead(partition, THEM, 3)
    with pytest.raises(NotLeaderOrFollower):
        send(partition, 0, 2, acks=-1)
    lead(partition, US, 4)
    for sequence in (2, 3):
        with pytest.raises(OutOfOrderSequenceNumber, match="0 was refused before"):
            send(partition, sequence, acks=-1)
    assert [send(partition, at, 2, acks=-1).first_offset for at in (0, 2)] == [0, 2]


def test_r11_a_batch_that_overtakes_the_first_one_is_sent_back_once(led: Partition) -> None:
    """As librdkafka sends them when the leader changes at the wrong moment."""
    with pytest.raises(NotLeaderOrFollower, match="Producer 7 begins t-0 with sequence number 38"):
        send(led, 38)
    assert [send(led, 0, 38).first_offset, send(led, 38).first_offset] == [0, 38]


@pytest.mark.parametrize("epoch", [0, 4])
def test_who_goes_on_where_the_log_has_forgotten_him_is_taken_at_the_second_time(
    led: Partition, epoch: int
) -> None:
    """His records may have left, the topic may be a new one of the same name, the epoch raised by himself."""
    with pytest.raises(NotLeaderOrFollower):
        send(led, 17, epoch=epoch)
    assert [send(led, at, epoch=epoch).first_offset for at in (17, 18)] == [0, 1]


def test_after_an_unclean_election_nothing_is_asked_for_that_may_be_lost(tmp_path: Path) -> None:
    partition = replica(tmp_path)
    lead(partition, THEM, 3)
    with pytest.raises(NotLeaderOrFollower):
        send(partition, 0)
    assert partition.state is not None
    unclean = replace(
        partition.state, leader=US, leader_epoch=4, partition_epoch=4, recovering=True, isr=(US,)
    )
    partition.update_state(unclean, (US, THEM), NOW_MS)
    with pytest.raises(NotLeaderOrFollower):
        send(partition, 1)
    assert send(partition, 1).first_offset == 0


def test_a_first_batch_refused_for_want_of_replicas_is_not_overtaken(tmp_path: Path) -> None:
    partition = replica(tmp_path, min_insync_replicas=2)
    lead(partition, US, 3, isr=(US,))
    with pytest.raises(NotEnoughReplicas):
        send(partition, 0, acks=-1)
    lead(partition, US, 3 + 1)
    with pytest.raises(OutOfOrderSequenceNumber):
        send(partition, 1, acks=-1)
    assert [send(partition, at, acks=-1).first_offset for at in (0, 1)] == [0, 1]


def test_a_batch_that_the_disk_did_not_take_counts_as_not_sent(
    led: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(_segment: Segment, _buffers: object, _size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Segment, "write", no_space)
        with pytest.raises(StorageError):
            send(led, 0)
    with pytest.raises(OutOfOrderSequenceNumber):
        send(led, 1)
    assert [send(led, at).first_offset for at in (0, 1)] == [0, 1]


def test_batches_of_transactions_that_are_not_verified_are_refused(led: Partition) -> None:
    with pytest.raises(InvalidTxnState, match="not part of an open transaction of producer 7"):
        send(led, 0, attributes=0x10)
    assert led.log.log_end_offset == 0


def test_r11_a_new_leader_recognises_what_the_old_one_wrote(tmp_path: Path) -> None:
    old, new = replica(tmp_path, US), replica(tmp_path, THEM)
    for partition in (old, new):
        lead(partition, US, 3)
    written = [send(old, at, 2) for at in range(0, 12, 2)]
    copy(old, new)
    for partition in (old, new):
        lead(partition, THEM, 4)
    for info, sequence in zip(written[1:], range(2, 12, 2), strict=True):
        assert send(new, sequence, 2).first_offset == info.first_offset
    assert send(new, 12).first_offset == 12
    with pytest.raises(OutOfOrderSequenceNumber):
        send(new, 14)


@pytest.mark.parametrize("lost", [2, 9], ids=["few", "more than are remembered"])
def test_r11_what_a_truncated_follower_lost_is_new_to_it_as_leader(tmp_path: Path, lost: int) -> None:
    ours, theirs = replica(tmp_path, US), replica(tmp_path, THEM)
    for partition in (ours, theirs):
        lead(partition, US, 3)
    send(ours, 0)
    send(ours, 1)
    copy(ours, theirs)
    for sequence in range(2, 2 + lost):
        send(ours, sequence)  # acks=1, and the leader dies
    for partition in (ours, theirs):
        lead(partition, THEM, 4)
    send(theirs, 2)
    ours.truncate_to_divergence(Divergence(3, 2), leader_epoch=4)
    copy(theirs, ours)
    assert read_batches(ours.log) == read_batches(theirs.log)
    for partition in (ours, theirs):
        lead(partition, US, 5)
    assert [send(ours, at).first_offset for at in (1, 2, 3)] == [1, 2, 3]


def test_a_follower_that_starts_over_learns_producers_from_what_it_copies(tmp_path: Path) -> None:
    follower = replica(tmp_path, THEM)
    lead(follower, US, 3)
    follower.start_over(40, leader_epoch=3)
    batch = encode_batch(
        messages([b"v"]), base_offset=40, leader_epoch=3, producer_id=7, producer_epoch=0, base_sequence=12
    )
    follower.append_from_leader(batch, leader_epoch=3, high_watermark=41, log_start_offset=40, now_ms=NOW_MS)
    lead(follower, THEM, 4)
    assert send(follower, 12).first_offset == 40
    assert send(follower, 13).first_offset == 41
