"""Fetch sessions of consumers (KIP-227)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem_broker.errors import FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch
from mainstem_broker.protocol.fetch_codec import FetchPartition, FetchTopic, ForgottenTopic
from mainstem_broker.replica import consumer_sessions as module
from mainstem_broker.replica.consumer_sessions import EVICTION_IDLE_MS, ConsumerSession, ConsumerSessions

NOW_MS = 1_750_000_000_000
A, B = UUID(int=1), UUID(int=2)


def topics(*partitions: tuple[UUID, int, int]) -> list[FetchTopic]:
    """By topic id, index and offset."""
    return [
        FetchTopic(topic_id, [FetchPartition(index, -1, offset, -1, -1, 100)])
        for topic_id, index, offset in partitions
    ]


class Fetch:
    def __init__(
        self, session: tuple[int, int], named: Sequence[Any] = (), forgotten: Sequence[ForgottenTopic] = ()
    ) -> None:
        self.session_id, self.session_epoch = session
        self.topics = named
        self.forgotten_topics_data = forgotten


def answer(
    topic_id: UUID, index: int, mark: int = 0, records: bytes = b"", error: int = 0, **more: Any
) -> dict[str, Any]:
    partition = {
        "partition_index": index,
        "error_code": error,
        "high_watermark": mark,
        "log_start_offset": 0,
        "records": records,
        **more,
    }
    return {"topic": "name", "topic_id": topic_id, "partitions": [partition]}


def sent(answers: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Topic's id and partition of all that is sent."""
    names = []
    for topic in answers:
        names += [(topic["topic_id"].int, one["partition_index"]) for one in topic["partitions"]]
    return names


def order(session: ConsumerSession) -> list[tuple[int, int]]:
    """Likewise of all partitions, those whose turn is next first."""
    names = []
    for entry in session.entries():
        assert entry.topic_id is not None
        names.append((entry.topic_id.int, entry.partitions[0].partition))
    return names


def opened(sessions: ConsumerSessions, *partitions: tuple[UUID, int, int]) -> ConsumerSession:
    session = sessions.open(topics(*partitions), uses_topic_ids=True, now_ms=NOW_MS)
    assert session is not None
    return session


def test_a_session_remembers_what_a_fetch_names() -> None:
    sessions = ConsumerSessions(10)
    session = opened(sessions, (A, 0, 5), (A, 1, 6), (B, 0, 7))
    later = sessions.continue_session(
        Fetch((session.session_id, 1), topics((A, 1, 9)), [ForgottenTopic(B, (0,))]),
        uses_topic_ids=True,
        now_ms=NOW_MS,
    )
    assert later is session
    assert [entry.partitions[0].fetch_offset for entry in session.entries()] == [5, 9]
    assert sessions.partitions == 2


def test_only_news_is_sent_and_records_put_a_partition_behind_the_others() -> None:
    session = opened(ConsumerSessions(10), (A, 0, 0), (A, 1, 0), (B, 0, 0))
    full = [answer(A, 0), answer(A, 1), answer(B, 0)]
    assert sent(session.take_answer(full, is_full=True)) == [(1, 0), (1, 1), (2, 0)]
    assert session.take_answer(full, is_full=False) == []
    news = [answer(A, 0, records=b"x"), answer(A, 1), answer(B, 0, mark=3)]
    assert sent(session.take_answer(news, is_full=False)) == [(1, 0), (2, 0)]
    assert order(session) == [(1, 1), (2, 0), (1, 0)]
    assert session.take_answer([answer(A, 1), answer(B, 0, mark=3), answer(A, 0)], is_full=False) == []


def test_where_to_read_from_is_news() -> None:
    session = opened(ConsumerSessions(10), (A, 0, 0))
    session.take_answer([answer(A, 0)], is_full=True)
    redirected = [answer(A, 0, preferred_read_replica=2)]
    assert sent(session.take_answer(redirected, is_full=False)) == [(1, 0)]


def test_a_partition_that_is_forgotten_while_a_fetch_waits_is_left_out() -> None:
    session = opened(ConsumerSessions(10), (A, 0, 0), (A, 1, 0))
    session.update((), [ForgottenTopic(A, (1,))])
    assert sent(session.take_answer([answer(A, 0), answer(A, 1)], is_full=True)) == [(1, 0)]


def test_fetches_come_one_after_another() -> None:
    sessions = ConsumerSessions(10)
    session = opened(sessions, (A, 0, 0))
    sessions.continue_session(Fetch((session.session_id, 1)), uses_topic_ids=True, now_ms=NOW_MS)
    for epoch in (1, 3):
        with pytest.raises(InvalidFetchSessionEpoch):
            sessions.continue_session(Fetch((session.session_id, epoch)), uses_topic_ids=True, now_ms=NOW_MS)
    sessions.continue_session(Fetch((session.session_id, 2)), uses_topic_ids=True, now_ms=NOW_MS)
    with pytest.raises(FetchSessionTopicIdError):
        sessions.continue_session(Fetch((session.session_id, 3)), uses_topic_ids=False, now_ms=NOW_MS)
    with pytest.raises(FetchSessionIdNotFound):
        sessions.continue_session(Fetch((session.session_id + 1, 1)), uses_topic_ids=True, now_ms=NOW_MS)


def test_epochs_go_on_with_one_after_the_largest() -> None:
    sessions = ConsumerSessions(10)
    session = opened(sessions, (A, 0, 0))
    session.next_epoch = 2**31 - 1
    sessions.continue_session(Fetch((session.session_id, 2**31 - 1)), uses_topic_ids=True, now_ms=NOW_MS)
    assert session.next_epoch == 1


def test_a_session_gives_way_once_it_is_idle() -> None:
    sessions = ConsumerSessions(2)
    first, second = opened(sessions, (A, 0, 0)), opened(sessions, (A, 0, 0))
    assert sessions.open(topics((B, 0, 0)), uses_topic_ids=True, now_ms=NOW_MS + 1) is None
    later_ms = NOW_MS + EVICTION_IDLE_MS
    sessions.continue_session(Fetch((first.session_id, 1)), uses_topic_ids=True, now_ms=later_ms)
    third = sessions.open(topics((B, 0, 0)), uses_topic_ids=True, now_ms=later_ms)
    assert third is not None
    with pytest.raises(FetchSessionIdNotFound):
        sessions.continue_session(Fetch((second.session_id, 1)), uses_topic_ids=True, now_ms=later_ms)
    assert (len(sessions), sessions.partitions) == (2, 2)
    sessions.close(third.session_id)
    sessions.close(third.session_id)
    assert (len(sessions), sessions.partitions) == (1, 1)


def test_sessions_have_room_for_so_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARTITIONS_MAX", 3)
    sessions = ConsumerSessions(10)
    opened(sessions, (A, 0, 0), (A, 1, 0))
    assert sessions.open(topics((B, 0, 0), (B, 1, 0)), uses_topic_ids=True, now_ms=NOW_MS) is None
    session = sessions.open(topics((B, 0, 0)), uses_topic_ids=True, now_ms=NOW_MS)
    assert session is not None
    with pytest.raises(FetchSessionIdNotFound):
        grown = Fetch((session.session_id, 1), topics((B, 1, 0)))
        sessions.continue_session(grown, uses_topic_ids=True, now_ms=NOW_MS)
    assert (len(sessions), sessions.partitions) == (1, 2)


@given(
    steps=st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans(), st.booleans()), max_size=4),
        min_size=1,
        max_size=20,
    )
)
def test_a_client_that_merges_the_answers_knows_what_the_broker_knows(
    steps: list[list[tuple[int, int, bool, bool]]],
) -> None:
    """Whatever changes, and fails, in whatever order: offsets that are not sent are those that were."""
    session = opened(ConsumerSessions(10), *((A, index, 0) for index in range(4)))
    marks = dict.fromkeys(range(4), 0)
    client: dict[int, tuple[int, int]] = {}
    is_full = True
    for step in steps:
        errors = dict.fromkeys(range(4), 0)
        records = dict.fromkeys(range(4), b"")
        for index, growth, fails, has_records in step:
            marks[index] += growth
            errors[index] = 6 if fails else 0
            records[index] = b"x" if has_records and not fails else b""
        state = {index: (errors[index], -1 if errors[index] else marks[index]) for index in range(4)}
        read = [
            answer(
                A,
                entry.partitions[0].partition,
                state[entry.partitions[0].partition][1],
                records[entry.partitions[0].partition],
                state[entry.partitions[0].partition][0],
            )
            for entry in session.entries()
        ]
        for topic in session.take_answer(read, is_full=is_full):
            for one in topic["partitions"]:
                client[one["partition_index"]] = one["error_code"], one["high_watermark"]
        is_full = False
        for index in range(4):
            if state[index][0] == 0 and client[index][0] == 0:
                assert client[index] == state[index]
            elif state[index][0]:
                assert client[index][0] == state[index][0]
        assert sorted(index for _, index in order(session)) == [0, 1, 2, 3]
