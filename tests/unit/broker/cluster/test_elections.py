from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem_broker.cluster.controller import ElectionPolicy
from mainstem_broker.cluster.elections import ElectionType, elect_on_request, plan_rebalance
from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.cluster.znodes import BrokerRegistration, TopicAssignment
from mainstem_broker.errors import ElectionNotNeeded, EligibleLeadersNotAvailable, PreferredLeaderNotAvailable
from mainstem_broker.replica.partition_state import NO_LEADER, PartitionState

PREFERRED, UNCLEAN = ElectionType.PREFERRED, ElectionType.UNCLEAN


def registration(broker: int, *, leaving: bool = False, unclean: bool = False) -> BrokerRegistration:
    return BrokerRegistration(broker, (), None, incarnation=5, last_unclean=5 * unclean, leaving=leaving)


def live(*brokers: int) -> dict[int, BrokerRegistration]:
    return {broker: registration(broker) for broker in brokers}


def state(leader: int, *isr: int, life: int = 5) -> PartitionState:
    return PartitionState(leader, 4, isr, 1, 6, incarnations=dict.fromkeys(isr, life))


def elected(
    kind: ElectionType,
    state: PartitionState,
    replicas: tuple[int, ...],
    brokers: dict[int, BrokerRegistration],
) -> PartitionState:
    return elect_on_request(kind, state, replicas, brokers, ElectionPolicy(), {})


# --- Preferred ---


def test_the_first_replica_of_the_assignment_gets_the_lead_and_all_stay_in_sync() -> None:
    new = elected(PREFERRED, state(2, 1, 2, 3), (1, 2, 3), live(1, 2, 3))
    assert (new.leader, new.leader_epoch, new.isr, new.partition_epoch) == (1, 5, (1, 2, 3), 7)
    assert new.incarnations[1] == 5


def test_a_preferred_leader_that_leads_needs_no_election() -> None:
    with pytest.raises(ElectionNotNeeded, match="broker 1, leads"):
        elected(PREFERRED, state(1, 1, 2), (1, 2), live(1, 2))


@pytest.mark.parametrize(
    ("before", "brokers"),
    [
        pytest.param(state(2, 1, 2), live(2, 3), id="down"),
        pytest.param(state(2, 1, 2), live(2, 3) | {1: registration(1, leaving=True)}, id="leaving"),
        pytest.param(state(2, 2), live(1, 2), id="out of sync"),
        pytest.param(
            state(2, 1, 2, life=4), live(2) | {1: registration(1, unclean=True)}, id="may have lost records"
        ),
    ],
)
def test_a_preferred_leader_that_cannot_lead_is_not_elected(
    before: PartitionState, brokers: dict[int, BrokerRegistration]
) -> None:
    with pytest.raises(PreferredLeaderNotAvailable, match="broker 1, is down or not in sync"):
        elected(PREFERRED, before, (1, 2), brokers)


# --- Unclean ---


def test_an_unclean_election_takes_a_replica_out_of_sync_only_if_nobody_else_can_lead() -> None:
    new = elected(UNCLEAN, state(NO_LEADER, 1), (1, 2), live(2))
    assert (new.leader, new.isr, new.recovering) == (2, (2,), True)
    new = elected(UNCLEAN, state(NO_LEADER, 1), (1, 2), live(1, 2))
    assert (new.leader, new.recovering) == (1, False)


def test_no_unclean_election_is_held_over_a_leader_that_lives() -> None:
    with pytest.raises(ElectionNotNeeded):
        elected(UNCLEAN, state(1, 1), (1, 2), live(1, 2))


def test_an_unclean_election_needs_a_replica_that_lives() -> None:
    for leader in (NO_LEADER, 1):
        with pytest.raises(EligibleLeadersNotAvailable):
            elected(UNCLEAN, state(leader, 1), (1, 2), live(3))


BROKERS = st.integers(1, 4)


@given(
    kind=st.sampled_from(ElectionType),
    leader=st.one_of(st.just(NO_LEADER), BROKERS),
    isr=st.sets(BROKERS, min_size=1),
    present=st.sets(BROKERS),
)
def test_whoever_is_elected_lives_and_an_election_settles_the_matter(
    kind: ElectionType, leader: int, isr: set[int], present: set[int]
) -> None:
    replicas, brokers = (1, 2, 3, 4), live(*present)
    before = state(leader, *sorted(isr | ({leader} - {NO_LEADER})))
    try:
        new = elected(kind, before, replicas, brokers)
    except (ElectionNotNeeded, PreferredLeaderNotAvailable, EligibleLeadersNotAvailable):
        return
    assert new.leader in present
    assert new.leader in new.isr
    assert new.leader_epoch == before.leader_epoch + 1
    assert kind is UNCLEAN or new.leader in before.isr
    with pytest.raises(ElectionNotNeeded):
        elected(kind, new, replicas, brokers)


# --- Rebalancing ---


def view_of(leaders: dict[int, tuple[tuple[int, ...], int]], *brokers: int) -> ClusterView:
    """Partitions of topic t, as (replicas, leader); all of their replicas are in sync."""
    view = ClusterView(brokers=live(*brokers))
    replicas = {partition: replicas for partition, (replicas, _) in leaders.items()}
    view.set_topic(TopicAssignment("t", UUID(int=1), replicas), {})
    for partition, (members, leader) in leaders.items():
        view.set_state("t", partition, state(leader, *members))
    return view


def test_a_broker_that_leads_too_little_of_its_own_gets_all_of_it_back() -> None:
    view = view_of({0: ((1, 2), 2), 1: ((1, 2), 1), 2: ((2, 1), 2)}, 1, 2)
    assert plan_rebalance(view, 10) == [("t", 0)]
    assert plan_rebalance(view, 49) == [("t", 0)]
    assert plan_rebalance(view, 50) == [], "half of what broker 1 is preferred for is not more than 50 %"


def test_partitions_whose_preferred_leader_cannot_lead_are_left_alone() -> None:
    view = view_of({0: ((1, 2), 2), 1: ((1, 2), 2)}, 1, 2)
    view.set_state("t", 0, state(2, 2))
    view.topics["t"].states[0] = state(2, 2)
    assert plan_rebalance(view, 0) == [("t", 1)]
    assert plan_rebalance(view_of({0: ((1, 2), 2)}, 2), 0) == []


def test_what_is_moved_or_deleted_is_not_rebalanced() -> None:
    view = view_of({0: ((1, 2), 2)}, 1, 2)
    view.pending_deletions.add("t")
    assert plan_rebalance(view, 0) == []
    view.pending_deletions.clear()
    moving = TopicAssignment("t", UUID(int=1), {0: (1, 2)}, {0: (1,)}, {}, version=1)
    view.set_topic(moving, {})
    assert plan_rebalance(view, 0) == []
