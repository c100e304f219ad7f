"""The manifests of a Cluster's brokers, and the settings they start with. Pure.

Broker N is pod N: its id, its name and its volume are the same for life.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mainstem_operator import names
from mainstem_operator.manifests import (
    POD_INDEX_ENV,
    Manifest,
    digest,
    disruption_budget,
    headless_service,
    manifest,
    service,
    stateful_set,
)
from mainstem_operator.plan_settings import settings_at_start
from mainstem_operator.plan_zookeeper import connect_string
from mainstem_operator.resources import ClusterSpec, Images

_DATA_PATH: Final = "/var/lib/mainstem"
_CONFIG_PATH: Final = "/etc/mainstem"
_GRACE_SECONDS: Final = 300  # a controlled shutdown hands all leaders over and syncs every log
_PORTS: Final = {"client": names.CLIENT_PORT, "http": names.HTTP_PORT}
_EXTERNAL_PORTS: Final = {"external": names.EXTERNAL_PORT}
REPLICATION_FACTOR: Final = 3
_RACKS_FILE: Final = "racks.properties"


@dataclass(frozen=True, slots=True)
class Placement:
    """What is known of where brokers are, or may come to be, and goes into their files.

    `node_ports` are the ports that Kubernetes gave to the external services, by broker id; `racks` the rack
    of each node that is in one, None where brokers are to know of none.
    """

    node_ports: Mapping[int, int]
    racks: Mapping[str, str] | None = None


def broker_services(cluster: ClusterSpec, replicas: int) -> list[Manifest]:
    """The Services: their answers tell the node ports, so they come first."""
    found = [
        headless_service(cluster, names.BROKER, _PORTS),
        service(cluster, names.BROKER, names.bootstrap(cluster.name), {"client": names.CLIENT_PORT}),
    ]
    if cluster.external is not None:
        found += [_external_service(cluster, broker) for broker in range(replicas)]
    return found


def _external_service(cluster: ClusterSpec, broker: int) -> Manifest:
    """One broker's port on every node; also while it is not ready, for it decides itself what it serves."""
    name = names.external(cluster.name, broker)
    found = service(
        cluster, names.BROKER, name, _EXTERNAL_PORTS, type="NodePort", publishNotReadyAddresses=True
    )
    found["spec"]["selector"] = {
        **names.pod_labels(cluster.name, names.BROKER),
        names.POD_INDEX_LABEL: str(broker),
    }
    external = cluster.external
    if external is not None and external.node_port_first is not None:
        found["spec"]["ports"][0]["nodePort"] = external.node_port_first + broker
    return found


def broker_manifests(
    cluster: ClusterSpec,
    images: Images,
    replicas: int,
    placement: Placement,
    template_size: str | None,
    may_be_away: int,
) -> list[Manifest]:
    """Everything but the Services, in the order to apply it.

    Args:
        replicas: of the StatefulSet: as many as there are now, or more; fewer need a proof.
        may_be_away: how many brokers a drain of nodes may take now.
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
    found = [
        manifest("v1", "ConfigMap", cluster, component, workload, data=files),
        disruption_budget(cluster, component, may_be_away),
        stateful_set(
            cluster,
            component,
            replicas=replicas,
            storage=cluster.brokers.storage,
            template_size=template_size,
            settings=cluster.brokers.pod,
            annotations={
                names.CONFIG_HASH: config_hash(cluster, placement),
                names.RESTART_DONE: cluster.restart_request,
            },
            spread_required=cluster.brokers.spread_required,
            rack_label=cluster.brokers.rack_label,
            grace_seconds=_GRACE_SECONDS,
            container=_container(cluster, images),
            data_path=_DATA_PATH,
            config_path=_CONFIG_PATH,
        ),
    ]
    if cluster.network_policy:
        found.append(_policy(cluster))
    return found


def settings_of(cluster: ClusterSpec, broker: int, placement: Placement) -> dict[str, str]:
    """The settings of one broker; `${env:NAME}` is filled in by the broker when it starts."""
    host = names.pod_host(cluster.name, cluster.namespace, names.BROKER, broker)
    settings = {
        **_common_settings(cluster, cluster.brokers.config),
        "broker.id": str(broker),
        "advertised.listeners": f"INTERNAL://{host}:{names.CLIENT_PORT}",
    }
    if cluster.external is not None and broker in placement.node_ports:
        outside = f"{cluster.external.host or '${env:HOST_IP}'}:{placement.node_ports[broker]}"
        settings["advertised.listeners"] += f",EXTERNAL://{outside}"
        settings["listeners"] += f",EXTERNAL://:{names.EXTERNAL_PORT}"
    return settings


def settings_filed(config_map: Mapping[str, Any] | None) -> dict[str, str] | None:
    """What is in the brokers' files as they are, by the first one's; None if there are none."""
    if config_map is None:
        return None
    return _read((config_map.get("data") or {}).get("broker-0.properties", ""))


def _common_settings(cluster: ClusterSpec, config: Mapping[str, str]) -> dict[str, str]:
    copies = min(REPLICATION_FACTOR, cluster.brokers.replicas)
    return {
        "auto.create.topics.enable": "false",  # a deleted topic would come back with its next client
        "default.replication.factor": str(copies),
        "min.insync.replicas": str(max(1, copies - 1)),
        "offsets.topic.replication.factor": str(copies),
        **config,
        "http.port": str(names.HTTP_PORT),
        "inter.broker.listener.name": "INTERNAL",
        "listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT",
        "listeners": f"INTERNAL://:{names.CLIENT_PORT}",
        "log.dirs": f"{_DATA_PATH}/data",
        "zookeeper.connect": connect_string(cluster),
    }


def config_hash(cluster: ClusterSpec, placement: Placement) -> str:
    """Changes when running brokers have to be restarted for their settings.

    Those that they take while they run are not in it, but for what is ours where the manifest names none.
    Racks are not in it, since nodes come and go: which rack a broker runs with, it says itself. Of the node
    ports those of the brokers that are wanted count, not of one that comes or goes.
    """
    external = cluster.external
    ports = [] if external is None else [external.host, sorted(placement.node_ports.items())[:1]]
    return digest([_common_settings(cluster, settings_at_start(cluster.brokers.config)), ports])


def racks_of(
    cluster: ClusterSpec,
    nodes: Mapping[str, Mapping[str, str]] | None,
    config_map: Mapping[str, Any] | None,
) -> dict[str, str] | None:
    """The racks for a Placement, by the labels of the nodes.

    Args:
        nodes: None where they may not be asked for: then `config_map` holds the last that were known.
    """
    label = cluster.brokers.rack_label
    if label is None:
        return None
    if nodes is None:
        return _read(((config_map or {}).get("data") or {}).get(_RACKS_FILE, ""))
    return {node: labels[label] for node, labels in nodes.items() if labels.get(label)}


def _file(settings: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in sorted(settings.items()))


def _read(file: str) -> dict[str, str]:
    """What `_file` wrote."""
    return {name: value for name, _, value in (line.partition("=") for line in file.split("\n") if line)}


def _container(cluster: ClusterSpec, images: Images) -> Manifest:
    ports = {**_PORTS, **(_EXTERNAL_PORTS if cluster.external is not None else {})}
    container: Manifest = {
        "name": names.BROKER,
        "image": cluster.brokers.image or images.broker,
        "args": [f"{_CONFIG_PATH}/broker-$(POD_INDEX).properties"],
        "env": [
            POD_INDEX_ENV,
            {"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        ],
        "ports": [{"name": name, "containerPort": port} for name, port in ports.items()],
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


def _policy(cluster: ClusterSpec) -> Manifest:
    """Clients may come from anywhere; it is there so that they may in namespaces that deny by default."""
    ports = {**_PORTS, **_EXTERNAL_PORTS}
    return manifest(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        cluster,
        names.BROKER,
        names.workload(cluster.name, names.BROKER),
        spec={
            "podSelector": {"matchLabels": names.pod_labels(cluster.name, names.BROKER)},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": [{"protocol": "TCP", "port": port} for port in ports.values()]}],
        },
    )
