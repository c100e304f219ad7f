"""The manifests of a secured BrokerCluster (R38). That of others does not change: see `golden/`."""

from __future__ import annotations

from typing import Any

from tests.unit.operator.snapshots import cluster

from mainstem_broker.config.properties import parse_properties
from mainstem_operator.api.clusters import ClusterSpec, Images
from mainstem_operator.cluster.broker_manifests import (
    Placement,
    broker_manifests,
    broker_services,
    config_hash,
    settings_of,
)
from mainstem_operator.kubernetes.manifests import Manifest

TLS = {"name": "tls", "port": 9093}
MUTUAL = {"name": "mutual", "port": 9095, "authentication": "tls"}
OUTSIDE = {"name": "outside", "port": 9094, "type": "nodeport", "nodePortFirst": 31_090}
NOWHERE = Placement({})


def secured(*listeners: dict[str, Any], **spec: Any) -> ClusterSpec:
    return cluster(listeners={"clients": list(listeners)}, **spec)


def of_kind(kind: str, spec: ClusterSpec, placement: Placement = NOWHERE) -> Manifest:
    made = broker_manifests(spec, Images(), 3, placement, None, 1)
    return next(item for item in made if item["kind"] == kind)


def test_brokers_talk_to_each_other_over_tls_and_require_certificates_of_their_own_authority() -> None:
    settings = settings_of(secured(TLS), 0, NOWHERE)
    assert settings["inter.broker.listener.name"] == "BROKERS"
    assert "BROKERS:SSL" in settings["listener.security.protocol.map"]
    assert settings["listener.name.brokers.ssl.client.auth"] == "required"
    assert settings["listener.name.brokers.ssl.truststore.location"] == "/etc/mainstem-tls/ca.crt"
    assert settings["advertised.listeners"] == (
        "BROKERS://events-broker-0.events-broker-headless.prod.svc:9091,"
        "TLS://events-broker-0.events-broker-headless.prod.svc:9093"
    )
    assert settings["listeners"] == "BROKERS://:9091,TLS://:9093"
    assert "PLAINTEXT" not in settings["listener.security.protocol.map"]


def test_clients_show_certificates_of_the_users_authority_and_never_of_the_brokers() -> None:
    settings = settings_of(secured(TLS, MUTUAL), 0, NOWHERE)
    assert settings["listener.name.mutual.ssl.client.auth"] == "required"
    assert settings["listener.name.mutual.ssl.truststore.location"] == "/etc/mainstem-tls/clients-ca.crt"
    assert settings["listener.name.tls.ssl.client.auth"] == "none"
    assert "listener.name.tls.ssl.truststore.location" not in settings
    assert settings["listener.name.tls.sasl.enabled.mechanisms"] == "SCRAM-SHA-512"


def test_super_users_are_those_named_and_what_the_cluster_needs_itself() -> None:
    authorization = {"type": "acl", "superUsers": ["admin", "User:root"]}
    settings = settings_of(secured(TLS, authorization=authorization), 0, NOWHERE)
    expected = "User:mainstem-broker;User:mainstem-operator;User:admin;User:root"
    assert settings["super.users"] == expected
    assert settings["authorizer.class.name"].endswith("StandardAuthorizer")
    assert "super.users" not in settings_of(secured(TLS), 0, NOWHERE)


def test_settings_of_the_manifest_do_not_open_what_the_operator_closes() -> None:
    config = {"listener.name.brokers.ssl.client.auth": "none"}
    settings = settings_of(secured(TLS, brokers={"config": config}), 0, NOWHERE)
    assert settings["listener.name.brokers.ssl.client.auth"] == "required"


def test_the_bootstrap_service_has_the_listeners_inside_and_node_ports_the_one_outside() -> None:
    services = {item["metadata"]["name"]: item for item in broker_services(secured(TLS, OUTSIDE), 2)}
    ports = {
        name: {port["name"]: port["port"] for port in item["spec"]["ports"]}
        for name, item in services.items()
    }
    assert ports["events-bootstrap"] == {"brokers": 9091, "tls": 9093}
    assert ports["events-broker-1-external"] == {"outside": 9094}
    assert services["events-broker-1-external"]["spec"]["ports"][0]["nodePort"] == 31_091
    placement = Placement({0: 31_090})
    advertised = settings_of(secured(TLS, OUTSIDE), 0, placement)["advertised.listeners"]
    assert advertised.endswith(",OUTSIDE://${env:HOST_IP}:31090")


def test_pods_mount_the_keys_for_their_group_only_and_restart_for_none_of_them() -> None:
    pod = of_kind("StatefulSet", secured(TLS))["spec"]["template"]["spec"]
    (volume,) = [item for item in pod["volumes"] if "secret" in item]
    assert volume["secret"] == {"secretName": "events-broker-tls", "defaultMode": 0o440}
    (mount,) = [item for item in pod["containers"][0]["volumeMounts"] if item["name"] == volume["name"]]
    assert mount["mountPath"] == "/etc/mainstem-tls"
    assert mount["readOnly"]


def test_a_certificate_of_the_users_own_is_for_clients_and_not_between_brokers() -> None:
    spec = secured(TLS, tls={"secretName": "from-cert-manager"})
    pod = of_kind("StatefulSet", spec)["spec"]["template"]["spec"]
    mounted = {item["secret"]["secretName"] for item in pod["volumes"] if "secret" in item}
    assert mounted == {"events-broker-tls", "from-cert-manager"}
    settings = settings_of(spec, 0, NOWHERE)
    assert settings["listener.name.tls.ssl.keystore.location"] == "/etc/mainstem-clients-tls"
    assert settings["listener.name.brokers.ssl.keystore.location"] == "/etc/mainstem-tls"


def test_only_brokers_and_operators_reach_the_port_between_brokers() -> None:
    ingress = of_kind("NetworkPolicy", secured(TLS))["spec"]["ingress"]
    with_sources = [rule for rule in ingress if "from" in rule]
    assert [port["port"] for rule in with_sources for port in rule["ports"]] == [9091]
    assert {port["port"] for rule in ingress if "from" not in rule for port in rule["ports"]} == {9093, 9404}


def test_a_changed_listener_restarts_brokers() -> None:
    before = config_hash(secured(TLS), NOWHERE)
    assert config_hash(secured(TLS, MUTUAL), NOWHERE) != before
    assert config_hash(secured(TLS, authorization={"type": "acl"}), NOWHERE) != before


def test_brokers_read_the_rules_for_principals_as_they_are_meant() -> None:
    """A properties file gives backslashes and dollars a meaning of their own."""
    file = of_kind("ConfigMap", secured(TLS, MUTUAL))["data"]["broker-0.properties"]
    settings = parse_properties(file)
    assert settings["listener.name.mutual.ssl.principal.mapping.rules"] == "RULE:^CN=([^,]+).*$/$1/"


def test_only_loads_and_their_executors_reach_the_listener_of_loads() -> None:
    warehouse = {"location": "s3://lake/tables"}
    spec = secured(TLS, tls={"secretName": "mine"}, warehouse=warehouse)
    settings = settings_of(spec, 0, NOWHERE)
    assert settings["listeners"] == "BROKERS://:9091,TLS://:9093,LOADS://:9090"
    assert settings["listener.name.loads.ssl.client.auth"] == "required"
    assert settings["listener.name.loads.ssl.truststore.location"] == "/etc/mainstem-tls/clients-ca.crt"
    # Loads trust the operator's authority, also where clients are shown another certificate.
    assert settings["listener.name.loads.ssl.keystore.location"] == "/etc/mainstem-tls"
    assert settings["listener.name.tls.ssl.keystore.location"] == "/etc/mainstem-clients-tls"
    ingress = of_kind("NetworkPolicy", spec)["spec"]["ingress"]
    (rule,) = [item for item in ingress if {"protocol": "TCP", "port": 9090} in item["ports"]]
    components = [item["podSelector"]["matchLabels"] for item in rule["from"]]
    name = "app.kubernetes.io/component"
    assert [labels.get(name) for labels in components] == ["loader", "resident-loader", None]
    assert components[-1] == {"spark-role": "executor"}
    assert "9090" not in str(of_kind("NetworkPolicy", secured(TLS))["spec"])
