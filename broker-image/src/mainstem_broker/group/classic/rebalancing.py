"""How a classic group goes from one generation to the next: its phases, and who is waited for. Pure.

    Empty                no members; anyone may commit offsets
    PreparingRebalance   members join; it ends when all have joined, or when the rebalance timeout is over and
                         those that have not are removed; the first join of an empty group waits for more
                         members instead (`phases.py`)
    CompletingRebalance  a new generation; the leader computes the assignment, the others wait for it
    Stable               all members have their assignment; they heartbeat, commit, and leave
    Dead                 this coordinator is no longer in charge of the group

    Empty -> Preparing -> Completing -> Stable; from the last two back to Preparing when a member joins,
    leaves or changes; from Preparing to Empty when no member is left.

Belongs here: the transitions. Which requests cause them belongs to `group.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from mainstem_broker.errors import RebalanceInProgress, UnknownMemberId
from mainstem_broker.group.classic.member import Member, elect_protocol
from mainstem_broker.group.classic.outbox import Outbox
from mainstem_broker.group.classic.phases import Assigning, JoinPhase, SyncPhase
from mainstem_broker.group.classic.records import GroupMetadata
from mainstem_broker.group.classic.roster import Roster
from mainstem_broker.group.messages import JoinAnswer, JoinedMember, SyncAnswer


class ClassicState(Enum):
    """The values are the names that Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class ClassicPolicy:
    """`initial_delay_ms`: group.initial.rebalance.delay.ms; `members_max`: group.max.size."""

    initial_delay_ms: int
    members_max: int


class Rebalancing:
    """The state of one group; `ClassicGroup` adds the requests."""

    def __init__(self, group_id: str, policy: ClassicPolicy) -> None:
        self.group_id = group_id
        self.state = ClassicState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.members = Roster()
        self.wake_ms: int | None = None
        self._policy = policy
        # Set while the state is PREPARING_REBALANCE.
        self._join_phase: JoinPhase | None = None
        # Set from the end of the join phase until its deadline, or until the next rebalance.
        self._sync_phase: SyncPhase | None = None
        # Set while the leader's assignment is being stored; a rebalance that begins meanwhile discards it.
        self._assigning: Assigning | None = None
        self._outbox = Outbox()

    # --- From phase to phase ---

    def _prepare(self, now_ms: int) -> None:
        """Begin a rebalance: all members have to join again."""
        was_empty = self.state is ClassicState.EMPTY
        self._answer_syncs(RebalanceInProgress.code)
        self._assigning = None
        self._sync_phase = None
        self.state = ClassicState.PREPARING_REBALANCE
        timeout_ms = self.members.rebalance_timeout_ms()
        if was_empty:
            delay_ms = self._policy.initial_delay_ms
            self._join_phase = JoinPhase(now_ms + delay_ms, max(timeout_ms - delay_ms, 0))
        else:
            self._join_phase = JoinPhase(now_ms + timeout_ms)
        self._wake_by(self._join_phase.deadline_ms)
        self._try_to_end_join(now_ms)

    def _try_to_end_join(self, now_ms: int) -> None:
        """End the join phase if there is no member left to wait for."""
        phase, members = self._join_phase, self.members
        if phase is None:
            return
        if not members and not members.pending:
            self._end_join(now_ms)
        elif phase.is_initial:
            if phase.deadline_ms <= now_ms:
                self._join_timed_out(phase, now_ms)
        elif not members.pending and members.joining_count == len(members):
            self._end_join(now_ms)

    def _join_timed_out(self, phase: JoinPhase, now_ms: int) -> None:
        if phase.extend(self._policy.initial_delay_ms, now_ms):
            self._wake_by(phase.deadline_ms)
        else:
            self._end_join(now_ms)

    def _end_join(self, now_ms: int) -> None:
        """Begin a generation with the members that have joined, and static ones even if they have not."""
        for member in self.members:
            if member.joining is None and member.instance_id is None:
                self._forget(member)
        if not self.members:
            self.generation += 1
            self.state = ClassicState.EMPTY
            self.protocol = None
            self._join_phase = None
            self._outbox.store(self.metadata())
            return
        timeout_ms = self.members.rebalance_timeout_ms()
        joined = [member for member in self.members if member.joining is not None]
        if not joined:
            # Only static members that are away: wait for one to return, or for their sessions to end.
            self._join_phase = JoinPhase(now_ms + max(timeout_ms, 1))
            self._wake_by(self._join_phase.deadline_ms)
            return
        leader = self.members.leader
        if leader is None or self.members[leader].joining is None:
            self.members.leader = joined[0].member_id
        self.generation += 1
        self.protocol = elect_protocol(tuple(self.members))
        self.state = ClassicState.COMPLETING_REBALANCE
        self._join_phase = None
        self._sync_phase = SyncPhase(now_ms + timeout_ms, set(self.members.ids()))
        self._wake_by(self._sync_phase.deadline_ms)
        for member in joined:
            assert member.joining is not None
            self._outbox.answer(member.joining, self._joined(member))
            self.members.set_joining(member, None)
            member.is_new = False
            member.generation = None
            self._renew(member, now_ms)

    def _become_stable(self, assignments: dict[str, bytes], now_ms: int) -> None:
        self.state = ClassicState.STABLE
        for member in self.members:
            member.assignment = assignments.get(member.member_id, b"")
            if member.syncing is not None:
                self._outbox.answer(member.syncing, self._synced(member))
                member.syncing = None
                self._renew(member, now_ms)

    # --- Members ---

    def _renew(self, member: Member, now_ms: int) -> None:
        """Begin the member's session anew; that of a new member is `NEW_MEMBER_TIMEOUT_MS`, and is not."""
        if not member.is_new:
            member.expires_ms = now_ms + member.session_timeout_ms
            self._wake_by(member.expires_ms)

    def _remove(self, members: Iterable[Member], now_ms: int) -> None:
        """Remove members, and begin or end a rebalance if that requires it."""
        is_changed = False
        for member in members:
            # The error makes a client that is alive after all join as a new member.
            self._dismiss(member, UnknownMemberId.code)
            self._forget(member)
            is_changed = True
        if not is_changed:
            return
        if self.state in (ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE):
            self._prepare(now_ms)
        else:
            self._try_to_end_join(now_ms)

    def _dismiss(self, member: Member, error_code: int) -> None:
        """Answer the member's waiting requests with an error."""
        if member.joining is not None:
            self._outbox.answer(member.joining, JoinAnswer(member.member_id, error_code))
            self.members.set_joining(member, None)
        if member.syncing is not None:
            self._outbox.answer(member.syncing, SyncAnswer(error_code))
            member.syncing = None

    def _forget(self, member: Member) -> None:
        self.members.remove(member)
        if self._sync_phase is not None:
            self._sync_phase.unsynced_ids.discard(member.member_id)

    def _answer_syncs(self, error_code: int) -> None:
        for member in self.members:
            if member.syncing is not None:
                self._outbox.answer(member.syncing, SyncAnswer(error_code))
                member.syncing = None

    # --- Answers and records ---

    def _joined(
        self,
        member: Member,
        *,
        leader: str | None = None,
        members: tuple[JoinedMember, ...] | None = None,
        skip_assignment: bool = False,
    ) -> JoinAnswer:
        """The answer by which a member learns of the current generation."""
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

    def _synced(self, member: Member) -> SyncAnswer:
        return SyncAnswer(0, self.protocol_type, self.protocol, member.assignment)

    def metadata(self) -> GroupMetadata:
        """The group's record."""
        return self._metadata(None)

    def _metadata(self, assignments: dict[str, bytes] | None) -> GroupMetadata:
        return GroupMetadata(
            self.protocol_type or "",
            self.generation,
            self.protocol,
            self.members.leader,
            -1,
            self.members.as_stored(self.protocol, assignments),
        )

    # --- When the group has to be woken ---

    def _wake_by(self, deadline_ms: int) -> None:
        if self.wake_ms is None or deadline_ms < self.wake_ms:
            self.wake_ms = deadline_ms

    def _find_wake(self) -> None:
        deadlines = self.members.deadlines_ms()
        if self._join_phase is not None:
            deadlines.append(self._join_phase.deadline_ms)
        if self._sync_phase is not None:
            deadlines.append(self._sync_phase.deadline_ms)
        self.wake_ms = min(deadlines, default=None)
