from __future__ import annotations

import itertools
from dataclasses import replace
from uuid import UUID, uuid4

from hypothesis import given
from hypothesis import strategies as st

from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.cluster.znodes import TopicAssignment
from mainstem_broker.replica.partition_state import PartitionState

T = UUID(int=1)


def assignment(topic_id: UUID = T, version: int = 0, partitions: int = 2) -> TopicAssignment:
    return TopicAssignment("t", topic_id, dict.fromkeys(range(partitions), (1,)), version=version)


def state(partition_epoch: int = 0, leader: int = 1) -> PartitionState:
    return PartitionState(leader, partition_epoch, (1,), 1, partition_epoch)


@given(st.permutations(range(5)))
def test_the_newest_state_stays_whatever_the_order_of_the_news(epochs: list[int]) -> None:
    view = ClusterView()
    view.set_topic(assignment(), {})
    taken = [view.set_state("t", 0, state(epoch)) for epoch in epochs]
    assert view.topics["t"].states == {0: state(4)}
    assert taken == [epoch > max(epochs[:number], default=-1) for number, epoch in enumerate(epochs)]


def test_states_of_unknown_topics_and_partitions_are_not_taken() -> None:
    view = ClusterView()
    assert not view.set_state("t", 0, state())
    view.set_topic(assignment(), {})
    assert not view.set_state("t", 2, state())


def test_an_assignment_older_than_the_known_one_is_not_taken() -> None:
    view = ClusterView()
    view.set_topic(assignment(version=2, partitions=3), {})
    view.set_topic(assignment(version=1, partitions=2), {})
    assert len(view.topics["t"].assignment.replicas) == 3


def test_a_state_waits_for_the_assignment_with_which_replicas_were_moved_away() -> None:
    """Or who is moved away would follow the leader on, and be taken for in sync when it is named again."""
    view = ClusterView()
    view.set_topic(assignment(version=1), {})
    view.set_state("t", 0, state(3))
    moved = replace(state(4), assignment_version=2)
    assert view.lacks_assignment_of("t", moved)
    assert not view.set_state("t", 0, moved)
    view.set_topic(assignment(version=2), {})
    assert not view.lacks_assignment_of("t", moved)
    assert view.set_state("t", 0, moved)


def test_a_topic_that_grows_keeps_its_states() -> None:
    view = ClusterView()
    view.set_topic(assignment(), {})
    view.set_state("t", 0, state())
    view.set_topic(assignment(version=1, partitions=3), {})
    assert view.topics["t"].states == {0: state()}
    assert view.set_state("t", 2, state())


def test_another_topic_of_the_same_name_begins_anew() -> None:
    view = ClusterView()
    view.set_topic(assignment(version=7), {})
    view.set_state("t", 0, state(5))
    view.pending_deletions.add("t")
    other = uuid4()
    view.set_topic(assignment(other, version=0), {})
    assert view.topics["t"].states == {}
    assert view.topic_names == {other: "t"}
    assert view.pending_deletions == set()


def test_removing_the_earlier_topic_leaves_the_later_one_of_its_name() -> None:
    view = ClusterView()
    view.set_topic(assignment(uuid4()), {})
    assert not view.remove_topic("t", T)
    assert "t" in view.topics


def test_a_removed_topic_is_forgotten_whole() -> None:
    view = ClusterView()
    view.set_topic(assignment(), {})
    view.pending_deletions.add("t")
    assert view.remove_topic("t", T)
    assert (view.topics, view.topic_names, view.pending_deletions) == ({}, {}, set())
    assert not view.remove_topic("t", T)


def test_partitions_are_led_when_each_has_a_state_with_a_leader() -> None:
    view = ClusterView()
    topic = view.set_topic(assignment(partitions=3), {})
    view.set_state("t", 0, state())
    view.set_state("t", 1, state(leader=-1))
    assert topic.all_led([0])
    assert topic.all_led([])
    assert not topic.all_led([0, 1])
    assert not topic.all_led([2])


def test_settings_of_users_clients_and_groups_are_kept_until_there_are_none() -> None:
    view = ClusterView()
    view.set_config("users/alice", {"producer_byte_rate": "1"})
    view.set_config("brokers/1", {"log.retention.ms": "2"})
    view.set_config("groups/g", {})
    assert view.entity_configs == {"users/alice": {"producer_byte_rate": "1"}}
    assert view.broker_configs == {"1": {"log.retention.ms": "2"}}
    view.set_config("users/alice", {})
    view.set_config("users/alice", {})
    assert view.entity_configs == {}


def test_the_version_of_the_topics_tells_that_one_came_grew_or_went() -> None:
    view = ClusterView()
    versions = [view.topics_version]
    for happens in (
        lambda: view.set_topic(assignment(), {}),
        lambda: view.set_topic(assignment(version=1), {"retention.ms": "1"}),  # only its settings
        lambda: view.set_topic(assignment(version=2, partitions=3), {}),
        lambda: view.remove_topic("t", T),
    ):
        happens()
        versions.append(view.topics_version)
    assert [later != earlier for earlier, later in itertools.pairwise(versions)] == [True, False, True, True]
