"""The coordinator of the groups whose partition of `__consumer_offsets` this broker leads.

Belongs here: what may be requested of which group, and by whom. The rules of membership belong to the groups
(`kind.py`), carrying them out to `shard.py`, requests and their versions to the package `api`.

To be called on the event loop only. A method that has to wait returns a future; the others return at once.
Every method that names a group raises InvalidGroupId, NotCoordinator or CoordinatorLoadInProgress if the
group cannot be served here now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from mainstem_broker.coordinator.journal import Journal, TransactionalProducer
from mainstem_broker.coordinator.key_placement import partition_of_key
from mainstem_broker.coordinator.shards import Shards
from mainstem_broker.errors import (
    CoordinatorLoadInProgress,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    InvalidGroupId,
    InvalidSessionTimeout,
    NonEmptyGroup,
    NotCoordinator,
    ProtocolError,
    UnknownMemberId,
    UnsupportedVersion,
)
from mainstem_broker.group.bridge.mixed_group import MixedGroup
from mainstem_broker.group.classic.group import ClassicGroup
from mainstem_broker.group.consumer.group import ConsumerGroup
from mainstem_broker.group.consumer.heartbeat import check_heartbeat
from mainstem_broker.group.consumer.topic_patterns import TopicPattern
from mainstem_broker.group.embedded_protocol import CONSUMER_PROTOCOL_TYPE
from mainstem_broker.group.kind import GroupKind, GroupType
from mainstem_broker.group.messages import (
    JOINING_EPOCH,
    Commit,
    ConsumerHeartbeat,
    Decisions,
    HeartbeatAnswer,
    Join,
    JoinAnswer,
    Sync,
    SyncAnswer,
)
from mainstem_broker.group.offsets.records import CommittedOffset
from mainstem_broker.group.shard import AnyGroup, CoordinatedGroup, GroupPolicies, GroupShard
from mainstem_broker.group.topics import Topics
from mainstem_broker.log.producers import Verification
from mainstem_broker.protocol.topic_partition import TopicPartition
from mainstem_broker.replica.partition import Partition

OFFSETS_TOPIC: Final = "__consumer_offsets"


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Settings of a broker that groups depend on; units are named.

    - `has_consumer_protocol`: whether consumer groups of KIP-848 are served.
    - `metadata_size_max`: bytes of the metadata that a commit may store with an offset.
    """

    policies: GroupPolicies
    has_consumer_protocol: bool
    session_timeout_ms_min: int
    session_timeout_ms_max: int
    offsets_retention_ms: int
    retention_check_interval_ms: int
    commit_timeout_ms: int
    metadata_size_max: int


class GroupCoordinator:
    """All groups that this broker coordinates.

    `shards.follow` has to be called when leadership changes. `find_partition` returns the local replica of a
    partition of `__consumer_offsets`; `wall_ms` is the time of day.
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        topics: Topics,
        find_partition: Callable[[int], Partition | None],
        wall_ms: Callable[[], int],
    ) -> None:
        self.settings = settings
        self.shards = Shards(
            OFFSETS_TOPIC, find_partition, self._make_shard, settings.retention_check_interval_ms
        )
        self._topics = topics
        self._wall_ms = wall_ms

    def _make_shard(self, journal: Journal) -> GroupShard:
        settings = self.settings
        return GroupShard(
            journal, settings.policies, self._topics, self._wall_ms, settings.offsets_retention_ms
        )

    def topics_deleted(self, topics: Collection[tuple[str, UUID]]) -> None:
        """Delete the offsets that were committed for these topics, given by name and id.

        Offsets without an id, which Apache Kafka has written, belong to the topic of their name.
        """
        of_offsets: set[tuple[str, UUID | None]] = {*topics, *((name, None) for name, _ in topics)}
        for shard in self.shards:
            if not shard.is_loaded:
                continue
            for group in shard.groups.values():
                partitions = group.offsets.of_topics(of_offsets)
                if partitions:
                    shard.delete_offsets(group, partitions)

    # --- Finding groups ---

    def offsets_partition(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that holds a group; 0 while there is no such topic."""
        return partition_of_key(group_id, self._topics.partition_count(OFFSETS_TOPIC) or 1)

    def require_coordinated(self, group_id: str) -> None:
        """Raise an error unless the group can be served here now."""
        _require_group_id(group_id)
        self._shard(group_id)

    def group(self, group_id: str) -> AnyGroup:
        """A group's membership, read-only.

        Raises:
            GroupIdNotFound: there is no such group.
        """
        return self._require(group_id)[1].membership

    def classic_group(self, group_id: str) -> ClassicGroup:
        """As `group`; GroupIdNotFound also for a consumer group."""
        group = self.group(group_id)
        if group.group_type is not GroupType.CLASSIC:
            raise GroupIdNotFound(f"Group '{group_id}' is not a classic group.")
        return group

    def consumer_group(self, group_id: str) -> ConsumerGroup:
        """As `group`; GroupIdNotFound also for a classic group."""
        _require_group_id(group_id)
        group = self.group(group_id)
        if group.group_type is not GroupType.CONSUMER:
            raise GroupIdNotFound(f"Group '{group_id}' is not a consumer group of KIP-848.")
        return group

    def groups(self) -> Iterator[GroupKind]:
        """All groups' memberships, read-only.

        Raises:
            CoordinatorLoadInProgress: some are not loaded yet.
        """
        for shard in self.shards:
            shard.require_loaded()
            for group in tuple(shard.groups.values()):
                yield group.membership

    def _shard(self, group_id: str) -> GroupShard:
        shard = self.shards.find(self.offsets_partition(group_id))
        if shard is None:
            raise NotCoordinator(f"This broker does not coordinate group '{group_id}'.")
        shard.require_loaded()
        return shard

    def _find(self, group_id: str) -> tuple[GroupShard, CoordinatedGroup | None]:
        shard = self._shard(group_id)
        return shard, shard.groups.get(group_id)

    def _require(self, group_id: str) -> tuple[GroupShard, CoordinatedGroup]:
        shard, group = self._find(group_id)
        if group is None:
            raise GroupIdNotFound(f"There is no group '{group_id}'.")
        return shard, group

    def _require_with_members(self, group_id: str) -> tuple[GroupShard, CoordinatedGroup]:
        """Find the group of a request that is from a member."""
        _require_group_id(group_id)
        shard, group = self._find(group_id)
        if group is None:
            raise UnknownMemberId(f"There is no group '{group_id}' that this could be a member of.")
        return shard, group

    # --- Members ---

    def join(self, group_id: str, make_request: Callable[[int], Join]) -> asyncio.Future[JoinAnswer]:
        """Handle a JoinGroup; `make_request` makes it with the number that it is given.

        Raises:
            InvalidSessionTimeout, UnknownMemberId: refused before the group gets the request.
        """
        _require_group_id(group_id)
        shard, group = self._find(group_id)
        request = make_request(0)
        lowest_ms, highest_ms = self.settings.session_timeout_ms_min, self.settings.session_timeout_ms_max
        if not lowest_ms <= request.session_timeout_ms <= highest_ms:
            raise InvalidSessionTimeout(
                f"{request.session_timeout_ms} ms are outside group.min.session.timeout.ms = {lowest_ms}"
                f" and group.max.session.timeout.ms = {highest_ms}."
            )
        if group is None:
            if request.member_id:
                raise UnknownMemberId(f"There is no group '{group_id}' that this could be a member of.")
            group = shard.group(group_id)
        membership = group.membership
        if membership.group_type is GroupType.CONSUMER and not membership.members:
            membership = shard.downgrade(group, membership)
        joined: GroupKind = membership
        return shard.wait_for_join(
            group, lambda number: joined.join(replace(request, number=number), shard.steady_ms())
        )

    def sync(self, group_id: str, make_request: Callable[[int], Sync]) -> asyncio.Future[SyncAnswer]:
        """Handle a SyncGroup; likewise."""
        shard, group = self._require_with_members(group_id)
        return shard.wait_for_sync(
            group, lambda number: group.membership.sync(make_request(number), shard.steady_ms())
        )

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> None:
        """Handle a Heartbeat; raises as `GroupKind.heartbeat`.

        While groups are being loaded every heartbeat is accepted: the member would only repeat it, and its
        session begins when its group is loaded.
        """
        try:
            shard, group = self._require_with_members(group_id)
        except CoordinatorLoadInProgress:
            return
        membership = group.membership
        try:
            membership.heartbeat(member_id, instance_id, generation, shard.steady_ms())
        finally:
            # A consumer group may have noticed new topics, and the member may have a deadline now.
            shard.carry_out(group, membership.decided())

    def consumer_heartbeat(
        self, group_id: str, request: ConsumerHeartbeat
    ) -> asyncio.Future[HeartbeatAnswer]:
        """Handle a ConsumerGroupHeartbeat; its number is assigned here.

        Raises:
            UnsupportedVersion: this cluster does not serve consumer groups.
            UnknownMemberId: there is no such group, or it is classic: the member has to join. Apache Kafka
                answers GROUP_ID_NOT_FOUND, after which its client gives up.
            InvalidRequest, UnsupportedAssignor, InvalidRegularExpression, GroupIdNotFound,
                GroupMaxSizeReached: refused before the group gets the request, or becomes a consumer group.
        """
        if not self.settings.has_consumer_protocol:
            raise UnsupportedVersion("group.coordinator.rebalance.protocols does not list 'consumer'.")
        _require_group_id(group_id)
        shard, group = self._find(group_id)

        def heartbeat(consumer: MixedGroup, number: int) -> Decisions:
            return consumer.consumer_heartbeat(replace(request, number=number), shard.steady_ms())

        if group is not None:
            membership = group.membership
            if membership.group_type is GroupType.CONSUMER:
                consumer = membership
                return shard.wait_for_heartbeat(group, lambda number: heartbeat(consumer, number))
        check_heartbeat(request, self.settings.policies.consumer.assignors)
        if request.member_epoch != JOINING_EPOCH:
            raise UnknownMemberId(f"There is no group '{group_id}' that this could be a member of.")
        if request.topic_regex:
            TopicPattern(request.topic_regex)
        group = shard.group(group_id)
        classic = group.membership
        assert classic.group_type is GroupType.CLASSIC
        return shard.upgrade(group, classic, heartbeat)

    def leave(self, group_id: str, member_id: str, instance_id: str | None) -> None:
        """Remove a member; raises as `GroupKind.leave`."""
        shard, group = self._require_with_members(group_id)
        shard.carry_out(group, group.membership.leave(member_id, instance_id, shard.steady_ms()))

    # --- Offsets ---

    def commit(
        self, group_id: str, commit: Commit, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> asyncio.Future[None]:
        """Commit offsets, all or none; done when they are replicated.

        Raises:
            ProtocolError: as `GroupKind.check_commit` and `GroupShard.commit`; the future may fail with
                those of the latter.
        """
        shard, group = self._committing(group_id, commit)
        return shard.commit(group, offsets) if offsets else _nothing()

    def commit_in_transaction(
        self,
        group_id: str,
        commit: Commit,
        producer: TransactionalProducer,
        offsets: Mapping[TopicPartition, CommittedOffset],
    ) -> asyncio.Future[None]:
        """As `commit`; the offsets count when the producer's transaction is committed.

        The group's partition has to be part of the transaction: the caller has verified that.
        """
        shard, group = self._committing(group_id, commit)
        return shard.commit_in_transaction(group, producer, offsets) if offsets else _nothing()

    def check_commit(self, group_id: str, commit: Commit) -> None:
        """Raise an error unless offsets may be committed in a transaction in this way now."""
        _require_group_id(group_id)
        self._committing(group_id, commit)

    def begin_verification(self, group_id: str, producer_id: int, epoch: int) -> Verification | None:
        """What `commit_in_transaction` needs; None if the transaction is open in the group's partition
        already.

        With a verification, the coordinator of transactions has to confirm the partition.
        """
        shard = self._shard(group_id)
        return shard.journal.begin_verification(producer_id, epoch, self._wall_ms())

    def _committing(self, group_id: str, commit: Commit) -> tuple[GroupShard, CoordinatedGroup]:
        shard, group = self._find(group_id)
        if group is None:
            if commit.generation >= 0:
                refusal = GroupIdNotFound if commit.knows_group_not_found else IllegalGeneration
                raise refusal(f"There is no group '{group_id}' with a generation or a member epoch.")
            group = shard.group(group_id)
        group.membership.check_commit(commit, shard.steady_ms())
        return shard, group

    def require_loaded(self, index: int) -> GroupShard:
        """The groups of a partition of `__consumer_offsets`, whose leader is about to end a transaction
        there.

        Raises:
            NotCoordinator, CoordinatorLoadInProgress: the marker would be missed.
        """
        shard = self.shards.find(index)
        if shard is None:
            raise NotCoordinator(f"This broker does not lead {OFFSETS_TOPIC}-{index}.")
        shard.require_loaded()
        return shard

    def unstable(self, group_id: str) -> Collection[TopicPartition]:
        """The partitions for which a transaction may still commit an offset (KIP-447)."""
        shard, _ = self._find(group_id)
        return shard.pending_offsets.partitions(group_id)

    def committed(
        self, group_id: str, partitions: Sequence[TopicPartition] | None
    ) -> dict[TopicPartition, CommittedOffset]:
        """The committed offsets of these partitions, or of all (None); partitions without one are left out.

        While the group is being loaded this raises instead of returning nothing: a client without an offset
        begins at auto.offset.reset (redpanda#2597, kafka-python#2428).
        """
        _, group = self._find(group_id)
        if group is None:
            return {}
        offsets = {}
        for key in group.offsets if partitions is None else partitions:
            offset = group.offsets.offset_for(key, self._topics.topic_id(key[0]))
            if offset is not None:
                offsets[key] = offset
        return offsets

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Raise UnknownMemberId or StaleMemberEpoch unless this member may fetch offsets now.

        Anyone may fetch without a member id and an epoch. A group that does not exist has no offsets, and no
        error for members.
        """
        _, group = self._find(group_id)
        if group is not None and (member_id is not None or member_epoch >= 0):
            group.membership.check_fetch(member_id or "", member_epoch)

    def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> tuple[asyncio.Future[None], dict[TopicPartition, ProtocolError]]:
        """Delete committed offsets; returns when that is done, and errors of partitions that are refused.

        Raises:
            GroupIdNotFound: there is no such group.
            NonEmptyGroup: it has members, and it is unknown which topics they read.
        """
        _require_group_id(group_id)
        shard, group = self._require(group_id)
        membership = group.membership
        topics_in_use = membership.topics_in_use()
        if topics_in_use is None and membership.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise NonEmptyGroup(f"Group '{group_id}' has members: stop them first.")
        refused: dict[TopicPartition, ProtocolError] = {}
        for key in partitions:
            if topics_in_use is None or key[0] in topics_in_use:
                refused[key] = GroupSubscribedToTopic(f"Members of '{group_id}' read topic '{key[0]}'.")
        return shard.delete_offsets(group, [key for key in partitions if key not in refused]), refused

    # --- Groups ---

    def delete_group(self, group_id: str) -> asyncio.Future[None]:
        """Delete a group with its offsets.

        Raises:
            GroupIdNotFound: there is no such group.
            NonEmptyGroup: it has members, or offsets in an open transaction.
        """
        shard, group = self._require(group_id)
        if not group.membership.is_empty:
            raise NonEmptyGroup(f"Group '{group_id}' has members: stop them first.")
        if shard.pending_offsets.partitions(group_id):
            raise NonEmptyGroup(f"Group '{group_id}' has offsets in an open transaction: wait for its end.")
        return shard.delete(group)


def _nothing() -> asyncio.Future[None]:
    nothing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    nothing.set_result(None)
    return nothing


def _require_group_id(group_id: str) -> None:
    if not group_id:
        raise InvalidGroupId("A group whose members are coordinated needs a name.")
