"""Which replicas move when the number of brokers or of replicas changes. Pure.

Moves are requests that brokers execute: they never give up an in-sync copy for anything less, so a move can
be requested at any time, and requested again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from mainstem.kafka.reassignment_plan import plan_moves
from mainstem_operator.brokers.topic_state import MoveState, Replicas, TopicPartition, TopicState
from mainstem_operator.proofs import Refusal


@dataclass(frozen=True, slots=True)
class Drain:
    """Brokers to be emptied: `targets` are moves to ask for now, `held` what they hold still.

    `under_way` are the moves that take replicas off them already.
    """

    brokers: tuple[int, ...]
    targets: Mapping[TopicPartition, Replicas]
    held: Mapping[int, int]
    under_way: frozenset[TopicPartition] = frozenset()


def replicas_held(topics: Mapping[str, TopicState]) -> dict[int, int]:
    """How many replicas each broker holds."""
    held: dict[int, int] = {}
    for topic in topics.values():
        for partition in topic.partitions.values():
            for broker in partition.replicas:
                held[broker] = held.get(broker, 0) + 1
    return held


def plan_drain(
    keep: int,
    present: int,
    topics: Mapping[str, TopicState],
    moves: Mapping[TopicPartition, MoveState],
    racks: Mapping[int, str | None],
) -> Drain | Refusal | None:
    """How to empty the brokers from `keep` up to `present` - 1; None if there are none.

    Args:
        racks: the live brokers, each with its rack.
    """
    leaving = tuple(range(keep, present))
    if not leaving:
        return None
    staying = {broker: rack for broker, rack in racks.items() if broker < keep}
    if len(staying) < keep:
        gone = next(broker for broker in range(keep) if broker not in racks)
        return Refusal(
            f"Broker {gone} is not alive, and replicas would move to it: nothing moves until it is back."
        )
    current = _targets(topics, moves)
    concerned = {key: replicas for key, replicas in current.items() if max(replicas, default=0) >= keep}
    for (topic, partition), replicas in sorted(concerned.items()):
        if len(replicas) > keep:
            return Refusal(
                f"{topic}-{partition} has {len(replicas)} replicas, and only {keep} brokers would remain:"
                " lower its number of replicas first."
            )
    elsewhere = [replicas for key, replicas in current.items() if key not in concerned]
    targets = plan_moves(concerned, staying, None, elsewhere, keeping=True)
    held = {broker: count for broker, count in replicas_held(topics).items() if broker in leaving}
    return Drain(leaving, targets, held, frozenset(moving_off(leaving, moves)))


def plan_removal(keep: int, present: int) -> Drain:
    """The same where brokers are removed with their replicas: nothing moves, and no request is sent."""
    return Drain(tuple(range(keep, present)), {}, {})


def plan_replication(
    topic: TopicState,
    replicas: int,
    topics: Mapping[str, TopicState],
    moves: Mapping[TopicPartition, MoveState],
    racks: Mapping[int, str | None],
) -> dict[TopicPartition, Replicas]:
    """The moves that give every partition of `topic` so many replicas, but for those under way."""
    current = _targets(topics, moves)
    concerned = {key: held for key, held in current.items() if key[0] == topic.name and len(held) != replicas}
    if not concerned:
        return {}
    elsewhere = [held for key, held in current.items() if key not in concerned]
    return plan_moves(concerned, racks, replicas, elsewhere, keeping=True)


def moving_off(brokers: Collection[int], moves: Mapping[TopicPartition, MoveState]) -> set[TopicPartition]:
    """The moves under way that take replicas off these brokers."""
    return {key for key, move in moves.items() if move.removing & set(brokers)}


def moving_to(
    replicas: int, topic: TopicState, moves: Mapping[TopicPartition, MoveState]
) -> set[TopicPartition]:
    """The moves under way that give partitions of a topic more replicas than they had: just so many."""
    keys = [(topic.name, number) for number in topic.partitions]
    return {
        key for key in keys if key in moves and len(moves[key].target) == replicas > len(moves[key].origin)
    }


def _targets(
    topics: Mapping[str, TopicState], moves: Mapping[TopicPartition, MoveState]
) -> dict[TopicPartition, Replicas]:
    """Where every partition's replicas are, or will be when the moves under way have ended."""
    return {
        (topic.name, number): moves[topic.name, number].target
        if (topic.name, number) in moves
        else partition.replicas
        for topic in topics.values()
        for number, partition in topic.partitions.items()
    }
