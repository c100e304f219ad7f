from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem_broker.cluster.replication_status import (
    BLOCKERS_NAMED_MAX,
    ReplicationStatus,
    replication_status_of,
)
from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.cluster.znodes import BrokerRegistration, Endpoint, TopicAssignment
from mainstem_broker.replica.partition_state import NO_LEADER, PartitionState

ENDPOINT = Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9092)


def view_of(
    *partitions: tuple[tuple[int, ...], int, tuple[int, ...]],
    live: tuple[int, ...] = (1, 2, 3),
    adding: tuple[int, ...] = (),
) -> ClusterView:
    """Partitions of one topic as (replicas, leader, in-sync set); `adding` come to the first of them."""
    view = ClusterView()
    view.set_brokers([BrokerRegistration(broker, (ENDPOINT,), None) for broker in live])
    replicas = {index: members for index, (members, _, _) in enumerate(partitions)}
    coming = {0: adding} if adding else {}
    view.set_topic(TopicAssignment("t", UUID(int=1), replicas, adding_replicas=coming), {})
    for index, (_, leader, isr) in enumerate(partitions):
        view.set_state("t", index, PartitionState(leader, 0, isr, 1))
    return view


def standing(view: ClusterView, broker_id: int = 1, min_insync_replicas: int = 2) -> ReplicationStatus:
    return replication_status_of(view, broker_id, lambda _: min_insync_replicas)


def test_a_broker_of_a_healthy_cluster_may_stop_and_counts_what_it_holds() -> None:
    result = standing(view_of(((1, 2, 3), 1, (1, 2, 3)), ((2, 3, 1), 2, (2, 3, 1)), ((2, 3), 3, (2, 3))))
    assert result.may_stop
    assert (result.replicas, result.leaders, result.catching_up) == (2, 1, 0)
    assert (result.under_replicated, result.under_min_isr, result.offline) == (0, 0, 0)


@pytest.mark.parametrize(
    ("replicas", "isr", "min_insync_replicas", "reason"),
    [
        ((1, 2, 3), (1, 2), 2, "t-0: 1 in-sync replicas would be left, and min.insync.replicas is 2"),
        ((1, 2, 3), (1,), 1, "t-0: this is its last in-sync replica (leader epoch 0)"),
        ((1, 2), (1,), 2, "t-0: this is its last in-sync replica (leader epoch 0)"),
    ],
)
def test_a_broker_that_a_partition_needs_may_not_stop(
    replicas: tuple[int, ...], isr: tuple[int, ...], min_insync_replicas: int, reason: str
) -> None:
    result = standing(view_of((replicas, 1, isr)), min_insync_replicas=min_insync_replicas)
    assert not result.may_stop
    assert result.blockers == (reason,)


@pytest.mark.parametrize(
    ("replicas", "isr"), [((1,), (1,)), ((1, 2), (1, 2)), ((1, 2, 3), (2, 3)), ((2, 3), (2,))]
)
def test_a_partition_that_cannot_stay_available_or_does_not_count_on_the_broker_blocks_nothing(
    replicas: tuple[int, ...], isr: tuple[int, ...]
) -> None:
    assert standing(view_of((replicas, isr[0], isr))).may_stop


def test_a_replica_that_is_not_in_sync_is_catching_up_only_where_someone_else_leads() -> None:
    led = view_of(((1, 2, 3), 2, (2, 3)))
    assert standing(led).catching_up == 1
    assert standing(view_of(((1, 2), NO_LEADER, (2,)), live=(1,))).catching_up == 0
    assert standing(led, broker_id=2).led_under_replicated == 1


def test_a_replica_that_a_move_adds_is_missed_by_nobody_before_the_move_ends() -> None:
    """R21: a move may take hours; neither is its receiver unready for it, nor its partition in trouble."""
    coming = view_of(((1, 2, 3), 2, (2, 3)), adding=(1,))
    assert standing(coming).catching_up == 0
    assert standing(coming).may_stop
    assert (standing(coming).under_replicated, standing(coming, broker_id=2).led_under_replicated) == (0, 0)
    assert standing(view_of(((1, 2), 2, (2,)), adding=(1,))).under_min_isr == 0
    late = view_of(((1, 2, 3), 2, (2,)), adding=(1,))
    assert (standing(late).under_replicated, standing(late, broker_id=3).catching_up) == (1, 1)


def test_a_dead_broker_counts_neither_as_leader_nor_as_in_sync() -> None:
    result = standing(view_of(((1, 2, 3), 3, (1, 2, 3)), live=(1, 2)))
    assert (result.offline, result.under_replicated, result.under_min_isr) == (1, 1, 0)
    assert not result.may_stop


def test_a_replica_whose_disk_failed_is_not_catching_up() -> None:
    view = view_of(((1, 2, 3), 2, (2, 3)))
    view.set_brokers(
        replace(broker, offline=frozenset({(UUID(int=1), 0)} if number == 1 else ()))
        for number, broker in view.brokers.items()
    )
    result = standing(view)
    assert (result.catching_up, result.under_replicated) == (0, 1)


def test_a_broker_back_from_an_unclean_stop_counts_as_out_of_sync_before_the_controller_says_so() -> None:
    view = view_of(((1, 2, 3), 2, (1, 2, 3)))
    view.set_brokers(
        replace(broker, incarnation=1, last_unclean=1) if number == 1 else broker
        for number, broker in view.brokers.items()
    )
    found_then = PartitionState(2, 0, (1, 2, 3), 1, 1, incarnations=dict.fromkeys((1, 2, 3), 0))
    assert view.set_state("t", 0, found_then)
    assert standing(view).catching_up == 1
    assert standing(view, broker_id=2).blocked == 1
    alone = PartitionState(NO_LEADER, 1, (1,), 1, 2, incarnations={1: 0})
    assert view.set_state("t", 0, alone)
    assert standing(view).blocked == 1, "nobody else has what it has"


def test_only_some_blockers_are_reported_but_all_are_counted() -> None:
    result = standing(view_of(*[((1, 2, 3), 1, (1, 2))] * 50))
    assert result.blocked == 50
    assert len(result.blockers) == BLOCKERS_NAMED_MAX


PARTITIONS = st.tuples(st.permutations([1, 2, 3]), st.integers(1, 3)).map(
    lambda drawn: (tuple(drawn[0]), drawn[0][0], tuple(drawn[0][: drawn[1]]))
)


@given(st.lists(PARTITIONS, max_size=6), st.integers(1, 3))
def test_stopping_a_broker_that_may_stop_makes_no_partition_unavailable_that_could_stay_available(
    partitions: list[tuple[tuple[int, ...], int, tuple[int, ...]]], min_insync_replicas: int
) -> None:
    for broker in (1, 2, 3):
        if standing(view_of(*partitions), broker, min_insync_replicas).may_stop:
            for members, _, isr in partitions:
                left = [one for one in isr if one != broker]
                assert left
                could_stay = broker in isr and len(members) > min_insync_replicas
                assert not could_stay or len(left) >= min_insync_replicas
