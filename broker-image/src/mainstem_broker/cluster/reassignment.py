"""Moving a partition's replicas to other brokers: what is written meanwhile, and when it is done. Pure.

A move is written in `/brokers/topics/T` and nowhere else, so any later controller continues it:

1. A target is requested. The partition's replicas become the target followed by the former replicas;
   `adding_replicas` are the new ones, `removing_replicas` those that are not in the target.
   New replicas follow the leader, which takes them into the in-sync set as it would any other follower.
2. When the whole target is in sync, a leader that is not in it hands over to its first member. Then the
   controller removes the others from the in-sync set and writes the target as the replicas: in one multi, so
   that no broker sees one without the other. Brokers that are no longer replicas delete their files. The
   leader epoch grows, as in Kafka: a broker that becomes a replica again soon starts with an empty log, and
   what it reported before, or has sent, must not count for the new log.

The two lists are independent: the former replicas are all but `adding`, the target is all but `removing`. A
request that replaces or cancels another one only changes the target. A replica that was added and is removed
again is in both lists until the controller has removed it.

An in-sync copy is given up only for a complete target, so a move waits while a broker of its target is down.
Where no in-sync copy has to be removed, as when a move is cancelled early, there is nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from mainstem_broker.cluster.controller import (
    Brokers,
    ElectionPolicy,
    StateChange,
    has_valid_leader,
    stays,
)
from mainstem_broker.cluster.view import ClusterView, Topic
from mainstem_broker.cluster.znodes import TopicAssignment
from mainstem_broker.replica.partition_state import PartitionState


@dataclass(frozen=True, slots=True)
class Move:
    """The replicas of one partition, with those that are added and those that are removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def is_under_way(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        """The former replicas, in their present order."""
        return tuple(broker for broker in self.replicas if broker not in self.adding)

    @property
    def target(self) -> tuple[int, ...]:
        """The future replicas, the preferred leader first."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    def towards(self, target: tuple[int, ...]) -> Move:
        """The move that leads to `target` instead; `target` may be the origin, which takes the move back."""
        others = tuple(broker for broker in self.replicas if broker not in target)
        replicas = target + others
        origin = self.origin
        return Move(replicas, tuple(broker for broker in replicas if broker not in origin), others)


def move_of(assignment: TopicAssignment, partition: int) -> Move:
    return Move(
        assignment.replicas[partition],
        assignment.adding_replicas.get(partition, ()),
        assignment.removing_replicas.get(partition, ()),
    )


def with_moves(assignment: TopicAssignment, moves: Mapping[int, Move]) -> TopicAssignment:
    """The assignment with these partitions' replicas replaced; its version is still the old one."""
    after = {
        partition: moves.get(partition) or move_of(assignment, partition) for partition in assignment.replicas
    }
    return replace(
        assignment,
        replicas={partition: move.replicas for partition, move in after.items()},
        adding_replicas={partition: move.adding for partition, move in after.items() if move.adding},
        removing_replicas={partition: move.removing for partition, move in after.items() if move.removing},
    )


def is_moving(assignment: TopicAssignment, partition: int) -> bool:
    return partition in assignment.adding_replicas or partition in assignment.removing_replicas


def moving_partitions(assignment: TopicAssignment) -> list[int]:
    """Partitions whose replicas are being moved."""
    return sorted(assignment.adding_replicas.keys() | assignment.removing_replicas.keys())


@dataclass(frozen=True, slots=True)
class CompletedMove:
    """What ends the move of a partition: its replicas and its state from then on."""

    replicas: tuple[int, ...]
    change: StateChange


def plan_completions(
    view: ClusterView,
    controller_epoch: int,
    policy_of: Callable[[Topic], ElectionPolicy],
    *,
    topics: Iterable[str] | None = None,
) -> dict[str, list[CompletedMove]]:
    """By topic, all moves that can be ended now; `topics` limits the look, None looks at all."""
    completed: dict[str, list[CompletedMove]] = {}
    for name in view.topics if topics is None else topics:
        topic = view.topics.get(name)
        if topic is None or name in view.pending_deletions or name in view.stopped_topics:
            continue
        for partition in moving_partitions(topic.assignment):
            move, state = move_of(topic.assignment, partition), topic.states.get(partition)
            brokers = view.brokers_for(topic.topic_id, partition)
            new = None if state is None else complete(state, move, brokers, policy_of(topic))
            if state is not None and new is not None:
                new = replace(new, controller_epoch=controller_epoch)
                change = StateChange(name, partition, new, state.partition_epoch)
                completed.setdefault(name, []).append(CompletedMove(move.target, change))
    return completed


def successor(state: PartitionState, move: Move, brokers: Brokers) -> int | None:
    """The broker to which a leader that is moved away has to hand over now; None while it has to stay.

    It does so itself: a leader that is replaced while it is alive may not notice for a while.
    """
    if not move.is_under_way or state.leader in move.target or not _is_reached(state, move, brokers):
        return None
    return move.target[0]


def _is_reached(state: PartitionState, move: Move, brokers: Brokers) -> bool:
    """Whether no replica has to be waited for any more."""
    in_sync = {broker for broker in state.isr if stays(state, broker, brokers)}
    costs_a_copy = not set(move.removing).isdisjoint(state.isr + state.elr)
    needed = set(move.target) if costs_a_copy else set(move.adding).difference(move.removing)
    return needed <= in_sync


def complete(
    state: PartitionState, move: Move, brokers: Brokers, policy: ElectionPolicy
) -> PartitionState | None:
    """The state with which the move ends, or None if it cannot end yet.

    The partition epoch grows in any case, so that a leader that does not know of the end can't change the
    in-sync set any more; the leader epoch if a replica is let go.
    """
    target = move.target
    if not has_valid_leader(state, brokers) or not _is_reached(state, move, brokers):
        return None
    if state.leader not in target:
        return None  # it hands over first, see `successor`
    isr = tuple(broker for broker in state.isr if broker in target)
    after = state.with_isr(isr, {}, policy.min_insync_replicas)
    remaining = after.isr + tuple(broker for broker in after.elr if broker in target)
    if move.removing:
        after = replace(after, leader_epoch=state.leader_epoch + 1, recovering=False)
    return replace(
        after,
        elr=remaining[len(after.isr) :],
        incarnations={
            broker: incarnation for broker, incarnation in after.incarnations.items() if broker in remaining
        },
    )
