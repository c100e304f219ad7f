"""The command's client of a schema registry with TLS and logins (R38)."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.certificates import Authority
from tests.support.guarded_registry import USER_INFO, guarded_registry

from mainstem.errors import BadInput, ClusterUnreachable
from mainstem.schema_registry import RegistryRefused, SchemaDefinition, SchemaRegistry

LOGIN = {"basic.auth.user.info": USER_INFO}


def test_the_login_is_sent_and_a_refusal_says_where_to_write_it() -> None:
    with guarded_registry() as registry:
        assert SchemaRegistry(registry.url, LOGIN).schema(1) == {"schema": '"int"'}
        for properties in ({}, {"basic.auth.user.info": "alice:x"}):
            with pytest.raises(
                RegistryRefused, match=r"basic.auth.user.info=USER:PASSWORD .*-X @FILE"
            ) as refused:
                SchemaRegistry(registry.url, properties).schema(1)
            assert "alice:x" not in str(refused.value)


def test_the_login_is_not_sent_on_to_where_an_answer_redirects() -> None:
    with guarded_registry() as registry, guarded_registry() as elsewhere:
        registry.redirects_to = elsewhere.url
        with pytest.raises(RegistryRefused):
            SchemaRegistry(registry.url, LOGIN).schema(1)
        assert elsewhere.logins == [None]


def test_a_certificate_is_verified_by_the_authorities_of_the_properties(tmp_path: Path) -> None:
    authority, own, trust = Authority(), tmp_path / "own.pem", tmp_path / "ca.pem"
    own.write_text(authority.issue())
    trust.write_text(authority.trust)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own)
    with guarded_registry(context) as registry:
        trusted = LOGIN | {"schema.registry.ssl.ca.location": str(trust)}
        assert SchemaRegistry(registry.url, trusted).schema(1) == {"schema": '"int"'}
        with pytest.raises(ClusterUnreachable, match=r"is not trusted .*schema.registry.ssl.ca.location"):
            SchemaRegistry(registry.url, LOGIN).schema(1)
    assert len(registry.logins) == 1  # a login follows the handshake


def test_properties_that_cannot_be_used_are_refused_without_showing_secrets(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not of the form USER:PASSWORD") as refused:
        SchemaRegistry("http://127.0.0.1:1", {"basic.auth.user.info": "hunter2"})
    assert "hunter2" not in str(refused.value)
    with pytest.raises(BadInput, match="No such file"):
        SchemaRegistry("http://127.0.0.1:1", {"schema.registry.ssl.ca.location": str(tmp_path / "none")})


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nonsense",
        "ftp://x",
        "http://",
        "http://a b:1",
        "http://[::1",
        "http://a:99999",
        "http://a:0",
        "a:1",
    ],
)
def test_what_is_no_url_of_a_registry_is_refused(url: str) -> None:
    with pytest.raises(BadInput, match="not the URL of a schema registry: write http://host:port"):
        SchemaRegistry(url)


def test_a_login_in_the_url_is_refused_and_not_shown() -> None:
    with pytest.raises(BadInput, match=r"the client property basic\.auth\.user\.info") as refused:
        SchemaRegistry("http://ann:hunter2@registry:8081")
    assert "hunter2" not in str(refused.value)


def test_a_version_is_one_part_of_a_path() -> None:
    """Otherwise the version `1?permanent=true` would delete for good."""
    paths: list[str] = []

    class Recorded(SchemaRegistry):
        def _request(self, method: str, path: str, flags: object = None, body: object = None) -> Any:
            del method, flags, body
            paths.append(path)
            return [1] if "permanent" in path else {"is_compatible": True}

    registry = Recorded("http://127.0.0.1:1")
    registry.version("s", "1/schema")
    registry.problems("s", SchemaDefinition("AVRO", '"int"'), "1?a")
    assert registry.delete("s", "1?permanent=true") == [1]
    assert paths == [
        "/subjects/s/versions/1%2Fschema",
        "/compatibility/subjects/s/versions/1%3Fa",
        "/subjects/s/versions/1%3Fpermanent%3Dtrue",
    ]


def test_a_server_that_does_not_speak_http_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-server\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ClusterUnreachable, match="No schema registry answers"):
            SchemaRegistry(f"http://127.0.0.1:{server.getsockname()[1]}").subjects()
        thread.join()
