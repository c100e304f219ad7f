"""A partition as a follower: what it takes from a leader, and what it cuts off."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.broker.log.logs import NOW_MS, read_all, read_batches
from tests.unit.broker.replica.replicas import fetch, new_replica, state_of

from mainstem_broker.replica.divergence import Divergence
from mainstem_broker.replica.partition import Partition

US, THEM = 1, 2
REPLICAS = (US, THEM)


def following(directory: Path, *epochs: int, leader_epoch: int = 5, high_watermark: int = 0) -> Partition:
    """Our replica with a record of each of these epochs, which follows broker 2."""
    made = new_replica(directory, epochs=epochs, high_watermark=high_watermark)
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
    records = b"".join(read_batches(new_replica(tmp_path / "leader", epochs=(1, 1)).log))
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
    leader = new_replica(tmp_path / "theirs", broker=THEM, epochs=theirs)
    state = state_of(THEM, 9, (THEM,), 3)
    leader.update_state(state, REPLICAS, NOW_MS)
    for _ in range(2 + len(set(ours))):
        offset, last_epoch = follower.fetch_position()
        answer = fetch(leader, US, offset, last_epoch=last_epoch)
        if isinstance(answer, Divergence):
            follower.truncate_to_divergence(answer, leader_epoch=9)
            assert follower.log.log_end_offset < offset, "each comparison gets on"
        else:
            records = b"" if answer.slice is None else bytes(answer.slice.read())
            take(follower, records, leader.high_watermark, epoch=9)
    assert read_all(follower.log) == read_all(leader.log)
    assert follower.high_watermark == len(theirs)
