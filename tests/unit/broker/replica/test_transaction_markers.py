"""Transactions where a partition leads and follows: the last stable offset, markers, fencing (R11)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.broker.log.logs import NOW_MS, settings
from tests.unit.broker.log.transactional import ABORT, COMMIT, aborted, transactional_batch, write
from tests.unit.broker.replica.replicas import fetch, lead, new_replica

from mainstem_broker.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    TransactionCoordinatorFenced,
)
from mainstem_broker.protocol.batches import parse_batch_header
from mainstem_broker.protocol.markers import Marker
from mainstem_broker.replica.divergence import Divergence
from mainstem_broker.replica.partition import Partition
from mainstem_broker.replica.transaction_markers import append_marker

US, THEM = 1, 2
PRODUCER = 7


def replica(directory: Path, broker: int = US, **config: object) -> Partition:
    return new_replica(directory / str(broker), settings(**config), broker=broker)


def led_alone(directory: Path, **config: object) -> Partition:
    partition = replica(directory, US, **config)
    lead(partition, US, 0, (US,))
    return partition


def mark(partition: Partition, marker: Marker = COMMIT, *, epoch: int = 0, raises_epoch: bool = False) -> int:
    return append_marker(partition, PRODUCER, epoch, marker, raises_epoch=raises_epoch, now_ms=NOW_MS)


def send(partition: Partition, producer_id: int, sequence: int = 0, *, epoch: int = 0) -> None:
    batch = transactional_batch(producer_id, sequence, epoch=epoch)
    partition.write(parse_batch_header(batch), batch, NOW_MS)


# --- The last stable offset ---


def test_r11_the_stable_offset_does_not_move_before_the_marker_is_replicated(tmp_path: Path) -> None:
    partition = replica(tmp_path)
    lead(partition, US, 0)
    write(partition.log, 1)
    write(partition.log, PRODUCER)
    fetch(partition, THEM, 2)
    assert (partition.last_stable_offset, partition.high_watermark) == (0, 2)
    assert mark(partition) == 3
    assert partition.last_stable_offset == 0
    append_marker(partition, 1, 0, ABORT, raises_epoch=False, now_ms=NOW_MS)
    fetch(partition, THEM, 3)
    assert (partition.last_stable_offset, partition.high_watermark) == (0, 3)
    fetch(partition, THEM, 4)
    assert (partition.last_stable_offset, partition.high_watermark) == (4, 4)


def test_a_transaction_above_the_high_watermark_does_not_lower_the_stable_offset(tmp_path: Path) -> None:
    partition = replica(tmp_path)
    lead(partition, US, 0)
    write(partition.log, PRODUCER)
    assert (partition.last_stable_offset, partition.high_watermark) == (0, 0)


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return led_alone(tmp_path)


def test_read_committed_ends_at_the_stable_offset(partition: Partition) -> None:
    send(partition, PRODUCER)
    mark(partition)
    send(partition, PRODUCER, 1)
    mark(partition, epoch=1)
    send(partition, PRODUCER, epoch=1)
    ends = [
        partition.read(0, 1000, client_epoch=-1, min_one_batch=True, committed=committed).end_offset
        for committed in (True, False)
    ]
    assert ends == [4, 5]
    assert [partition.latest_offset(committed=committed) for committed in (True, False)] == [4, 5]


def test_the_stable_offset_is_never_below_the_log_start(partition: Partition) -> None:
    send(partition, PRODUCER)
    send(partition, PRODUCER, 1)
    send(partition, 8)
    assert (partition.last_stable_offset, partition.high_watermark) == (0, 3)
    partition.delete_records_before(2)
    assert partition.last_stable_offset == 2
    partition.delete_records_before(-1)
    assert partition.last_stable_offset == partition.high_watermark == 3


def test_r19_a_follower_that_becomes_leader_knows_the_open_transactions(tmp_path: Path) -> None:
    old, new = replica(tmp_path, US), replica(tmp_path, THEM)
    for partition in (old, new):
        lead(partition, US, 0)
    write(old.log, PRODUCER)
    slice_read = old.log.read(0, 1 << 20, old.log.log_end_offset, True)
    assert slice_read.slice is not None
    new.append_from_leader(
        slice_read.slice.read(), leader_epoch=0, high_watermark=0, log_start_offset=0, now_ms=NOW_MS
    )
    lead(new, THEM, 1, (THEM,))
    assert (new.last_stable_offset, new.high_watermark) == (0, 1)
    append_marker(new, PRODUCER, 0, ABORT, raises_epoch=False, now_ms=NOW_MS)
    assert new.last_stable_offset == 2
    assert aborted(new.log) == [(PRODUCER, 0, 1)]


def test_a_follower_forgets_completed_transactions_once_they_are_replicated(tmp_path: Path) -> None:
    follower = replica(tmp_path, THEM)
    lead(follower, US, 0)
    leader = led_alone(tmp_path)
    write(leader.log, PRODUCER)
    mark(leader)
    slice_read = leader.log.read(0, 1 << 20, 2, True)
    assert slice_read.slice is not None
    follower.append_from_leader(
        slice_read.slice.read(), leader_epoch=0, high_watermark=1, log_start_offset=0, now_ms=NOW_MS
    )
    assert follower.last_stable_offset == 0
    follower.append_from_leader(b"", leader_epoch=0, high_watermark=2, log_start_offset=0, now_ms=NOW_MS)
    assert follower.last_stable_offset == 2


def test_a_marker_that_a_follower_has_to_cut_off_opens_the_transaction_again(tmp_path: Path) -> None:
    partition = replica(tmp_path)
    lead(partition, US, 0)
    write(partition.log, PRODUCER)
    fetch(partition, THEM, 1)
    mark(partition, ABORT)
    lead(partition, THEM, 1)
    partition.truncate_to_divergence(Divergence(0, 1), leader_epoch=1)
    assert partition.log.log_end_offset == 1
    lead(partition, US, 2, (US,))
    assert partition.last_stable_offset == 0
    mark(partition, COMMIT)
    assert partition.last_stable_offset == 2
    assert aborted(partition.log) == []


# --- Markers ---


def test_a_marker_that_comes_again_is_not_written_again(partition: Partition) -> None:
    write(partition.log, PRODUCER)
    assert [mark(partition), mark(partition), mark(partition)] == [2, 2, 2]


def test_a_marker_that_comes_again_waits_for_its_own_offset(partition: Partition) -> None:
    """The log's end moves on: a busy partition with slow replicas would never be done."""
    write(partition.log, PRODUCER)
    end_offset = mark(partition)
    for sequence in range(3):
        send(partition, 8, sequence)
    assert (mark(partition), partition.log.log_end_offset) == (end_offset, end_offset + 3)


def test_a_marker_that_comes_again_after_a_restart_waits_for_no_more_than_was_there(
    partition: Partition, tmp_path: Path
) -> None:
    write(partition.log, PRODUCER)
    mark(partition)
    partition.log.close()
    partition = led_alone(tmp_path)
    end_offset = partition.log.log_end_offset
    send(partition, 8)
    assert mark(partition) == end_offset < partition.log.log_end_offset


@pytest.mark.parametrize("raises_epoch", [False, True])
def test_a_marker_for_a_producer_without_records_is_written_for_its_epochs(
    partition: Partition, raises_epoch: bool
) -> None:
    assert mark(partition, epoch=3, raises_epoch=raises_epoch) == 1
    with pytest.raises(InvalidProducerEpoch):
        partition.log.producers.check(parse_batch_header(transactional_batch(PRODUCER, epoch=2)))


def test_a_marker_of_an_older_coordinator_is_refused(partition: Partition) -> None:
    write(partition.log, PRODUCER)
    mark(partition, Marker(True, 5))
    write(partition.log, PRODUCER)
    with pytest.raises(TransactionCoordinatorFenced, match="coordinator epoch 4, but epoch 5"):
        mark(partition, Marker(False, 4))
    assert partition.last_stable_offset == 2
    mark(partition, Marker(False, 6))
    assert partition.last_stable_offset == 4


def test_the_coordinators_epoch_outlives_a_restart(partition: Partition, tmp_path: Path) -> None:
    mark(partition, Marker(True, 5))
    partition.log.close()
    partition = led_alone(tmp_path)
    with pytest.raises(TransactionCoordinatorFenced):
        mark(partition, Marker(True, 4))


def test_a_marker_for_an_older_producer_is_refused(partition: Partition) -> None:
    write(partition.log, PRODUCER, epoch=2)
    with pytest.raises(InvalidProducerEpoch, match="has epoch 1, but the producer is at epoch 2"):
        mark(partition, epoch=1)


def test_kip_890_a_delayed_marker_does_not_end_the_next_transaction(partition: Partition) -> None:
    write(partition.log, PRODUCER, epoch=0)
    mark(partition, ABORT, epoch=1, raises_epoch=True)
    mark(partition, ABORT, epoch=1, raises_epoch=True)
    write(partition.log, PRODUCER, epoch=1)
    with pytest.raises(InvalidProducerEpoch, match="has begun its next transaction"):
        mark(partition, ABORT, epoch=1, raises_epoch=True)
    assert partition.last_stable_offset == 2


def test_a_batch_outside_the_open_transaction_of_its_producer_is_refused(partition: Partition) -> None:
    write(partition.log, PRODUCER)
    plain = parse_batch_header(transactional_batch(PRODUCER, 1))
    plain.attributes = 0
    with pytest.raises(InvalidTxnState):
        partition.log.producers.check(plain)


def test_markers_need_a_leader_and_enough_replicas(tmp_path: Path) -> None:
    partition = replica(tmp_path, min_insync_replicas=2)
    lead(partition, THEM, 0)
    with pytest.raises(NotLeaderOrFollower):
        mark(partition)
    lead(partition, US, 1, (US,))
    with pytest.raises(NotEnoughReplicas):
        mark(partition)
    assert partition.log.log_end_offset == 0


def test_r12_a_change_of_leader_makes_verifications_void(tmp_path: Path) -> None:
    """The other leader may have had the marker of the transaction, and nothing to write for it."""
    partition = replica(tmp_path)
    lead(partition, US, 0)
    producers = partition.log.producers
    verification = producers.begin_verification(PRODUCER, NOW_MS)
    lead(partition, THEM, 1)
    lead(partition, US, 2)
    assert not producers.is_verified(PRODUCER, verification)
