"""What the controller decides: new states for partitions, given the view. Pure; `member.py` writes them.

A pass decides from the present state, not from the event that started it. It may therefore be repeated, and
a new controller continues where the last one stopped.

A broker is *live* for a partition if it is registered and the disk of its replica has not failed. It is
*trusted* if it is also free of unclean stops since it was last found in sync: after an unclean stop, the
end of its log may be missing (KIP-903, KIP-966). The rules, in their order:

- A partition without a state is new. The first live replica of its assignment leads at epoch 0, and the
  in-sync set holds all live replicas.
- A leader keeps the leadership while the incarnation that was elected is live. Members of the in-sync set
  that are no longer trusted leave it, which is not an election.
- Members that are *leaving* (they stop soon, cleanly) leave the set if another member stays. A leader that
  is leaving hands over by itself (`heir_of`): if the controller replaced it, it might not notice for a
  while, and the partition would have two leaders.
- Otherwise the first replica of the assignment that is trusted and in sync leads. If there is none, the
  first trusted eligible leader replica leads, and is the in-sync set. The leader epoch grows by one.
- If all candidates are live and none is trusted (the whole set stopped uncleanly), each claims the end of
  its log, and the longest log leads: the latest epoch first, then the highest offset.
- Otherwise, if unclean election is allowed, the first live replica leads, and the state is `recovering`.
- A state from before a restore of ZooKeeper is doubted first (`restores.py`): all replicas are candidates,
  none is trusted, and an unclean election is held only on request. The longest log that was claimed leads.
- Otherwise there is no leader (-1). The sets stay as they are, because only their members have every
  acknowledged record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mainstem_broker.cluster.restores import doubted, is_doubted, is_outdated
from mainstem_broker.cluster.view import ClusterView, Topic
from mainstem_broker.cluster.znodes import NO_LOG, BrokerRegistration, Claim
from mainstem_broker.replica.partition_state import NO_LEADER, PartitionState

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
    is_patient: bool = False,
) -> list[StateChange]:
    """All states that have to change; `topics` limits the look, None looks at all.

    With `is_patient`, as after an outage of ZooKeeper, brokers that are absent keep what they have.
    """
    looks = look_at_states(view, controller_epoch, policy_of, topics=topics, is_patient=is_patient)
    return [change for change in looks if change is not None]


def look_at_states(
    view: ClusterView,
    controller_epoch: int,
    policy_of: Callable[[Topic], ElectionPolicy],
    *,
    topics: Iterable[str] | None = None,
    is_patient: bool = False,
) -> Iterator[StateChange | None]:
    """As `plan_states`, partition by partition, so that the caller may pause: None for one that stays."""
    for name in tuple(view.topics) if topics is None else topics:
        topic = view.topics.get(name)
        if topic is None or name in view.pending_deletions or name in view.stopped_topics:
            continue
        for change in _plan_topic(topic, view, policy_of(topic), controller_epoch):
            yield None if change is not None and is_patient and _waits(change, view) else change


def _waits(change: StateChange, view: ClusterView) -> bool:
    state = view.topics[change.topic].states.get(change.partition)
    return state is not None and waits_for_absent(state, view.brokers)


def _plan_topic(
    topic: Topic, view: ClusterView, policy: ElectionPolicy, controller_epoch: int
) -> Iterator[StateChange | None]:
    """For each partition its new state, or None if the present one holds."""
    for partition, replicas in topic.assignment.replicas.items():
        brokers = view.brokers_for(topic.topic_id, partition)
        state = topic.states.get(partition)
        if state is None:
            present = tuple(broker for broker in replicas if broker in brokers)
            if present:
                lives = {broker: brokers[broker].incarnation for broker in present}
                first = PartitionState(present[0], 0, present, controller_epoch, incarnations=lives)
                yield StateChange(topic.name, partition, first, None)
            else:
                yield None
            continue
        if is_outdated(state, view.restores):
            new: PartitionState | None = doubted(state, replicas, view.restores.count)
        else:
            # After a restore brokers come one after another, and the first one may have the oldest log.
            allowed = replace(policy, unclean=False) if is_doubted(state) else policy
            new = elect(state, replicas, brokers, allowed, topic.claims.get(partition, {}))
        if new is None:
            yield None
        else:
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
    if has_valid_leader(state, brokers):
        in_sync = tuple(
            broker for broker in state.isr if broker == state.leader or stays(state, broker, brokers)
        )
        if len(in_sync) == 1 and brokers[state.leader].leaving:
            # All other candidates leave as well.
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
        return elected(_above(state, claims), longest, (longest,), brokers, policy)
    if policy.unclean:
        present = [broker for broker in replicas if broker in brokers]
        if present:
            live = _furthest(present, _valid_claims(present, brokers, claims) if is_doubted(state) else {})
            return replace(elected(_above(state, claims), live, (live,), brokers, policy), recovering=True)
    if state.leader == NO_LEADER:
        return None
    return replace(
        state,
        leader=NO_LEADER,
        leader_epoch=state.leader_epoch + 1,
        partition_epoch=state.partition_epoch + 1,
    )


def may_stop(view: ClusterView, broker: int) -> bool:
    """Whether no partition depends on `broker` as leader or in-sync replica that others could take over."""
    return not any(
        broker in (state.leader, *state.isr)
        and _others_stay(state, broker, view.brokers_for(topic.topic_id, partition))
        for topic in view.topics.values()
        for partition, state in topic.states.items()
    )


def _others_stay(state: PartitionState, broker: int, brokers: Brokers) -> bool:
    return any(other != broker and stays(state, other, brokers) for other in state.isr)


def heir_of(state: PartitionState, replicas: tuple[int, ...], brokers: Brokers) -> int | None:
    """The successor of a leader that is leaving: the first in-sync replica that stays, if one does."""
    heirs = (broker for broker in replicas if broker in state.isr and broker != state.leader)
    return next((broker for broker in heirs if stays(state, broker, brokers)), None)


def stays(state: PartitionState, broker: int, brokers: Brokers) -> bool:
    """Whether `broker` is trusted and is not about to stop."""
    return is_trusted(state, broker, brokers) and not brokers[broker].leaving


def is_trusted(state: PartitionState, broker: int, brokers: Brokers) -> bool:
    """Whether `broker` is live and has not stopped uncleanly since it was found in sync."""
    registration = brokers.get(broker)
    if registration is None:
        return False
    return state.incarnations.get(broker, registration.incarnation) >= registration.last_unclean


def must_claim(state: PartitionState, brokers: Brokers) -> bool:
    """Whether only the lengths of the logs can decide who leads: all candidates have stopped uncleanly.

    Of a doubted state that is so in any case, also before all candidates are there.
    """
    members = state.isr + state.elr
    return is_doubted(state) or (
        len(members) > 1
        and not has_valid_leader(state, brokers)
        and all(broker in brokers and not is_trusted(state, broker, brokers) for broker in members)
    )


def has_valid_leader(state: PartitionState, brokers: Brokers) -> bool:
    """Whether the leader is live and its process was elected, in this session or an earlier one."""
    registration = brokers.get(state.leader)
    incarnation = state.incarnations.get(state.leader)
    return registration is not None and incarnation is not None and registration.holds(incarnation)


def waits_for_absent(state: PartitionState, brokers: Brokers) -> bool:
    """Whether only the absence of brokers that may register again in a moment calls for another state."""
    if state.leader == NO_LEADER:
        return False
    return state.leader not in brokers or (
        has_valid_leader(state, brokers) and any(broker not in brokers for broker in state.isr)
    )


def _longest(
    state: PartitionState, replicas: tuple[int, ...], brokers: Brokers, claims: Mapping[int, Claim]
) -> int | None:
    members = state.isr + state.elr
    if len(members) == 1 and not is_doubted(state):
        return members[0] if members[0] in brokers else None
    if not must_claim(state, brokers):
        return None
    valid = _valid_claims(members, brokers, claims)
    if len(valid) < len(members):
        return None
    order = {broker: place for place, broker in enumerate(replicas)}
    furthest = _furthest(sorted(valid, key=lambda broker: order.get(broker, len(order))), valid)
    # A broker that did not know of the restore may have created an empty log. It does not count as one where
    # another replica has none: the records may be elsewhere.
    is_empty = valid[furthest].log_end_offset <= 0
    if is_doubted(state) and is_empty and not all(claim.has_log for claim in valid.values()):
        return None
    return furthest


def _valid_claims(members: Iterable[int], brokers: Brokers, claims: Mapping[int, Claim]) -> dict[int, Claim]:
    """The claims of those that are live, in their present incarnations."""
    return {
        broker: claims[broker]
        for broker in members
        if broker in claims
        and broker in brokers
        and claims[broker].incarnation == brokers[broker].incarnation
    }


def _furthest(members: Sequence[int], claims: Mapping[int, Claim]) -> int:
    """The one of the longest log; without claims, and among equals, the first one."""

    def length(broker: int) -> tuple[int, int]:
        claim = claims.get(broker)
        return (NO_LOG, NO_LOG) if claim is None else (claim.last_epoch, claim.log_end_offset)

    return max(members, key=length)


def _above(state: PartitionState, claims: Mapping[int, Claim]) -> PartitionState:
    """The state with an epoch that is not below those of the logs; without a restore of ZooKeeper none is."""
    epochs = (claim.last_epoch for claim in claims.values())
    return replace(state, leader_epoch=max(state.leader_epoch, *epochs, 0))


def elected(
    state: PartitionState, leader: int, isr: tuple[int, ...], brokers: Brokers, policy: ElectionPolicy
) -> PartitionState:
    """The state after `leader` was elected, with `isr` in sync."""
    incarnations = {leader: brokers[leader].incarnation}
    return replace(
        state.with_isr(isr, incarnations, policy.min_insync_replicas),
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        recovering=False,
    )
