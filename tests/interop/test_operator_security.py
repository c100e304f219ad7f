"""A secured BrokerCluster's settings, certificates and Users with real brokers and stock clients (R38)."""

from __future__ import annotations

import asyncio
import datetime as dt
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.support.connected_kube import connected
from tests.support.fake_kubernetes import Kubernetes, Manifest
from tests.support.listener_ports import ListenerPorts
from tests.support.manifests import resource
from tests.support.waiting import PATIENCE_SECONDS

from mainstem.local.stack import Stack
from mainstem_operator.api import names
from mainstem_operator.api.clusters import ClusterSpec, Images, cluster_of
from mainstem_operator.api.secret_data import decoded, encoded
from mainstem_operator.brokers.errors import BrokersUnreachable
from mainstem_operator.certificates.apply import client_properties, put_certificates
from mainstem_operator.certificates.plan import plan_certificates
from mainstem_operator.cluster.broker_manifests import Placement, settings_of
from mainstem_operator.kubernetes.client import Kube
from mainstem_operator.runtime.context import Context
from mainstem_operator.runtime.metrics import Metrics
from mainstem_operator.users.reconcile import reconcile_users

BROKERS: Final = (1, 2)
LISTENERS: Final = ("PLAINTEXT", "BROKERS", "TLS", "MUTUAL", "LOADS")
MANIFEST: Final[Manifest] = resource(
    "BrokerCluster",
    "events",
    {
        "brokers": {"replicas": 2},
        "listeners": {
            "clients": [
                # With a host, for the certificate to have the address of the test.
                {"name": "tls", "port": 9093, "type": "nodeport", "host": "127.0.0.1"},
                {"name": "mutual", "port": 9095, "authentication": "tls"},
            ]
        },
        "authorization": {"type": "acl"},
        "warehouse": {"location": "s3://lake/tables"},
    },
    uid="u-1",
)


class SecuredCluster:
    """Two brokers with the settings and certificates that the operator gives them, on ports of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spec = cluster_of(MANIFEST)
        self.secrets = plan_certificates(self.spec, {}, None, (), dt.datetime.now(dt.UTC))
        for name, text in self.secrets["events-broker-tls"].items():  # as Kubernetes mounts the Secret
            (folder / name).write_text(text)
        self._ports = ListenerPorts(BROKERS, LISTENERS)
        self.stack = Stack(
            folder / "stack", len(BROKERS), self._ports.first, self._settings(), self._ports.settings()
        )
        self.stack.start()

    def _settings(self) -> dict[str, str]:
        ours = settings_of(self.spec, 0, Placement({}))
        protocols = ours["listener.security.protocol.map"]
        kept = {
            name: value.replace("/etc/mainstem-tls", str(self.folder))
            for name, value in ours.items()
            if name.startswith("listener.name.")
            or name in ("inter.broker.listener.name", "authorizer.class.name", "super.users")
        }
        return {**kept, "listener.security.protocol.map": f"{protocols},PLAINTEXT:PLAINTEXT"}

    def servers(self, listener: str) -> str:
        return self._ports.servers(listener)


class TestAddresses:
    """The cluster of the test in place of names that only Kubernetes has."""

    __test__ = False

    def __init__(self, cluster: SecuredCluster) -> None:
        self._cluster = cluster

    def bootstrap_servers(self, namespace: str, cluster: str) -> str:
        return self._cluster.servers("PLAINTEXT")

    def secured_servers(self, namespace: str, cluster: str) -> str:
        return self._cluster.servers("BROKERS")

    def broker(self, namespace: str, cluster: str, index: int) -> tuple[str, int]:
        raise AssertionError

    def zookeeper(self, namespace: str, cluster: str, index: int) -> tuple[str, int]:
        raise AssertionError


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    result = SecuredCluster(tmp_path_factory.mktemp("secured"))
    yield result
    result.stack.stop()


class Scene:
    """An operator's look at Users, with a fake API server and the real brokers."""

    def __init__(self, cluster: SecuredCluster, kubernetes: Kubernetes, kube: Kube) -> None:
        self.cluster = cluster
        self.kubernetes = kubernetes
        observer: Any = None
        self.context = Context(kube, observer, TestAddresses(cluster), Images(), Metrics(), _always, "ops")
        self.manifest: Manifest = {**kubernetes.apply(MANIFEST), "status": {"brokersReady": 2}}
        self.manifest["status"]["externalBootstrapServers"] = cluster.servers("TLS")

    def parsed(self) -> ClusterSpec:
        return cluster_of(self.manifest)

    async def prepare(self) -> None:
        """The Secrets of the brokers' certificates, as they are, under the uid of this API server."""
        spec = self.parsed()
        assert spec.security is not None
        for name, data in self.cluster.secrets.items():
            self.kubernetes.apply(_secret(name, spec.identity.uid, data))
        await put_certificates(self.context.kube, spec, spec.security, ())
        assert decoded(self.kubernetes.get("secrets", "events-ca")) == self.cluster.secrets["events-ca"]
        await self.context.log_in(self.manifest)

    async def look(self) -> None:
        for _ in range(2):  # the first one sets the finalizers
            await reconcile_users(
                self.context, "default", "events", self.kubernetes.find("users"), self.manifest
            )

    def ready(self, user: str) -> tuple[str, str]:
        conditions = self.kubernetes.get("users", user)["status"]["conditions"]
        (result,) = [item for item in conditions if item["type"] == "Ready"]
        return result["status"], result["message"]

    def client(self, user: str, folder: Path, servers: str | None = None) -> dict[str, Any]:
        """The settings in the user's Secret, with its files where the test has them."""
        data = decoded(self.kubernetes.get("secrets", f"events-user-{user}"))
        for name, text in data.items():
            (folder / name).write_text(text)
        lines = (folder / "librdkafka.properties").read_text().replace("/etc/mainstem-user", str(folder))
        settings: dict[str, Any] = dict(line.split("=", 1) for line in lines.splitlines())
        if servers is not None:
            settings["bootstrap.servers"] = servers
        return {**settings, "log_level": 0}


def _secret(name: str, uid: str, data: dict[str, str]) -> Manifest:

    owner = {"apiVersion": names.API_VERSION, "kind": "BrokerCluster", "name": "events", "uid": uid}
    metadata = {"name": name, "namespace": "default", "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": encoded(data)}


async def _always() -> bool:
    return True


@pytest.fixture
async def scene(
    secured: SecuredCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scene]:
    async with connected(tmp_path, monkeypatch) as (kubernetes, kube):
        scene = Scene(secured, kubernetes, kube)
        await scene.prepare()
        yield scene


def user(name: str, topic: str, authentication: str = "scram-sha-512", **spec: Any) -> Manifest:
    return resource(
        "User",
        name,
        {
            "clusterRef": {"name": "events"},
            "authentication": {"type": authentication},
            "acls": [
                {"resource": "topic", "name": topic, "operations": ["read", "write"]},
                {"resource": "group", "name": "of-", "patternType": "prefix", "operations": ["read"]},
            ],
            **spec,
        },
    )


def produce(settings: dict[str, Any], topic: str) -> None:
    """Send one record.

    Raises:
        KafkaException: it was refused.
    """
    failed: list[KafkaError] = []
    producer = Producer({**settings, "message.timeout.ms": int(PATIENCE_SECONDS * 1000)})
    producer.produce(topic, b"hello", on_delivery=lambda error, _: failed.append(error) if error else None)
    producer.flush(PATIENCE_SECONDS)
    if failed:
        raise KafkaException(failed[0])


def consume(settings: dict[str, Any], topic: str) -> bytes:
    consumer = Consumer({**settings, "group.id": "of-clicks", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    record = consumer.poll(PATIENCE_SECONDS)
    consumer.close()
    assert record is not None
    assert record.error() is None
    value = record.value()
    assert value is not None
    return bytes(value)


@pytest.mark.parametrize("authentication", ["scram-sha-512", "tls"])
async def test_a_user_reads_and_writes_what_its_acls_allow_with_the_settings_in_its_secret(
    tmp_path: Path, authentication: str, scene: Scene
) -> None:
    topic, name = f"clicks-{uuid.uuid4().hex[:8]}", f"user-{uuid.uuid4().hex[:8]}"
    brokers = scene.context.brokers("default", "events")
    assert await brokers.create_topics({topic: (1, 2, {}), f"{topic}-other": (1, 2, {})}) == {}
    assert set(await brokers.racks()) == set(BROKERS)  # over a raw connection with the operator's key
    assert await brokers.default_settings() == {}
    scene.kubernetes.apply(user(name, topic, authentication, quotas={"producerByteRate": 1_000_000}))
    await scene.look()
    assert scene.ready(name) == ("True", "")
    servers = scene.cluster.servers("MUTUAL") if authentication == "tls" else None
    settings = scene.client(name, tmp_path, servers)
    await asyncio.to_thread(produce, settings, topic)
    assert await asyncio.to_thread(consume, settings, topic) == b"hello"
    with pytest.raises(KafkaException, match=r"TOPIC_AUTHORIZATION_FAILED"):
        await asyncio.to_thread(produce, settings, f"{topic}-other")
    assert (await brokers.users().quotas())[name] == {"producer_byte_rate": 1_000_000.0}
    # It goes with its rights.
    scene.kubernetes.delete("users", name)
    await scene.look()
    assert scene.kubernetes.find("users") == []
    requests = brokers.users()
    assert name not in await requests.with_password()
    assert name not in await requests.acls()
    assert name not in await requests.quotas()


async def test_who_shows_no_certificate_of_the_brokers_authority_does_not_reach_their_listener(
    tmp_path: Path, scene: Scene
) -> None:
    """Also not with the certificate of a User, which is of another authority."""
    name = f"user-{uuid.uuid4().hex[:8]}"
    scene.kubernetes.apply(user(name, "clicks", "tls"))
    await scene.look()
    of_user = scene.client(name, tmp_path, scene.cluster.servers("BROKERS"))
    without = {key: value for key, value in of_user.items() if key not in (
        "ssl.certificate.location", "ssl.key.location")}  # fmt: skip
    for settings in (of_user, without):
        admin = AdminClient({**settings, "socket.timeout.ms": 3_000})
        with pytest.raises(KafkaException):
            await asyncio.to_thread(admin.list_topics, timeout=4)


def test_an_operator_without_its_key_reports_that_no_broker_answers(secured: SecuredCluster) -> None:
    from mainstem_operator.brokers.admin import Brokers

    properties = client_properties(secured.secrets["events-operator-tls"])
    assert properties is not None
    del properties["ssl.certificate.pem"], properties["ssl.key.pem"]
    brokers = Brokers("127.0.0.1:1")
    brokers.connect_to(secured.servers("BROKERS"), properties)

    async def ask() -> None:
        with pytest.raises(BrokersUnreachable):
            await brokers.users().with_password()

    asyncio.run(ask())
