"""A fetch waits at the broker for data, and answers as soon as there is enough (R13)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from kio.schema.errors import ErrorCode
from tests.support.messages import Message
from tests.support.record_batches import encode_batch, read_headers
from tests.support.topics import TopicFactory
from tests.support.wire import Connection, fetch, fetch_fields, produce

QUIET_SECONDS = 0.3  # long enough to see that no answer comes
PROMPT_SECONDS = 10.0  # a broker that waits for max.wait.ms is later than this
LONG_WAIT_MS = 30_000


@pytest.fixture
def reader(new_topic: TopicFactory, topic: str) -> Iterator[Connection]:
    with Connection(new_topic.leader_address(topic)) as connection:
        yield connection


@pytest.fixture
def writer(new_topic: TopicFactory, topic: str) -> Iterator[Connection]:
    with Connection(new_topic.leader_address(topic)) as connection:
        yield connection


def _batch(size_bytes: int) -> bytes:
    return encode_batch([Message(b"x" * size_bytes)])


def test_a_fetch_at_the_end_is_answered_by_new_data(
    reader: Connection, writer: Connection, topic: str
) -> None:
    reader.send("fetch", 12, **fetch_fields([(topic, 0, 0)], max_wait_ms=LONG_WAIT_MS))
    assert not reader.has_answer_within(QUIET_SECONDS)

    produce(writer, topic, 0, _batch(100))
    started = time.monotonic()
    answer = reader.receive().responses[0].partitions[0]

    assert time.monotonic() - started < PROMPT_SECONDS
    assert [header.base_offset for header in read_headers(answer.records)] == [0]
    assert answer.high_watermark == 1


def test_a_fetch_is_answered_after_any_max_wait(reader: Connection, topic: str) -> None:
    """A timer that is a rounding too early must not leave its fetch unanswered for ever."""
    for max_wait_ms in range(1, 60):
        assert fetch(reader, topic, 0, 0, max_wait_ms=max_wait_ms).error_code == ErrorCode.none


def test_all_waiting_readers_are_answered(writer: Connection, new_topic: TopicFactory, topic: str) -> None:
    readers = [Connection(new_topic.leader_address(topic)) for _ in range(50)]
    try:
        for reader in readers:
            reader.send("fetch", 12, **fetch_fields([(topic, 0, 0)], max_wait_ms=LONG_WAIT_MS))
        produce(writer, topic, 0, _batch(100))
        answers = [reader.receive().responses[0].partitions[0] for reader in readers]
    finally:
        for reader in readers:
            reader.close()

    assert all(len(list(read_headers(answer.records))) == 1 for answer in answers)
