"""A consumer group as a state machine: who belongs to it, in which generation, and who waits for what.

Told of requests and of time, it answers decisions (`messages.py`); it reads no clock, writes nothing, waits
for nobody. What members agree on (how partitions are assigned, eagerly or cooperatively) is bytes to it.

    Empty                no members; offsets may be committed by anyone
    PreparingRebalance   members join; it ends when all have, or when the rebalance timeout is over and those
                         who did not are dropped; the first join of an empty group waits for company instead
                         (group.initial.rebalance.delay.ms)
    CompletingRebalance  a new generation; the leader computes the assignment, the others wait for it
    Stable               everyone has it; members heartbeat, commit, and leave
    Dead                 this coordinator is no longer in charge of it

    Empty -> Preparing -> Completing -> Stable; from the last two back to Preparing when a member comes, goes
    or changes; from Preparing to Empty when nobody is left.

Rules, and where they come from:
- A new member of a client that can is sent back with its id first and is *pending* until it comes with it, so
  that one that retries is not counted twice (KIP-394). Pending members hold a rebalance up.
- A static member (with an instance id) that comes back gets a new member id and its old assignment, without
  a rebalance; whoever still uses the old id is fenced (KIP-345).
- A member that waits in a join or sync is alive; otherwise its session runs from its last sign of life.
- During Completing a heartbeat is fine, for clients send them between join and sync; a commit is not.
- An assignment counts once it is stored: until then the group stays in Completing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

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
from mainstem_broker.group.member import NEW_MEMBER_TIMEOUT_MS, Member, elect_protocol
from mainstem_broker.group.messages import (
    Answer,
    Decisions,
    Join,
    JoinAnswer,
    JoinedMember,
    Store,
    Sync,
    SyncAnswer,
)
from mainstem_broker.group.records import GroupKey, GroupMetadata
from mainstem_broker.group.roster import Roster


class State(Enum):
    """The values are the names that Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class GroupPolicy:
    """`initial_delay_ms`: group.initial.rebalance.delay.ms; `members_max`: group.max.size."""

    initial_delay_ms: int
    members_max: int


class Group:
    """The membership of one group. Every method that is given `now_ms` gets it from one steady clock."""

    def __init__(self, group_id: str, policy: GroupPolicy) -> None:
        self.group_id = group_id
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.members = Roster()
        self.wake_ms: int | None = None
        """When `tick` is to be called, perhaps too early, never too late; None: nothing is waited for."""
        self._policy = policy
        self._join_deadline_ms = 0
        self._initial_wait_left_ms: int | None = None
        """How much longer the first join may still wait for newcomers; None: it is not a first join."""
        self._newcomers = False
        self._sync_deadline_ms: int | None = None
        self._unsynced: set[str] = set()
        """Members of this generation that have not asked for their assignment yet."""
        self._tickets = 0
        self._assigning: tuple[int, dict[str, bytes]] | None = None
        """The ticket of the assignment that is being stored, and the assignment."""
        self._returning: dict[int, tuple[int, JoinAnswer]] = {}
        """Static members whose new id is being stored: by ticket, the request and its answer."""
        self._answers: list[Answer] = []
        self._stores: list[Store] = []

    @classmethod
    def restore(cls, group_id: str, policy: GroupPolicy, stored: GroupMetadata, now_ms: int) -> Group:
        """The group that a record tells of, its members with full sessions ahead of them."""
        group = cls(group_id, policy)
        group.generation = stored.generation
        group.protocol_type = stored.protocol_type or None
        if stored.members:
            group.state = State.STABLE
            group.protocol = stored.protocol
        for told in stored.members:
            member = Member(
                told.member_id,
                told.instance_id,
                told.client_id,
                told.client_host,
                told.session_timeout_ms,
                told.rebalance_timeout_ms,
                ((stored.protocol or "", told.subscription),),
                now_ms + told.session_timeout_ms,
                assignment=told.assignment,
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
        policy: GroupPolicy,
        generation: int,
        protocol_type: str,
        members: Iterable[Member],
        now_ms: int,
    ) -> Group:
        """The group that goes on with the members of another kind of group: they have to join again."""
        group = cls(group_id, policy)
        group.generation = generation
        group.protocol_type = protocol_type
        for member in members:
            group.members.insert(member)
            group._wake_by(member.expires_ms)
        if group.members:
            group.state = State.STABLE
            group.protocol = elect_protocol(tuple(group.members))
            group._store(group.metadata())
            group._prepare(now_ms)
        return group

    # --- What members ask ---

    def join(self, asked: Join, now_ms: int) -> Decisions:
        """Take a JoinGroup request; its answer may be among the decisions of this or of any later call."""
        try:
            self._join(asked, now_ms)
        except ProtocolError as error:
            self._answer(asked.request, JoinAnswer(asked.member_id, error.code))
        return self._decided()

    def sync(self, asked: Sync, now_ms: int) -> Decisions:
        """Take a SyncGroup request; likewise."""
        try:
            self._sync(asked, now_ms)
        except ProtocolError as error:
            self._answer(asked.request, SyncAnswer(error.code))
        return self._decided()

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> None:
        """Note a sign of life.

        Raises:
            UnknownMemberId, FencedInstanceId, IllegalGeneration: it has to join anew, or end.
            RebalanceInProgress: it has to join again.
        """
        member = self.members.require(member_id, instance_id)
        self._require_generation(member, generation)
        self._renew(member, now_ms)
        if self.state is State.PREPARING_REBALANCE:
            raise RebalanceInProgress

    def leave(self, member_id: str, instance_id: str | None, now_ms: int) -> Decisions:
        """Take a member out. An administrator names a static one by its instance id alone.

        Raises:
            UnknownMemberId, FencedInstanceId: there is no such member.
        """
        static = self.members.static_member(instance_id)
        if not member_id and static is not None:
            member_id = static.member_id
        if instance_id is None and self.members.pending.pop(member_id, None) is not None:
            self._try_to_end_join(now_ms)
        else:
            self._remove([self.members.require(member_id, instance_id)], now_ms)
        return self._decided()

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> None:
        """Let a commit of offsets pass, which is a sign of life too.

        Raises:
            UnknownMemberId, FencedInstanceId, IllegalGeneration: not from a member of this generation, and
                others may only commit while there are no members.
            RebalanceInProgress: the assignment that it commits for is no longer, or not yet, its own.
        """
        if generation < 0 and self.state is State.EMPTY:
            return
        member = self.members.require(member_id, instance_id)
        self._require_generation(member, generation)
        if self.state is State.COMPLETING_REBALANCE:
            raise RebalanceInProgress
        # In Preparing it passes: that is the last chance of members that give partitions up.
        self._renew(member, now_ms)

    # --- What else happens ---

    def stored(self, ticket: int, error_code: int, now_ms: int) -> Decisions:
        """A record that this group asked for is stored, or will not be."""
        returning = self._returning.pop(ticket, None)
        if returning is not None:
            request, answer = returning
            self._answer(request, JoinAnswer(answer.member_id, error_code) if error_code else answer)
        elif self._assigning is not None and self._assigning[0] == ticket:
            _, assignments = self._assigning
            self._assigning = None
            if error_code:
                self._answer_syncs(error_code)
                self._prepare(now_ms)
            else:
                self._become_stable(assignments, now_ms)
        return self._decided()

    def tick(self, now_ms: int) -> Decisions:
        """Time has passed: drop whom it has run out for, end phases that are over."""
        pending = self.members.pending
        expired = [member_id for member_id, until_ms in pending.items() if until_ms <= now_ms]
        for member_id in expired:
            del pending[member_id]
        late = [
            member
            for member in self.members
            if (deadline := member.deadline_ms()) is not None and deadline <= now_ms
        ]
        if late:
            self._remove(late, now_ms)
        elif expired:
            self._try_to_end_join(now_ms)
        if self.state is State.PREPARING_REBALANCE and self._join_deadline_ms <= now_ms:
            self._end_join_in_time(now_ms)
        if self._sync_deadline_ms is not None and self._sync_deadline_ms <= now_ms:
            self._sync_deadline_ms = None
            missing = [member for member in self.members if member.member_id in self._unsynced]
            self._unsynced.clear()
            self._remove(missing, now_ms)
        self._find_wake()
        return self._decided()

    def close(self, error_code: int) -> Decisions:
        """This coordinator is no longer in charge: whoever waits gets this error."""
        for member in self.members:
            self._dismiss(member, error_code)
        for request, answer in self._returning.values():
            self._answer(request, JoinAnswer(answer.member_id, error_code))
        self._returning.clear()
        self._assigning = None
        self.members.clear()
        self._unsynced.clear()
        self.state = State.DEAD
        self.wake_ms = None
        return self._decided()

    # --- What others see ---

    @property
    def is_idle(self) -> bool:
        """Whether there are no members, nor any about to be."""
        return self.state in (State.EMPTY, State.DEAD) and not self.members.pending

    def record_keys(self) -> list[bytes]:
        """Of all records that tell of this group."""
        return [GroupKey(self.group_id).encode()]

    def metadata(self) -> GroupMetadata:
        """The group as its record is to tell of it."""
        return self._metadata(None)

    # --- Joining ---

    def _join(self, asked: Join, now_ms: int) -> None:
        if self.state is State.DEAD:
            raise CoordinatorNotAvailable
        if asked.member_id in self.members.pending:
            if asked.instance_id is not None:
                raise UnknownMemberId("The id was given to a member without an instance id.")
            self._require_protocols(asked, None)
            self._require_place(asked)
            del self.members.pending[asked.member_id]
            self._add(asked.member_id, asked, now_ms)
        elif asked.member_id:
            member = self.members.require(asked.member_id, asked.instance_id)
            self._require_protocols(asked, member)
            self._rejoin(member, asked, now_ms)
        elif (static := self.members.static_member(asked.instance_id)) is not None:
            self._require_protocols(asked, static)
            self._return(static, asked, now_ms)
        else:
            self._require_protocols(asked, None)
            self._require_place(asked)
            if asked.must_know_id and asked.instance_id is None:
                self.members.pending[asked.fresh_id] = now_ms + asked.session_timeout_ms
                self._wake_by(now_ms + asked.session_timeout_ms)
                self._answer(asked.request, JoinAnswer(asked.fresh_id, MemberIdRequired.code))
            else:
                self._add(asked.fresh_id, asked, now_ms)

    def _require_protocols(self, asked: Join, known: Member | None) -> None:
        if not asked.protocol_type:
            raise InconsistentGroupProtocol("A member needs a protocol type.")
        if any(member is not known for member in self.members) and asked.protocol_type != self.protocol_type:
            raise InconsistentGroupProtocol(
                f"The group's protocol type is '{self.protocol_type}', not '{asked.protocol_type}'."
            )
        self.members.require_common_protocol(asked.protocols, known)

    def _require_place(self, asked: Join) -> None:
        limit = self._policy.members_max
        if self.state is State.PREPARING_REBALANCE:
            # Those who do not come back will be dropped, so only those who did count.
            count = sum(member.joining is not None for member in self.members)
        else:
            count = len(self.members)
        if count >= limit:
            self.members.pending.pop(asked.member_id, None)
            raise GroupMaxSizeReached(f"The group has {limit} members, as many as group.max.size allows.")

    def _add(self, member_id: str, asked: Join, now_ms: int) -> None:
        if not self.members:
            self.protocol_type = asked.protocol_type
        member = Member(
            member_id,
            asked.instance_id,
            asked.client_id,
            asked.client_host,
            asked.session_timeout_ms,
            asked.rebalance_timeout_ms,
            asked.protocols,
            now_ms + NEW_MEMBER_TIMEOUT_MS,
            joining=asked.request,
            is_new=True,
        )
        self.members.insert(member)
        self._wake_by(member.expires_ms)
        if self.state is State.PREPARING_REBALANCE:
            self._newcomers = True
            self._try_to_end_join(now_ms)
        else:
            self._prepare(now_ms)

    def _rejoin(self, member: Member, asked: Join, now_ms: int) -> None:
        unchanged = member.protocols == asked.protocols
        is_leader = member.member_id == self.members.leader
        if unchanged and (
            self.state is State.COMPLETING_REBALANCE or (self.state is State.STABLE and not is_leader)
        ):
            # It has lost the answer, or asks without need: nothing changes.
            self._renew(member, now_ms)
            self._answer(asked.request, self._joined(member))
            return
        self._update(member, asked, now_ms)
        self._wait_for_join(member, asked.request)
        if self.state is State.PREPARING_REBALANCE:
            self._try_to_end_join(now_ms)
        else:
            self._prepare(now_ms)

    def _update(self, member: Member, asked: Join, now_ms: int) -> None:
        if len(self.members) == 1:
            self.protocol_type = asked.protocol_type
        member.client_id, member.client_host = asked.client_id, asked.client_host
        member.session_timeout_ms = asked.session_timeout_ms
        member.rebalance_timeout_ms = asked.rebalance_timeout_ms
        member.protocols = asked.protocols
        self._renew(member, now_ms)

    def _wait_for_join(self, member: Member, request: int) -> None:
        if member.joining is not None:
            # Its client gave that one up; whoever reads the answer is told to go on waiting.
            self._answer(member.joining, JoinAnswer(member.member_id, RebalanceInProgress.code))
        member.joining = request

    def _return(self, member: Member, asked: Join, now_ms: int) -> None:
        """A static member has come back: the same member under a new id (KIP-345)."""
        old_leader = self.members.leader
        was_leader = member.member_id == old_leader
        self._dismiss(member, FencedInstanceId.code)
        if member.member_id in self._unsynced:
            self._unsynced.remove(member.member_id)
            self._unsynced.add(asked.fresh_id)
        self.members.rename(member, asked.fresh_id)
        self._update(member, asked, now_ms)
        if self.state is State.PREPARING_REBALANCE:
            member.joining = asked.request
            self._try_to_end_join(now_ms)
        elif self.state is State.STABLE and elect_protocol(tuple(self.members)) == self.protocol:
            answer = self._joined(member)
            if was_leader and not asked.may_skip_assignment:
                # Told that another one leads, it assigns nothing; what is assigned stays.
                answer = self._joined(member, leader=old_leader, members=())
            elif was_leader:
                answer = self._joined(member, skip_assignment=True)
            ticket = self._store(self.metadata())
            self._returning[ticket] = (asked.request, answer)
        else:
            member.joining = asked.request
            self._prepare(now_ms)

    def _joined(
        self,
        member: Member,
        *,
        leader: str | None = None,
        members: tuple[JoinedMember, ...] | None = None,
        skip_assignment: bool = False,
    ) -> JoinAnswer:
        """The answer that tells a member of the present generation."""
        if members is None:
            is_leader = member.member_id == self.members.leader
            members = self.members.as_joined(self.protocol) if is_leader else ()
        return JoinAnswer(
            member.member_id,
            0,
            self.generation,
            self.protocol_type,
            self.protocol,
            leader or self.members.leader or "",
            skip_assignment,
            members,
        )

    # --- From phase to phase ---

    def _prepare(self, now_ms: int) -> None:
        """Begin a rebalance: everyone has to join again."""
        was_empty = self.state is State.EMPTY
        self._answer_syncs(RebalanceInProgress.code)
        self._assigning = None
        self._sync_deadline_ms = None
        self._unsynced.clear()
        self._newcomers = False
        self.state = State.PREPARING_REBALANCE
        timeout_ms = self.members.rebalance_timeout_ms()
        if was_empty:
            delay_ms = self._policy.initial_delay_ms
            self._initial_wait_left_ms = max(timeout_ms - delay_ms, 0)
            self._join_deadline_ms = now_ms + delay_ms
        else:
            self._initial_wait_left_ms = None
            self._join_deadline_ms = now_ms + timeout_ms
        self._wake_by(self._join_deadline_ms)
        self._try_to_end_join(now_ms)

    def _try_to_end_join(self, now_ms: int) -> None:
        """End the join phase if nobody is left to be waited for."""
        if self.state is not State.PREPARING_REBALANCE:
            return
        if not self.members and not self.members.pending:
            self._end_join(now_ms)
        elif self._initial_wait_left_ms is not None:
            if self._join_deadline_ms <= now_ms:
                self._end_join_in_time(now_ms)
        elif not self.members.pending and all(member.joining is not None for member in self.members):
            self._end_join(now_ms)

    def _end_join_in_time(self, now_ms: int) -> None:
        """The join phase has lasted long enough; a first one is drawn out while newcomers come."""
        if self._initial_wait_left_ms and self._newcomers:
            more_ms = min(self._policy.initial_delay_ms, self._initial_wait_left_ms)
            self._initial_wait_left_ms -= more_ms
            self._newcomers = False
            self._join_deadline_ms = now_ms + more_ms
            self._wake_by(self._join_deadline_ms)
        else:
            self._end_join(now_ms)

    def _end_join(self, now_ms: int) -> None:
        """Begin a generation with those who joined; static members stay though they did not come."""
        for member in self.members:
            if member.joining is None and member.instance_id is None:
                self._forget(member)
        if not self.members:
            self.generation += 1
            self.state = State.EMPTY
            self.protocol = None
            self._initial_wait_left_ms = None
            self._store(self.metadata())
            return
        joined = [member for member in self.members if member.joining is not None]
        if not joined:
            # Only static members that are away: wait for one of them, or for their sessions to end.
            self._initial_wait_left_ms = None
            self._join_deadline_ms = now_ms + max(self.members.rebalance_timeout_ms(), 1)
            self._wake_by(self._join_deadline_ms)
            return
        leader = self.members.leader
        if leader is None or self.members[leader].joining is None:
            self.members.leader = joined[0].member_id
        self.generation += 1
        self.protocol = elect_protocol(tuple(self.members))
        self.state = State.COMPLETING_REBALANCE
        self._initial_wait_left_ms = None
        self._unsynced = set(self.members.ids())
        self._sync_deadline_ms = now_ms + self.members.rebalance_timeout_ms()
        self._wake_by(self._sync_deadline_ms)
        for member in joined:
            assert member.joining is not None
            self._answer(member.joining, self._joined(member))
            member.joining = None
            member.is_new = False
            member.generation = None
            self._renew(member, now_ms)

    # --- Syncing ---

    def _sync(self, asked: Sync, now_ms: int) -> None:
        member = self.members.require(asked.member_id, asked.instance_id)
        self._require_generation(member, asked.generation)
        for said, known in ((asked.protocol_type, self.protocol_type), (asked.protocol, self.protocol)):
            if said is not None and said != known:
                raise InconsistentGroupProtocol(f"The group has agreed on '{known}', not on '{said}'.")
        if self.state is State.PREPARING_REBALANCE:
            raise RebalanceInProgress
        if self.state is State.EMPTY:
            raise UnknownMemberId
        self._renew(member, now_ms)
        self._unsynced.discard(member.member_id)
        if self.state is State.STABLE:
            self._answer(asked.request, self._synced(member))
            return
        if member.syncing is not None:
            self._answer(member.syncing, SyncAnswer(RebalanceInProgress.code))  # given up by its client
        member.syncing = asked.request
        if member.member_id == self.members.leader and self._assigning is None:
            given = dict(asked.assignments)
            assignments = {member_id: given.get(member_id, b"") for member_id in self.members.ids()}
            self._assigning = (self._store(self._metadata(assignments)), assignments)

    def _become_stable(self, assignments: dict[str, bytes], now_ms: int) -> None:
        self.state = State.STABLE
        for member in self.members:
            member.assignment = assignments.get(member.member_id, b"")
            if member.syncing is not None:
                self._answer(member.syncing, self._synced(member))
                member.syncing = None
                self._renew(member, now_ms)

    def _synced(self, member: Member) -> SyncAnswer:
        return SyncAnswer(0, self.protocol_type, self.protocol, member.assignment)

    def _answer_syncs(self, error_code: int) -> None:
        for member in self.members:
            if member.syncing is not None:
                self._answer(member.syncing, SyncAnswer(error_code))
                member.syncing = None

    # --- Leaving ---

    def _remove(self, members: Iterable[Member], now_ms: int) -> None:
        """Take members out, then see what that means for the others."""
        gone = False
        for member in members:
            # Who waits is told to join as a new one: a client that is alive after all will.
            self._dismiss(member, UnknownMemberId.code)
            self._forget(member)
            gone = True
        if not gone:
            return
        if self.state in (State.STABLE, State.COMPLETING_REBALANCE):
            self._prepare(now_ms)
        else:
            self._try_to_end_join(now_ms)

    def _dismiss(self, member: Member, error_code: int) -> None:
        """Answer whatever the member waits for with an error."""
        if member.joining is not None:
            self._answer(member.joining, JoinAnswer(member.member_id, error_code))
            member.joining = None
        if member.syncing is not None:
            self._answer(member.syncing, SyncAnswer(error_code))
            member.syncing = None

    def _forget(self, member: Member) -> None:
        self.members.forget(member)
        self._unsynced.discard(member.member_id)

    # --- Helpers ---

    def _require_generation(self, member: Member, generation: int) -> None:
        expected = self.generation if member.generation is None else member.generation
        if generation != expected:
            raise IllegalGeneration(f"The group is at generation {expected}, not {generation}.")

    def _renew(self, member: Member, now_ms: int) -> None:
        if not member.is_new:
            member.expires_ms = now_ms + member.session_timeout_ms
            self._wake_by(member.expires_ms)

    def _metadata(self, assignments: dict[str, bytes] | None) -> GroupMetadata:
        return GroupMetadata(
            self.protocol_type or "",
            self.generation,
            self.protocol,
            self.members.leader,
            -1,
            self.members.as_stored(self.protocol, assignments),
        )

    def _store(self, record: GroupMetadata) -> int:
        self._tickets += 1
        self._stores.append(Store(self._tickets, record))
        return self._tickets

    def _answer(self, request: int, answer: JoinAnswer | SyncAnswer) -> None:
        self._answers.append(Answer(request, answer))

    def _decided(self) -> Decisions:
        decisions = Decisions(tuple(self._answers), tuple(self._stores))
        self._answers.clear()
        self._stores.clear()
        return decisions

    def _wake_by(self, deadline_ms: int) -> None:
        if self.wake_ms is None or deadline_ms < self.wake_ms:
            self.wake_ms = deadline_ms

    def _find_wake(self) -> None:
        deadlines = self.members.deadlines_ms()
        if self.state is State.PREPARING_REBALANCE:
            deadlines.append(self._join_deadline_ms)
        if self._sync_deadline_ms is not None:
            deadlines.append(self._sync_deadline_ms)
        self.wake_ms = min(deadlines, default=None)
