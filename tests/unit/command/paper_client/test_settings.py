"""What is said when a consumer or a message set makes no sense."""

from __future__ import annotations

from typing import Any

import pytest

from mainstem import Consumer, Message, MessageSet
from mainstem.paper_client.errors import WrongSetting, ZooKeeperUnreachable


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"rebalance_backoff_ms": 0}, "rebalance_backoff_ms is a positive whole number, not 0"),
        ({"auto_offset_reset": "earliest"}, "smallest or largest, not 'earliest'"),
        ({"rebalance_max_retries": 3}, "3 retries every 2000 ms end before the session"),
        ({"consumer_name": "a/b"}, "consumer_name 'a/b' cannot be the name of a node"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(WrongSetting, match=sentence):
        Consumer("127.0.0.1:2181", "group", **settings)


def test_a_group_and_a_topic_are_names_of_nodes() -> None:
    with pytest.raises(WrongSetting, match="group_id ''"):
        Consumer("127.0.0.1:2181", "")
    with pytest.raises(WrongSetting, match="topic 'a/b'"):
        Consumer("127.0.0.1:2181", "group").create_message_streams("a/b", 1)


def test_there_is_at_least_one_stream() -> None:
    with pytest.raises(WrongSetting, match="at least one stream, not 0"):
        Consumer("127.0.0.1:2181", "group").create_message_streams("topic1", 0)


def test_a_closed_consumer_makes_no_streams() -> None:
    consumer = Consumer("127.0.0.1:2181", "group")
    consumer.close()
    consumer.commit_offsets()
    with pytest.raises(WrongSetting, match="once"):
        consumer.create_message_streams("topic1", 1)


def test_a_malformed_address_is_refused(closed_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WrongSetting, match="is no address of ZooKeeper"):
        Consumer("127.0.0.1:port", "group").create_message_streams("topic1", 1)
    monkeypatch.setattr("mainstem.paper_client.zookeeper.CONNECT_SECONDS", 0.3)
    with pytest.raises(ZooKeeperUnreachable, match="start it, or correct the address"):
        Consumer(f"127.0.0.1:{closed_port}", "group").create_message_streams("topic1", 1)


def test_a_payload_is_bytes() -> None:
    assert len(MessageSet(Message(b"one"), Message(b"two"))) == 2
    with pytest.raises(TypeError, match="A payload is bytes, not str: encode it first"):
        MessageSet(Message("text"))  # type: ignore[arg-type]  # what the test is about
