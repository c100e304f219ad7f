"""Settings of topics and brokers are shown, changed, refused, and take effect, by stock clients (R18)."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)
from kio.schema.errors import ErrorCode
from tests.support.clusters import Cluster
from tests.support.messages import Message
from tests.support.record_batches import encode_batch, read_headers
from tests.support.stock_clients import CLIENTS
from tests.support.topics import ANSWER_SECONDS, TopicFactory, error_name
from tests.support.waiting import wait_until
from tests.support.wire import Connection, fetch, produce


@pytest.fixture
def admin(new_topic: TopicFactory) -> Any:
    return new_topic.admin


def _configs(admin: Any, topic: str) -> dict[str, Any]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found: dict[str, Any] = admin.describe_configs([resource])[resource].result(ANSWER_SECONDS)
    return found


def _alter(admin: Any, topic: str, name: str, value: str | None) -> dict[Any, Any]:
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(name, value or "", incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    answers: dict[Any, Any] = admin.incremental_alter_configs([resource])
    return {topic: answers[resource]}


def test_settings_show_their_value_and_where_it_comes_from(new_topic: TopicFactory, admin: Any) -> None:
    topic = new_topic(config={"retention.ms": "60000"})

    configs = _configs(admin, topic)

    assert (configs["retention.ms"].value, configs["retention.ms"].source) == (
        "60000",
        ConfigSource.DYNAMIC_TOPIC_CONFIG.value,
    )
    assert not configs["retention.ms"].is_default
    assert (configs["cleanup.policy"].value, configs["cleanup.policy"].is_default) == ("delete", True)
    assert (configs["segment.bytes"].value, configs["max.message.bytes"].value) == ("1073741824", "1048588")
    assert configs["compression.type"].value == "producer"


def test_a_setting_is_changed_and_taken_back_while_others_stay(new_topic: TopicFactory, admin: Any) -> None:
    topic = new_topic(config={"retention.ms": "60000"})

    _alter(admin, topic, "segment.bytes", "2000000")[topic].result(ANSWER_SECONDS)
    wait_until(lambda: _configs(admin, topic)["segment.bytes"].value == "2000000", "the change is seen")
    assert _configs(admin, topic)["retention.ms"].value == "60000"

    _alter(admin, topic, "retention.ms", None)[topic].result(ANSWER_SECONDS)
    wait_until(lambda: _configs(admin, topic)["retention.ms"].is_default, "the default is back")
    assert _configs(admin, topic)["segment.bytes"].value == "2000000"


@pytest.mark.parametrize(
    ("name", "value"), [("no.such.setting", "1"), ("retention.ms", "soon"), ("cleanup.policy", "burn")]
)
def test_a_wrong_setting_is_refused_and_changes_nothing(
    new_topic: TopicFactory, admin: Any, name: str, value: str
) -> None:
    topic = new_topic()
    before = {key: entry.value for key, entry in _configs(admin, topic).items()}

    assert error_name(_alter(admin, topic, name, value), topic) == "INVALID_CONFIG"

    assert {key: entry.value for key, entry in _configs(admin, topic).items()} == before


def test_settings_of_an_unknown_topic_are_refused(admin: Any) -> None:
    name = f"topic-{uuid4().hex[:12]}"
    resource = ConfigResource(ResourceType.TOPIC, name)

    assert error_name(admin.describe_configs([resource]), resource) == "UNKNOWN_TOPIC_OR_PART"
    assert error_name(_alter(admin, name, "retention.ms", "1"), name) == "UNKNOWN_TOPIC_OR_PART"


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
    local_stack: Cluster, new_topic: TopicFactory, setting: str, codec: int
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


def test_a_brokers_settings_are_shown(local_stack: Cluster, admin: Any) -> None:
    broker_id = next(iter(local_stack.brokers))
    resource = ConfigResource(ResourceType.BROKER, str(broker_id))

    configs = admin.describe_configs([resource])[resource].result(ANSWER_SECONDS)

    assert {"log.dirs", "num.partitions", "auto.create.topics.enable"} <= set(configs)
    assert not configs["log.dirs"].is_default
