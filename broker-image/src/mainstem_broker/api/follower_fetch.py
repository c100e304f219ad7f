"""Fetch (key 1) of followers: opens their sessions, answers them, and lets a fetch without news wait.

What an answer contains is decided in `replica/follower_sessions.py`.

- A fetch waits until there are `min_bytes` of records, an error or a divergence, at most `max_wait`.
- A follower that is no broker of this cluster gets no session, and is answered in full. One whose
  registration has ended gets one: after an outage of ZooKeeper all brokers register again, and meanwhile
  leaders need what followers grant, which counts within a session only.
- Where a follower's log leaves the leader's, the answer contains the diverging epoch (v12, KIP-595). A
  follower that is being moved here may be throttled (`replica/throttle.py`): it then gets no records of that
  partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from uuid import UUID

from mainstem_broker.api.context import BrokerContext, milliseconds
from mainstem_broker.errors import FetchSessionIdNotFound, InvalidFetchSessionEpoch, UnknownTopicId
from mainstem_broker.protocol.fetch_codec import FetchRequest
from mainstem_broker.protocol.wire import NULL_UUID, Body
from mainstem_broker.replica.follower_sessions import (
    FIRST_EPOCH,
    NO_SESSION,
    Answers,
    FollowerSession,
    PartitionAnswer,
    next_epoch,
    next_session_id,
)
from mainstem_broker.replica.partition import Partition
from mainstem_broker.runtime.page_cache import NotCached
from mainstem_broker.runtime.pending import Pending
from mainstem_broker.runtime.timeout import Timeout


def handle(broker: BrokerContext, request: FetchRequest) -> Body | Pending[Body | None]:
    """Answer a follower: a request whose `replica_state` names a broker."""
    follower, broker_epoch, _ = request.replica_state
    sessions = broker.follower_sessions
    if request.session_epoch > FIRST_EPOCH:
        session = sessions.find(follower)
        if session is None or (session.session_id, session.broker_epoch) != (
            request.session_id,
            broker_epoch,
        ):
            return _error(FetchSessionIdNotFound.code)
        if session.next_epoch != request.session_epoch:
            return _error(InvalidFetchSessionEpoch.code)
        session.next_epoch = next_epoch(session.next_epoch)
        fetches = session.waiter
        assert isinstance(fetches, _SessionFetches)
        return fetches.fetch(request)
    former_id = sessions.close(follower)
    if request.session_epoch < FIRST_EPOCH or not broker.view.has_known(follower):
        return _fetch_once(broker, _new_session(broker, NO_SESSION, follower, broker_epoch), request)
    session = _new_session(broker, next_session_id(broker.now_ms(), former_id), follower, broker_epoch)
    sessions.add(session)
    return _SessionFetches(broker, session).fetch(request)


def _new_session(broker: BrokerContext, session_id: int, follower: int, broker_epoch: int) -> FollowerSession:
    def find(topic_id: UUID, index: int) -> Partition:
        name = broker.view.topic_names.get(topic_id)
        if name is None:
            raise UnknownTopicId(f"There is no topic with the id {topic_id}.")
        return broker.find_replica(name, index)

    def load_missing(missing: NotCached, then: Callable[[], None]) -> None:
        loading = broker.disk.load_missing(f"broker {follower}", missing)
        loading.add_done_callback(lambda _: then())

    return FollowerSession(find, broker.replicas, load_missing, session_id, follower, broker_epoch)


def _fetch_once(
    broker: BrokerContext, session: FollowerSession, request: FetchRequest
) -> Body | Pending[Body | None]:
    answer = _SessionFetches(broker, session).fetch(request)
    if isinstance(answer, Pending):
        answer.add_done_callback(lambda _: session.close())
    else:
        session.close()
    return answer


class _SessionFetches:
    """The fetches of one session, one after another, of which the last may be waiting."""

    def __init__(self, broker: BrokerContext, session: FollowerSession) -> None:
        self._broker = broker
        self._session = session
        session.waiter = self
        self._loop = asyncio.get_running_loop()
        self._waiting: Pending[Body | None] | None = None
        self._timeout = Timeout(partial(self._answer_waiting, True))
        self._is_answering_soon = False
        self._max_bytes = self._min_bytes = 0

    def fetch(self, request: FetchRequest) -> Body | Pending[Body | None]:
        """Take the follower's positions and answer it, at once or when there is news."""
        session = self._session
        if self._waiting is not None:
            self._settle(self._body({}))  # the follower no longer waits for its former fetch
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                session.forget(forgotten.topic_id or NULL_UUID, index)
        session.begin_fetch(self._broker.now_ms(), is_granted=request.replica_state.grants)
        for topic in request.topics:
            for position in topic.partitions:
                session.follow(topic.topic_id or NULL_UUID, position)
        self._max_bytes = min(request.max_bytes, self._broker.config.integer("fetch.max.bytes"))
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        wait_ms = milliseconds(request.max_wait)
        body = self._body_if_due(wait_ms <= 0 or session.is_empty)
        if body is not None:
            session.end_fetch()
            return body
        waiting: Pending[Body | None] = Pending()
        self._waiting = waiting
        waiting.add_done_callback(self._stop_waiting)
        self._timeout.begin(wait_ms / 1000)
        return waiting

    def on_news(self) -> None:
        if self._waiting is not None and not self._is_answering_soon:
            # Soon, not now: one request may append to many partitions.
            self._is_answering_soon = True
            self._loop.call_soon(self._answer_waiting, False)

    def on_close(self) -> None:
        self._settle(_error(FetchSessionIdNotFound.code))
        self._timeout.close()

    def _answer_waiting(self, is_over: bool) -> None:
        self._is_answering_soon = False
        if self._waiting is None or self._waiting.done():
            return
        try:
            body = self._body_if_due(is_over)
        except Exception as error:  # noqa: BLE001  # the connection logs it, and closes
            self._waiting.set_exception(error)
            return
        if body is not None:
            self._session.end_fetch()
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

    def _body_if_due(self, is_over: bool) -> Body | None:
        """The answer, if there is enough for one or the wait is over."""
        due = self._session.read_due(self._max_bytes, self._broker.now_ms())
        if due.is_urgent or is_over or due.total_bytes >= self._min_bytes:
            return self._body(self._session.complete(due.answers))
        return None

    def _body(self, answers: Answers) -> Body:
        topics: dict[UUID, list[Body]] = {}
        for followed, answer in answers.items():
            topics.setdefault(followed.topic_id, []).append(_partition_body(followed.index, answer))
        return {
            "throttle_time": 0,
            "error_code": 0,
            "session_id": self._session.session_id,
            "responses": [
                {"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in topics.items()
            ],
        }


def _error(code: int) -> Body:
    return {"throttle_time": 0, "error_code": code, "session_id": NO_SESSION, "responses": ()}


def _partition_body(index: int, answer: PartitionAnswer) -> Body:
    body: Body = {
        "partition_index": index,
        "error_code": answer.error_code,
        "high_watermark": answer.high_watermark,
        "last_stable_offset": -1,
        "log_start_offset": answer.log_start_offset,
        "aborted_transactions": None,
        "records": answer.records,
    }
    if answer.diverging is not None:
        body["diverging_epoch"] = {
            "epoch": answer.diverging.epoch,
            "end_offset": answer.diverging.end_offset,
        }
    return body
