"""A partition as the leader of followers: progress, high watermark, in-sync set, who waits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.record_batches import encode_batch
from tests.unit.broker.log.logs import NOW_MS, messages, settings
from tests.unit.broker.replica.replicas import LAG_MS_MAX, LIFE, fetch, new_replica, state_of

from mainstem_broker.config.topic_settings import TopicConfig
from mainstem_broker.errors import (
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    ProtocolError,
    UnknownLeaderEpoch,
)
from mainstem_broker.log.files import ReadResult
from mainstem_broker.replica.acknowledgements import Acknowledgement
from mainstem_broker.replica.client_batches import append_batch
from mainstem_broker.replica.divergence import Divergence
from mainstem_broker.replica.lease import Lease
from mainstem_broker.replica.partition import Partition

US, TWO, THREE = 1, 2, 3
REPLICAS = (US, TWO, THREE)
EPOCH = 3
LIVES = dict.fromkeys(REPLICAS, LIFE)


def led(
    directory: Path,
    isr: tuple[int, ...] = (US, TWO),
    config: TopicConfig | None = None,
    lease: Lease | None = None,
) -> Partition:
    """t-0 with three replicas, led by us at leader epoch 3 and partition epoch 3."""
    made = new_replica(directory, config, lease=lease)
    made.update_state(state_of(US, EPOCH, isr, 3), REPLICAS, NOW_MS)
    return made


def append(to: Partition, count: int = 1, acks: int = 1) -> None:
    for _ in range(count):
        append_batch(to, encode_batch(messages([b"a"])), acks=acks, produce_version=9, now_ms=NOW_MS)


def propose(
    at: Partition, now_ms: int = NOW_MS, lives: dict[int, int] | None = None
) -> tuple[int, ...] | None:
    proposal = at.propose_isr(LIVES if lives is None else lives, now_ms, LAG_MS_MAX)
    return None if proposal is None else proposal.isr


# --- The high watermark ---


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return led(tmp_path)


def test_the_high_watermark_is_the_lowest_log_end_of_the_in_sync_set(tmp_path: Path) -> None:
    """R19."""
    partition = led(tmp_path, REPLICAS)
    append(partition, 3)
    marks = []
    for broker, offset in ((TWO, 3), (THREE, 1), (THREE, 2), (THREE, 3)):
        fetch(partition, broker, offset)
        marks.append(partition.high_watermark)
    assert marks == [0, 1, 2, 3]


def test_who_is_not_in_sync_does_not_hold_the_high_watermark_back(tmp_path: Path) -> None:
    partition = led(tmp_path, (US, TWO))
    append(partition, 2)
    fetch(partition, THREE, 0)
    fetch(partition, TWO, 2)
    assert partition.high_watermark == 2


def test_a_new_leader_knows_nothing_of_its_followers_and_waits_for_them(partition: Partition) -> None:
    append(partition, 2)
    fetch(partition, TWO, 2)
    partition.update_state(state_of(US, 4, (US, TWO), 4), REPLICAS, NOW_MS)
    append(partition)
    assert partition.high_watermark == 2
    fetch(partition, TWO, 3, last_epoch=4, leader_epoch=4)
    assert partition.high_watermark == 3


def test_a_follower_that_truncates_does_not_take_the_high_watermark_back(partition: Partition) -> None:
    append(partition, 2)
    fetch(partition, TWO, 2)
    fetch(partition, TWO, 1)
    assert partition.high_watermark == 2


def test_the_high_watermark_stands_still_while_the_set_is_too_small(tmp_path: Path) -> None:
    """KIP-966, R22: or the eligible replicas would lack what consumers have read."""
    partition = led(tmp_path, (US,), settings(min_insync_replicas=2))
    append(partition, 2)
    assert partition.high_watermark == 0
    fetch(partition, TWO, 2)
    assert partition.high_watermark == 0
    partition.update_state(state_of(US, EPOCH, (US, TWO), 4), REPLICAS, NOW_MS)
    assert partition.high_watermark == 2


def test_with_fewer_replicas_fewer_have_to_be_in_sync(tmp_path: Path) -> None:
    """The assignment may shrink while the state stays."""
    partition = led(tmp_path, (US,), settings(min_insync_replicas=2))
    append(partition)
    assert partition.high_watermark == 0
    partition.update_state(state_of(US, EPOCH, (US,), 3), (US,), NOW_MS)
    assert partition.high_watermark == 1


def test_a_joining_member_holds_the_high_watermark_back_before_it_is_in(tmp_path: Path) -> None:
    partition = led(tmp_path, (US, TWO))
    append(partition, 2)
    fetch(partition, TWO, 2)
    fetch(partition, THREE, 2)
    assert propose(partition) == REPLICAS
    append(partition)
    fetch(partition, TWO, 3)
    assert partition.high_watermark == 2
    partition.isr_refused()
    assert partition.high_watermark == 3, "once it is certain that it will not join"
    append(partition)
    fetch(partition, TWO, 4)
    assert partition.high_watermark == 4


def test_a_leaving_member_holds_the_high_watermark_back_until_it_is_out(tmp_path: Path) -> None:
    partition = led(tmp_path, REPLICAS)
    append(partition, 2)
    late_ms = NOW_MS + LAG_MS_MAX + 1
    fetch(partition, TWO, 2, now_ms=late_ms)
    assert propose(partition, late_ms) == (US, TWO)
    assert partition.high_watermark == 0
    partition.update_state(state_of(US, EPOCH, (US, TWO), 4), REPLICAS, late_ms)
    assert partition.high_watermark == 2


def test_where_consumers_end_is_not_known_until_the_followers_have_come_to_a_new_leader(
    tmp_path: Path,
) -> None:
    """KIP-207: or a consumer that starts at the end would begin before records that others have read."""
    partition = new_replica(tmp_path, epochs=(2, 2, 2), high_watermark=1)
    partition.update_state(state_of(US, EPOCH, (US, TWO), 3), REPLICAS, NOW_MS)
    with pytest.raises(OffsetNotAvailable, match="t-0 has a new leader"):
        partition.latest_offset(committed=False)
    fetch(partition, TWO, 2, last_epoch=2)
    with pytest.raises(OffsetNotAvailable):
        partition.latest_offset(committed=True)
    fetch(partition, TWO, 3, last_epoch=2)
    assert [partition.latest_offset(committed=flag) for flag in (False, True)] == [3, 3]


def test_consumers_read_to_the_high_watermark_and_followers_to_the_end(partition: Partition) -> None:
    append(partition, 3)
    fetch(partition, TWO, 1)
    fetched = partition.read(0, 1000, client_epoch=-1, min_one_batch=True, committed=False)
    assert fetched.end_offset == 1
    to_follower = fetch(partition, TWO, 1)
    assert isinstance(to_follower, ReadResult)
    assert to_follower.end_offset == 3


def test_r43_a_replica_leads_at_no_epoch_below_those_of_its_log(tmp_path: Path) -> None:
    """KIP-101: as where Apache Kafka wrote the log, and a new ZooKeeper counts from 0."""
    partition = new_replica(tmp_path, epochs=(3, 7))
    elected = state_of(US, 2, (US, TWO), 4)
    partition.update_state(elected, REPLICAS, NOW_MS)
    assert (partition.is_leader, partition.log.epochs.latest_epoch) == (False, 7)
    proposal = partition.propose_epoch()
    assert proposal == replace(elected, leader_epoch=8, partition_epoch=5)
    assert partition.propose_epoch() is None, "one is under way"
    partition.isr_refused()
    assert partition.propose_epoch() == proposal

    partition.update_state(proposal, REPLICAS, NOW_MS)
    assert partition.is_leader
    assert partition.propose_epoch() is None
    assert [entry.epoch for entry in partition.log.epochs.entries] == [3, 7, 8]


# --- The lease ---


def test_a_leader_whose_lease_has_expired_serves_followers_but_no_clients(tmp_path: Path) -> None:
    """Another one may be elected in its place, and it would not know (R20)."""
    now_s = [0.0]
    lease = Lease(lambda: now_s[0], 1.0)
    lease.begin(LIFE)
    lease.answered(0.0)
    partition = led(tmp_path, lease=lease)
    append(partition)
    now_s[0] = 1.0
    with pytest.raises(NotLeaderOrFollower, match="no longer knows whether it leads t-0"):
        append(partition)
    with pytest.raises(NotLeaderOrFollower):
        partition.read(0, 1000, client_epoch=-1, min_one_batch=True, committed=False)
    assert isinstance(fetch(partition, TWO, 0), ReadResult)


def test_a_leadership_of_a_former_life_is_void(partition: Partition) -> None:
    state = state_of(US, 4, (US,), 4, incarnations={US: LIFE + 1})
    partition.update_state(state, REPLICAS, NOW_MS)
    with pytest.raises(NotLeaderOrFollower, match="does not lead"):
        partition.require_leader()


# --- What followers are told ---


def test_a_follower_of_another_epoch_or_without_a_replica_is_turned_away(partition: Partition) -> None:
    with pytest.raises(FencedLeaderEpoch):
        fetch(partition, TWO, 0, leader_epoch=2)
    with pytest.raises(UnknownLeaderEpoch):
        fetch(partition, TWO, 0, leader_epoch=4)
    with pytest.raises(NotLeaderOrFollower, match="Broker 9 holds no replica of t-0"):
        fetch(partition, 9, 0)
    partition.update_state(state_of(US, EPOCH, (US, TWO), 4), (US, TWO), NOW_MS)
    with pytest.raises(NotLeaderOrFollower, match="Broker 3 holds no replica"):
        fetch(partition, THREE, 0)


def with_epochs(directory: Path) -> Partition:
    """Led at epoch 5; offsets 0-1 are of epoch 1, 2-3 of epoch 3, 4 of epoch 5."""
    made = new_replica(directory, epochs=(1, 1, 3, 3))
    made.update_state(state_of(US, 5, (US, TWO), 3), REPLICAS, NOW_MS)
    append(made)
    return made


@pytest.mark.parametrize(
    ("offset", "last_epoch", "diverging"),
    [
        (4, 3, None),
        (1, 1, None),
        (2, 1, None),
        (0, -1, None),
        (5, 5, None),
        (3, 1, Divergence(1, 2)),  # it has more of that epoch
        (9, 3, Divergence(3, 4)),
        (4, 2, Divergence(1, 2)),  # an epoch that is not here: the next lower one
        (7, 4, Divergence(3, 4)),
        (1, 0, Divergence(0, 0)),  # older than all that is here: nothing in common
    ],
)
def test_a_log_that_leaves_the_leaders_is_reported_where(
    tmp_path: Path, offset: int, last_epoch: int, diverging: Divergence | None
) -> None:
    """KIP-101, KIP-279."""
    answer = fetch(with_epochs(tmp_path), TWO, offset, last_epoch=last_epoch, leader_epoch=5)
    assert (answer if isinstance(answer, Divergence) else None) == diverging


def test_a_diverging_fetch_or_one_out_of_range_says_nothing_of_the_followers_progress(tmp_path: Path) -> None:
    partition = with_epochs(tmp_path)
    assert isinstance(fetch(partition, TWO, 9, last_epoch=3, leader_epoch=5), Divergence)
    with pytest.raises(OffsetOutOfRange):
        fetch(partition, TWO, 9, last_epoch=-1, leader_epoch=5)
    assert partition.high_watermark == 0


def test_nothing_is_committed_while_a_broker_outside_the_set_may_be_elected(tmp_path: Path) -> None:
    """R19: as when min.insync.replicas was lowered. The state that makes it impossible is written first."""
    partition = new_replica(tmp_path, settings(min_insync_replicas=1))
    partition.update_state(state_of(US, EPOCH, (US,), 3, elr=(TWO,)), REPLICAS, NOW_MS)
    append(partition)
    assert partition.high_watermark == 0
    with pytest.raises(NotEnoughReplicas):
        partition.require_in_sync()
    proposal = partition.propose_isr(LIVES, NOW_MS, LAG_MS_MAX)
    assert proposal is not None
    assert (proposal.isr, proposal.elr) == ((US,), ())
    partition.update_state(proposal, REPLICAS, NOW_MS)
    partition.require_in_sync()
    assert partition.high_watermark == 1


def test_records_that_are_not_replicated_yet_are_not_deleted(tmp_path: Path) -> None:
    """R4: the next leader may have other records there."""
    partition = led(tmp_path, REPLICAS)
    append(partition, 3)
    with pytest.raises(OffsetOutOfRange):
        partition.delete_records_before(1)
    assert partition.log.log_start_offset == 0


# --- The in-sync set ---


def test_nothing_is_proposed_while_all_is_well_or_by_who_does_not_lead(partition: Partition) -> None:
    assert propose(partition) is None
    partition.update_state(state_of(TWO, 4, (TWO,), 4), REPLICAS, NOW_MS)
    assert propose(partition, NOW_MS + 10 * LAG_MS_MAX) is None


def test_a_follower_joins_when_it_has_reached_the_high_watermark(partition: Partition) -> None:
    append(partition, 3)
    fetch(partition, TWO, 2)
    fetch(partition, THREE, 1)
    assert propose(partition) is None
    fetch(partition, THREE, 2)
    proposal = partition.propose_isr(LIVES, NOW_MS, LAG_MS_MAX)
    assert proposal is not None
    assert proposal.isr == REPLICAS
    assert proposal.partition_epoch == 4
    assert (proposal.leader, proposal.leader_epoch) == (US, EPOCH)
    assert propose(partition, NOW_MS + LAG_MS_MAX + 1) is None, "one at a time"
    partition.update_state(proposal, REPLICAS, NOW_MS)
    assert propose(partition, NOW_MS + LAG_MS_MAX + 1) == (US,)


def test_a_follower_joins_only_when_it_has_reached_the_start_of_the_leaders_epoch(tmp_path: Path) -> None:
    """A new leader's high watermark may be older than what was acknowledged before it."""
    partition = new_replica(tmp_path, epochs=(2, 2, 2), high_watermark=1)
    partition.update_state(state_of(US, EPOCH, (US, TWO), 3), REPLICAS, NOW_MS)
    fetch(partition, THREE, 2, last_epoch=2)
    assert propose(partition) is None
    fetch(partition, THREE, 3, last_epoch=2)
    assert propose(partition) == REPLICAS


def test_a_follower_joins_only_in_the_life_that_its_broker_lives_now(partition: Partition) -> None:
    """KIP-903: its fetch may have been sent before the crash that took its records."""
    fetch(partition, THREE, 0, life=4)
    assert propose(partition, lives={US: LIFE, TWO: LIFE, THREE: 5}) is None
    assert propose(partition, lives={US: LIFE, TWO: LIFE}) is None, "it is dead, or about to stop"
    fetch(partition, THREE, 0, life=5)
    proposal = partition.propose_isr({US: LIFE, TWO: LIFE, THREE: 5}, NOW_MS, LAG_MS_MAX)
    assert proposal is not None
    assert proposal.incarnations == {US: LIFE, TWO: LIFE, THREE: 5}


def test_a_member_that_begins_another_life_stays_and_the_state_goes_on_naming_the_earlier_one(
    partition: Partition,
) -> None:
    """Whether that life began after an unclean stop is for the controller to see, and to act on."""
    append(partition)
    fetch(partition, TWO, 1)
    fetch(partition, TWO, 1, life=LIFE + 1)
    lives = {US: LIFE, TWO: LIFE + 1, THREE: LIFE}
    assert propose(partition, lives=lives) is None
    fetch(partition, THREE, 1)
    proposal = partition.propose_isr(lives, NOW_MS, LAG_MS_MAX)
    assert proposal is not None
    assert proposal.incarnations == {US: LIFE, TWO: LIFE, THREE: LIFE}


def test_a_follower_that_lags_for_too_long_leaves_and_not_before(partition: Partition) -> None:
    append(partition)
    assert propose(partition, NOW_MS + LAG_MS_MAX) is None
    assert propose(partition, NOW_MS + LAG_MS_MAX + 1) == (US,)


def test_a_follower_with_every_record_stays_however_silent(partition: Partition) -> None:
    append(partition)
    fetch(partition, TWO, 1)
    assert propose(partition, NOW_MS + 10 * LAG_MS_MAX) is None


def test_a_dead_follower_is_left_to_the_controller(partition: Partition) -> None:
    append(partition)
    assert propose(partition, NOW_MS + 10 * LAG_MS_MAX, {US: LIFE}) is None


def test_a_new_life_begins_without_the_log_end_of_the_former_one(tmp_path: Path) -> None:
    partition = led(tmp_path, REPLICAS)
    append(partition, 2)
    fetch(partition, TWO, 2)
    fetch(partition, THREE, 2)
    append(partition)
    fetch(partition, THREE, 0, life=LIFE + 1)
    fetch(partition, TWO, 3)
    assert partition.high_watermark == 2
    fetch(partition, THREE, 3, life=LIFE + 1)
    assert partition.high_watermark == 3


def test_a_refused_proposal_is_made_anew(partition: Partition) -> None:
    fetch(partition, THREE, 0)
    assert propose(partition) == REPLICAS
    assert propose(partition) is None
    partition.isr_refused()
    assert propose(partition) == REPLICAS
    partition.update_state(state_of(US, EPOCH, (US, TWO, THREE), 4), REPLICAS, NOW_MS)
    assert propose(partition) is None


# --- Acknowledgements ---


class Waiting:
    """Waits for an offset and notes how that ended."""

    def __init__(self, partition: Partition, offset: int) -> None:
        self.ends: list[type[ProtocolError] | None] = []
        self.acknowledgement = Acknowledgement(offset, self._settle)
        self.at_once = partition.acknowledge(self.acknowledgement)

    def _settle(self, acknowledgement: Acknowledgement, error: ProtocolError | None) -> None:
        assert acknowledgement is self.acknowledgement
        self.ends.append(None if error is None else type(error))


def test_an_acknowledgement_comes_when_all_in_sync_have_the_records(partition: Partition) -> None:
    append(partition, 2, acks=-1)
    first, second = Waiting(partition, 1), Waiting(partition, 2)
    assert not (first.at_once or second.at_once)
    fetch(partition, TWO, 1)
    assert (first.ends, second.ends) == ([None], [])
    fetch(partition, TWO, 2)
    fetch(partition, TWO, 2)
    assert (first.ends, second.ends) == ([None], [None])
    late = Waiting(partition, 2)
    assert (late.at_once, late.ends) == (True, [])


def test_a_member_that_leaves_lets_the_acknowledgement_come(partition: Partition) -> None:
    append(partition, acks=-1)
    waiting = Waiting(partition, 1)
    partition.update_state(state_of(US, EPOCH, (US,), 4), REPLICAS, NOW_MS)
    assert waiting.ends == [None]


def test_nothing_is_acknowledged_while_the_set_is_too_small(tmp_path: Path) -> None:
    """R22: who waits is told at once, and the record stays; it counts when the set is large enough again."""
    partition = led(tmp_path, config=settings(min_insync_replicas=2))
    append(partition, acks=-1)
    waiting = Waiting(partition, 1)
    partition.update_state(state_of(US, EPOCH, (US,), 4), REPLICAS, NOW_MS)
    assert waiting.ends == [NotEnoughReplicasAfterAppend]
    fetch(partition, TWO, 1)
    assert partition.high_watermark == 0
    partition.update_state(state_of(US, EPOCH, (US, TWO), 5), REPLICAS, NOW_MS)
    assert partition.high_watermark == 1


def test_a_topic_with_fewer_replicas_than_the_minimum_needs_all_that_it_has(tmp_path: Path) -> None:
    """As in Kafka 4: a default of 2 does not make topics with a single replica useless (R19)."""
    partition = led(tmp_path, (US,), settings(min_insync_replicas=2))
    partition.update_state(state_of(US, EPOCH, (US,), 4), (US,), NOW_MS)
    append(partition, acks=-1)
    assert partition.high_watermark == 1
    # A second replica comes: now it is needed, and while its copy is not in sync nothing counts.
    partition.update_state(state_of(US, EPOCH, (US,), 5), (US, TWO), NOW_MS)
    with pytest.raises(NotEnoughReplicas):
        append(partition, acks=-1)


@pytest.mark.parametrize(("leader", "epoch"), [(US, 5), (TWO, 4), (-1, 4)])
def test_a_change_of_leadership_refuses_who_waits(partition: Partition, leader: int, epoch: int) -> None:
    """Also for the same leader two epochs later: another one may have cut the records off in between."""
    append(partition, acks=-1)
    waiting = Waiting(partition, 1)
    partition.update_state(state_of(leader, epoch, (US, TWO), 4), REPLICAS, NOW_MS)
    assert waiting.ends == [NotLeaderOrFollower]


def test_a_replica_that_goes_away_refuses_who_waits(partition: Partition) -> None:
    append(partition, acks=-1)
    waiting = Waiting(partition, 1)
    partition.take_offline()
    assert waiting.ends == [NotLeaderOrFollower]


def test_who_has_given_up_hears_nothing_and_may_give_up_twice(partition: Partition) -> None:
    append(partition, acks=-1)
    gone, other = Waiting(partition, 1), Waiting(partition, 1)
    partition.acknowledgements.remove(gone.acknowledgement)
    partition.acknowledgements.remove(gone.acknowledgement)
    fetch(partition, TWO, 1)
    assert (gone.ends, other.ends) == ([], [None])
    partition.acknowledgements.remove(other.acknowledgement)


def test_r19_a_replica_that_hears_of_its_election_before_the_lease_begins_leads_when_it_hears_again(
    tmp_path: Path,
) -> None:
    """Its log has the epoch then, and its follower has to reach where the epoch began."""
    lease = Lease(lambda: 0.0, 1.0)
    lease.begin(LIFE)
    lease.answered(0.0)
    replica = new_replica(tmp_path, lease=lease)
    elected = state_of(US, 4, (US, TWO), 4, incarnations={US: LIFE + 1, TWO: LIFE})
    replica.update_state(elected, (US, TWO), NOW_MS)
    lease.begin(LIFE + 1)
    leads_before = replica.is_leader
    replica.update_state(elected, (US, TWO), NOW_MS)
    assert (leads_before, replica.is_leader) == (False, True)
    assert replica.log.epochs.latest_epoch == 4
    assert replica.led_since == 4
