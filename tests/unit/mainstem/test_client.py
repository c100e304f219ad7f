"""Addresses, and clusters that are not there."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from mainstem.client import Cluster, addresses_of, check_reachable
from mainstem.errors import BadInput, ClusterRefused, ClusterUnreachable
from mainstem.ports import free_ports


def test_addresses_are_hosts_and_ports() -> None:
    assert addresses_of("a:1, [::1]:9092,10.0.0.1:65535") == [("a", 1), ("::1", 9092), ("10.0.0.1", 65_535)]


@pytest.mark.parametrize("text", ["", "a", "a:", ":9092", "a:b", "a:0", "a:65536", "a:1,", "http://a:1/"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="host:port"):
        addresses_of(text)


def test_a_cluster_that_is_not_there_is_told_at_once_with_what_to_do() -> None:
    port = free_ports()
    started = time.monotonic()
    with pytest.raises(
        ClusterUnreachable, match=rf"127\.0\.0\.1:{port} \(connection refused\): .*mainstem up"
    ):
        Cluster(f"127.0.0.1:{port}").topics()
    assert time.monotonic() - started < 1


def test_a_host_that_has_no_address_is_told() -> None:
    with pytest.raises(ClusterUnreachable, match=r"No broker listens at no-such-host\.invalid:9092 \("):
        check_reachable("no-such-host.invalid:9092")


def test_one_address_that_answers_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_reachable(f"127.0.0.1:{free_ports()},127.0.0.1:{server.getsockname()[1]}")


def test_a_server_that_does_not_speak_the_protocol_is_told_within_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        started = time.monotonic()
        with pytest.raises(ClusterUnreachable, match="is it a Kafka-protocol broker"):
            Cluster(f"127.0.0.1:{server.getsockname()[1]}").topics()
        assert time.monotonic() - started < 5


# --- Offsets ---


class Refusing:
    """An administration client to which every leader says `code`."""

    def __init__(self, code: int) -> None:
        self._error = KafkaException(KafkaError(code))

    def list_offsets(self, asked: Iterable[TopicPartition], **_: Any) -> dict[TopicPartition, Future[Any]]:
        refused: Future[Any] = Future()
        refused.set_exception(self._error)
        return dict.fromkeys(asked, refused)


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
    ],
)
def test_no_offset_is_known_while_the_leader_changes(code: int) -> None:
    """So it is for a moment after every broker was killed: the demo waits."""
    cluster = Cluster("127.0.0.1:1")
    cluster.__dict__["admin"] = Refusing(code)
    assert cluster.offsets([TopicPartition("t", 0)], OffsetSpec.latest()) == [{0: None}]


def test_another_refusal_is_told() -> None:
    cluster = Cluster("127.0.0.1:1")
    cluster.__dict__["admin"] = Refusing(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(ClusterRefused, match=r"partition 0 failed.*ask for access"):
        cluster.offsets([TopicPartition("t", 0)], OffsetSpec.latest())
