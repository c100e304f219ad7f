"""How a broker stands in the cluster: what it leads, what lacks, whether it may stop. Pure, from the view.

Whoever rolls, drains or watches brokers asks for this instead of working it out from metadata. No IO here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mainstem_broker.cluster.controller import is_trusted
from mainstem_broker.cluster.view import ClusterView, Topic
from mainstem_broker.replica.state import PartitionState

BLOCKERS_TOLD_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Standing:
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
        """Whether nobody would lose availability if this broker stopped now."""
        return self.blocked == 0


def standing_of(view: ClusterView, broker_id: int, min_insync_replicas: Callable[[Topic], int]) -> Standing:
    """The standing of a broker, by what the view knows."""
    replicas = leaders = catching_up = 0
    under_replicated = led_under_replicated = under_min_isr = offline = blocked = 0
    blockers: list[str] = []
    for topic in view.topics.values():
        needed = min_insync_replicas(topic)
        for index, members in topic.assignment.replicas.items():
            state = topic.states.get(index)
            brokers = view.brokers_for(topic.topic_id, index)
            led = state is not None and state.leader in brokers
            in_sync = [] if state is None else [one for one in state.isr if is_trusted(state, one, brokers)]
            adding = topic.assignment.adding_replicas.get(index, ())
            count = len(members) - len(adding)
            lacking = len(in_sync) < count
            is_here = broker_id in members
            replicas += is_here
            under_replicated += lacking
            under_min_isr += len(in_sync) < min(needed, count)
            offline += not led
            if state is None or not is_here:
                continue
            if state.leader == broker_id:
                leaders += 1
                led_under_replicated += lacking
            elif led and broker_id in brokers and broker_id not in (*in_sync, *adding):
                catching_up += 1
            if broker_id not in state.isr or broker_id not in brokers:
                continue
            left = sum(broker != broker_id for broker in in_sync)
            reason = _why_not(state, left, len(members), needed)
            if reason is not None:
                blocked += 1
                if len(blockers) < BLOCKERS_TOLD_MAX:
                    blockers.append(f"{topic.name}-{index}: {reason}")
    return Standing(
        replicas,
        leaders,
        catching_up,
        under_replicated,
        led_under_replicated,
        under_min_isr,
        offline,
        blocked,
        tuple(blockers),
    )


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
