from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem_broker.cluster.controller import (
    ElectionPolicy,
    StateChange,
    elected,
    has_valid_leader,
    plan_states,
)
from mainstem_broker.cluster.reassignment import (
    Move,
    complete,
    move_of,
    moving_partitions,
    plan_completions,
    successor,
    with_moves,
)
from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.cluster.znodes import BrokerRegistration, TopicAssignment
from mainstem_broker.replica.partition_state import NO_LEADER, PartitionState

EPOCH = 9
POLICY = ElectionPolicy(min_insync_replicas=1)


def brokers_of(*live: int) -> dict[int, BrokerRegistration]:
    return {broker: BrokerRegistration(broker, (), None) for broker in live}


def state_of(leader: int, *isr: int, elr: tuple[int, ...] = ()) -> PartitionState:
    lives = dict.fromkeys(isr + elr, 0)
    return PartitionState(leader, 4, isr, 1, 6, elr=elr, incarnations=lives)


# --- What a wish writes ---


def test_a_wish_names_the_target_first_then_who_holds_the_partition_still() -> None:
    assert Move((1, 2, 3)).towards((4, 2)) == Move((4, 2, 1, 3), adding=(4,), removing=(1, 3))


def test_another_order_of_the_same_brokers_is_no_move() -> None:
    move = Move((1, 2)).towards((2, 1))
    assert move == Move((2, 1))
    assert not move.is_under_way


def test_taking_a_move_back_makes_its_origin_the_target() -> None:
    move = Move((1, 2)).towards((3, 2))
    back = move.towards(move.origin)
    assert set(back.target) == {1, 2}
    assert back.is_under_way, "until the controller has let go of 3"
    assert back.towards(back.origin) == back, "and taking it back twice changes nothing"


BROKERS = st.integers(1, 6)
REPLICAS = st.lists(BROKERS, min_size=1, max_size=4, unique=True).map(tuple)


@given(REPLICAS, st.lists(REPLICAS, max_size=4))
def test_whatever_is_wished_for_in_a_row_origin_and_last_target_are_known(
    first: tuple[int, ...], wishes: list[tuple[int, ...]]
) -> None:
    move = Move(first)
    for target in wishes:
        move = move.towards(target)
        assert move.target == target
        assert set(move.origin) == set(first)
        assert len(set(move.replicas)) == len(move.replicas)
        assert set(move.adding) | set(move.removing) <= set(move.replicas)


def test_moves_are_written_beside_those_of_other_partitions() -> None:
    assignment = TopicAssignment("t", UUID(int=1), {0: (1,), 1: (2, 3), 2: (3,)}, {1: (2,)}, {1: (3,)}, 5)
    after = with_moves(assignment, {0: Move((4, 1), (4,), (1,))})
    assert after.replicas == {0: (4, 1), 1: (2, 3), 2: (3,)}
    assert (after.adding_replicas, after.removing_replicas) == ({0: (4,), 1: (2,)}, {0: (1,), 1: (3,)})
    assert (after.version, moving_partitions(after)) == (5, [0, 1])
    assert TopicAssignment.decode("t", after.encode(), 5) == after
    assert with_moves(after, {0: Move((4,)), 1: Move((2,))}).adding_replicas == {}


# --- When a move ends ---


def test_a_move_ends_when_its_whole_target_is_in_sync_and_leads() -> None:
    move = Move((3, 4, 1, 2), adding=(3, 4), removing=(1, 2))
    brokers = brokers_of(1, 2, 3, 4)
    assert complete(state_of(1, 1, 2, 3), move, brokers, POLICY) is None
    assert successor(state_of(1, 1, 2, 3), move, brokers) is None, "it is too early to hand over"
    assert complete(state_of(1, 1, 2, 3, 4), move, brokers, POLICY) is None, (
        "the leader is to hand over first"
    )
    assert successor(state_of(1, 1, 2, 3, 4), move, brokers) == 3
    assert successor(state_of(4, 1, 2, 3, 4), move, brokers) is None, "4 may go on leading"
    new = complete(state_of(3, 1, 2, 3, 4), move, brokers, POLICY)
    assert new is not None
    assert (new.leader, new.leader_epoch, new.isr, new.partition_epoch) == (3, 5, (3, 4), 7)
    assert set(new.incarnations) == {3, 4}


def test_nobody_hands_over_while_nothing_moves() -> None:
    assert successor(state_of(1, 1, 2), Move((2, 1)), brokers_of(1, 2)) is None


def test_a_leader_that_stays_begins_another_epoch() -> None:
    """What a replica that goes has told of itself, or has on its way, must not count when it comes back."""
    move = Move((3, 1, 2), adding=(3,), removing=(2,))
    new = complete(state_of(1, 1, 2, 3), move, brokers_of(1, 2, 3), POLICY)
    assert new is not None
    assert (new.leader, new.leader_epoch, set(new.isr)) == (1, 5, {1, 3})
    assert new.partition_epoch == 7, "or a leader that has not heard of it could bring 2 back"


def test_a_move_that_only_adds_leaves_the_leader_its_epoch() -> None:
    new = complete(state_of(1, 1, 2, 3), Move((1, 2, 3), adding=(3,)), brokers_of(1, 2, 3), POLICY)
    assert new is not None
    assert (new.leader, new.leader_epoch, set(new.isr)) == (1, 4, {1, 2, 3})


@pytest.mark.parametrize(
    ("leader", "third"),
    [
        pytest.param(1, None, id="a member of the target is down"),
        pytest.param(1, {"incarnation": 2, "last_unclean": 2}, id="it may have lost records"),
        pytest.param(1, {"leaving": True}, id="it is about to stop"),
        pytest.param(NO_LEADER, {}, id="nobody leads"),
    ],
)
def test_a_move_waits_for_its_target_and_a_leader(leader: int, third: dict[str, Any] | None) -> None:
    move = Move((3, 1), adding=(3,), removing=(1,))
    brokers = brokers_of(1)
    if third is not None:
        brokers[3] = BrokerRegistration(3, (), None, **third)
    assert complete(state_of(leader, 1, 3), move, brokers, POLICY) is None


def test_no_in_sync_copy_is_given_up_while_one_that_stays_is_behind() -> None:
    fewer = Move((1, 2, 3), removing=(3,))
    assert complete(state_of(1, 1, 3), fewer, brokers_of(1, 3), POLICY) is None
    assert complete(state_of(1, 1, elr=(3,)), fewer, brokers_of(1, 3), POLICY) is None, "it may have to lead"
    assert complete(state_of(1, 1), fewer, brokers_of(1), POLICY) is not None, "3 is not in sync either"


def test_a_move_that_was_taken_back_early_ends_at_once_though_another_replica_is_down() -> None:
    back = Move((1, 2)).towards((3, 2)).towards((1, 2))
    new = complete(state_of(1, 1), back, brokers_of(1), POLICY)
    assert new is not None
    assert (new.leader, new.leader_epoch, new.isr, new.partition_epoch) == (1, 5, (1,), 7)


def test_a_move_that_was_taken_back_late_gives_the_lead_back_too() -> None:
    back = Move((3, 1, 2), adding=(3,), removing=(3,))
    assert successor(state_of(3, 3, 1, 2), back, brokers_of(1, 2, 3)) == 1
    new = complete(state_of(1, 3, 1, 2), back, brokers_of(1, 2, 3), POLICY)
    assert new is not None
    assert (new.leader, set(new.isr)) == (1, {1, 2})


def test_who_is_moved_away_from_a_set_that_becomes_too_small_may_not_lead_any_more() -> None:
    fewer = Move((1, 2), removing=(2,))
    new = complete(state_of(1, 1, 2), fewer, brokers_of(1, 2), ElectionPolicy(min_insync_replicas=2))
    assert new is not None
    assert (new.isr, new.elr, set(new.incarnations)) == ((1,), (), {1})


def test_topics_that_are_to_be_deleted_or_not_asked_for_are_left_alone() -> None:
    view = ClusterView(brokers=brokers_of(1, 2))
    for number, name in enumerate(("a", "b", "c")):
        view.set_topic(TopicAssignment(name, UUID(int=number), {0: (2, 1)}, {0: (2,)}, {0: (1,)}), {})
        view.set_state(name, 0, state_of(2, 1, 2))
    view.pending_deletions.add("a")
    assert list(plan_completions(view, EPOCH, lambda _: POLICY)) == ["b", "c"]
    (move,) = plan_completions(view, EPOCH, lambda _: POLICY, topics=["b", "gone"])["b"]
    assert move.replicas == (2,)
    assert move.change.state.controller_epoch == EPOCH


# --- Whatever happens ---


@dataclass
class Cluster:
    """One partition, its controller, and a leader that takes in whoever it is told has caught up."""

    replicas: tuple[int, ...]
    policy: ElectionPolicy
    view: ClusterView = field(default_factory=ClusterView)

    def __post_init__(self) -> None:
        self.lives = {broker: BrokerRegistration(broker, (), None) for broker in range(1, 7)}
        self.view.set_brokers(self.lives.values())
        self.view.set_topic(TopicAssignment("t", UUID(int=1), {0: self.replicas}), {})
        self.lead()

    @property
    def assignment(self) -> TopicAssignment:
        return self.view.topics["t"].assignment

    @property
    def move(self) -> Move:
        return move_of(self.assignment, 0)

    @property
    def state(self) -> PartitionState:
        return self.view.topics["t"].states[0]

    def wish(self, target: tuple[int, ...]) -> None:
        changed = with_moves(self.assignment, {0: self.move.towards(target)})
        self.view.set_topic(replace(changed, version=self.assignment.version + 1), {})

    def stop(self, broker: int) -> None:
        self.view.brokers.pop(broker, None)

    def start(self, broker: int, *, unclean: bool) -> None:
        if broker not in self.view.brokers:
            life = self.lives[broker].incarnation + 1
            last = life if unclean else self.lives[broker].last_unclean
            self.lives[broker] = BrokerRegistration(broker, (), None, incarnation=life, last_unclean=last)
            self.view.brokers[broker] = self.lives[broker]

    def catch_up(self, broker: int) -> None:
        """The leader finds the broker in sync, if it follows."""
        state = self.state
        leads = state.leader in self.view.brokers
        if leads and broker in self.view.brokers and broker in self.move.replicas and broker not in state.isr:
            lives = {broker: self.lives[broker].incarnation}
            new = state.with_isr((*state.isr, broker), lives, self.policy.min_insync_replicas)
            assert self.view.set_state("t", 0, new)

    def lead(self) -> None:
        """One pass of the controller, after the leader has handed over if it has to."""
        state = self.view.topics["t"].states.get(0)
        heir = None if state is None else successor(state, self.move, self.view.brokers)
        if state is not None and heir is not None and has_valid_leader(state, self.view.brokers):
            assert heir in state.isr, "whoever leads has every acknowledged record"
            self.view.set_state("t", 0, elected(state, heir, state.isr, self.view.brokers, self.policy))
        for change in plan_states(self.view, EPOCH, lambda _: self.policy):
            self._carry_out(change)
        before, move = self.view.topics["t"].states.get(0), self.move
        for completed in plan_completions(self.view, EPOCH, lambda _: self.policy).get("t", []):
            assert before is not None
            assert set(completed.replicas) <= set(before.isr) or not set(move.removing) & set(before.isr)
            assert completed.change.state.leader in before.isr, "whoever leads has every acknowledged record"
            self._carry_out(completed.change)
            ended = with_moves(self.assignment, {0: Move(completed.replicas)})
            self.view.set_topic(replace(ended, version=self.assignment.version + 1), {})
        assert plan_completions(self.view, EPOCH, lambda _: self.policy) == {}, "nothing is left"

    def _carry_out(self, change: StateChange) -> None:
        current = self.view.topics["t"].states.get(0)
        assert change.expected_version == (None if current is None else current.partition_epoch)
        assert self.view.set_state("t", 0, change.state)

    def check(self) -> None:
        state, move = self.state, self.move
        assert state.isr
        assert set(state.isr + state.elr) <= set(move.replicas)
        assert state.leader == NO_LEADER or state.leader in state.isr
        assert set(state.incarnations) <= set(state.isr + state.elr)
        assert move.target


ACTIONS = st.one_of(
    st.tuples(st.just("wish"), REPLICAS),
    st.tuples(st.just("cancel"), st.none()),
    st.tuples(st.just("stop"), BROKERS),
    st.tuples(st.just("start"), BROKERS),
    st.tuples(st.just("start unclean"), BROKERS),
    st.tuples(st.just("catch up"), BROKERS),
    st.tuples(st.just("lead"), st.none()),
)


@given(REPLICAS, st.integers(1, 3), st.lists(ACTIONS, max_size=25))
def test_through_any_wishes_and_deaths_a_move_is_safe_and_ends_when_its_target_lives(
    replicas: tuple[int, ...], min_insync_replicas: int, history: list[tuple[str, object]]
) -> None:
    """R20: whatever comes in between delays a move and never breaks it."""
    cluster = Cluster(replicas, ElectionPolicy(min_insync_replicas))
    for action, argument in history:
        match action, argument:
            case "wish", tuple():
                cluster.wish(argument)
            case "cancel", _:
                cluster.wish(cluster.move.origin)
            case "stop", int():
                cluster.stop(argument)
            case "start", int():
                cluster.start(argument, unclean=False)
            case "start unclean", int():
                cluster.start(argument, unclean=True)
            case "catch up", int():
                cluster.catch_up(argument)
            case _:
                cluster.lead()
        cluster.check()
    target = cluster.move.target
    for broker in cluster.lives:
        cluster.start(broker, unclean=False)
    for _ in range(2):
        cluster.lead()
        cluster.check()
        for broker in cluster.move.replicas:
            cluster.catch_up(broker)
    cluster.lead()
    if cluster.state.leader == NO_LEADER:
        # All who might lead stopped uncleanly: their claims decide, which is another story.
        return
    assert cluster.move == Move(target)
    assert set(cluster.state.isr) == set(target)
