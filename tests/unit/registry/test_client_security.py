"""How the registry connects to secured brokers (R38)."""

from __future__ import annotations

import ssl
from pathlib import Path

import aiokafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from tests.support.certificates import Authority

from mainstem_registry import election, store
from mainstem_registry.client_security import brokers_of, properties_of_file
from mainstem_registry.election import Election
from mainstem_registry.errors import StartupError
from mainstem_registry.store import Store

SERVERS, PASSWORD = "127.0.0.1:1", "a-secret-of-the-registry"


@pytest.fixture
def properties(tmp_path: Path) -> dict[str, str]:
    authority = Authority()
    trust, own = tmp_path / "ca.pem", tmp_path / "own.pem"
    trust.write_text(authority.trust)
    own.write_text(authority.issue(common_name="registry"))
    return {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(trust),
        "ssl.certificate.location": str(own),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "registry",
        "sasl.password": PASSWORD,
    }


def test_a_file_has_one_property_a_line_and_its_secrets_are_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# the registry's\n\nsasl.username = registry\nsasl.password=a=b\n")
    assert properties_of_file(file) == {"sasl.username": "registry", "sasl.password": "a=b"}
    file.write_text("sasl.password=se\x85c\u2028re\vt\x1c\n", encoding="utf-8")
    assert properties_of_file(file) == {"sasl.password": "se\x85c\u2028re\vt\x1c"}
    file.write_text(f"{PASSWORD}\n")
    with pytest.raises(StartupError, match="Line 1") as refused:
        properties_of_file(file)
    assert PASSWORD not in str(refused.value)
    with pytest.raises(StartupError, match="cannot be read: No such file"):
        properties_of_file(tmp_path / "none")


def test_properties_become_the_arguments_of_aiokafka(properties: dict[str, str]) -> None:
    arguments = brokers_of(SERVERS, properties).arguments()
    context = arguments.pop("ssl_context")
    assert arguments == {
        "bootstrap_servers": SERVERS,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "registry",
        "sasl_plain_password": PASSWORD,
    }
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert len(context.get_ca_certs()) == 1
    assert brokers_of(SERVERS, {}).arguments() == {
        "bootstrap_servers": SERVERS, "security_protocol": "PLAINTEXT"
    }  # fmt: skip
    unchecked = brokers_of(SERVERS, properties | {"ssl.endpoint.identification.algorithm": "none"})
    assert not unchecked.arguments()["ssl_context"].check_hostname
    assert unchecked.arguments()["ssl_context"].verify_mode is ssl.CERT_REQUIRED


def test_the_password_is_not_in_what_is_printed(properties: dict[str, str]) -> None:
    assert PASSWORD not in repr(brokers_of(SERVERS, properties))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"security.protocol": "TLS"}, "security.protocol is 'TLS'; write one of PLAINTEXT"),
        ({"sasl.mechanism": "GSSAPI"}, "sasl.mechanism is 'GSSAPI'; the registry logs in by PLAIN"),
        ({"sasl.mechanism": ""}, "the registry logs in by PLAIN"),
        ({"sasl.username": ""}, "sasl.username is missing"),
        ({"sasl.password": ""}, "sasl.password is missing"),
        ({"ssl.ca.location": "/none"}, "/none has no authorities .*No such file"),
        ({"ssl.certificate.location": "/none"}, "/none cannot be used as a certificate"),
    ],
)
def test_what_a_connection_would_fail_by_later_is_refused_at_the_start(
    properties: dict[str, str], change: dict[str, str], reason: str
) -> None:
    with pytest.raises(StartupError, match=reason) as refused:
        brokers_of(SERVERS, properties | change)
    assert PASSWORD not in str(refused.value)


async def test_every_client_connects_by_the_same_properties(
    properties: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client without them would be refused, or send in the clear what others encrypt (R38)."""
    seen: list[dict[str, object]] = []

    class Refused(Exception):
        pass

    def refuse(*_: object, **arguments: object) -> None:
        seen.append(arguments)
        raise Refused

    for module, name in (
        (store, "AIOKafkaConsumer"), (store, "AIOKafkaProducer"), (store, "AIOKafkaAdminClient"),
        (election, "AIOKafkaConsumer"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, refuse)
    brokers = brokers_of(SERVERS, properties)
    reader = Store(brokers, "_schemas")
    member = Election(brokers, "_schemas", "group", "http://127.0.0.1:1", 1000)
    with pytest.raises(Refused):
        await reader._prepare_topic()
    with pytest.raises(Refused):
        await reader._send(b"", None)
    with pytest.raises(Refused):
        await member._take_part()

    async def prepared(_: Store) -> None: ...

    monkeypatch.setattr(Store, "_prepare_topic", prepared)
    with pytest.raises(Refused):
        await reader.start()
    assert len(seen) == 4
    for arguments in seen:
        assert brokers.arguments().items() <= arguments.items()


async def test_aiokafka_takes_all_of_the_arguments(properties: dict[str, str]) -> None:
    arguments = brokers_of(SERVERS, properties).arguments()
    await aiokafka.AIOKafkaConsumer(**arguments).stop()
    await aiokafka.AIOKafkaProducer(**arguments).stop()
    await AIOKafkaAdminClient(**arguments).close()
