"""What the manifests of both workloads have in common: metadata, storage, security, spreading. Pure.

Manifests are plain dicts, as they are sent. They hold only what we decide: the API server's defaults are
its own, and an update would fight them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mainstem_operator.api import names
from mainstem_operator.api.clusters import ClusterSpec, Images, PodSettings, Storage
from mainstem_operator.api.objects import Identity

Manifest = dict[str, Any]

USER_ID: Final = 10_001  # of all our images

CONTAINER_SECURITY: Final[Manifest] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
POD_SECURITY: Final[Manifest] = {
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "runAsGroup": USER_ID,
    "fsGroup": USER_ID,
    "fsGroupChangePolicy": "OnRootMismatch",  # walking a full disk would take minutes
    "seccompProfile": {"type": "RuntimeDefault"},
}
SECRET_MODE: Final = 0o440  # for the group, which is fsGroup's
_ANTI_AFFINITY: Final = "podAntiAffinity"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
POD_INDEX_ENV: Final[Manifest] = {
    "name": "POD_INDEX",
    "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{names.POD_INDEX_LABEL}']"}},
}


def manifest(
    api_version: str, kind: str, cluster: ClusterSpec, component: str, name: str, **body: Any
) -> Manifest:
    """An object of `cluster` that goes with it."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": cluster.namespace,
            "labels": names.labels(cluster.name, component),
            "ownerReferences": [owner_reference(cluster.identity)],
        },
        **body,
    }


def owner_reference(cluster: Identity) -> Manifest:
    """The reference that makes an object go with a BrokerCluster."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "BrokerCluster",
        "name": cluster.name,
        "uid": cluster.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def pods_of_operators(namespace: str) -> Manifest:
    """The operator's pods, as a source in a NetworkPolicy.

    Anybody can set the label in a namespace of his own; the namespace's name is set by Kubernetes.
    """
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "podSelector": {"matchLabels": {names.COMPONENT_LABEL: "operator"}},
    }


def digest(value: Any) -> str:
    """A short text that differs when `value` does."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def service(
    cluster: ClusterSpec, component: str, name: str, ports: Mapping[str, int], **spec: Any
) -> Manifest:
    """A Service over the pods of a component."""
    return manifest(
        "v1",
        "Service",
        cluster,
        component,
        name,
        spec={
            "selector": names.pod_labels(cluster.name, component),
            "ports": [
                {"name": port, "port": number, "targetPort": number, "protocol": "TCP"}
                for port, number in ports.items()
            ],
            **spec,
        },
    )


def headless_service(cluster: ClusterSpec, component: str, ports: Mapping[str, int]) -> Manifest:
    """Host names of the pods, ready or not: they have to find each other in order to become ready."""
    name = names.headless(cluster.name, component)
    return service(cluster, component, name, ports, clusterIP="None", publishNotReadyAddresses=True)


def disruption_budget(
    cluster: ClusterSpec, component: str, may_be_away: int, *, may_lose_unready: bool = False
) -> Manifest:
    """How many pods a drain of nodes may take at a time.

    Args:
        may_be_away: of those that may be missing, pods that are not ready count first.
        may_lose_unready: whether nothing is lost with the data of pods that are not ready: others lead all
            partitions, or none has ever served.
    """
    settings = cluster.zookeeper if component == names.ZOOKEEPER else cluster.brokers
    is_only_copy = settings.storage.type == "ephemeral" and not may_lose_unready
    return manifest(
        "policy/v1",
        "PodDisruptionBudget",
        cluster,
        component,
        names.workload(cluster.name, component),
        spec={
            "maxUnavailable": may_be_away,
            # A pod that is not ready serves nobody, and would hold its node. One that recovers its log loses
            # only time, if its data is on a volume or all of it is led elsewhere.
            "unhealthyPodEvictionPolicy": "IfHealthyBudget" if is_only_copy else "AlwaysAllow",
            "selector": {"matchLabels": names.pod_labels(cluster.name, component)},
        },
    )


def pull_secrets_of(settings: PodSettings, images: Images) -> list[Manifest]:
    """The Secrets with which a pod pulls images: those of the manifest, then those of the installation."""
    named = [dict(item) for item in settings.image_pull_secrets]
    present = {item.get("name") for item in named}
    return [*named, *({"name": name} for name in images.pull_secrets if name not in present)]


def placement(settings: PodSettings) -> Manifest:
    """Where a pod may run and how urgent it is, as a part of its spec."""
    result: Manifest = {
        "nodeSelector": settings.node_selector,
        "tolerations": list(settings.tolerations),
        "priorityClassName": settings.priority_class,
    }
    return {key: value for key, value in result.items() if value}


def placement_beside(settings: PodSettings) -> Manifest:
    """The same for pods that accompany those of `settings`: on the nodes where these may run.

    They neither avoid nor seek other pods, so of an affinity only that to nodes is theirs.
    """
    to_nodes = (settings.affinity or {}).get("nodeAffinity")
    return {**placement(settings), **({"affinity": {"nodeAffinity": to_nodes}} if to_nodes else {})}


def pulled(image: str, images: Images) -> Manifest:
    """An image and how it is pulled, as a part of a container."""
    return {"image": image, **({"imagePullPolicy": images.pull_policy} if images.pull_policy else {})}


def stateful_set(
    cluster: ClusterSpec,
    component: str,
    *,
    replicas: int,
    storage: Storage,
    template_size: str | None,
    settings: PodSettings,
    pull_secrets: Sequence[Manifest],
    annotations: Mapping[str, str],
    spread_required: bool,
    rack_label: str | None,
    grace_seconds: int,
    container: Manifest,
    data_path: str,
    config_path: str,
    secrets: Mapping[str, str] | None = None,
) -> Manifest:
    """A StatefulSet whose pods are replaced when we delete them, and never by itself (`OnDelete`).

    `template_size` is the size in the claim template that is there: the API server lets no one change it.
    `secrets` are the Secrets to mount, by their path.
    """
    name = names.workload(cluster.name, component)
    ephemeral = storage.type == "ephemeral"
    volumes: list[Manifest] = [
        {"name": "config", "configMap": {"name": name}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
    ]
    if ephemeral:
        volumes.append({"name": "data", "emptyDir": {"sizeLimit": storage.size}})
    mounts = [
        {"name": "data", "mountPath": data_path},
        {"name": "config", "mountPath": config_path, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    for number, (path, secret) in enumerate(sorted((secrets or {}).items())):
        source = {"secretName": secret, "defaultMode": SECRET_MODE}
        volumes.append({"name": f"secret-{number}", "secret": source})
        mounts.append({"name": f"secret-{number}", "mountPath": path, "readOnly": True})
    pod: Manifest = {
        "enableServiceLinks": False,
        # Named even so: taken out it would come back from its old name, which Kubernetes keeps filled.
        "serviceAccountName": settings.service_account or "default",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": grace_seconds,
        "securityContext": POD_SECURITY,
        "affinity": _affinity(settings.affinity or {}, _apart(cluster, component, spread_required)),
        "containers": [
            {
                **container,
                "securityContext": CONTAINER_SECURITY,
                "volumeMounts": mounts,
                "terminationMessagePolicy": "FallbackToLogsOnError",  # its last words, for the status
            }
        ],
        "volumes": volumes,
    }
    if rack_label is not None:
        pod["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": rack_label,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": names.pod_labels(cluster.name, component)},
            }
        ]
    pod |= placement(settings)
    if pull_secrets:
        pod["imagePullSecrets"] = list(pull_secrets)
    labels = {**settings.labels, **names.labels(cluster.name, component)}
    # Ours are requests to one pod, once. In the template each new pod would have them again, for ever.
    others = {
        name: text for name, text in settings.annotations.items() if not name.startswith(f"{names.GROUP}/")
    }
    spec: Manifest = {
        "serviceName": names.headless(cluster.name, component),
        "replicas": replicas,
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": names.pod_labels(cluster.name, component)},
        "template": {
            "metadata": {"labels": labels, "annotations": {**others, **annotations}},
            "spec": pod,
        },
    }
    if not ephemeral:
        retention = "Retain" if storage.keep else "Delete"
        spec["persistentVolumeClaimRetentionPolicy"] = {"whenDeleted": retention, "whenScaled": retention}
        spec["volumeClaimTemplates"] = [_claim_template(cluster, component, storage, template_size)]
    return manifest("apps/v1", "StatefulSet", cluster, component, name, spec=spec)


def _claim_template(
    cluster: ClusterSpec, component: str, storage: Storage, template_size: str | None
) -> Manifest:
    claim: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": template_size or storage.size}},
    }
    if storage.storage_class is not None:
        claim["storageClassName"] = storage.storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "labels": names.labels(cluster.name, component)},
        "spec": claim,
    }


def _affinity(requested: Mapping[str, Any], apart: Manifest) -> Manifest:
    """What the manifest requests, and `apart`. A podAntiAffinity in the manifest replaces a preference to be
    apart, and is added to a requirement.
    """
    affinity = {**apart, **requested}
    required = apart[_ANTI_AFFINITY].get(_REQUIRED)
    if required and _ANTI_AFFINITY in requested:
        own = requested[_ANTI_AFFINITY] or {}
        affinity[_ANTI_AFFINITY] = {**own, _REQUIRED: [*(own.get(_REQUIRED) or ()), *required]}
    return affinity


def _apart(cluster: ClusterSpec, component: str, required: bool) -> Manifest:
    """One pod of a component per node: always, or where there are enough nodes."""
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": names.pod_labels(cluster.name, component)},
    }
    if required:
        return {_ANTI_AFFINITY: {_REQUIRED: [term]}}
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {_ANTI_AFFINITY: {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
