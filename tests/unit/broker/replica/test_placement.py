from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem_broker.errors import InvalidReplicationFactor
from mainstem_broker.replica.placement import Assignment, assign_replicas

Racks = dict[int, str | None]

_BROKERS = st.integers(0, 1000)
_NAMES: st.SearchStrategy[str | None] = st.sampled_from(["a", "b", "c"])
WITH_RACKS = st.dictionaries(_BROKERS, _NAMES, min_size=1, max_size=9)
WITHOUT_RACKS = st.dictionaries(_BROKERS, st.none(), min_size=1, max_size=9)
ANY: st.SearchStrategy[Racks] = st.one_of(WITH_RACKS, WITHOUT_RACKS)


class Asked(NamedTuple):
    racks: Racks
    partition_count: int
    replication_factor: int
    first_partition: int
    start: int

    def assign(self) -> Assignment:
        return assign_replicas(
            self.racks,
            self.partition_count,
            self.replication_factor,
            first_partition=self.first_partition,
            start=self.start,
        )


@st.composite
def placements(draw: st.DrawFn, racks: st.SearchStrategy[Racks] = ANY) -> Asked:
    brokers = draw(racks)
    return Asked(
        brokers,
        draw(st.integers(1, 40)),
        draw(st.integers(1, len(brokers))),
        draw(st.integers(0, 20)),
        draw(st.integers(0, 10)),
    )


@given(placements())
def test_every_partition_has_as_many_distinct_live_replicas_as_asked(requested: Asked) -> None:
    assignment = requested.assign()
    first = requested.first_partition
    assert sorted(assignment) == list(range(first, first + requested.partition_count))
    for brokers in assignment.values():
        assert len(brokers) == len(set(brokers)) == requested.replication_factor
        assert set(brokers) <= requested.racks.keys()


@given(placements())
def test_leaders_are_balanced_within_one(requested: Asked) -> None:
    led = Counter(brokers[0] for brokers in requested.assign().values())
    loads = [led[broker] for broker in requested.racks]
    assert max(loads) - min(loads) <= 1


@given(placements(), st.integers(1, 30))
def test_a_topic_that_grows_goes_on_as_if_it_had_been_made_that_large(
    requested: Asked, grown_by: int
) -> None:
    small = requested._replace(first_partition=0)
    added = requested._replace(first_partition=small.partition_count, partition_count=grown_by)
    large = small._replace(partition_count=small.partition_count + grown_by)
    assert small.assign() | added.assign() == large.assign()


@given(placements(WITH_RACKS))
def test_no_rack_holds_two_replicas_while_another_holds_none(requested: Asked) -> None:
    rack_count = len(set(requested.racks.values()))
    for brokers in requested.assign().values():
        used = {requested.racks[broker] for broker in brokers}
        assert len(used) == min(requested.replication_factor, rack_count)


def test_neighbouring_leaders_are_in_different_racks() -> None:
    racks: Racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    leaders = [brokers[0] for brokers in assign_replicas(racks, 4, 1).values()]
    assert [racks[leader] for leader in leaders] == ["a", "b", "a", "b"]


def test_the_followers_of_one_broker_spread_over_all_others() -> None:
    """So that the load of a broker that fails does not fall on one other."""
    assignment = assign_replicas(dict.fromkeys(range(5)), 20, 2)
    followers = Counter(brokers[1] for brokers in assignment.values() if brokers[0] == 0)
    assert followers == {1: 1, 2: 1, 3: 1, 4: 1}


def test_racks_do_not_count_while_a_broker_has_none() -> None:
    racks: Racks = {1: "a", 2: None, 3: "b"}
    assert assign_replicas(racks, 6, 2) == assign_replicas(dict.fromkeys((1, 2, 3)), 6, 2)


@pytest.mark.parametrize(
    ("factor", "reason"), [(0, "larger than 0"), (-3, "larger than 0"), (4, "available brokers: 3")]
)
def test_a_factor_that_cannot_be_had_is_refused(factor: int, reason: str) -> None:
    with pytest.raises(InvalidReplicationFactor, match=reason):
        assign_replicas(dict.fromkeys((1, 2, 3)), 1, factor)


def test_without_a_live_broker_nothing_can_be_placed() -> None:
    with pytest.raises(InvalidReplicationFactor, match="available brokers: 0"):
        assign_replicas({}, 1, 1)
