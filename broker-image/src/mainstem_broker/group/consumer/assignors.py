"""The server-side assignors `uniform` and `range` of KIP-848. Pure.

Belongs here: target assignments from subscriptions, partition counts and the last target. How members reach
their targets belongs to `reconciliation.py`.

Both assign every existing partition of a subscribed topic to exactly one member that is subscribed to it.

- `uniform` balances over all topics. With equal subscriptions, two members differ by one partition at most.
  With different ones, no partition could move to a subscriber that has two partitions fewer. Members keep as
  much of their last target as that allows.
- `range` cuts each topic into contiguous slices, in the order of instance ids, then member ids. Topics with
  the same number of partitions and the same subscribers are cut alike, so equal keys are read by one member.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappush, heapreplace
from itertools import chain
from typing import Final
from uuid import UUID

from mainstem_broker.group.consumer.records import Partitions
from mainstem_broker.protocol.topic_partition import TopicIdPartition


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member as assignors see it: the ids of its `topics` that exist, and its last target."""

    member_id: str
    instance_id: str | None
    topics: frozenset[UUID]
    target: Partitions = frozenset()


Assignor = Callable[[Sequence[Subscriber], Mapping[UUID, int]], dict[str, Partitions]]
"""From the members and the partition count of each topic to targets by member id."""


def assign_range(
    members: Sequence[Subscriber], partition_counts: Mapping[UUID, int]
) -> dict[str, Partitions]:
    ordered = sorted(
        members, key=lambda member: (member.instance_id is None, member.instance_id or member.member_id)
    )
    assigned: dict[str, set[TopicIdPartition]] = {member.member_id: set() for member in members}
    subscribers = _subscribers(ordered)
    for topic_id, count in partition_counts.items():
        theirs = subscribers.get(topic_id, ())
        first = 0
        for index, place in enumerate(theirs):
            size = count // len(theirs) + (index < count % len(theirs))
            if size == 0:
                break
            mine = assigned[ordered[place].member_id]
            mine.update((topic_id, number) for number in range(first, first + size))
            first += size
    return _frozen(assigned)


def assign_uniform(
    members: Sequence[Subscriber], partition_counts: Mapping[UUID, int]
) -> dict[str, Partitions]:
    ordered = sorted(members, key=lambda member: member.member_id)
    kept, free = _keep(ordered, partition_counts)
    if len({member.topics for member in ordered}) <= 1:
        _balance_equals(kept, free)
    else:
        _balance(kept, free, ordered)
    return _frozen(kept)


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}


def _subscribers(members: Sequence[Subscriber]) -> dict[UUID, tuple[int, ...]]:
    """By topic, the indexes in `members` of its subscribers; one tuple for all topics that share them.

    Large groups have few different subscriptions. Taken one by one, the cost would be the number of members
    times that of topics.
    """
    places: dict[frozenset[UUID], list[int]] = defaultdict(list)
    for place, member in enumerate(members):
        places[member.topics].append(place)
    subscriptions: dict[UUID, list[int]] = defaultdict(list)
    for number, topics in enumerate(places):
        for topic_id in topics:
            subscriptions[topic_id].append(number)
    by_subscription = tuple(places.values())
    merged: dict[tuple[int, ...], tuple[int, ...]] = {}
    subscribers: dict[UUID, tuple[int, ...]] = {}
    for topic_id, numbers in subscriptions.items():
        key = tuple(numbers)
        if key not in merged:
            merged[key] = tuple(sorted(chain.from_iterable(by_subscription[number] for number in key)))
        subscribers[topic_id] = merged[key]
    return subscribers


def _keep(
    members: Sequence[Subscriber], partition_counts: Mapping[UUID, int]
) -> tuple[dict[str, list[TopicIdPartition]], list[TopicIdPartition]]:
    """The partitions that members keep of their last targets, and those that are free."""
    subscribed = frozenset[UUID]().union(*{member.topics for member in members})
    # By topic: ids are costly to hash, and there may be many partitions.
    free = {
        topic_id: dict.fromkeys(range(count))
        for topic_id, count in partition_counts.items()
        if topic_id in subscribed
    }
    kept: dict[str, list[TopicIdPartition]] = {}
    for member in members:
        kept[member.member_id] = mine = []
        for partition in sorted(member.target, key=_number):
            topic_id, number = partition
            numbers = free.get(topic_id)
            if numbers is not None and number in numbers and topic_id in member.topics:
                del numbers[number]
                mine.append(partition)
    return kept, [(topic_id, number) for topic_id, numbers in free.items() for number in numbers]


def _number(partition: TopicIdPartition) -> int:
    return partition[1]


def _balance_equals(assigned: dict[str, list[TopicIdPartition]], free: list[TopicIdPartition]) -> None:
    """Balance between members that may all have any partition: each gets a quota, some one more."""
    if not assigned:
        return
    total = len(free) + sum(map(len, assigned.values()))
    quota, extra = divmod(total, len(assigned))
    # The members that have the most get one more: that moves the fewest partitions.
    by_size = sorted(assigned.values(), key=len, reverse=True)
    quotas = [quota + (index < extra) for index in range(len(by_size))]
    for mine, limit in zip(by_size, quotas, strict=True):
        free.extend(mine[limit:])
        del mine[limit:]
    for mine, limit in zip(by_size, quotas, strict=True):
        missing = limit - len(mine)
        if missing > 0:
            mine.extend(free[-missing:])
            del free[-missing:]


def _balance(
    assigned: dict[str, list[TopicIdPartition]],
    free: Iterable[TopicIdPartition],
    members: Sequence[Subscriber],
) -> None:
    """Give free partitions to the members with the fewest, then move single ones while that evens out."""
    subscribers = _subscribers(members)
    shares = [assigned[member.member_id] for member in members]
    # One heap of (share size, index) for each set of subscribers. A size in a heap may be too low, and is
    # corrected when it comes to the top; it is never too high, because a member that loses a partition is
    # entered once more.
    heaps = {places: [(len(shares[place]), place) for place in places] for places in subscribers.values()}
    heaps_of: list[list[list[tuple[int, int]]]] = [[] for _ in members]
    for places, heap in heaps.items():
        heapify(heap)
        for place in places:
            heaps_of[place].append(heap)
    heap_of = {topic_id: heaps[places] for topic_id, places in subscribers.items()}

    def poorest(heap: list[tuple[int, int]]) -> list[TopicIdPartition]:
        while True:
            size, place = heap[0]
            mine = shares[place]
            if len(mine) == size:
                return mine
            heapreplace(heap, (len(mine), place))

    # Topics with the fewest subscribers first, so that the others can compensate.
    for partition in sorted(free, key=lambda one: (len(subscribers[one[0]]), one[0].int, one[1])):
        poorest(heap_of[partition[0]]).append(partition)
    moved = True
    while moved:  # ends: each move makes the sum of the squared sizes smaller
        moved = False
        for place in sorted(range(len(shares)), key=lambda place: len(shares[place]), reverse=True):
            mine, index, before = shares[place], 0, len(shares[place])
            while index < len(mine):
                other = poorest(heap_of[mine[index][0]])
                if len(other) + 1 < len(mine):
                    other.append(mine.pop(index))
                else:
                    index += 1
            if len(mine) < before:
                # Only now: before, the member could only have been chosen for its own partitions.
                for heap in heaps_of[place]:
                    heappush(heap, (len(mine), place))
                moved = True


def _frozen(assigned: Mapping[str, Iterable[TopicIdPartition]]) -> dict[str, Partitions]:
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}
