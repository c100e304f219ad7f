"""Addresses, and clusters that are not there."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from mainstem.errors import BadInput, ClusterRefused, ClusterUnreachable
from mainstem.kafka import client
from mainstem.kafka.client import Cluster, Partition, Topic, addresses_of, answering_servers


def test_addresses_are_hosts_and_ports() -> None:
    assert addresses_of("a:1, [::1]:9092,10.0.0.1:65535") == [("a", 1), ("::1", 9092), ("10.0.0.1", 65_535)]


@pytest.mark.parametrize("text", ["", "a", "a:", ":9092", "a:b", "a:0", "a:65536", "a:1,", "http://a:1/"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="host:port"):
        addresses_of(text)


@pytest.mark.trial
def test_a_cluster_that_does_not_run_is_reported_at_once_with_what_to_do(closed_port: int) -> None:
    started = time.monotonic()
    with pytest.raises(
        ClusterUnreachable, match=rf"127\.0\.0\.1:{closed_port} \(connection refused\): .*mainstem up"
    ):
        Cluster(f"127.0.0.1:{closed_port}").topics()
    assert time.monotonic() - started < 5  # librdkafka by itself tries for a minute


def test_a_host_without_an_address_is_reported() -> None:
    with pytest.raises(ClusterUnreachable, match=r"No broker listens at no-such-host\.invalid:9092 \("):
        answering_servers("no-such-host.invalid:9092")


def test_one_address_that_answers_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """R36. Of the others one is down and one is frozen: the kernel lets it accept connections."""
    state_of = {"down": "connection refused", "frozen": client._SILENT, "good": "answers"}
    monkeypatch.setattr(client, "_probe", lambda address, **_: state_of[address[0]])
    assert answering_servers("down:1, frozen:1, good:1") == ["good:1"]


def test_an_address_that_answers_late_is_asked_again_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(_address: tuple[str, int], answer_timeout_s: float) -> str:
        return "answers" if answer_timeout_s > 2 else client._SILENT

    monkeypatch.setattr(client, "_CONNECT_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(client, "_probe", probe)
    assert answering_servers("a:1,b:2") == ["a:1", "b:2"]


def test_an_address_that_closes_connections_at_once_is_asked_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a forwarded port does while its broker is starting."""
    pauses_s: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses_s.append)
    monkeypatch.setattr(client, "_probe", lambda *_, **__: "answers" if pauses_s else client._SILENT)
    assert answering_servers("a:1") == ["a:1"]
    assert 0.5 < pauses_s[0] <= 1


def test_an_address_with_a_security_protocol_is_not_asked() -> None:
    """It would not understand the request, and a listener of TLS would log an error."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert answering_servers(address, {"security.protocol": "SSL"}) == [address]


def test_a_group_without_a_name_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        cluster = Cluster(f"127.0.0.1:{server.getsockname()[1]}", {"security.protocol": "SSL"})
        with pytest.raises(BadInput, match=r"group \(group.id\) must not be empty"):
            cluster.consumer({"group.id": ""}, print)


def test_a_property_overrides_a_default_and_not_what_a_command_relies_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R36. A file of properties may be that of an application, with its group and its acks."""
    monkeypatch.setattr(client, "_built", lambda _build, settings: settings)
    monkeypatch.setattr(client, "answering_servers", lambda *_: ["a:1"])
    properties = {
        "acks": "1",
        "allow.auto.create.topics": "true",
        "auto.offset.reset": "latest",
        "check.crcs": "false",
        "client.id": "web",
        "enable.auto.commit": "true",
        "enable.auto.offset.store": "true",
        "enable.partition.eof": "false",
        "group.id": "application",
        "linger.ms": "9",
    }
    cluster = Cluster("a:1", properties)
    ours = {"group.id": "readers", "auto.offset.reset": "earliest", "enable.partition.eof": True}
    member: Any = cluster.consumer(ours, print)
    assert {**ours, "client.id": "web", "check.crcs": "false"}.items() <= member.items()
    assert (member["enable.auto.commit"], member["enable.auto.offset.store"]) == (False, False)
    assert cluster.consumer({}, print)["auto.offset.reset"] == "error"
    producer: Any = cluster.producer({"acks": "all"}, print, {"linger.ms": 10})
    assert {"acks": "all", "client.id": "web", "linger.ms": "9"}.items() <= producer.items()
    assert producer["allow.auto.create.topics"] is False


@pytest.mark.trial
def test_a_server_that_does_not_speak_the_protocol_is_reported_within_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        started = time.monotonic()
        with pytest.raises(ClusterUnreachable, match=r"is it a Kafka-protocol broker.*security\.protocol"):
            Cluster(f"127.0.0.1:{server.getsockname()[1]}").topics()
        assert time.monotonic() - started < 15


# --- Offsets ---


class Refusing:
    """An administration client to which every leader says `code`."""

    def __init__(self, code: int) -> None:
        self._error = KafkaException(KafkaError(code))

    def list_offsets(
        self, requested: Iterable[TopicPartition], **_: Any
    ) -> dict[TopicPartition, Future[Any]]:
        refused: Future[Any] = Future()
        refused.set_exception(self._error)
        return dict.fromkeys(requested, refused)


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


def test_another_refusal_is_reported() -> None:
    cluster = Cluster("127.0.0.1:1")
    cluster.__dict__["admin"] = Refusing(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(ClusterRefused, match=r"partition 0 failed.*request access"):
        cluster.offsets([TopicPartition("t", 0)], OffsetSpec.latest())


# --- Why records are not accepted ---


@pytest.mark.parametrize(
    ("replicas", "in_sync", "reason"),
    [
        ([1], [1], None),
        ([1, 2, 3], [1, 2, 3], None),
        (
            [1, 2, 3],
            [1, 2],
            "partition 0 has 2 in-sync replicas of 3, and min.insync.replicas of the topic is 3",
        ),
    ],
)
def test_a_topic_needs_no_more_replicas_in_sync_than_it_has(
    monkeypatch: pytest.MonkeyPatch, replicas: list[int], in_sync: list[int], reason: str | None
) -> None:
    """R19. With min.insync.replicas=3, a partition of one replica accepts what that replica has."""
    topic = Topic("t", [Partition(0, 1, replicas, in_sync)])
    monkeypatch.setattr(Cluster, "topic", lambda *_: topic)
    monkeypatch.setattr(
        Cluster, "topic_settings", lambda *_: {"min.insync.replicas": SimpleNamespace(value="3")}
    )
    why = Cluster("127.0.0.1:1").why_not_writable("t")
    assert why is None if reason is None else (why or "").startswith(reason)
