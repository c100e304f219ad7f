"""Elections after an outage of ZooKeeper (R41)."""

from __future__ import annotations

from uuid import UUID

from tests.unit.broker.cluster.planned_clusters import (
    CLEAN_RETURN,
    CONTROLLER_EPOCH,
    ENDPOINT,
    FIRST,
    one_partition,
    planned,
)

from mainstem_broker.cluster.controller import ElectionPolicy, StateChange, plan_states
from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.cluster.znodes import BrokerRegistration, TopicAssignment
from mainstem_broker.replica.partition_state import NO_LEADER


def resumed(view: ClusterView, broker: int, incarnation: int, first: int) -> None:
    """A broker is registered in a later session of the same process."""
    others = [each for number, each in view.brokers.items() if number != broker]
    view.set_brokers(
        [
            *others,
            BrokerRegistration(broker, (ENDPOINT,), None, incarnation=incarnation, first_incarnation=first),
        ]
    )


def test_a_leader_whose_session_ended_but_whose_process_did_not_leads_on() -> None:
    view = one_partition({1, 2}, (1, 2), 1, (1, 2))
    resumed(view, 1, incarnation=3, first=0)
    assert planned(view) is None


def test_a_leader_whose_process_is_another_one_is_elected_anew() -> None:
    view = one_partition({1, 2}, (1, 2), 1, (1, 2))
    resumed(view, 1, incarnation=3, first=2)
    state = planned(view)
    assert state is not None
    assert (state.leader, state.leader_epoch, state.incarnations[1]) == (1, 5, 3)


def patiently_planned(view: ClusterView) -> list[StateChange]:
    return plan_states(view, CONTROLLER_EPOCH, lambda _: ElectionPolicy(), is_patient=True)


def test_a_patient_controller_replaces_no_leader_that_is_absent() -> None:
    view = one_partition({2}, (1, 2), 1, (1, 2))
    assert patiently_planned(view) == []
    assert planned(view) is not None


def test_a_patient_controller_takes_nobody_who_is_absent_out_of_an_in_sync_set() -> None:
    view = one_partition({1}, (1, 2), 1, (1, 2))
    assert patiently_planned(view) == []
    assert planned(view) is not None


def test_a_patient_controller_begins_partitions_and_replaces_leaders_that_are_there_but_not_valid() -> None:
    view = one_partition({1: CLEAN_RETURN, 2: FIRST}, (1, 2), 1, (1, 2))
    view.set_topic(TopicAssignment("new", UUID(int=9), {0: (2,)}), {})
    assert {change.topic for change in patiently_planned(view)} == {"t", "new"}


def test_a_patient_controller_elects_where_nobody_leads() -> None:
    view = one_partition({2}, (1, 2), NO_LEADER, (1, 2))
    (change,) = patiently_planned(view)
    assert change.state.leader == 2
