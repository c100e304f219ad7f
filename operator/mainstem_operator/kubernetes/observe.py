"""Takes one snapshot of a BrokerCluster from the API server, its brokers and its ZooKeeper servers."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mainstem_operator.api import names
from mainstem_operator.api.clusters import ClusterSpec
from mainstem_operator.api.fields import Object
from mainstem_operator.brokers.admin import Brokers
from mainstem_operator.brokers.errors import BrokersRefused, BrokersUnreachable
from mainstem_operator.brokers.health import Health
from mainstem_operator.kubernetes.client import Kube, Refused
from mainstem_operator.snapshot import BrokerReport, Component, Snapshot, component_of


class Addresses(Protocol):
    """Where brokers and servers are reached; tests have them elsewhere."""

    def bootstrap_servers(self, namespace: str, cluster: str) -> str: ...

    def secured_servers(self, namespace: str, cluster: str) -> str: ...

    def broker(self, namespace: str, cluster: str, index: int) -> tuple[str, int]: ...

    def zookeeper(self, namespace: str, cluster: str, index: int) -> tuple[str, int]: ...


class ServiceAddresses:
    """The names that Kubernetes gives to pods and Services."""

    def bootstrap_servers(self, namespace: str, cluster: str) -> str:
        return names.bootstrap_servers(cluster, namespace)

    def secured_servers(self, namespace: str, cluster: str) -> str:
        return names.bootstrap_servers(cluster, namespace, names.BROKERS_PORT)

    def broker(self, namespace: str, cluster: str, index: int) -> tuple[str, int]:
        return names.pod_host(cluster, namespace, names.BROKER, index), names.HTTP_PORT

    def zookeeper(self, namespace: str, cluster: str, index: int) -> tuple[str, int]:
        return names.pod_host(cluster, namespace, names.ZOOKEEPER, index), names.ZOOKEEPER_PORT


@dataclass(frozen=True, slots=True)
class Look:
    """A snapshot, and the objects that are there, by kind and name, to compare manifests with."""

    snapshot: Snapshot
    objects: Mapping[tuple[str, str], Object]


_CONFIGURATION_KINDS = (
    ("v1", "ConfigMap"),
    ("v1", "Service"),
    ("policy/v1", "PodDisruptionBudget"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
)


class Observer:
    """Takes snapshots. Everything is read again each time: plans must not rest on old observations."""

    def __init__(self, kube: Kube, health: Health, addresses: Addresses) -> None:
        self._kube = kube
        self._health = health
        self._addresses = addresses

    async def look(self, cluster: ClusterSpec, brokers: Brokers) -> Look:
        """The BrokerCluster as it is now.

        Raises:
            Refused: the API server does not tell.
        """
        selector = {names.CLUSTER_LABEL: cluster.name}
        # First, so that whatever happens to pods after they are listed changes the version that was seen.
        workloads = await self._kube.find("apps/v1", "StatefulSet", cluster.namespace, selector)
        by_kind: dict[str, Sequence[Object]] = {"StatefulSet": workloads}
        kinds = [*_CONFIGURATION_KINDS, ("v1", "Pod"), ("v1", "PersistentVolumeClaim")]
        lists = await asyncio.gather(
            *(self._kube.find(version, kind, cluster.namespace, selector) for version, kind in kinds)
        )
        by_kind |= {kind: objects for (_, kind), objects in zip(kinds, lists, strict=True)}
        nodes = await self._nodes()
        now = dt.datetime.now(dt.UTC)
        zookeeper = await self._component(cluster, names.ZOOKEEPER, by_kind, now)
        members = await self._component(cluster, names.BROKER, by_kind, now)
        reports, modes = await asyncio.gather(
            self._reports(cluster, members), self._modes(cluster, zookeeper)
        )
        # A client would look for brokers for half a minute: the Service that it asks has only those ready.
        racks = await self._racks(cluster, brokers) if reports and members.ready else {}
        return Look(
            Snapshot(
                now=now,
                zookeeper=zookeeper,
                brokers=members,
                reports=reports,
                modes=modes,
                nodes=nodes,
                racks=racks,
            ),
            {
                (kind, item["metadata"]["name"]): item
                for kind in ("StatefulSet", *(kind for _, kind in _CONFIGURATION_KINDS))
                for item in by_kind[kind]
            },
        )

    async def loads(self, pod_ip: str) -> Any:
        """What the resident loader in a pod says of its loads; None if it does not answer."""
        return await self._health.loads(pod_ip, names.HTTP_PORT)

    async def _nodes(self) -> dict[str, Mapping[str, str]] | None:
        try:
            nodes = await self._kube.find("v1", "Node", None)
        except Refused as refused:
            if refused.status == 403:
                return None
            raise
        return {node["metadata"]["name"]: node["metadata"].get("labels") or {} for node in nodes}

    async def _component(
        self,
        cluster: ClusterSpec,
        component: str,
        by_kind: Mapping[str, Sequence[Object]],
        now: dt.datetime,
    ) -> Component:
        """The objects of one component; volumes are read only where a pod is in trouble."""
        workloads, pods = by_kind["StatefulSet"], by_kind["Pod"]
        claims = by_kind["PersistentVolumeClaim"]
        observed = component_of(cluster.identity, component, workloads, pods, claims, {}, now)
        healthy = {pod.index for pod in observed.ready}
        doubtful = {claim.name for claim in observed.claims.values() if claim.index not in healthy}
        volume_names = [
            item["spec"]["volumeName"]
            for item in claims
            if item["metadata"]["name"] in doubtful and (item.get("spec") or {}).get("volumeName")
        ]
        if not volume_names:
            return observed
        volumes = await self._volumes(volume_names)
        return component_of(cluster.identity, component, workloads, pods, claims, volumes, now)

    async def _volumes(self, volume_names: list[str]) -> dict[str, Object]:
        try:
            volumes = [await self._kube.get("v1", "PersistentVolume", None, name) for name in volume_names]
        except Refused as refused:
            if refused.status == 403:
                return {}
            raise
        return {volume["metadata"]["name"]: volume for volume in volumes if volume is not None}

    async def _reports(self, cluster: ClusterSpec, members: Component) -> dict[int, BrokerReport]:
        running = [pod.index for pod in members.pods.values() if pod.scheduled]
        addresses = [self._addresses.broker(cluster.namespace, cluster.name, index) for index in running]
        reports = await asyncio.gather(*(self._health.report(host, port) for host, port in addresses))
        return {
            index: report
            for index, report in zip(running, reports, strict=True)
            if report is not None and report.broker == index
        }

    async def _modes(self, cluster: ClusterSpec, zookeeper: Component) -> dict[int, str]:
        running = [pod.index for pod in zookeeper.pods.values() if pod.scheduled]
        addresses = [self._addresses.zookeeper(cluster.namespace, cluster.name, index) for index in running]
        modes = await asyncio.gather(*(self._health.zookeeper_mode(host, port) for host, port in addresses))
        return {index: mode for index, mode in zip(running, modes, strict=True) if mode is not None}

    async def _racks(self, cluster: ClusterSpec, brokers: Brokers) -> dict[int, str | None]:
        if cluster.brokers.rack_label is None:
            return {}
        try:
            return await brokers.racks()
        except (BrokersRefused, BrokersUnreachable):
            return {}
