"""ZooKeeper and brokers as plain manifests, without the operator: what the images promise by themselves.

Pure: addresses and sizes in, Kubernetes objects out. For restricted namespaces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

Manifest = dict[str, Any]

SERVERS: Final = 3
CLIENT_PORT: Final = 9092
EXTERNAL_PORT: Final = 9094
_HTTP_PORT: Final = 9404
_ZOO_CFG: Final = """\
tickTime=500
initLimit=20
syncLimit=10
minSessionTimeout=1000
maxSessionTimeout=60000
dataDir=/var/lib/zookeeper
clientPort=2181
admin.enableServer=false
4lw.commands.whitelist=ruok,srvr,mntr,srst
"""
_SECURE_POD: Final = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "runAsGroup": 10001,
    "fsGroup": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_SECURE_CONTAINER: Final = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
_POD_INDEX: Final = {
    "name": "POD_INDEX",
    "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}},
}


def services() -> list[Manifest]:
    """How servers, brokers and clients find each other. Each broker has a port of its own on every node."""
    return [
        _service("zookeeper", {"client": 2181, "peers": 2888, "election": 3888}, headless=True),
        _service("broker", {"internal": CLIENT_PORT}, headless=True),
        _service("bootstrap", {"internal": CLIENT_PORT}, selector="broker"),
        *(_external_service(number) for number in range(SERVERS)),
    ]


def servers(outside_address: str, outside_ports: Sequence[int]) -> list[Manifest]:
    """Three servers of ZooKeeper and three brokers.

    `outside_address` is a node's, `outside_ports` what the API server gave each broker on it.
    """
    return [
        _settings("zookeeper", {"zoo.cfg": _ZOO_CFG + "".join(_zookeeper_servers())}),
        _settings("broker", dict(_broker_properties(outside_address, outside_ports))),
        _stateful_set("zookeeper", _zookeeper_container()),
        _stateful_set("broker", _broker_container()),
    ]


def _zookeeper_servers() -> Iterator[str]:
    for number in range(SERVERS):
        yield f"server.{number + 1}=zookeeper-{number}.zookeeper:2888:3888\n"


def _broker_properties(address: str, ports: Sequence[int]) -> Iterator[tuple[str, str]]:
    zookeeper = ",".join(f"zookeeper-{number}.zookeeper:2181" for number in range(SERVERS))
    for number, port in enumerate(ports):
        lines = {
            "broker.id": number,
            "listeners": f"INTERNAL://:{CLIENT_PORT},EXTERNAL://:{EXTERNAL_PORT}",
            "advertised.listeners": f"INTERNAL://broker-{number}.broker:{CLIENT_PORT},EXTERNAL://{address}:{port}",
            "listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT",
            "inter.broker.listener.name": "INTERNAL",
            "zookeeper.connect": zookeeper,
            "zookeeper.session.timeout.ms": 6000,
            "log.dirs": "/var/lib/mainstem/data",
            "http.port": _HTTP_PORT,
            "offsets.topic.num.partitions": 5,
            "default.replication.factor": 3,
            "min.insync.replicas": 2,
        }
        yield f"broker-{number}.properties", "".join(f"{name}={value}\n" for name, value in lines.items())


def _zookeeper_container() -> Manifest:
    return {
        "image": "mainstem/zookeeper:dev",
        "resources": {"requests": {"cpu": "50m", "memory": "192Mi"}, "limits": {"memory": "512Mi"}},
        "livenessProbe": {
            "exec": {"command": ["zookeeper-probe", "live"]},
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        "readinessProbe": {
            "exec": {"command": ["zookeeper-probe", "ready"]},
            "timeoutSeconds": 5,
            "periodSeconds": 2,
        },
        "volumeMounts": [
            {"name": "data", "mountPath": "/var/lib/zookeeper"},
            {"name": "settings", "mountPath": "/etc/zookeeper"},
            {"name": "scratch", "mountPath": "/tmp"},
        ],
    }


def _broker_container() -> Manifest:
    return {
        "image": "mainstem/broker:dev",
        "args": ["/etc/mainstem/broker-$(POD_INDEX).properties"],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        "livenessProbe": {
            "httpGet": {"path": "/livez", "port": _HTTP_PORT},
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": _HTTP_PORT},
            "timeoutSeconds": 5,
            "periodSeconds": 2,
        },
        "volumeMounts": [
            {"name": "data", "mountPath": "/var/lib/mainstem"},
            {"name": "settings", "mountPath": "/etc/mainstem"},
            {"name": "scratch", "mountPath": "/tmp"},
        ],
    }


def _service(name: str, ports: dict[str, int], *, selector: str = "", headless: bool = False) -> Manifest:
    spec: Manifest = {
        "selector": {"app": selector or name},
        "ports": [{"name": port_name, "port": port} for port_name, port in ports.items()],
    }
    if headless:  # servers look for each other before they are ready
        spec |= {"clusterIP": "None", "publishNotReadyAddresses": True}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def _external_service(number: int) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": f"broker-{number}-external"},
        "spec": {
            "type": "NodePort",
            "selector": {"statefulset.kubernetes.io/pod-name": f"broker-{number}"},
            "ports": [{"name": "external", "port": EXTERNAL_PORT}],
        },
    }


def _settings(name: str, files: dict[str, str]) -> Manifest:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": files}


def _stateful_set(name: str, container: Manifest) -> Manifest:
    labels = {"app": name}
    pod = {
        "securityContext": _SECURE_POD,
        "terminationGracePeriodSeconds": 60,
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": labels},
            }
        ],
        "containers": [container | {"name": name, "securityContext": _SECURE_CONTAINER, "env": [_POD_INDEX]}],
        "volumes": [
            {"name": "settings", "configMap": {"name": name}},
            {"name": "scratch", "emptyDir": {}},
        ],
    }
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "serviceName": name,
            "replicas": SERVERS,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
            "volumeClaimTemplates": [claim],
        },
    }
