"""A consumer group of KIP-848 as a state machine: the broker assigns, members follow step by step.

It is given heartbeats and times and returns decisions (`group/messages.py`); it reads no clock, writes
nothing and waits for nothing.

    group epoch       rises with every change of members, of their subscriptions, or of subscribed topics
    assignment epoch  the group epoch that the target assignment was computed for
    member epoch      the assignment epoch that a member has reached; how: `reconciliation.py`

    Empty        no members; anyone may commit offsets
    Assigning    the group epoch is ahead of the assignment epoch: the next heartbeat computes targets
    Reconciling  some members have not reached their targets yet
    Stable       all have
    Dead         this coordinator is no longer in charge of the group

Rules, and where they come from:
- There is no barrier: each heartbeat takes its own member one step, and a member waits for another one only
  to give up a partition.
- A member in a wrong epoch is fenced: it gives up everything and joins again. The previous epoch is accepted
  while the member owns nothing that it may not have: then the answer with the new epoch was lost.
- A member that joins again under its id (epoch 0) owns nothing, and keeps its targets.
- A static member that leaves for a while (epoch -2) keeps its partitions until its session ends. The next
  member with its instance id takes its place and its targets, without a change for the others. Before the
  first one has left, another one with its instance id is refused.
- Where an authorizer hides topics, an expression matches those that its member may see (KIP-848: topics that
  the member may not describe are filtered out). Each heartbeat finds them anew, if topics or rules have
  changed. A member of which there was no heartbeat since this coordinator took over keeps the topics that it
  has, and gets no others.
- What is answered and stored, and when: `outbox.py`.
- Members of the classic protocol in such a group: `bridge/mixed_group.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Self

from mainstem_broker.errors import (
    GroupMaxSizeReached,
    IllegalGeneration,
    InvalidRequest,
    ProtocolError,
    StaleMemberEpoch,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedVersion,
)
from mainstem_broker.group.consumer.heartbeat import check_epoch, check_heartbeat, is_full, updated_metadata
from mainstem_broker.group.consumer.holders import Holders
from mainstem_broker.group.consumer.member import ConsumerMember
from mainstem_broker.group.consumer.outbox import Outbox
from mainstem_broker.group.consumer.reconciliation import next_assignment
from mainstem_broker.group.consumer.records import (
    CURRENT_KEY,
    GROUP_KEY,
    MEMBER_KEY,
    TARGET_EPOCH_KEY,
    TARGET_KEY,
    ConsumerGroupKey,
    ConsumerGroupValue,
    ConsumerMemberMetadata,
    CurrentAssignment,
    GroupEpoch,
    MemberState,
    Partitions,
    TargetAssignment,
    TargetEpoch,
)
from mainstem_broker.group.consumer.subscribed_topics import Interest, SubscribedTopics
from mainstem_broker.group.consumer.targets import Targets, elect_assignor
from mainstem_broker.group.embedded_protocol import CONSUMER_PROTOCOL_TYPE
from mainstem_broker.group.identity import find_member
from mainstem_broker.group.messages import (
    JOINING_EPOCH,
    LEAVING_FOR_A_WHILE_EPOCH,
    AnyAnswer,
    Commit,
    ConsumerHeartbeat,
    Decisions,
    HeartbeatAnswer,
    TopicVisibility,
)
from mainstem_broker.group.topics import Topics

COMMIT_VERSION_MIN: Final = 9
"""Of OffsetCommit: clients of lower versions do not know the errors of these groups (KIP-848)."""


class ConsumerState(Enum):
    """The values are the names that Kafka's tools show."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class ConsumerPolicy:
    """Settings of consumer groups.

    - `session_timeout_ms`: of a group by its id (consumer.session.timeout.ms); it may change at any time.
    - `members_max`: group.consumer.max.size.
    - `assignors`: group.consumer.assignors, the default first.
    - `hides_topics`: whether an authorizer decides which topics a member may see.
    """

    session_timeout_ms: Callable[[str], int]
    members_max: int
    assignors: tuple[str, ...]
    hides_topics: bool = False


class ConsumerGroup:
    """One group. Every method that is given `now_ms` gets it from one steady clock."""

    def __init__(self, group_id: str, policy: ConsumerPolicy, topics: Topics, epoch: int = 0) -> None:
        """An empty group; `epoch` is the last one of an earlier group with this id."""
        self.group_id = group_id
        self.epoch = epoch
        self.assignment_epoch = epoch
        # Of the ids and partition counts of subscribed topics; 0: there are none.
        self.metadata_hash = 0
        self.members: dict[str, ConsumerMember] = {}
        self.targets = Targets()
        self.is_closed = False
        self.wake_ms: int | None = None
        self.topics = topics
        self._policy = policy
        self._subscribed = SubscribedTopics(topics)
        # By instance id.
        self._static: dict[str, ConsumerMember] = {}
        self._holders = Holders()
        self._outbox = Outbox(self._value)

    @classmethod
    def restore(
        cls,
        group_id: str,
        policy: ConsumerPolicy,
        topics: Topics,
        records: Mapping[ConsumerGroupKey, ConsumerGroupValue],
        now_ms: int,
    ) -> Self:
        """The group that records describe. Its members' sessions begin now."""
        group = cls(group_id, policy, topics)
        for key, value in records.items():
            match value:
                case GroupEpoch():
                    group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
                case TargetEpoch():
                    group.assignment_epoch = value.epoch
                case ConsumerMemberMetadata():
                    member = ConsumerMember(key.member_id, value, CurrentAssignment(), 0)
                    group.insert(member)
                    group.renew(member, now_ms)
                case TargetAssignment():
                    group.targets[key.member_id] = value.partitions
        # Only now: the record of a member's assignment may be older than that of its metadata.
        for key, value in records.items():
            owner = group.members.get(key.member_id)
            if isinstance(value, CurrentAssignment) and owner is not None:
                group.hold(owner, value)
                group.watch_revocation(owner, now_ms)
        for member_id in group.targets.keys() - group.members.keys():
            del group.targets[member_id]
        if policy.hides_topics:
            group._keep_matched()
        return group

    def _keep_matched(self) -> None:
        """Match the topics that members have, until heartbeats say which ones they may see."""
        for member in self.members.values():
            if member.metadata.topic_regex is not None:
                topic_ids = {topic_id for topic_id, _ in self._partitions_of(member)}
                names = map(self.topics.name, topic_ids)
                member.matched = frozenset(name for name in names if name is not None)

    def _partitions_of(self, member: ConsumerMember) -> Partitions:
        return member.current.held | self.targets.of(member.member_id)

    # --- Requests ---

    def consumer_heartbeat(self, request: ConsumerHeartbeat, now_ms: int) -> Decisions:
        """Handle a heartbeat. Its answer is among these decisions or those of a later call."""
        try:
            check_heartbeat(request, self._policy.assignors)
            if request.member_epoch < JOINING_EPOCH:
                answer = self._leave(request)
            else:
                answer = self._heartbeat(request, now_ms)
        except ProtocolError as error:
            answer = HeartbeatAnswer(None, 0, None, error.code, error.message)
        self.answer(request.number, answer)
        return self.decided()

    def check_commit(self, commit: Commit, _now_ms: int) -> None:
        """Check a commit of offsets.

        An earlier epoch counts too if the member has had all of the partitions since then: nobody else can
        have read them, and the answer with its present epoch may still be on its way (KIP-1251).

        Raises:
            UnknownMemberId: not from a member; that is allowed only while the group is empty.
            StaleMemberEpoch: the member is in another epoch; it repeats the commit when it knows that.
            UnsupportedVersion: the request is of a version that does not know such groups.
            IllegalGeneration: as StaleMemberEpoch, of a commit in a transaction.
        """
        if commit.generation < 0 and not self.members:
            return
        if commit.is_transactional:
            self._check_transactional(commit)
            return
        self.require(commit.member_id)
        if commit.version < COMMIT_VERSION_MIN:
            raise UnsupportedVersion(
                f"Members of this group commit with OffsetCommit {COMMIT_VERSION_MIN} or higher."
            )
        if not self._has_held(commit):
            self.check_fetch(commit.member_id, commit.generation)

    def _check_transactional(self, commit: Commit) -> None:
        if not commit.names_member:
            return
        epoch = self.require(commit.member_id).current.epoch
        if commit.generation != epoch and not self._has_held(commit):
            # Producers do not know STALE_MEMBER_EPOCH.
            raise IllegalGeneration(f"The member is in epoch {epoch}, not {commit.generation}.")

    def _has_held(self, commit: Commit) -> bool:
        """Whether the member has had all partitions of the commit since an earlier epoch, the commit's."""
        member = self.require(commit.member_id)
        if not commit.partitions or not 0 <= commit.generation < member.current.epoch:
            return False
        held = {
            (self.topics.name(topic_id), number)
            for (topic_id, number), epoch in member.held_since.items()
            if epoch <= commit.generation
        }
        return held.issuperset(commit.partitions)

    def check_fetch(self, member_id: str, member_epoch: int) -> None:
        """Check a fetch of committed offsets that is made as a member.

        Raises:
            UnknownMemberId, StaleMemberEpoch: as `check_commit`.
        """
        epoch = self.require(member_id).current.epoch
        if member_epoch != epoch:
            raise StaleMemberEpoch(f"The member is in epoch {epoch}, not {member_epoch}.")

    # --- Other events ---

    def stored(self, ticket: int, error_code: int, _now_ms: int) -> Decisions:
        return self._outbox.stored(ticket, error_code)

    def tick(self, now_ms: int) -> Decisions:
        expired = [member for member in self.members.values() if member.deadline_ms() <= now_ms]
        if expired:
            self.remove(expired)
        self.wake_ms = min((member.deadline_ms() for member in self.members.values()), default=None)
        return self.decided()

    def close(self, error_code: int) -> Decisions:
        self.members.clear()
        self.is_closed = True
        self.wake_ms = None
        return self._outbox.close(error_code)

    # --- The group as others see it ---

    @property
    def protocol_type(self) -> str:
        return CONSUMER_PROTOCOL_TYPE

    @property
    def state(self) -> ConsumerState:
        if self.is_closed:
            return ConsumerState.DEAD
        if not self.members:
            return ConsumerState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerState.ASSIGNING
        if all(member.is_settled(self.assignment_epoch) for member in self.members.values()):
            return ConsumerState.STABLE
        return ConsumerState.RECONCILING

    @property
    def is_empty(self) -> bool:
        return not self.is_closed and not self.members

    @property
    def is_idle(self) -> bool:
        return not self.members and self._outbox.is_empty

    @property
    def assignor(self) -> str:
        """The name of the assignor that the next targets are computed by."""
        return elect_assignor(self.members.values(), self._policy.assignors)

    def record_keys(self) -> list[bytes]:
        keys = [ConsumerGroupKey(kind, self.group_id) for kind in (GROUP_KEY, TARGET_EPOCH_KEY)]
        for kind in (MEMBER_KEY, TARGET_KEY, CURRENT_KEY):
            keys += [ConsumerGroupKey(kind, self.group_id, member_id) for member_id in self.members]
        return [key.encode() for key in keys]

    def topics_in_use(self) -> frozenset[str]:
        """The names that members subscribe to, and those that their expressions match."""
        self._subscribed.refresh()
        return frozenset[str]().union(*map(self._subscribed.names, self._interests()))

    # --- Heartbeats ---

    def _heartbeat(self, request: ConsumerHeartbeat, now_ms: int) -> HeartbeatAnswer:
        member = self._find(request)
        if member is None:
            self.require_place()
        if request.topic_regex:
            self._subscribed.require_pattern(request.topic_regex)
        metadata = updated_metadata(request, None if member is None else member.metadata)
        member = self.admit(request.member_id, metadata, member, request.visibility)
        before = member.current
        self.reconcile(member, request.owned, now_ms)
        self.renew(member, now_ms)
        after = member.current
        is_reported = is_full(request) or after.assigned != before.assigned
        return HeartbeatAnswer(member.member_id, after.epoch, after.assigned if is_reported else None)

    def _find(self, request: ConsumerHeartbeat) -> ConsumerMember | None:
        """The member that a heartbeat is from, or a static one whose place it takes; None: a new member."""
        if request.member_epoch == JOINING_EPOCH:
            member = self.members.get(request.member_id)
            if member is not None and member.instance_id == request.instance_id:
                return member
            if member is not None:
                raise InvalidRequest("A member keeps its instance id as long as it has its member id.")
            static = self.static_member(request.instance_id)
            if static is not None and not static.is_classic and not static.is_away:
                raise UnreleasedInstanceId(f"Another process has the instance id '{request.instance_id}'.")
            return static
        member = self.require(request.member_id, request.instance_id)
        if member.is_classic:
            raise UnknownMemberId("The member speaks the classic protocol: join to change that.")
        check_epoch(request, member.current)
        return member

    def _leave(self, request: ConsumerHeartbeat) -> HeartbeatAnswer:
        member = self.require(request.member_id, request.instance_id)
        if request.member_epoch == LEAVING_FOR_A_WHILE_EPOCH:
            # It gives up everything, but no other member gets it before its session ends.
            current = replace(
                member.current,
                epoch=LEAVING_FOR_A_WHILE_EPOCH,
                state=MemberState.STABLE,
                revoking=frozenset(),
            )
            self.hold(member, current)
            self.changed(CURRENT_KEY, member.member_id)
            member.act_by_ms = None
        else:
            self.remove([member])
        return HeartbeatAnswer(request.member_id, request.member_epoch)

    # --- Members; also for the package `bridge` ---

    def require(self, member_id: str, instance_id: str | None = None) -> ConsumerMember:
        """The member that a request is from; raises as `find_member`."""
        return find_member(self.members, self._static, member_id, instance_id)

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        return None if instance_id is None else self._static.get(instance_id)

    def require_place(self) -> None:
        """Raise GroupMaxSizeReached unless one more member may join."""
        if len(self.members) >= self._policy.members_max:
            raise GroupMaxSizeReached(
                f"The group has {len(self.members)} members, and group.consumer.max.size is"
                f" {self._policy.members_max}."
            )

    def admit(
        self,
        member_id: str,
        metadata: ConsumerMemberMetadata,
        predecessor: ConsumerMember | None,
        visibility: TopicVisibility | None = None,
    ) -> ConsumerMember:
        """Take over a member's metadata, with the consequences for the group's epochs and targets.

        `predecessor` is the same member before, or a static one whose place it takes; None: a new member.
        """
        if predecessor is None:
            member = ConsumerMember(member_id, metadata, CurrentAssignment(), 0)
            self.insert(member)
            self.changed(MEMBER_KEY, member_id)
        else:
            member = (
                predecessor if predecessor.member_id == member_id else self._replace(predecessor, member_id)
            )
            if member.metadata != metadata:
                self.changed(MEMBER_KEY, member_id)
        is_assigned_anew = predecessor is None or predecessor.metadata.assigned_by != metadata.assigned_by
        member.metadata = metadata
        has_news = self._subscribed.refresh()
        if self._match(member, visibility):
            is_assigned_anew = True
        if is_assigned_anew or (has_news and self._hash() != self.metadata_hash):
            self._raise_epoch()
        if self.epoch > self.assignment_epoch:
            self._assign()
        return member

    def _match(self, member: ConsumerMember, visibility: TopicVisibility | None) -> bool:
        """Find the topics that the member's expression matches; returns whether others are visible now."""
        regex, before = member.metadata.topic_regex, member.matched
        if regex is None or visibility is None:
            member.matched = member.matched_version = None
        else:
            version = (regex, self.topics.version, visibility.version)
            if member.matched_version != version:
                member.matched = self._subscribed.visible(regex, visibility.may_see)
                member.matched_version = version
        return member.matched != before

    def check_topics(self) -> None:
        """Raise the group epoch if subscribed topics were created, deleted or given more partitions."""
        if self._subscribed.refresh() and self._hash() != self.metadata_hash:
            self._raise_epoch()

    def insert(self, member: ConsumerMember) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member

    def _replace(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """Give the place of a static member to another one, which owns nothing yet (KIP-345)."""
        self._forget(old)
        current = CurrentAssignment(assigned=old.current.assigned)
        member = ConsumerMember(member_id, old.metadata, CurrentAssignment(), 0, matched=old.matched)
        self.insert(member)
        self.hold(member, current)
        self.targets[member_id] = self.targets.pop(old.member_id, frozenset())
        for kind in (MEMBER_KEY, TARGET_KEY, CURRENT_KEY):
            self.changed(kind, old.member_id)
            self.changed(kind, member_id)
        return member

    def remove(self, members: Iterable[ConsumerMember]) -> None:
        """Remove members: their partitions are free, and targets have to be computed anew."""
        for member in members:
            self._forget(member)
            self.targets.pop(member.member_id, None)
            for kind in (CURRENT_KEY, TARGET_KEY, MEMBER_KEY):
                self.changed(kind, member.member_id)
        self._subscribed.refresh()
        self._raise_epoch()

    def _forget(self, member: ConsumerMember) -> None:
        self.hold(member, CurrentAssignment())
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self._static[member.instance_id]

    def renew(self, member: ConsumerMember, now_ms: int) -> None:
        """Restart the member's session, after a sign of life."""
        classic = member.metadata.classic
        if classic is None:
            timeout_ms = self._policy.session_timeout_ms(self.group_id)
        else:
            timeout_ms = classic.session_timeout_ms
        member.expires_ms = now_ms + timeout_ms
        self.wake_by(member.deadline_ms())

    # --- Partitions ---

    def reconcile(self, member: ConsumerMember, owned: Partitions | None, now_ms: int) -> None:
        """Take a member one step towards its target."""
        member_id, holders = member.member_id, self._holders
        step = next_assignment(
            member.current,
            target_epoch=self.assignment_epoch,
            target=self.targets.of(member_id),
            owned=owned,
            is_held=lambda partition: holders.is_held_by_other(partition, member_id),
        )
        if step is not member.current:
            self.hold(member, step)
            self.changed(CURRENT_KEY, member_id)
            self.watch_revocation(member, now_ms)

    def watch_revocation(self, member: ConsumerMember, now_ms: int) -> None:
        """Set the deadline of a member that has to give up partitions."""
        if member.is_classic:
            return  # its deadline is that of joining again, which its next heartbeat requests
        if member.current.state is not MemberState.UNREVOKED_PARTITIONS:
            member.act_by_ms = None
        else:
            member.act_by_ms = now_ms + member.metadata.rebalance_timeout_ms
            self.wake_by(member.act_by_ms)

    def hold(self, member: ConsumerMember, current: CurrentAssignment) -> None:
        """Replace a member's current assignment."""
        self._holders.set(member, current)

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Whether others hold all partitions that the member is still missing."""
        missing = self.targets.of(member.member_id) - member.current.assigned
        return all(map(self._holders.is_held, missing))

    def _assign(self) -> None:
        """Compute the targets for the current group epoch."""
        for member_id in self.targets.compute(self.members.values(), self._subscribed, self.assignor):
            self.changed(TARGET_KEY, member_id)
        self.assignment_epoch = self.epoch
        # Last: if only some of the records are stored, the next coordinator computes the targets again.
        self.changed(TARGET_EPOCH_KEY)

    def _interests(self) -> set[Interest]:
        return {member.interest for member in self.members.values()}

    def _hash(self) -> int:
        return self._subscribed.hash(self._interests())

    def _raise_epoch(self) -> None:
        self.epoch += 1
        interests = self._interests()
        self._subscribed.forget(interests)
        self.metadata_hash = self._subscribed.hash(interests)
        self.changed(GROUP_KEY)

    # --- Decisions ---

    def changed(self, kind: int, member_id: str = "") -> None:
        """Note that this record has to be written."""
        self._outbox.changed(ConsumerGroupKey(kind, self.group_id, member_id))

    def answer(self, request_number: int, answer: AnyAnswer) -> None:
        self._outbox.answer(request_number, answer)

    def decided(self) -> Decisions:
        return self._outbox.decided()

    def wake_by(self, deadline_ms: int) -> None:
        if self.wake_ms is None or deadline_ms < self.wake_ms:
            self.wake_ms = deadline_ms

    def _value(self, key: ConsumerGroupKey) -> ConsumerGroupValue | None:
        """The current value of a record; None: the member is no longer in the group."""
        if key.kind == GROUP_KEY:
            return GroupEpoch(self.epoch, self.metadata_hash)
        if key.kind == TARGET_EPOCH_KEY:
            return TargetEpoch(self.assignment_epoch)
        member = self.members.get(key.member_id)
        if member is None:
            return None
        if key.kind == MEMBER_KEY:
            return member.metadata
        if key.kind == CURRENT_KEY:
            return member.current
        return TargetAssignment(self.targets.of(key.member_id))
