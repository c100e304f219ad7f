"""What each follower of this leader has and is to be sent: fetch sessions (KIP-227).

A follower names all its partitions once and then only those that have changed, and an answer contains only
partitions with news. A session records for each partition what the follower has, and which partitions are
*due*, that is, to be examined for the next answer. A partition stops being due when the follower has all of
it and is in sync. It becomes due when the follower names it, when a batch is appended, and when its role or
in-sync set changes. So a fetch costs what changes, not what exists.

Belongs here: the state of sessions and the decision what an answer contains. Does not: requests, responses
and waiting (`api/follower_fetch.py`).

- Each follower has one session. A new one closes the former one, and so does the follower's end.
- Partitions take turns: one whose records were sent goes behind the others.
- A new high watermark or log start offset goes with the next answer, but causes none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from mainstem_broker.errors import OffsetOutOfRange, ProtocolError
from mainstem_broker.log.files import FileSlice, ReadResult
from mainstem_broker.protocol.fetch_codec import FetchPartition
from mainstem_broker.replica.divergence import Divergence
from mainstem_broker.replica.lease import Grant
from mainstem_broker.replica.manager import ReplicaManager
from mainstem_broker.replica.partition import Partition
from mainstem_broker.replica.throttle import is_throttled_leader
from mainstem_broker.runtime.disk_reads import LOADS_MAX
from mainstem_broker.runtime.page_cache import NotCached

NO_SESSION: Final = 0
"""The session id of a fetch that is answered without a session."""
FIRST_EPOCH: Final = 0
"""The session epoch that requests a new session; -1 requests an answer without one."""
_OFFSETS_NEVER_SENT: Final = (-1, -1)
_INT32_MAX: Final = 2**31 - 1

FindPartition = Callable[[UUID, int], Partition]
"""From a topic's id and an index to the local replica. Raises ProtocolError if there is none."""
LoadMissing = Callable[[NotCached, Callable[[], None]], None]
"""Brings what a read needs into the page cache, and then calls back."""


class FollowedPartition:
    """One partition of a session: the follower's position, and the offsets that were sent last."""

    __slots__ = (
        "_session",
        "index",
        "is_loading",
        "loads",
        "partition",
        "position",
        "sent_offsets",
        "topic_id",
    )

    def __init__(self, session: FollowerSession, topic_id: UUID, position: FetchPartition) -> None:
        self._session = session
        self.topic_id = topic_id
        self.index = position.partition
        self.position = position
        self.partition: Partition | None = None
        """The replica listened to. It is another object when the topic was moved away and back."""
        self.sent_offsets = _OFFSETS_NEVER_SENT
        """High watermark and log start offset."""
        self.is_loading = False
        """While what the next read needs is brought into the page cache."""
        self.loads = 0
        """How many loads the next read has had."""

    def listen_to(self, partition: Partition | None) -> None:
        if partition is self.partition:
            return
        if self.partition is not None:
            self.partition.remove_listener(self._on_end)
            self.partition.remove_listener(self._on_mark)
            self.partition.grants.drop(
                self._session.follower, self._session.grant, self.partition.leader_epoch
            )
        self.partition = partition
        if partition is not None:
            partition.add_listener(self._on_end, of_end=True)
            partition.add_listener(self._on_mark)
            self._take_grants(partition)

    def move_to(self, position: FetchPartition) -> None:
        """The follower is there now, and perhaps in another epoch."""
        is_other_epoch = position.current_leader_epoch != self.position.current_leader_epoch
        self.position = position
        self.sent_offsets = _OFFSETS_NEVER_SENT
        if is_other_epoch and self.partition is not None:
            self._take_grants(self.partition)

    def _take_grants(self, partition: Partition) -> None:
        session = self._session
        partition.grants.take(session.follower, session.grant, self.position.current_leader_epoch)

    def _on_end(self) -> None:
        self._session.end_moved(self)

    def _on_mark(self) -> None:
        self._session.offsets_moved(self)

    def offsets(self) -> tuple[int, int]:
        assert self.partition is not None
        return self.partition.high_watermark, self.partition.log.log_start_offset

    def has_unsent_offsets(self) -> bool:
        return self.partition is not None and self.offsets() != self.sent_offsets


class PartitionAnswer(NamedTuple):
    """What an answer says of one partition. `diverging` is where the follower's log leaves the leader's."""

    error_code: int
    high_watermark: int
    log_start_offset: int
    records: FileSlice | bytes = b""
    diverging: Divergence | None = None


Answers = dict[FollowedPartition, PartitionAnswer]


class Due(NamedTuple):
    """The answers for the partitions that are due; `is_urgent` if one of them is an error or a divergence."""

    answers: Answers
    total_bytes: int
    is_urgent: bool


class Waiter(Protocol):
    """A fetch of the session that may be waiting for news."""

    def on_news(self) -> None:
        """A partition has become due."""
        ...

    def on_close(self) -> None:
        """The session is closed."""
        ...


class FollowerSession:
    """All that one incarnation of a follower follows here. `session_id` is 0 without a session."""

    def __init__(
        self,
        find: FindPartition,
        replicas: ReplicaManager,
        load_missing: LoadMissing,
        session_id: int,
        follower: int,
        broker_epoch: int,
    ) -> None:
        self._find = find
        self._load_missing = load_missing
        self._replicas = replicas
        self.session_id = session_id
        self.next_epoch = FIRST_EPOCH + 1
        self.follower = follower
        self.broker_epoch = broker_epoch
        self.waiter: Waiter | None = None
        self.grant = Grant()
        self._answered_s: float | None = None
        """When the last fetch was answered; None while one is waiting."""
        self._followed: dict[tuple[UUID, int], FollowedPartition] = {}
        # Used as sets that keep their order.
        self._due: dict[FollowedPartition, None] = {}
        self._moved: dict[
            FollowedPartition, None
        ] = {}  # high watermark or log start may differ from those sent
        self._fetched_ms = 0

    @property
    def is_empty(self) -> bool:
        return not self._followed

    def close(self) -> None:
        """Stop listening. A waiting fetch is informed."""
        if self.waiter is not None:
            self.waiter.on_close()
        for followed in self._followed.values():
            followed.listen_to(None)
        self._followed.clear()
        self._due.clear()
        self._moved.clear()

    def begin_fetch(self, now_ms: int, *, is_granted: bool) -> None:
        """A fetch has come: the follower has everything that it does not name.

        If it grants, that counts from the answer to the fetch before, which the follower had when it sent
        this one. A fetch may have been under way for any time.
        """
        self._fetched_ms = now_ms
        if is_granted and self._answered_s is not None:
            self.grant.until_s = self._replicas.lease.grant_end_s(self._answered_s)
        self._answered_s = None

    def end_fetch(self) -> None:
        """The answer to the last fetch is sent now."""
        self._answered_s = self._replicas.lease.now_s()

    def follow(self, topic_id: UUID, position: FetchPartition) -> None:
        """Take a partition that the fetch names, because it is new or the follower's position has changed."""
        followed = self._followed.get((topic_id, position.partition))
        if followed is None:
            followed = FollowedPartition(self, topic_id, position)
            self._followed[topic_id, position.partition] = followed
        else:
            followed.move_to(position)
        self._due[followed] = self._moved[followed] = None

    def forget(self, topic_id: UUID, index: int) -> None:
        """Drop a partition that the fetch names as forgotten. To be called before `begin_fetch`: what this
        fetch grants is not for a partition that the follower may lead by now.
        """
        followed = self._followed.pop((topic_id, index), None)
        if followed is not None:
            followed.listen_to(None)
            self._due.pop(followed, None)
            self._moved.pop(followed, None)

    # --- News of the partitions ---

    def end_moved(self, followed: FollowedPartition) -> None:
        """A batch was appended, or the role has changed."""
        if followed not in self._due:
            self._due[followed] = None
            if followed.partition is not None:
                # The follower had everything until now. It said so by not naming the partition in its
                # fetches.
                followed.partition.was_caught_up(self.follower, self._fetched_ms)
        if self.waiter is not None:
            self.waiter.on_news()

    def offsets_moved(self, followed: FollowedPartition) -> None:
        """The high watermark, the log start offset or the role has changed."""
        self._moved[followed] = None

    # --- Answers ---

    def read_due(self, max_bytes: int, now_ms: int) -> Due:
        """The answers for the partitions that are due, with at most `max_bytes` of records, or one batch."""
        answers: Answers = {}
        total_bytes = 0
        is_urgent = False
        for followed in tuple(self._due):
            if followed.is_loading:
                continue
            try:
                planned_read = self._read(followed, max(max_bytes - total_bytes, 0), total_bytes == 0, now_ms)
            except NotCached as missing:
                self._load(followed, missing)
                continue
            except ProtocolError as error:
                is_urgent = True
                answers[followed] = _failure(followed, error)
                continue
            partition = followed.partition
            assert partition is not None
            if isinstance(planned_read, Divergence):
                is_urgent = True
                answers[followed] = PartitionAnswer(0, *followed.offsets(), diverging=planned_read)
                continue
            is_in_sync = partition.is_in_sync(self.follower)
            if not is_in_sync:
                # Followers that fall out of the set are found periodically (`server/maintenance.py`), as in
                # Kafka.
                self._replicas.consider_isr(partition)
            if planned_read.slice is not None:
                total_bytes += planned_read.slice.size_bytes
                answers[followed] = PartitionAnswer(0, *followed.offsets(), planned_read.slice)
                self._move_behind_the_others(followed)
            elif is_in_sync and planned_read.end_offset >= partition.log.log_end_offset:
                del self._due[followed]
        return Due(answers, total_bytes, is_urgent)

    def _load(self, followed: FollowedPartition, missing: NotCached) -> None:
        """Go on without a partition until what its read needs is cached."""

        def go_on() -> None:
            followed.is_loading = False
            is_followed = self._followed.get((followed.topic_id, followed.index)) is followed
            if self.waiter is not None and is_followed:
                self.waiter.on_news()

        followed.loads += 1
        followed.is_loading = True
        self._load_missing(missing, go_on)

    def _move_behind_the_others(self, followed: FollowedPartition) -> None:
        del self._due[followed]
        self._due[followed] = None

    def _read(
        self, followed: FollowedPartition, max_bytes: int, min_one_batch: bool, now_ms: int
    ) -> ReadResult | Divergence:
        position = followed.position
        partition = followed.partition
        if partition is None or partition.state is None:  # not looked up yet, or taken away
            partition = self._find(followed.topic_id, followed.index)
            followed.listen_to(partition)
        throttle = self._replicas.leader_throttle
        is_throttled = throttle.is_limited and is_throttled_leader(partition, self.follower)
        is_held_back = is_throttled and not throttle.may_pass()
        planned_read = partition.read_as_follower(
            self.follower,
            self.broker_epoch,
            position.fetch_offset,
            position.last_fetched_epoch,
            0 if is_held_back else min(position.partition_max_bytes, max_bytes),
            leader_epoch=position.current_leader_epoch,
            min_one_batch=min_one_batch and not is_held_back,
            now_ms=now_ms,
            log_start_offset=position.log_start_offset,
            cached_only=followed.loads < LOADS_MAX,
        )
        followed.loads = 0
        if is_throttled and isinstance(planned_read, ReadResult) and planned_read.slice is not None:
            throttle.charge(planned_read.slice.size_bytes)
        return planned_read

    def complete(self, answers: Answers) -> Answers:
        """Add the offsets that were not sent yet to `answers`, which are sent now."""
        for followed in self._moved:
            if followed not in answers and followed.has_unsent_offsets():
                answers[followed] = PartitionAnswer(0, *followed.offsets())
        self._moved = {}
        for followed, answer in answers.items():
            if answer.error_code == 0 and answer.diverging is None:
                followed.sent_offsets = answer.high_watermark, answer.log_start_offset
            else:
                self._moved[followed] = None  # the follower takes nothing else from such an answer
        return answers


def _failure(followed: FollowedPartition, error: ProtocolError) -> PartitionAnswer:
    # A follower that is sent the log start offset does not have to ask for it.
    start_offset = -1
    if isinstance(error, OffsetOutOfRange) and followed.partition is not None:
        start_offset = followed.partition.log.log_start_offset
    return PartitionAnswer(error.code, -1, start_offset)


class FollowerSessions:
    """The sessions of this leader, by follower."""

    def __init__(self) -> None:
        self._sessions: dict[int, FollowerSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, follower: int) -> FollowerSession | None:
        return self._sessions.get(follower)

    def close(self, follower: int) -> int:
        """Close the follower's session, if it has one, and return its id; `NO_SESSION` if it has none."""
        session = self._sessions.pop(follower, None)
        if session is None:
            return NO_SESSION
        session.close()
        return session.session_id

    def add(self, session: FollowerSession) -> None:
        self._sessions[session.follower] = session

    def close_absent(self, brokers: Collection[int]) -> None:
        """Close the sessions of followers that are not among `brokers`, those that are registered."""
        for follower in self._sessions.keys() - set(brokers):
            self.close(follower)


def next_session_id(now_ms: int, former_id: int) -> int:
    """An id that differs from the former session's, and from those before a restart."""
    session_id = now_ms % _INT32_MAX + 1
    return session_id % _INT32_MAX + 1 if session_id == former_id else session_id


def next_epoch(epoch: int) -> int:
    """Session epochs continue with 1 after the largest int32."""
    return epoch % _INT32_MAX + 1
