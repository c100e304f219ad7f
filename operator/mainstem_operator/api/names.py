"""What things are called: API group, labels, annotations, and the objects of a BrokerCluster. Pure."""

from __future__ import annotations

import hashlib
from typing import Final

from mainstem_operator.api.whole_numbers import is_whole_number

GROUP: Final = "mainstem.dev"
VERSION: Final = "v1beta1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
CLUSTERS: Final = "brokerclusters"
TOPICS: Final = "topics"
GROUPS: Final = "consumergroups"
USERS: Final = "users"

FIELD_MANAGER: Final = "mainstem-operator"
FINALIZER: Final = f"{GROUP}/topic"
USER_FINALIZER: Final = f"{GROUP}/user"

# Labels.
CLUSTER_LABEL: Final = f"{GROUP}/cluster"
TOPIC_LABEL: Final = f"{GROUP}/load-of"  # the name of the CronJob, on all that a load makes
USER_LABEL: Final = f"{GROUP}/user"  # on the Secret of a User
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
POD_INDEX_LABEL: Final = "apps.kubernetes.io/pod-index"  # Kubernetes 1.28 and later put it on the pods
REVISION_LABEL: Final = "controller-revision-hash"
BROKER: Final = "broker"
ZOOKEEPER: Final = "zookeeper"
LOADER: Final = "loader"
RESIDENT_LOADER: Final = "resident-loader"

# Reasons of conditions, when a reconciliation did not come to its end:
INTERNAL_ERROR: Final = "InternalError"  # the operator has a defect
KUBERNETES_REFUSED: Final = "KubernetesRefused"  # it may not read or write what it needs
BROKERS_REFUSED: Final = "KafkaError"  # brokers answer with an error

# Annotations that people set.
PAUSE: Final = f"{GROUP}/pause-reconciliation"  # "true": deletions are still honoured
PLAN_ONLY: Final = f"{GROUP}/plan-only"  # "true": the plan is shown in the status and not carried out
RESTART: Final = (
    f"{GROUP}/restart"  # a new text on a BrokerCluster: all its brokers; "true" on a pod: that one
)
REPLACE_AUTHORITY: Final = f"{GROUP}/replace-authority"  # a new text: new keys for both authorities
AUTHORITY_OVERLAP: Final = f"{GROUP}/authority-overlap"  # how long old and new ones are trusted, such as 12h
ADOPT_SECRETS: Final = (
    f"{GROUP}/adopt-secrets"  # on a BrokerCluster or User: the uids of Secrets without an owner to take over
)
SCALE_DOWN_ANYWAY: Final = f"{GROUP}/scale-down-anyway"  # "true": brokers go though they hold replicas
MANAGED: Final = f"{GROUP}/managed"  # "false" on a Topic: it is left alone, and so is the topic when it goes

# Annotations that the operator sets.
WATCHED: Final = f"{GROUP}/watched-namespaces"  # on the operator's Lease: see `runtime/left_namespaces.py`
DEFINITIONS_VERSION: Final = f"{GROUP}/definitions-version"  # on the definitions in crds/; grows with them
APPLIED_HASH: Final = f"{GROUP}/applied-hash"  # of the manifest as applied: no write when it is the same
CONFIG_HASH: Final = f"{GROUP}/config-hash"  # of the settings that a pod started with
CREDENTIALS_HASH: Final = f"{GROUP}/credentials-hash"  # of the Secret of the store that a pod started with
TEMPLATE_HASH: Final = (
    f"{GROUP}/template-hash"  # on a run of a load: of the template that it was created from
)
RESTART_DONE: Final = f"{GROUP}/restart-request"  # the value of RESTART that a pod started with
PASSWORD_SET: Final = f"{GROUP}/password-set"  # on a User's Secret: which of its passwords brokers have
REMOVED_USERS: Final = (
    f"{GROUP}/removed-users"  # on a BrokerCluster: deleted Users whose ACLs are to go before ACLs count again
)
SECURITY_STEP: Final = (
    f"{GROUP}/security-step"  # how secured a broker's pod started, see cluster/security_steps.py
)
DELETION_BEGUN: Final = f"{GROUP}/deletion-begun"  # on a StatefulSet: the uid of what is deleted, and when
LOST_SINCE: Final = f"{GROUP}/node-lost-since"  # on a claim: when the node of its volume was first missed

CLUSTER_DOMAIN: Final = "cluster.local"  # the kubelet's default; addresses end in .svc and hold in any domain
BROKERS_PORT: Final = 9091  # between the brokers of a secured BrokerCluster, and for the operator
CLIENT_PORT: Final = 9092
LOADS_PORT: Final = 9090  # for the loads of a secured BrokerCluster that has a warehouse
EXTERNAL_PORT: Final = 9094
HTTP_PORT: Final = 9404
ZOOKEEPER_PORT: Final = 2181
ZOOKEEPER_PEER_PORT: Final = 2888
ZOOKEEPER_ELECTION_PORT: Final = 3888

_STATEFUL_SET_NAME_MAX: Final = 52
"""Kubernetes labels the pods with the name and up to eleven characters more, and a label has 63."""


def workload(cluster: str, component: str) -> str:
    """The StatefulSet, ConfigMap and PodDisruptionBudget of a component."""
    name = f"{cluster}-{component}"
    if len(name) <= _STATEFUL_SET_NAME_MAX:
        return name
    digest = hashlib.sha256(cluster.encode()).hexdigest()[:8]
    rest = _STATEFUL_SET_NAME_MAX - len(component) - len(digest) - 2
    return f"{cluster[:rest].rstrip('-')}-{digest}-{component}"


def headless(cluster: str, component: str) -> str:
    return f"{workload(cluster, component)}-headless"


def bootstrap(cluster: str) -> str:
    return f"{cluster}-bootstrap"


def external(cluster: str, broker: int) -> str:
    return f"{cluster}-broker-{broker}-external"


def broker_of_external(cluster: str, service: str) -> int | None:
    """The broker whose `external` Service has this name; None if it is another one."""
    index = service.removeprefix(f"{cluster}-broker-").removesuffix("-external")
    return int(index) if is_whole_number(index) and external(cluster, int(index)) == service else None


def trusted_certificates(cluster: str) -> str:
    """The Secret with `ca.crt`, the certificates that clients have to trust; it holds nothing secret."""
    return f"{cluster}-ca"


def cluster_authority(cluster: str) -> str:
    """The Secret of the authority that issues certificates for brokers and the operator."""
    return f"{cluster}-cluster-authority"


def clients_authority(cluster: str) -> str:
    """The Secret of the authority that issues certificates for Users."""
    return f"{cluster}-clients-authority"


def broker_certificate(cluster: str) -> str:
    """The Secret with the key of the brokers, which their pods mount."""
    return f"{cluster}-broker-tls"


def operator_certificate(cluster: str) -> str:
    """The Secret with the key that the operator shows to brokers."""
    return f"{cluster}-operator-tls"


def load_identity(workload: str) -> str:
    """The Secret with the key by which the pods of a load's CronJob, or of the resident loader's StatefulSet,
    log in. The chart's policies know its name.
    """
    return f"{workload}-identity"


def throttles(cluster: str) -> str:
    """The ConfigMap that notes how moves of replicas are limited; it is there while they are."""
    return f"{cluster}-throttles"


def pod(cluster: str, component: str, index: int) -> str:
    return f"{cluster}-{component}-{index}"


def claim(cluster: str, component: str, index: int) -> str:
    """The PersistentVolumeClaim that the StatefulSet makes for a pod."""
    return f"data-{workload(cluster, component)}-{index}"


def pod_host(cluster: str, namespace: str, component: str, index: int) -> str:
    """The host name of a pod, which stays the same when the pod is replaced."""
    return f"{pod(cluster, component, index)}.{headless(cluster, component)}.{namespace}.svc"


def bootstrap_servers(cluster: str, namespace: str, port: int = CLIENT_PORT) -> str:
    return f"{bootstrap(cluster)}.{namespace}.svc:{port}"


def pod_labels(cluster: str, component: str) -> dict[str, str]:
    """The labels that select the pods of a component; they never change."""
    return {
        "app.kubernetes.io/name": "mainstem",
        "app.kubernetes.io/instance": cluster,
        COMPONENT_LABEL: component,
        CLUSTER_LABEL: cluster,
    }


def labels(cluster: str, component: str) -> dict[str, str]:
    """The labels of every object made for a BrokerCluster."""
    return {**pod_labels(cluster, component), MANAGED_BY_LABEL: FIELD_MANAGER}


def address(host: str, port: int) -> str:
    """A host, name or IP address, with a port; IPv6 addresses are in brackets (RFC 3986)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
