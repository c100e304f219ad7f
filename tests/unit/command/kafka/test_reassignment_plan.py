from __future__ import annotations

from collections import Counter
from math import ceil, floor

from hypothesis import given
from hypothesis import strategies as st

from mainstem.kafka.reassignment_plan import Replicas, TopicPartition, plan_moves


def of(*replicas: Replicas) -> dict[TopicPartition, Replicas]:
    return {("t", partition): members for partition, members in enumerate(replicas)}


def racks(**by_rack: list[int]) -> dict[int, str | None]:
    return {broker: rack for rack, brokers in by_rack.items() for broker in brokers}


def copies(current: dict[TopicPartition, Replicas], moves: dict[TopicPartition, Replicas]) -> int:
    return sum(len(set(after) - set(current[partition])) for partition, after in moves.items())


def test_a_broker_that_is_to_go_gives_its_replicas_and_nothing_else_is_copied() -> None:
    current = of((1, 2), (2, 3), (3, 1), (1, 3))
    moves = plan_moves(current, {1: None, 2: None, 4: None})
    assert copies(current, moves) == 3, "as many as broker 3 had"
    assert all(3 not in replicas for replicas in moves.values())


def test_a_new_broker_gets_its_share() -> None:
    current = of((1, 2), (2, 1), (1, 2), (2, 1), (1, 2), (2, 1))
    moves = plan_moves(current, {1: None, 2: None, 3: None})
    assert copies(current, moves) == 4
    after = {**current, **moves}
    assert Counter(broker for replicas in after.values() for broker in replicas) == {1: 4, 2: 4, 3: 4}
    assert max(Counter(replicas[0] for replicas in after.values()).values()) == 2


def test_replicas_are_spread_over_racks_even_if_all_brokers_stay() -> None:
    where = racks(a=[1, 2], b=[3, 4])
    moves = plan_moves(of((1, 2)), where)
    (replicas,) = moves.values()
    assert len({where[broker] for broker in replicas}) == 2
    assert copies(of((1, 2)), moves) == 1


def test_replicas_elsewhere_load_brokers_too() -> None:
    moves = plan_moves(of((9,)), {1: None, 2: None}, elsewhere=[(1,), (1,)])
    assert moves == {("t", 0): (2,)}


def test_another_preferred_leader_is_no_copy() -> None:
    current = of((1, 2), (1, 2), (1, 2), (1, 2))
    moves = plan_moves(current, {1: None, 2: None})
    assert copies(current, moves) == 0
    assert Counter({**current, **moves}[partition][0] for partition in current) == {1: 2, 2: 2}


ANY_BROKER = st.integers(1, 8)
REPLICAS = st.lists(ANY_BROKER, min_size=1, max_size=4, unique=True).map(tuple)


@given(
    assignment=st.lists(REPLICAS, min_size=1, max_size=20),
    brokers=st.sets(ANY_BROKER, min_size=1, max_size=6),
    rack_of=st.one_of(st.none(), st.lists(st.sampled_from("abc"), min_size=8, max_size=8)),
    replication_factor=st.one_of(st.none(), st.integers(1, 4)),
)
def test_whatever_there_is_the_plan_holds_what_it_promises(
    assignment: list[Replicas], brokers: set[int], rack_of: list[str] | None, replication_factor: int | None
) -> None:
    current = of(*assignment)
    where = {broker: None if rack_of is None else rack_of[broker - 1] for broker in brokers}
    moves = plan_moves(current, where, replication_factor)
    after = {**current, **moves}
    for partition, replicas in after.items():
        assert set(replicas) <= brokers
        assert len(set(replicas)) == len(replicas)
        assert len(replicas) == min(replication_factor or len(current[partition]), len(brokers))
        if rack_of is not None:
            there = {where[broker] for broker in brokers}
            assert len({where[broker] for broker in replicas}) == min(len(there), len(replicas))
    assert all(replicas != current[partition] for partition, replicas in moves.items())
    load = Counter(broker for replicas in after.values() for broker in replicas)
    if rack_of is None:
        mean = load.total() / len(brokers)
        assert all(floor(mean) <= load[broker] <= ceil(mean) for broker in brokers)
    assert plan_moves(after, where, replication_factor) == {}, "carried out, there is nothing left to do"


@given(
    st.sampled_from([1, 2, 3]), st.lists(st.sampled_from([(1,), (2,), (3,), (1, 2), (1, 2, 3)]), max_size=20)
)
def test_copies_that_are_kept_do_not_move_however_full_their_broker_is(
    held: int, elsewhere: list[tuple[int, ...]]
) -> None:
    (replicas,) = plan_moves(of((held,)), {1: None, 2: None, 3: None}, 2, elsewhere, keeping=True).values()
    assert held in replicas
    assert len(set(replicas)) == 2
