"""Schemas from a registry with TLS and logins (R31, R38)."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from tests.support.certificates import Authority
from tests.support.guarded_registry import USER_INFO, guarded_registry

from mainstem_loader.errors import RegistryUnreachableError, SettingsError
from mainstem_loader.payload.readers import PayloadFormat
from mainstem_loader.payload.schema_source import SchemaSource
from mainstem_loader.settings import LoadSettings

LOGIN = {"basic.auth.user.info": USER_INFO}


def test_the_login_is_sent_and_a_refusal_is_not_tried_again() -> None:
    with guarded_registry() as registry:
        assert SchemaSource(registry.url, LOGIN).writer_schema(1)
        for properties in ({}, {"basic.auth.user.info": "alice:x"}):
            registry.logins.clear()
            with pytest.raises(RegistryUnreachableError, match=r"correct basic\.auth\.user\.info") as refused:
                SchemaSource(registry.url, properties).writer_schema(1)
            assert "alice:x" not in str(refused.value)
            assert len(registry.logins) == 1  # repeated tries look like an attack


def test_the_login_is_not_sent_on_to_where_an_answer_redirects() -> None:
    with guarded_registry() as registry, guarded_registry() as elsewhere:
        registry.redirects_to = elsewhere.url
        with pytest.raises(RegistryUnreachableError):
            SchemaSource(registry.url, LOGIN).writer_schema(1)
        assert elsewhere.logins == [None]


def test_a_certificate_is_verified_by_the_authorities_of_the_properties(tmp_path: Path) -> None:
    authority, own, trust = Authority(), tmp_path / "own.pem", tmp_path / "ca.pem"
    own.write_text(authority.issue())
    trust.write_text(authority.trust)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own)
    with guarded_registry(context) as registry:
        trusted = LOGIN | {"schema.registry.ssl.ca.location": str(trust)}
        assert SchemaSource(registry.url, trusted).writer_schema(1)
        with pytest.raises(RegistryUnreachableError, match=r"schema.registry.ssl.ca.location .* names whom"):
            SchemaSource(registry.url, LOGIN).writer_schema(1)


@pytest.mark.parametrize(
    "properties",
    [{"basic.auth.user.info": "hunter2"}, {"schema.registry.ssl.ca.location": "/none"}],
    ids=["login", "authorities"],
)
def test_a_load_is_refused_before_it_reads_if_a_property_cannot_be_used(properties: dict[str, str]) -> None:
    settings = LoadSettings(
        "127.0.0.1:1",
        "orders",
        "warehouse",
        payload=PayloadFormat.AVRO,
        schema_registry="https://registry:8081",
        client_properties=properties,
    )
    with pytest.raises(SettingsError, match=next(iter(properties))) as refused:
        settings.check()
    assert "hunter2" not in str(refused.value)
    assert "hunter2" not in repr(settings)
