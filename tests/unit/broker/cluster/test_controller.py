from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem_broker.cluster.controller import (
    ElectionPolicy,
    StateChange,
    is_trusted,
    may_stop,
    must_claim,
    plan_states,
)
from mainstem_broker.cluster.view import ClusterView, Topic
from mainstem_broker.cluster.znodes import BrokerRegistration, Claim, Endpoint, TopicAssignment
from mainstem_broker.replica.state import NO_LEADER, PartitionState

CONTROLLER_EPOCH = 9
ENDPOINT = Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9092)


class Life(NamedTuple):
    """How a live broker is registered: its present life, the last one after an unclean stop, its plans."""

    incarnation: int = 0
    last_unclean: int = 0
    leaving: bool = False


FIRST = Life()
CLEAN_RETURN = Life(1)
UNCLEAN_RETURN = Life(1, 1)
LEAVING = Life(leaving=True)

Live = Collection[int] | Mapping[int, Life]


def set_live(view: ClusterView, live: Live) -> None:
    lives = live if isinstance(live, Mapping) else dict.fromkeys(live, FIRST)
    view.set_brokers(
        BrokerRegistration(
            broker,
            (ENDPOINT,),
            None,
            incarnation=life.incarnation,
            last_unclean=life.last_unclean,
            leaving=life.leaving,
        )
        for broker, life in lives.items()
    )


def view_of(live: Live, *topics: tuple[str, dict[int, tuple[int, ...]]]) -> ClusterView:
    view = ClusterView()
    set_live(view, live)
    for number, (name, replicas) in enumerate(topics):
        view.set_topic(TopicAssignment(name, UUID(int=number + 1), replicas), {})
    return view


def state_of(
    leader: int,
    leader_epoch: int,
    isr: tuple[int, ...],
    partition_epoch: int,
    *,
    elr: tuple[int, ...] = (),
    lives: Mapping[int, int] | None = None,
    controller_epoch: int = CONTROLLER_EPOCH,
    recovering: bool = False,
) -> PartitionState:
    """A state whose members were found in sync in their first life, unless `lives` says otherwise."""
    found = dict.fromkeys(isr + elr, 0) | dict(lives or {})
    return PartitionState(
        leader, leader_epoch, isr, controller_epoch, partition_epoch, recovering, elr, found
    )


def one_partition(
    live: Live, replicas: tuple[int, ...], leader: int, isr: tuple[int, ...], elr: tuple[int, ...] = ()
) -> ClusterView:
    """t-0 at leader epoch 4, partition epoch 6, written by an earlier controller."""
    view = view_of(live, ("t", {0: replicas}))
    view.set_state("t", 0, state_of(leader, 4, isr, 6, elr=elr, controller_epoch=1))
    return view


def plan(view: ClusterView, policy: ElectionPolicy | None = None) -> list[StateChange]:
    chosen = policy or ElectionPolicy()
    return plan_states(view, CONTROLLER_EPOCH, lambda _: chosen)


def planned(view: ClusterView, policy: ElectionPolicy | None = None) -> PartitionState | None:
    """The new state of the one partition there is, or None if the present one holds."""
    changes = plan(view, policy)
    if not changes:
        return None
    (change,) = changes
    assert (change.topic, change.partition) == ("t", 0)
    return change.state


def carry_out(view: ClusterView, changes: list[StateChange]) -> None:
    """What ZooKeeper would do: versions must match, and grow by one."""
    for change in changes:
        known = view.topics[change.topic].states.get(change.partition)
        assert change.expected_version == (None if known is None else known.partition_epoch)
        assert change.state.partition_epoch == (0 if known is None else known.partition_epoch + 1)
        assert view.set_state(change.topic, change.partition, change.state)


# --- New partitions ---


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


# --- Leaders ---


def test_a_partition_whose_leader_and_followers_live_stays_as_it_is() -> None:
    assert planned(one_partition({1, 2, 3}, (1, 2, 3), 2, (1, 2, 3))) is None


def test_a_dead_leader_is_replaced_by_the_first_replica_that_is_live_and_in_sync() -> None:
    view = one_partition({3, 4}, (1, 2, 3, 4), 1, (1, 2, 4))
    assert planned(view) == state_of(4, 5, (4,), 7)


def test_a_live_replica_out_of_sync_never_leads() -> None:
    assert planned(one_partition({2}, (1, 2), 1, (1,))) == state_of(NO_LEADER, 5, (1,), 7)


def test_when_nobody_in_sync_lives_the_partition_has_no_leader_and_keeps_its_sets() -> None:
    view = one_partition(set(), (1, 2, 3), 1, (1, 2), elr=(3,))
    assert planned(view) == state_of(NO_LEADER, 5, (1, 2), 7, elr=(3,))
    carry_out(view, plan(view))
    assert planned(view) is None, "and it is said once"


def test_whoever_of_the_in_sync_set_comes_back_leads_again() -> None:
    view = one_partition({2, 3}, (1, 2, 3), NO_LEADER, (1, 2))
    assert planned(view) == state_of(2, 5, (2,), 7)


def test_a_leader_that_lives_a_new_life_holds_its_office_no_more_but_may_be_elected_again() -> None:
    """Its clients and followers must notice, and its former life's leadership is void (KIP-320)."""
    view = one_partition({1: CLEAN_RETURN, 2: FIRST}, (1, 2), 1, (1, 2))
    assert planned(view) == state_of(1, 5, (1, 2), 7, lives={1: 1})
    carry_out(view, plan(view))
    assert planned(view) is None


def test_a_leader_that_returns_from_an_unclean_stop_is_passed_over_and_leaves_the_set() -> None:
    """It may have lost the end of its log (KIP-903)."""
    view = one_partition({1: UNCLEAN_RETURN, 2: FIRST}, (1, 2), 1, (1, 2))
    assert planned(view) == state_of(2, 5, (2,), 7)


def test_a_state_that_names_no_life_for_its_leader_is_elected_anew() -> None:
    """As those that were written before leaders were bound to their lives."""
    view = view_of({1: Life(3)}, ("t", {0: (1,)}))
    view.set_state("t", 0, PartitionState(1, 4, (1,), 1, 6))
    assert planned(view) == state_of(1, 5, (1,), 7, lives={1: 3})


# --- Followers ---


def test_a_dead_follower_leaves_the_in_sync_set_and_that_is_no_election() -> None:
    view = one_partition({1, 3}, (1, 2, 3), 1, (1, 2, 3))
    assert planned(view) == state_of(1, 4, (1, 3), 7)


def test_a_follower_that_returns_cleanly_stays_in_sync() -> None:
    assert planned(one_partition({1: FIRST, 2: CLEAN_RETURN}, (1, 2), 1, (1, 2))) is None


def test_a_follower_that_returns_from_an_unclean_stop_leaves_the_set() -> None:
    view = one_partition({1: FIRST, 2: UNCLEAN_RETURN}, (1, 2), 1, (1, 2))
    assert planned(view) == state_of(1, 4, (1,), 7)


def test_an_unclean_stop_before_the_life_that_was_found_in_sync_says_nothing() -> None:
    view = view_of({1: FIRST, 2: Life(6, 5)}, ("t", {0: (1, 2)}))
    view.set_state("t", 0, state_of(1, 4, (1, 2), 6, lives={2: 5}))
    assert planned(view) is None


def test_a_follower_that_comes_back_is_not_in_sync_by_that() -> None:
    assert planned(one_partition({1, 2}, (1, 2), 1, (1,))) is None


# --- Eligible leader replicas (KIP-966) ---


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


# --- Brokers that leave ---


def test_a_leaving_leader_gives_its_office_away_and_leaves_the_set() -> None:
    view = one_partition({1: LEAVING, 2: FIRST, 3: FIRST}, (1, 2, 3), 1, (1, 2, 3))
    assert planned(view) == state_of(2, 5, (2, 3), 7)


def test_a_leaving_follower_leaves_the_set_without_an_election() -> None:
    view = one_partition({1: FIRST, 2: LEAVING}, (1, 2), 1, (1, 2))
    assert planned(view) == state_of(1, 4, (1,), 7)


def test_nothing_changes_for_a_leaving_broker_that_nobody_could_replace() -> None:
    assert planned(one_partition({1: LEAVING, 2: FIRST}, (1, 2), 1, (1,))) is None
    assert planned(one_partition({1: LEAVING, 2: LEAVING}, (1, 2), 1, (1, 2))) is None


def test_a_broker_may_stop_once_others_have_what_they_can_take_of_it() -> None:
    view = one_partition({1: LEAVING, 2: FIRST}, (1, 2), 1, (1, 2))
    assert not may_stop(view, 1)
    carry_out(view, plan(view))
    assert may_stop(view, 1)


def test_a_broker_may_stop_at_once_where_nobody_can_take_over() -> None:
    assert may_stop(one_partition({1: LEAVING, 2: FIRST}, (1, 2), 1, (1,)), 1)
    assert may_stop(one_partition({1: LEAVING, 2: LEAVING}, (1, 2), 1, (1, 2)), 1)
    assert may_stop(one_partition({1: LEAVING, 2: UNCLEAN_RETURN}, (1, 2), 1, (1, 2)), 1)
    assert may_stop(view_of({1: LEAVING}, ("new", {0: (1,)})), 1)


# --- Claims ---

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


# --- Unclean election ---


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


# --- Which topics ---


def test_a_topic_that_is_to_be_deleted_is_left_alone() -> None:
    view = view_of({1}, ("t", {0: (1,)}))
    view.pending_deletions.add("t")
    assert planned(view) is None


def test_only_the_topics_asked_for_are_planned_each_under_its_own_policy() -> None:
    view = view_of({1}, ("a", {0: (1,)}), ("b", {0: (1,)}))
    asked: list[str] = []

    def policy_of(topic: Topic) -> ElectionPolicy:
        asked.append(topic.name)
        return ElectionPolicy()

    changes = plan_states(view, CONTROLLER_EPOCH, policy_of, topics=["b", "gone"])
    assert ([change.topic for change in changes], asked) == (["b"], ["b"])


# --- Whatever happens ---

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


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.integers(0, 3), REPLICAS, min_size=1),
    st.lists(st.tuples(EVENTS, st.booleans()), min_size=1, max_size=8),
    st.integers(1, 3),
)
def test_through_any_deaths_returns_and_shutdowns_elections_are_safe_and_settle_at_once(
    replicas: dict[int, tuple[int, ...]],
    history: list[tuple[dict[int, str], bool]],
    min_insync_replicas: int,
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


def test_the_state_that_follows_does_not_touch_the_one_before() -> None:
    view = one_partition({2, 3}, (1, 2, 3), 1, (1, 2, 3))
    before = view.topics["t"].states[0]
    copy = replace(before)
    plan(view)
    assert before == copy
