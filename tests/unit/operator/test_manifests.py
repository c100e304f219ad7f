"""The manifests of a Cluster, as they are applied: whole files to read, in `golden/`.

After a change that is meant, `pytest tests/unit/operator --rewrite-golden` writes them anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.operator.snapshots import cluster

from mainstem_operator.manifests import Manifest
from mainstem_operator.plan_brokers import Placement, broker_manifests, broker_services, config_hash
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
    "cluster": (example("cluster.yaml"), Placement({}, {})),
    "cluster-small": (example("cluster-small.yaml"), Placement({0: 30_001}, {})),
    "cluster-racks": (
        cluster(
            2, brokers={"rack": {"nodeLabel": "zone"}, "spread": "Required", "storage": {"type": "local"}}
        ),
        Placement({}, {0: "a", 1: "b"}),
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
    kept = broker_manifests(cluster(), Images(), 3, Placement({}, {}), None, 1)[2]
    policy = kept["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert policy == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert "ownerReferences" not in kept["spec"]["volumeClaimTemplates"][0]["metadata"]


def test_brokers_are_restarted_for_settings_and_not_for_what_is_learned_of_racks_or_of_more_brokers() -> None:
    nowhere = Placement({}, {})
    before = config_hash(cluster(), nowhere)
    assert config_hash(cluster(), Placement({}, {0: "a"})) == before
    assert config_hash(cluster(4), nowhere) == before
    assert config_hash(cluster(brokers={"config": {"num.partitions": 7}}), nowhere) != before


def test_the_claim_template_keeps_the_size_it_was_made_with() -> None:
    grown = cluster(brokers={"storage": {"size": "20Gi"}})
    found = broker_manifests(grown, Images(), 3, Placement({}, {}), "10Gi", 1)[2]
    template = found["spec"]["volumeClaimTemplates"][0]
    assert template["spec"]["resources"]["requests"]["storage"] == "10Gi"


def test_a_service_account_that_is_taken_out_is_the_default_again() -> None:
    """By server-side apply alone it would stay: Kubernetes keeps a copy in `serviceAccount`."""
    for pod, name in (({"serviceAccountName": "someone"}, "someone"), ({}, "default")):
        made = manifests(cluster(3, brokers={"pod": pod}), Placement({}, {}))
        accounts = [
            item["spec"]["template"]["spec"]["serviceAccountName"]
            for item in made
            if item["kind"] == "StatefulSet" and item["metadata"]["name"].endswith("-broker")
        ]
        assert accounts == [name]
