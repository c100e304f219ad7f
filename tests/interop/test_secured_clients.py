"""Stock clients over listeners with encryption and logins; the brokers of the cluster connect so, too."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import aiokafka
import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from joserfc import jwt
from joserfc.jwk import ECKey
from kio.schema.api_versions.v0.request import ApiVersionsRequest
from tests.support.certificates import Authority
from tests.support.command_line import mainstem
from tests.support.listener_ports import ListenerPorts
from tests.support.secured_clients import (
    ROUND_TRIPS,
    Access,
    confluent_round_trip,
    java_round_trip,
    librdkafka_round_trip,
)
from tests.support.waiting import let_pass, let_pass_async, wait_until

from mainstem.errors import ClusterRefused
from mainstem.kafka.raw_request import ask
from mainstem.local.stack import Stack
from mainstem_loader.errors import LoginRefusedError
from mainstem_loader.kafka.client_security import check_client_properties
from mainstem_loader.kafka.leaders import BrokerSettings, TopicLeaders
from mainstem_loader.spark.source.offsets import batch_splits
from mainstem_loader.spark.source.options import read_options, write_options
from mainstem_loader.spark.source.read import read_split
from mainstem_loader.spark.source.topics import topics_now
from mainstem_loader.spark.source.write import write_rows

BROKERS: Final = (1, 2)
LISTENERS: Final = {
    "PLAINTEXT": "PLAINTEXT",
    "CLIENTS": "SSL",
    "MUTUAL": "SSL",
    "LOGIN": "SASL_PLAINTEXT",
    "SHORT": "SASL_PLAINTEXT",
    "SECURED": "SASL_SSL",
    "PEERS": "SASL_SSL",
}
SESSION_MS: Final = 10_000
# Clients log in again at 90 % of it, so that a busy machine may be a second late.
PASSWORD: Final = "a-secret-of-alice"
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class SecuredCluster:
    """Two brokers with a listener of each kind.

    CLIENTS is encrypted, MUTUAL demands certificates. LOGIN, SHORT (whose sessions are short) and SECURED
    demand logins; PEERS, between brokers, demands certificates and a login. The user alice has the password
    PASSWORD by every mechanism.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority()
        self.trust = self._file("ca.pem", self.authority.trust)
        self.token_key = ECKey.generate_key("P-256", {"kid": "1"}, auto_kid=False)
        self.keys = self._file("broker.pem", self.authority.issue(common_name="broker"))
        self._ports = ListenerPorts(BROKERS, LISTENERS)
        settings = {
            "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in LISTENERS.items()),
            "inter.broker.listener.name": "PEERS",
            "ssl.keystore.location": str(self.keys),
            "ssl.truststore.location": str(self.trust),
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.peers.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": ",".join((*MECHANISMS, "OAUTHBEARER")),
            "sasl.oauthbearer.jwks.endpoint.url": self._file("keys.json", self._public_keys()).as_uri(),
            "sasl.oauthbearer.expected.audience": "kafka",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.short.connections.max.reauth.ms": str(SESSION_MS),
            "listener.name.peers.connections.max.reauth.ms": "10000",
            "listener.name.peers.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.peers.plain.sasl.jaas.config": (
                'PlainLoginModule required username="broker" password="a-secret-of-brokers"'
                ' user_broker="a-secret-of-brokers";'
            ),
            **{
                f"listener.name.{name}.plain.sasl.jaas.config": (
                    f'PlainLoginModule required user_alice="{PASSWORD}";'
                )
                for name in ("login", "short", "secured")
            },
            "min.insync.replicas": "2",
        }
        self.stack = Stack(
            folder / "stack", len(BROKERS), self._ports.first, settings, self._ports.settings()
        )
        self.stack.start()
        self.admin: Any = AdminClient({"bootstrap.servers": self.stack.bootstrap_servers})
        self._create_alice()

    def _public_keys(self) -> str:
        return json.dumps({"keys": [self.token_key.as_dict(private=False)]})

    def token(self) -> str:
        claims = {"sub": "alice", "aud": "kafka", "exp": int(time.time()) + 60}
        return jwt.encode({"alg": "ES256", "kid": "1"}, claims, self.token_key, algorithms=["ES256"])

    def _create_alice(self) -> None:
        changes = [
            UserScramCredentialUpsertion(
                "alice", ScramCredentialInfo(mechanism, 4096), PASSWORD.encode(), b"salt-of-alice-01"
            )
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        ]
        for future in self.admin.alter_user_scram_credentials(changes).values():
            future.result(30)

    def _file(self, name: str, content: str) -> Path:
        path = self.folder / name
        path.write_text(content)
        return path

    def access(self, listener: str, protocol: str | None = None, **parts: Any) -> Access:
        servers = self._ports.servers(listener)
        return Access(protocol or LISTENERS[listener], servers, **{"trust": self.trust, **parts})

    def new_topic(self) -> str:
        name = f"secured-{uuid.uuid4().hex[:8]}"
        self.admin.create_topics([NewTopic(name, 1, len(BROKERS))])[name].result(30)
        return name

    def log_events(self, event: str) -> list[str]:
        return [
            line
            for broker_id in BROKERS
            for line in self.stack.broker_log_lines(broker_id, 10_000)
            if f'"{event}"' in line
        ]

    def await_event(self, event: str, *parts: str, after: int = 0) -> None:
        """Wait for a line with all `parts` beyond the first `after`; it may follow what the client saw."""

        def is_logged() -> bool:
            return any(all(part in line for part in parts) for line in self.log_events(event)[after:])

        wait_until(is_logged, f"{event!r} is logged with {parts}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    secured = SecuredCluster(tmp_path_factory.mktemp("secured"))
    try:
        yield secured
    finally:
        secured.stack.stop()


@pytest.mark.parametrize("client", sorted(ROUND_TRIPS))
def test_clients_connect_encrypted_and_followers_replicate_encrypted(
    cluster: SecuredCluster, client: str
) -> None:
    """Records need two in-sync replicas: none is acknowledged without the listener between brokers."""
    assert ROUND_TRIPS[client](cluster.access("CLIENTS"), cluster.new_topic()) == b"secured"


@pytest.mark.parametrize("client", sorted(ROUND_TRIPS))
def test_clients_show_certificates(cluster: SecuredCluster, client: str) -> None:
    own = cluster.folder / "alice.pem"
    own.write_text(cluster.authority.issue("alice@example.com", common_name="alice"))
    assert ROUND_TRIPS[client](cluster.access("MUTUAL", own=own), cluster.new_topic()) == b"secured"


def test_certificates_rotate_under_load_and_no_connection_is_lost(cluster: SecuredCluster) -> None:
    topic = cluster.new_topic()
    troubles: list[str] = []
    failures: list[Any] = []
    sent = 0
    producer = confluent_kafka.Producer(
        {
            **cluster.access("CLIENTS").librdkafka(),
            "error_cb": lambda error: troubles.append(str(error)),
            "linger.ms": 5,
        }
    )
    done = threading.Event()

    def rotate() -> None:
        try:
            for _ in range(3):
                let_pass(1.5, "clients stay connected across several looks at the file")
                new = cluster.folder / "new.pem"
                new.write_text(cluster.authority.issue(common_name="broker"))
                new.replace(cluster.keys)
            let_pass(2, "the last certificate is in use for a while")
        finally:
            done.set()

    before = len(cluster.log_events("certificates reloaded"))
    rotating = threading.Thread(target=rotate)
    rotating.start()
    while not done.is_set():
        producer.produce(
            topic, b"x" * 100, on_delivery=lambda error, _: failures.append(error) if error else None
        )
        sent += 1
        producer.poll(0.001)
    rotating.join()
    assert producer.flush(30) == 0
    assert not failures
    assert not troubles, "librdkafka reports connections that break"
    assert sent > 100
    cluster.await_event("certificates reloaded", after=before)
    # New connections work with the new certificate, also those between brokers.
    assert confluent_round_trip(cluster.access("CLIENTS"), cluster.new_topic()) == b"secured"
    assert not cluster.log_events("certificates not reloaded")


# --- Logins ---


@pytest.mark.parametrize("listener", ["LOGIN", "SECURED"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", sorted(ROUND_TRIPS))
def test_clients_log_in(cluster: SecuredCluster, client: str, mechanism: str, listener: str) -> None:
    access = cluster.access(listener, login=(mechanism, "alice", PASSWORD))
    assert ROUND_TRIPS[client](access, cluster.new_topic()) == b"secured"


@pytest.mark.parametrize("mechanism", [None, *MECHANISMS])
def test_the_java_client_connects_with_pem_files_and_logs_in(
    cluster: SecuredCluster, mechanism: str | None, tmp_path: Path
) -> None:
    """R38: over SSL, and over SASL_SSL by each mechanism."""
    if mechanism is None:
        access = cluster.access("CLIENTS")
    else:
        access = cluster.access("SECURED", login=(mechanism, "alice", PASSWORD))
    assert java_round_trip(access, cluster.new_topic(), tmp_path) == b"secured"


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong-secret"), ("nobody", PASSWORD)])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_wrong_passwords_and_unknown_users_get_the_same_answer(
    cluster: SecuredCluster, mechanism: str, user: str, password: str
) -> None:
    access = cluster.access("SECURED", login=(mechanism, user, password))
    with pytest.raises(PermissionError, match=rf"Authentication failed: invalid credentials \({mechanism}\)"):
        confluent_round_trip(access, cluster.new_topic())
    reason = "The user is unknown or the password is wrong"
    cluster.await_event("login failed", f'"user": "{user}"', reason, mechanism)


def test_clients_that_log_in_again_keep_their_connection(cluster: SecuredCluster) -> None:
    """KIP-368: librdkafka does so at 90 % of the session."""
    troubles: list[str] = []
    producer = confluent_kafka.Producer(
        {
            **cluster.access("SHORT", login=("SCRAM-SHA-512", "alice", PASSWORD)).librdkafka(),
            "error_cb": lambda error: troubles.append(str(error)),
        }
    )
    topic = cluster.new_topic()
    before = len(cluster.log_events("connection closed"))
    end_s = time.monotonic() + 2.2 * SESSION_MS / 1000
    while time.monotonic() < end_s:
        producer.produce(topic, b"again")
        producer.poll(0.05)
    assert producer.flush(30) == 0
    assert not troubles
    assert not any(
        "has not logged in again" in line for line in cluster.log_events("connection closed")[before:]
    )


def test_clients_that_do_not_log_in_again_are_disconnected(cluster: SecuredCluster) -> None:
    """As aiokafka does not; it connects anew."""

    async def stay() -> None:
        access = cluster.access("SHORT", login=("PLAIN", "alice", PASSWORD))
        producer = aiokafka.AIOKafkaProducer(**access.python())
        await producer.start()
        try:
            await producer.send_and_wait(topic, b"before", partition=0)
            await let_pass_async(1.2 * SESSION_MS / 1000, "the session is over")
            await producer.send_and_wait(topic, b"after", partition=0)
        finally:
            await producer.stop()

    topic = cluster.new_topic()
    asyncio.run(stay())
    cluster.await_event("connection closed", "has not logged in again in time")


# --- Tokens ---


@pytest.mark.parametrize("listener", ["LOGIN", "SECURED"])
def test_librdkafka_logs_in_by_a_token(cluster: SecuredCluster, listener: str) -> None:
    settings: dict[str, Any] = {
        **cluster.access(listener).librdkafka(),
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (cluster.token(), time.time() + 60),
    }
    assert librdkafka_round_trip(settings, cluster.new_topic()) == b"secured"


@pytest.mark.parametrize("client", ["kafka-python", "aiokafka"])
def test_python_clients_log_in_by_a_token(cluster: SecuredCluster, client: str) -> None:
    assert (
        ROUND_TRIPS[client](cluster.access("SECURED", token=cluster.token), cluster.new_topic()) == b"secured"
    )


# --- The command ---


@pytest.mark.parametrize("mechanism", [None, *MECHANISMS])
def test_the_command_connects_with_client_properties(
    cluster: SecuredCluster, mechanism: str | None, tmp_path: Path
) -> None:
    """The data directories come by a request of our own, everything else by the stock client."""
    if mechanism is None:
        access = cluster.access("CLIENTS")
    else:
        access = cluster.access("SECURED", login=(mechanism, "alice", PASSWORD))
    properties = tmp_path / "client.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in access.librdkafka().items()))
    shown = mainstem(
        "broker",
        "describe",
        1,
        "--bootstrap-servers",
        access.bootstrap_servers,
        "--output",
        "json",
        "-X",
        f"@{properties}",
    )
    assert json.loads(shown.stdout)["directories"]


def test_the_command_says_what_is_wrong_with_a_login(cluster: SecuredCluster) -> None:
    properties = cluster.access("SECURED", login=("SCRAM-SHA-256", "alice", "wrong-secret")).librdkafka()
    request = ApiVersionsRequest()
    host, _, port = properties["bootstrap.servers"].partition(",")[0].partition(":")
    with pytest.raises(ClusterRefused, match=r"check sasl\.username and sasl\.password") as refused:
        ask((host, int(port)), request, client_id="test", properties=properties)
    assert "wrong-secret" not in str(refused.value)


# --- The loader ---


@pytest.mark.parametrize("mechanism", [None, *MECHANISMS])
def test_the_loader_connects_with_client_properties(cluster: SecuredCluster, mechanism: str | None) -> None:
    if mechanism is None:
        access = cluster.access("CLIENTS")
    else:
        access = cluster.access("SECURED", login=(mechanism, "alice", PASSWORD))
    properties = access.librdkafka()
    check_client_properties(properties)
    topic = cluster.new_topic()
    brokers = BrokerSettings(access.bootstrap_servers, client_properties=properties)
    with TopicLeaders(brokers, topic) as leaders:
        leaders.find()
        assert leaders.topic_uuid is not None


@pytest.mark.parametrize("mechanism", [None, *MECHANISMS])
def test_the_data_source_writes_and_reads_with_client_properties_as_options(
    cluster: SecuredCluster, mechanism: str | None
) -> None:
    if mechanism is None:
        access = cluster.access("CLIENTS")
    else:
        access = cluster.access("SECURED", login=(mechanism, "alice", PASSWORD))
    options = {f"kafka.{name}": value for name, value in access.librdkafka().items()}
    topic = cluster.new_topic()
    rows = pa.RecordBatch.from_pydict({"value": [b"secured", b"rows"]})
    assert write_rows(write_options(options | {"topic": topic}), iter([rows])) == 2
    read = read_options(options | {"subscribe": topic}, is_stream=False)
    ((split,),) = [batch_splits(topics_now(read), read.starting, read.ending, True)]
    schema = pa.schema([("value", pa.binary())])
    assert [row["value"] for batch in read_split(split, read, schema) for row in batch.to_pylist()] == [
        b"secured",
        b"rows",
    ]


def test_the_loader_says_what_is_wrong_with_a_login(cluster: SecuredCluster) -> None:
    access = cluster.access("SECURED", login=("SCRAM-SHA-512", "alice", "wrong-secret"))
    brokers = BrokerSettings(access.bootstrap_servers, client_properties=access.librdkafka())
    assert "wrong-secret" not in repr(brokers)
    with (
        pytest.raises(LoginRefusedError, match="refuses the login of alice"),
        TopicLeaders(brokers, cluster.new_topic()) as leaders,
    ):
        leaders.find()


def test_no_password_is_in_a_log_or_among_the_described_settings(cluster: SecuredCluster) -> None:
    for broker_id in BROKERS:
        log = "\n".join(cluster.stack.broker_log_lines(broker_id, 100_000))
        assert log
        for secret in (PASSWORD, "wrong-secret", "a-secret-of-brokers", "PRIVATE KEY"):
            assert secret not in log
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    described = cluster.admin.describe_configs([resource])[resource].result(30)
    for name in ("sasl.jaas.config", "ssl.key.password", "ssl.keystore.key"):
        assert described[name].is_sensitive
        assert described[name].value is None
