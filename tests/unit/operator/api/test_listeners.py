"""Listeners of a BrokerCluster: what is read, and what is refused with which sentence (R38)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.operator.snapshots import cluster

from mainstem_operator.api.fields import InvalidSpec

TLS = {"name": "tls", "port": 9093}


def test_a_listener_that_says_no_more_is_encrypted_and_wants_a_password() -> None:
    security = cluster(listeners={"clients": [TLS]}).security
    assert security is not None
    (listener,) = security.listeners
    assert (listener.protocol, listener.authentication) == ("SASL_SSL", "scram-sha-512")
    assert security.super_users is None


@pytest.mark.parametrize(
    ("tls", "authentication", "protocol"),
    [
        (True, "none", "SSL"),
        (True, "tls", "SSL"),
        (True, "scram-sha-512", "SASL_SSL"),
        (False, "scram-sha-512", "SASL_PLAINTEXT"),
        (False, "none", "PLAINTEXT"),
    ],
)
def test_each_listener_has_kafkas_protocol(tls: bool, authentication: str, protocol: str) -> None:
    security = cluster(
        listeners={"clients": [{**TLS, "tls": tls, "authentication": authentication}]}
    ).security
    assert security is not None
    assert security.listeners[0].protocol == protocol


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"listeners": {"clients": []}}, "is empty"),
        ({"listeners": {"clients": [{**TLS, "name": "brokers"}]}}, "can't be a listener's name"),
        ({"listeners": {"clients": [{**TLS, "name": "a,b"}]}}, "can't be a listener's name"),
        ({"listeners": {"clients": [{**TLS, "port": 9091}]}}, "brokers use it themselves"),
        ({"listeners": {"clients": [TLS, {**TLS, "port": 9094}]}}, "the same name"),
        ({"listeners": {"clients": [TLS, {**TLS, "name": "more"}]}}, "the same port"),
        ({"listeners": {"clients": [{**TLS, "tls": False, "authentication": "tls"}]}}, "needs tls: true"),
        ({"listeners": {"clients": [{**TLS, "host": "a.example"}]}}, "need type: nodeport"),
        (
            {
                "listeners": {
                    "clients": [
                        {**TLS, "type": "nodeport"},
                        {"name": "more", "port": 9094, "type": "nodeport"},
                    ]
                }
            },
            "Only one of",
        ),
        ({"listeners": {"clients": [TLS], "external": {"type": "NodePort"}}}, "make it an item of clients"),
        ({"authorization": {"type": "acl"}}, "needs spec.listeners.clients"),
        ({"tls": {"secretName": "mine"}}, "needs spec.listeners.clients"),
        (
            {
                "listeners": {"clients": [TLS]},
                "authorization": {"type": "acl", "superUsers": ["User:ANONYMOUS"]},
            },
            "every client that does not log in",
        ),
        (
            {"listeners": {"clients": [TLS]}, "authorization": {"type": "acl", "superUsers": ["a;User:b"]}},
            "write names of users",
        ),
        (
            {
                "listeners": {"clients": [TLS]},
                "authorization": {"type": "acl"},
                "brokers": {"config": {"super.users": "User:x"}},
            },
            "set the same",
        ),
        ({"listeners": {"clients": [{**TLS, "name": "loads"}]}}, "can't be a listener's name"),
        ({"listeners": {"clients": [{**TLS, "port": 9090}]}}, "brokers use it themselves"),
    ],
)
def test_what_makes_no_sense_is_refused(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        cluster(**spec)


def test_a_warehouse_brings_a_listener_for_loads_and_nothing_else_does() -> None:
    without = cluster(listeners={"clients": [TLS]}).security
    having = cluster(listeners={"clients": [TLS]}, warehouse={"location": "s3://lake/tables"}).security
    assert without is not None
    assert having is not None
    assert without.loads == ()
    assert [(one.name, one.protocol, one.authentication) for one in having.loads] == [("loads", "SSL", "tls")]
    assert without.listeners == having.listeners
