"""The manifests of a BrokerCluster's brokers, and the settings they start with. Pure.

Broker N is pod N: its id, its name and its volume are immutable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mainstem_operator.api import names
from mainstem_operator.api.clusters import ClusterSpec, Images
from mainstem_operator.api.listeners import BROKER_USER, INTERNAL, OPERATOR_USER, Listener, Security
from mainstem_operator.api.setting_values import same_value
from mainstem_operator.cluster.security_steps import step_of
from mainstem_operator.cluster.settings.known import unknown_settings
from mainstem_operator.cluster.settings.plan import settings_at_start
from mainstem_operator.cluster.zookeeper_manifests import connect_string
from mainstem_operator.kubernetes.manifests import (
    POD_INDEX_ENV,
    Manifest,
    digest,
    disruption_budget,
    headless_service,
    manifest,
    pods_of_operators,
    pull_secrets_of,
    pulled,
    service,
    stateful_set,
)

_DATA_PATH: Final = "/var/lib/mainstem"
_CONFIG_PATH: Final = "/etc/mainstem"
_GRACE_SECONDS: Final = 300  # a controlled shutdown hands all leaders over and syncs every log
_TLS_PATH: Final = "/etc/mainstem-tls"
_CLIENTS_TLS_PATH: Final = "/etc/mainstem-clients-tls"  # the certificate that the manifest names
_BROKERS_LISTENER: Final = "BROKERS"
_COMMON_NAME: Final = "RULE:^CN=([^,]+).*$/$1/"  # a certificate of ours stands for the user that it names
REPLICATION_FACTOR: Final = 3
ADVERTISED_LISTENERS: Final = "advertised.listeners"
_RACKS_FILE: Final = "racks.properties"


@dataclass(frozen=True, slots=True)
class Placement:
    """What is known of where brokers are, or may come to be, and goes into their files.

    `node_ports` are the ports that Kubernetes gave to the external services, by broker id; `racks` the rack
    of each node that is in one, None where brokers are to know of none.
    """

    node_ports: Mapping[int, int]
    racks: Mapping[str, str] | None = None
    brokers: int = 0
    """How many brokers there are, where those are more than are requested: until they have been drained."""
    operator_namespace: str = "default"
    """Where the operator runs, which reaches the port between brokers."""
    filed: Mapping[str, str] | None = None
    """What is in the brokers' files; None if there are none."""


def broker_services(cluster: ClusterSpec, replicas: int) -> list[Manifest]:
    """The Services: their answers tell the node ports, so they come first."""
    services = [
        headless_service(cluster, names.BROKER, {**_inside_ports(cluster), "http": names.HTTP_PORT}),
        service(cluster, names.BROKER, names.bootstrap(cluster.name), _inside_ports(cluster)),
    ]
    if cluster.external is not None:
        services += [_external_service(cluster, broker) for broker in range(replicas)]
    return services


def _inside_ports(cluster: ClusterSpec) -> dict[str, int]:
    """The ports of the Kafka protocol inside Kubernetes, by name."""
    if cluster.security is None:
        return {"client": names.CLIENT_PORT}
    inside = (*cluster.security.inside, *cluster.security.loads)
    return {"brokers": names.BROKERS_PORT, **{listener.name: listener.port for listener in inside}}


def _ports(cluster: ClusterSpec) -> dict[str, int]:
    """All ports of a broker, by name."""
    return {**_inside_ports(cluster), "http": names.HTTP_PORT, **_external_ports(cluster)}


def _external_ports(cluster: ClusterSpec) -> dict[str, int]:
    return {} if cluster.external is None else {cluster.external.listener: cluster.external.port}


def _external_service(cluster: ClusterSpec, broker: int) -> Manifest:
    """One broker's port on every node; also while it is not ready, for it decides itself what it serves."""
    name = names.external(cluster.name, broker)
    manifest = service(
        cluster,
        names.BROKER,
        name,
        _external_ports(cluster),
        type="NodePort",
        publishNotReadyAddresses=True,
    )
    manifest["spec"]["selector"] = {
        **names.pod_labels(cluster.name, names.BROKER),
        names.POD_INDEX_LABEL: str(broker),
    }
    external = cluster.external
    if external is not None and external.node_port_first is not None:
        manifest["spec"]["ports"][0]["nodePort"] = external.node_port_first + broker
    return manifest


def broker_manifests(
    cluster: ClusterSpec,
    images: Images,
    replicas: int,
    placement: Placement,
    template_size: str | None,
    may_be_away: int,
    *,
    may_lose_unready: bool = False,
) -> list[Manifest]:
    """Everything but the Services, in the order to apply it.

    Args:
        replicas: of the StatefulSet: as many as there are now, or more; fewer need a proof.
        may_be_away: how many brokers a drain of nodes may take now.
        may_lose_unready: see `disruption_budget`.
    """
    component = names.BROKER
    workload = names.workload(cluster.name, component)
    files = {
        f"broker-{broker}.properties": _file(settings_of(cluster, broker, placement))
        for broker in range(replicas)
    }
    if placement.racks is not None:
        # Of every node, since a pod may come to any. A ConfigMap holds 1 MiB: 5,000 nodes, Kubernetes' own
        # limit, have 200 bytes each, and the longest name and label together 318. One that is too large
        # is refused whole, which the status says.
        files[_RACKS_FILE] = _file(placement.racks)
    manifests = [
        manifest("v1", "ConfigMap", cluster, component, workload, data=files),
        disruption_budget(cluster, component, may_be_away, may_lose_unready=may_lose_unready),
        stateful_set(
            cluster,
            component,
            replicas=replicas,
            storage=cluster.brokers.storage,
            template_size=template_size,
            settings=cluster.brokers.pod,
            pull_secrets=pull_secrets_of(cluster.brokers.pod, images),
            annotations={
                names.CONFIG_HASH: config_hash(cluster, placement),
                names.RESTART_DONE: cluster.restart_request,
                **({} if cluster.security is None else {names.SECURITY_STEP: step_of(cluster).name}),
            },
            spread_required=cluster.brokers.spread_required,
            rack_label=cluster.brokers.rack_label,
            grace_seconds=_GRACE_SECONDS,
            container=_container(cluster, images),
            data_path=_DATA_PATH,
            config_path=_CONFIG_PATH,
            secrets=_secrets(cluster),
        ),
    ]
    if cluster.network_policy:
        manifests.append(_policy(cluster, placement.operator_namespace))
    return manifests


def settings_of(cluster: ClusterSpec, broker: int, placement: Placement) -> dict[str, str]:
    """The settings of one broker; `${env:NAME}` is filled in by the broker when it starts."""
    host = names.pod_host(cluster.name, cluster.namespace, names.BROKER, broker)
    security, external = cluster.security, cluster.external
    settings = _common_settings(cluster, _known_settings(cluster), placement)
    inside = {"INTERNAL": names.CLIENT_PORT}
    if security is not None:
        inside = {_BROKERS_LISTENER: names.BROKERS_PORT}
        inside |= {one.name.upper(): one.port for one in (*security.inside, *security.loads)}
    order = [item.partition("://")[0] for item in settings["listeners"].split(",")]
    advertised = [f"{name}://{host}:{inside[name]}" for name in order]
    if external is not None and broker in placement.node_ports:
        name = external.listener.upper()
        port = placement.node_ports[broker]
        outside = names.address(external.host, port) if external.host else f"${{env:HOST_IP}}:{port}"
        advertised.append(f"{name}://{outside}")
        settings["listeners"] += f",{name}://:{external.port}"
    return {**settings, "broker.id": str(broker), ADVERTISED_LISTENERS: ",".join(advertised)}


def settings_filed(config_map: Mapping[str, Any] | None) -> dict[str, str] | None:
    """What is in the brokers' files as they are, by the first one's; None if there are none."""
    if config_map is None:
        return None
    return _read((config_map.get("data") or {}).get("broker-0.properties", ""))


def _common_settings(cluster: ClusterSpec, config: Mapping[str, str], placement: Placement) -> dict[str, str]:
    # With fewer in-sync replicas required before the drain, records could be lost during it.
    copies = min(REPLICATION_FACTOR, max(cluster.brokers.replicas, placement.brokers))
    settings = {
        "auto.create.topics.enable": "false",  # a deleted topic would come back with its next client
        "default.replication.factor": str(copies),
        "min.insync.replicas": str(max(1, copies - 1)),
        "offsets.topic.replication.factor": str(copies),
        "transaction.state.log.min.isr": str(max(1, copies - 1)),
        "transaction.state.log.replication.factor": str(copies),
        **config,
        **(_OPEN_LISTENERS if cluster.security is None else _secured_listeners(cluster.security)),
        "http.port": str(names.HTTP_PORT),
        "log.dirs": f"{_DATA_PATH}/data",
        "zookeeper.connect": connect_string(cluster),
    }
    filed = placement.filed or {}
    return {name: _spelled_as_before(name, value, filed.get(name)) for name, value in settings.items()}


_SETS: Final = {
    "listener.security.protocol.map": ",",
    "listeners": ",",
    "log.cleanup.policy": ",",
    "sasl.enabled.mechanisms": ",",
    "super.users": ";",
}
"""Settings that are lists whose order means nothing, with what separates their items."""
_OPAQUE: Final = re.compile(r"password|jaas|rules|certificate|keystore|truststore")
"""Settings that no other text stands for."""


def _spelled_as_before(name: str, value: str, filed: str | None) -> str:
    """The text that the files have, if it means the same: no broker is restarted for another spelling."""
    if filed is None or filed == value or _OPAQUE.search(name):
        return value
    if (separator := _SETS.get(name)) is not None:
        items = [item.strip() for item in value.split(separator)]
        # The first broker's has the listener for clients outside, too.
        before = [item for item in filed.split(separator) if name != "listeners" or item in items]
        return separator.join(before) if sorted(before) == sorted(items) else value
    parts, before = value.split(","), filed.split(",")
    is_same = len(parts) == len(before) and all(map(same_value, parts, before))
    return filed if is_same else value


def replaced_settings(cluster: ClusterSpec) -> list[str]:
    """The settings of `spec.brokers.config` that have no effect, because the operator's own replace them."""
    if cluster.security is None or cluster.security.talks_without_tls or cluster.security.is_lenient:
        return []
    own = _secured_listeners(cluster.security)
    config = cluster.brokers.config
    return sorted(name for name in config if name in own and not same_value(own[name], config[name]))


_OPEN_LISTENERS: Final = {
    "inter.broker.listener.name": "INTERNAL",
    "listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT",
    "listeners": f"INTERNAL://:{names.CLIENT_PORT}",
}


def _secured_listeners(security: Security) -> dict[str, str]:
    """The listeners of a secured BrokerCluster, and who may do what.

    The keys of brokers and operator are of another authority than those of Users and loads, and each listener
    trusts one of the two.
    """
    protocols = {_BROKERS_LISTENER: "SSL"}
    protocols |= {one.name.upper(): one.protocol for one in (*security.listeners, *security.loads)}
    inside = [f"{_BROKERS_LISTENER}://:{names.BROKERS_PORT}"]
    inside += [f"{one.name.upper()}://:{one.port}" for one in (*security.inside, *security.loads)]
    settings = {
        "inter.broker.listener.name": INTERNAL.name.upper()
        if security.talks_without_tls
        else _BROKERS_LISTENER,
        "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in protocols.items()),
        "listeners": ",".join(inside),
        **_tls_settings(_BROKERS_LISTENER, _TLS_PATH, f"{_TLS_PATH}/ca.crt"),
    }
    keys = _TLS_PATH if security.certificate_secret is None else _CLIENTS_TLS_PATH
    for listener in security.listeners:
        settings |= _listener_settings(listener, keys)
    for listener in security.loads:  # which trust the operator's authority, whatever clients are shown
        settings |= _listener_settings(listener, _TLS_PATH)
    if security.super_users is not None:
        users = (BROKER_USER, OPERATOR_USER, *security.super_users)
        settings["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
        settings["super.users"] = ";".join(f"User:{user}" for user in users)
        if security.is_lenient:
            settings["authorizer.dry.run"] = "true"
    return settings


def _listener_settings(listener: Listener, keys: str) -> dict[str, str]:
    settings: dict[str, str] = {}
    if listener.tls:
        trust = f"{_TLS_PATH}/clients-ca.crt" if listener.authentication == "tls" else None
        settings |= _tls_settings(listener.name, keys, trust)
    if listener.authentication == "scram-sha-512":
        settings[f"listener.name.{listener.name}.sasl.enabled.mechanisms"] = "SCRAM-SHA-512"
    return settings


def _tls_settings(listener: str, keys: str, trust: str | None) -> dict[str, str]:
    """`trust` is where the certificates of the authority are that has issued those of clients, if any."""
    settings = {"ssl.keystore.location": keys, "ssl.client.auth": "none"}
    if trust is not None:
        settings |= {
            "ssl.client.auth": "required",
            "ssl.truststore.location": trust,
            "ssl.principal.mapping.rules": _COMMON_NAME,
        }
    return {f"listener.name.{listener.lower()}.{name}": value for name, value in settings.items()}


def _secrets(cluster: ClusterSpec) -> dict[str, str]:
    """The Secrets that the pods mount, by path; brokers read their files again when they are renewed."""
    if cluster.security is None:
        return {}
    secret_names = {_TLS_PATH: names.broker_certificate(cluster.name)}
    if cluster.security.certificate_secret is not None:
        secret_names[_CLIENTS_TLS_PATH] = cluster.security.certificate_secret
    return secret_names


def config_hash(cluster: ClusterSpec, placement: Placement) -> str:
    """Changes when running brokers have to be restarted for their settings.

    Those that they take while they run are not in it, but for what is ours where the manifest names none.
    Racks are not in it, since nodes come and go: which rack a broker runs with, it says itself. Nor are node
    ports, of which each broker has its own: see `brokers_at_other_ports`.
    """
    outside = [] if cluster.external is None else [cluster.external.host]
    heeded = settings_at_start(_known_settings(cluster))
    return digest([_common_settings(cluster, heeded, placement), outside])


def _known_settings(cluster: ClusterSpec) -> dict[str, str]:
    """The settings of the manifest that are in the brokers' files.

    With some that they do not know brokers would not start, which would show when a node is lost and not when
    the manifest is applied.
    """
    config = cluster.brokers.config
    unknown = unknown_settings(config)
    return {name: value for name, value in config.items() if name not in unknown}


def brokers_at_other_ports(
    cluster: ClusterSpec, placement: Placement, reported: Mapping[int, Mapping[str, str]]
) -> set[int]:
    """The brokers that send clients outside to a node port that is not, or no longer, that of their Service.

    Args:
        reported: the setting ADVERTISED_LISTENERS with which each broker has started.
    """
    if cluster.external is None:
        return set()
    prefix = f"{cluster.external.listener.upper()}://"
    found = set()
    for broker, port in placement.node_ports.items():
        if ADVERTISED_LISTENERS not in reported.get(broker, {}):
            continue
        listeners = reported[broker][ADVERTISED_LISTENERS].split(",")
        advertised = next((item for item in listeners if item.strip().upper().startswith(prefix)), "")
        if advertised.rpartition(":")[2].strip() != str(port):
            found.add(broker)
    return found


def racks_of(
    cluster: ClusterSpec,
    nodes: Mapping[str, Mapping[str, str]] | None,
    config_map: Mapping[str, Any] | None,
) -> dict[str, str] | None:
    """The racks for a Placement, by the labels of the nodes.

    Args:
        nodes: None where the operator may not read them: then `config_map` holds the last known ones.
    """
    label = cluster.brokers.rack_label
    if label is None:
        return None
    if nodes is None:
        return _read(((config_map or {}).get("data") or {}).get(_RACKS_FILE, ""))
    return {node: labels[label] for node, labels in nodes.items() if labels.get(label)}


def _file(settings: Mapping[str, str]) -> str:
    r"""Values as the manifest has them: as they are, brokers would read `\n` in them as the end of a line."""
    lines = ((name, value.replace("\\", "\\\\")) for name, value in sorted(settings.items()))
    return "".join(f"{name}={value}\n" for name, value in lines)


def _read(file: str) -> dict[str, str]:
    """What `_file` wrote."""
    lines = (line.partition("=") for line in file.split("\n") if line)
    return {name: value.replace("\\\\", "\\") for name, _, value in lines}


def _container(cluster: ClusterSpec, images: Images) -> Manifest:
    container: Manifest = {
        "name": names.BROKER,
        **pulled(cluster.brokers.image or images.broker, images),
        "args": [f"{_CONFIG_PATH}/broker-$(POD_INDEX).properties"],
        "env": [
            POD_INDEX_ENV,
            {"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        ],
        "ports": [{"name": name, "containerPort": port} for name, port in _ports(cluster).items()],
        "readinessProbe": _probe("/readyz", period_seconds=5, failures=2),
        "livenessProbe": _probe("/livez", period_seconds=10, failures=6),
    }
    if cluster.brokers.rack_label is not None:
        # Not among the settings, which pods see that were made before the label was asked for.
        rack = f"${{file:{_CONFIG_PATH}/{_RACKS_FILE}:${{env:NODE_NAME}}}}"
        container["args"] += ["--override", f"broker.rack={rack}"]
        container["env"].append(
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
        )
    if cluster.brokers.resources:
        container["resources"] = cluster.brokers.resources
    return container


def _probe(path: str, period_seconds: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period_seconds,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _policy(cluster: ClusterSpec, operator_namespace: str) -> Manifest:
    """Clients may come from anywhere; it is there so that they may in namespaces that deny by default.

    Only brokers and operators reach the port between brokers, and only loads and their executors the port of
    loads.
    """
    ports = {**_ports(cluster), "external": names.EXTERNAL_PORT}
    ingress: list[Manifest] = []
    if cluster.security is not None:
        guarded = {names.BROKERS_PORT, names.LOADS_PORT}
        ports = {name: port for name, port in _ports(cluster).items() if port not in guarded}
        peers = [
            {"podSelector": {"matchLabels": names.pod_labels(cluster.name, names.BROKER)}},
            pods_of_operators(operator_namespace),
        ]
        ingress = [{"from": peers, "ports": [{"protocol": "TCP", "port": names.BROKERS_PORT}]}]
        if cluster.security.has_loads:
            sources = [
                names.pod_labels(cluster.name, names.LOADER),
                names.pod_labels(cluster.name, names.RESIDENT_LOADER),
                {"spark-role": "executor"},  # which Spark sets
            ]
            loads = [{"podSelector": {"matchLabels": labels}} for labels in sources]
            ingress.append({"from": loads, "ports": [{"protocol": "TCP", "port": names.LOADS_PORT}]})
    ingress.append({"ports": [{"protocol": "TCP", "port": port} for port in ports.values()]})
    return manifest(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        cluster,
        names.BROKER,
        names.workload(cluster.name, names.BROKER),
        spec={
            "podSelector": {"matchLabels": names.pod_labels(cluster.name, names.BROKER)},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    )
