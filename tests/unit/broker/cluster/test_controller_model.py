"""Elections through any deaths, returns and shutdowns."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.broker.cluster.planned_clusters import Life, carry_out, plan, set_live, view_of

from mainstem_broker.cluster.controller import ElectionPolicy, is_trusted
from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.replica.partition_state import NO_LEADER, PartitionState

BROKERS = (1, 2, 3, 4)


DIES, RETURNS_CLEANLY, RETURNS_UNCLEANLY, SHUTS_DOWN = "dies", "clean", "unclean", "leaves"


EVENTS = st.dictionaries(
    st.sampled_from(BROKERS), st.sampled_from((DIES, RETURNS_CLEANLY, RETURNS_UNCLEANLY, SHUTS_DOWN))
)


REPLICAS = st.lists(st.sampled_from(BROKERS), min_size=1, max_size=3, unique=True).map(tuple)


def happens(lives: dict[int, Life], history: dict[int, Life], events: Mapping[int, str]) -> None:
    """Let brokers die, return in a new life, or begin to leave; `history` keeps the lives of the dead."""
    for broker, event in events.items():
        last = history.get(broker, Life(-1))
        match event:
            case "dies":
                lives.pop(broker, None)
                continue
            case "leaves":
                if broker not in lives:
                    continue
                life = last._replace(leaving=True)
            case "clean":
                life = Life(last.incarnation + 1, last.last_unclean)
            case _:
                life = Life(last.incarnation + 1, last.incarnation + 1)
        lives[broker] = history[broker] = life


@settings(max_examples=300)
@given(
    st.dictionaries(st.integers(0, 3), REPLICAS, min_size=1),
    st.lists(st.tuples(EVENTS, st.booleans()), min_size=1, max_size=8),
    st.integers(1, 3),
)
def test_through_any_deaths_returns_and_shutdowns_elections_are_safe_and_settle_at_once(
    replicas: dict[int, tuple[int, ...]], history: list[tuple[dict[int, str], bool]], min_insync_replicas: int
) -> None:
    """R19, R22: who leads has every acknowledged record, as far as the state of things can tell."""
    policy = ElectionPolicy(min_insync_replicas)
    view = view_of(set(), ("t", replicas))
    lives: dict[int, Life] = {}
    all_lives: dict[int, Life] = {}
    for events, followers_catch_up in history:
        happens(lives, all_lives, events)
        set_live(view, lives)
        before = dict(view.topics["t"].states)
        carry_out(view, plan(view, policy))
        assert plan(view, policy) == [], "a second pass has nothing left to do"
        for partition, state in view.topics["t"].states.items():
            check_election(before.get(partition), state, replicas[partition], view)
        if followers_catch_up:
            for partition, state in list(view.topics["t"].states.items()):
                let_followers_in(view, partition, state, policy)


def check_election(
    old: PartitionState | None, state: PartitionState, replicas: tuple[int, ...], view: ClusterView
) -> None:
    assert state.isr, "the last member never leaves"
    assert not set(state.isr) & set(state.elr)
    assert set(state.isr + state.elr) <= set(replicas)
    assert set(state.incarnations) <= set(state.isr + state.elr)
    if state.leader == NO_LEADER:
        members = state.isr + state.elr
        assert not any(is_trusted(state, broker, view.brokers) for broker in members)
    else:
        assert state.leader in state.isr
        assert state.incarnations[state.leader] == view.brokers[state.leader].incarnation
        assert all(is_trusted(state, broker, view.brokers) for broker in state.isr)
    if old is None:
        return
    assert set(state.isr) <= set(old.isr + old.elr), "only a leader lets replicas in"
    changed = (old.leader, old.incarnations.get(old.leader)) != (
        state.leader,
        state.incarnations.get(state.leader),
    )
    assert state.leader_epoch == old.leader_epoch + changed, "a leadership has an epoch of its own"
    if changed and state.leader != NO_LEADER and len(old.isr + old.elr) > 1:
        assert is_trusted(old, state.leader, view.brokers), "nobody claimed, so only the trusted lead"


def let_followers_in(
    view: ClusterView, partition: int, state: PartitionState, policy: ElectionPolicy
) -> None:
    """What a leader does once its followers have caught up."""
    if state.leader == NO_LEADER:
        return
    replicas = view.topics["t"].assignment.replicas[partition]
    lives = {
        broker: view.brokers[broker].incarnation
        for broker in replicas
        if broker in view.brokers and not view.brokers[broker].leaving
    }
    members = dict.fromkeys((*state.isr, *lives))
    view.set_state("t", partition, state.with_isr(members, lives, policy.min_insync_replicas))
