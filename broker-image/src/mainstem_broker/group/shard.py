"""The groups of one partition of `__consumer_offsets`, for as long as this broker leads it.

Lives here: carrying out what a group decides (answers, records, timers), and writing. Nothing counts before
it is written to every in-sync replica; what one group is told, it is told in the order of the log.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from mainstem_broker.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidCommitOffsetSize,
    MessageTooLarge,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    ProtocolError,
    RebalanceInProgress,
    RecordListTooLarge,
    RequestTimedOut,
    UnknownServerError,
)
from mainstem_broker.group.consumer_group import ConsumerGroup, ConsumerPolicy, ConsumerState
from mainstem_broker.group.loading import LoadedGroups
from mainstem_broker.group.membership import Group, GroupPolicy, State
from mainstem_broker.group.messages import Decisions, HeartbeatAnswer, JoinAnswer, StoreRecords, SyncAnswer
from mainstem_broker.group.migration import MigrationPolicy, downgrade, upgrade
from mainstem_broker.group.offsets import GroupOffsets, TopicPartition
from mainstem_broker.group.records import CommittedOffset, GroupKey, OffsetKey
from mainstem_broker.group.subscription import topics_in_use
from mainstem_broker.group.topics import Topics
from mainstem_broker.replica.journal import Entry, Journal

logger = structlog.get_logger(__name__)

BATCH_BYTES = 512 * 1024
"""Of records written at once: below any sensible max.message.bytes."""


GROUPS_AT_ONCE = 200
"""Made of what was loaded before requests get their turn: a few milliseconds' worth."""

LOAD_PAUSE_S: Final = 1.0
LOAD_PAUSE_S_MAX: Final = 5.0
"""Between two attempts to load a partition that cannot be read; the first, and the longest."""


EMPTY_STATES: Final = (State.EMPTY, ConsumerState.EMPTY)

AnyGroup = Group | ConsumerGroup


@dataclass(frozen=True, slots=True)
class GroupPolicies:
    """What holds for groups of either kind, and for changes from one to the other."""

    classic: GroupPolicy
    consumer: ConsumerPolicy
    migration: MigrationPolicy


@dataclass(slots=True, eq=False)
class CoordinatedGroup:
    """One group: members, offsets, and what is under way.

    - `state_ms`: since when it is empty or stable, by the wall's clock, as its record says.
    - `commits_under_way`: partitions whose offsets are written, but not yet known to be replicated.
    - `timer`, `timer_ms`: calls `Group.tick`.
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


class Shard:
    """Groups by id. `load` once; usable when `is_loaded`; `close` once."""

    def __init__(
        self, journal: Journal, policies: GroupPolicies, topics: Topics, wall_ms: Callable[[], int]
    ) -> None:
        self.journal = journal
        self.groups: dict[str, CoordinatedGroup] = {}
        self.is_loaded = False
        self._is_closed = False
        self._policies = policies
        self._topics = topics
        self._wall_ms = wall_ms
        self._loop = asyncio.get_running_loop()
        self._requests = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    def steady_ms(self) -> int:
        """The clock that sessions run by, which no clock setting moves."""
        return int(self._loop.time() * 1000)

    # --- Life ---

    async def load(self) -> None:
        """Read the partition; what fails is tried again, ever less often, for as long as this broker leads.

        Nobody else can coordinate these groups meanwhile: they are told that they are being loaded.
        """
        for pause_s in self._pauses_s():
            try:
                await self._load()
            except NotLeaderOrFollower:
                return
            except Exception as error:  # a disk that fails for the moment, or a mistake of ours
                logger.error(
                    "groups not loaded",
                    partition=repr(self.journal.partition),
                    reason=str(error),
                    again_in_s=pause_s,
                    exc_info=not isinstance(error, ProtocolError),
                )
                self._forget(CoordinatorLoadInProgress.code)
                await asyncio.sleep(pause_s)
            else:
                return

    @staticmethod
    def _pauses_s() -> Iterator[float]:
        pause_s = LOAD_PAUSE_S
        while True:
            yield pause_s
            pause_s = min(2 * pause_s, LOAD_PAUSE_S_MAX)

    async def _load(self) -> None:
        loaded = LoadedGroups()
        await self.journal.replay(loaded.take)
        groups = await asyncio.to_thread(loaded.decode)
        if loaded.unreadable:
            logger.warning(
                "records ignored", partition=repr(self.journal.partition), offsets=loaded.unreadable[:10]
            )
        now_ms = self.steady_ms()
        for number, (group_id, told) in enumerate(groups.items(), start=1):
            if told.consumer_records:
                restored = ConsumerGroup.restore(
                    group_id, self._policies.consumer, self._topics, told.consumer_records, now_ms
                )
                group = CoordinatedGroup(restored, -1)
            elif told.metadata is None:
                group = CoordinatedGroup(Group(group_id, self._policies.classic), -1)
            else:
                membership = Group.restore(group_id, self._policies.classic, told.metadata, now_ms)
                group = CoordinatedGroup(membership, told.metadata.state_ms)
            for partition, offset in told.offsets.items():
                group.offsets.put(partition, offset)
            self.groups[group_id] = group
            self._arm(group)
            if told.consumer_records and told.metadata is not None:
                self._end_migration(group)
            if number % GROUPS_AT_ONCE == 0:
                await asyncio.sleep(0)  # let requests through
        self.is_loaded = True
        if self.groups:
            logger.info("groups loaded", partition=repr(self.journal.partition), count=len(self.groups))

    def close(self) -> None:
        """This broker no longer leads the partition: whoever waits is sent to look for the one that does."""
        self._forget(NotCoordinator.code)
        self.is_loaded = False
        self._is_closed = True

    def _forget(self, code: int) -> None:
        """Forget all groups; whoever waits in one is answered this error."""
        for group in self.groups.values():
            self.carry_out(group, group.membership.close(code))
        self.groups.clear()

    def require_loaded(self) -> None:
        """Raise NotCoordinator once another broker is, or CoordinatorLoadInProgress."""
        if self._is_closed:
            raise NotCoordinator("Another broker has become the coordinator.")
        if not self.is_loaded:
            raise CoordinatorLoadInProgress("The group's coordinator is reading its state; ask again.")

    def group(self, group_id: str) -> CoordinatedGroup:
        """The group of this id, made if there is none."""
        group = self.groups.get(group_id)
        if group is None:
            membership = Group(group_id, self._policies.classic)
            group = self.groups[group_id] = CoordinatedGroup(membership, self._wall_ms())
        return group

    # --- What a group decides ---

    def wait_for_join(
        self, group: CoordinatedGroup, ask: Callable[[int], Decisions]
    ) -> asyncio.Future[JoinAnswer]:
        """Ask under a new number, and hand out what its answer will come by."""
        return self._wait_for(group, ask)

    def wait_for_sync(
        self, group: CoordinatedGroup, ask: Callable[[int], Decisions]
    ) -> asyncio.Future[SyncAnswer]:
        return self._wait_for(group, ask)

    def wait_for_heartbeat(
        self, group: CoordinatedGroup, ask: Callable[[int], Decisions]
    ) -> asyncio.Future[HeartbeatAnswer]:
        return self._wait_for(group, ask)

    def _wait_for(self, group: CoordinatedGroup, ask: Callable[[int], Decisions]) -> asyncio.Future[Any]:
        self._requests += 1
        answer = self._waiting[self._requests] = self._loop.create_future()
        self.carry_out(group, ask(self._requests))
        return answer

    def carry_out(self, group: CoordinatedGroup, decisions: Decisions) -> None:
        """Answer, write and wait as the group decided."""
        for decided in decisions.answers:
            waiting = self._waiting.pop(decided.request)
            if not waiting.done():  # its connection may be gone
                waiting.set_result(decided.answer)
        for store in decisions.stores:
            group.state_ms = self._wall_ms()
            value = replace(store.group, state_ms=group.state_ms).encode()
            self._write_group(group, value, store.ticket)
        for stored in decisions.records:
            group.state_ms = self._wall_ms()
            self._write_records(group, stored)
        if decisions.records:
            self._downgrade_if_due(group)
        self._arm(group)

    def _write_group(self, group: CoordinatedGroup, value: bytes, ticket: int) -> None:
        membership = group.membership
        assert isinstance(membership, Group)

        def settle(error: ProtocolError | None) -> None:
            code = self._code_of(group, error)
            self.carry_out(group, membership.stored(ticket, code, self.steady_ms()))

        self._append([(GroupKey(group.group_id).encode(), value, ())], settle)

    def _write_records(self, group: CoordinatedGroup, store: StoreRecords) -> None:
        membership = group.membership
        assert isinstance(membership, ConsumerGroup)

        def settle(error: ProtocolError | None) -> None:
            self.carry_out(group, membership.stored(store.ticket, self._code_of(group, error)))

        entries = [
            (key.encode(), None if value is None else value.encode(), ()) for key, value in store.records
        ]
        self._append(entries, settle)

    def _code_of(self, group: CoordinatedGroup, error: ProtocolError | None) -> int:
        if error is None:
            return 0
        logger.warning("group not stored", group=group.group_id, reason=str(error))
        return _for_members(error).code

    def _append(self, entries: Sequence[Entry], settle: Callable[[ProtocolError | None], None]) -> None:
        """Write in as few batches as there have to be; `settle` is called once, with the first failure."""
        portions = list(_portions(entries))
        left = len(portions)
        failure: ProtocolError | None = None

        def settle_one(error: ProtocolError | None) -> None:
            nonlocal left, failure
            left -= 1
            failure = failure or error
            if left == 0:
                settle(failure)

        for number, portion in enumerate(portions):
            try:
                self.journal.append(portion, self._wall_ms(), settle_one)
            except ProtocolError as error:
                left -= len(portions) - number - 1  # those are not tried
                settle_one(error)
                return

    # --- From one kind to the other ---

    def upgrade(
        self, group: CoordinatedGroup, ask: Callable[[ConsumerGroup, int], Decisions]
    ) -> asyncio.Future[HeartbeatAnswer]:
        """Have a classic group be one of KIP-848, and ask it for the first time.

        Raises:
            GroupIdNotFound, GroupMaxSizeReached: it cannot become one; see `migration.upgrade`.
        """
        old = group.membership
        assert isinstance(old, Group)
        policies = self._policies
        new = upgrade(old, policies.migration, policies.consumer, self._topics, self.steady_ms())
        logger.info("group upgraded", group=group.group_id, members=len(new.members))
        group.membership = new
        answer = self.wait_for_heartbeat(group, lambda number: ask(new, number))
        # Only now: cut short in between, both groups' records are there, instead of none.
        if group.membership is new:  # else it was refused, and is classic again, under the same keys
            self._bury(old.record_keys(), lambda: None)
        self.carry_out(group, old.close(RebalanceInProgress.code))
        return answer

    def become_classic(self, group: CoordinatedGroup) -> Group:
        """Have a group be a classic one; only without members of the new protocol."""
        membership = group.membership
        if isinstance(membership, ConsumerGroup):
            successor = downgrade(membership, self._policies.classic, self.steady_ms())
            logger.info("group downgraded", group=group.group_id, members=len(successor.members))
            group.membership = successor
            self.carry_out(group, successor.tick(self.steady_ms()))
            self._bury(membership.record_keys(), lambda: None)  # as in `upgrade`
            membership = successor
        return membership

    def _end_migration(self, group: CoordinatedGroup) -> None:
        """Go on where a change of kind was cut short: the records of both kinds are there."""
        self._downgrade_if_due(group)
        if isinstance(group.membership, ConsumerGroup):
            self._bury([GroupKey(group.group_id).encode()], lambda: None)

    def _downgrade_if_due(self, group: CoordinatedGroup) -> None:
        membership = group.membership
        if (
            isinstance(membership, ConsumerGroup)
            and self._policies.migration.allows_downgrade
            and membership.has_only_classic_members
        ):
            self.become_classic(group)

    def _arm(self, group: CoordinatedGroup) -> None:
        """Have the group told of the time when it wants to be, if that is sooner than it will be anyway."""
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

    # --- Offsets ---

    def commit(
        self, group: CoordinatedGroup, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> asyncio.Future[None]:
        """Write offsets; done when they are replicated, and visible then.

        The future may hold, and this may raise, what `_for_commits` makes of the failure.
        """
        stored: asyncio.Future[None] = self._loop.create_future()
        entries = [
            (OffsetKey(group.group_id, topic, partition).encode(), offset.encode(), offset.headers)
            for (topic, partition), offset in offsets.items()
        ]
        group.commits_under_way.update(offsets.keys())

        def settle(error: ProtocolError | None) -> None:
            _count_down(group.commits_under_way, offsets)
            if error is None or isinstance(error, NotEnoughReplicasAfterAppend):
                # Also in the second case the records stay, and the next coordinator will know them.
                for partition, offset in offsets.items():
                    group.offsets.put(partition, offset)
            if stored.done():
                return  # the one who waited has given up
            if error is None:
                stored.set_result(None)
            else:
                stored.set_exception(_for_commits(error))

        try:
            self.journal.append(entries, self._wall_ms(), settle)
        except ProtocolError as error:
            _count_down(group.commits_under_way, offsets)
            raise _for_commits(error) from error
        return stored

    def forget_offsets(
        self, group: CoordinatedGroup, partitions: Sequence[TopicPartition]
    ) -> asyncio.Future[None]:
        """Write tombstones for these offsets; they are gone when that is replicated."""

        def forget() -> None:
            for partition in partitions:
                group.offsets.remove(partition)

        return self._bury(_offset_keys(group, partitions), forget)

    def remove(self, group: CoordinatedGroup) -> asyncio.Future[None]:
        """Take an idle group away with all that it has committed; done when that is replicated."""
        partitions = list(dict.fromkeys([*group.offsets, *group.commits_under_way]))
        buried = self._bury([*_offset_keys(group, partitions), *group.membership.record_keys()], lambda: None)
        if not (buried.done() and buried.exception() is not None):
            del self.groups[group.group_id]
            self.carry_out(group, group.membership.close(NotCoordinator.code))
        return buried

    def _bury(self, keys: Sequence[bytes], then: Callable[[], None]) -> asyncio.Future[None]:
        buried: asyncio.Future[None] = self._loop.create_future()

        def settle(error: ProtocolError | None) -> None:
            if error is None:
                then()
            if buried.done():
                return
            if error is not None:
                buried.set_exception(_for_commits(error))
                buried.exception()  # nobody has to look: it is tried again
            else:
                buried.set_result(None)

        if keys:
            self._append([(key, None, ()) for key in keys], settle)
        else:
            settle(None)
        return buried

    # --- Upkeep ---

    def drop_expired(self, retention_ms: int) -> None:
        """Forget offsets that nobody has needed for long enough, and groups that have nothing left."""
        now_ms = self._wall_ms()
        for group in tuple(self.groups.values()):
            if isinstance(group.membership, ConsumerGroup):
                # Records whose write has failed, if nobody was there since to have them written again.
                self.carry_out(group, group.membership.decided())
            members = group.membership
            empty_since_ms = (
                group.state_ms
                if members.state in EMPTY_STATES and members.protocol_type is not None
                else None
            )
            expired = [
                partition
                for partition in group.offsets.expired(
                    now_ms=now_ms,
                    retention_ms=retention_ms,
                    empty_since_ms=empty_since_ms,
                    in_use=topics_in_use(members),
                )
                if partition not in group.commits_under_way
            ]
            if members.is_idle and not group.commits_under_way and len(expired) == len(group.offsets):
                logger.info("group expired", group=group.group_id)
                self.remove(group)
            elif expired:
                logger.info("offsets expired", group=group.group_id, count=len(expired))
                self.forget_offsets(group, expired)


def _offset_keys(group: CoordinatedGroup, partitions: Iterable[TopicPartition]) -> list[bytes]:
    return [OffsetKey(group.group_id, topic, partition).encode() for topic, partition in partitions]


def _portions(entries: Sequence[Entry]) -> Iterable[list[Entry]]:
    portion: list[Entry] = []
    size_bytes = 0
    for entry in entries:
        key, value, _ = entry
        entry_bytes = len(key) + len(value or b"")
        if portion and size_bytes + entry_bytes > BATCH_BYTES:
            yield portion
            portion, size_bytes = [], 0
        portion.append(entry)
        size_bytes += entry_bytes + 20
    if portion:
        yield portion


def _count_down(counter: Counter[TopicPartition], partitions: Iterable[TopicPartition]) -> None:
    for partition in partitions:
        counter[partition] -= 1
        if counter[partition] <= 0:
            del counter[partition]


def _for_members(error: ProtocolError) -> ProtocolError:
    """A failed write in words that clients of groups know what to do about (redpanda#3205)."""
    if isinstance(error, NotEnoughReplicas | NotEnoughReplicasAfterAppend | RequestTimedOut):
        return CoordinatorNotAvailable(str(error))
    if isinstance(error, MessageTooLarge | RecordListTooLarge):
        return UnknownServerError(f"The group's metadata is too large to be stored: {error}")
    return NotCoordinator(str(error))


def _for_commits(error: ProtocolError) -> ProtocolError:
    if isinstance(error, MessageTooLarge | RecordListTooLarge):
        return InvalidCommitOffsetSize(str(error))
    return _for_members(error)
