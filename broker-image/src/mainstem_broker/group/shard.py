"""The groups of one partition of `__consumer_offsets`, for as long as this broker leads it.

Belongs here: carrying out what a group decides (answers, records, timers), changes from one kind of group to
the other, and what groups commit. Loading and appending belong to `coordinator/shard.py`. A change is visible
once all in-sync replicas have its record; the requests of one group are answered in the order of the log.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from mainstem_broker.coordinator.failures import as_coordinator_error, is_too_large
from mainstem_broker.coordinator.journal import Entry, Journal, TransactionalProducer
from mainstem_broker.coordinator.shard import Shard
from mainstem_broker.errors import (
    InvalidCommitOffsetSize,
    InvalidProducerEpoch,
    InvalidTxnState,
    NotCoordinator,
    ProtocolError,
    RebalanceInProgress,
)
from mainstem_broker.group.bridge.migration import MigrationPolicy, downgrade, upgrade
from mainstem_broker.group.bridge.mixed_group import MixedGroup
from mainstem_broker.group.classic.group import ClassicGroup
from mainstem_broker.group.classic.rebalancing import ClassicPolicy
from mainstem_broker.group.classic.records import GroupKey
from mainstem_broker.group.consumer.group import ConsumerPolicy
from mainstem_broker.group.kind import GroupType
from mainstem_broker.group.loading import LoadedGroup, LoadedGroups
from mainstem_broker.group.messages import Decisions, HeartbeatAnswer, JoinAnswer, SyncAnswer
from mainstem_broker.group.offsets.group_offsets import GroupOffsets
from mainstem_broker.group.offsets.pending_offsets import PendingOffset, PendingOffsets
from mainstem_broker.group.offsets.records import CommittedOffset, OffsetKey
from mainstem_broker.group.topics import Topics
from mainstem_broker.protocol.topic_partition import TopicPartition
from mainstem_broker.runtime.turns import in_turns

logger = structlog.get_logger(__name__)

OFFSETS_AT_ONCE: Final = 2_000
"""Offsets restored, or looked at for expiry, before requests get their turn: a few milliseconds' worth."""
OFFSETS_WORTH_A_GROUP: Final = 10
"""As many offsets take the time of a group's members."""

AnyGroup = ClassicGroup | MixedGroup
"""The implementations of `GroupKind`; `group_type` distinguishes them."""


@dataclass(frozen=True, slots=True)
class GroupPolicies:
    """The policies of either kind of groups, and of changes from one to the other."""

    classic: ClassicPolicy
    consumer: ConsumerPolicy
    migration: MigrationPolicy


@dataclass(slots=True, eq=False)
class CoordinatedGroup:
    """One group: members, offsets, and what is under way.

    - `state_ms`: when its record was last written, by the time of day; -1 if it never had one.
    - `commits_under_way`: partitions with offsets that are in the log and not replicated yet.
    - `timer`, `timer_ms`: calls `GroupKind.tick` at that time of the steady clock.
    """

    membership: AnyGroup
    state_ms: int
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    commits_under_way: Counter[TopicPartition] = field(default_factory=Counter)
    timer: asyncio.TimerHandle | None = None
    timer_ms: int = 0

    @property
    def group_id(self) -> str:
        return self.membership.group_id


class GroupShard(Shard):
    """Groups by id; those that exist are in `groups`."""

    def __init__(
        self,
        journal: Journal,
        policies: GroupPolicies,
        topics: Topics,
        wall_ms: Callable[[], int],
        offsets_retention_ms: int,
    ) -> None:
        super().__init__(journal, wall_ms)
        self.groups: dict[str, CoordinatedGroup] = {}
        self.pending_offsets = PendingOffsets()
        self._policies = policies
        self._topics = topics
        self._offsets_retention_ms = offsets_retention_ms
        self._last_number = 0
        # Futures of requests that wait, by the number that the group knows the request by.
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    def steady_ms(self) -> int:
        """The clock that sessions run by. Setting the time of day does not move it."""
        return int(self._loop.time() * 1000)

    def group(self, group_id: str) -> CoordinatedGroup:
        """The group with this id. A missing one is created, as a classic group without members."""
        group = self.groups.get(group_id)
        if group is None:
            membership = ClassicGroup(group_id, self._policies.classic)
            group = self.groups[group_id] = CoordinatedGroup(membership, self._wall_ms())
        return group

    # --- Loading ---

    async def restore(self) -> None:
        loaded = LoadedGroups()
        await self.journal.replay(loaded.take, loaded)
        groups = await asyncio.to_thread(loaded.decode)
        decoded_pending = await asyncio.to_thread(lambda: list(loaded.decode_pending()))
        async for producer_id, pending in in_turns(decoded_pending, OFFSETS_AT_ONCE):
            groups.setdefault(pending.group_id, LoadedGroup())
            self.pending_offsets.add(producer_id, (pending,))
        if loaded.unreadable:
            logger.warning(
                "records ignored", partition=repr(self.journal.partition), offsets=loaded.unreadable[:10]
            )
        if loaded.unknown_kinds:
            logger.warning(
                "records of unknown kinds left alone",
                partition=repr(self.journal.partition),
                key_versions=sorted(loaded.unknown_kinds),
            )
        turns = _Turns()
        for group_id, loaded_group in groups.items():
            offsets = GroupOffsets()
            for partition in tuple(loaded_group.offsets):
                # Taken out one by one, for a million let go at once would hold up the loop as well.
                offsets.put(partition, *loaded_group.offsets.pop(partition))
                await turns.count(1)
            self._restore_group(group_id, loaded_group, offsets)
            await turns.count(OFFSETS_WORTH_A_GROUP)
        if self.groups:
            logger.info("groups loaded", partition=repr(self.journal.partition), count=len(self.groups))

    def _restore_group(self, group_id: str, loaded: LoadedGroup, offsets: GroupOffsets) -> None:
        policies, now_ms = self._policies, self.steady_ms()
        membership: AnyGroup
        if loaded.consumer_records:
            membership = MixedGroup.restore(
                group_id, policies.consumer, self._topics, loaded.consumer_records, now_ms
            )
        elif loaded.metadata is not None:
            membership = ClassicGroup.restore(group_id, policies.classic, loaded.metadata, now_ms)
        else:
            membership = ClassicGroup(group_id, policies.classic)
        is_classic = membership.group_type is GroupType.CLASSIC
        if is_classic and loaded.metadata is not None:
            state_ms = loaded.metadata.state_ms
        else:  # a consumer group is written when its last member leaves
            state_ms = loaded.changed_ms
        group = self.groups[group_id] = CoordinatedGroup(membership, state_ms, offsets)
        self._set_timer(group)
        if loaded.consumer_records and loaded.metadata is not None:
            self._complete_migration(group)

    def discard(self, error_code: int) -> None:
        for group in self.groups.values():
            self.carry_out(group, group.membership.close(error_code))
        self.groups.clear()
        self.pending_offsets.clear()

    # --- Requests that wait ---

    def wait_for_join(
        self, group: CoordinatedGroup, request: Callable[[int], Decisions]
    ) -> asyncio.Future[JoinAnswer]:
        """Make a request to a group under a new number; the future gets its answer."""
        return self._wait_for(group, request)

    def wait_for_sync(
        self, group: CoordinatedGroup, request: Callable[[int], Decisions]
    ) -> asyncio.Future[SyncAnswer]:
        return self._wait_for(group, request)

    def wait_for_heartbeat(
        self, group: CoordinatedGroup, request: Callable[[int], Decisions]
    ) -> asyncio.Future[HeartbeatAnswer]:
        return self._wait_for(group, request)

    def _wait_for(self, group: CoordinatedGroup, request: Callable[[int], Decisions]) -> asyncio.Future[Any]:
        self._last_number += 1
        answer = self._waiting[self._last_number] = self._loop.create_future()
        self.carry_out(group, request(self._last_number))
        return answer

    # --- Decisions ---

    def carry_out(self, group: CoordinatedGroup, decisions: Decisions) -> None:
        """Give answers, write records and set the timer as the group decided."""
        for answer in decisions.answers:
            waiting = self._waiting.pop(answer.number)
            if not waiting.done():  # cancelled if its connection is gone
                waiting.set_result(answer.answer)
        if decisions.stores or decisions.records:
            group.state_ms = self._wall_ms()
        for store in decisions.stores:
            value = replace(store.group, state_ms=group.state_ms).encode()
            self._store(group, store.ticket, [(GroupKey(group.group_id).encode(), value, ())])
        for stored in decisions.records:
            entries: list[Entry] = [
                (key.encode(), None if value is None else value.encode(), ()) for key, value in stored.records
            ]
            self._store(group, stored.ticket, entries)
        if decisions.records:
            self._downgrade_if_due(group)
        self._set_timer(group)

    def _store(self, group: CoordinatedGroup, ticket: int, entries: Sequence[Entry]) -> None:
        membership = group.membership  # by the time of the outcome the group may be of the other kind

        def settle(error: ProtocolError | None) -> None:
            error_code = 0
            if error is not None:
                logger.warning("group not stored", group=group.group_id, reason=str(error))
                error_code = as_coordinator_error(error).code
            self.carry_out(group, membership.stored(ticket, error_code, self.steady_ms()))

        self.append(entries, settle)

    def _set_timer(self, group: CoordinatedGroup) -> None:
        """Have `tick` called when the group needs it. An earlier timer stays: `tick` finds the next time."""
        wake_ms = group.membership.wake_ms
        if wake_ms is None:
            if group.timer is not None:
                group.timer.cancel()
                group.timer = None
        elif group.timer is None or wake_ms < group.timer_ms:
            if group.timer is not None:
                group.timer.cancel()
            group.timer_ms = wake_ms
            group.timer = self._loop.call_at(wake_ms / 1000, self._tick, group)

    def _tick(self, group: CoordinatedGroup) -> None:
        group.timer = None
        self.carry_out(group, group.membership.tick(self.steady_ms()))

    # --- From one kind to the other ---

    def upgrade(
        self,
        group: CoordinatedGroup,
        classic: ClassicGroup,
        request: Callable[[MixedGroup, int], Decisions],
    ) -> asyncio.Future[HeartbeatAnswer]:
        """Turn a group, which is `classic` now, into a consumer group, and make its first request.

        Raises:
            GroupIdNotFound, GroupMaxSizeReached: it cannot become one; see `migration.upgrade`.
        """
        policies = self._policies
        consumer = upgrade(classic, policies.migration, policies.consumer, self._topics, self.steady_ms())
        logger.info("group upgraded", group=group.group_id, members=len(consumer.members))
        group.membership = consumer
        answer = self.wait_for_heartbeat(group, lambda number: request(consumer, number))
        # Tombstones come after the new records: if the log ends in between, there are records of both kinds,
        # not of neither. If the first request was refused, the group is classic again by now, and has records
        # under the same keys.
        if group.membership is consumer:
            self.append_tombstones(classic.record_keys())
        self.carry_out(group, classic.close(RebalanceInProgress.code))
        return answer

    def downgrade(self, group: CoordinatedGroup, consumer: MixedGroup) -> ClassicGroup:
        """Turn a group, which is `consumer` now and has only classic members, into a classic group."""
        classic = downgrade(consumer, self._policies.classic, self.steady_ms())
        logger.info("group downgraded", group=group.group_id, members=len(classic.members))
        group.membership = classic
        self.carry_out(group, classic.tick(self.steady_ms()))
        self.append_tombstones(consumer.record_keys())  # after the new records, as in `upgrade`
        return classic

    def _downgrade_if_due(self, group: CoordinatedGroup) -> None:
        membership = group.membership
        if (
            membership.group_type is GroupType.CONSUMER
            and self._policies.migration.allows_downgrade
            and membership.has_only_classic_members
        ):
            self.downgrade(group, membership)

    def _complete_migration(self, group: CoordinatedGroup) -> None:
        """Complete a change of kind that was interrupted: the log has the records of both kinds."""
        self._downgrade_if_due(group)
        if group.membership.group_type is GroupType.CONSUMER:
            self.append_tombstones([GroupKey(group.group_id).encode()])

    # --- Offsets ---

    def commit(
        self, group: CoordinatedGroup, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> asyncio.Future[None]:
        """Write offsets in one batch. They are visible, and the future is done, when they are replicated.

        Raises:
            ProtocolError: as `_as_commit_error` translates it; nothing was written. The future fails with
                such an error when it is not known whether the offsets stay. If they do, they become visible
                later, and the next coordinator will load them.
        """
        committed: asyncio.Future[None] = self._loop.create_future()
        group.commits_under_way.update(offsets.keys())
        first_offset = self.journal.end_offset

        def apply() -> None:
            _count_down(group.commits_under_way, offsets)
            for record_offset, (partition, offset) in enumerate(offsets.items(), first_offset):
                group.offsets.put(partition, offset, record_offset)

        try:
            self.journal.append(
                _offset_entries(group, offsets), self._wall_ms(), _settle_commit(committed), apply
            )
        except ProtocolError as error:
            _count_down(group.commits_under_way, offsets)
            raise _as_commit_error(error) from error
        return committed

    def commit_in_transaction(
        self,
        group: CoordinatedGroup,
        producer: TransactionalProducer,
        offsets: Mapping[TopicPartition, CommittedOffset],
    ) -> asyncio.Future[None]:
        """Write offsets that count when the producer's transaction is committed; raises as `commit`.

        The future is done when the offsets are replicated. It may fail although they stay in the log: the
        transaction has them then, as if the request had succeeded.
        """
        committed: asyncio.Future[None] = self._loop.create_future()
        first_offset = self.journal.end_offset
        try:
            self.journal.append_in_transaction(
                _offset_entries(group, offsets), producer, self._wall_ms(), _settle_commit(committed)
            )
        except ProtocolError as error:
            if isinstance(error, InvalidProducerEpoch | InvalidTxnState):
                raise  # of the producer, which knows these
            raise _as_commit_error(error) from error
        self.pending_offsets.add(
            producer.producer_id,
            [
                PendingOffset(group.group_id, partition, offset, record_offset)
                for record_offset, (partition, offset) in enumerate(offsets.items(), first_offset)
            ],
        )
        return committed

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """A marker was just written to the end of this partition. It takes effect when it is replicated."""
        closed = self.pending_offsets.close(producer_id)

        def apply() -> None:
            if is_commit:
                for pending in closed:
                    group = self.group(pending.group_id)
                    group.offsets.put(pending.partition, pending.offset, pending.record_offset)
            self.pending_offsets.end()

        if closed:
            self.journal.when_replicated(apply)

    def delete_offsets(
        self, group: CoordinatedGroup, partitions: Sequence[TopicPartition]
    ) -> asyncio.Future[None]:
        """Write tombstones for these offsets, which are gone when the tombstones are replicated. So are those
        of transactions that have not ended.
        """
        first_offset = self.journal.end_offset

        def apply() -> None:
            self.pending_offsets.remove(group.group_id, partitions, first_offset)
            for partition in partitions:
                group.offsets.remove(partition)

        return self.append_tombstones(_offset_keys(group, partitions), apply, _as_commit_error)

    def delete(self, group: CoordinatedGroup) -> asyncio.Future[None]:
        """Delete an idle group with all its offsets; done when the tombstones are replicated."""
        partitions = list(dict.fromkeys([*group.offsets, *group.commits_under_way]))
        deleted = self.append_tombstones(
            [*_offset_keys(group, partitions), *group.membership.record_keys()], translate=_as_commit_error
        )
        if not (deleted.done() and deleted.exception() is not None):
            del self.groups[group.group_id]
            self.carry_out(group, group.membership.close(NotCoordinator.code))
        return deleted

    # --- Expiry ---

    async def upkeep(self) -> None:
        await self.expire(self._offsets_retention_ms)

    async def expire(self, retention_ms: int) -> None:
        """Delete offsets that have expired (`GroupOffsets.expired`), and groups that have nothing left.

        In turns: groups and offsets may come and go in between, and the leadership may end. A group with more
        offsets than are looked at in one turn may be left to a later call, after the one that has deleted its
        offsets.
        """
        turns = _Turns()
        for group in tuple(self.groups.values()):
            if not self._has(group):
                continue
            # Records whose write has failed are written again, also of a group without heartbeats.
            self.carry_out(group, group.membership.decided())
            partitions = tuple(group.offsets)
            await turns.count(OFFSETS_WORTH_A_GROUP)
            for start in range(0, max(len(partitions), 1), OFFSETS_AT_ONCE):
                some = partitions[start : start + OFFSETS_AT_ONCE]
                await turns.count(len(some))
                if not self._has(group):
                    break
                self._expire(group, some, retention_ms)

    def _has(self, group: CoordinatedGroup) -> bool:
        """Whether it is still there. After the end of the leadership no group is."""
        return self.groups.get(group.group_id) is group

    def _expire(
        self, group: CoordinatedGroup, partitions: Sequence[TopicPartition], retention_ms: int
    ) -> None:
        """Delete the offsets of these partitions that have expired by now; the group if it has no others."""
        membership = group.membership
        pending = self.pending_offsets.partitions(group.group_id)
        had_members = membership.is_empty and membership.protocol_type is not None
        expired = [
            partition
            for partition in group.offsets.expired(
                partitions,
                now_ms=self._wall_ms(),
                retention_ms=retention_ms,
                empty_since_ms=group.state_ms if had_members else None,
                in_use=membership.topics_in_use(),
            )
            if partition not in group.commits_under_way and partition not in pending
        ]
        is_unused = not group.commits_under_way and not pending and len(expired) == len(group.offsets)
        if membership.is_idle and is_unused:
            logger.info("group expired", group=group.group_id)
            self.delete(group)
        elif expired:
            logger.info("offsets expired", group=group.group_id, count=len(expired))
            self.delete_offsets(group, expired)


class _Turns:
    """Pauses after each `OFFSETS_AT_ONCE` offsets of work, whatever loops count them."""

    def __init__(self) -> None:
        self._offsets = 0

    async def count(self, offsets: int) -> None:
        """Note work on as many offsets, done or about to be done at once."""
        self._offsets += offsets
        if self._offsets >= OFFSETS_AT_ONCE:
            self._offsets = 0
            await asyncio.sleep(0)


def _offset_entries(
    group: CoordinatedGroup, offsets: Mapping[TopicPartition, CommittedOffset]
) -> list[Entry]:
    return [
        (OffsetKey(group.group_id, topic, partition).encode(), offset.encode(), offset.headers)
        for (topic, partition), offset in offsets.items()
    ]


def _settle_commit(committed: asyncio.Future[None]) -> Callable[[ProtocolError | None], None]:
    def settle(error: ProtocolError | None) -> None:
        if committed.done():
            return  # the request has timed out
        if error is None:
            committed.set_result(None)
        else:
            committed.set_exception(_as_commit_error(error))

    return settle


def _offset_keys(group: CoordinatedGroup, partitions: Iterable[TopicPartition]) -> list[bytes]:
    return [OffsetKey(group.group_id, topic, partition).encode() for topic, partition in partitions]


def _count_down(counter: Counter[TopicPartition], partitions: Iterable[TopicPartition]) -> None:
    for partition in partitions:
        counter[partition] -= 1
        if counter[partition] <= 0:
            del counter[partition]


def _as_commit_error(error: ProtocolError) -> ProtocolError:
    """As `as_coordinator_error`; commits have an error of their own for records that are too large."""
    return InvalidCommitOffsetSize(str(error)) if is_too_large(error) else as_coordinator_error(error)
