from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from mainstem_broker.cluster.controller import StateChange, plan_states
from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.cluster.znodes import BrokerRegistration, Endpoint, TopicAssignment
from mainstem_broker.replica.partition import NO_LEADER, PartitionState

CONTROLLER_EPOCH = 9


def view_of(live: Collection[int], *topics: tuple[str, dict[int, tuple[int, ...]]]) -> ClusterView:
    view = ClusterView()
    set_live(view, live)
    for number, (name, replicas) in enumerate(topics):
        view.set_topic(TopicAssignment(name, UUID(int=number + 1), replicas), {})
    return view


def set_live(view: ClusterView, live: Collection[int]) -> None:
    endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9092)
    view.set_brokers(BrokerRegistration(broker, (endpoint,), None) for broker in live)


def one_partition(
    live: Collection[int],
    replicas: tuple[int, ...],
    leader: int,
    isr: tuple[int, ...],
    leader_epoch: int = 4,
    partition_epoch: int = 6,
) -> ClusterView:
    view = view_of(live, ("t", {0: replicas}))
    view.set_state("t", 0, PartitionState(leader, leader_epoch, isr, 1, partition_epoch))
    return view


def planned(view: ClusterView, restarted: Collection[int] = ()) -> PartitionState | None:
    """The new state of the one partition there is, or None if the present one holds."""
    changes = plan_states(view, CONTROLLER_EPOCH, restarted=restarted)
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


def test_a_new_partition_is_led_by_the_first_live_replica_of_its_assignment() -> None:
    view = view_of({2, 3}, ("t", {0: (1, 3, 2)}))
    assert plan_states(view, CONTROLLER_EPOCH) == [
        StateChange("t", 0, PartitionState(3, 0, (3, 2), CONTROLLER_EPOCH), None)
    ]


def test_a_new_partition_none_of_whose_replicas_lives_waits() -> None:
    view = view_of({4}, ("t", {0: (1, 2)}))
    assert planned(view) is None
    set_live(view, {2})
    assert planned(view) == PartitionState(2, 0, (2,), CONTROLLER_EPOCH)


def test_only_the_new_partitions_of_a_topic_that_grew_are_planned() -> None:
    view = view_of({1}, ("t", {0: (1,), 1: (1,)}))
    view.set_state("t", 0, PartitionState(1, 5, (1,), 1, 5))
    assert [(change.topic, change.partition) for change in plan_states(view, CONTROLLER_EPOCH)] == [("t", 1)]


# --- Leaders ---


def test_a_partition_whose_leader_and_followers_live_stays_as_it_is() -> None:
    assert planned(one_partition({1, 2, 3}, (1, 2, 3), 2, (1, 2, 3))) is None


def test_a_dead_leader_is_replaced_by_the_first_replica_that_is_live_and_in_sync() -> None:
    view = one_partition({3, 4}, (1, 2, 3, 4), 1, (1, 2, 4))
    assert planned(view) == PartitionState(4, 5, (4,), CONTROLLER_EPOCH, 7)


def test_a_live_replica_out_of_sync_never_leads() -> None:
    assert planned(one_partition({2}, (1, 2), 1, (1,))) == PartitionState(
        NO_LEADER, 5, (1,), CONTROLLER_EPOCH, 7
    )


def test_when_nobody_in_sync_lives_the_partition_has_no_leader_and_keeps_its_in_sync_set() -> None:
    view = one_partition(set(), (1, 2), 1, (1, 2))
    state = planned(view)
    assert state == PartitionState(NO_LEADER, 5, (1, 2), CONTROLLER_EPOCH, 7)
    carry_out(view, plan_states(view, CONTROLLER_EPOCH))
    assert planned(view) is None, "and it is said once"


def test_whoever_of_the_in_sync_set_comes_back_leads_again() -> None:
    view = one_partition({2, 3}, (1, 2, 3), NO_LEADER, (1, 2))
    assert planned(view) == PartitionState(2, 5, (2,), CONTROLLER_EPOCH, 7)


def test_a_leader_that_restarted_unseen_gets_a_new_epoch() -> None:
    """Its clients and followers must notice: what it had not on the disk may be gone (KIP-320)."""
    view = one_partition({1}, (1,), 1, (1,))
    assert planned(view) is None
    assert planned(view, restarted={1}) == PartitionState(1, 5, (1,), CONTROLLER_EPOCH, 7)


def test_the_restart_of_a_follower_changes_nothing() -> None:
    assert planned(one_partition({1, 2}, (1, 2), 1, (1, 2)), restarted={2}) is None


# --- Followers ---


def test_a_dead_follower_leaves_the_in_sync_set_and_both_epochs_grow() -> None:
    view = one_partition({1, 3}, (1, 2, 3), 1, (1, 2, 3))
    assert planned(view) == PartitionState(1, 5, (1, 3), CONTROLLER_EPOCH, 7)


def test_a_follower_that_comes_back_is_not_in_sync_by_that() -> None:
    assert planned(one_partition({1, 2}, (1, 2), 1, (1,))) is None


def test_a_leader_elected_out_of_sync_stays_marked_as_recovering() -> None:
    view = view_of({1}, ("t", {0: (1, 2)}))
    view.set_state("t", 0, PartitionState(1, 4, (1, 2), 1, 6, recovering=True))
    state = planned(view)
    assert state is not None
    assert state.recovering


# --- Which topics ---


def test_a_topic_that_is_to_be_deleted_is_left_alone() -> None:
    view = view_of({1}, ("t", {0: (1,)}))
    view.pending_deletions.add("t")
    assert planned(view) is None


def test_only_the_topics_asked_for_are_planned() -> None:
    view = view_of({1}, ("a", {0: (1,)}), ("b", {0: (1,)}))
    changes = plan_states(view, CONTROLLER_EPOCH, topics=["b", "gone"])
    assert [change.topic for change in changes] == ["b"]


# --- Whatever happens ---

BROKERS = st.integers(1, 5)
REPLICAS = st.lists(BROKERS, min_size=1, max_size=3, unique=True).map(tuple)
LIVE = st.sets(BROKERS)


@given(
    st.dictionaries(st.integers(0, 5), REPLICAS, min_size=1),
    st.lists(st.tuples(LIVE, LIVE), min_size=1, max_size=8),
)
def test_through_any_deaths_and_restarts_elections_are_safe_and_settle_at_once(
    replicas: dict[int, tuple[int, ...]], history: list[tuple[set[int], set[int]]]
) -> None:
    view = view_of(set(), ("t", replicas))
    epochs = dict.fromkeys(replicas, -1)
    for live, restarted in history:
        set_live(view, live)
        before = dict(view.topics["t"].states)
        carry_out(view, plan_states(view, CONTROLLER_EPOCH, restarted=restarted & live))
        assert plan_states(view, CONTROLLER_EPOCH) == [], "a second pass has nothing left to do"
        for partition, state in view.topics["t"].states.items():
            old = before.get(partition)
            assert state.isr
            assert set(state.isr) <= set(replicas[partition])
            if old is not None:
                assert set(state.isr) <= set(old.isr), "only a leader lets replicas in"
            assert state.leader == NO_LEADER or (state.leader in live and state.leader in state.isr)
            if state.leader == NO_LEADER:
                assert not set(state.isr) & live, "a live member of the in-sync set would lead"
            if old is not None and old.leader != state.leader:
                assert state.leader_epoch == old.leader_epoch + 1
            assert state.leader_epoch >= epochs[partition]
            epochs[partition] = state.leader_epoch
