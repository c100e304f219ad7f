"""Moving a partition's replicas to other brokers: what is written meanwhile, and when it is done. Pure.

A move is written in `/brokers/topics/T` and nowhere else, so whoever is controller carries it on:

1. Somebody wishes for a target. The partition's replicas become the target followed by those of before;
   `adding_replicas` are those that were not there before, `removing_replicas` those that the target lacks.
   New replicas follow the leader, which takes them into the in-sync set as it would any other follower.
2. When the whole target is in sync, a leader that is not in it hands over to its first member. Then the
   controller lets the others out of the in-sync set and writes the target as the replicas: one multi, so
   nobody ever sees one without the other. Brokers that are no longer named delete their files. The leader
   epoch grows, as in Kafka: one that is named again soon starts with nothing, and what it told before, or has
   on its way, must not pass for what it has.

The two lists do not depend on each other: what was there before is all but `adding`, what is wanted is all
but `removing`. A wish that replaces another one, or takes it back, only changes the target; a replica
that was added and is to go again stands in both lists until the controller lets go of it.

An in-sync copy is given up only for a complete target, so a move waits while a broker of its target is down.
Where no in-sync copy has to go, as when a move is taken back early, there is nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from mainstem_broker.cluster.controller import (
    Brokers,
    ElectionPolicy,
    StateChange,
    holds_office,
    stays,
)
from mainstem_broker.cluster.view import ClusterView, Topic
from mainstem_broker.cluster.znodes import TopicAssignment
from mainstem_broker.replica.state import PartitionState


@dataclass(frozen=True, slots=True)
class Move:
    """The replicas of one partition, with those that are coming and those that are to go."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def is_under_way(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        """Who held the partition before; their order is that of now."""
        return tuple(broker for broker in self.replicas if broker not in self.adding)

    @property
    def target(self) -> tuple[int, ...]:
        """Who is to hold the partition, the preferred leader first."""
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
        if topic is None or name in view.pending_deletions:
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
    """To whom a leader that is moved away has to hand over now; None while it has to go on.

    It does so itself: a leader that others replace while it lives may not hear of it for a while.
    """
    if not move.is_under_way or state.leader in move.target or not _is_reached(state, move, brokers):
        return None
    return move.target[0]


def _is_reached(state: PartitionState, move: Move, brokers: Brokers) -> bool:
    """Whether nobody has to be waited for any more."""
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
    if not holds_office(state, brokers) or not _is_reached(state, move, brokers):
        return None
    if state.leader not in target:
        return None  # it hands over first, see `successor`
    isr = tuple(broker for broker in state.isr if broker in target)
    after = state.with_isr(isr, {}, policy.min_insync_replicas)
    known = after.isr + tuple(broker for broker in after.elr if broker in target)
    if move.removing:
        after = replace(after, leader_epoch=state.leader_epoch + 1, recovering=False)
    return replace(
        after,
        elr=known[len(after.isr) :],
        incarnations={broker: life for broker, life in after.incarnations.items() if broker in known},
    )
