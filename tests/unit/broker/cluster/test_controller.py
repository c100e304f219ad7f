from __future__ import annotations

import pytest
from tests.unit.broker.cluster.planned_clusters import (
    CLEAN_RETURN,
    CONTROLLER_EPOCH,
    FIRST,
    LEAVING,
    UNCLEAN_RETURN,
    Life,
    Live,
    carry_out,
    one_partition,
    plan,
    planned,
    set_live,
    state_of,
    view_of,
)

from mainstem_broker.cluster.controller import ElectionPolicy, StateChange, heir_of, may_stop, plan_states
from mainstem_broker.cluster.view import Topic
from mainstem_broker.replica.partition_state import NO_LEADER, PartitionState


def test_a_new_partition_is_led_by_the_first_live_replica_and_knows_the_lives_of_its_members() -> None:
    view = view_of({2: Life(5), 3: Life(7, 7)}, ("t", {0: (1, 3, 2)}))
    assert plan(view) == [StateChange("t", 0, state_of(3, 0, (3, 2), 0, lives={3: 7, 2: 5}), None)]


def test_a_new_partition_none_of_whose_replicas_lives_waits() -> None:
    view = view_of({4}, ("t", {0: (1, 2)}))
    assert planned(view) is None
    set_live(view, {2})
    assert planned(view) == state_of(2, 0, (2,), 0)


def test_only_the_new_partitions_of_a_topic_that_grew_are_planned() -> None:
    view = view_of({1}, ("t", {0: (1,), 1: (1,)}))
    view.set_state("t", 0, state_of(1, 5, (1,), 5))
    assert [(change.topic, change.partition) for change in plan(view)] == [("t", 1)]


DECISIONS: dict[str, tuple[Live, tuple[int, ...], int, tuple[int, ...], PartitionState | None]] = {
    "leader and followers live": ({1, 2, 3}, (1, 2, 3), 2, (1, 2, 3), None),
    "leader dead": ({3, 4}, (1, 2, 3, 4), 1, (1, 2, 4), state_of(4, 5, (4,), 7)),
    "only one out of sync lives": ({2}, (1, 2), 1, (1,), state_of(NO_LEADER, 5, (1,), 7)),
    "one of the set comes back": ({2, 3}, (1, 2, 3), NO_LEADER, (1, 2), state_of(2, 5, (2,), 7)),
    # It may have lost the end of its log (KIP-903).
    "leader back uncleanly": ({1: UNCLEAN_RETURN, 2: FIRST}, (1, 2), 1, (1, 2), state_of(2, 5, (2,), 7)),
    "follower dead": ({1, 3}, (1, 2, 3), 1, (1, 2, 3), state_of(1, 4, (1, 3), 7)),
    "follower back cleanly": ({1: FIRST, 2: CLEAN_RETURN}, (1, 2), 1, (1, 2), None),
    "follower back uncleanly": ({1: FIRST, 2: UNCLEAN_RETURN}, (1, 2), 1, (1, 2), state_of(1, 4, (1,), 7)),
    "follower back, and out of sync": ({1, 2}, (1, 2), 1, (1,), None),
    "follower leaves": ({1: FIRST, 2: LEAVING}, (1, 2), 1, (1, 2), state_of(1, 4, (1,), 7)),
    "leader leaves, nobody in sync": ({1: LEAVING, 2: FIRST}, (1, 2), 1, (1,), None),
    "all leave": ({1: LEAVING, 2: LEAVING}, (1, 2), 1, (1, 2), None),
}
"""Brokers that live, the replicas, the leader of epoch 4, its in-sync set, and the state that follows."""


@pytest.mark.parametrize(("live", "replicas", "leader", "isr", "expected"), DECISIONS.values(), ids=DECISIONS)
def test_elections_go_by_who_lives_in_which_life_and_is_in_sync(
    live: Live, replicas: tuple[int, ...], leader: int, isr: tuple[int, ...], expected: PartitionState | None
) -> None:
    assert planned(one_partition(live, replicas, leader, isr)) == expected


def test_when_nobody_in_sync_lives_the_partition_has_no_leader_and_keeps_its_sets() -> None:
    view = one_partition(set(), (1, 2, 3), 1, (1, 2), elr=(3,))
    assert planned(view) == state_of(NO_LEADER, 5, (1, 2), 7, elr=(3,))
    carry_out(view, plan(view))
    assert planned(view) is None, "and it is said once"


def test_a_leader_that_lives_a_new_life_leads_no_more_but_may_be_elected_again() -> None:
    """Its clients and followers must notice, and its former life's leadership is void (KIP-320)."""
    view = one_partition({1: CLEAN_RETURN, 2: FIRST}, (1, 2), 1, (1, 2))
    assert planned(view) == state_of(1, 5, (1, 2), 7, lives={1: 1})
    carry_out(view, plan(view))
    assert planned(view) is None


def test_a_state_that_names_no_life_for_its_leader_is_elected_anew() -> None:
    """As those that were written before leaders were bound to their lives."""
    view = view_of({1: Life(3)}, ("t", {0: (1,)}))
    view.set_state("t", 0, PartitionState(1, 4, (1,), 1, 6))
    assert planned(view) == state_of(1, 5, (1,), 7, lives={1: 3})


def test_an_unclean_stop_before_the_life_that_was_found_in_sync_says_nothing() -> None:
    view = view_of({1: FIRST, 2: Life(6, 5)}, ("t", {0: (1, 2)}))
    view.set_state("t", 0, state_of(1, 4, (1, 2), 6, lives={2: 5}))
    assert planned(view) is None


def test_a_leaving_leader_is_left_to_hand_over_by_itself() -> None:
    view = one_partition({1: LEAVING, 2: LEAVING, 3: FIRST}, (1, 2, 3), 1, (1, 2, 3))
    assert planned(view) == state_of(1, 4, (1, 3), 7)
    assert heir_of(view.topics["t"].states[0], (1, 2, 3), view.brokers) == 3


def test_nobody_inherits_from_a_leaving_leader_whose_followers_leave_as_well_or_are_not_in_sync() -> None:
    view = one_partition({1: LEAVING, 2: LEAVING, 3: FIRST}, (1, 2, 3), 1, (1, 2))
    assert heir_of(view.topics["t"].states[0], (1, 2, 3), view.brokers) is None


def test_a_broker_may_stop_once_others_have_what_they_can_take_of_it() -> None:
    view = one_partition({1: LEAVING, 2: FIRST}, (1, 2), 1, (1, 2))
    assert plan(view) == []
    assert not may_stop(view, 1)
    view = one_partition({1: LEAVING, 2: FIRST}, (1, 2), 2, (1, 2))  # it has handed over
    assert not may_stop(view, 1)
    carry_out(view, plan(view))
    assert may_stop(view, 1)


def test_a_broker_may_stop_at_once_where_nobody_can_take_over() -> None:
    assert may_stop(one_partition({1: LEAVING, 2: FIRST}, (1, 2), 1, (1,)), 1)
    assert may_stop(one_partition({1: LEAVING, 2: LEAVING}, (1, 2), 1, (1, 2)), 1)
    assert may_stop(one_partition({1: LEAVING, 2: UNCLEAN_RETURN}, (1, 2), 1, (1, 2)), 1)
    assert may_stop(view_of({1: LEAVING}, ("new", {0: (1,)})), 1)


def test_a_topic_that_is_to_be_deleted_is_left_alone() -> None:
    view = view_of({1}, ("t", {0: (1,)}))
    view.pending_deletions.add("t")
    assert planned(view) is None


def test_only_the_topics_asked_for_are_planned_each_under_its_own_policy() -> None:
    view = view_of({1}, ("a", {0: (1,)}), ("b", {0: (1,)}))
    requests: list[str] = []

    def policy_of(topic: Topic) -> ElectionPolicy:
        requests.append(topic.name)
        return ElectionPolicy()

    changes = plan_states(view, CONTROLLER_EPOCH, policy_of, topics=["b", "gone"])
    assert ([change.topic for change in changes], requests) == (["b"], ["b"])
