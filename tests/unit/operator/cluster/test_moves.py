"""Which replicas move when brokers go, or a topic gets another number of replicas (R20, R25)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainstem_operator.brokers.topic_state import MoveState, PartitionState, Replicas, TopicState
from mainstem_operator.cluster.moves import (
    Drain,
    moving_off,
    moving_to,
    plan_drain,
    plan_removal,
    plan_replication,
)
from mainstem_operator.proofs import Refusal


def topic(name: str, *replicas: Replicas) -> TopicState:
    partitions = {
        number: PartitionState(held[0], held, frozenset(held)) for number, held in enumerate(replicas)
    }
    return TopicState(name, f"id of {name}", partitions)


def racks(*brokers: int) -> dict[int, str | None]:
    return dict.fromkeys(brokers)


def test_nothing_moves_while_no_broker_is_to_go() -> None:
    assert plan_drain(3, 3, {}, {}, racks(0, 1, 2)) is None


@given(
    placed=st.lists(st.permutations(range(5)).map(lambda order: tuple(order[:3])), min_size=1, max_size=8),
    keep=st.integers(3, 4),
)
def test_what_a_broker_that_goes_holds_moves_to_those_that_stay(placed: list[Replicas], keep: int) -> None:
    topics = {"clicks": topic("clicks", *placed)}
    drain = plan_drain(keep, 5, topics, {}, racks(*range(5)))
    assert isinstance(drain, Drain)
    for number, before in enumerate(placed):
        after = drain.targets.get(("clicks", number), before)
        assert len(set(after)) == 3
        assert max(after) < keep
        if max(before) < keep:
            assert after == before  # what is nowhere near is left alone


def test_moves_under_way_are_not_asked_for_again() -> None:
    topics = {"clicks": topic("clicks", (0, 1, 3))}
    moves = {("clicks", 0): MoveState((0, 1, 2), frozenset({2, 3}))}
    drain = plan_drain(3, 4, topics, moves, racks(0, 1, 2, 3))
    assert isinstance(drain, Drain)
    assert drain.targets == {}
    assert drain.held == {3: 1}


def test_a_drain_is_refused_where_replicas_would_not_fit_or_someone_is_away() -> None:
    topics = {"clicks": topic("clicks", (0, 1, 2))}
    refused = plan_drain(2, 3, topics, {}, racks(0, 1, 2))
    assert isinstance(refused, Refusal)
    assert "clicks-0 has 3 replicas, and only 2 brokers would remain" in refused.reason
    away = plan_drain(2, 3, {}, {}, racks(0, 2))
    assert isinstance(away, Refusal)
    assert "Broker 1 is not alive" in away.reason


def test_brokers_that_go_anyway_are_not_emptied() -> None:
    assert plan_removal(2, 4) == Drain((2, 3), {}, {})


def test_replicas_come_and_go_to_the_number_asked_for() -> None:
    topics = {"clicks": topic("clicks", (0,), (1,)), "views": topic("views", (0, 1))}
    grown = plan_replication(topics["clicks"], 2, topics, {}, racks(0, 1, 2))
    assert {len(set(replicas)) for replicas in grown.values()} == {2}
    assert {number for _, number in grown} == {0, 1}
    assert plan_replication(topics["clicks"], 1, topics, {}, racks(0, 1, 2)) == {}
    under_way = {key: MoveState(replicas, frozenset(replicas)) for key, replicas in grown.items()}
    assert plan_replication(topics["clicks"], 2, topics, under_way, racks(0, 1, 2)) == {}


def test_moves_under_way_are_known_by_where_they_lead() -> None:
    """So that a limit which is set late binds them too."""
    topics = {"clicks": topic("clicks", (0, 1, 2), (0, 1), (1, 2))}
    moves = {
        ("clicks", 0): MoveState((0, 1, 2), frozenset({2})),  # a third replica
        ("clicks", 1): MoveState((0, 2, 3), frozenset({1, 2, 3})),  # a third, by hand off 1
        ("clicks", 2): MoveState((1, 0), frozenset({2, 0})),  # off 2, as many as before
        ("views", 0): MoveState((0, 1, 2), frozenset({2})),
    }
    assert moving_to(3, topics["clicks"], moves) == {("clicks", 0), ("clicks", 1)}
    assert moving_to(2, topics["clicks"], moves) == set()
    assert moving_off({2, 3}, moves) == {("clicks", 2)}
    off_two = {("clicks", 0): moves["clicks", 2]}
    drain = plan_drain(2, 3, {"clicks": topic("clicks", (1, 2))}, off_two, racks(0, 1, 2))
    assert isinstance(drain, Drain)
    assert drain.under_way == {("clicks", 0)}
