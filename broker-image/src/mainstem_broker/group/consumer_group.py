"""A group of the protocol of KIP-848 as a state machine: the broker assigns, members follow step by step.

Told of heartbeats and of time, it answers decisions; it reads no clock, writes nothing, waits for nobody.

    group epoch       rises with every change of members, of what they subscribe to, or of those topics
    assignment epoch  the group epoch that the target assignment was computed for
    member epoch      the assignment epoch that a member has come to; how: `reconciliation.py`

    Empty        no members; offsets may be committed by anyone
    Assigning    the group epoch is ahead of the assignment epoch: the next heartbeat has targets computed
    Reconciling  some members have not come to their targets yet
    Stable       all have
    Dead         this coordinator is no longer in charge of it

Rules, and where they come from:
- There is no barrier: each heartbeat takes its own member one step, and no member waits for another but for a
  partition that the other has not given up yet.
- A member in another epoch than it should be is fenced: it gives up everything and joins again. The epoch
  before is fine while it has nothing but what it may have: the answer that told it of the new one was lost.
- A member that joins again under its id (epoch 0) has nothing, and keeps its targets.
- A static member that leaves for a while (epoch -2) keeps its partitions for its session's length; who comes
  with its instance id takes its place, and its targets, without a change for the others. Before it has left,
  another one with its instance id is refused.
- Members of the classic protocol may take part, each with its own requests: `classic_members.py`.
- What is told and what is stored, and when: `outbox.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from mainstem_broker.errors import (
    GroupMaxSizeReached,
    InvalidRequest,
    ProtocolError,
    StaleMemberEpoch,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedVersion,
)
from mainstem_broker.group.assignors import ASSIGNORS, Subscriber
from mainstem_broker.group.consumer_heartbeat import (
    require_epoch,
    require_sound,
    says_all,
    told_metadata,
)
from mainstem_broker.group.consumer_member import ConsumerMember
from mainstem_broker.group.consumer_records import (
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
    Partition,
    Partitions,
    TargetAssignment,
    TargetEpoch,
)
from mainstem_broker.group.embedded_protocol import CONSUMER_PROTOCOL_TYPE
from mainstem_broker.group.identity import find_member
from mainstem_broker.group.messages import (
    JOINING_EPOCH,
    LEAVING_FOR_A_WHILE_EPOCH,
    AnyAnswer,
    ConsumerHeartbeat,
    Decisions,
    HeartbeatAnswer,
)
from mainstem_broker.group.outbox import Outbox
from mainstem_broker.group.reconciliation import next_assignment
from mainstem_broker.group.subscribed_topics import Interest, SubscribedTopics
from mainstem_broker.group.topics import Topics

NOTHING: Partitions = frozenset()
COMMIT_VERSION_MIN: Final = 9
"""Of OffsetCommit: lower ones do not know the errors that tell a member to go on (KIP-848)."""


class ConsumerState(Enum):
    """The values are the names that Kafka's tools show."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class ConsumerPolicy:
    """Settings group.consumer.*: max.size, the assignors, the default first; `session_timeout_ms` of a group
    by its id, which may change while the group lives (consumer.session.timeout.ms).
    """

    session_timeout_ms: Callable[[str], int]
    members_max: int
    assignors: tuple[str, ...]


class ConsumerGroup:
    """The membership of one group. Every method that is given `now_ms` gets it from one steady clock."""

    def __init__(self, group_id: str, policy: ConsumerPolicy, topics: Topics, epoch: int = 0) -> None:
        """An empty group; `epoch` is that of whatever had the name before."""
        self.group_id = group_id
        self.epoch = epoch
        self.assignment_epoch = epoch
        self.metadata_hash = 0
        """Of the topics that members subscribe to: their ids and partition counts. 0: there are none."""
        self.members: dict[str, ConsumerMember] = {}
        self.targets: dict[str, Partitions] = {}
        self.is_closed = False
        self.wake_ms: int | None = None
        """When `tick` is to be called, perhaps too early, never too late; None: nothing is waited for."""
        self.topics = topics
        self._policy = policy
        self._subscribed = SubscribedTopics(topics)
        self._static: dict[str, str] = {}
        """Instance id to member id."""
        self._holders: dict[Partition, str] = {}
        """Who has a partition, or has not given it up yet."""
        self._outbox = Outbox(self._value)

    @classmethod
    def restore(
        cls,
        group_id: str,
        policy: ConsumerPolicy,
        topics: Topics,
        records: Mapping[ConsumerGroupKey, ConsumerGroupValue],
        now_ms: int,
    ) -> ConsumerGroup:
        """The group that records tell of, its members with full sessions ahead of them."""
        group = cls(group_id, policy, topics)
        for key, value in records.items():
            if isinstance(value, GroupEpoch):
                group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
            elif isinstance(value, TargetEpoch):
                group.assignment_epoch = value.epoch
            elif isinstance(value, ConsumerMemberMetadata):
                member = ConsumerMember(key.member_id, value, CurrentAssignment(), 0)
                group.insert(member)
                group.renew(member, now_ms)
            elif isinstance(value, TargetAssignment):
                group.targets[key.member_id] = value.partitions
        for key, value in records.items():
            known = group.members.get(key.member_id)
            if isinstance(value, CurrentAssignment) and known is not None:
                group.hold(known, value)
                group.watch_revocation(known, now_ms)
        for member_id in group.targets.keys() - group.members.keys():
            del group.targets[member_id]
        return group

    # --- What members ask ---

    def heartbeat(self, asked: ConsumerHeartbeat, now_ms: int) -> Decisions:
        """Take a heartbeat; its answer may be among the decisions of this or of any later call."""
        try:
            require_sound(asked, self._policy.assignors)
            if asked.member_epoch < JOINING_EPOCH:
                answer = self._leave(asked)
            else:
                answer = self._heartbeat(asked, now_ms)
        except ProtocolError as error:
            answer = HeartbeatAnswer(None, 0, None, error.code, error.message)
        self.answer(asked.request, answer)
        return self.decided()

    def check_commit(self, member_id: str, member_epoch: int, version: int) -> None:
        """Let a commit of offsets pass; `version` is the request's.

        Raises:
            UnknownMemberId: not from a member, and others may only commit while there are none.
            StaleMemberEpoch: the member has come to another epoch; it asks again when it knows.
            UnsupportedVersion: the request is of a version that knows nothing of such groups.
        """
        if member_epoch < 0 and not self.members:
            return
        self.require(member_id)
        if version < COMMIT_VERSION_MIN:
            raise UnsupportedVersion(
                f"Members of this group commit with OffsetCommit {COMMIT_VERSION_MIN} or higher."
            )
        self.check_fetch(member_id, member_epoch)

    def check_fetch(self, member_id: str, member_epoch: int) -> None:
        """Let a question for committed offsets pass, if it is asked as a member.

        Raises:
            UnknownMemberId, StaleMemberEpoch: as `check_commit`.
        """
        epoch = self.require(member_id).current.epoch
        if member_epoch != epoch:
            raise StaleMemberEpoch(f"The member is in epoch {epoch}, not {member_epoch}.")

    # --- What else happens ---

    def stored(self, ticket: int, error_code: int) -> Decisions:
        """Records that this group asked for are stored, or will not be."""
        return self._outbox.stored(ticket, error_code)

    def tick(self, now_ms: int) -> Decisions:
        """Time has passed: remove those who did not show, or did not give up what they had to."""
        late = [member for member in self.members.values() if member.deadline_ms() <= now_ms]
        if late:
            self.remove(late)
        self.wake_ms = min((member.deadline_ms() for member in self.members.values()), default=None)
        return self.decided()

    def close(self, error_code: int) -> Decisions:
        """This coordinator is no longer in charge: whoever waits gets this error."""
        self.members.clear()
        self.is_closed = True
        self.wake_ms = None
        return self._outbox.close(error_code)

    # --- What others see ---

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
    def is_idle(self) -> bool:
        """Whether there are no members, nor anything about them that is still being stored."""
        return not self.members and self._outbox.is_empty

    @property
    def has_only_classic_members(self) -> bool:
        return bool(self.members) and all(member.is_classic for member in self.members.values())

    @property
    def assignor(self) -> str:
        """The assignor that most members who name one ask for; the broker's first if none does."""
        votes = Counter(
            member.metadata.assignor
            for member in self.members.values()
            if member.metadata.assignor is not None
        )
        names = self._policy.assignors
        return max(names, key=lambda name: votes[name])

    def record_keys(self) -> list[bytes]:
        """Of all records that tell of this group."""
        keys = [ConsumerGroupKey(kind, self.group_id) for kind in (GROUP_KEY, TARGET_EPOCH_KEY)]
        for kind in (MEMBER_KEY, TARGET_KEY, CURRENT_KEY):
            keys += [ConsumerGroupKey(kind, self.group_id, member_id) for member_id in self.members]
        return [key.encode() for key in keys]

    def subscribed_topics(self) -> frozenset[str]:
        """The names that members subscribe to, and those that their expressions match."""
        self._subscribed.refresh()
        return frozenset[str]().union(*map(self._subscribed.names, self._interests()))

    # --- Heartbeats ---

    def _heartbeat(self, asked: ConsumerHeartbeat, now_ms: int) -> HeartbeatAnswer:
        known = self._find(asked)
        if known is None:
            self.require_place()
        if asked.topic_regex:
            self._subscribed.require_pattern(asked.topic_regex)
        metadata = told_metadata(asked, None if known is None else known.metadata)
        member = self.admit(asked.member_id, metadata, known)
        before = member.current
        self.reconcile(member, asked.owned, now_ms)
        self.renew(member, now_ms)
        after = member.current
        tells = says_all(asked) or after.assigned != before.assigned
        return HeartbeatAnswer(member.member_id, after.epoch, after.assigned if tells else None)

    def _find(self, asked: ConsumerHeartbeat) -> ConsumerMember | None:
        """The member that a heartbeat is from, or whose place it takes; None: it is a new one."""
        static = self.static_member(asked.instance_id)
        if asked.member_epoch == JOINING_EPOCH:
            known = self.members.get(asked.member_id)
            if known is not None and known.instance_id == asked.instance_id:
                return known
            if known is not None:
                raise InvalidRequest("A member keeps its instance id as long as it has its member id.")
            if static is not None and not static.is_classic and not static.is_away:
                raise UnreleasedInstanceId(f"Another process has the instance id '{asked.instance_id}'.")
            return static
        member = self.require(asked.member_id, asked.instance_id)
        if member.is_classic:
            raise UnknownMemberId("The member speaks the classic protocol: it joins to speak this one.")
        require_epoch(asked, member.current)
        return member

    def _leave(self, asked: ConsumerHeartbeat) -> HeartbeatAnswer:
        member = self.require(asked.member_id, asked.instance_id)
        if asked.member_epoch == LEAVING_FOR_A_WHILE_EPOCH:
            # It gives up everything, but nobody else gets it before its session ends.
            current = member.current
            self.hold(
                member,
                replace(current, epoch=LEAVING_FOR_A_WHILE_EPOCH, state=MemberState.STABLE, revoking=NOTHING),
            )
            self.changed(CURRENT_KEY, member.member_id)
            member.act_by_ms = None
        else:
            self.remove([member])
        return HeartbeatAnswer(asked.member_id, asked.member_epoch)

    # --- Members; also for `classic_members.py` ---

    def require(self, member_id: str, instance_id: str | None = None) -> ConsumerMember:
        """The member that a request is from; raises as `find_member`."""
        return find_member(self.members, self._static, member_id, instance_id)

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        member_id = None if instance_id is None else self._static.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def require_place(self) -> None:
        if len(self.members) >= self._policy.members_max:
            raise GroupMaxSizeReached(
                f"The group has {len(self.members)} members, as many as group.consumer.max.size allows."
            )

    def admit(
        self, member_id: str, metadata: ConsumerMemberMetadata, known: ConsumerMember | None
    ) -> ConsumerMember:
        """Take in what a member says of itself, and whatever follows from that for the group.

        `known` is the same member, or a static one whose place it takes; None: it is a new one.
        """
        if known is None:
            member = ConsumerMember(member_id, metadata, CurrentAssignment(), 0)
            self.insert(member)
            self.changed(MEMBER_KEY, member_id)
        else:
            member = known if known.member_id == member_id else self._replace(known, member_id)
            if member.metadata != metadata:
                self.changed(MEMBER_KEY, member_id)
        is_other = known is None or known.metadata.assigned_by != metadata.assigned_by
        member.metadata = metadata
        has_news = self._subscribed.refresh()
        if is_other or (has_news and self._hash() != self.metadata_hash):
            self._raise_epoch()
        if self.epoch > self.assignment_epoch:
            self._assign()
        return member

    def look_at_topics(self) -> None:
        """Raise the group epoch if topics that somebody subscribes to have come, gone or grown."""
        if self._subscribed.refresh() and self._hash() != self.metadata_hash:
            self._raise_epoch()

    def insert(self, member: ConsumerMember) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id

    def _replace(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """Give the place of a static member to another one, which has nothing yet (KIP-345)."""
        self._forget(old)
        current = CurrentAssignment(assigned=old.current.assigned)
        member = ConsumerMember(member_id, old.metadata, CurrentAssignment(), 0)
        self.insert(member)
        self.hold(member, current)
        self.targets[member_id] = self.targets.pop(old.member_id, NOTHING)
        for kind in (MEMBER_KEY, TARGET_KEY, CURRENT_KEY):
            self.changed(kind, old.member_id)
            self.changed(kind, member_id)
        return member

    def remove(self, members: Iterable[ConsumerMember]) -> None:
        """Take members out: their partitions are free, and targets are to be computed anew."""
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
        """A sign of life."""
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
            target=self.targets.get(member_id, NOTHING),
            owned=owned,
            is_held=lambda partition: holders.get(partition, member_id) != member_id,
        )
        if step is not member.current:
            self.hold(member, step)
            self.changed(CURRENT_KEY, member_id)
            self.watch_revocation(member, now_ms)

    def watch_revocation(self, member: ConsumerMember, now_ms: int) -> None:
        """Have a member that has to give up partitions do so in time."""
        if member.is_classic:
            return  # it has until it has joined again, which its next heartbeat asks of it
        if member.current.state is not MemberState.UNREVOKED_PARTITIONS:
            member.act_by_ms = None
        else:
            member.act_by_ms = now_ms + member.metadata.rebalance_timeout_ms
            self.wake_by(member.act_by_ms)

    def hold(self, member: ConsumerMember, current: CurrentAssignment) -> None:
        """Give a member this assignment instead of the one that it has."""
        for partition in member.current.held:
            if self._holders.get(partition) == member.member_id:
                del self._holders[partition]
        member.current = current
        for partition in current.held:
            self._holders[partition] = member.member_id

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Whether others have all that a member still lacks."""
        lacking = self.targets.get(member.member_id, NOTHING) - member.current.assigned
        return all(partition in self._holders for partition in lacking)

    def _assign(self) -> None:
        """Compute targets for the present group epoch."""
        ids = {interest: self._subscribed.ids(interest) for interest in self._interests()}
        subscribers = [
            Subscriber(
                member.member_id,
                member.instance_id,
                ids[member.interest],
                self.targets.get(member.member_id, NOTHING),
            )
            for member in self.members.values()
        ]
        assign = ASSIGNORS[self.assignor]
        for member_id, target in assign(subscribers, self._subscribed.partition_counts(ids)).items():
            if self.targets.get(member_id) != target:
                self.targets[member_id] = target
                self.changed(TARGET_KEY, member_id)
        self.assignment_epoch = self.epoch
        # Last: without it the targets are computed once more, whatever has become of their records.
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
        """Note that this record is to be written."""
        self._outbox.changed(ConsumerGroupKey(kind, self.group_id, member_id))

    def answer(self, request: int, answer: AnyAnswer) -> None:
        self._outbox.answer(request, answer)

    def decided(self) -> Decisions:
        return self._outbox.decided()

    def wake_by(self, deadline_ms: int) -> None:
        if self.wake_ms is None or deadline_ms < self.wake_ms:
            self.wake_ms = deadline_ms

    def _value(self, key: ConsumerGroupKey) -> ConsumerGroupValue | None:
        member = self.members.get(key.member_id)
        if key.kind == GROUP_KEY:
            return GroupEpoch(self.epoch, self.metadata_hash)
        if key.kind == TARGET_EPOCH_KEY:
            return TargetEpoch(self.assignment_epoch)
        if member is None:
            return None
        if key.kind == MEMBER_KEY:
            return member.metadata
        if key.kind == CURRENT_KEY:
            return member.current
        return TargetAssignment(self.targets.get(key.member_id, NOTHING))
