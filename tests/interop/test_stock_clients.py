"""Messages go in through one stock client and come out of every other, unchanged (R1, R7, R10, R17)."""

from __future__ import annotations

import random

import pytest
from confluent_kafka import KafkaException
from kafka.errors import MessageSizeTooLargeError
from tests.support.clusters import SharedCluster
from tests.support.messages import Message
from tests.support.record_batches import read_headers
from tests.support.stock_clients import CLIENTS, CODECS, KafkaPython, StockClient
from tests.support.topics import TopicFactory
from tests.support.wire import Connection, fetch

every_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
every_producer = pytest.mark.parametrize("producer", CLIENTS, ids=lambda client: client.name)
every_codec = pytest.mark.parametrize("codec", CODECS)

# Every shape of key, value, headers and time. Times go back and forth: producers' clocks do.
SHAPES = (
    Message(b"plain", b"key"),
    Message(b"no key"),
    Message(None, b"a tombstone: null is not empty", timestamp_ms=1_700_000_000_999),
    Message(b"", b""),
    Message(b"one header", b"key", (("trace", b"\x00\xff"),), timestamp_ms=1_699_999_999_000),
    Message(b"headers keep order and doubles", b"key", (("b", b"1"), ("a", b"2"), ("b", b""))),
    Message("grüße 𝄞".encode(), "ключ".encode(), (("überschrift", b"wert"),)),
    Message(bytes(range(256)) * 40, bytes(range(256)), timestamp_ms=1_700_000_001_000),
    Message(b"long ago", b"key", timestamp_ms=1),
    Message(b"compresses well " * 4_000, b"key"),
)
NULL_HEADER = Message(b"a header without a value", b"key", (("empty", None),))


def _shapes_for(producer: StockClient) -> list[Message]:
    # kafka-python refuses to send a null header value; it reads one like the others.
    return [*SHAPES] if isinstance(producer, KafkaPython) else [*SHAPES, NULL_HEADER]


@every_codec
@every_producer
def test_what_one_client_produces_every_client_reads(
    local_stack: SharedCluster, new_topic: TopicFactory, producer: StockClient, codec: str
) -> None:
    topic = new_topic()
    messages = _shapes_for(producer)

    offsets = producer.produce(local_stack.bootstrap_servers, topic, messages, codec)

    assert offsets == list(range(len(messages)))
    for consumer in CLIENTS:
        read = consumer.consume(local_stack.bootstrap_servers, topic, len(messages))
        assert read == messages, f"{consumer.name} read something else"
    with Connection(new_topic.leader_address(topic)) as leader:
        headers = list(read_headers(fetch(leader, topic, 0, 0).records))
    assert {CODECS[header.attributes & 0b111] for header in headers} == {codec}, "kept as it came"


@pytest.mark.parametrize(("setting", "codec"), [("zstd", 4), ("gzip", 1), ("uncompressed", 0)])
def test_a_topic_with_a_codec_of_its_own_stores_in_that(
    local_stack: SharedCluster, new_topic: TopicFactory, setting: str, codec: int
) -> None:
    """R7: `compression.type` other than `producer` recompresses."""
    topic = new_topic(config={"compression.type": setting})
    messages = [Message(b"compressible " * 100, b"%d" % number, (("h", b"v"),)) for number in range(20)]

    CLIENTS[0].produce(local_stack.bootstrap_servers, topic, messages, "lz4")

    with Connection(new_topic.leader_address(topic)) as leader:
        records = fetch(leader, topic, 0, 0).records
    assert {header.attributes & 0b111 for header in read_headers(records)} == {codec}
    for client in CLIENTS:
        assert client.consume(local_stack.bootstrap_servers, topic, len(messages)) == messages, client.name


@every_producer
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_level_of_acknowledgement_stores_in_order(
    local_stack: SharedCluster, new_topic: TopicFactory, producer: StockClient, acks: str
) -> None:
    topic = new_topic()
    messages = [Message(b"%d" % number) for number in range(2_000)]

    producer.produce(local_stack.bootstrap_servers, topic, messages, acks=acks)

    assert CLIENTS[0].consume(local_stack.bootstrap_servers, topic, len(messages)) == messages


@every_producer
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_large_messages_pass_where_the_topic_allows_them(
    local_stack: SharedCluster, new_topic: TopicFactory, producer: StockClient, codec: str
) -> None:
    topic = new_topic(config={"max.message.bytes": str(16 << 20)})
    messages = [Message(random.Random(7).randbytes(10 << 20), b"large"), Message(b"small")]

    producer.produce(local_stack.bootstrap_servers, topic, messages, codec)

    for consumer in CLIENTS:
        assert consumer.consume(local_stack.bootstrap_servers, topic, 2) == messages, consumer.name


@every_producer
def test_a_message_over_max_message_bytes_is_refused_and_the_next_one_accepted(
    local_stack: SharedCluster, new_topic: TopicFactory, producer: StockClient
) -> None:
    topic = new_topic(config={"max.message.bytes": "2000"})

    with pytest.raises(Exception, match=r"(?i)too_?\s?large|larger than|MessageSizeTooLarge") as refusal:
        producer.produce(local_stack.bootstrap_servers, topic, [Message(b"x" * 3_000)])
    assert (
        isinstance(refusal.value, KafkaException | MessageSizeTooLargeError)
        or "Large" in type(refusal.value).__name__
    )

    assert producer.produce(local_stack.bootstrap_servers, topic, [Message(b"x" * 1_500)]) == [0]


@every_client
def test_a_reader_rewinds_to_any_offset(
    local_stack: SharedCluster, new_topic: TopicFactory, client: StockClient
) -> None:
    """R13: offsets inside a batch, too."""
    topic = new_topic()
    messages = [Message(b"%d" % number) for number in range(1_000)]
    client.produce(local_stack.bootstrap_servers, topic, messages, "lz4")

    for offset in (0, 1, 499, 998):
        assert (
            client.consume(local_stack.bootstrap_servers, topic, 2, offset) == messages[offset : offset + 2]
        )
