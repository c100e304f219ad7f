"""Elections on request, and those that return leaderships to the preferred leaders. Pure.

- *Preferred*: the first replica of the assignment leads, if it is in sync (KIP-460). The present leader hands
  over to it, so that there are never two; one that is down is replaced by the controller anyway.
- *Unclean*: a partition without a leader gets one from the controller, if need be out of sync, regardless of
  the topic's setting.
- Rebalancing: leaders drift away from the preferred ones as brokers come and go. A broker that leads too few
  of the partitions whose preferred leader it is gets them back (`auto.leader.rebalance.enable`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import IntEnum

from mainstem_broker.cluster.controller import (
    Brokers,
    ElectionPolicy,
    elect,
    elected,
    has_valid_leader,
    stays,
)
from mainstem_broker.cluster.reassignment import is_moving
from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.cluster.znodes import Claim
from mainstem_broker.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    PreferredLeaderNotAvailable,
)
from mainstem_broker.replica.partition_state import NO_LEADER, PartitionState


class ElectionType(IntEnum):
    """The protocol's numbers."""

    PREFERRED = 0
    UNCLEAN = 1


def elect_on_request(
    kind: ElectionType,
    state: PartitionState,
    replicas: tuple[int, ...],
    brokers: Brokers,
    policy: ElectionPolicy,
    claims: Mapping[int, Claim],
) -> PartitionState:
    """The state that follows from the election.

    Raises:
        ElectionNotNeeded: the preferred replica leads, or, for an unclean one, any replica does.
        PreferredLeaderNotAvailable: it is down, about to stop, or out of sync.
        EligibleLeadersNotAvailable: no replica is alive.
    """
    if kind is ElectionType.UNCLEAN:
        if has_valid_leader(state, brokers):
            raise ElectionNotNeeded(f"Broker {state.leader} leads the partition.")
        new = elect(state, replicas, brokers, replace(policy, unclean=True), claims)
        if new is None or new.leader == NO_LEADER:
            raise EligibleLeadersNotAvailable(f"None of the replicas {list(replicas)} is alive.")
        return new
    preferred = replicas[0]
    if state.leader == preferred and has_valid_leader(state, brokers):
        raise ElectionNotNeeded(f"The preferred leader, broker {preferred}, leads the partition.")
    in_sync = tuple(broker for broker in state.isr if stays(state, broker, brokers))
    if preferred not in in_sync:
        raise PreferredLeaderNotAvailable(
            f"The preferred leader, broker {preferred}, is down or not in sync: wait until it has caught up."
        )
    return elected(state, preferred, in_sync, brokers, policy)


def plan_rebalance(view: ClusterView, imbalance_percentage: int) -> list[tuple[str, int]]:
    """Partitions to be led by their preferred leaders again.

    All those of each broker that does not lead more than `imbalance_percentage` of the partitions it is
    preferred for. What is being moved or deleted is left alone.
    """
    preferred: dict[int, int] = {}
    astray: dict[int, list[tuple[str, int]]] = {}
    for name, topic in view.topics.items():
        if name in view.pending_deletions:
            continue
        for partition, state in topic.states.items():
            broker = topic.assignment.replicas[partition][0]
            brokers = view.brokers_for(topic.topic_id, partition)
            if broker not in brokers or is_moving(topic.assignment, partition):
                continue
            preferred[broker] = preferred.get(broker, 0) + 1
            if state.leader != broker and stays(state, broker, brokers) and broker in state.isr:
                astray.setdefault(broker, []).append((name, partition))
    return [
        partition
        for broker, partitions in astray.items()
        if 100 * len(partitions) > imbalance_percentage * preferred[broker]
        for partition in partitions
    ]
