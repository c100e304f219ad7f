"""Who is to have which partitions (R16): the paper's Algorithm 1, §3.2."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainstem.paper_client.slices import Plan, plan, slices, stream_name

PARTITIONS = st.frozensets(st.integers(0, 200), max_size=40)
STREAMS = st.dictionaries(st.text("abc-12", min_size=1, max_size=4), st.integers(1, 4), max_size=6)


def test_sorted_partitions_are_cut_into_runs_for_sorted_streams() -> None:
    assert slices(range(10), {"b": 1, "a": 2, "c": 1}) == {
        "a-0": (0, 1, 2),
        "a-1": (3, 4, 5),
        "b-0": (6, 7),
        "c-0": (8, 9),
    }


def test_partitions_are_sorted_as_numbers() -> None:
    assert slices({10, 9, 2}, {"a": 1, "b": 1}) == {"a-0": (2, 9), "b-0": (10,)}


def test_with_more_streams_than_partitions_some_have_none() -> None:
    assert slices({0, 1}, {"a": 3}) == {"a-0": (0,), "a-1": (1,), "a-2": ()}


def test_a_group_without_consumers_has_no_slices() -> None:
    assert slices({0, 1}, {}) == {}


@given(PARTITIONS, STREAMS)
def test_each_partition_has_exactly_one_owner_and_shares_differ_by_one_at_most(
    partitions: frozenset[int], streams_of: dict[str, int]
) -> None:
    shares = slices(partitions, streams_of)
    if streams_of:
        assert sorted(number for share in shares.values() for number in share) == sorted(partitions)
        sizes = [len(share) for share in shares.values()]
        assert max(sizes) - min(sizes) <= 1


def test_what_stays_is_not_touched() -> None:
    assert plan("b", range(6), {"a": 1, "b": 1}, {0: 0, 3: 0, 4: 0}) == Plan(release=(0,), claim=((5, 0),))


@given(PARTITIONS, STREAMS, st.data())
def test_a_plan_leads_from_anything_held_to_the_slice(
    partitions: frozenset[int], streams_of: dict[str, int], data: st.DataObject
) -> None:
    me = data.draw(st.sampled_from(sorted(streams_of)) if streams_of else st.just("nobody"))
    held = data.draw(st.dictionaries(st.integers(0, 200), st.integers(0, 4), max_size=20))
    todo = plan(me, partitions, streams_of, held)
    after = {number: stream for number, stream in held.items() if number not in todo.release}
    assert not after.keys() & dict(todo.claim).keys()
    after |= dict(todo.claim)
    expected = {
        number: stream
        for stream in range(streams_of.get(me, 0))
        for number in slices(partitions, streams_of)[stream_name(me, stream)]
    }
    assert after == expected


class Registry:
    """Ephemeral nodes, and consumers that follow Algorithm 1 with whatever they last read."""

    def __init__(self, partitions: int) -> None:
        self.partitions = range(partitions)
        self.owners: dict[int, tuple[str, int]] = {}
        self.consumers: dict[str, int] = {}
        self.read: dict[str, dict[str, int]] = {}

    def held(self, consumer: str) -> dict[int, int]:
        return {number: stream for number, (owner, stream) in self.owners.items() if owner == consumer}

    def leave(self, consumer: str) -> None:
        del self.consumers[consumer], self.read[consumer]
        for number in self.held(consumer):
            del self.owners[number]

    def rebalance(self, consumer: str) -> bool:
        """One try; whether every claim was granted."""
        todo = plan(consumer, self.partitions, self.read[consumer], self.held(consumer))
        for number in todo.release:
            del self.owners[number]
        for number, stream in todo.claim:
            if number in self.owners:
                for other in self.held(consumer):
                    del self.owners[other]
                return False
            self.owners[number] = (consumer, stream)
        return True


@given(
    st.integers(0, 12), st.lists(st.tuples(st.sampled_from("jlrt"), st.sampled_from("abcde")), max_size=40)
)
def test_however_consumers_come_and_go_they_share_everything_two_tries_after_all_have_read(
    partitions: int, steps: list[tuple[str, str]]
) -> None:
    """j joins, l leaves, r reads the registry anew, t tries with what it read."""
    registry = Registry(partitions)
    for step, who in steps:
        here = who in registry.consumers
        if step == "j" and not here:
            registry.consumers[who] = 1 + ord(who) % 2
            registry.read[who] = dict(registry.consumers)
        elif step == "l" and here:
            registry.leave(who)
        elif step == "r" and here:
            registry.read[who] = dict(registry.consumers)
        elif step == "t" and here:
            registry.rebalance(who)
    for who in registry.consumers:
        registry.read[who] = dict(registry.consumers)
    for _ in range(2):
        results = [registry.rebalance(who) for who in registry.consumers]
    if registry.consumers:
        assert all(results)
        expected = slices(registry.partitions, registry.consumers)
        owners = {number: stream_name(*owner) for number, owner in registry.owners.items()}
        assert owners == {number: name for name, share in expected.items() for number in share}
