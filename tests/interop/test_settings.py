"""Settings of topics and brokers are shown, changed, refused, and take effect, by stock clients (R18)."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from kio.schema.errors import ErrorCode
from tests.support.clusters import SharedCluster
from tests.support.messages import Message
from tests.support.record_batches import encode_batch, read_headers
from tests.support.stock_clients import CLIENTS
from tests.support.topics import ANSWER_SECONDS, TopicFactory
from tests.support.waiting import wait_until
from tests.support.wire import Connection, fetch, produce


@pytest.fixture
def admin(new_topic: TopicFactory) -> Any:
    return new_topic.admin


def _alter(admin: Any, topic: str, name: str, value: str | None) -> dict[Any, Any]:
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(name, value or "", incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    answers: dict[Any, Any] = admin.incremental_alter_configs([resource])
    return {topic: answers[resource]}


def test_max_message_bytes_holds_from_its_change_on(new_topic: TopicFactory, admin: Any) -> None:
    topic = new_topic()
    batch = encode_batch([Message(b"x" * 5_000)])
    with Connection(new_topic.leader_address(topic)) as leader:
        assert produce(leader, topic, 0, batch).error_code == ErrorCode.none

        _alter(admin, topic, "max.message.bytes", "4000")[topic].result(ANSWER_SECONDS)
        wait_until(
            lambda: produce(leader, topic, 0, batch).error_code == ErrorCode.message_too_large,
            "the limit holds",
        )
        assert produce(leader, topic, 0, encode_batch([Message(b"x" * 3_000)])).error_code == ErrorCode.none


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
