"""What the controller decides: new states for partitions, given the view. Pure; `member.py` writes them.

Every pass looks at the state of things, not at the event that woke it, so a pass may be repeated, and a
new controller carries on where the last one died.

A broker lives, for a partition, if it is registered and the disk of its replica has not failed. It is
*trusted* for a partition if it lives, and if no life of its since the one that was found in sync
began after an unclean stop: such a one may have lost the end of its log (KIP-903, KIP-966). Rules:

- A partition without a state is new: the first live replica of its assignment leads at epoch 0, the
  in-sync set is all live replicas.
- A leader holds its office while it lives the life it was elected in. Members of the in-sync set that are no
  longer trusted leave it; that alone is no election.
- Members that are *leaving* (they stop soon, cleanly) leave the set, if another member stays. A leader that
  is leaving hands over by itself (`heir_of`): one that others replace while it lives may not hear of it for
  a while, and there would be two.
- Else the first trusted replica of the assignment leads that is in sync; failing that, the first trusted
  eligible leader replica, with itself as the in-sync set. The leader epoch grows by one.
- If all who might lead live, and none is trusted (the whole set stopped uncleanly), each claims how far its
  log reaches, and the longest leads: the latest epoch, then the highest offset.
- Else, only if unclean election is allowed, the first live replica leads and the state says `recovering`.
- Else there is no leader (-1), and the sets stay as they are, for only their members have every
  acknowledged record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from mainstem_broker.cluster.view import ClusterView, Topic
from mainstem_broker.cluster.znodes import BrokerRegistration, Claim
from mainstem_broker.replica.state import NO_LEADER, PartitionState

Brokers = Mapping[int, BrokerRegistration]


@dataclass(frozen=True, slots=True)
class ElectionPolicy:
    """A topic's settings that elections depend on."""

    min_insync_replicas: int = 1
    unclean: bool = False


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
    policy_of: Callable[[Topic], ElectionPolicy],
    *,
    topics: Iterable[str] | None = None,
) -> list[StateChange]:
    """All states that have to change; `topics` limits the look, None looks at all."""
    names = view.topics.keys() if topics is None else topics
    return [
        change
        for name in names
        if name in view.topics and name not in view.pending_deletions
        for change in _plan_topic(view.topics[name], view, policy_of(view.topics[name]), controller_epoch)
    ]


def _plan_topic(
    topic: Topic, view: ClusterView, policy: ElectionPolicy, controller_epoch: int
) -> Iterator[StateChange]:
    for partition, replicas in topic.assignment.replicas.items():
        brokers = view.brokers_for(topic.topic_id, partition)
        state = topic.states.get(partition)
        if state is None:
            present = tuple(broker for broker in replicas if broker in brokers)
            if present:
                lives = {broker: brokers[broker].incarnation for broker in present}
                first = PartitionState(present[0], 0, present, controller_epoch, incarnations=lives)
                yield StateChange(topic.name, partition, first, None)
            continue
        new = elect(state, replicas, brokers, policy, topic.claims.get(partition, {}))
        if new is not None:
            new = replace(new, controller_epoch=controller_epoch)
            yield StateChange(topic.name, partition, new, state.partition_epoch)


def elect(
    state: PartitionState,
    replicas: tuple[int, ...],
    brokers: Brokers,
    policy: ElectionPolicy,
    claims: Mapping[int, Claim],
) -> PartitionState | None:
    """The state that should follow, or None if the present one holds."""
    if holds_office(state, brokers):
        in_sync = tuple(
            broker for broker in state.isr if broker == state.leader or stays(state, broker, brokers)
        )
        if len(in_sync) == 1 and brokers[state.leader].leaving:
            # Nobody is left to hand over to but those that leave as well.
            in_sync = tuple(broker for broker in state.isr if is_trusted(state, broker, brokers))
        return None if in_sync == state.isr else state.with_isr(in_sync, {}, policy.min_insync_replicas)
    in_sync = tuple(broker for broker in state.isr if stays(state, broker, brokers)) or tuple(
        broker for broker in state.isr if is_trusted(state, broker, brokers)
    )
    for leader in replicas:
        if leader in in_sync:
            return elected(state, leader, in_sync, brokers, policy)
    for leader in replicas:
        if leader in state.elr and is_trusted(state, leader, brokers):
            return elected(state, leader, (leader,), brokers, policy)
    longest = _longest(state, replicas, brokers, claims)
    if longest is not None:
        return elected(state, longest, (longest,), brokers, policy)
    if policy.unclean:
        live = next((broker for broker in replicas if broker in brokers), None)
        if live is not None:
            return replace(elected(state, live, (live,), brokers, policy), recovering=True)
    if state.leader == NO_LEADER:
        return None
    return replace(
        state,
        leader=NO_LEADER,
        leader_epoch=state.leader_epoch + 1,
        partition_epoch=state.partition_epoch + 1,
    )


def may_stop(view: ClusterView, broker: int) -> bool:
    """Whether no partition is led by `broker`, or in sync there, that others could carry on without it."""
    return not any(
        broker in (state.leader, *state.isr)
        and _others_stay(state, broker, view.brokers_for(topic.topic_id, partition))
        for topic in view.topics.values()
        for partition, state in topic.states.items()
    )


def _others_stay(state: PartitionState, broker: int, brokers: Brokers) -> bool:
    return any(other != broker and stays(state, other, brokers) for other in state.isr)


def heir_of(state: PartitionState, replicas: tuple[int, ...], brokers: Brokers) -> int | None:
    """To whom a leader that is leaving hands over: the first in-sync replica that stays, if one does."""
    heirs = (broker for broker in replicas if broker in state.isr and broker != state.leader)
    return next((broker for broker in heirs if stays(state, broker, brokers)), None)


def stays(state: PartitionState, broker: int, brokers: Brokers) -> bool:
    """Whether `broker` is trusted and is not about to stop."""
    return is_trusted(state, broker, brokers) and not brokers[broker].leaving


def is_trusted(state: PartitionState, broker: int, brokers: Brokers) -> bool:
    """Whether `broker` lives and has not stopped uncleanly since it was found in sync."""
    registration = brokers.get(broker)
    if registration is None:
        return False
    return state.incarnations.get(broker, registration.incarnation) >= registration.last_unclean


def must_claim(state: PartitionState, brokers: Brokers) -> bool:
    """Whether only the lengths of the logs can tell who may lead: all who might have stopped uncleanly."""
    members = state.isr + state.elr
    return (
        len(members) > 1
        and not holds_office(state, brokers)
        and all(broker in brokers and not is_trusted(state, broker, brokers) for broker in members)
    )


def holds_office(state: PartitionState, brokers: Brokers) -> bool:
    """Whether the leader lives the life in which it was elected."""
    registration = brokers.get(state.leader)
    return registration is not None and state.incarnations.get(state.leader) == registration.incarnation


def _longest(
    state: PartitionState, replicas: tuple[int, ...], brokers: Brokers, claims: Mapping[int, Claim]
) -> int | None:
    members = state.isr + state.elr
    if len(members) == 1:
        return members[0] if members[0] in brokers else None
    if not must_claim(state, brokers):
        return None
    valid = {
        broker: claims[broker]
        for broker in members
        if broker in claims and claims[broker].incarnation == brokers[broker].incarnation
    }
    if len(valid) < len(members):
        return None
    order = {broker: place for place, broker in enumerate(replicas)}
    return max(
        valid,
        key=lambda broker: (
            valid[broker].last_epoch,
            valid[broker].log_end_offset,
            -order.get(broker, len(order)),
        ),
    )


def elected(
    state: PartitionState, leader: int, isr: tuple[int, ...], brokers: Brokers, policy: ElectionPolicy
) -> PartitionState:
    """The state after `leader` was elected, with `isr` in sync."""
    lives = {leader: brokers[leader].incarnation}
    return replace(
        state.with_isr(isr, lives, policy.min_insync_replicas),
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        recovering=False,
    )
