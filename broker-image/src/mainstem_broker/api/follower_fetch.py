"""Fetch (key 1) of followers: sessions (KIP-227), so that a partition without news costs nothing.

A follower names all its partitions once and then only what has changed; it is answered only what is new. A
session knows for each partition what the follower has, and which partitions are *due*: to be looked at
for the next answer. A partition stops being due when the follower has all of it and is in sync; it becomes
due when it is named, when a batch is appended, and when its role or in-sync set changes. So a fetch costs
what moves, not what there is.

- One session for each follower; a new one ends the former one's, and so does the follower's end. One that is
  not a registered broker gets none, and is answered in full.
- Partitions take turns: one that gave records goes behind the others.
- A new high watermark or log start is told with the next answer, but is no reason to answer.
- Where a follower's log leaves the leader's, it is told the diverging epoch (v12, KIP-595). One that is
  being moved here may be held back (`replica/throttle.py`): it then gets nothing of that partition.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final
from uuid import UUID

from mainstem_broker.api.context import BrokerContext, milliseconds
from mainstem_broker.errors import (
    FetchSessionIdNotFound,
    InvalidFetchSessionEpoch,
    OffsetOutOfRange,
    ProtocolError,
    UnknownTopicId,
)
from mainstem_broker.log.files import FileSlice, ReadResult
from mainstem_broker.pending import Pending
from mainstem_broker.protocol.wire import Body, Entity
from mainstem_broker.replica.partition import Divergence, Partition
from mainstem_broker.timeout import Timeout

NO_SESSION: Final = 0
FIRST_EPOCH: Final = 0
"""The session epoch that asks for a new session; -1 asks for none."""
NOTHING_TOLD: Final = (-1, -1)
_INT32_MAX: Final = 2**31 - 1

Key = tuple[UUID, int]


class Followed:
    """One partition of a session: what the follower has, and what it was told last."""

    __slots__ = ("_session", "asked", "index", "partition", "told", "topic_id")

    def __init__(self, session: FollowerSession, topic_id: UUID, asked: Any) -> None:
        self._session = session
        self.topic_id = topic_id
        self.index: int = asked.partition
        self.asked = asked
        self.partition: Partition | None = None
        """The replica listened to: another one when the topic was moved away and back."""
        self.told = NOTHING_TOLD
        """High watermark and log start."""

    def listen_to(self, partition: Partition | None) -> None:
        if partition is self.partition:
            return
        if self.partition is not None:
            self.partition.remove_listener(self._on_end)
            self.partition.remove_listener(self._on_mark)
        self.partition = partition
        if partition is not None:
            partition.add_listener(self._on_end, of_end=True)
            partition.add_listener(self._on_mark)

    def _on_end(self) -> None:
        self._session.end_moved(self)

    def _on_mark(self) -> None:
        self._session.moved[self] = None

    def offsets(self) -> tuple[int, int]:
        assert self.partition is not None
        return self.partition.high_watermark, self.partition.log.log_start_offset

    def is_news(self) -> bool:
        """Whether the follower was told other offsets, or none."""
        return self.partition is not None and self.offsets() != self.told


class FollowerSession:
    """All that one follower, in one life, follows here. `session_id` is 0 for one of a single answer."""

    def __init__(self, broker: BrokerContext, session_id: int, follower: int, life: int) -> None:
        self._broker = broker
        self.session_id = session_id
        self.next_epoch = FIRST_EPOCH + 1
        self.follower = follower
        self.life = life
        self._followed: dict[Key, Followed] = {}
        # Sets that keep their order.
        self._due: dict[Followed, None] = {}
        self.moved: dict[Followed, None] = {}
        """Those whose high watermark or log start may be another than was told."""
        self._fetched_ms = 0
        self._loop = asyncio.get_running_loop()
        self._waiting: Pending[Body | None] | None = None
        self._timeout = Timeout(partial(self._look_again, True))
        self._is_looking_soon = False
        self._max_bytes = self._min_bytes = 0

    def close(self) -> None:
        """Stop listening; a fetch that waits is told that its session is gone."""
        self._settle(_error(FetchSessionIdNotFound.code))
        self._timeout.close()
        for followed in self._followed.values():
            followed.listen_to(None)
        self._followed.clear()
        self._due.clear()
        self.moved.clear()

    def fetch(self, request: Entity) -> Body | Pending[Body | None]:
        """Take what the follower says and answer it, at once or when there is something."""
        if self._waiting is not None:
            self._settle(self._body({}))  # nobody waits for the one before any more
        self._fetched_ms = self._broker.now_ms()
        for gone in request.forgotten_topics_data:
            for index in gone.partitions:
                self._forget((gone.topic_id, index))
        for topic in request.topics:
            for asked in topic.partitions:
                self._name(topic.topic_id, asked)
        self._max_bytes = min(request.max_bytes, self._broker.config.integer("fetch.max.bytes"))
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        answer, is_enough = self._look()
        wait_ms = milliseconds(request.max_wait)
        if is_enough or wait_ms <= 0 or not self._followed:
            return self._told(answer)
        self._waiting = Pending()
        self._waiting.add_done_callback(self._stop_waiting)
        self._timeout.begin(wait_ms / 1000)
        return self._waiting

    def _name(self, topic_id: UUID, asked: Any) -> None:
        followed = self._followed.get((topic_id, asked.partition))
        if followed is None:
            followed = self._followed[topic_id, asked.partition] = Followed(self, topic_id, asked)
        followed.asked = asked
        followed.told = NOTHING_TOLD
        self._due[followed] = self.moved[followed] = None

    def _forget(self, key: Key) -> None:
        followed = self._followed.pop(key, None)
        if followed is not None:
            followed.listen_to(None)
            self._due.pop(followed, None)
            self.moved.pop(followed, None)

    # --- Waiting ---

    def end_moved(self, followed: Followed) -> None:
        """A batch was appended, or the role has changed."""
        if followed not in self._due:
            self._due[followed] = None
            if followed.partition is not None:
                # It had everything until now, and said so, by saying nothing, with each fetch.
                followed.partition.was_caught_up(self.follower, self._fetched_ms)
        if self._waiting is not None and not self._is_looking_soon:
            # Soon, not now: one request may append to many partitions.
            self._is_looking_soon = True
            self._loop.call_soon(self._look_again, False)

    def _look_again(self, is_over: bool) -> None:
        self._is_looking_soon = False
        if self._waiting is None or self._waiting.done():
            return
        try:
            answer, is_enough = self._look()
            body = self._told(answer) if is_enough or is_over else None
        except Exception as error:  # noqa: BLE001  # the connection logs it, and closes
            self._waiting.set_exception(error)
            return
        if body is not None:
            self._settle(body)

    def _settle(self, body: Body) -> None:
        waiting = self._waiting
        if waiting is not None:
            self._stop_waiting(waiting)
            if not waiting.done():
                waiting.set_result(body)

    def _stop_waiting(self, waiting: Pending[Body | None]) -> None:
        """Also when the connection has closed."""
        if self._waiting is waiting:
            self._waiting = None
            self._timeout.end()

    # --- Answering ---

    def _look(self) -> tuple[dict[Followed, Body], bool]:
        """(what is to be said of the partitions that are due, whether to say it at once)."""
        answer: dict[Followed, Body] = {}
        total_bytes = 0
        failed = False
        now_ms = self._broker.now_ms()
        for followed in tuple(self._due):
            try:
                found = self._read(followed, total_bytes, now_ms)
            except ProtocolError as error:
                failed = True
                answer[followed] = _failure(followed, error)
                continue
            partition = followed.partition
            assert partition is not None
            if isinstance(found, Divergence):
                failed = True
                answer[followed] = _diverging(partition, found)
                continue
            is_in_sync = partition.is_in_sync(self.follower)
            if not is_in_sync:
                # Who falls out of the set is found at times (`server/upkeep.py`), as in Kafka.
                self._broker.replicas.consider_isr(partition)
            if found.slice is not None:
                total_bytes += found.slice.size_bytes
                answer[followed] = _given(
                    partition.high_watermark, partition.log.log_start_offset, found.slice
                )
                self._to_the_end_of_the_turn(followed)
            elif is_in_sync and found.end_offset >= partition.log.log_end_offset:
                del self._due[followed]
        return answer, failed or total_bytes >= self._min_bytes

    def _to_the_end_of_the_turn(self, followed: Followed) -> None:
        del self._due[followed]
        self._due[followed] = None

    def _read(self, followed: Followed, total_bytes: int, now_ms: int) -> ReadResult | Divergence:
        asked = followed.asked
        partition = followed.partition
        if partition is None or partition.state is None:
            partition = self._find(followed)
        throttle = self._broker.replicas.leader_throttle
        throttled = throttle.is_limited and partition.throttles(self.follower)
        held_back = throttled and not throttle.may_pass()
        max_bytes = min(asked.partition_max_bytes, max(self._max_bytes - total_bytes, 0))
        found = partition.read_as_follower(
            self.follower,
            self.life,
            asked.fetch_offset,
            asked.last_fetched_epoch,
            0 if held_back else max_bytes,
            leader_epoch=asked.current_leader_epoch,
            min_one_batch=total_bytes == 0 and not held_back,
            now_ms=now_ms,
        )
        if throttled and isinstance(found, ReadResult) and found.slice is not None:
            throttle.charge(found.slice.size_bytes)
        return found

    def _find(self, followed: Followed) -> Partition:
        """The replica, which is not known yet, or was taken away."""
        name = self._broker.view.topic_names.get(followed.topic_id)
        if name is None:
            raise UnknownTopicId(f"There is no topic with the id {followed.topic_id}.")
        partition = self._broker.find_replica(name, followed.index)
        followed.listen_to(partition)
        return partition

    def _told(self, answer: dict[Followed, Body]) -> Body:
        """The answer, with the offsets that the follower does not know yet."""
        for followed in self.moved:
            if followed not in answer and followed.is_news():
                answer[followed] = _given(*followed.offsets(), b"")
        self.moved = {}
        for followed, body in answer.items():
            if body["error_code"] == 0 and "diverging_epoch" not in body:
                followed.told = body["high_watermark"], body["log_start_offset"]
            else:
                self.moved[followed] = None  # it hears nothing else
        return self._body(answer)

    def _body(self, answer: dict[Followed, Body]) -> Body:
        topics: dict[UUID, list[Body]] = {}
        for followed, body in answer.items():
            body["partition_index"] = followed.index
            topics.setdefault(followed.topic_id, []).append(body)
        return {
            "throttle_time": 0,
            "error_code": 0,
            "session_id": self.session_id,
            "responses": [
                {"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in topics.items()
            ],
        }


def handle(broker: BrokerContext, request: Entity) -> Body | Pending[Body | None]:
    """Answer a follower: a request whose `replica_state` names a broker."""
    follower, life = request.replica_state.replica_id, request.replica_state.replica_epoch
    sessions = broker.follower_sessions
    known = sessions.get(follower)
    if request.session_epoch > FIRST_EPOCH:
        if known is None or known.session_id != request.session_id or known.life != life:
            return _error(FetchSessionIdNotFound.code)
        if known.next_epoch != request.session_epoch:
            return _error(InvalidFetchSessionEpoch.code)
        known.next_epoch = known.next_epoch % _INT32_MAX + 1
        return known.fetch(request)
    if known is not None:
        sessions.pop(follower).close()
    if request.session_epoch < FIRST_EPOCH or follower not in broker.view.brokers:
        return _fetch_once(FollowerSession(broker, NO_SESSION, follower, life), request)
    # Another id than the former session's, and than those before a restart.
    session_id = broker.now_ms() % _INT32_MAX + 1
    if known is not None and known.session_id == session_id:
        session_id = session_id % _INT32_MAX + 1
    sessions[follower] = made = FollowerSession(broker, session_id, follower, life)
    return made.fetch(request)


def end_sessions_of_the_gone(broker: BrokerContext) -> None:
    """End the sessions of brokers that are registered no longer; to be called when brokers went."""
    for follower in broker.follower_sessions.keys() - broker.view.brokers.keys():
        broker.follower_sessions.pop(follower).close()


def _fetch_once(session: FollowerSession, request: Entity) -> Body | Pending[Body | None]:
    answer = session.fetch(request)
    if isinstance(answer, Pending):
        answer.add_done_callback(lambda _: session.close())
    else:
        session.close()
    return answer


def _error(code: int) -> Body:
    return {"throttle_time": 0, "error_code": code, "session_id": NO_SESSION, "responses": ()}


def _given(high_watermark: int, log_start_offset: int, records: FileSlice | bytes) -> Body:
    return {
        "error_code": 0,
        "high_watermark": high_watermark,
        "last_stable_offset": -1,
        "log_start_offset": log_start_offset,
        "aborted_transactions": None,
        "records": records,
    }


def _failure(followed: Followed, error: ProtocolError) -> Body:
    # A follower that is told where the log starts need not ask for it.
    start = -1
    if isinstance(error, OffsetOutOfRange) and followed.partition is not None:
        start = followed.partition.log.log_start_offset
    return _given(-1, start, b"") | {"error_code": error.code}


def _diverging(partition: Partition, diverging: Divergence) -> Body:
    return _given(partition.high_watermark, partition.log.log_start_offset, b"") | {
        "diverging_epoch": {"epoch": diverging.epoch, "end_offset": diverging.end_offset}
    }
