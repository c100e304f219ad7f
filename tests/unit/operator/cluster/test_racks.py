"""Brokers find the racks of their nodes in their files: they start in them, and follow them (R25)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.fake_kubernetes import Kubernetes, Manifest
from tests.support.running_operator import RunningOperator, with_operator
from tests.unit.operator.cluster.test_reconcile import cluster, pods

from mainstem_broker.config.properties import parse_properties
from mainstem_broker.config.references import filled_in
from mainstem_operator.brokers.admin import Brokers
from mainstem_operator.snapshot import index_of

Racks = dict[int, str | None]
BY_ZONE = {"nodeLabel": "zone"}


@pytest.fixture
def racks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Racks:
    """The racks that brokers run with; `start_in` fills it."""
    results: Racks = {}

    async def told(_: Brokers) -> Racks:
        return dict(results)

    monkeypatch.setattr(Brokers, "racks", told)
    return results


def start_in(kubernetes: Kubernetes, racks: Racks, directory: Path) -> None:
    """Let pods of brokers start as they do: with the present racks, looked up as the broker does it."""

    def start(pod: Manifest) -> bool:
        name = pod["metadata"]["name"]
        if "broker" in name:
            for file, text in kubernetes.get("configmaps", "events-broker")["data"].items():
                (directory / file).write_text(text.replace("/etc/mainstem", str(directory)))
            settings, option, override = pod["spec"]["containers"][0]["args"]
            assert (Path(settings).name, option) == ("broker-$(POD_INDEX).properties", "--override")
            override = override.replace("/etc/mainstem", str(directory))
            racks[index_of(name)] = filled_in(parse_properties(override), environment(pod)).get("broker.rack")
        return True

    kubernetes.kubelet = start


def environment(pod: Manifest) -> dict[str, str]:
    """What kubelet fills in of the node."""
    variables = pod["spec"]["containers"][0]["env"]
    paths = {item["name"]: item["valueFrom"]["fieldRef"]["fieldPath"] for item in variables}
    return {name: pod["spec"]["nodeName"] for name, path in paths.items() if path == "spec.nodeName"}


def restarts(kubernetes: Kubernetes) -> list[str]:
    return [item["message"] for item in kubernetes.find("events") if item["reason"] == "RestartingPod"]


async def look(operator: RunningOperator) -> None:
    """Wait until the operator has looked once more, told by an event that changes nothing."""
    requested = len(operator.kubernetes.requests)
    operator.kubernetes.set_ready("events-broker-0", True)
    await operator.until(lambda: len(operator.kubernetes.requests) > requested + 15, "a look")


@with_operator
async def test_brokers_of_a_new_cluster_start_in_their_racks_and_none_is_restarted(
    operator: RunningOperator, racks: Racks, tmp_path: Path
) -> None:
    """Nor are any when nodes come, go, or say that they are alive, which is not even written down (R25)."""
    kubernetes = operator.kubernetes
    start_in(kubernetes, racks, tmp_path)
    kubernetes.add_node("node-0", zone="a")
    kubernetes.add_node("node-1", zone="b")
    kubernetes.add_node("node-2")
    kubernetes.apply(cluster(rack=BY_ZONE))
    await operator.condition("brokerclusters", "events", "Stable", "True")
    await operator.condition("brokerclusters", "events", "RackUnknown", "True")
    assert racks == {0: "a", 1: "b", 2: None}
    before = pods(kubernetes, "broker")
    writes = len(kubernetes.writes)
    kubernetes.update_node("node-1", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    await look(operator)
    assert kubernetes.writes[writes:] == []
    kubernetes.add_node("later", zone="c")
    kubernetes.annotate("brokerclusters", "events", {"look": "now"})
    file = "racks.properties"
    await operator.until(
        lambda: (
            kubernetes.get("configmaps", "events-broker")["data"][file] == "later=c\nnode-0=a\nnode-1=b\n"
        ),
        "the later node",
    )
    await look(operator)
    assert pods(kubernetes, "broker") == before
    assert restarts(kubernetes) == []


@pytest.mark.parametrize("is_known", [True, False], ids=["relabelled", "known-late"])
@with_operator
async def test_a_broker_is_restarted_once_when_it_did_not_start_in_its_nodes_rack(
    operator: RunningOperator, racks: Racks, tmp_path: Path, is_known: bool
) -> None:
    """The node's label changes, or the broker was faster than the news of its node."""
    kubernetes = operator.kubernetes
    start_in(kubernetes, racks, tmp_path)
    for index in range(3):
        if index != 1 or is_known:
            kubernetes.add_node(f"node-{index}", zone=f"z{index}")
    kubernetes.apply(cluster(rack=BY_ZONE))
    await operator.condition("brokerclusters", "events", "Stable", "True")
    assert racks == {0: "z0", 1: "z1" if is_known else None, 2: "z2"}
    if is_known:
        kubernetes.update_node("node-1", {"metadata": {"labels": {"zone": "z9"}}})
    else:
        kubernetes.add_node("node-1", zone="z9")
    kubernetes.annotate("brokerclusters", "events", {"look": "now"})
    await operator.until(lambda: racks[1] == "z9", "the other rack")
    await operator.condition("brokerclusters", "events", "Stable", "True")
    await look(operator)
    (restart,) = restarts(kubernetes)
    assert restart.startswith("events-broker-1: its node is in rack z9")
    assert racks == {0: "z0", 1: "z9", 2: "z2"}
