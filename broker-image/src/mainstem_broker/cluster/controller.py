"""What the controller decides: new states for partitions, given the view. Pure; `member.py` writes them.

Every pass looks at the state of things, not at the event that woke it, so a pass may be repeated, and a
new controller carries on where the last one died. Rules of election (Apache Kafka 3.9,
`controller/PartitionStateMachine`):

- A partition without a state is new: the first live replica of its assignment leads at epoch 0, the
  in-sync set is all live replicas.
- A leader that died, or restarted since (its broker epoch grew), is replaced by the first replica of the
  assignment that is live and in sync; the leader epoch grows by one. If there is none, the partition has
  no leader (-1) and keeps its in-sync set, for only its members have every acknowledged record.
- A dead follower leaves the in-sync set; its last member never does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from mainstem_broker.cluster.view import ClusterView, Topic
from mainstem_broker.replica.partition import NO_LEADER, PartitionState


@dataclass(frozen=True, slots=True)
class StateChange:
    """A state to write. `expected_version` is that of the node to replace; None creates it."""

    topic: str
    partition: int
    state: PartitionState
    expected_version: int | None


def plan_states(
    view: ClusterView,
    controller_epoch: int,
    *,
    topics: Iterable[str] | None = None,
    restarted: Collection[int] = (),
) -> list[StateChange]:
    """All states that have to change.

    Args:
        topics: look only at these; None looks at all.
        restarted: brokers that are live again after a death that no pass has seen yet.
    """
    live = view.brokers.keys()
    names = view.topics.keys() if topics is None else topics
    return [
        change
        for name in names
        if name in view.topics and name not in view.pending_deletions
        for change in _plan_topic(view.topics[name], live, restarted, controller_epoch)
    ]


def _plan_topic(
    topic: Topic, live: Collection[int], restarted: Collection[int], controller_epoch: int
) -> Iterator[StateChange]:
    for partition, replicas in topic.assignment.replicas.items():
        state = topic.states.get(partition)
        if state is None:
            present = tuple(broker for broker in replicas if broker in live)
            if present:
                yield StateChange(
                    topic.name, partition, PartitionState(present[0], 0, present, controller_epoch), None
                )
        else:
            new = _elect(state, replicas, live, restarted, controller_epoch)
            if new is not None:
                yield StateChange(topic.name, partition, new, state.partition_epoch)


def _elect(
    state: PartitionState,
    replicas: tuple[int, ...],
    live: Collection[int],
    restarted: Collection[int],
    controller_epoch: int,
) -> PartitionState | None:
    """The state after an election, or None if the present one holds."""
    in_sync = tuple(broker for broker in state.isr if broker in live)
    if state.leader in live and state.leader not in restarted:
        if in_sync == state.isr:
            return None
        leader = state.leader
    else:
        leader = next((broker for broker in replicas if broker in in_sync), NO_LEADER)
        if leader == NO_LEADER:
            if state.leader == NO_LEADER:
                return None
            in_sync = state.isr
    return PartitionState(
        leader, state.leader_epoch + 1, in_sync, controller_epoch, state.partition_epoch + 1, state.recovering
    )
