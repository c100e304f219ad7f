"""Views of small clusters, and what a controller plans for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple
from uuid import UUID

from mainstem_broker.cluster.controller import ElectionPolicy, StateChange, plan_states
from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.cluster.znodes import BrokerRegistration, Endpoint, TopicAssignment
from mainstem_broker.replica.partition_state import PartitionState

CONTROLLER_EPOCH = 9
ENDPOINT = Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9092)


class Life(NamedTuple):
    """How a live broker is registered: its present life, the last one after an unclean stop, its plans."""

    incarnation: int = 0
    last_unclean: int = 0
    leaving: bool = False


FIRST = Life()
CLEAN_RETURN = Life(1)
UNCLEAN_RETURN = Life(1, 1)
LEAVING = Life(leaving=True)
Live = Collection[int] | Mapping[int, Life]


def set_live(view: ClusterView, live: Live) -> None:
    lives = live if isinstance(live, Mapping) else dict.fromkeys(live, FIRST)
    view.set_brokers(
        BrokerRegistration(
            broker,
            (ENDPOINT,),
            None,
            incarnation=life.incarnation,
            last_unclean=life.last_unclean,
            leaving=life.leaving,
        )
        for broker, life in lives.items()
    )


def view_of(live: Live, *topics: tuple[str, dict[int, tuple[int, ...]]]) -> ClusterView:
    view = ClusterView()
    set_live(view, live)
    for number, (name, replicas) in enumerate(topics):
        view.set_topic(TopicAssignment(name, UUID(int=number + 1), replicas), {})
    return view


def state_of(
    leader: int,
    leader_epoch: int,
    isr: tuple[int, ...],
    partition_epoch: int,
    *,
    elr: tuple[int, ...] = (),
    lives: Mapping[int, int] | None = None,
    controller_epoch: int = CONTROLLER_EPOCH,
    recovering: bool = False,
) -> PartitionState:
    """A state whose members were found in sync in their first life, unless `lives` says otherwise."""
    result = dict.fromkeys(isr + elr, 0) | dict(lives or {})
    return PartitionState(
        leader, leader_epoch, isr, controller_epoch, partition_epoch, recovering, elr, result
    )


def one_partition(
    live: Live, replicas: tuple[int, ...], leader: int, isr: tuple[int, ...], elr: tuple[int, ...] = ()
) -> ClusterView:
    """t-0 at leader epoch 4, partition epoch 6, written by an earlier controller."""
    view = view_of(live, ("t", {0: replicas}))
    view.set_state("t", 0, state_of(leader, 4, isr, 6, elr=elr, controller_epoch=1))
    return view


def plan(view: ClusterView, policy: ElectionPolicy | None = None) -> list[StateChange]:
    chosen = policy or ElectionPolicy()
    return plan_states(view, CONTROLLER_EPOCH, lambda _: chosen)


def planned(view: ClusterView, policy: ElectionPolicy | None = None) -> PartitionState | None:
    """The new state of the one partition there is, or None if the present one holds."""
    changes = plan(view, policy)
    if not changes:
        return None
    (change,) = changes
    assert (change.topic, change.partition) == ("t", 0)
    return change.state


def carry_out(view: ClusterView, changes: list[StateChange]) -> None:
    """What ZooKeeper would do: versions must match, and grow by one."""
    for change in changes:
        current = view.topics[change.topic].states.get(change.partition)
        assert change.expected_version == (None if current is None else current.partition_epoch)
        assert change.state.partition_epoch == (0 if current is None else current.partition_epoch + 1)
        assert view.set_state(change.topic, change.partition, change.state)
