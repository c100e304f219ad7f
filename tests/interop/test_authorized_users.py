"""Users log in, and ACLs decide what each may do; brokers replicate under a principal of their own (R38)."""

from __future__ import annotations

import base64
import json
import socket
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.delete_topics.v6 import request as delete_topics
from kio.schema.metadata.v12 import request as metadata
from tests.support.certificates import Authority
from tests.support.command_line import mainstem
from tests.support.listener_ports import ListenerPorts
from tests.support.waiting import wait_until

from mainstem.errors import ClusterRefused
from mainstem.kafka.raw_request import ask
from mainstem.local.stack import Stack

BROKERS: Final = (1, 2)
LISTENERS: Final = {
    "PLAINTEXT": "PLAINTEXT",
    "LOGIN": "SASL_PLAINTEXT",
    "PEERS": "SASL_PLAINTEXT",
    "CERTIFICATES": "SSL",
}
AUDIT_TOPIC: Final = "audit"
PASSWORD: Final = "a-secret-of-users"


class AuthorizedCluster:
    """Two brokers with an authorizer. Of their listeners PLAINTEXT is anonymous, LOGIN knows the super user
    admin by PLAIN and others by SCRAM, PEERS, between brokers, the super user broker, and CERTIFICATES
    clients of an authority. The audit log is also in AUDIT_TOPIC."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        authority = Authority()
        keys, trust = folder / "broker.pem", folder / "ca.pem"
        keys.write_text(authority.issue(common_name="broker"))
        trust.write_text(authority.trust)
        self._ports = ListenerPorts(BROKERS, LISTENERS)
        jaas = "PlainLoginModule required"
        settings = {
            "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in LISTENERS.items()),
            "inter.broker.listener.name": "PEERS",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.peers.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.peers.plain.sasl.jaas.config": (
                f'{jaas} username="broker" password="{PASSWORD}" user_broker="{PASSWORD}";'
            ),
            "listener.name.login.plain.sasl.jaas.config": f'{jaas} user_admin="{PASSWORD}";',
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": "User:admin;User:broker",
            "min.insync.replicas": "2",
            "audit.log.topic": AUDIT_TOPIC,
            "ssl.keystore.location": str(keys),
            "ssl.truststore.location": str(trust),
            "listener.name.certificates.ssl.client.auth": "required",
        }
        self.stack = Stack(
            folder / "stack", len(BROKERS), self._ports.first, settings, self._ports.settings()
        )
        self.stack.start()
        admin: Any = AdminClient(self.settings("admin", "PLAIN"))
        admin.create_topics([NewTopic(AUDIT_TOPIC, 1, len(BROKERS))])[AUDIT_TOPIC].result(30)

    def settings(self, user: str | None, mechanism: str = "SCRAM-SHA-512") -> dict[str, Any]:
        servers = self._ports.servers("PLAINTEXT" if user is None else "LOGIN")
        shared: dict[str, Any] = {"bootstrap.servers": servers, "log_level": 0}
        if user is None:
            return shared
        return shared | {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": PASSWORD,
        }

    def address(self, broker_id: int, listener: str) -> tuple[str, int]:
        return "127.0.0.1", self._ports.port(broker_id, listener)

    def run(
        self,
        *arguments: str,
        stdin: bytes = b"",
        login: tuple[str, str] = ("admin", "PLAIN"),
        exit_code: int = 0,
    ) -> str:
        """What the command says to a user, by default to the super user."""
        properties = self._folder / f"{uuid.uuid4().hex}.properties"
        lines = [f"{name}={value}\n" for name, value in self.settings(*login).items()]
        properties.write_text("".join(line for line in lines if line.startswith(("sasl", "security"))))
        servers = self.settings("admin")["bootstrap.servers"]
        options = ("--bootstrap-servers", servers, "-X", f"@{properties}")
        ended = mainstem(*options, *arguments, stdin=stdin, exit_code=exit_code)
        return ended.stderr.decode()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuthorizedCluster]:
    authorized = AuthorizedCluster(tmp_path_factory.mktemp("authorized"))
    yield authorized
    authorized.stack.stop()


@pytest.fixture
def topic(cluster: AuthorizedCluster) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    admin: Any = AdminClient(cluster.settings("admin", "PLAIN"))
    admin.create_topics([NewTopic(name, 2, len(BROKERS))])[name].result(30)
    return name


@pytest.fixture
def user(cluster: AuthorizedCluster) -> str:
    """A user with a password and without rights."""
    name = f"user-{uuid.uuid4().hex[:8]}"
    output = cluster.run("user", "create", name, "--password-file", "-", stdin=PASSWORD.encode())
    assert f"Created user {name}" in output
    return name


def produced(cluster: AuthorizedCluster, user: str | None, topic: str) -> set[str | None]:
    """The names of the errors, or None, of a record to each partition, which both brokers have to store."""
    outcomes: list[str | None] = []
    producer: Any = Producer({**cluster.settings(user), "acks": "all"})

    def on_delivery(error: Any, _message: object) -> None:
        outcomes.append(None if error is None else error.name())

    for partition in range(2):
        producer.produce(topic, b"x", partition=partition, on_delivery=on_delivery)
    producer.flush(30)
    assert len(outcomes) == 2
    return set(outcomes)


def committed(cluster: AuthorizedCluster, user: str, topic: str, group: str) -> str | None:
    """The name of the error, or None, of a commit of an offset."""
    client: Any = AdminClient(cluster.settings(user))
    offsets = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 0)])
    try:
        committed_offsets = client.alter_consumer_group_offsets([offsets])[group].result(30)
    except KafkaException as failed:
        name: str = failed.args[0].name()
        return name
    (partition,) = committed_offsets.topic_partitions
    return None if partition.error is None else partition.error.name()


def consumed(cluster: AuthorizedCluster, user: str, topic: str, group: str) -> str | None:
    """The name of the first error, or None if a record came and its offset could be committed."""
    consumer: Any = Consumer({**cluster.settings(user), "group.id": group, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        for _ in range(300):
            record = consumer.poll(0.1)
            if record is None:
                continue
            if record.error() is not None:
                error: str = record.error().name()
                return error
            consumer.commit(record, asynchronous=False)
            return None
        return "nothing came"
    except KafkaException as failed:
        name: str = failed.args[0].name()
        return name
    finally:
        consumer.close()


def test_a_user_may_do_what_acls_allow_and_nothing_else(
    cluster: AuthorizedCluster, topic: str, user: str
) -> None:
    denied = {"TOPIC_AUTHORIZATION_FAILED"}
    assert produced(cluster, None, topic) == denied
    assert produced(cluster, user, topic) == denied
    cluster.run("acl", "add", user, "write", "--topic", topic)
    wait_until(lambda: produced(cluster, user, topic) == {None}, "both brokers allow to write")
    # A consumer looks for records and for its group's coordinator at once, so it may report either denial.
    assert committed(cluster, user, topic, "g") == "GROUP_AUTHORIZATION_FAILED"
    cluster.run("acl", "add", user, "read", "--group", "g")
    wait_until(
        lambda: committed(cluster, user, topic, "g") == "TOPIC_AUTHORIZATION_FAILED", "it may use the group"
    )
    assert consumed(cluster, user, topic, "g") == "TOPIC_AUTHORIZATION_FAILED"
    cluster.run("acl", "add", user, "read", "--topic", topic)
    wait_until(lambda: consumed(cluster, user, topic, "g") is None, "it may read and commit")
    cluster.run("acl", "add", user, "all", "--topic", topic[:8], "--prefix", "--deny")
    wait_until(lambda: produced(cluster, user, topic) == denied, "a denial counts first")
    assert produced(cluster, None, topic) == denied


def audited(cluster: AuthorizedCluster) -> list[dict[str, Any]]:
    """All records of the audit topic."""
    consumer: Any = Consumer(
        {**cluster.settings("admin", "PLAIN"), "group.id": "auditor", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(AUDIT_TOPIC, 0, 0)])
    records: list[dict[str, Any]] = []
    try:
        for _ in range(300):
            record = consumer.poll(0.1)
            if record is None:
                continue
            if record.error() is not None:
                assert record.error().code() == KafkaError._PARTITION_EOF
                return records
            records.append(json.loads(record.value()))
    finally:
        consumer.close()
    raise AssertionError("The end of the audit topic does not come.")


def test_every_refusal_of_an_attack_is_in_the_audit_topic(
    cluster: AuthorizedCluster, topic: str, user: str
) -> None:
    """By default: operations, requests by the id of a hidden topic, logins and handshakes (R38)."""
    admin: Any = AdminClient(cluster.settings("admin", "PLAIN"))
    encoded_id = str(admin.describe_topics(TopicCollection([topic]))[topic].result(30).topic_id)
    topic_id = UUID(bytes=base64.urlsafe_b64decode(f"{encoded_id}=="))
    login = cluster.settings(user)
    as_user = {name: text for name, text in login.items() if name.startswith(("sasl", "security"))}

    def send(request: Any, client_id: str = "attacker", **properties: str) -> Any:
        address = cluster.address(1, "LOGIN")
        return ask(address, request, client_id=client_id, properties=as_user | properties)

    assert committed(cluster, user, topic, "hidden") == "GROUP_AUTHORIZATION_FAILED"
    cluster.run("user", "list", login=(user, "SCRAM-SHA-512"), exit_code=1)
    cluster.run("acl", "add", user, "all", "--topic", topic, login=(user, "SCRAM-SHA-512"), exit_code=1)
    by_id = metadata.MetadataRequestTopic(topic_id=topic_id, name=None)
    described = metadata.MetadataRequest(topics=(by_id,), include_topic_authorized_operations=False)
    assert send(described, "describer").topics[0].error_code.name == "unknown_topic_id"
    deleted = delete_topics.DeleteTopicState(name=None, topic_id=topic_id)
    deletion = delete_topics.DeleteTopicsRequest(topics=(deleted,), timeout=timedelta(seconds=30))
    assert send(deletion, "deleter").responses[0].error_code.name == "unknown_topic_id"
    for name in (user, "nobody"):
        with pytest.raises(ClusterRefused, match="invalid credentials"):
            send(described, **{"sasl.username": name, "sasl.password": "wrong"})
    cluster.run("acl", "add", user, "describe", "--topic", topic)
    with socket.create_connection(cluster.address(1, "CERTIFICATES"), timeout=30) as connection:
        connection.sendall(b"no handshake")
        assert connection.recv(1) == b""

    who = f"User:{user}"
    the_cluster = "Cluster:kafka-cluster"
    expected: list[dict[str, str]] = [
        {"category": "denied", "principal": who, "operation": "Write", "resource": f"Topic:{topic}"},
        {"category": "denied", "principal": who, "operation": "Describe", "resource": "Group:hidden"},
        {"category": "denied", "principal": who, "operation": "Describe", "resource": the_cluster},
        {"category": "denied", "principal": who, "operation": "Alter", "resource": the_cluster},
        *(
            {"client_id": client_id, "operation": "Describe", "resource": f"Topic:{topic}"}
            for client_id in ("describer", "deleter")
        ),
        {"category": "authentication", "principal": who, "operation": "LogIn", "listener": "LOGIN"},
        {"category": "authentication", "principal": "User:nobody", "operation": "LogIn"},
        {"category": "authentication", "operation": "TlsHandshake", "listener": "CERTIFICATES"},
    ]

    def missing() -> list[dict[str, str]]:
        records = [record for record in audited(cluster) if record["outcome"] == "denied"]
        return [
            fields for fields in expected if not any(fields.items() <= record.items() for record in records)
        ]

    # The brokers learn of the new right in their time, and until then the client does not try to write.
    wait_until(
        lambda: produced(cluster, user, topic) == {"TOPIC_AUTHORIZATION_FAILED"} and not missing(),
        "every refusal is recorded",
    )
    changes = [record for record in audited(cluster) if record["category"] == "administration"]
    assert any((record["resource"], record["rule"]) == (who, "SCRAM-SHA-512") for record in changes)
