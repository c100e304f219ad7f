"""The replication status of one broker: what it leads, what is under-replicated, whether it may stop. Pure.

Operators, probes and metrics use it instead of working the same out from metadata. No IO here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mainstem_broker.cluster.controller import is_trusted
from mainstem_broker.cluster.view import ClusterView, Topic
from mainstem_broker.replica.partition_state import PartitionState

BLOCKERS_NAMED_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class ReplicationStatus:
    """Counts of partitions; `blockers` says, for up to 20 of them, why this broker should not stop now.

    - `replicas`, `leaders`: here. `catching_up`: replicas here that are not in sync though someone else
      leads them, so that they could be; those whose disk failed could not. A member of the in-sync set that
      stopped uncleanly since counts as out of it, though the controller has not come to say so.
    - `under_replicated`, `under_min_isr`, `offline`: in the whole cluster; `led_under_replicated`: of those
      led here, so that the brokers' numbers add up.
    - Replicas that a move is adding (KIP-455) are missed by nobody until it has ended, as in Kafka, for it
      may take hours: they neither catch up nor make a partition under-replicated. `blockers` do count them:
      a partition that could spare this broker once they are in sync is worth waiting for.
    """

    replicas: int
    leaders: int
    catching_up: int
    under_replicated: int
    led_under_replicated: int
    under_min_isr: int
    offline: int
    blocked: int
    blockers: tuple[str, ...]

    @property
    def may_stop(self) -> bool:
        """Whether no partition would lose availability if this broker stopped now."""
        return self.blocked == 0


class ReplicationCounts:
    """Counts partitions one by one, so that the caller may pause between two of them."""

    def __init__(self, view: ClusterView, broker_id: int) -> None:
        self._view = view
        self._broker_id = broker_id
        self._replicas = self._leaders = self._catching_up = 0
        self._under_replicated = self._led_under_replicated = self._under_min_isr = self._offline = 0
        self._blocked = 0
        self._blockers: list[str] = []

    def add(self, topic: Topic, index: int, min_insync_replicas: int) -> None:
        """Count a partition as the view has it now."""
        broker_id = self._broker_id
        members = topic.assignment.replicas[index]
        state = topic.states.get(index)
        brokers = self._view.brokers_for(topic.topic_id, index)
        led = state is not None and state.leader in brokers
        in_sync = [] if state is None else [one for one in state.isr if is_trusted(state, one, brokers)]
        adding = topic.assignment.adding_replicas.get(index, ())
        count = len(members) - len(adding)
        lacking = len(in_sync) < count
        is_here = broker_id in members
        self._replicas += is_here
        self._under_replicated += lacking
        self._under_min_isr += len(in_sync) < min(min_insync_replicas, count)
        self._offline += not led
        if state is None or not is_here:
            return
        if state.leader == broker_id:
            self._leaders += 1
            self._led_under_replicated += lacking
        elif led and broker_id in brokers and broker_id not in (*in_sync, *adding):
            self._catching_up += 1
        if broker_id not in state.isr or broker_id not in brokers:
            return
        left = sum(broker != broker_id for broker in in_sync)
        reason = _why_not(state, left, len(members), min_insync_replicas)
        if reason is not None:
            self._blocked += 1
            if len(self._blockers) < BLOCKERS_NAMED_MAX:
                self._blockers.append(f"{topic.name}-{index}: {reason}")

    def status(self) -> ReplicationStatus:
        return ReplicationStatus(
            self._replicas,
            self._leaders,
            self._catching_up,
            self._under_replicated,
            self._led_under_replicated,
            self._under_min_isr,
            self._offline,
            self._blocked,
            tuple(self._blockers),
        )


def replication_status_of(
    view: ClusterView, broker_id: int, min_insync_replicas: Callable[[Topic], int]
) -> ReplicationStatus:
    """The replication status of a broker, according to the view."""
    counts = ReplicationCounts(view, broker_id)
    for topic in view.topics.values():
        needed = min_insync_replicas(topic)
        for index in topic.assignment.replicas:
            counts.add(topic, index, needed)
    return counts.status()


def _why_not(state: PartitionState, left: int, replica_count: int, needed: int) -> str | None:
    """Why a partition needs a member of its in-sync set beside the `left` others; None if it does not.

    A topic with a single replica, or with as many as min.insync.replicas asks for, cannot stay available
    while a broker restarts; if that were a reason, no broker of it could ever be restarted.
    """
    if replica_count == 1:
        return None
    if left == 0:
        return f"this is its last in-sync replica (leader epoch {state.leader_epoch})"
    if replica_count > needed > left:
        return f"{left} in-sync replicas would be left, and min.insync.replicas is {needed}"
    return None
