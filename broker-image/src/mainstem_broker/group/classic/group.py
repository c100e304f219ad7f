"""A classic group as a state machine: its members, its generation, and the requests that wait.

It is given requests and times and returns decisions (`group/messages.py`); it reads no clock, writes nothing
and waits for nothing. What members agree on (how partitions are assigned, eagerly or cooperatively) is bytes
to it.

The states, and the way from one to the next: `rebalancing.py`.

Rules, and where they come from:
- A new member whose client supports it is sent back with its id first, and is *pending* until it joins with
  the id, so that a member that repeats its request is not counted twice (KIP-394). A rebalance waits for
  pending members.
- A static member (with an instance id) that returns gets a new member id and its old assignment, without a
  rebalance. A process that still uses the old id is fenced (KIP-345).
- A member that waits in a join or sync is alive; otherwise its session runs from its last sign of life.
- During Completing a heartbeat is allowed, because clients send them between join and sync; a commit is not.
- An assignment is valid once it is stored: until then the group stays in Completing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from mainstem_broker.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    MemberIdRequired,
    ProtocolError,
    RebalanceInProgress,
    UnknownMemberId,
)
from mainstem_broker.group.classic.member import NEW_MEMBER_TIMEOUT_MS, Member, elect_protocol
from mainstem_broker.group.classic.phases import Assigning
from mainstem_broker.group.classic.rebalancing import ClassicPolicy, ClassicState, Rebalancing
from mainstem_broker.group.classic.records import GroupKey, GroupMetadata
from mainstem_broker.group.classic.subscription import subscribed_topics
from mainstem_broker.group.embedded_protocol import CONSUMER_PROTOCOL_TYPE
from mainstem_broker.group.kind import GroupType
from mainstem_broker.group.messages import Commit, Decisions, Join, JoinAnswer, Sync, SyncAnswer


class ClassicGroup(Rebalancing):
    """One group; implements `GroupKind`."""

    group_type: Literal[GroupType.CLASSIC] = GroupType.CLASSIC

    def __init__(self, group_id: str, policy: ClassicPolicy) -> None:
        super().__init__(group_id, policy)
        # Static members whose new id is being stored: by ticket, the number of the join and its answer.
        self._returning: dict[int, tuple[int, JoinAnswer]] = {}

    @classmethod
    def restore(
        cls, group_id: str, policy: ClassicPolicy, stored: GroupMetadata, now_ms: int
    ) -> ClassicGroup:
        """The group that a record describes. Its members' sessions begin now."""
        group = cls(group_id, policy)
        group.generation = stored.generation
        group.protocol_type = stored.protocol_type or None
        if stored.members:
            group.state = ClassicState.STABLE
            group.protocol = stored.protocol
        for stored_member in stored.members:
            member = Member(
                stored_member.member_id,
                stored_member.instance_id,
                stored_member.client_id,
                stored_member.client_host,
                stored_member.session_timeout_ms,
                stored_member.rebalance_timeout_ms,
                ((stored.protocol or "", stored_member.subscription),),
                now_ms + stored_member.session_timeout_ms,
                assignment=stored_member.assignment,
            )
            group.members.insert(member)
            group._wake_by(member.expires_ms)
        if stored.leader is not None and stored.leader in group.members:
            group.members.leader = stored.leader
        return group

    @classmethod
    def succeed(
        cls,
        group_id: str,
        policy: ClassicPolicy,
        generation: int,
        protocol_type: str,
        members: Iterable[Member],
        now_ms: int,
    ) -> ClassicGroup:
        """The group that continues with the members of another kind of group: they have to join again."""
        group = cls(group_id, policy)
        group.generation = generation
        group.protocol_type = protocol_type
        for member in members:
            group.members.insert(member)
            group._wake_by(member.expires_ms)
        if group.members:
            group.state = ClassicState.STABLE
            group.protocol = elect_protocol(tuple(group.members))
            group._outbox.store(group.metadata())
            group._prepare(now_ms)
        return group

    # --- Requests ---

    def join(self, request: Join, now_ms: int) -> Decisions:
        try:
            self._join(request, now_ms)
        except ProtocolError as error:
            self._outbox.answer(request.number, JoinAnswer(request.member_id, error.code))
        return self.decided()

    def sync(self, request: Sync, now_ms: int) -> Decisions:
        try:
            self._sync(request, now_ms)
        except ProtocolError as error:
            self._outbox.answer(request.number, SyncAnswer(error.code))
        return self.decided()

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> None:
        member = self.members.require(member_id, instance_id)
        self._require_generation(member, generation)
        self._renew(member, now_ms)
        if self.state is ClassicState.PREPARING_REBALANCE:
            raise RebalanceInProgress

    def leave(self, member_id: str, instance_id: str | None, now_ms: int) -> Decisions:
        static = self.members.static_member(instance_id)
        if not member_id and static is not None:
            member_id = static.member_id
        if instance_id is None and self.members.pending.pop(member_id, None) is not None:
            self._try_to_end_join(now_ms)
        else:
            self._remove([self.members.require(member_id, instance_id)], now_ms)
        return self.decided()

    def check_commit(self, commit: Commit, now_ms: int) -> None:
        """Check a commit, which is a sign of life too.

        Raises:
            UnknownMemberId, FencedInstanceId, IllegalGeneration: not from a member of this generation. A
                commit without a member is allowed only while the group is empty, or in a transaction.
            RebalanceInProgress: members do not know their assignments of this generation yet; producers of
                transactions do not handle it, and are not answered it.
        """
        if commit.generation < 0 and self.state is ClassicState.EMPTY:
            return
        if commit.is_transactional and not commit.names_member:
            return
        member = self.members.require(commit.member_id, commit.instance_id)
        self._require_generation(member, commit.generation)
        if self.state is ClassicState.COMPLETING_REBALANCE and not commit.is_transactional:
            raise RebalanceInProgress
        # Allowed during Preparing: it is the last chance of members that give up partitions.
        self._renew(member, now_ms)

    def check_fetch(self, _member_id: str, _member_epoch: int) -> None:
        """Anyone may fetch the offsets of a classic group."""

    # --- Other events ---

    def stored(self, ticket: int, error_code: int, now_ms: int) -> Decisions:
        returning = self._returning.pop(ticket, None)
        if returning is not None:
            number, answer = returning
            self._outbox.answer(number, JoinAnswer(answer.member_id, error_code) if error_code else answer)
        elif self._assigning is not None and self._assigning.ticket == ticket:
            assignments = self._assigning.assignments
            self._assigning = None
            if error_code:
                self._answer_syncs(error_code)
                self._prepare(now_ms)
            else:
                self._become_stable(assignments, now_ms)
        return self.decided()

    def tick(self, now_ms: int) -> Decisions:
        pending = self.members.pending
        expired_ids = [member_id for member_id, expires_ms in pending.items() if expires_ms <= now_ms]
        for member_id in expired_ids:
            del pending[member_id]
        expired_members = [
            member
            for member in self.members
            if (deadline_ms := member.deadline_ms()) is not None and deadline_ms <= now_ms
        ]
        if expired_members:
            self._remove(expired_members, now_ms)
        elif expired_ids:
            self._try_to_end_join(now_ms)
        if self._join_phase is not None and self._join_phase.deadline_ms <= now_ms:
            self._join_timed_out(self._join_phase, now_ms)
        if self._sync_phase is not None and self._sync_phase.deadline_ms <= now_ms:
            unsynced_ids = self._sync_phase.unsynced_ids
            self._sync_phase = None
            self._remove([member for member in self.members if member.member_id in unsynced_ids], now_ms)
        self._find_wake()
        return self.decided()

    def close(self, error_code: int) -> Decisions:
        for member in self.members:
            self._dismiss(member, error_code)
        for number, answer in self._returning.values():
            self._outbox.answer(number, JoinAnswer(answer.member_id, error_code))
        self._returning.clear()
        self._join_phase = self._sync_phase = self._assigning = None
        self.members.clear()
        self.state = ClassicState.DEAD
        self.wake_ms = None
        return self.decided()

    def decided(self) -> Decisions:
        return self._outbox.decided()

    # --- The group as others see it ---

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicState.EMPTY

    @property
    def is_idle(self) -> bool:
        return self.state in (ClassicState.EMPTY, ClassicState.DEAD) and not self.members.pending

    def record_keys(self) -> list[bytes]:
        return [GroupKey(self.group_id).encode()]

    def topics_in_use(self) -> frozenset[str] | None:
        if self.state is ClassicState.EMPTY:
            return frozenset()
        if self.state is not ClassicState.STABLE or self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        topics: set[str] = set()
        for member in self.members:
            member_topics = subscribed_topics(member.metadata(self.protocol))
            if member_topics is None:
                return None
            topics |= member_topics
        return frozenset(topics)

    # --- Joining ---

    def _join(self, request: Join, now_ms: int) -> None:
        if self.state is ClassicState.DEAD:
            raise CoordinatorNotAvailable
        if request.member_id in self.members.pending:
            if request.instance_id is not None:
                raise UnknownMemberId("The id was given to a member without an instance id.")
            self._require_protocols(request, None)
            self._require_place(request)
            del self.members.pending[request.member_id]
            self._add(request.member_id, request, now_ms)
        elif request.member_id:
            member = self.members.require(request.member_id, request.instance_id)
            self._require_protocols(request, member)
            self._rejoin(member, request, now_ms)
        elif (static := self.members.static_member(request.instance_id)) is not None:
            self._require_protocols(request, static)
            self._return(static, request, now_ms)
        else:
            self._require_protocols(request, None)
            self._require_place(request)
            if request.must_know_id and request.instance_id is None:
                expires_ms = now_ms + request.session_timeout_ms
                self.members.pending[request.fresh_id] = expires_ms
                self._wake_by(expires_ms)
                self._outbox.answer(request.number, JoinAnswer(request.fresh_id, MemberIdRequired.code))
            else:
                self._add(request.fresh_id, request, now_ms)

    def _require_protocols(self, request: Join, member: Member | None) -> None:
        """`member` is the one that joins, or None if it is not in the group yet."""
        if not request.protocol_type:
            raise InconsistentGroupProtocol("A member needs a protocol type.")
        has_others = len(self.members) > (member is not None)
        if has_others and request.protocol_type != self.protocol_type:
            raise InconsistentGroupProtocol(
                f"The group's protocol type is '{self.protocol_type}', not '{request.protocol_type}'."
            )
        self.members.require_common_protocol(request.protocols, member)

    def _require_place(self, request: Join) -> None:
        # Members that do not join a rebalance are removed at its end, so only those that have joined count.
        is_preparing = self.state is ClassicState.PREPARING_REBALANCE
        count = self.members.joining_count if is_preparing else len(self.members)
        if count >= self._policy.members_max:
            self.members.pending.pop(request.member_id, None)
            raise GroupMaxSizeReached(
                f"The group has {count} members, and group.max.size is {self._policy.members_max}."
            )

    def _add(self, member_id: str, request: Join, now_ms: int) -> None:
        if not self.members:
            self.protocol_type = request.protocol_type
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
            now_ms + NEW_MEMBER_TIMEOUT_MS,
            joining=request.number,
            is_new=True,
        )
        self.members.insert(member)
        self._wake_by(member.expires_ms)
        if self._join_phase is None:
            self._prepare(now_ms)
        else:
            self._join_phase.has_newcomers = True
            self._try_to_end_join(now_ms)

    def _rejoin(self, member: Member, request: Join, now_ms: int) -> None:
        is_unchanged = member.protocols == request.protocols
        is_leader = member.member_id == self.members.leader
        if is_unchanged and (
            self.state is ClassicState.COMPLETING_REBALANCE
            or (self.state is ClassicState.STABLE and not is_leader)
        ):
            # Its answer was lost, or the request is unnecessary: nothing changes. A leader that joins again
            # asks for a rebalance, for example because its topics have more partitions.
            self._renew(member, now_ms)
            self._outbox.answer(request.number, self._joined(member))
            return
        self._update(member, request, now_ms)
        if member.joining is not None:
            # The client gave up its earlier request; if it still reads the answer, it joins again.
            self._outbox.answer(member.joining, JoinAnswer(member.member_id, RebalanceInProgress.code))
        self.members.set_joining(member, request.number)
        if self.state is ClassicState.PREPARING_REBALANCE:
            self._try_to_end_join(now_ms)
        else:
            self._prepare(now_ms)

    def _update(self, member: Member, request: Join, now_ms: int) -> None:
        if len(self.members) == 1:
            self.protocol_type = request.protocol_type
        member.client_id, member.client_host = request.client_id, request.client_host
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.members.set_protocols(member, request.protocols)
        self._renew(member, now_ms)

    def _return(self, member: Member, request: Join, now_ms: int) -> None:
        """A static member has returned: the same member under a new id (KIP-345)."""
        old_leader = self.members.leader
        was_leader = member.member_id == old_leader
        is_unchanged = member.protocols == request.protocols
        self._dismiss(member, FencedInstanceId.code)
        if self._sync_phase is not None and member.member_id in self._sync_phase.unsynced_ids:
            self._sync_phase.unsynced_ids.remove(member.member_id)
            self._sync_phase.unsynced_ids.add(request.fresh_id)
        self.members.rename(member, request.fresh_id)
        self._update(member, request, now_ms)
        if self.state is ClassicState.PREPARING_REBALANCE:
            self.members.set_joining(member, request.number)
            self._try_to_end_join(now_ms)
        elif self.state is ClassicState.STABLE and (
            is_unchanged or elect_protocol(tuple(self.members)) == self.protocol
        ):
            if was_leader and not request.may_skip_assignment:
                # It is answered that another member leads, so that it assigns nothing: the assignment stays.
                answer = self._joined(member, leader=old_leader, members=())
            else:
                answer = self._joined(member, skip_assignment=was_leader)
            ticket = self._outbox.store(self.metadata())
            self._returning[ticket] = (request.number, answer)
        else:
            self.members.set_joining(member, request.number)
            self._prepare(now_ms)

    # --- Syncing ---

    def _sync(self, request: Sync, now_ms: int) -> None:
        member = self.members.require(request.member_id, request.instance_id)
        self._require_generation(member, request.generation)
        for requested, elected in (
            (request.protocol_type, self.protocol_type),
            (request.protocol, self.protocol),
        ):
            if requested is not None and requested != elected:
                raise InconsistentGroupProtocol(f"The group has elected '{elected}', not '{requested}'.")
        if self.state is ClassicState.PREPARING_REBALANCE:
            raise RebalanceInProgress
        if self.state is ClassicState.EMPTY:
            raise UnknownMemberId
        self._renew(member, now_ms)
        if self._sync_phase is not None:
            self._sync_phase.unsynced_ids.discard(member.member_id)
        if self.state is ClassicState.STABLE:
            self._outbox.answer(request.number, self._synced(member))
            return
        if member.syncing is not None:  # its client gave up the earlier request
            self._outbox.answer(member.syncing, SyncAnswer(RebalanceInProgress.code))
        member.syncing = request.number
        if member.member_id == self.members.leader and self._assigning is None:
            given = dict(request.assignments)
            assignments = {member_id: given.get(member_id, b"") for member_id in self.members.ids()}
            self._assigning = Assigning(self._outbox.store(self._metadata(assignments)), assignments)

    # --- Helpers ---

    def _require_generation(self, member: Member, generation: int) -> None:
        expected = self.generation if member.generation is None else member.generation
        if generation != expected:
            raise IllegalGeneration(f"The group is at generation {expected}, not {generation}.")
