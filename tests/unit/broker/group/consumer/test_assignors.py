"""Target assignments: complete, fair, and as much as before as that allows (R14)."""

from __future__ import annotations

import gc
import time
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem_broker.group.consumer.assignors import ASSIGNORS, Subscriber, assign_range, assign_uniform
from mainstem_broker.group.consumer.records import Partitions

TOPICS = [UUID(int=number) for number in range(1, 4)]
T, U, V = TOPICS


def member(
    name: str, *topics: UUID, target: Partitions = frozenset(), instance_id: str | None = None
) -> Subscriber:
    return Subscriber(name, instance_id, frozenset(topics), target)


def numbers(partitions: Partitions, topic: UUID = T) -> list[int]:
    return sorted(number for topic_id, number in partitions if topic_id == topic)


SUBSCRIBERS = st.lists(st.sets(st.sampled_from(TOPICS)), min_size=1, max_size=8)
COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 12))


@pytest.mark.parametrize("name", ASSIGNORS)
@given(first=SUBSCRIBERS, second=SUBSCRIBERS, counts=COUNTS, later=COUNTS)
def test_every_partition_has_exactly_one_owner_that_is_subscribed_to_it(
    name: str,
    first: list[set[UUID]],
    second: list[set[UUID]],
    counts: dict[UUID, int],
    later: dict[UUID, int],
) -> None:
    """Also after members and topics have changed."""
    targets: dict[str, Partitions] = {}
    for subscriptions, present in ((first, counts), (second, later)):
        members = [
            member(f"m{number}", *topics, target=targets.get(f"m{number}", frozenset()))
            for number, topics in enumerate(subscriptions)
        ]
        targets = ASSIGNORS[name](members, present)
        assert targets.keys() == {one.member_id for one in members}
        for one in members:
            assert {topic_id for topic_id, _ in targets[one.member_id]} <= one.topics
        subscribed = set().union(*subscriptions)
        partitions = [
            (topic_id, number)
            for topic_id, count in present.items()
            if topic_id in subscribed
            for number in range(count)
        ]
        assert sorted(partition for target in targets.values() for partition in target) == sorted(partitions)
        if name == "uniform":
            sizes = {one.member_id: len(targets[one.member_id]) for one in members}
            for one in members:
                for other in members:
                    if any(topic_id in other.topics for topic_id, _ in targets[one.member_id]):
                        assert sizes[one.member_id] - sizes[other.member_id] <= 1


@given(count=st.integers(0, 40), before=st.integers(1, 10), come=st.integers(0, 3), gone=st.integers(0, 3))
def test_uniform_moves_no_more_than_fairness_asks_for(count: int, before: int, come: int, gone: int) -> None:
    members = [member(f"m{number}", T) for number in range(before)]
    targets = assign_uniform(members, {T: count})
    stay = members[gone:]
    after = [member(one.member_id, T, target=targets[one.member_id]) for one in stay]
    after += [member(f"n{number}", T) for number in range(come)]
    new = assign_uniform(after, {T: count})
    if not after:
        return
    most = -(-count // len(after))
    for one in stay:
        kept = targets[one.member_id] & new[one.member_id]
        assert len(kept) >= min(len(targets[one.member_id]), count // len(after))
        assert len(new[one.member_id]) <= most


@pytest.mark.trial
@pytest.mark.parametrize("name", ASSIGNORS)
def test_one_change_of_a_large_group_takes_no_noticeable_time(name: str) -> None:
    """The loop that computes it serves everyone else, too; about 30 ms of a processor's time each."""
    topics = [UUID(int=number) for number in range(1, 101)]
    targets: dict[str, Partitions] = {}
    for size in (999, 1_000):
        members = [
            member(f"m{number:04}", *topics[number % 2 :], target=targets.get(f"m{number:04}", frozenset()))
            for number in range(size)
        ]
        gc.disable()  # the garbage of all tests before would be collected on this one's time
        try:
            started = time.process_time()
            targets = ASSIGNORS[name](members, dict.fromkeys(topics, 100))
            assert time.process_time() - started < 0.5
        finally:
            gc.enable()
    assert {len(target) for target in targets.values()} <= {9, 10, 11} or name == "range"


def test_range_cuts_topics_alike_so_that_equal_keys_meet() -> None:
    targets = assign_range([member("b", T, U), member("a", T, U)], {T: 5, U: 5})
    assert numbers(targets["a"]) == numbers(targets["a"], U) == [0, 1, 2]
    assert numbers(targets["b"]) == numbers(targets["b"], U) == [3, 4]


def test_range_goes_by_instance_ids_where_there_are_any() -> None:
    members = [member("a", T, instance_id="2"), member("b", T, instance_id="1"), member("c", T)]
    targets = assign_range(members, {T: 3})
    assert [numbers(targets[name]) for name in ("b", "a", "c")] == [[0], [1], [2]]
