"""Which pods may reach those of loads, also in a namespace that lets nothing in by default. Pure.

The operator reads the page of the resident loader. Executors connect to their driver, and it and they fetch
blocks from each other, at ports that Spark chooses, so these rules name none. Nothing else connects to a
load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mainstem_operator.api import names
from mainstem_operator.api.clusters import ClusterSpec
from mainstem_operator.kubernetes.manifests import Manifest, manifest, pods_of_operators

EXECUTORS: Final = {"spark-role": "executor", "spark-app-name": "mainstem-loader"}
"""Spark sets them, and executors have no labels of ours. The name is the loader's, so that executors of other
applications in the namespace keep what they may reach."""
_DRIVERS: Final = {"app.kubernetes.io/name": "mainstem", names.COMPONENT_LABEL: names.LOADER}
"""Of all BrokerClusters of the namespace: their executors cannot be told apart."""


def load_policies(cluster: ClusterSpec, operator_namespace: str) -> list[Manifest]:
    """The NetworkPolicies of the BrokerCluster's loads; none without a warehouse."""
    if not cluster.network_policy or cluster.warehouse is None:
        return []
    page = [{"protocol": "TCP", "port": names.HTTP_PORT}]
    drivers, executors = _pods(_DRIVERS), _pods(EXECUTORS)
    resident, driver, executor = load_policy_names(cluster.name)
    return [
        _policy(
            cluster,
            resident,
            names.pod_labels(cluster.name, names.RESIDENT_LOADER),
            {"from": [pods_of_operators(operator_namespace)], "ports": page},
        ),
        _policy(cluster, driver, names.pod_labels(cluster.name, names.LOADER), {"from": [executors]}),
        _policy(cluster, executor, EXECUTORS, {"from": [drivers, executors]}),
    ]


def load_policy_names(cluster: str) -> tuple[str, str, str]:
    """Of the resident loader, of drivers and of executors.

    That of drivers is not called after their component: a BrokerCluster `x-resident` would give it the name
    that the resident loader's has in the BrokerCluster `x`.
    """
    return (
        names.workload(cluster, names.RESIDENT_LOADER),
        names.workload(cluster, "driver"),
        names.workload(cluster, "executor"),
    )


def _pods(labels: Mapping[str, str]) -> Manifest:
    return {"podSelector": {"matchLabels": dict(labels)}}


def _policy(
    cluster: ClusterSpec, name: str, pods: Mapping[str, str], *ingress: Mapping[str, Sequence[Any]]
) -> Manifest:
    spec = {**_pods(pods), "policyTypes": ["Ingress"], "ingress": list(ingress)}
    return manifest("networking.k8s.io/v1", "NetworkPolicy", cluster, names.LOADER, name, spec=spec)
