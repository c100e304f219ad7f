"""Leaders that answer clients by the grants of followers, while ZooKeeper answers nobody (R41)."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.broker.log.logs import NOW_MS, settings
from tests.unit.broker.replica.replicas import LIFE, fetch, new_replica, state_of

from mainstem_broker.errors import NotLeaderOrFollower
from mainstem_broker.replica.lease import GRANT_MARGIN, GRANT_S, Grant, Lease
from mainstem_broker.replica.partition import Partition

US, TWO, THREE = 1, 2, 3
REPLICAS = (US, TWO, THREE)
EPOCH = 3
SESSION_S = 20.0
OUTAGE_S = 100.0
"""When the tests take place: long after the last heartbeat."""


class Clock:
    def __init__(self) -> None:
        self.now_s = OUTAGE_S

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lease(clock: Clock) -> Lease:
    """Of a broker whose lease has expired."""
    lease = Lease(clock, SESSION_S)
    lease.begin(LIFE)
    lease.answered(0.0)
    return lease


def led(
    directory: Path, lease: Lease, isr: tuple[int, ...], *, elr: tuple[int, ...] = (), unclean: bool = False
) -> Partition:
    config = replace(settings(), unclean_leader_election_enable=unclean)
    partition = new_replica(directory, config, lease=lease)
    partition.update_state(state_of(US, EPOCH, isr, 3, elr=elr), REPLICAS, NOW_MS)
    return partition


def until(until_s: float) -> Grant:
    grant = Grant()
    grant.until_s = until_s
    return grant


def test_a_leader_acts_until_the_first_grant_expires(tmp_path: Path, lease: Lease, clock: Clock) -> None:
    partition = led(tmp_path, lease, REPLICAS)
    partition.grants.take(TWO, until(OUTAGE_S + 1), EPOCH)
    with pytest.raises(NotLeaderOrFollower, match="no longer knows"):
        partition.require_leader()
    partition.grants.take(THREE, until(OUTAGE_S + 2), EPOCH)
    partition.require_leader()
    clock.now_s = OUTAGE_S + 1
    with pytest.raises(NotLeaderOrFollower):
        partition.require_leader()


def test_a_leader_that_is_alone_in_sync_needs_no_grant(tmp_path: Path, lease: Lease) -> None:
    led(tmp_path, lease, (US,)).require_leader()


def test_an_eligible_leader_replica_must_grant_as_well(tmp_path: Path, lease: Lease) -> None:
    partition = led(tmp_path, lease, (US,), elr=(TWO,))
    assert not partition.is_served
    partition.grants.take(TWO, until(OUTAGE_S + 1), EPOCH)
    partition.require_leader()


def test_with_unclean_election_every_replica_must_grant(tmp_path: Path, lease: Lease) -> None:
    partition = led(tmp_path, lease, (US, TWO), unclean=True)
    partition.grants.take(TWO, until(OUTAGE_S + 1), EPOCH)
    assert not partition.is_served
    partition.grants.take(THREE, until(OUTAGE_S + 1), EPOCH)
    partition.require_leader()


def test_a_replica_that_is_proposed_must_grant_for_it_may_be_in_sync_by_now(
    tmp_path: Path, lease: Lease
) -> None:
    partition = led(tmp_path, lease, (US, TWO))
    partition.grants.take(TWO, until(OUTAGE_S + 1), EPOCH)
    fetch(partition, THREE, 0)
    assert partition.propose_isr(dict.fromkeys(REPLICAS, LIFE), NOW_MS, 1000) is not None
    with pytest.raises(NotLeaderOrFollower):
        partition.require_leader()


def test_what_was_granted_holds_after_a_follower_leaves_but_is_renewed_no_more(
    tmp_path: Path, lease: Lease, clock: Clock
) -> None:
    partition = led(tmp_path, lease, (US, TWO))
    grant = until(OUTAGE_S + 1)
    partition.grants.take(TWO, grant, EPOCH)
    partition.grants.drop(TWO, grant, partition.leader_epoch)
    grant.until_s = OUTAGE_S + 5
    partition.require_leader()
    clock.now_s = OUTAGE_S + 1
    with pytest.raises(NotLeaderOrFollower):
        partition.require_leader()


def test_a_fetch_session_that_ends_without_a_grant_takes_nothing_from_the_one_before(
    tmp_path: Path, lease: Lease
) -> None:
    partition = led(tmp_path, lease, (US, TWO))
    for grant in (until(OUTAGE_S + 1), Grant()):
        partition.grants.take(TWO, grant, EPOCH)
        partition.grants.drop(TWO, grant, partition.leader_epoch)
    partition.require_leader()


def test_a_follower_that_knows_a_later_epoch_grants_nothing_to_this_one(tmp_path: Path, lease: Lease) -> None:
    """It may have led in that epoch, and answered clients."""
    partition = led(tmp_path, lease, (US, TWO))
    grant = until(OUTAGE_S + 1)
    partition.grants.take(TWO, grant, EPOCH + 1)
    assert not partition.is_served
    partition.grants.drop(TWO, grant, partition.leader_epoch)
    assert not partition.is_served
    partition.grants.take(TWO, grant, EPOCH - 1)  # it has not heard of this epoch yet
    partition.require_leader()


def test_a_refused_connection_stands_in_for_a_grant(tmp_path: Path, lease: Lease) -> None:
    partition = led(tmp_path, lease, (US, TWO))
    partition.grants.take(TWO, until(OUTAGE_S), EPOCH)
    lease.note_refusal(TWO, OUTAGE_S)
    partition.require_leader()


def test_a_refused_connection_does_not_bring_back_a_grant_that_ended(tmp_path: Path, lease: Lease) -> None:
    """The follower may have been elected after its last grant, and have led until it died."""
    partition = led(tmp_path, lease, (US, TWO))
    partition.grants.take(TWO, until(OUTAGE_S - 0.1), EPOCH)
    lease.note_refusal(TWO, OUTAGE_S)
    with pytest.raises(NotLeaderOrFollower):
        partition.require_leader()


# --- The other side ---


def elected(directory: Path, lease: Lease, old_isr: tuple[int, ...] = REPLICAS) -> Partition:
    """A replica that followed TWO, and is elected now."""
    partition = new_replica(directory, lease=lease)
    partition.update_state(state_of(TWO, 3, old_isr, 3), REPLICAS, NOW_MS)
    partition.update_state(state_of(US, 4, (US, THREE), 4), REPLICAS, NOW_MS)
    return partition


def test_one_that_is_elected_waits_for_what_it_has_granted(
    tmp_path: Path, lease: Lease, clock: Clock
) -> None:
    assert lease.grant()
    lease.answered(clock.now_s)
    partition = elected(tmp_path, lease)
    with pytest.raises(NotLeaderOrFollower, match="until the former leader has certainly stopped"):
        partition.require_leader()
    clock.now_s += GRANT_S * GRANT_MARGIN
    partition.require_leader()


def test_one_that_has_granted_nothing_acts_at_once(tmp_path: Path, lease: Lease, clock: Clock) -> None:
    lease.answered(clock.now_s)
    elected(tmp_path, lease).require_leader()


def test_a_process_that_cannot_know_what_an_earlier_one_granted_waits_after_its_start(
    tmp_path: Path, clock: Clock
) -> None:
    lease = Lease(clock, SESSION_S)
    lease.begin_listening()
    lease.begin(LIFE + 1)
    lease.answered(clock.now_s)
    partition = new_replica(tmp_path, lease=lease)
    partition.update_state(state_of(TWO, 3, REPLICAS, 3), REPLICAS, NOW_MS)
    lives = {US: LIFE + 1, THREE: LIFE}
    partition.update_state(state_of(US, 4, (US, THREE), 4, incarnations=lives), REPLICAS, NOW_MS)
    with pytest.raises(NotLeaderOrFollower):
        partition.require_leader()
    clock.now_s += GRANT_S * GRANT_MARGIN
    partition.require_leader()


@pytest.mark.parametrize(("elr", "waits"), [((), False), ((TWO,), True)])
def test_a_broker_that_led_last_waits_after_its_start_only_for_one_that_may_have_led_since(
    tmp_path: Path, clock: Clock, elr: tuple[int, ...], *, waits: bool
) -> None:
    lease = Lease(clock, SESSION_S)
    lease.begin_listening()
    lease.begin(LIFE + 1)
    lease.answered(clock.now_s)
    partition = new_replica(tmp_path, lease=lease)
    partition.update_state(state_of(US, 3, (US,), 3, elr=elr), REPLICAS, NOW_MS)
    partition.update_state(state_of(US, 4, (US,), 4, incarnations={US: LIFE + 1}), REPLICAS, NOW_MS)
    with pytest.raises(NotLeaderOrFollower) if waits else nullcontext():
        partition.require_leader()
