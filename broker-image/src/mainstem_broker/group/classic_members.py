"""Members of the classic protocol in a group of KIP-848, while one kind of client replaces the other. Pure.

Lives here: what JoinGroup, SyncGroup, Heartbeat and LeaveGroup mean there. Must not: turning a group of one
kind into one of the other (`migration.py`).

Such a member takes the same steps as any other, only in other words: it joins, and is given an epoch as its
generation; it syncs, and is given what it has (the broker assigns: nobody is leader); its heartbeats are
answered with REBALANCE_IN_PROGRESS when there is a step for it to take. What it says that it owns (KIP-429)
it keeps while it joins; a member that revokes all before it joins (eagerly) owns nothing then, and is given
everything that is its own at once.
"""

from __future__ import annotations

from mainstem_broker.errors import (
    IllegalGeneration,
    InconsistentGroupProtocol,
    MemberIdRequired,
    ProtocolError,
    RebalanceInProgress,
    UnknownMemberId,
)
from mainstem_broker.group.consumer_group import ConsumerGroup
from mainstem_broker.group.consumer_member import ConsumerMember
from mainstem_broker.group.consumer_records import (
    ClassicProtocols,
    ConsumerMemberMetadata,
    MemberState,
    Partitions,
)
from mainstem_broker.group.embedded_protocol import CONSUMER_PROTOCOL_TYPE, Subscription, encode_assignment
from mainstem_broker.group.messages import Decisions, Join, JoinAnswer, Sync, SyncAnswer


def join(group: ConsumerGroup, asked: Join, now_ms: int) -> Decisions:
    """Take a JoinGroup; it is answered as soon as what it changes is stored."""
    try:
        answer = _join(group, asked, now_ms)
    except ProtocolError as error:
        answer = JoinAnswer(asked.member_id, error.code)
    group.answer(asked.request, answer)
    return group.decided()


def sync(group: ConsumerGroup, asked: Sync, now_ms: int) -> Decisions:
    """Take a SyncGroup; likewise. What it assigns, if anything, does not count."""
    try:
        answer = _sync(group, asked, now_ms)
    except ProtocolError as error:
        answer = SyncAnswer(error.code)
    group.answer(asked.request, answer)
    return group.decided()


def heartbeat(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int, now_ms: int
) -> None:
    """Note a sign of life.

    Raises:
        UnknownMemberId, FencedInstanceId, IllegalGeneration: it has to join anew, or end.
        RebalanceInProgress: it has to join again.
    """
    member = _require(group, member_id, instance_id, generation)
    group.look_at_topics()
    group.renew(member, now_ms)
    if _has_a_step_to_take(group, member):
        _expect(group, member, now_ms)
        raise RebalanceInProgress


def leave(group: ConsumerGroup, member_id: str, instance_id: str | None) -> Decisions:
    """Take a member out. An administrator names a static one, of either kind, by its instance id alone.

    Raises:
        UnknownMemberId, FencedInstanceId: there is no such member.
    """
    static = group.static_member(instance_id)
    if not member_id and static is not None:
        member = static
    else:
        member = group.require(member_id, instance_id)
        _require_classic(member)
    group.remove([member])
    return group.decided()


def check_commit(group: ConsumerGroup, member: ConsumerMember, generation: int, now_ms: int) -> None:
    """Let a commit of offsets pass, which is a sign of life too.

    Raises:
        IllegalGeneration: it is from another generation.
    """
    _require_generation(member, generation)
    group.renew(member, now_ms)


def _join(group: ConsumerGroup, asked: Join, now_ms: int) -> JoinAnswer:
    known = _find(group, asked)
    protocols = _require_protocols(group, asked, known)
    if known is None:
        group.require_place()
        if asked.must_know_id and not asked.member_id and asked.instance_id is None:
            # Nobody waits for it: there is no phase that it could hold up.
            return JoinAnswer(asked.fresh_id, MemberIdRequired.code)
    _, metadata = protocols[0]
    subscription = Subscription.decode(metadata)
    described = ConsumerMemberMetadata(
        asked.instance_id,
        subscription.rack_id,
        asked.client_id,
        asked.client_host,
        tuple(sorted(set(subscription.topics))),
        None,
        asked.rebalance_timeout_ms,
        None,
        ClassicProtocols(asked.session_timeout_ms, protocols),
    )
    member = group.admit(asked.member_id or asked.fresh_id, described, known)
    group.reconcile(member, _owned(group, subscription), now_ms)
    group.renew(member, now_ms)
    member.act_by_ms = None
    _expect(group, member, now_ms)
    return JoinAnswer(
        member.member_id,
        0,
        member.current.epoch,
        CONSUMER_PROTOCOL_TYPE,
        protocols[0][0],
    )


def _find(group: ConsumerGroup, asked: Join) -> ConsumerMember | None:
    """The member that asks, or whose place it takes; None: it is a new one."""
    static = group.static_member(asked.instance_id)
    if not asked.member_id:
        return static
    if asked.instance_id is not None:
        return group.require(asked.member_id, asked.instance_id)
    return group.members.get(asked.member_id)


def _require_protocols(
    group: ConsumerGroup, asked: Join, known: ConsumerMember | None
) -> tuple[tuple[str, bytes], ...]:
    """What it may speak, its favourite first, of which all classic members know one."""
    if asked.protocol_type != CONSUMER_PROTOCOL_TYPE or not asked.protocols:
        raise InconsistentGroupProtocol("The group's members are consumers, and have a protocol.")
    common = {name for name, _ in asked.protocols}
    for member in group.members.values():
        if member is not known and member.metadata.classic is not None:
            common &= {name for name, _ in member.metadata.classic.protocols}
    if not common:
        raise InconsistentGroupProtocol("The member has no protocol in common with all others.")
    for _, metadata in asked.protocols:
        try:
            Subscription.decode(metadata)
        except ValueError as error:
            raise InconsistentGroupProtocol(
                f"The metadata of a protocol is no subscription: {error}."
            ) from None
    return asked.protocols


def _owned(group: ConsumerGroup, subscription: Subscription) -> Partitions:
    """What it still has by its own word, of whatever generation: who says so may be reading it."""
    ids = {topic: group.topics.topic_id(topic) for topic, _ in subscription.owned}
    return frozenset(
        (topic_id, number) for topic, number in subscription.owned if (topic_id := ids[topic]) is not None
    )


def _sync(group: ConsumerGroup, asked: Sync, now_ms: int) -> SyncAnswer:
    member = _require(group, asked.member_id, asked.instance_id, asked.generation)
    assert member.metadata.classic is not None
    name, metadata = member.metadata.classic.protocols[0]
    for said, known in ((asked.protocol_type, CONSUMER_PROTOCOL_TYPE), (asked.protocol, name)):
        if said is not None and said != known:
            raise InconsistentGroupProtocol(f"The group has agreed on '{known}', not on '{said}'.")
    if group.epoch > member.current.epoch and member.current.state is not MemberState.UNREVOKED_PARTITIONS:
        _expect(group, member, now_ms)
        raise RebalanceInProgress
    member.act_by_ms = None
    group.renew(member, now_ms)
    partitions = (
        (topic, number)
        for topic_id, number in member.current.assigned
        if (topic := group.topics.name(topic_id)) is not None
    )
    version = Subscription.decode(metadata).version
    return SyncAnswer(0, CONSUMER_PROTOCOL_TYPE, name, encode_assignment(partitions, version))


def _require(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> ConsumerMember:
    member = group.require(member_id, instance_id)
    _require_classic(member)
    _require_generation(member, generation)
    return member


def _require_classic(member: ConsumerMember) -> None:
    if not member.is_classic:
        raise UnknownMemberId("The member speaks the consumer protocol: it has other requests.")


def _require_generation(member: ConsumerMember, generation: int) -> None:
    if generation != member.current.epoch:
        raise IllegalGeneration(f"The member is at generation {member.current.epoch}, not {generation}.")


def _has_a_step_to_take(group: ConsumerGroup, member: ConsumerMember) -> bool:
    match member.current.state:
        case MemberState.UNREVOKED_PARTITIONS:
            return True
        case MemberState.UNRELEASED_PARTITIONS:
            return member.current.epoch < group.epoch or not group.waits_for_others(member)
    return member.current.epoch < group.epoch


def _expect(group: ConsumerGroup, member: ConsumerMember, now_ms: int) -> None:
    """Have it join, or sync, within its rebalance timeout."""
    if member.act_by_ms is None:
        member.act_by_ms = now_ms + member.metadata.rebalance_timeout_ms
        group.wake_by(member.act_by_ms)
