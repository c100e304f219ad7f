"""What things are called: API group, labels, annotations, and the objects of a Cluster. Pure."""

from __future__ import annotations

from typing import Final

GROUP: Final = "mainstem.dev"
VERSION: Final = "v1beta1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
CLUSTERS: Final = "clusters"
TOPICS: Final = "topics"
GROUPS: Final = "consumergroups"

FIELD_MANAGER: Final = "mainstem-operator"
FINALIZER: Final = f"{GROUP}/topic"

# Labels.
CLUSTER_LABEL: Final = f"{GROUP}/cluster"
TOPIC_LABEL: Final = f"{GROUP}/load-of"  # the name of the CronJob, on all that a load makes
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
POD_INDEX_LABEL: Final = "apps.kubernetes.io/pod-index"  # Kubernetes 1.28 and later put it on the pods
REVISION_LABEL: Final = "controller-revision-hash"
BROKER: Final = "broker"
ZOOKEEPER: Final = "zookeeper"
LOADER: Final = "loader"

# Annotations that people set.
PAUSE: Final = f"{GROUP}/pause-reconciliation"  # "true": deletions are still honoured
PLAN_ONLY: Final = f"{GROUP}/plan-only"  # "true": the plan is shown in the status and not carried out
RESTART: Final = f"{GROUP}/restart"  # a new text on a Cluster: all its brokers; "true" on a pod: that one
SCALE_DOWN_ANYWAY: Final = f"{GROUP}/scale-down-anyway"  # "true": brokers go though they hold replicas
MANAGED: Final = f"{GROUP}/managed"  # "false" on a Topic: it is left alone, and so is the topic when it goes

# Annotations that the operator sets.
DEFINITIONS_VERSION: Final = f"{GROUP}/definitions-version"  # on the definitions in crds/; grows with them
APPLIED_HASH: Final = f"{GROUP}/applied-hash"  # of the manifest as applied: no write when it is the same
CONFIG_HASH: Final = f"{GROUP}/config-hash"  # of the settings that a pod started with
RESTART_DONE: Final = f"{GROUP}/restart-request"  # the value of RESTART that a pod started with
LOST_SINCE: Final = f"{GROUP}/node-lost-since"  # on a claim: when the node of its volume was first missed

CLIENT_PORT: Final = 9092
EXTERNAL_PORT: Final = 9094
HTTP_PORT: Final = 9404
ZOOKEEPER_PORT: Final = 2181
ZOOKEEPER_PEER_PORT: Final = 2888
ZOOKEEPER_ELECTION_PORT: Final = 3888


def workload(cluster: str, component: str) -> str:
    """The StatefulSet, ConfigMap and PodDisruptionBudget of a component."""
    return f"{cluster}-{component}"


def headless(cluster: str, component: str) -> str:
    return f"{cluster}-{component}-headless"


def bootstrap(cluster: str) -> str:
    return f"{cluster}-bootstrap"


def external(cluster: str, broker: int) -> str:
    return f"{cluster}-broker-{broker}-external"


def throttles(cluster: str) -> str:
    """The ConfigMap that notes how moves of replicas are limited; it is there while they are."""
    return f"{cluster}-throttles"


def pod(cluster: str, component: str, index: int) -> str:
    return f"{cluster}-{component}-{index}"


def claim(cluster: str, component: str, index: int) -> str:
    """The PersistentVolumeClaim that the StatefulSet makes for a pod."""
    return f"data-{cluster}-{component}-{index}"


def pod_host(cluster: str, namespace: str, component: str, index: int) -> str:
    """The host name of a pod, which stays the same when the pod is replaced."""
    return f"{pod(cluster, component, index)}.{headless(cluster, component)}.{namespace}.svc"


def bootstrap_servers(cluster: str, namespace: str) -> str:
    return f"{bootstrap(cluster)}.{namespace}.svc:{CLIENT_PORT}"


def pod_labels(cluster: str, component: str) -> dict[str, str]:
    """The labels that select the pods of a component; they never change."""
    return {
        "app.kubernetes.io/name": "mainstem",
        "app.kubernetes.io/instance": cluster,
        COMPONENT_LABEL: component,
        CLUSTER_LABEL: cluster,
    }


def labels(cluster: str, component: str) -> dict[str, str]:
    """The labels of every object made for a Cluster."""
    return {**pod_labels(cluster, component), "app.kubernetes.io/managed-by": FIELD_MANAGER}
