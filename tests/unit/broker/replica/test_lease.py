from __future__ import annotations

import pytest

from mainstem_broker.replica.lease import (
    CUT_OFF_SHARE,
    GRANT_MARGIN,
    GRANT_S,
    LEASE_SHARE,
    NO_INCARNATION,
    Lease,
)

SESSION_S = 20.0
LEASE_S = LEASE_SHARE * SESSION_S
CUT_OFF_S = CUT_OFF_SHARE * SESSION_S


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lease(clock: Clock) -> Lease:
    return Lease(clock, SESSION_S)


def may_act(lease: Lease, incarnation: int) -> bool:
    return lease.is_held_by(incarnation) and lease.is_valid()


# --- The session ---


def test_a_lease_is_not_valid_until_a_broker_is_registered_and_a_heartbeat_was_answered(lease: Lease) -> None:
    assert not may_act(lease, 0)
    lease.begin(0)
    assert not may_act(lease, 0)
    lease.answered(0.0)
    assert may_act(lease, 0)


def test_a_lease_expires_by_itself(lease: Lease, clock: Clock) -> None:
    """A process that was stopped (SIGSTOP), or whose machine slept, cannot see that its session has ended."""
    lease.begin(3)
    lease.answered(0.0)
    clock.now_s = LEASE_S - 0.1
    assert may_act(lease, 3)
    clock.now_s = LEASE_S
    assert not may_act(lease, 3)
    lease.answered(LEASE_S)
    assert may_act(lease, 3)


def test_the_lease_counts_from_when_the_heartbeat_was_sent(lease: Lease, clock: Clock) -> None:
    lease.begin(3)
    clock.now_s = 5.0
    lease.answered(1.0)
    clock.now_s = 1.0 + LEASE_S
    assert not lease.is_valid()


def test_leaderships_of_another_process_are_void(lease: Lease) -> None:
    lease.answered(0.0)
    lease.begin(3)
    assert not may_act(lease, 2)
    lease.begin(4)
    assert not may_act(lease, 3)
    assert may_act(lease, 4)


def test_leaderships_of_an_earlier_session_of_the_same_process_are_valid(lease: Lease) -> None:
    """So an outage that ends all sessions moves no leadership (R41)."""
    lease.answered(0.0)
    lease.begin(3)
    lease.begin(5, first_incarnation=3)
    assert [each for each in range(8) if may_act(lease, each)] == [3, 4, 5]


def test_without_its_session_a_lease_is_not_valid_whatever_the_next_session_answers(lease: Lease) -> None:
    """Another broker may have been elected, which is known only once this one is registered again."""
    lease.begin(3)
    lease.answered(0.0)
    lease.lose_session()
    lease.answered(1.0)
    assert lease.is_held_by(3)
    assert not lease.is_valid()
    lease.begin(4, first_incarnation=3)
    assert may_act(lease, 3)


def test_a_lease_that_has_ended_is_valid_for_nobody_though_its_time_is_not_over(lease: Lease) -> None:
    lease.begin(3)
    lease.answered(0.0)
    lease.end()
    for incarnation in (3, NO_INCARNATION):
        assert not may_act(lease, incarnation)


def test_a_state_that_names_no_incarnation_has_no_lease(lease: Lease) -> None:
    lease.answered(0.0)
    assert not may_act(lease, NO_INCARNATION)
    lease.begin(3)
    assert not may_act(lease, NO_INCARNATION)


# --- Outages ---


def test_a_broker_counts_as_cut_off_before_a_leader_that_lost_zookeeper_with_it_has_lost_its_lease() -> None:
    heartbeat_share, fetch_share = 1 / 6, 0.5 / 4  # of the shortest session that brokers run with
    assert CUT_OFF_SHARE + heartbeat_share + fetch_share < LEASE_SHARE


def test_an_outage_has_an_aftermath_of_a_session(lease: Lease, clock: Clock) -> None:
    lease.answered(0.0)
    clock.now_s = LEASE_S + 1
    seen = [(lease.is_cut_off, lease.is_in_aftermath)]
    lease.answered(clock.now_s)
    seen.append((lease.is_cut_off, lease.is_in_aftermath))
    clock.now_s += SESSION_S
    seen.append((lease.is_cut_off, lease.is_in_aftermath))
    assert seen == [(True, False), (False, True), (True, False)]


def test_heartbeats_in_time_and_the_first_one_of_all_end_no_outage(lease: Lease, clock: Clock) -> None:
    clock.now_s = 100.0
    lease.reconnected()
    lease.answered(100.0)
    clock.now_s += LEASE_S
    lease.answered(clock.now_s)
    assert not lease.is_in_aftermath


def test_a_connection_that_is_back_ends_an_outage_before_a_heartbeat_is_answered(
    lease: Lease, clock: Clock
) -> None:
    lease.answered(0.0)
    clock.now_s = LEASE_S + 1
    lease.reconnected()
    assert lease.is_in_aftermath


# --- Grants ---


def test_only_a_broker_that_is_or_was_just_cut_off_grants(lease: Lease, clock: Clock) -> None:
    """So no failover waits while ZooKeeper is well, and a leader that is cut off alone gets no grant."""
    lease.begin(3)
    lease.answered(0.0)
    granted = [lease.grant()]
    clock.now_s = LEASE_S + 1
    granted.append(lease.grant())
    lease.answered(clock.now_s)
    granted.append(lease.grant())
    for _ in range(8):
        clock.now_s += SESSION_S / 6
        lease.answered(clock.now_s)
    granted.append(lease.grant())
    assert granted == [False, True, True, False]


def test_a_follower_waits_longer_than_a_leader_counts(lease: Lease, clock: Clock) -> None:
    lease.begin(3)
    lease.answered(0.0)
    clock.now_s = answered_s = CUT_OFF_S + 1
    assert lease.grant()
    assert lease.rest_until_s(3) == answered_s + GRANT_S * GRANT_MARGIN > lease.grant_end_s(answered_s)


def test_one_that_has_granted_nothing_does_not_wait(lease: Lease) -> None:
    lease.begin(3)
    lease.begin_listening()
    assert lease.rest_until_s(3) == float("-inf")


def test_a_process_whose_predecessor_may_have_granted_waits_after_its_start(
    lease: Lease, clock: Clock
) -> None:
    """Also a refused connection counts as a grant, until this process listens."""
    clock.now_s = 7.0
    lease.begin_listening()
    lease.begin(3)
    assert lease.rest_until_s(membership=2) == 7.0 + GRANT_S * GRANT_MARGIN


def test_a_refusal_counts_as_a_grant(lease: Lease, clock: Clock) -> None:
    lease.note_refusal(2, connected_s=1.0)
    clock.now_s = 1.0 + GRANT_S - 0.1
    assert lease.has_refused(2, covered_until_s=1.0)
    assert not lease.has_refused(3, covered_until_s=1.0)
    clock.now_s = 1.0 + GRANT_S
    assert not lease.has_refused(2, covered_until_s=1.0)


def test_a_refusal_after_a_gap_counts_for_nothing(lease: Lease, clock: Clock) -> None:
    """Between the end of its last grant and the end of its process the broker may have led."""
    lease.note_refusal(2, connected_s=1.0)
    clock.now_s = 1.0
    assert not lease.has_refused(2, covered_until_s=0.9)
    lease.note_refusal(2, connected_s=3.0)
    clock.now_s = 3.0
    assert lease.has_refused(2, covered_until_s=1.0), "refusals follow each other without a gap"
    lease.note_refusal(2, connected_s=3.1 + GRANT_S)
    clock.now_s = 3.1 + GRANT_S
    assert not lease.has_refused(2, covered_until_s=1.0)


def test_a_refusal_within_the_session_needs_no_grant_before(lease: Lease, clock: Clock) -> None:
    lease.begin(3)
    lease.answered(0.0)
    lease.note_refusal(2, connected_s=0.1)
    clock.now_s = 0.2
    assert lease.has_refused(2, covered_until_s=float("-inf"))
