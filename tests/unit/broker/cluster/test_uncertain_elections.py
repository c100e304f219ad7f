"""Elections when the in-sync set is too small or gone: eligible replicas, claims, unclean elections."""

from __future__ import annotations

import pytest
from tests.unit.broker.cluster.planned_clusters import (
    FIRST,
    UNCLEAN_RETURN,
    Live,
    carry_out,
    one_partition,
    plan,
    planned,
    set_live,
    state_of,
    view_of,
)

from mainstem_broker.cluster.controller import ElectionPolicy, must_claim
from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.cluster.znodes import Claim
from mainstem_broker.replica.partition_state import NO_LEADER, PartitionState


def test_who_leaves_a_set_that_becomes_too_small_stays_eligible() -> None:
    view = one_partition({1}, (1, 2, 3), 1, (1, 2))
    policy = ElectionPolicy(min_insync_replicas=2)
    assert planned(view, policy) == state_of(1, 4, (1,), 7, elr=(2,))
    carry_out(view, plan(view, policy))
    set_live(view, {2, 3})
    assert planned(view, policy) == state_of(2, 5, (2,), 8, elr=(1,)), "the last leader had all, too"


TWO = ElectionPolicy(min_insync_replicas=2)
UNCLEAN = ElectionPolicy(unclean=True)


@pytest.mark.parametrize(
    ("policy", "live", "isr", "elr", "expected"),
    [
        pytest.param(TWO, {1, 2}, (1, 2, 3), (), state_of(1, 4, (1, 2), 7), id="the set is large enough"),
        pytest.param(TWO, {2, 3}, (1, 3), (2,), state_of(3, 5, (3,), 7, elr=(1, 2)), id="members lead first"),
        pytest.param(
            ElectionPolicy(),
            {2: UNCLEAN_RETURN},
            (1,),
            (2,),
            state_of(NO_LEADER, 5, (1,), 7, elr=(2,)),
            id="eligible, and stopped uncleanly",
        ),
        pytest.param(UNCLEAN, {2, 3}, (1, 3), (), state_of(3, 5, (3,), 7), id="a clean one is possible"),
        pytest.param(UNCLEAN, {4}, (1,), (), state_of(NO_LEADER, 5, (1,), 7), id="no replica lives"),
    ],
)
def test_members_lead_then_eligible_replicas_then_others_where_that_is_allowed(
    policy: ElectionPolicy, live: Live, isr: tuple[int, ...], elr: tuple[int, ...], expected: PartitionState
) -> None:
    assert planned(one_partition(live, (1, 2, 3), 1, isr, elr=elr), policy) == expected


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
    for live in ({1: UNCLEAN_RETURN}, {1: UNCLEAN_RETURN, 2: FIRST}, {1: FIRST, 2: UNCLEAN_RETURN}):
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


def test_a_leader_elected_out_of_sync_stays_marked_as_recovering_until_the_next_election() -> None:
    view = view_of({1}, ("t", {0: (1, 2)}))
    view.set_state("t", 0, state_of(1, 4, (1, 2), 6, recovering=True))
    assert planned(view) == state_of(1, 4, (1,), 7, recovering=True)
    set_live(view, {2})
    assert planned(view) == state_of(2, 5, (2,), 7)
