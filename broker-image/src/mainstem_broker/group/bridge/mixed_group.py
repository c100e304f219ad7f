"""A consumer group in which members of the classic protocol take part, while clients are replaced. Pure.

Belongs here: what JoinGroup, SyncGroup, Heartbeat and LeaveGroup mean in such a group. Turning a group of one
kind into the other belongs to `migration.py`.

A classic member takes the same steps as any other, in other words (KIP-848, "Online upgrade"):

- It joins, and is given a member epoch as its generation. What it reports to own (KIP-429) it keeps while it
  joins. An eager member, which gives up everything before it joins, owns nothing then, and is given all of
  its target at once that no other member holds.
- It syncs, and is given its current assignment: the broker assigns, and no member is the leader.
- Its heartbeats are answered with REBALANCE_IN_PROGRESS when there is a step for it to take.
"""

from __future__ import annotations

from typing import Literal

from mainstem_broker.errors import (
    IllegalGeneration,
    InconsistentGroupProtocol,
    MemberIdRequired,
    ProtocolError,
    RebalanceInProgress,
    UnknownMemberId,
)
from mainstem_broker.group.consumer.group import ConsumerGroup
from mainstem_broker.group.consumer.member import ConsumerMember
from mainstem_broker.group.consumer.records import (
    ClassicProtocols,
    ConsumerMemberMetadata,
    MemberState,
    Partitions,
)
from mainstem_broker.group.embedded_protocol import CONSUMER_PROTOCOL_TYPE, Subscription, encode_assignment
from mainstem_broker.group.kind import GroupType
from mainstem_broker.group.messages import Commit, Decisions, Join, JoinAnswer, Sync, SyncAnswer


class MixedGroup(ConsumerGroup):
    """A consumer group with members of both protocols; implements `GroupKind`."""

    group_type: Literal[GroupType.CONSUMER] = GroupType.CONSUMER

    # --- Requests of classic members ---

    def join(self, request: Join, now_ms: int) -> Decisions:
        try:
            answer = self._join(request, now_ms)
        except ProtocolError as error:
            answer = JoinAnswer(request.member_id, error.code)
        self.answer(request.number, answer)
        return self.decided()

    def sync(self, request: Sync, now_ms: int) -> Decisions:
        """Handle a SyncGroup; an assignment in it is ignored."""
        try:
            answer = self._sync(request, now_ms)
        except ProtocolError as error:
            answer = SyncAnswer(error.code)
        self.answer(request.number, answer)
        return self.decided()

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> None:
        member = self._require_classic(member_id, instance_id, generation)
        self.check_topics()
        self.renew(member, now_ms)
        if self._has_step_to_take(member):
            self._set_deadline(member, now_ms)
            raise RebalanceInProgress

    def leave(self, member_id: str, instance_id: str | None, _now_ms: int) -> Decisions:
        """Remove a member, whatever protocol it speaks: administrators remove members by this request."""
        static = self.static_member(instance_id)
        if not member_id and static is not None:
            self.remove([static])
        else:
            self.remove([self.require(member_id, instance_id)])
        return self.decided()

    def check_commit(self, commit: Commit, now_ms: int) -> None:
        """Check a commit of offsets; of a classic member it is a sign of life too.

        Raises:
            IllegalGeneration: a classic member is in another generation.
            ProtocolError: as `ConsumerGroup.check_commit`.
        """
        member = self.members.get(commit.member_id)
        if member is None or not member.is_classic:
            super().check_commit(commit, now_ms)
        else:
            _check_generation(member, commit.generation)
            self.renew(member, now_ms)

    @property
    def has_only_classic_members(self) -> bool:
        return bool(self.members) and all(member.is_classic for member in self.members.values())

    # --- Joining ---

    def _join(self, request: Join, now_ms: int) -> JoinAnswer:
        predecessor = self._find_joining(request)
        self._check_protocols(request, predecessor)
        if predecessor is None:
            self.require_place()
            if request.must_know_id and not request.member_id and request.instance_id is None:
                # Not noted as pending: there is no phase that would wait for it.
                return JoinAnswer(request.fresh_id, MemberIdRequired.code)
        protocol, metadata = request.protocols[0]
        subscription = Subscription.decode(metadata)
        member = self.admit(
            request.member_id or request.fresh_id,
            ConsumerMemberMetadata(
                request.instance_id,
                subscription.rack_id,
                request.client_id,
                request.client_host,
                tuple(sorted(set(subscription.topics))),
                None,
                request.rebalance_timeout_ms,
                None,
                ClassicProtocols(request.session_timeout_ms, request.protocols),
            ),
            predecessor,
        )
        self.reconcile(member, self._owned(subscription), now_ms)
        self.renew(member, now_ms)
        member.act_by_ms = None
        self._set_deadline(member, now_ms)
        return JoinAnswer(member.member_id, 0, member.current.epoch, CONSUMER_PROTOCOL_TYPE, protocol)

    def _find_joining(self, request: Join) -> ConsumerMember | None:
        """The member that joins, or a static one whose place it takes; None: a new member."""
        if not request.member_id:
            return self.static_member(request.instance_id)
        if request.instance_id is not None:
            return self.require(request.member_id, request.instance_id)
        return self.members.get(request.member_id)

    def _check_protocols(self, request: Join, predecessor: ConsumerMember | None) -> None:
        """Raise InconsistentGroupProtocol unless all classic members support one of the protocols."""
        if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not request.protocols:
            raise InconsistentGroupProtocol(
                f"Members of this group need the protocol type '{CONSUMER_PROTOCOL_TYPE}' and a protocol."
            )
        common = {name for name, _ in request.protocols}
        for member in self.members.values():
            if member is not predecessor and member.metadata.classic is not None:
                common &= {name for name, _ in member.metadata.classic.protocols}
        if not common:
            raise InconsistentGroupProtocol("The member has no protocol in common with all others.")
        for _, metadata in request.protocols:
            try:
                Subscription.decode(metadata)
            except ValueError as error:
                raise InconsistentGroupProtocol(
                    f"The metadata of a protocol is not a subscription: {error}."
                ) from None

    def _owned(self, subscription: Subscription) -> Partitions:
        """The partitions that a member reports to own, of any generation: it may be reading them."""
        topic_ids = {topic: self.topics.topic_id(topic) for topic, _ in subscription.owned}
        return frozenset(
            (topic_id, number)
            for topic, number in subscription.owned
            if (topic_id := topic_ids[topic]) is not None
        )

    # --- Syncing ---

    def _sync(self, request: Sync, now_ms: int) -> SyncAnswer:
        member = self._require_classic(request.member_id, request.instance_id, request.generation)
        assert member.metadata.classic is not None
        protocol, metadata = member.metadata.classic.protocols[0]
        for requested, elected in (
            (request.protocol_type, CONSUMER_PROTOCOL_TYPE),
            (request.protocol, protocol),
        ):
            if requested is not None and requested != elected:
                raise InconsistentGroupProtocol(f"The group has elected '{elected}', not '{requested}'.")
        current = member.current
        if self.epoch > current.epoch and current.state is not MemberState.UNREVOKED_PARTITIONS:
            self._set_deadline(member, now_ms)
            raise RebalanceInProgress
        member.act_by_ms = None
        self.renew(member, now_ms)
        partitions = (
            (topic, number)
            for topic_id, number in current.assigned
            if (topic := self.topics.name(topic_id)) is not None
        )
        version = Subscription.decode(metadata).version
        return SyncAnswer(0, CONSUMER_PROTOCOL_TYPE, protocol, encode_assignment(partitions, version))

    # --- Helpers ---

    def _require_classic(self, member_id: str, instance_id: str | None, generation: int) -> ConsumerMember:
        member = self.require(member_id, instance_id)
        if not member.is_classic:
            raise UnknownMemberId("The member speaks the consumer protocol, which has other requests.")
        _check_generation(member, generation)
        return member

    def _has_step_to_take(self, member: ConsumerMember) -> bool:
        match member.current.state:
            case MemberState.UNREVOKED_PARTITIONS:
                return True
            case MemberState.UNRELEASED_PARTITIONS:
                return member.current.epoch < self.epoch or not self.waits_for_others(member)
        return member.current.epoch < self.epoch

    def _set_deadline(self, member: ConsumerMember, now_ms: int) -> None:
        """Require that the member joins, or syncs, within its rebalance timeout."""
        if member.act_by_ms is None:
            member.act_by_ms = now_ms + member.metadata.rebalance_timeout_ms
            self.wake_by(member.act_by_ms)


def _check_generation(member: ConsumerMember, generation: int) -> None:
    if generation != member.current.epoch:
        raise IllegalGeneration(f"The member is at generation {member.current.epoch}, not {generation}.")
