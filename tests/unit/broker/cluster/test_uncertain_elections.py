"""Elections when the in-sync set is too small or gone: eligible replicas, claims, unclean elections."""

from __future__ import annotations

from tests.unit.broker.cluster.planned_clusters import (
    FIRST,
    UNCLEAN_RETURN,
    carry_out,
    one_partition,
    plan,
    planned,
    set_live,
    state_of,
    view_of,
)

from mainstem_broker.cluster.controller import (
    ElectionPolicy,
    must_claim,
)
from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.cluster.znodes import Claim
from mainstem_broker.replica.partition_state import NO_LEADER


def test_who_leaves_a_set_that_becomes_too_small_stays_eligible() -> None:
    view = one_partition({1}, (1, 2, 3), 1, (1, 2))
    policy = ElectionPolicy(min_insync_replicas=2)
    assert planned(view, policy) == state_of(1, 4, (1,), 7, elr=(2,))
    carry_out(view, plan(view, policy))
    set_live(view, {2, 3})
    assert planned(view, policy) == state_of(2, 5, (2,), 8, elr=(1,)), "the last leader had all, too"


def test_who_leaves_a_set_that_is_large_enough_is_not_eligible() -> None:
    view = one_partition({1, 2}, (1, 2, 3), 1, (1, 2, 3))
    assert planned(view, ElectionPolicy(min_insync_replicas=2)) == state_of(1, 4, (1, 2), 7)


def test_members_of_the_set_lead_before_those_that_are_only_eligible() -> None:
    view = one_partition({2, 3}, (1, 2, 3), 1, (1, 3), elr=(2,))
    state = planned(view, ElectionPolicy(min_insync_replicas=2))
    assert state is not None
    assert (state.leader, state.isr) == (3, (3,))


def test_an_eligible_replica_that_stopped_uncleanly_does_not_lead() -> None:
    view = one_partition({2: UNCLEAN_RETURN}, (1, 2), 1, (1,), elr=(2,))
    assert planned(view) == state_of(NO_LEADER, 5, (1,), 7, elr=(2,))


ALL_UNCLEAN = {1: UNCLEAN_RETURN, 2: UNCLEAN_RETURN, 3: UNCLEAN_RETURN}


def claim(view: ClusterView, *claims: Claim) -> None:
    view.topics["t"].claims[0] = {claim.broker_id: claim for claim in claims}


def test_when_the_whole_set_stopped_uncleanly_all_must_claim_before_one_leads() -> None:
    view = one_partition(ALL_UNCLEAN, (1, 2, 3), 1, (1, 2), elr=(3,))
    assert must_claim(view.topics["t"].states[0], view.brokers)
    claim(view, Claim(1, 1, 4, 10), Claim(2, 1, 4, 11))
    assert planned(view) == state_of(NO_LEADER, 5, (1, 2), 7, elr=(3,))


def test_the_latest_epoch_leads_then_the_highest_offset_then_the_order_of_the_assignment() -> None:
    for claims, leader in (
        ([Claim(1, 1, 3, 99), Claim(2, 1, 4, 10)], 2),
        ([Claim(1, 1, 4, 10), Claim(2, 1, 4, 11)], 2),
        ([Claim(1, 1, 4, 10), Claim(2, 1, 4, 10)], 1),
    ):
        view = one_partition(ALL_UNCLEAN, (1, 2), 1, (1, 2))
        claim(view, *claims)
        assert planned(view) == state_of(leader, 5, (leader,), 7, lives={leader: 1})


def test_a_claim_of_an_earlier_life_does_not_count() -> None:
    view = one_partition(ALL_UNCLEAN, (1, 2), NO_LEADER, (1, 2))
    claim(view, Claim(1, 0, 4, 10), Claim(2, 1, 4, 10))
    assert planned(view) is None


def test_nobody_claims_while_someone_who_might_lead_is_dead_or_trusted_or_leads() -> None:
    for live in (
        {1: UNCLEAN_RETURN},
        {1: UNCLEAN_RETURN, 2: FIRST},
        {1: FIRST, 2: UNCLEAN_RETURN},
    ):
        view = one_partition(live, (1, 2), 1, (1, 2))
        assert not must_claim(view.topics["t"].states[0], view.brokers)


def test_the_only_one_who_might_lead_does_so_after_an_unclean_stop_and_claims_nothing() -> None:
    """A partition with one replica: what it lost, nobody has."""
    view = one_partition({1: UNCLEAN_RETURN}, (1,), 1, (1,))
    assert not must_claim(view.topics["t"].states[0], view.brokers)
    assert planned(view) == state_of(1, 5, (1,), 7, lives={1: 1})


def test_an_unclean_election_takes_the_first_live_replica_and_says_so() -> None:
    view = one_partition({2, 3}, (1, 2, 3), 1, (1,))
    policy = ElectionPolicy(unclean=True)
    assert planned(view, policy) == state_of(2, 5, (2,), 7, recovering=True)
    carry_out(view, plan(view, policy))
    assert planned(view, policy) is None


def test_no_unclean_election_where_a_clean_one_is_possible() -> None:
    view = one_partition({2, 3}, (1, 2, 3), 1, (1, 3))
    assert planned(view, ElectionPolicy(unclean=True)) == state_of(3, 5, (3,), 7)


def test_an_unclean_election_without_live_replicas_finds_no_leader() -> None:
    view = one_partition({4}, (1, 2), 1, (1,))
    assert planned(view, ElectionPolicy(unclean=True)) == state_of(NO_LEADER, 5, (1,), 7)


def test_a_leader_elected_out_of_sync_stays_marked_as_recovering_until_the_next_election() -> None:
    view = view_of({1}, ("t", {0: (1, 2)}))
    view.set_state("t", 0, state_of(1, 4, (1, 2), 6, recovering=True))
    assert planned(view) == state_of(1, 4, (1,), 7, recovering=True)
    set_live(view, {2})
    assert planned(view) == state_of(2, 5, (2,), 7)
