"""The coordinator of the groups whose partition of `__consumer_offsets` this broker leads.

Lives here: which groups those are (`follow`), and what may be asked of a group, by whom. Must not: the rules
of membership (`membership.py`), requests and their versions (`api/groups.py`, `api/commits.py`).

Called on the event loop only. A method that has to wait answers a future; the others answer at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

import structlog

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
from mainstem_broker.group import classic_members
from mainstem_broker.group.consumer_group import ConsumerGroup
from mainstem_broker.group.consumer_heartbeat import require_sound
from mainstem_broker.group.embedded_protocol import CONSUMER_PROTOCOL_TYPE
from mainstem_broker.group.membership import Group
from mainstem_broker.group.messages import (
    JOINING_EPOCH,
    ConsumerHeartbeat,
    Decisions,
    HeartbeatAnswer,
    Join,
    JoinAnswer,
    Sync,
    SyncAnswer,
)
from mainstem_broker.group.offsets import TopicPartition
from mainstem_broker.group.records import CommittedOffset
from mainstem_broker.group.shard import EMPTY_STATES, AnyGroup, CoordinatedGroup, GroupPolicies, Shard
from mainstem_broker.group.subscription import topics_in_use
from mainstem_broker.group.topic_patterns import TopicPattern
from mainstem_broker.group.topics import Topics
from mainstem_broker.replica.journal import Journal
from mainstem_broker.replica.key_placement import partition_of_key
from mainstem_broker.replica.partition import Partition

logger = structlog.get_logger(__name__)

OFFSETS_TOPIC: Final = "__consumer_offsets"


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Settings of a broker that groups depend on, units as named.

    - `has_consumer_protocol`: whether groups of KIP-848 are served.
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
    """All groups that this broker coordinates. `follow` as leadership changes; `stop` once.

    `find_partition` answers the local replica of a partition of `__consumer_offsets`; `wall_ms` is the clock
    that time stamps are from.
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        topics: Topics,
        find_partition: Callable[[int], Partition | None],
        wall_ms: Callable[[], int],
    ) -> None:
        self.settings = settings
        self.wall_ms = wall_ms
        self._topics = topics
        self._find_partition = find_partition
        self._shards: dict[int, Shard] = {}
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._upkeep: asyncio.Task[None] | None = None
        self._stopped = False

    # --- Which groups ---

    def follow(self, index: int) -> None:
        """Look at who leads a partition of `__consumer_offsets`: take its groups over, or let go of them."""
        partition = self._find_partition(index)
        shard = self._shards.get(index)
        if shard is not None:
            if shard.journal.partition is partition and shard.journal.is_current:
                return
            self._drop(index)
        if self._stopped or partition is None or not partition.is_leader:
            return
        shard = self._shards[index] = Shard(
            Journal(partition), self.settings.policies, self._topics, self.wall_ms
        )
        self._loading[index] = asyncio.create_task(shard.load(), name=f"load groups of partition {index}")
        if self._upkeep is None:
            self._upkeep = asyncio.create_task(self._drop_expired(), name="expiry of groups")

    def follow_all(self) -> None:
        """As `follow`, for all that this broker coordinates now."""
        for index in tuple(self._shards):
            self.follow(index)

    def _drop(self, index: int) -> None:
        self._loading.pop(index).cancel()
        self._shards.pop(index).close()

    async def stop(self) -> None:
        """Let go of all groups, and of any that are still to come."""
        self._stopped = True
        tasks = [*self._loading.values(), *(() if self._upkeep is None else (self._upkeep,))]
        for index in tuple(self._shards):
            self._drop(index)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def topics_deleted(self, topic_ids: Collection[UUID]) -> None:
        """Forget what was committed for these topics."""
        for shard in self._shards.values():
            if not shard.is_loaded:
                continue
            for group in shard.groups.values():
                gone = group.offsets.of_topics(topic_ids)
                if gone:
                    shard.forget_offsets(group, gone)

    async def _drop_expired(self) -> None:
        while True:
            await asyncio.sleep(self.settings.retention_check_interval_ms / 1000)
            for shard in tuple(self._shards.values()):
                try:
                    if shard.is_loaded:
                        shard.drop_expired(self.settings.offsets_retention_ms)
                except Exception:
                    logger.exception("expiry failed", partition=repr(shard.journal.partition))
                await asyncio.sleep(0)  # let requests through between two partitions

    def offsets_partition(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that holds a group; 0 while there is no such topic."""
        return partition_of_key(group_id, self._topics.partition_count(OFFSETS_TOPIC) or 1)

    def require_coordinated(self, group_id: str) -> None:
        """Raise NotCoordinator, CoordinatorLoadInProgress or InvalidGroupId if the group cannot be asked."""
        _require_group_id(group_id)
        self._shard(group_id)

    def _shard(self, group_id: str) -> Shard:
        shard = self._shards.get(self.offsets_partition(group_id))
        if shard is None:
            raise NotCoordinator(f"This broker does not coordinate group '{group_id}'.")
        shard.require_loaded()
        return shard

    def _find(self, group_id: str) -> tuple[Shard, CoordinatedGroup | None]:
        shard = self._shard(group_id)
        return shard, shard.groups.get(group_id)

    # --- Members ---

    def join(self, group_id: str, asked: Callable[[int], Join]) -> asyncio.Future[JoinAnswer]:
        """Have a member join; `asked` makes the request of the number that it gets.

        Raises:
            NotCoordinator, CoordinatorLoadInProgress: see `Shard.require_loaded`.
            InvalidGroupId, InvalidSessionTimeout, UnknownMemberId: refused before the group is asked.
        """
        _require_group_id(group_id)
        shard, group = self._find(group_id)
        first = asked(0)
        low, high = self.settings.session_timeout_ms_min, self.settings.session_timeout_ms_max
        if not low <= first.session_timeout_ms <= high:
            raise InvalidSessionTimeout(
                f"{first.session_timeout_ms} ms lie outside group.min.session.timeout.ms = {low}"
                f" and group.max.session.timeout.ms = {high}."
            )
        if group is None:
            if first.member_id:
                raise UnknownMemberId(f"There is no group '{group_id}' that this could be a member of.")
            group = shard.group(group_id)
        members = group.membership
        if isinstance(members, ConsumerGroup):
            if members.members:
                consumers = members
                return shard.wait_for_join(
                    group, lambda number: classic_members.join(consumers, asked(number), shard.steady_ms())
                )
            members = shard.become_classic(group)
        classic = members
        return shard.wait_for_join(group, lambda number: classic.join(asked(number), shard.steady_ms()))

    def sync(self, group_id: str, asked: Callable[[int], Sync]) -> asyncio.Future[SyncAnswer]:
        """Have a member hand in or wait for the assignment; likewise."""
        _require_group_id(group_id)
        shard, group = self._find(group_id)
        if group is None:
            raise UnknownMemberId(f"There is no group '{group_id}'.")
        members = group.membership
        if isinstance(members, ConsumerGroup):
            consumers = members
            return shard.wait_for_sync(
                group, lambda number: classic_members.sync(consumers, asked(number), shard.steady_ms())
            )
        classic = members
        return shard.wait_for_sync(group, lambda number: classic.sync(asked(number), shard.steady_ms()))

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> None:
        """Raises as `Group.heartbeat`; while groups are being loaded every heartbeat is fine."""
        _require_group_id(group_id)
        try:
            shard, group = self._find(group_id)
        except CoordinatorLoadInProgress:
            return
        if group is None:
            raise UnknownMemberId(f"There is no group '{group_id}'.")
        members, now_ms = group.membership, shard.steady_ms()
        if isinstance(members, Group):
            members.heartbeat(member_id, instance_id, generation, now_ms)
            return
        try:
            classic_members.heartbeat(members, member_id, instance_id, generation, now_ms)
        finally:
            # The group may have learnt of topics, and the member may have a deadline now.
            shard.carry_out(group, members.decided())

    def consumer_heartbeat(self, group_id: str, asked: ConsumerHeartbeat) -> asyncio.Future[HeartbeatAnswer]:
        """Take a heartbeat of the protocol of KIP-848; it gets its number here.

        Raises:
            NotCoordinator, CoordinatorLoadInProgress: see `Shard.require_loaded`.
            UnsupportedVersion: this cluster does not serve such groups.
            UnknownMemberId: there is no such group, or none of this kind: the member has to join (anew).
                Apache Kafka answers GROUP_ID_NOT_FOUND, after which its client gives up.
            InvalidGroupId, InvalidRequest, UnsupportedAssignor, InvalidRegularExpression, GroupIdNotFound,
                GroupMaxSizeReached: refused before the group is asked, or becomes one of this kind.
        """
        if not self.settings.has_consumer_protocol:
            raise UnsupportedVersion("group.coordinator.rebalance.protocols does not list 'consumer'.")
        _require_group_id(group_id)
        shard, group = self._find(group_id)

        def ask(consumers: ConsumerGroup, number: int) -> Decisions:
            return consumers.heartbeat(replace(asked, request=number), shard.steady_ms())

        if group is not None and isinstance(group.membership, ConsumerGroup):
            consumers = group.membership
            return shard.wait_for_heartbeat(group, lambda number: ask(consumers, number))
        require_sound(asked, self.settings.policies.consumer.assignors)
        if asked.member_epoch != JOINING_EPOCH:
            raise UnknownMemberId(f"There is no group '{group_id}' that this could be a member of.")
        if asked.topic_regex:
            TopicPattern(asked.topic_regex)
        return shard.upgrade(shard.group(group_id) if group is None else group, ask)

    def leave(self, group_id: str, member_id: str, instance_id: str | None) -> None:
        """Raises as `Group.leave`."""
        _require_group_id(group_id)
        shard, group = self._find(group_id)
        if group is None:
            raise UnknownMemberId(f"There is no group '{group_id}'.")
        members = group.membership
        if isinstance(members, ConsumerGroup):
            shard.carry_out(group, classic_members.leave(members, member_id, instance_id))
        else:
            shard.carry_out(group, members.leave(member_id, instance_id, shard.steady_ms()))

    # --- Offsets ---

    def commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        version: int,
        offsets: Mapping[TopicPartition, CommittedOffset],
    ) -> asyncio.Future[None]:
        """Commit offsets, all or none; done when they are replicated. `version` is the request's.

        Raises:
            ProtocolError: as `Group.check_commit`, `ConsumerGroup.check_commit` and `Shard.commit`. The
                future may hold the latter, too.
        """
        shard, group = self._find(group_id)
        if group is None:
            if generation >= 0:
                raise IllegalGeneration(f"There is no group '{group_id}' with a generation.")
            group = shard.group(group_id)
        members, now_ms = group.membership, shard.steady_ms()
        if isinstance(members, Group):
            members.check_commit(member_id, instance_id, generation, now_ms)
        elif (classic := members.members.get(member_id)) is not None and classic.is_classic:
            classic_members.check_commit(members, classic, generation, now_ms)
        else:
            members.check_commit(member_id, generation, version)
        if not offsets:
            nothing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            nothing.set_result(None)
            return nothing
        return shard.commit(group, offsets)

    def committed(
        self, group_id: str, partitions: Sequence[TopicPartition] | None
    ) -> dict[TopicPartition, CommittedOffset]:
        """What a group has committed for these partitions, or for all (None); others are left out.

        Raises:
            NotCoordinator, CoordinatorLoadInProgress: never a "nothing" that may be wrong, for clients that
                hear it begin at auto.offset.reset (redpanda#2597, kafka-python#2428).
        """
        _, group = self._find(group_id)
        if group is None:
            return {}
        found = {}
        for key in group.offsets if partitions is None else partitions:
            offset = group.offsets.offset_for(key, self._topics.topic_id(key[0]))
            if offset is not None:
                found[key] = offset
        return found

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Raise UnknownMemberId or StaleMemberEpoch if offsets are asked for as a member that has to wait.

        Without a member id, and of classic groups, anyone may ask.
        """
        _, group = self._find(group_id)
        if member_id and member_epoch >= 0 and group is not None:
            members = group.membership
            if isinstance(members, ConsumerGroup):
                members.check_fetch(member_id, member_epoch)

    def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> tuple[asyncio.Future[None], dict[TopicPartition, ProtocolError]]:
        """Forget committed offsets; answers when that is done, and which are refused.

        Raises:
            GroupIdNotFound: there is no such group.
            NonEmptyGroup: it has members, of which it is not known what they read.
        """
        shard, group = self._find(group_id)
        if group is None:
            raise GroupIdNotFound(f"There is no group '{group_id}'.")
        members = group.membership
        in_use = topics_in_use(members)
        if in_use is None and members.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise NonEmptyGroup(f"Group '{group_id}' has members: stop them first.")
        refused: dict[TopicPartition, ProtocolError] = {}
        for key in partitions:
            if in_use is None or key[0] in in_use:
                refused[key] = GroupSubscribedToTopic(f"Members of '{group_id}' read topic '{key[0]}'.")
        return shard.forget_offsets(group, [key for key in partitions if key not in refused]), refused

    # --- Groups ---

    def group(self, group_id: str) -> AnyGroup:
        """The membership of a group, to look at.

        Raises:
            GroupIdNotFound: there is no such group, here.
        """
        _, group = self._find(group_id)
        if group is None:
            raise GroupIdNotFound(f"There is no group '{group_id}'.")
        return group.membership

    def groups(self) -> Iterator[AnyGroup]:
        """All groups, to look at.

        Raises:
            CoordinatorLoadInProgress: some are not known yet.
        """
        for shard in tuple(self._shards.values()):
            shard.require_loaded()
            for group in tuple(shard.groups.values()):
                yield group.membership

    def delete_group(self, group_id: str) -> asyncio.Future[None]:
        """Take a group away, with its offsets.

        Raises:
            GroupIdNotFound: there is no such group.
            NonEmptyGroup: it has members.
        """
        shard, group = self._find(group_id)
        if group is None:
            raise GroupIdNotFound(f"There is no group '{group_id}'.")
        if group.membership.state not in EMPTY_STATES:
            raise NonEmptyGroup(f"Group '{group_id}' has members: stop them first.")
        return shard.remove(group)


def _require_group_id(group_id: str) -> None:
    if not group_id:
        raise InvalidGroupId("A group whose members are coordinated needs a name.")
