"""The manifests of a BrokerCluster, as they are applied: a whole file to read in `golden/`, and how those of
others differ from it.

After a change that is meant, `pytest tests/unit/operator --rewrite-golden` writes them anew.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.operator.snapshots import cluster

from mainstem_broker.properties_format import read_properties
from mainstem_operator.api import names
from mainstem_operator.api.clusters import ClusterSpec, Images, cluster_of
from mainstem_operator.cluster.broker_manifests import (
    Placement,
    broker_manifests,
    broker_services,
    config_hash,
    racks_of,
    settings_filed,
    settings_of,
)
from mainstem_operator.cluster.zookeeper_manifests import zookeeper_manifests
from mainstem_operator.kubernetes.manifests import Manifest, disruption_budget

GOLDEN = Path(__file__).parent / "golden"
EXAMPLES = Path(__file__).parents[4] / "examples"


def example(name: str, **brokers: Any) -> ClusterSpec:
    manifest = yaml.safe_load((EXAMPLES / name).read_text())
    manifest["metadata"] |= {"name": "events", "namespace": "prod", "uid": "u-1", "generation": 1}
    manifest["spec"]["brokers"] |= brokers
    return cluster_of(manifest)


def manifests(spec: ClusterSpec, placement: Placement) -> list[Manifest]:
    replicas = spec.brokers.replicas
    return [
        *zookeeper_manifests(spec, Images(), None, "operators"),
        *broker_services(spec, replicas),
        *broker_manifests(spec, Images(), replicas, placement, None, 1),
    ]


CASES = {
    "cluster.yaml": (example("cluster.yaml"), Placement({})),
    "cluster-small.diff": (example("cluster-small.yaml"), Placement({0: 30_001})),
    "cluster-racks.diff": (
        example("cluster.yaml", rack={"nodeLabel": "zone"}, spread="Required", storage={"type": "local"}),
        Placement({}, {"node-2": "b", "node-1": "a"}),
    ),
}


def text_of(name: str) -> str:
    return yaml.safe_dump_all(manifests(*CASES[name]), sort_keys=False, width=110)


@pytest.mark.parametrize("name", CASES)
def test_manifests_are_those_in_golden(name: str, request: pytest.FixtureRequest) -> None:
    text, path = text_of(name), GOLDEN / name
    if path.suffix == ".diff":
        whole = text_of("cluster.yaml").splitlines(keepends=True)
        text = "".join(list(difflib.unified_diff(whole, text.splitlines(keepends=True), n=1))[2:])
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


def test_brokers_are_restarted_for_settings_and_not_for_what_is_learned_of_racks_or_of_more_brokers() -> None:
    nowhere = Placement({})
    before = config_hash(cluster(), nowhere)
    assert config_hash(cluster(), Placement({}, {"node-1": "a"})) == before
    assert config_hash(cluster(4), nowhere) == before
    assert config_hash(cluster(brokers={"config": {"num.partitions": 7}}), nowhere) != before
    assert config_hash(cluster(brokers={"config": {"num.partitons": 7}}), nowhere) == before, "it is ignored"


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
    expected = {"data": {"racks.properties": "a-1=n\nb.x=south-1\n"}}
    assert racks_file(None, expected) == expected["data"]["racks.properties"]
    assert racks_file(None) == ""


def test_the_claim_template_keeps_the_size_it_was_made_with() -> None:
    grown = cluster(brokers={"storage": {"size": "20Gi"}})
    result = broker_manifests(grown, Images(), 3, Placement({}), "10Gi", 1)[2]
    template = result["spec"]["volumeClaimTemplates"][0]
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


def test_all_pods_pull_their_images_with_the_secrets_of_the_manifest_and_of_the_installation() -> None:
    spec = cluster(brokers={"pod": {"imagePullSecrets": [{"name": "own"}]}})
    images = Images(pull_secrets=("registry", "own"))
    brokers = broker_manifests(spec, images, 3, Placement({}), None, 1)[2]
    servers = next(
        it for it in zookeeper_manifests(spec, images, None, "operators") if it["kind"] == "StatefulSet"
    )
    assert brokers["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "own"}, {"name": "registry"}]
    assert servers["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "registry"}, {"name": "own"}]


def test_brokers_that_are_being_drained_still_count_for_the_replicas_that_must_be_in_sync() -> None:
    """Fewer required before the drain would let a record be acknowledged by a broker alone."""
    shrunk = cluster(2)
    draining, drained = Placement({}, brokers=3), Placement({}, brokers=2)
    assert settings_of(shrunk, 0, draining)["min.insync.replicas"] == "2"
    assert config_hash(shrunk, drained) != config_hash(shrunk, draining)
    assert settings_of(shrunk, 0, drained)["min.insync.replicas"] == "1"


@pytest.mark.parametrize(
    ("storage", "policy"), [({"size": "1Gi"}, "AlwaysAllow"), ({"type": "ephemeral"}, "IfHealthyBudget")]
)
def test_a_pod_that_is_not_ready_does_not_hold_its_node_unless_its_data_is_there_only(
    storage: dict[str, Any], policy: str
) -> None:
    events = cluster(brokers={"storage": storage}, zookeeper={"storage": storage})
    for component in ("broker", "zookeeper"):
        spec = disruption_budget(events, component, 0)["spec"]
        assert (spec["maxUnavailable"], spec["unhealthyPodEvictionPolicy"]) == (0, policy)
    led = disruption_budget(events, "broker", 0, may_lose_unready=True)["spec"]
    assert led["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_an_annotation_for_one_pod_is_not_in_the_template_of_all() -> None:
    """Each new pod would be restarted again, for ever."""
    own = {"mainstem.dev/restart": "true", "example.com/team": "data"}
    manifests = broker_manifests(
        cluster(brokers={"pod": {"annotations": own}}), Images(), 1, Placement({}, None, 1), None, 1
    )
    (workload,) = [item for item in manifests if item["kind"] == "StatefulSet"]
    annotations = workload["spec"]["template"]["metadata"]["annotations"]
    assert "mainstem.dev/restart" not in annotations
    assert annotations["example.com/team"] == "data"


def test_the_definition_refuses_annotations_of_the_operator_in_pod_templates() -> None:
    """A real API server evaluates the rule; here it has only to be there, for both components."""
    definition = yaml.safe_load((Path(__file__).parents[4] / "crds/brokercluster.yaml").read_text())
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for component in ("brokers", "zookeeper"):
        pod = spec["properties"][component]["properties"]["pod"]["properties"]
        rules = [item["rule"] for item in pod["annotations"]["x-kubernetes-validations"]]
        assert "self.all(key, !key.startsWith('mainstem.dev/'))" in rules


@pytest.mark.parametrize("value", ["ends\\", r"a\nb\tc", r"RULE:^CN=(.*?)\.x$/$1/", r"\\host\share"])
def test_backslashes_in_settings_reach_brokers_as_they_are_in_the_manifest(value: str) -> None:
    spec = cluster(brokers={"config": {"audit.log.topic": value}})
    config_map = broker_manifests(spec, Images(), 1, Placement({}), None, 1)[0]
    wanted = settings_of(spec, 0, Placement({}))
    assert read_properties(config_map["data"]["broker-0.properties"]) == wanted
    assert settings_filed(config_map) == wanted


APART = {
    "topologyKey": "kubernetes.io/hostname",
    "labelSelector": {"matchLabels": names.pod_labels("events", names.BROKER)},
}
TO_NODES: dict[str, Any] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
FROM_OTHERS = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "noisy"}}}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": APART}]}


@pytest.mark.parametrize(
    ("spread", "affinity", "rules"),
    [
        ("Preferred", {"nodeAffinity": TO_NODES}, PREFERRED),
        ("Required", {"nodeAffinity": TO_NODES}, {REQUIRED: [APART]}),
        ("Preferred", {"podAntiAffinity": {REQUIRED: [FROM_OTHERS]}}, {REQUIRED: [FROM_OTHERS]}),
        ("Required", {"podAntiAffinity": {REQUIRED: [FROM_OTHERS]}}, {REQUIRED: [FROM_OTHERS, APART]}),
        ("Preferred", {"podAntiAffinity": {}}, {}),
        ("Required", {"podAntiAffinity": None}, {REQUIRED: [APART]}),
    ],
)
def test_brokers_are_kept_apart_beside_the_affinity_of_the_manifest(
    spread: str, affinity: dict[str, Any], rules: dict[str, Any]
) -> None:
    spec = cluster(brokers={"spread": spread, "pod": {"affinity": affinity}})
    (workload,) = (
        item
        for item in broker_manifests(spec, Images(), 3, Placement({}), None, 1)
        if item["kind"] == "StatefulSet"
    )
    assert workload["spec"]["template"]["spec"]["affinity"] == {**affinity, "podAntiAffinity": rules}
