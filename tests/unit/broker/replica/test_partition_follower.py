"""A partition as a follower: what it takes from a leader, and what it cuts off."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from tests.unit.broker.log.logs import NOW_MS, open_log, read_all, read_batches, settings
from tests.unit.broker.log.logs import append as append_to_log
from tests.unit.broker.replica.replicas import state_of, valid_lease

from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.replica.divergence import Divergence
from mainstem_broker.replica.partition import Partition

US, THEM = 1, 2
REPLICAS = (US, THEM)


def log_of(directory: Path, *epochs: int) -> PartitionLog:
    """A log with one record of each of these leader epochs."""
    directory.mkdir(exist_ok=True)
    log = open_log(directory, settings())
    for epoch in epochs:
        append_to_log(log, [b"e%d" % epoch], leader_epoch=epoch)
    return log


def following(directory: Path, *epochs: int, leader_epoch: int = 5, high_watermark: int = 0) -> Partition:
    """Our replica with those records, which follows broker 2."""
    made = Partition("t", 0, UUID(int=1), log_of(directory, *epochs), US, valid_lease(), high_watermark)
    made.update_state(state_of(THEM, leader_epoch, (THEM,), 3), REPLICAS, NOW_MS)
    return made


def take(
    partition: Partition, records: bytes = b"", high_watermark: int = 0, start: int = 0, epoch: int = 5
) -> None:
    partition.append_from_leader(
        records, leader_epoch=epoch, high_watermark=high_watermark, log_start_offset=start, now_ms=NOW_MS
    )


def test_the_high_watermark_never_passes_the_log_end_and_never_goes_back_by_a_fetch(tmp_path: Path) -> None:
    partition = following(tmp_path, 1, 1)
    take(partition, high_watermark=9)
    assert partition.high_watermark == 2
    take(partition, high_watermark=1)
    assert partition.high_watermark == 2


def test_the_log_start_follows_the_leaders_as_far_as_the_high_watermark(tmp_path: Path) -> None:
    partition = following(tmp_path, 1, 1, 1)
    take(partition, high_watermark=1, start=2)
    assert partition.log.log_start_offset == 1
    take(partition, high_watermark=3, start=2)
    assert partition.log.log_start_offset == 2


@pytest.mark.parametrize("leader", [US, THEM])
def test_an_answer_to_a_fetch_of_another_epoch_changes_nothing(tmp_path: Path, leader: int) -> None:
    """The role has changed while the fetch was under way."""
    records = b"".join(read_batches(log_of(tmp_path / "leader", 1, 1)))
    partition = following(tmp_path, 1)
    partition.update_state(state_of(leader, 6, (leader,), 4), REPLICAS, NOW_MS)
    mark = partition.high_watermark
    take(partition, records, high_watermark=1, start=1)
    partition.truncate_to_divergence(Divergence(1, 0), leader_epoch=5)
    partition.start_over(7, leader_epoch=5)
    assert (partition.log.log_start_offset, partition.log.log_end_offset) == (0, 1)
    assert partition.high_watermark == mark


@pytest.mark.parametrize(
    ("own_epochs", "diverging", "end_offset"),
    [
        ((1, 1, 1), Divergence(1, 2), 2),  # the leader's part of that epoch is shorter
        ((1, 3), Divergence(1, 2), 1),  # ours is shorter
        ((1, 1, 4, 4), Divergence(2, 9), 2),  # an epoch that we do not have: the next lower one's end
        ((1, 2, 2, 4), Divergence(2, 3), 3),
        ((3, 3), Divergence(2, 1), 0),  # and none that is lower: nothing in common
    ],
)
def test_what_the_leader_does_not_have_is_cut_off(
    tmp_path: Path, own_epochs: tuple[int, ...], diverging: Divergence, end_offset: int
) -> None:
    """KIP-101, KIP-279."""
    partition = following(tmp_path, *own_epochs)
    partition.truncate_to_divergence(diverging, leader_epoch=5)
    assert partition.log.log_end_offset == end_offset


def test_a_leader_that_knows_none_of_our_epochs_leaves_us_what_was_below_the_high_watermark(
    tmp_path: Path,
) -> None:
    partition = following(tmp_path, 1, 1, 1, high_watermark=2)
    partition.truncate_to_divergence(Divergence(-1, -1), leader_epoch=5)
    assert (partition.log.log_end_offset, partition.high_watermark) == (2, 2)


def test_the_high_watermark_goes_down_with_the_log(tmp_path: Path) -> None:
    partition = following(tmp_path, 1, 1, 1, high_watermark=3)
    partition.truncate_to_divergence(Divergence(1, 1), leader_epoch=5)
    assert partition.high_watermark == 1


def test_a_follower_whose_next_record_is_gone_at_the_leader_starts_over(tmp_path: Path) -> None:
    partition = following(tmp_path, 1, 1, high_watermark=2)
    partition.start_over(50, leader_epoch=5)
    assert partition.fetch_position() == (50, -1)
    assert (partition.log.log_start_offset, partition.high_watermark) == (50, 50)


def test_a_follower_copies_a_log_that_starts_inside_a_batch(tmp_path: Path) -> None:
    """R4, R19: a new replica, a replaced disk, or a follower that was away while records were deleted."""
    theirs = log_of(tmp_path / "leader")
    append_to_log(theirs, [b"x"] * 10, leader_epoch=5)
    theirs.delete_records_before(5)
    partition = following(tmp_path)
    partition.start_over(5, leader_epoch=5)
    take(partition, b"".join(read_batches(theirs)), high_watermark=10, start=5)
    assert read_all(partition.log) == read_all(theirs)
    assert (partition.log.log_start_offset, partition.log.log_end_offset) == (5, 10)
    assert partition.high_watermark == 10
    assert partition.log.epochs.entries == theirs.epochs.entries


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ((), ()),
        ((1, 1, 1), (1, 1, 1, 3)),
        ((1, 1, 2, 2, 2), (1, 1, 3)),  # we led epoch 2 alone
        ((1, 2, 2, 4), (1, 2, 3, 3, 5)),
        ((1, 2, 4, 4), (1, 3, 3, 3)),
        ((1, 1, 1, 1, 1), (1, 1)),
        ((2, 2), (1, 1, 3)),
        ((1, 3, 5, 7), (1, 2, 4, 6, 8)),
    ],
)
def test_any_two_logs_become_one_in_a_few_fetches(
    tmp_path: Path, ours: tuple[int, ...], theirs: tuple[int, ...]
) -> None:
    follower = following(tmp_path / "ours", *ours, leader_epoch=9)
    leader = Partition("t", 0, UUID(int=1), log_of(tmp_path / "theirs", *theirs), THEM, valid_lease())
    state = state_of(THEM, 9, (THEM,), 3)
    leader.update_state(state, REPLICAS, NOW_MS)
    for _ in range(2 + len(set(ours))):
        offset, last_epoch = follower.fetch_position()
        answer = leader.read_as_follower(
            US, 0, offset, last_epoch, 1000, leader_epoch=9, min_one_batch=True, now_ms=NOW_MS
        )
        if isinstance(answer, Divergence):
            follower.truncate_to_divergence(answer, leader_epoch=9)
            assert follower.log.log_end_offset < offset, "each comparison gets on"
        else:
            records = b"" if answer.slice is None else bytes(answer.slice.read())
            take(follower, records, leader.high_watermark, epoch=9)
    assert read_all(follower.log) == read_all(leader.log)
    assert follower.high_watermark == len(theirs)
