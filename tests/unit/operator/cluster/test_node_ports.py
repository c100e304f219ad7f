"""Brokers outside Kubernetes' network: each advertises the node port that its Service has (R25)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tests.support.fake_kubernetes import Kubernetes, Manifest
from tests.support.running_operator import RunningOperator, with_operator
from tests.unit.operator import snapshots
from tests.unit.operator.cluster.test_reconcile import cluster, pods

from mainstem_operator.api.clusters import ClusterSpec
from mainstem_operator.brokers.admin import Brokers
from mainstem_operator.cluster.broker_manifests import Placement, brokers_at_other_ports, config_hash
from mainstem_operator.snapshot import index_of

OUTSIDE = {"external": {"type": "NodePort", "host": "kafka.example.org"}}


def outside(replicas: int = 3) -> ClusterSpec:
    return snapshots.cluster(replicas, listeners=OUTSIDE)


def advertised(port: int) -> dict[str, str]:
    return {"advertised.listeners": f"INTERNAL://pod:9092,EXTERNAL://kafka.example.org:{port}"}


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ({0: advertised(31_000), 1: advertised(31_001)}, set()),
        ({0: advertised(31_000), 1: advertised(30_999)}, {1}),
        ({0: advertised(31_000)}, set()),
        ({0: advertised(31_000), 1: {"advertised.listeners": "INTERNAL://pod:9092"}}, {1}),
        ({0: {}, 1: advertised(31_001), 7: advertised(31_007)}, set()),
    ],
)
def test_a_broker_that_advertises_another_port_than_its_service_has_is_found(
    reported: dict[int, dict[str, str]], expected: set[int]
) -> None:
    placement = Placement({0: 31_000, 1: 31_001})
    assert brokers_at_other_ports(outside(), placement, reported) == expected
    assert brokers_at_other_ports(snapshots.cluster(), placement, reported) == set()


def test_node_ports_restart_not_all_brokers() -> None:
    before = config_hash(outside(), Placement({0: 31_000, 1: 31_001, 2: 31_002}))
    assert config_hash(outside(), Placement({0: 31_009, 1: 31_001, 2: 31_002})) == before
    assert config_hash(outside(4), Placement({0: 31_000, 1: 31_001, 2: 31_002, 3: 31_003})) == before


def start_with_files(kubernetes: Kubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let brokers advertise what is in their files as they start."""
    started: dict[int, str] = {}

    def start(pod: Manifest) -> bool:
        name = pod["metadata"]["name"]
        if "broker" in name:
            index = index_of(name)
            file = kubernetes.get("configmaps", "events-broker")["data"][f"broker-{index}.properties"]
            lines = dict(line.split("=", 1) for line in file.splitlines())
            started[index] = lines["advertised.listeners"]
        return True

    async def reported(_: Brokers, names: Iterable[str], brokers: Iterable[int]) -> dict[int, dict[str, str]]:
        return {index: dict.fromkeys(names, started[index]) for index in brokers if index in started}

    kubernetes.kubelet = start
    monkeypatch.setattr(Brokers, "file_settings", reported)


@with_operator
async def test_a_broker_whose_service_was_made_again_advertises_its_new_port(
    operator: RunningOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no other broker is restarted, nor is any when another one is added."""
    kubernetes = operator.kubernetes
    start_with_files(kubernetes, monkeypatch)
    manifest = cluster()
    manifest["spec"]["listeners"] = OUTSIDE
    kubernetes.apply(manifest)
    await operator.condition("brokerclusters", "events", "Stable", "True")
    before = pods(kubernetes, "broker")
    kubernetes.delete("services", "events-broker-1-external")
    kubernetes.set_ready("events-broker-0", True)
    await operator.until(lambda: pods(kubernetes, "broker") != before, "a restart")
    await operator.condition("brokerclusters", "events", "Stable", "True")
    after = pods(kubernetes, "broker")
    assert [name for name in before if after[name] != before[name]] == ["events-broker-1"]
    manifest["spec"]["brokers"]["replicas"] = 4
    kubernetes.apply(manifest)
    await operator.until(lambda: "events-broker-3" in pods(kubernetes, "broker"), "a fourth broker")
    await operator.condition("brokerclusters", "events", "Stable", "True")
    assert after.items() <= pods(kubernetes, "broker").items()
