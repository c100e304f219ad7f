"""Who is to have which partitions: the server-side assignors `uniform` and `range` of KIP-848. Pure.

Lives here: target assignments from subscriptions, partition counts and the last target. Must not: how members
get there (`reconciliation.py`).

Both answer every existing partition of a subscribed topic to exactly one member that is subscribed to it.

- `uniform` balances over all topics: with equal subscriptions no member has two partitions more than another;
  with different ones none that could be taken from it has a subscriber with two fewer. Members keep as much
  of their last target as that allows.
- `range` cuts each topic into contiguous slices, in the order of instance ids, then member ids. Topics with
  the same number of partitions and the same subscribers are cut alike, so that equal keys meet in one member.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappush, heapreplace
from itertools import chain
from typing import Final
from uuid import UUID

from mainstem_broker.group.consumer_records import Partition, Partitions


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member as assignors see it: `topics` that exist, and its last target."""

    member_id: str
    instance_id: str | None
    topics: frozenset[UUID]
    target: Partitions = frozenset()


Assignor = Callable[[Sequence[Subscriber], Mapping[UUID, int]], dict[str, Partitions]]
"""From the members and the number of partitions of each topic to targets by member id."""


def assign_range(
    members: Sequence[Subscriber], partition_counts: Mapping[UUID, int]
) -> dict[str, Partitions]:
    ordered = sorted(
        members, key=lambda member: (member.instance_id is None, member.instance_id or member.member_id)
    )
    assigned: dict[str, set[Partition]] = {member.member_id: set() for member in members}
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
    """Of each topic the places of its subscribers among `members`; one tuple for all topics that share them.

    Large groups have few different subscriptions: looked at one by one, members would cost their number
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
    found: dict[UUID, tuple[int, ...]] = {}
    for topic_id, numbers in subscriptions.items():
        key = tuple(numbers)
        if key not in merged:
            merged[key] = tuple(sorted(chain.from_iterable(by_subscription[number] for number in key)))
        found[topic_id] = merged[key]
    return found


def _keep(
    members: Sequence[Subscriber], partition_counts: Mapping[UUID, int]
) -> tuple[dict[str, list[Partition]], list[Partition]]:
    """What members have of their last targets, and what nobody has."""
    subscribed = frozenset[UUID]().union(*{member.topics for member in members})
    # By topic: ids are costly to hash, and there may be many partitions.
    free = {
        topic_id: dict.fromkeys(range(count))
        for topic_id, count in partition_counts.items()
        if topic_id in subscribed
    }
    kept: dict[str, list[Partition]] = {}
    for member in members:
        kept[member.member_id] = mine = []
        for partition in sorted(member.target, key=_number):
            topic_id, number = partition
            numbers = free.get(topic_id)
            if numbers is not None and number in numbers and topic_id in member.topics:
                del numbers[number]
                mine.append(partition)
    return kept, [(topic_id, number) for topic_id, numbers in free.items() for number in numbers]


def _number(partition: Partition) -> int:
    return partition[1]


def _balance_equals(assigned: dict[str, list[Partition]], free: list[Partition]) -> None:
    """Any member may have any partition: a quota each, and one more for as many as there are left over."""
    if not assigned:
        return
    total = len(free) + sum(map(len, assigned.values()))
    quota, extra = divmod(total, len(assigned))
    # Those who have most keep one more: that moves the least.
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
    assigned: dict[str, list[Partition]], free: Iterable[Partition], members: Sequence[Subscriber]
) -> None:
    """Give what is free to who has least, then move single partitions as long as that evens things out."""
    subscribers = _subscribers(members)
    shares = [assigned[member.member_id] for member in members]
    # By who may have a topic: those who may as (size, place) in a heap. A size is corrected when it comes to
    # the top, so it may be too low there, never too high: who has lost a partition is entered once more.
    heaps = {places: [(len(shares[place]), place) for place in places] for places in subscribers.values()}
    heaps_of: list[list[list[tuple[int, int]]]] = [[] for _ in members]
    for places, heap in heaps.items():
        heapify(heap)
        for place in places:
            heaps_of[place].append(heap)
    heap_of = {topic_id: heaps[places] for topic_id, places in subscribers.items()}

    def poorest(heap: list[tuple[int, int]]) -> list[Partition]:
        while True:
            size, place = heap[0]
            mine = shares[place]
            if len(mine) == size:
                return mine
            heapreplace(heap, (len(mine), place))

    # The topics that fewest can take first, so that the others can make up for it.
    for partition in sorted(free, key=lambda one: (len(subscribers[one[0]]), one[0].int, one[1])):
        poorest(heap_of[partition[0]]).append(partition)
    moved = True
    while moved:  # each move makes the sum of the squared sizes smaller
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
                # Only now: meanwhile it could only have been its own poorest, which moves nothing.
                for heap in heaps_of[place]:
                    heappush(heap, (len(mine), place))
                moved = True


def _frozen(assigned: Mapping[str, Iterable[Partition]]) -> dict[str, Partitions]:
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}
