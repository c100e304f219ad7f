"""The schema registry with real brokers: stock serializers, several instances, a leader that dies (R31)."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from tests.support.certificates import Authority
from tests.support.clusters import Cluster, RunCluster
from tests.support.command_line import error_of, mainstem
from tests.support.registries import RegistryInstance, running_registries
from tests.support.waiting import wait_until

from mainstem.local.ports import hold_free_ports
from mainstem.local.stack import Stack

USER = {"type": "record", "name": "User", "fields": [{"name": "name", "type": "string"}]}
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "500"}


@pytest.fixture(scope="module")
def cluster(run_cluster: RunCluster) -> Iterator[Cluster]:
    with run_cluster(1, SETTINGS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def registry(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryInstance]:
    with running_registries(cluster.bootstrap_servers, tmp_path_factory.mktemp("registry")) as instances:
        yield instances[0]


@pytest.fixture
def client(registry: RegistryInstance) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry.url})


def avro(value: Any) -> Schema:
    return Schema(json.dumps(value), "AVRO")


def user(*names: str) -> dict[str, Any]:
    return {**USER, "fields": [{"name": name, "type": "string"} for name in names]}


def test_stock_avro_serializers_work_unchanged_across_versions(client: SchemaRegistryClient) -> None:
    context = SerializationContext("users", MessageField.VALUE)
    first = AvroSerializer(client, json.dumps(USER))({"name": "Ann"}, context)
    wider = {**USER, "fields": [*USER["fields"], {"name": "age", "type": "int", "default": -1}]}
    second = AvroSerializer(client, json.dumps(wider))({"name": "Bob", "age": 7}, context)
    assert first is not None
    assert second is not None
    assert first[0] == second[0] == 0
    assert first[1:5] != second[1:5]
    assert AvroDeserializer(client)(second, context) == {"name": "Bob", "age": 7}
    assert AvroDeserializer(client, json.dumps(wider))(first, context) == {"name": "Ann", "age": -1}
    assert client.get_versions("users-value") == [1, 2]


def test_stock_json_serializers_work_unchanged(client: SchemaRegistryClient) -> None:
    context = SerializationContext("orders", MessageField.VALUE)
    schema = json.dumps({"title": "Order", "type": "object", "properties": {"price": {"type": "number"}}})
    written = JSONSerializer(schema, client)({"price": 1.5}, context)
    assert JSONDeserializer(schema, schema_registry_client=client)(written, context) == {"price": 1.5}
    assert client.get_latest_version("orders-value").schema.schema_type == "JSON"


def test_references_are_followed_and_protect_what_they_name(client: SchemaRegistryClient) -> None:
    client.register_schema("address", avro({**user("street"), "name": "Address"}))
    person = {**USER, "name": "Person", "fields": [{"name": "home", "type": "Address"}]}
    reference = SchemaReference("Address", "address", 1)
    schema_id = client.register_schema("person", Schema(json.dumps(person), "AVRO", [reference]))
    assert client.get_schema(schema_id).references[0].subject == "address"
    with pytest.raises(SchemaRegistryError) as refused:
        client.delete_subject("address")
    assert refused.value.error_code == 42206


def test_incompatible_schemas_are_refused_by_the_level_that_holds(client: SchemaRegistryClient) -> None:
    client.register_schema("level", avro(user("a")))
    assert not client.test_compatibility("level", avro(user("a", "b")))
    with pytest.raises(SchemaRegistryError, match="default value") as refused:
        client.register_schema("level", avro(user("a", "b")))
    assert (refused.value.http_status_code, refused.value.error_code) == (409, 409)
    client.set_compatibility("level", "FORWARD")
    assert client.register_schema("level", avro(user("a", "b")))
    with pytest.raises(SchemaRegistryError):
        client.register_schema("level", avro(user("b")))
    client.set_compatibility("level", "NONE")
    assert client.register_schema("level", avro(user("b")))
    assert client.get_compatibility("level") == "NONE"


def test_the_life_of_a_subject(client: SchemaRegistryClient, registry: RegistryInstance) -> None:
    first = client.register_schema("life", avro(user("of_life")))
    assert client.register_schema("life", avro(user("of_life"))) == first
    assert client.lookup_schema("life", avro(user("of_life"))).version == 1
    assert client.delete_subject("life") == [1]
    assert "life" not in client.get_subjects()
    assert client.get_schema(first)  # records with this id are still to be read
    assert registry.request("GET", "/subjects?deleted=true&subjectPrefix=life").json() == ["life"]
    forgetful = SchemaRegistryClient({"url": registry.url})  # the other remembers what it registered
    assert forgetful.register_schema("life", avro(user("of_life"))) == first
    assert forgetful.get_latest_version("life").version == 2
    assert error_code(registry.request("DELETE", "/subjects/life?permanent=true")) == 40405
    assert forgetful.delete_subject("life") == [2]
    assert error_code(registry.request("DELETE", "/subjects/life")) == 40404
    assert forgetful.delete_subject("life", permanent=True) == [1, 2]
    assert error_code(registry.request("GET", f"/schemas/ids/{first}")) == 40403
    assert forgetful.register_schema("life", avro(user("after_life"))) > first


def error_code(answer: httpx.Response) -> int:
    assert answer.headers["Content-Type"] == "application/vnd.schemaregistry.v1+json"
    return int(answer.json()["error_code"])


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("GET", "/subjects/none/versions", None, 40401),
        ("GET", "/subjects/none/versions/latest", None, 40401),
        ("POST", "/subjects/none", {"schema": '"int"'}, 40401),
        ("GET", "/schemas/ids/999999", None, 40403),
        ("GET", "/schemas/ids/999999/versions", None, 40403),
        ("GET", "/schemas/ids/x", None, 404),
        ("GET", "/subjects/none/versions/0", None, 42202),
        ("DELETE", "/subjects/none", None, 40401),
        ("GET", "/config/none", None, 40408),
        ("GET", "/mode/none", None, 40409),
        ("PUT", "/config", {"compatibility": "SOME"}, 42203),
        ("PUT", "/config/none", {"alias": "other"}, 422),
        ("PUT", "/mode", {"mode": "SOME"}, 42204),
        ("POST", "/subjects/none/versions", {"schema": '"nothing"'}, 42201),
        ("POST", "/subjects/none/versions", {"schema": '"int"', "schemaType": "XML"}, 42201),
        ("POST", "/subjects/none/versions", {"schema": '"int"', "ruleSet": {"a": 1}}, 422),
        ("POST", "/subjects/none/versions", {"schema": '"int"', "id": 5}, 42205),
        ("POST", "/subjects/none/versions", {"schema": 3}, 42201),
        ("POST", "/subjects/none/versions", [], 400),
        ("POST", "/subjects/:.context:none/versions", {"schema": '"int"'}, 42208),
        ("POST", "/compatibility/subjects/none/versions/1", {"schema": '"int"'}, 40401),
        ("GET", "/nothing", None, 404),
        ("PATCH", "/subjects", None, 405),
    ],
)
def test_refusals_have_the_codes_that_clients_know(
    registry: RegistryInstance, method: str, path: str, body: Any, code: int
) -> None:
    answer = registry.request(method, path, body)
    assert error_code(answer) == code
    assert answer.status_code == (code if code < 1000 else code // 100)


def test_hostile_bodies_are_refused_and_the_registry_goes_on(registry: RegistryInstance) -> None:
    path = "/subjects/hostile/versions"
    assert error_code(registry.request("POST", path, {"schema": '"' + "x" * 2_000_000 + '"'})) == 42201
    assert error_code(registry.request("POST", path, {"schema": "x" * 5_000_000})) == 413
    assert error_code(registry.request("POST", path, {"schema": "[" * 100_000})) == 42201
    for content in (b"", b"\xff\x00", b"[" * 100_000, b'{"schema":'):
        assert error_code(httpx.post(registry.url + path, content=content, timeout=30)) in (400, 422)
    assert registry.request("GET", "/subjects").status_code == 200


def test_import_mode_takes_ids_that_a_client_gives(registry: RegistryInstance) -> None:
    assert registry.request("PUT", "/mode/imported", {"mode": "IMPORT"}).json() == {"mode": "IMPORT"}
    body = {"schema": json.dumps(user("imported")), "id": 4000, "version": 3}
    assert registry.request("POST", "/subjects/imported/versions", body).json()["id"] == 4000
    other = {"schema": json.dumps(user("other")), "id": 4000}
    assert error_code(registry.request("POST", "/subjects/imported/versions", other)) == 42205
    assert registry.request("GET", "/subjects/imported/versions").json() == [3]
    registry.request("PUT", "/mode/imported", {"mode": "READONLY"})
    refused = registry.request("POST", "/subjects/imported/versions", {"schema": json.dumps(user("new"))})
    assert error_code(refused) == 42205
    registry.request("DELETE", "/mode/imported")
    fresh = registry.request("POST", "/subjects/fresh/versions", {"schema": json.dumps(user("fresh"))})
    assert fresh.json()["id"] > 4000


class _Registrations:
    """Registers schemas through all instances until stopped, and keeps what was confirmed."""

    def __init__(self, urls: list[str], seed: int) -> None:
        self.confirmed: dict[str, int] = {}
        self._urls = urls
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(seed, n)) for n in range(3)]
        for thread in self._threads:
            thread.start()

    def _run(self, seed: int, number: int) -> None:
        chance, count = random.Random(f"{seed}/{number}"), 0
        while not self._stop.is_set():
            name = f"field_{number}_{count}"
            # Each subject is written by all threads, so that versions collide, too.
            url = f"{chance.choice(self._urls)}/subjects/shared-{count % 5}/versions"
            try:
                answer = httpx.post(url, json={"schema": json.dumps(user(name))}, timeout=5)
            except httpx.HTTPError:
                continue
            if answer.status_code == 200:
                self.confirmed[name] = answer.json()["id"]
                count += 1

    def confirmed_more(self, count: int) -> None:
        goal = len(self.confirmed) + count
        wait_until(lambda: len(self.confirmed) >= goal, f"{count} more registrations", seconds=90)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def check_confirmed(instance: RegistryInstance, confirmed: dict[str, int]) -> None:
    """Every confirmed id is one schema's, and is that schema still; no subject has a version twice."""
    assert len(set(confirmed.values())) == len(confirmed)
    for name, schema_id in confirmed.items():
        text = instance.request("GET", f"/schemas/ids/{schema_id}").json()["schema"]
        assert json.loads(text)["fields"][0]["name"] == name
    ids: dict[int, str] = {}
    for subject in instance.request("GET", "/subjects?subjectPrefix=shared").json():
        for version in instance.request("GET", f"/subjects/{subject}/versions").json():
            result = instance.request("GET", f"/subjects/{subject}/versions/{version}").json()
            assert ids.setdefault(result["id"], result["schema"]) == result["schema"]
    assert set(confirmed.values()) <= ids.keys()


@pytest.mark.parametrize("fault", ["killed", "stopped and continued"])
def test_a_leader_that_is_lost_neither_loses_registrations_nor_gives_an_id_twice(
    run_cluster: RunCluster, tmp_path: Path, fault: str
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201  # repeats a failure
    with (
        run_cluster(1, SETTINGS) as cluster,
        running_registries(cluster.bootstrap_servers, tmp_path, 3) as instances,
    ):
        by_url = {instance.url: instance for instance in instances}
        instances[0].request("PUT", "/config", {"compatibility": "NONE"})
        load = _Registrations(list(by_url), seed)
        try:
            for _ in range(2):
                load.confirmed_more(20)
                others = list(instances)
                leader = by_url[instances[0].wait_ready()]
                others.remove(leader)
                if fault == "killed":
                    leader.kill()
                else:
                    leader.send_signal(signal.SIGSTOP)
                wait_until(
                    lambda others=others, leader=leader: (
                        others[0].readiness().get("leader")  # type: ignore[misc]
                        not in (None, leader.url)
                    ),
                    "another leads",
                )
                load.confirmed_more(10)
                if fault == "killed":
                    leader.start()
                else:
                    leader.send_signal(signal.SIGCONT)
                leader.wait_ready()
        finally:
            load.stop()
        for instance in instances:
            check_confirmed(instance, load.confirmed)


def test_what_was_registered_is_there_after_a_restart_of_everything(
    run_cluster: RunCluster, tmp_path: Path
) -> None:
    with run_cluster(1, SETTINGS) as cluster:
        with running_registries(cluster.bootstrap_servers, tmp_path) as (instance,):
            client = SchemaRegistryClient({"url": instance.url})
            schema_id = client.register_schema("kept", avro(USER))
            client.set_compatibility("kept", "FULL")
            assert instance.stop() == 0
        cluster.kill_broker(1)
        cluster.start_broker(1)
        with running_registries(cluster.bootstrap_servers, tmp_path) as (instance,):
            client = SchemaRegistryClient({"url": instance.url})
            assert client.get_latest_version("kept").schema_id == schema_id
            assert client.get_compatibility("kept") == "FULL"


def test_a_topic_that_is_not_compacted_is_refused(run_cluster: RunCluster, tmp_path: Path) -> None:
    with run_cluster(1, SETTINGS) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic("_schemas", 1, 1)])["_schemas"].result()
        instance = RegistryInstance(cluster.bootstrap_servers, tmp_path / "log")
        instance.start()
        assert instance.process is not None
        assert instance.process.wait(60) == 1
        assert "cleanup.policy=delete" in (tmp_path / "log").read_text()


# Secured brokers (R38).

PASSWORDS = {"registry": "a-secret-of-the-registry", "alice": "a-secret-of-alice"}


class SecuredCluster:
    """One broker with the users of PASSWORDS.

    Its listener SECURED has TLS and logins by SCRAM, and MUTUAL demands client certificates.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority()
        self.trust = self._file("ca.pem", self.authority.trust)
        port, held = hold_free_ports(3)
        for each in held:
            each.close()
        self.bootstrap_servers = f"127.0.0.1:{port + 1}"
        self.mutual_servers = f"127.0.0.1:{port + 2}"
        listeners = (
            f"PLAINTEXT://127.0.0.1:{port},SECURED://{self.bootstrap_servers},MUTUAL://{self.mutual_servers}"
        )
        settings = {
            **SETTINGS,
            "listeners": listeners,
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECURED:SASL_SSL,MUTUAL:SSL",
            "listener.name.mutual.ssl.client.auth": "required",
            "ssl.truststore.location": str(self.trust),
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "ssl.keystore.location": str(self._file("broker.pem", self.authority.issue())),
        }
        self.stack = Stack(folder / "stack", 1, port, settings)
        self.stack.start()
        self.admin: Any = AdminClient({"bootstrap.servers": self.stack.bootstrap_servers})
        for name in PASSWORDS:
            self.set_password(name, PASSWORDS[name])

    def set_password(self, user: str, password: str) -> None:
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(user, credential, password.encode())
        self.admin.alter_user_scram_credentials([change])[user].result(30)

    def client_config(self, password: str = PASSWORDS["registry"]) -> Path:
        """The client properties of the user registry."""
        lines = [*self._shared_properties(), "sasl.username=registry", f"sasl.password={password}"]
        return self._file("client.properties", "\n".join(lines))

    def certificate_config(self) -> Path:
        """The client properties of an instance that shows a certificate, with its key in another file."""
        pem = self.authority.issue(common_name="registry")
        at = pem.index("-----BEGIN CERTIFICATE-----")
        lines = [
            "security.protocol=SSL",
            f"ssl.ca.location={self.trust}",
            f"ssl.key.location={self._file('tls.key', pem[:at])}",
            f"ssl.certificate.location={self._file('tls.crt', pem[at:])}",
        ]
        return self._file("certificate.properties", "\n".join(lines))

    def login_config(self) -> Path:
        """Where users of the HTTP API log in."""
        return self._file("login.properties", "\n".join(self._shared_properties()))

    def alice(self, registry: RegistryInstance) -> Path:
        """The client properties of alice, for brokers and registry."""
        lines = [
            *self._shared_properties(),
            *("sasl.username=alice", f"sasl.password={PASSWORDS['alice']}"),
            f"schema.registry.url={registry.url}",
            f"schema.registry.ssl.ca.location={self.trust}",
            f"basic.auth.user.info=alice:{PASSWORDS['alice']}",
        ]
        return self._file("alice.properties", "\n".join(lines))

    def _shared_properties(self) -> list[str]:
        return ["security.protocol=SASL_SSL", "sasl.mechanism=SCRAM-SHA-512", f"ssl.ca.location={self.trust}"]

    def _file(self, name: str, content: str) -> Path:
        path = self.folder / name
        path.write_text(content)
        return path


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    secured = SecuredCluster(tmp_path_factory.mktemp("secured"))
    try:
        yield secured
    finally:
        secured.stack.stop()


def test_a_registry_logs_in_to_secured_brokers(secured: SecuredCluster, tmp_path: Path) -> None:
    """Reading, writing, the admin requests and the election go by one listener with TLS and a login (R38)."""
    # Not the group of `guarded`, whose instances may run: one of them would lead these.
    arguments = ("--client-config", secured.client_config(), "--group-id", "open-instances")
    with running_registries(secured.bootstrap_servers, tmp_path, 2, arguments) as instances:
        clients = [SchemaRegistryClient({"url": instance.url}) for instance in instances]
        ids = {client.register_schema("secured", avro(USER)) for client in clients}
        assert len(ids) == 1
    for instance in instances:
        assert PASSWORDS["registry"] not in instance.log.read_text()


def test_a_registry_shows_its_certificate_to_brokers_that_demand_one(
    secured: SecuredCluster, tmp_path: Path
) -> None:
    arguments = ("--client-config", secured.certificate_config(), "--group-id", "mutual-instances")
    with running_registries(secured.mutual_servers, tmp_path, 1, arguments) as (instance,):
        assert SchemaRegistryClient({"url": instance.url}).register_schema("mutual", avro(USER))


def test_a_registry_with_a_wrong_password_ends_and_says_what_to_check(
    secured: SecuredCluster, tmp_path: Path
) -> None:
    arguments = ("--client-config", secured.client_config("a-wrong-secret"))
    instance = RegistryInstance(secured.bootstrap_servers, tmp_path / "log", arguments)
    instance.start()
    assert instance.process is not None
    assert instance.process.wait(60) == 1
    log = instance.log.read_text()
    assert "check --bootstrap-servers and the file of --client-config" in log
    assert "a-wrong-secret" not in log


@pytest.fixture(scope="module")
def guarded(
    secured: SecuredCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[RegistryInstance]]:
    """Two instances with HTTPS and logins, whose certificate is `registry.pem` in the folder of `secured`."""
    certificate = secured.folder / "registry.pem"
    certificate.write_text(secured.authority.issue())
    arguments = (
        *("--client-config", secured.client_config(), "--login-config", secured.login_config()),
        *("--tls-certificate", certificate, "--tls-ca", secured.trust),
    )
    folder, trust = tmp_path_factory.mktemp("guarded"), secured.authority.client_context()
    with running_registries(secured.bootstrap_servers, folder, 2, arguments, trust) as instances:
        yield instances
        log = "".join(instance.log.read_text() for instance in instances)
        for password in PASSWORDS.values():
            assert password not in log


ALICE = ("alice", PASSWORDS["alice"])


def test_stock_clients_log_in_as_users_of_the_brokers_over_https(
    secured: SecuredCluster, guarded: list[RegistryInstance]
) -> None:
    """One of the instances hands the registration to the other, which sees the same user (R31, R38)."""
    ids = set()
    for instance in guarded:
        client = SchemaRegistryClient(
            {
                "url": instance.url,
                "ssl.ca.location": str(secured.trust),
                "basic.auth.user.info": ":".join(ALICE),
            }
        )
        name = f"by_{instance.port}"
        ids.add(client.register_schema(name, avro(user(name))))
        assert client.get_latest_version(name).schema_id in ids
    assert len(ids) == 2
    lines = [json.loads(line) for instance in guarded for line in instance.log.read_text().splitlines()]
    written = [line for line in lines if line.get("event") == "written"]
    assert {line["user"] for line in written} == {"alice"}
    assert len(written) >= 2  # a client sends again what was cut off by a change of leader


def test_the_command_and_a_load_log_in_by_a_file_of_client_properties(
    secured: SecuredCluster, guarded: list[RegistryInstance], tmp_path: Path
) -> None:
    """The file has the registry's URL and login beside those of the brokers (R31, R36, R38)."""
    access = ("-X", f"@{secured.alice(guarded[0])}")
    schema = tmp_path / "user.avsc"
    schema.write_text(json.dumps(USER))
    answer = mainstem("schema", "register", "loaded-value", schema, *access, "--output", "json")
    schema_id = json.loads(answer.stdout)["id"]
    listed = json.loads(mainstem("schema", "list", *access, "--output", "json").stdout)
    assert "loaded-value" in [row["subject"] for row in listed]
    refused = mainstem("schema", "list", "--registry", guarded[0].url, exit_code=1)
    assert "schema.registry.ssl.ca.location" in error_of(refused)

    secured.admin.create_topics([NewTopic("loaded", 1, 1)])["loaded"].result(30)
    producer = Producer({"bootstrap.servers": secured.stack.bootstrap_servers})
    producer.produce("loaded", b"\0" + schema_id.to_bytes(4, "big") + b"\x06Ann")
    assert producer.flush(30) == 0
    brokers = ("--bootstrap-servers", secured.bootstrap_servers, *access)
    place = ("--warehouse", tmp_path / "warehouse", "--cores", "1")
    answer = mainstem("load", "loaded", "--payload", "avro", *brokers, *place, "--output", "json")
    assert json.loads(answer.stdout)["loaded"] == 1
