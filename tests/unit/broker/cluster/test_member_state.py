from __future__ import annotations

import random

import pytest

from mainstem_broker.cluster.member_state import (
    COVERED,
    READS,
    TRANSITIONS,
    WRITES,
    Action,
    Event,
    MemberState,
    Phase,
    Work,
)

SESSION_EVENTS = (Event.CONNECTED, Event.SUSPENDED, Event.LOST)


def state_in(phase: Phase) -> MemberState:
    state = MemberState()
    state.phase = phase
    return state


# --- The table as a whole ---


@pytest.mark.parametrize("event", list(Event), ids=lambda value: value.name)
def test_an_event_that_comes_twice_changes_nothing_more(event: Event) -> None:
    for phase in Phase:
        state = state_in(phase)
        state.apply(event)
        after = state.phase, set(state.due)
        state.apply(event)
        assert (state.phase, state.due) == after


def test_every_step_is_in_a_pass_and_some_event_makes_it_due() -> None:
    assert set(READS) | set(WRITES) == set(Work)
    assert {work for row in TRANSITIONS.values() for each in row.values() for work in each.work} == set(Work)


def test_what_only_the_reads_can_find_is_done_by_the_writes_of_the_same_pass() -> None:
    for phase in Phase:
        assert TRANSITIONS[Event.EXPELLED][phase].work <= set(WRITES)
    # The feed is left to the next pass, before which the lease does not begin.
    assert set(TRANSITIONS[Event.REGISTERED][Phase.JOINING].work) <= {*WRITES[1:], Work.FEED}
    assert READS.index(Work.SYNC) < READS.index(Work.FEED), "a sync makes the feed due, in the same pass"


# --- What each phase means ---


@pytest.mark.parametrize("phase", list(Phase), ids=lambda value: value.name)
def test_a_lost_session_ends_the_controllership_and_the_registration_but_no_leadership(phase: Phase) -> None:
    state = state_in(phase)
    assert state.apply(Event.LOST) == (Action.LOSE_SESSION, Action.RESIGN)
    assert not state.is_registered
    assert state.apply(Event.CONNECTED) == ()
    assert {Work.LOAD, Work.REGISTER} <= state.due


def test_a_session_that_survives_its_connection_keeps_its_registration() -> None:
    state = state_in(Phase.MEMBER)
    assert state.apply(Event.SUSPENDED) == ()
    assert state.is_registered
    state.apply(Event.CONNECTED)
    assert state.phase is Phase.MEMBER
    assert state.due == {Work.BROKERS, Work.FEED, Work.CONTROLLER}, "its watches are gone, nothing else"


def test_a_connection_that_breaks_during_the_registration_leaves_the_broker_registered() -> None:
    state = state_in(Phase.JOINING)
    phases = []
    for event in (Event.SUSPENDED, Event.REGISTERED, Event.CONNECTED):
        state.apply(event)
        phases.append(state.phase)
    assert phases == [Phase.OUTSIDE, Phase.SUSPENDED, Phase.MEMBER]


def test_an_expelled_broker_registers_anew_without_loading_everything() -> None:
    state = state_in(Phase.MEMBER)
    assert state.apply(Event.EXPELLED) == (Action.END_LEASE,)
    assert (state.phase, state.due) == (Phase.JOINING, {Work.REGISTER, Work.BROKERS})


@pytest.mark.parametrize("phase", list(Phase), ids=lambda value: value.name)
def test_after_a_failed_pass_everything_is_due_but_a_registration_that_exists(phase: Phase) -> None:
    state = state_in(phase)
    state.apply(Event.FAILED)
    assert state.phase is phase
    assert set(Work) - state.due == ({Work.REGISTER} if state.is_registered else set())


def test_a_failed_registration_is_due_again() -> None:
    """R18: also if it failed after another broker had removed this one's registration."""
    state = state_in(Phase.MEMBER)
    state.apply(Event.EXPELLED)
    assert state.begin(Work.REGISTER)
    state.apply(Event.FAILED)
    assert Work.REGISTER in state.due


def test_each_session_tells_anew_which_replicas_are_offline() -> None:
    state = state_in(Phase.MEMBER)
    state.apply(Event.LOST)
    state.apply(Event.CONNECTED)
    state.apply(Event.REGISTERED)
    assert Work.OFFLINE in state.due


# --- The work that is due ---


def test_work_that_comes_due_while_it_is_done_is_done_once_more() -> None:
    state = state_in(Phase.MEMBER)
    state.apply(Event.FEED_CHANGED)
    assert state.begin(Work.FEED)
    state.apply(Event.FEED_CHANGED)  # the watch fires during the read
    assert state.begin(Work.FEED)
    assert not state.begin(Work.FEED)


def test_to_load_everything_covers_the_brokers_and_the_feed() -> None:
    state = state_in(Phase.OUTSIDE)
    state.apply(Event.CONNECTED)
    assert state.begin(Work.LOAD)
    assert state.due == {Work.REGISTER, Work.CONTROLLER}
    assert COVERED[Work.LOAD] == {Work.BROKERS, Work.FEED}


def test_to_catch_up_reads_the_feed_after_the_sync_also_if_a_pass_is_under_way() -> None:
    """The pass under way reads the feed before the sync that was requested during it."""
    state = state_in(Phase.MEMBER)
    state.apply(Event.FEED_CHANGED)
    state.apply(Event.CATCH_UP_REQUESTED)  # behind the sync step of the pass under way
    assert state.begin(Work.FEED)
    assert state.begin(Work.SYNC)  # the next pass
    state.apply(Event.SYNCED)
    assert state.begin(Work.FEED)


# --- Walks ---


@pytest.mark.parametrize("seed", range(50))
def test_any_history_that_ends_with_a_quiet_connection_ends_registered_with_nothing_due(seed: int) -> None:
    """Sessions come and go and passes fail at any step; then passes succeed until nothing is due."""
    source = random.Random(seed)
    state = MemberState()
    session_is_registered = False

    def happen(event: Event) -> None:
        nonlocal session_is_registered
        if event is Event.LOST:
            session_is_registered = False
        state.apply(event)

    def do(work: Work) -> None:
        nonlocal session_is_registered
        if not state.begin(work):
            return
        if work is Work.SYNC:
            state.apply(Event.SYNCED)
        elif work is Work.REGISTER and state.is_connected:
            session_is_registered = True
            state.apply(Event.REGISTERED)

    for _ in range(100):
        happen(source.choice([*SESSION_EVENTS, Event.FEED_CHANGED, Event.CATCH_UP_REQUESTED]))
        if state.is_connected and source.random() < 0.7:
            for work in (*READS, *WRITES)[: source.randrange(12)]:
                do(work)
            if source.random() < 0.5:
                state.apply(Event.FAILED)
        if source.random() < 0.1 and session_is_registered:
            session_is_registered = False  # fenced by another broker; the next reads find out
            state.apply(Event.EXPELLED)
    happen(Event.CONNECTED)
    for _ in range(2):
        for work in (*READS, *WRITES):
            do(work)
    assert session_is_registered
    assert (state.phase, state.due) == (Phase.MEMBER, set())
