"""The manifests of a BrokerCluster's ZooKeeper ensemble. Pure.

Membership is static: every server's name is in `zoo.cfg` from the beginning, and the number of servers is
immutable. Reconfiguration at run time has cost others their quorum.
"""

from __future__ import annotations

from typing import Final

from mainstem_operator.api import names
from mainstem_operator.api.clusters import ClusterSpec, Images
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

_DATA_PATH: Final = "/var/lib/zookeeper"
_CONFIG_PATH: Final = "/etc/zookeeper"
_GRACE_SECONDS: Final = 30
# Sessions are granted between 2 and 20 ticks unless told otherwise; brokers ask for some seconds.
# A follower that can't connect to its leader votes again after 10 ticks: a leader that was replaced while it
# was elected has another address, and the old one does not answer. To see that would take all of initLimit.
_ZOO_CFG: Final = """\
tickTime=1000
initLimit=60
connectToLearnerMasterLimit=10
syncLimit=10
minSessionTimeout=2000
maxSessionTimeout=60000
dataDir=/var/lib/zookeeper
clientPort=2181
maxClientCnxns=0
quorumListenOnAllIPs=true
admin.enableServer=false
4lw.commands.whitelist=ruok,srvr,mntr,srst
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
"""
_PORTS: Final = {
    "client": names.ZOOKEEPER_PORT,
    "peers": names.ZOOKEEPER_PEER_PORT,
    "election": names.ZOOKEEPER_ELECTION_PORT,
}


def zookeeper_manifests(
    cluster: ClusterSpec,
    images: Images,
    template_size: str | None,
    operator_namespace: str,
    *,
    may_lose_unready: bool = False,
) -> list[Manifest]:
    """Everything of the ensemble, in the order to apply it.

    Args:
        may_lose_unready: see `disruption_budget`.
    """
    spec, component = cluster.zookeeper, names.ZOOKEEPER
    config = {"zoo.cfg": zoo_cfg(cluster)}
    manifests = [
        manifest("v1", "ConfigMap", cluster, component, names.workload(cluster.name, component), data=config),
        headless_service(cluster, component, _PORTS),
        service(
            cluster,
            component,
            names.workload(cluster.name, component),
            {"client": names.ZOOKEEPER_PORT},
        ),
        # Also of one server alone: with 0, a drain of its node would wait for ever.
        disruption_budget(cluster, component, 1, may_lose_unready=may_lose_unready),
        stateful_set(
            cluster,
            component,
            replicas=spec.replicas,
            storage=spec.storage,
            template_size=template_size,
            settings=spec.pod,
            pull_secrets=pull_secrets_of(spec.pod, images),
            annotations={names.CONFIG_HASH: digest(config)},
            spread_required=False,
            rack_label=None,
            grace_seconds=_GRACE_SECONDS,
            container=_container(cluster, images),
            data_path=_DATA_PATH,
            config_path=_CONFIG_PATH,
        ),
    ]
    if cluster.network_policy:
        manifests.append(_policy(cluster, operator_namespace))
    return manifests


def zoo_cfg(cluster: ClusterSpec) -> str:
    """The configuration, the same for every server; which one it is, says `POD_INDEX`."""
    replicas = cluster.zookeeper.replicas
    if replicas == 1:
        return _ZOO_CFG
    servers = "".join(
        f"server.{index + 1}={names.pod_host(cluster.name, cluster.namespace, names.ZOOKEEPER, index)}"
        f":{names.ZOOKEEPER_PEER_PORT}:{names.ZOOKEEPER_ELECTION_PORT}\n"
        for index in range(replicas)
    )
    return _ZOO_CFG + servers


def connect_string(cluster: ClusterSpec) -> str:
    """`zookeeper.connect` of the brokers: every server by its own name."""
    return ",".join(
        f"{names.pod_host(cluster.name, cluster.namespace, names.ZOOKEEPER, index)}:{names.ZOOKEEPER_PORT}"
        for index in range(cluster.zookeeper.replicas)
    )


def _container(cluster: ClusterSpec, images: Images) -> Manifest:
    container: Manifest = {
        "name": names.ZOOKEEPER,
        **pulled(cluster.zookeeper.image or images.zookeeper, images),
        "env": [POD_INDEX_ENV],
        "ports": [{"name": name, "containerPort": port} for name, port in _PORTS.items()],
        "readinessProbe": _probe("ready", period_seconds=5, failures=3),
        "livenessProbe": _probe("live", period_seconds=10, failures=6),
    }
    if cluster.zookeeper.resources:
        container["resources"] = cluster.zookeeper.resources
    return container


def _probe(question: str, period_seconds: int, failures: int) -> Manifest:
    return {
        "exec": {"command": ["zookeeper-probe", question]},
        "periodSeconds": period_seconds,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _policy(cluster: ClusterSpec, operator_namespace: str) -> Manifest:
    """Brokers and the operator may connect to ZooKeeper, servers to each other, and no other pod."""
    peers = {"podSelector": {"matchLabels": names.pod_labels(cluster.name, names.ZOOKEEPER)}}
    brokers = {"podSelector": {"matchLabels": names.pod_labels(cluster.name, names.BROKER)}}
    operators = pods_of_operators(operator_namespace)
    return manifest(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        cluster,
        names.ZOOKEEPER,
        names.workload(cluster.name, names.ZOOKEEPER),
        spec={
            "podSelector": {"matchLabels": names.pod_labels(cluster.name, names.ZOOKEEPER)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "from": [peers],
                    "ports": [{"protocol": "TCP", "port": port} for port in _PORTS.values()],
                },
                {
                    "from": [brokers, operators],
                    "ports": [{"protocol": "TCP", "port": names.ZOOKEEPER_PORT}],
                },
            ],
        },
    )
