"""BrokerClusters and snapshots for tests of plans and proofs: all is well unless a test says otherwise."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from mainstem_operator.api.clusters import ClusterSpec, cluster_of
from mainstem_operator.kubernetes.node_affinity import HOSTNAME, NodeAffinity, Requirement, Term
from mainstem_operator.snapshot import BrokerReport, Claim, Component, Pod, Snapshot, Workload

NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)


def cluster(replicas: int = 3, annotations: Mapping[str, str] | None = None, **spec: Any) -> ClusterSpec:
    metadata = {
        "name": "events",
        "namespace": "prod",
        "uid": "u-1",
        "generation": 4,
        "annotations": dict(annotations or {}),
    }
    brokers = {"replicas": replicas, **spec.pop("brokers", {})}
    return cluster_of({"metadata": metadata, "spec": {"brokers": brokers, **spec}})


def pod(component: str, index: int, **changes: Any) -> Pod:
    result = Pod(
        name=f"events-{component}-{index}",
        uid=f"{component}-{index}",
        index=index,
        node=f"node-{index}",
        host=f"10.0.0.{index}",
        ready=True,
        deleting=False,
        revision="new",
        config_hash="hash",
        restart_done="",
        restart_asked=False,
        unschedulable="",
        trouble="",
        created=NOW,
    )
    return replace(result, **changes)


def tied_to(node: str | None) -> NodeAffinity | None:
    """The affinity of a local volume on `node`."""
    if node is None:
        return None
    return NodeAffinity((Term((Requirement(HOSTNAME, "In", (node,)),), ()),))


def claim(component: str, index: int, **changes: Any) -> Claim:
    result = Claim(
        name=f"data-events-{component}-{index}",
        uid=f"claim-{component}-{index}",
        index=index,
        bound=True,
        deleting=False,
        affinity=tied_to(f"node-{index}"),
        size="10Gi",
        lost_since=None,
    )
    return replace(result, **_with_affinity(changes))


def _with_affinity(changes: dict[str, Any]) -> dict[str, Any]:
    """`node` stands for the affinity of a volume on that node."""
    return {
        "affinity" if name == "node" else name: tied_to(value) if name == "node" else value
        for name, value in changes.items()
    }


def report(broker: int, brokers: Iterable[int] = (0, 1, 2), **changes: Any) -> BrokerReport:
    result = BrokerReport(
        broker=broker,
        cluster_id="abc",
        running=True,
        controller=0,
        live_brokers=frozenset(brokers),
        catching_up=0,
        under_replicated=0,
        offline=0,
        leaders=4,
        replicas=9,
        may_stop=True,
        blockers=(),
    )
    return replace(result, **changes)


def component(name: str, count: int = 3, replicas: int | None = None) -> Component:
    return Component(
        Workload(f"events-{name}", count if replicas is None else replicas, "new", True, "10Gi"),
        {index: pod(name, index) for index in range(count)},
        {index: claim(name, index) for index in range(count)},
    )


def snapshot(brokers: int = 3, **changes: Any) -> Snapshot:
    result = Snapshot(
        now=NOW,
        zookeeper=component("zookeeper"),
        brokers=component("broker", brokers),
        reports={index: report(index, range(brokers)) for index in range(brokers)},
        modes={0: "follower", 1: "leader", 2: "follower"},
        nodes={f"node-{index}": {HOSTNAME: f"node-{index}"} for index in range(10)},
        racks={},
    )
    return replace(result, **changes)


def with_pod(seen: Component, index: int, **changes: Any) -> Component:
    return replace(seen, pods={**seen.pods, index: replace(seen.pods[index], **changes)})


def with_claim(seen: Component, index: int, **changes: Any) -> Component:
    return replace(
        seen, claims={**seen.claims, index: replace(seen.claims[index], **_with_affinity(changes))}
    )


def with_report(seen: Snapshot, index: int, **changes: Any) -> Snapshot:
    return replace(seen, reports={**seen.reports, index: replace(seen.reports[index], **changes)})


def without_report(seen: Snapshot, index: int) -> Snapshot:
    return replace(seen, reports={key: value for key, value in seen.reports.items() if key != index})
