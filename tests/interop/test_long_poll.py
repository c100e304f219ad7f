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


def test_a_fetch_without_data_answers_empty_after_max_wait(reader: Connection, topic: str) -> None:
    started = time.monotonic()
    answer = fetch(reader, topic, 0, 0, max_wait_ms=300)

    assert 0.25 < time.monotonic() - started < PROMPT_SECONDS
    assert (answer.error_code, answer.records or b"", answer.high_watermark) == (ErrorCode.none, b"", 0)


def test_a_fetch_is_answered_after_any_max_wait(reader: Connection, topic: str) -> None:
    """A timer that is a rounding too early must not leave its fetch unanswered for ever."""
    for max_wait_ms in range(1, 60):
        assert fetch(reader, topic, 0, 0, max_wait_ms=max_wait_ms).error_code == ErrorCode.none


def test_a_fetch_that_may_not_wait_answers_at_once(reader: Connection, topic: str) -> None:
    started = time.monotonic()
    answer = fetch(reader, topic, 0, 0, max_wait_ms=0)

    assert time.monotonic() - started < PROMPT_SECONDS
    assert (answer.error_code, answer.records or b"") == (ErrorCode.none, b"")


def test_a_fetch_waits_for_min_bytes(reader: Connection, writer: Connection, topic: str) -> None:
    reader.send("fetch", 12, **fetch_fields([(topic, 0, 0)], min_bytes=10_000, max_wait_ms=LONG_WAIT_MS))
    produce(writer, topic, 0, _batch(4_000))
    assert not reader.has_answer_within(QUIET_SECONDS)

    produce(writer, topic, 0, _batch(8_000))
    answer = reader.receive().responses[0].partitions[0]

    assert [header.base_offset for header in read_headers(answer.records)] == [0, 1]


def test_a_fetch_short_of_min_bytes_gets_what_there_is_after_max_wait(
    reader: Connection, writer: Connection, topic: str
) -> None:
    produce(writer, topic, 0, _batch(100))

    started = time.monotonic()
    answer = fetch(reader, topic, 0, 0, min_bytes=10_000, max_wait_ms=300)

    assert time.monotonic() - started > 0.25
    assert len(list(read_headers(answer.records))) == 1


def test_a_fetch_does_not_wait_when_enough_is_there(
    reader: Connection, writer: Connection, topic: str
) -> None:
    produce(writer, topic, 0, _batch(20_000))

    started = time.monotonic()
    fetch(reader, topic, 0, 0, min_bytes=10_000, max_wait_ms=LONG_WAIT_MS)

    assert time.monotonic() - started < PROMPT_SECONDS


def test_min_bytes_counts_all_partitions_of_a_request(new_topic: TopicFactory) -> None:
    topic = new_topic(partitions=9)
    address, partitions = new_topic.partitions_together(topic)
    positions = [(topic, partition, 0) for partition in partitions]
    with Connection(address) as reader, Connection(address) as writer:
        reader.send("fetch", 12, **fetch_fields(positions, min_bytes=6_000, max_wait_ms=LONG_WAIT_MS))
        for partition in partitions[:-1]:
            produce(writer, topic, partition, _batch(100))
        assert not reader.has_answer_within(QUIET_SECONDS)
        produce(writer, topic, partitions[-1], _batch(5_990))
        answer = reader.receive()

    parts = [part for response in answer.responses for part in response.partitions]
    assert sorted(part.partition_index for part in parts if part.records) == partitions


@pytest.mark.parametrize("position", [5, -1], ids=["beyond the end", "negative"])
def test_an_offset_out_of_range_is_refused_at_once(reader: Connection, topic: str, position: int) -> None:
    started = time.monotonic()
    answer = fetch(reader, topic, 0, position, max_wait_ms=LONG_WAIT_MS)

    assert time.monotonic() - started < PROMPT_SECONDS
    assert answer.error_code == ErrorCode.offset_out_of_range


def test_an_unknown_topic_is_refused_at_once(reader: Connection) -> None:
    started = time.monotonic()
    answer = fetch(reader, "no-such-topic", 0, 0, max_wait_ms=LONG_WAIT_MS)

    assert time.monotonic() - started < PROMPT_SECONDS
    assert answer.error_code == ErrorCode.unknown_topic_or_partition


def test_a_waiting_reader_that_leaves_does_no_harm(
    reader: Connection, writer: Connection, new_topic: TopicFactory, topic: str
) -> None:
    for _ in range(20):
        with Connection(new_topic.leader_address(topic)) as leaving:
            leaving.send("fetch", 12, **fetch_fields([(topic, 0, 0)], max_wait_ms=LONG_WAIT_MS))

    produce(writer, topic, 0, _batch(100))

    assert len(list(read_headers(fetch(reader, topic, 0, 0).records))) == 1


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


def test_requests_behind_a_waiting_fetch_are_answered_after_it(
    reader: Connection, writer: Connection, topic: str
) -> None:
    """Answers keep the order of the requests of a connection."""
    reader.send("fetch", 12, **fetch_fields([(topic, 0, 0)], max_wait_ms=LONG_WAIT_MS))
    reader.send("metadata", 9, topics=[], allow_auto_topic_creation=False, **_NO_OPERATIONS)
    assert not reader.has_answer_within(QUIET_SECONDS)

    produce(writer, topic, 0, _batch(100))

    assert reader.receive().responses[0].partitions[0].high_watermark == 1
    assert reader.receive().brokers


_NO_OPERATIONS = {
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}
