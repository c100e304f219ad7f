"""The manifests of a Cluster, as they are applied: whole files to read, in `golden/`.

After a change that is meant, `pytest tests/unit/operator --rewrite-golden` writes them anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.operator.snapshots import cluster

from mainstem_operator.manifests import Manifest
from mainstem_operator.plan_brokers import (
    Placement,
    broker_manifests,
    broker_services,
    config_hash,
    racks_of,
)
from mainstem_operator.plan_zookeeper import zookeeper_manifests
from mainstem_operator.resources import ClusterSpec, Images, cluster_of

GOLDEN = Path(__file__).parent / "golden"
EXAMPLES = Path(__file__).parents[3] / "examples"


def example(name: str) -> ClusterSpec:
    manifest = yaml.safe_load((EXAMPLES / name).read_text())
    manifest["metadata"] |= {"namespace": "prod", "uid": "u-1", "generation": 1}
    return cluster_of(manifest)


def manifests(spec: ClusterSpec, placement: Placement) -> list[Manifest]:
    replicas = spec.brokers.replicas
    return [
        *zookeeper_manifests(spec, Images(), None),
        *broker_services(spec, replicas),
        *broker_manifests(spec, Images(), replicas, placement, None, 1),
    ]


CASES = {
    "cluster": (example("cluster.yaml"), Placement({})),
    "cluster-small": (example("cluster-small.yaml"), Placement({0: 30_001})),
    "cluster-racks": (
        cluster(
            2, brokers={"rack": {"nodeLabel": "zone"}, "spread": "Required", "storage": {"type": "local"}}
        ),
        Placement({}, {"node-2": "b", "node-1": "a"}),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_manifests_are_those_in_golden(name: str, request: pytest.FixtureRequest) -> None:
    text = yaml.safe_dump_all(manifests(*CASES[name]), sort_keys=False, width=110)
    path = GOLDEN / f"{name}.yaml"
    if request.config.getoption("--rewrite-golden", default=False):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", CASES)
def test_pods_meet_the_restricted_standard(name: str) -> None:
    for manifest in manifests(*CASES[name]):
        if manifest["kind"] != "StatefulSet":
            continue
        pod: dict[str, Any] = manifest["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod["automountServiceAccountToken"]
        for container in pod["containers"]:
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["readOnlyRootFilesystem"]
            assert not container["securityContext"]["allowPrivilegeEscalation"]


def test_no_volume_goes_with_its_cluster_unless_that_says_so() -> None:
    kept = broker_manifests(cluster(), Images(), 3, Placement({}), None, 1)[2]
    policy = kept["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert policy == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert "ownerReferences" not in kept["spec"]["volumeClaimTemplates"][0]["metadata"]


def test_brokers_are_restarted_for_settings_and_not_for_what_is_learned_of_racks_or_of_more_brokers() -> None:
    nowhere = Placement({})
    before = config_hash(cluster(), nowhere)
    assert config_hash(cluster(), Placement({}, {"node-1": "a"})) == before
    assert config_hash(cluster(4), nowhere) == before
    assert config_hash(cluster(brokers={"config": {"num.partitions": 7}}), nowhere) != before


BY_ZONE = cluster(brokers={"rack": {"nodeLabel": "zone"}})


def racks_file(nodes: Mapping[str, Mapping[str, str]] | None, config_map: Manifest | None = None) -> str:
    placement = Placement({}, racks_of(BY_ZONE, nodes, config_map))
    text: str = broker_manifests(BY_ZONE, Images(), 1, placement, None, 1)[0]["data"]["racks.properties"]
    return text


def test_the_racks_of_all_nodes_lie_beside_the_brokers_settings_in_an_order_of_their_own() -> None:
    """Also of nodes without a broker, for one may come to them; a node without the label is in no rack."""
    nodes = {"b.x": {"zone": "south-1"}, "a-1": {"zone": "n"}, "c": {"other": "n"}, "d": {"zone": ""}}
    assert racks_file(nodes) == racks_file(dict(reversed(nodes.items()))) == "a-1=n\nb.x=south-1\n"
    assert racks_file({}) == ""


def test_where_nodes_may_not_be_asked_for_the_racks_that_were_known_stay() -> None:
    """The file is there in any case: without it brokers would not start."""
    known = {"data": {"racks.properties": "a-1=n\nb.x=south-1\n"}}
    assert racks_file(None, known) == known["data"]["racks.properties"]
    assert racks_file(None) == ""


def test_pods_look_up_their_nodes_rack_by_a_template_of_their_own_and_only_where_one_is_asked_for() -> None:
    """Pods that were made before see the same settings, and could not look anything up."""
    placement = Placement({}, {"a-1": "n"})
    config_map, _, workload = broker_manifests(BY_ZONE, Images(), 1, placement, None, 1)[:3]
    container = workload["spec"]["template"]["spec"]["containers"][0]
    assert container["args"][1:] == [
        "--override",
        "broker.rack=${file:/etc/mainstem/racks.properties:${env:NODE_NAME}}",
    ]
    assert "NODE_NAME" in {item["name"] for item in container["env"]}
    assert "broker.rack" not in config_map["data"]["broker-0.properties"]
    config_map, _, workload = broker_manifests(cluster(), Images(), 1, Placement({}), None, 1)[:3]
    container = workload["spec"]["template"]["spec"]["containers"][0]
    assert len(container["args"]) == 1
    assert "NODE_NAME" not in {item["name"] for item in container["env"]}
    assert list(config_map["data"]) == ["broker-0.properties"]


def test_the_claim_template_keeps_the_size_it_was_made_with() -> None:
    grown = cluster(brokers={"storage": {"size": "20Gi"}})
    found = broker_manifests(grown, Images(), 3, Placement({}), "10Gi", 1)[2]
    template = found["spec"]["volumeClaimTemplates"][0]
    assert template["spec"]["resources"]["requests"]["storage"] == "10Gi"


def test_a_service_account_that_is_taken_out_is_the_default_again() -> None:
    """By server-side apply alone it would stay: Kubernetes keeps a copy in `serviceAccount`."""
    for pod, name in (({"serviceAccountName": "someone"}, "someone"), ({}, "default")):
        made = manifests(cluster(3, brokers={"pod": pod}), Placement({}))
        accounts = [
            item["spec"]["template"]["spec"]["serviceAccountName"]
            for item in made
            if item["kind"] == "StatefulSet" and item["metadata"]["name"].endswith("-broker")
        ]
        assert accounts == [name]
