"""The group protocol over the wire: errors, versions, and what stock clients stumbled over (R14, R15)."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from tests.support.clusters import SharedCluster
from tests.support.group_requests import commit_fields, coordinator_address, fetch_fields, join_fields
from tests.support.topics import TopicFactory
from tests.support.wire import Connection

NOT_THERE = "topic-that-is-not-there"


@pytest.fixture
def topic(group_topic: TopicFactory) -> str:
    return group_topic(2)


@pytest.fixture
def stranger(group_stack: SharedCluster, group: str) -> Iterator[Connection]:
    """A connection to a broker that is not the group's coordinator."""
    address = coordinator_address(group_stack.brokers[1], group)
    others = [other for other in group_stack.brokers.values() if other != address]
    if not others:
        pytest.skip("The cluster has one broker.")
    with Connection(others[0]) as connection:
        yield connection


def test_trap_21_another_broker_never_says_that_nothing_is_committed(
    stranger: Connection, coordinator: Connection, group: str, topic: str
) -> None:
    coordinator.ask("offset_commit", 9, **commit_fields(group, {(topic, 0): 5}, 9))
    answer = stranger.ask("offset_fetch", 1, **fetch_fields(group, {topic: [0]}, 1))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.not_coordinator
    answer = stranger.ask("offset_fetch", 7, **fetch_fields(group, {topic: [0]}, 7))
    assert (answer.error_code, answer.topics) == (ErrorCode.not_coordinator, ())
    answer = stranger.ask("offset_fetch", 9, **fetch_fields(group, None, 9))
    assert answer.groups[0].error_code == ErrorCode.not_coordinator


def test_a_broker_that_does_not_coordinate_a_group_says_so_to_every_request(
    stranger: Connection, group: str, topic: str
) -> None:
    wrong = ErrorCode.not_coordinator
    assert stranger.ask("join_group", 5, **join_fields(group, "", 5)).error_code == wrong
    who = {"group_id": group, "member_id": "m", "generation_id": 1}
    assert stranger.ask("heartbeat", 0, **who).error_code == wrong
    assert stranger.ask("sync_group", 0, **who, assignments=[]).error_code == wrong
    assert stranger.ask("leave_group", 0, group_id=group, member_id="m").error_code == wrong
    members = [{"member_id": "m", "group_instance_id": None}]
    assert stranger.ask("leave_group", 4, group_id=group, members=members).error_code == wrong
    answer = stranger.ask("offset_commit", 9, **commit_fields(group, {(topic, 0): 5}, 9))
    assert answer.topics[0].partitions[0].error_code == wrong
    assert (
        stranger.ask("describe_groups", 4, groups=[group], include_authorized_operations=False)
        .groups[0]
        .error_code
        == wrong
    )
    assert stranger.ask("delete_groups", 1, groups_names=[group]).results[0].error_code == wrong


@pytest.mark.parametrize("version", range(2, 10))
def test_trap_15_what_is_committed_is_fetched_with_its_epoch_and_metadata(
    coordinator: Connection, group: str, topic: str, version: int
) -> None:
    fields = commit_fields(group, {(topic, 0): 5, (topic, 1): 6}, version, metadata="note")
    answer = coordinator.ask("offset_commit", version, **fields)
    assert [one.error_code for one in answer.topics[0].partitions] == [ErrorCode.none] * 2
    fetched = coordinator.ask("offset_fetch", 5, **fetch_fields(group, {topic: [0, 1], NOT_THERE: [0]}, 5))
    results = {
        (one.name, partition.partition_index): (
            partition.committed_offset,
            partition.committed_leader_epoch,
            partition.metadata,
            partition.error_code,
        )
        for one in fetched.topics
        for partition in one.partitions
    }
    epoch = 3 if version >= 6 else -1
    assert results == {
        (topic, 0): (5, epoch, "note", ErrorCode.none),
        (topic, 1): (6, epoch, "note", ErrorCode.none),
        (NOT_THERE, 0): (-1, -1, "", ErrorCode.none),
    }


def test_topics_are_named_by_id_in_version_10(coordinator: Connection, group: str, topic: str) -> None:
    topics = [{"name": topic, "topic_id": None}]
    metadata = coordinator.ask(
        "metadata",
        12,
        topics=topics,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    topic_id = metadata.topics[0].topic_id
    fields = commit_fields(group, {(topic, 0): 5}, 10, topic_id=topic_id)
    answer = coordinator.ask("offset_commit", 10, **fields).topics[0]
    assert (answer.topic_id, answer.partitions[0].error_code) == (topic_id, ErrorCode.none)
    for requested in ({topic: [0]}, None):
        fields = fetch_fields(group, requested, 10, topic_id=topic_id)
        (fetched,) = coordinator.ask("offset_fetch", 10, **fields).groups[0].topics
        assert (fetched.topic_id, fetched.partitions[0].committed_offset) == (topic_id, 5)
    nobody = UUID(int=7)
    fields = commit_fields(group, {(topic, 0): 5}, 10, topic_id=nobody)
    answer = coordinator.ask("offset_commit", 10, **fields).topics[0]
    assert answer.partitions[0].error_code == ErrorCode.unknown_topic_id
    fields = fetch_fields(group, {topic: [0]}, 10, topic_id=nobody)
    (fetched,) = coordinator.ask("offset_fetch", 10, **fields).groups[0].topics
    assert fetched.partitions[0].error_code == ErrorCode.unknown_topic_id


def test_trap_34_a_commit_for_a_partition_that_is_not_there_is_refused_alone(
    coordinator: Connection, group: str, topic: str
) -> None:
    offsets = {(topic, 0): 5, (topic, 99): 5, (NOT_THERE, 0): 5}
    answer = coordinator.ask("offset_commit", 8, **commit_fields(group, offsets, 8))
    codes = {
        (one.name, partition.partition_index): partition.error_code
        for one in answer.topics
        for partition in one.partitions
    }
    assert codes == {
        (topic, 0): ErrorCode.none,
        (topic, 99): ErrorCode.unknown_topic_or_partition,
        (NOT_THERE, 0): ErrorCode.unknown_topic_or_partition,
    }


def test_a_note_that_is_too_long_is_refused(coordinator: Connection, group: str, topic: str) -> None:
    for length, code in ((4_096, ErrorCode.none), (4_097, ErrorCode.offset_metadata_too_large)):
        fields = commit_fields(group, {(topic, 0): 5}, 8, metadata="x" * length)
        answer = coordinator.ask("offset_commit", 8, **fields)
        assert answer.topics[0].partitions[0].error_code == code


def test_names_of_any_length_get_a_member_id_of_sensible_length(coordinator: Connection, group: str) -> None:
    fields = join_fields(group, "", 5, instance_id="é" * 16_000)
    joined = coordinator.ask("join_group", 5, **fields)
    assert joined.error_code == ErrorCode.none
    assert 36 < len(joined.member_id) < 300


def test_groups_that_do_not_exist_are_described_as_dead(coordinator: Connection, group: str) -> None:
    request = {"groups": [group], "include_authorized_operations": False}
    (old,) = coordinator.ask("describe_groups", 5, **request).groups
    assert (old.error_code, old.group_state, old.members) == (ErrorCode.none, "Dead", ())
    (new,) = coordinator.ask("describe_groups", 6, **request).groups
    assert (new.error_code, new.group_state) == (ErrorCode.group_id_not_found, "Dead")


def test_groups_are_listed_by_state_and_type(coordinator: Connection, group: str, topic: str) -> None:
    coordinator.ask("offset_commit", 8, **commit_fields(group, {(topic, 0): 5}, 8))

    def listed(states: list[str], types: list[str]) -> bool:
        answer = coordinator.ask("list_groups", 5, states_filter=states, types_filter=types)
        assert answer.error_code == ErrorCode.none
        return group in {one.group_id for one in answer.groups}

    assert listed([], [])
    assert listed(["empty"], ["Classic"])
    assert not listed(["Stable"], [])
    assert not listed([], ["consumer"])


def test_there_are_no_coordinators_of_other_kinds(group_stack: SharedCluster) -> None:
    with Connection(group_stack.brokers[1]) as connection:
        answer = connection.ask("find_coordinator", 4, key_type=9, coordinator_keys=["x"])
    assert answer.coordinators[0].error_code == ErrorCode.invalid_request
