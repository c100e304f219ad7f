"""Fetch sessions of consumers: the partitions between their fetches (KIP-227). Knows no requests and no
clock.

A consumer names its partitions once and then only those that have changed, and an incremental answer has only
partitions with news: records, an error, another broker to read from, or other offsets than were sent last.
Partitions take turns: one whose records were sent goes behind the others.

A session costs memory until it is closed or evicted by another one: the least recently used is evicted, once
it has been idle for `EVICTION_IDLE_MS`. Without room for a session, the fetch is answered without one.
Sessions of followers are `follower_sessions.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple
from uuid import UUID

from mainstem_broker.errors import FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
"""Requests a new session."""
FINAL_EPOCH: Final = -1
"""Requests an answer without a session, and closes the session that the request names."""
EVICTION_IDLE_MS: Final = 120_000
"""Kafka's min.incremental.fetch.session.eviction.ms, at its default."""
PARTITIONS_MAX: Final = 200_000
"""In all sessions together: some 60 MB."""
_INT32_MAX: Final = 2**31 - 1
_NEVER_SENT: Final = (-1, -1)

TopicKey = UUID | str | None
"""A topic's id, from version 13 on, or its name; None for the id that no topic has."""


class SessionTopic(NamedTuple):
    """One partition as a request would name it. Either `topic` or `topic_id` is None."""

    topic: str | None
    topic_id: UUID | None
    partitions: tuple[Any]


class _Cached:
    """A partition of a session."""

    __slots__ = ("entry", "sent_offsets")

    def __init__(self, entry: SessionTopic) -> None:
        self.entry = entry
        self.sent_offsets = _NEVER_SENT
        """High watermark and log start offset."""


class ConsumerSession:
    """The partitions of one session, those whose turn is next first."""

    def __init__(self, session_id: int, *, uses_topic_ids: bool) -> None:
        self.session_id = session_id
        self.uses_topic_ids = uses_topic_ids
        self.next_epoch = INITIAL_EPOCH + 1
        self._partitions: dict[tuple[TopicKey, int], _Cached] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def entries(self) -> list[SessionTopic]:
        """All partitions, in the order in which they are to be read."""
        return [cached.entry for cached in self._partitions.values()]

    def update(self, topics: Iterable[Any], forgotten: Iterable[Any]) -> None:
        """Take the partitions that a fetch names, and drop those that it names as forgotten."""
        for topic in forgotten:
            for index in topic.partitions:
                self._partitions.pop((_key(topic), index), None)
        for key, entry in entries_of(topics):
            cached = self._partitions.get(key)
            if cached is None:
                self._partitions[key] = _Cached(entry)
            else:
                cached.entry = entry

    def take_answer(self, topics: list[dict[str, Any]], *, is_full: bool) -> list[dict[str, Any]]:
        """The part of an answer about all partitions that is to be sent; `is_full`: all of it.

        `topics` are those of `entries`, with one partition each.
        """
        sent: dict[TopicKey, dict[str, Any]] = {}
        for topic in topics:
            (answer,) = topic["partitions"]
            topic_key = topic["topic"] if topic["topic_id"] is None else topic["topic_id"]
            key = topic_key, answer["partition_index"]
            cached = self._partitions.get(key)
            if cached is None:
                continue  # forgotten while this fetch was waiting
            records = answer["records"]
            has_records = not isinstance(records, bytes) or len(records) > 0
            offsets = answer["high_watermark"], answer["log_start_offset"]
            failed = answer["error_code"] != 0
            if has_records:
                del self._partitions[key]
                self._partitions[key] = cached  # behind the others
            is_news = has_records or failed or "preferred_read_replica" in answer
            if is_full or is_news or offsets != cached.sent_offsets:
                # After an error the next answer has the partition in any case.
                cached.sent_offsets = _NEVER_SENT if failed else offsets
                sent.setdefault(topic_key, {**topic, "partitions": []})["partitions"].append(answer)
        return list(sent.values())


def entries_of(topics: Iterable[Any]) -> Iterator[tuple[tuple[TopicKey, int], SessionTopic]]:
    """The partitions that a request names, with their keys."""
    for topic in topics:
        topic_id = getattr(topic, "topic_id", None)
        name = None if topic_id is not None else getattr(topic, "topic", None)
        for position in topic.partitions:
            yield (_key(topic), position.partition), SessionTopic(name, topic_id, (position,))


def _key(topic: Any) -> TopicKey:
    topic_id = getattr(topic, "topic_id", None)
    key: TopicKey = topic_id if topic_id is not None else getattr(topic, "topic", None)
    return key


class ConsumerSessions:
    """The sessions of this broker's consumers."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._sessions: dict[int, tuple[ConsumerSession, int]] = {}
        """With the time of their last use in ms, the one used longest ago first."""
        self._last_id = NO_SESSION
        self.partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, topics: Iterable[Any], *, uses_topic_ids: bool, now_ms: int) -> ConsumerSession | None:
        """A new session of these partitions, or None if there is no room for one."""
        self._last_id = max(self._last_id % _INT32_MAX, now_ms % _INT32_MAX) + 1
        while self._last_id in self._sessions:
            self._last_id = self._last_id % _INT32_MAX + 1
        session = ConsumerSession(self._last_id, uses_topic_ids=uses_topic_ids)
        session.update(topics, ())
        if not len(session) or not self._has_room(len(session), now_ms):
            return None
        self._sessions[session.session_id] = session, now_ms
        self.partitions += len(session)
        return session

    def _has_room(self, partitions: int, now_ms: int) -> bool:
        while len(self._sessions) >= self._slots or self.partitions + partitions > PARTITIONS_MAX:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest[1] < EVICTION_IDLE_MS:
                return False
            self.close(oldest[0].session_id)
        return True

    def close(self, session_id: int) -> None:
        entry = self._sessions.pop(session_id, None)
        if entry is not None:
            self.partitions -= len(entry[0])

    def continue_session(self, request: Any, *, uses_topic_ids: bool, now_ms: int) -> ConsumerSession:
        """The session that an incremental fetch names, after the changes that the fetch makes.

        Raises:
            FetchSessionIdNotFound: it was closed, or never there.
            FetchSessionTopicIdError: its topics are named otherwise.
            InvalidFetchSessionEpoch: the fetch is not the next one.
        """
        entry = self._sessions.get(request.session_id)
        if entry is None:
            raise FetchSessionIdNotFound("There is no such fetch session: begin a new one.")
        session = entry[0]
        if session.uses_topic_ids != uses_topic_ids:
            raise FetchSessionTopicIdError("The session's topics are named otherwise: begin a new one.")
        if session.next_epoch != request.session_epoch:
            raise InvalidFetchSessionEpoch(
                f"The session expects epoch {session.next_epoch}, not {request.session_epoch}."
            )
        named = sum(len(topic.partitions) for topic in request.topics)
        if self.partitions + named > PARTITIONS_MAX:
            self.close(session.session_id)
            raise FetchSessionIdNotFound("There is no room for more partitions in fetch sessions.")
        session.next_epoch = session.next_epoch % _INT32_MAX + 1
        size_before = len(session)
        session.update(request.topics, request.forgotten_topics_data)
        self.partitions += len(session) - size_before
        del self._sessions[session.session_id]
        self._sessions[session.session_id] = session, now_ms  # behind the others
        return session
