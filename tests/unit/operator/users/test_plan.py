"""What is done for a User, and what its Secret holds (R38)."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from tests.unit.operator.snapshots import NOW, cluster

from mainstem_operator.api.clusters import ClusterSpec
from mainstem_operator.api.fields import InvalidSpec
from mainstem_operator.api.users import AclRule, UserSpec, user_of
from mainstem_operator.certificates.issuing import expiry_of, is_issued, new_authority
from mainstem_operator.users.plan import (
    UserSeen,
    checked_password,
    listener_for,
    password_mark,
    plan_key,
    plan_password,
    plan_user,
    problem_of,
    ready_condition,
    secret_with,
)

TLS = {"name": "tls", "port": 9093}
READ = AclRule("topic", "clicks", False, "read", True, "*")
WRITE = AclRule("topic", "clicks", False, "write", True, "*")


def user(name: str = "alice", **spec: Any) -> UserSpec:
    metadata = {"name": name, "namespace": "prod", "uid": "u-9", "generation": 1}
    return user_of({"metadata": metadata, "spec": {"clusterRef": {"name": "events"}, **spec}})


def secured(*listeners: dict[str, Any], **spec: Any) -> ClusterSpec:
    return cluster(listeners={"clients": list(listeners or (TLS,))}, **spec)


def acl(**fields: Any) -> dict[str, Any]:
    return {"resource": "topic", "name": "clicks", "operations": ["read"], **fields}


def test_each_operation_of_an_acl_is_a_rule_of_its_own() -> None:
    result = user(
        acls=[acl(operations=["read", "write"]), acl(patternType="prefix", deny=True, host="10.0.0.7")]
    )
    assert result.acls == {READ, WRITE, AclRule("topic", "clicks", True, "read", False, "10.0.0.7")}
    (of_cluster,) = user(acls=[{"resource": "cluster", "operations": ["alter"]}]).acls
    assert of_cluster.name == "kafka-cluster"


@pytest.mark.parametrize(
    ("name", "spec", "words"),
    [
        ("mainstem-operator", {}, "a name that the brokers or the operator use"),
        ("mainstem-broker", {}, "a name that the brokers or the operator use"),
        ("CN=mainstem-broker", {}, "can't be a user's name"),
        ("alice", {"acls": [acl(operations=["fly"])]}, "There is no operation 'fly'"),
        ("alice", {"acls": [acl(operations=[])]}, "has no operations"),
        ("alice", {"acls": [{"resource": "topic", "operations": ["read"]}]}, "name is missing"),
        ("alice", {"acls": [acl(resource="cluster")]}, "must not have name"),
        (
            "alice",
            {"authentication": {"type": "tls", "passwordFrom": {"name": "mine"}}},
            "goes with type: scram-sha-512",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, spec: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        user(name, **spec)


def test_acls_and_quotas_that_others_gave_are_removed() -> None:
    seen = UserSeen(True, frozenset({READ, WRITE}), {"producer_byte_rate": 5.0, "consumer_byte_rate": 1.0})
    plan = plan_user(user(acls=[acl()], quotas={"producerByteRate": 7}), seen, password_is_set=True)
    assert plan.remove == {WRITE}
    assert plan.quotas == {"producer_byte_rate": 7.0, "consumer_byte_rate": None}


def test_a_password_is_set_again_where_brokers_do_not_have_it() -> None:
    """As those of a BrokerCluster that was made anew, or after a change."""
    assert plan_user(user(), UserSeen(False, frozenset(), {}), password_is_set=True).set_password
    assert plan_user(user(), UserSeen(True, frozenset(), {}), password_is_set=False).set_password
    marks = {
        password_mark("c1", "u", "x"),
        password_mark("c2", "u", "x"),
        password_mark("c1", "v", "x"),
        password_mark("c1", "u", "y"),
    }
    assert len(marks) == 4


def test_a_user_that_changes_to_a_certificate_loses_its_password() -> None:
    plan = plan_user(
        user(authentication={"type": "tls"}), UserSeen(True, frozenset(), {}), password_is_set=False
    )
    assert plan.delete_password
    assert not plan.set_password


def test_without_authorization_nobody_asks_for_acls_and_the_user_says_that_they_have_no_effect() -> None:
    spec = user(acls=[acl()])
    plan = plan_user(spec, UserSeen(True, None, {}), password_is_set=True)
    assert not (plan.add or plan.remove)
    assert ready_condition(spec, secured()).reason == "NoAuthorization"
    assert ready_condition(spec, secured(authorization={"type": "acl"})).holds
    assert ready_condition(user(), secured()).holds


def test_users_log_in_at_a_listener_with_their_authentication_and_best_inside() -> None:
    outside = {"name": "outside", "port": 9094, "type": "nodeport"}
    result = listener_for(user(), secured(outside, TLS))
    assert result is not None
    assert result.name == "tls"
    result = listener_for(user(), secured(outside))
    assert result is not None
    assert result.name == "outside"
    no_place = problem_of(user(authentication={"type": "tls"}), secured())
    assert no_place is not None
    assert no_place.reason == "NoListener"
    not_secured = problem_of(user(), cluster())
    assert not_secured is not None
    assert not_secured.reason == "NotSecured"


def test_a_password_stays_unless_another_is_supplied() -> None:
    first = plan_password({}, None)
    assert len(first) >= 32
    assert plan_password({}, None) != first
    assert plan_password({"password": first}, None) == first
    assert plan_password({"password": first}, "supplied-by-hand") == "supplied-by-hand"


@pytest.mark.parametrize(
    "password", [None, "short", "a" * 129, 'with"quote-s', "with\nline-end", "späteinmal", "a b c d e"]
)
def test_a_password_that_not_every_client_could_be_given_is_refused_without_showing_it(
    password: str | None,
) -> None:
    with pytest.raises(InvalidSpec) as refused:
        checked_password(password, "mine", "password")
    assert password is None or password not in str(refused.value)


def properties(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def test_the_secret_has_settings_for_stock_clients() -> None:
    listener = listener_for(user(), secured())
    assert listener is not None
    result = secret_with(user(), listener, "events-bootstrap.prod.svc:9093", "TRUST", "pass-word_1")
    assert properties(result["librdkafka.properties"]) == {
        "bootstrap.servers": "events-bootstrap.prod.svc:9093",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "/etc/mainstem-user/ca.crt",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "pass-word_1",
    }
    java = properties(result["java.properties"])
    assert java["ssl.truststore.type"] == "PEM"
    assert java["sasl.jaas.config"] == result["sasl.jaas.config"]
    assert 'username="alice" password="pass-word_1";' in java["sasl.jaas.config"]
    assert result["ca.crt"] == "TRUST"


def test_where_clients_trust_the_brokers_as_their_systems_do_the_secret_names_no_certificates() -> None:
    """As with a certificate of an ACME issuer: cert-manager knows no `ca.crt` for it."""
    listener = listener_for(user(), secured())
    assert listener is not None
    result = secret_with(user(), listener, "a:1", "", "pass-word_1")
    assert "ca.crt" not in result
    for text in (result["librdkafka.properties"], result["java.properties"]):
        assert properties(text)["security.protocol"] == "SASL_SSL"
        assert not [name for name in properties(text) if name.startswith("ssl.")]


def test_a_user_with_a_certificate_gets_its_key_and_no_password() -> None:
    spec = user(authentication={"type": "tls"})
    authority = new_authority("Mainstem users", NOW)
    pair = plan_key(spec, {}, authority, NOW)
    assert is_issued(pair, authority, "alice", ())
    listener = listener_for(spec, secured({"name": "mutual", "port": 9095, "authentication": "tls"}))
    assert listener is not None
    result = secret_with(spec, listener, "a:1", "TRUST", pair)
    assert "password" not in result
    assert result["user.pem"] == result["user.key"] + result["user.crt"]
    common = {"bootstrap.servers": "a:1", "security.protocol": "SSL"}
    assert properties(result["librdkafka.properties"]) == {
        **common,
        "ssl.ca.location": "/etc/mainstem-user/ca.crt",
        "ssl.certificate.location": "/etc/mainstem-user/user.crt",
        "ssl.key.location": "/etc/mainstem-user/user.key",
    }
    assert properties(result["java.properties"]) == {
        **common,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/etc/mainstem-user/ca.crt",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": "/etc/mainstem-user/user.pem",
    }
    assert plan_key(spec, result, authority, NOW + dt.timedelta(days=300)) == pair
    renewed = plan_key(spec, result, authority, NOW + dt.timedelta(days=310))
    assert expiry_of(renewed) > expiry_of(pair)
    assert plan_key(spec, {**result, "user.key": "nonsense"}, authority, NOW) != pair
