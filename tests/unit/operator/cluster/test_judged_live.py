"""What a schema can't know and the live cluster does is told in a condition; nothing is half done (R24, R25).

What Kubernetes itself refuses: tests/e2e/test_judged_live.py.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.support.connected_kube import connected
from tests.support.fake_kubernetes import Manifest
from tests.support.manifests import resource
from tests.support.running_operator import RunningOperator, with_operator
from tests.unit.operator.snapshots import cluster, component, report, snapshot, with_claim, with_pod

from mainstem_operator.api.clusters import ClusterSpec, Images
from mainstem_operator.api.conditions import Condition
from mainstem_operator.api.fields import InvalidSpec, Object
from mainstem_operator.api.groups import group_of
from mainstem_operator.api.timestamps import moment
from mainstem_operator.api.topics import TopicSpec, topic_of
from mainstem_operator.cluster.disks import other_ensemble
from mainstem_operator.cluster.moves import Drain
from mainstem_operator.cluster.status import Work, cluster_conditions, cluster_status, plan_lines
from mainstem_operator.kubernetes.observe import Observer
from mainstem_operator.runtime.alone import Alone
from mainstem_operator.runtime.context import Context
from mainstem_operator.snapshot import NO_END, Component, Snapshot, pod_of
from mainstem_operator.topics.loads.apply import bring_about_loads
from mainstem_operator.topics.loads.runs import load_conditions, run_of

NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)


def manifest(kind: str, name: str, **spec: Any) -> Manifest:
    return resource(kind, name, spec)


def conditions(
    seen: Snapshot, of: ClusterSpec | None = None, work: Work | None = None
) -> dict[str, Condition]:
    result = cluster_conditions(of or cluster(), seen, work or Work(), None)
    return {condition.type: condition for condition in result}


def without_ready_pods(seen: Component, **changes: Any) -> Component:
    for index in seen.pods:
        seen = with_pod(seen, index, ready=False, **changes)
    return seen


# --- BrokerClusters ---


def test_a_cluster_is_not_stable_while_a_broker_that_was_drained_still_ends() -> None:
    """R25: its StatefulSet is smaller already."""
    ending = replace(snapshot(), brokers=component("broker", 4, replicas=3))
    stable = conditions(ending)["Stable"]
    assert (stable.holds, stable.reason, stable.message) == (False, "Draining", "Brokers 3 go.")
    assert conditions(snapshot())["Stable"].holds


@with_operator
async def test_what_kubernetes_refuses_of_a_cluster_is_reported_and_nothing_is_done(
    operator: RunningOperator,
) -> None:
    refusal = 'StatefulSet.apps "events-broker" is invalid: spec.template.spec.tolerations[0]: Invalid value'

    def refuses(applied: Manifest) -> str:
        name = applied["metadata"]["name"]
        spec = applied.get("spec", {}).get("template", {}).get("spec", {})
        return refusal if name == "events-broker" and "tolerations" in spec else ""

    kubernetes = operator.kubernetes
    kubernetes.refuses = refuses
    wrong = {"replicas": 3, "pod": {"tolerations": [{"operator": "Perhaps"}]}}
    kubernetes.apply(manifest("BrokerCluster", "events", brokers=wrong))
    condition = await operator.condition("brokerclusters", "events", "Ready", "False", "NoBrokers")
    assert refusal in condition["message"]
    assert not [key for key in kubernetes.objects if key[0] in ("services", "statefulsets", "configmaps")]
    # Once it is mended all goes on.
    kubernetes.apply(manifest("BrokerCluster", "events", brokers={"replicas": 3, "pod": {"tolerations": []}}))
    await operator.condition("brokerclusters", "events", "Stable", "True")
    # A BrokerCluster that runs is left as it is, and serves on.
    before = {key: item["metadata"]["resourceVersion"] for key, item in kubernetes.objects.items()}
    kubernetes.apply(manifest("BrokerCluster", "events", brokers={**wrong, "config": {"num.partitions": 7}}))
    condition = await operator.condition("brokerclusters", "events", "Stable", "False", "Refused")
    assert condition["message"].startswith("Kubernetes refused objects of the manifest")
    assert refusal in condition["message"]
    await operator.condition("brokerclusters", "events", "Ready", "True")
    after = {key: item["metadata"]["resourceVersion"] for key, item in kubernetes.objects.items()}
    assert {key for key in after if before.get(key) != after[key]} == {
        ("brokerclusters", "default", "events")
    }


@with_operator
async def test_a_node_port_that_can_not_be_had_is_reported_before_brokers_are_made(
    operator: RunningOperator,
) -> None:
    """Ports out of range, or taken, are refused in earnest only: a dry run gives none out."""
    words = "spec.ports[0].nodePort: Invalid value: 2000: provided port is not in the valid range."
    kubernetes = operator.kubernetes

    def refuses(applied: Manifest) -> str:
        earnest = kubernetes.requests[-1][0] == "PATCH"
        return words if earnest and applied["metadata"]["name"].endswith("-external") else ""

    kubernetes.refuses = refuses
    listeners = {"external": {"type": "NodePort", "nodePortFirst": 2000}}
    kubernetes.apply(manifest("BrokerCluster", "events", brokers={"replicas": 3}, listeners=listeners))
    condition = await operator.condition("brokerclusters", "events", "Stable", "False", "Refused")
    assert words in condition["message"]
    assert kubernetes.find("statefulsets") == []
    kubernetes.refuses = lambda applied: ""
    kubernetes.annotate("brokerclusters", "events", {"look": "now"})
    await operator.condition("brokerclusters", "events", "Stable", "True")


def test_pods_that_kubernetes_does_not_make_are_reported() -> None:
    """A priority class or a service account that is not there: only the StatefulSet's events say so."""
    none = replace(component("broker"), pods={})
    result = conditions(replace(snapshot(), brokers=none, reports={}))
    assert result["Ready"].reason == "NoBrokers"
    assert "`kubectl describe statefulset events-broker` says why" in result["Ready"].message


def test_a_pod_that_fits_nowhere_is_reported() -> None:
    words = "0/4 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    brokers = without_ready_pods(component("broker"), unschedulable=words, node=None)
    result = conditions(replace(snapshot(), brokers=brokers, reports={}))
    assert result["Ready"] == Condition(
        "Ready", False, "NoBrokers", f"No broker is ready. events-broker-0: {words}"
    )
    assert words in result["Stable"].message
    servers = with_pod(component("zookeeper"), 2, ready=False, unschedulable=words, node=None)
    result = conditions(replace(snapshot(), zookeeper=servers, modes={0: "leader", 1: "follower"}))
    assert f"events-zookeeper-2: {words}" in result["CoordinationHealthy"].message


def test_an_image_that_is_nowhere_is_reported() -> None:
    words = "ImagePullBackOff: Back-off pulling image nowhere/broker"
    brokers = without_ready_pods(component("broker"))
    for seen, pod in (
        (replace(snapshot(), brokers=without_ready_pods(brokers, trouble=words)), "events-broker-0"),
        (
            replace(
                snapshot(),
                brokers=brokers,
                zookeeper=without_ready_pods(component("zookeeper"), trouble=words),
            ),
            "events-zookeeper-0",
        ),
    ):
        assert f"{pod}: {words}" in conditions(seen)["Ready"].message


def test_the_last_words_of_a_broker_that_ends_are_reported() -> None:
    """A setting that it can't read, too little memory: Kubernetes itself would speak of the back-off only."""
    sentence = "mainstem broker: Invalid value 'many' for num.partitions: it must be of type int."
    pod = pod_of(
        {
            "metadata": {"name": "events-broker-0"},
            "status": {
                "containerStatuses": [
                    {
                        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
                        "lastState": {"terminated": {"message": f"starting\n{sentence}\n"}},
                    }
                ]
            },
        },
        NOW,
    )
    assert pod.trouble == f"CrashLoopBackOff: {sentence}"
    brokers = replace(component("broker"), pods={0: pod})
    assert sentence in conditions(replace(snapshot(), brokers=brokers, reports={}))["Ready"].message


@pytest.mark.parametrize("component_name", ["broker", "zookeeper"])
def test_a_pod_that_does_not_end_with_its_node_is_reported(component_name: str) -> None:
    """As when a node is switched off: Kubernetes waits for the node, as long as it knows it."""
    ended = "2026-11-21T11:58:00Z"
    item = {
        "metadata": {"name": f"events-{component_name}-1", "deletionTimestamp": ended},
        "spec": {"nodeName": "node-7"},
    }
    words = (
        f"Its pod events-{component_name}-1 was to end by {ended}, and the node node-7 does not report that"
        " it has. If the node will not come back: `kubectl delete node node-7`."
    )
    late, early = pod_of(item, moment(ended) + NO_END), pod_of(item, moment(ended))
    assert (late.trouble, early.trouble) == (words, "")
    seen = component(component_name)
    seen = replace(seen, pods={**seen.pods, 1: late})
    if component_name == "zookeeper":
        lost = replace(snapshot(), zookeeper=seen, modes={0: "leader", 2: "follower"})
        assert words in conditions(lost)["CoordinationHealthy"].message
        return
    lost = replace(snapshot(), brokers=seen, reports={0: report(0), 2: report(2)})
    assert words in conditions(lost)["Stable"].message
    status = cluster_status(cluster(), lost, Work(), None)
    (broker,) = (item for item in status["brokers"] if item["id"] == 1)
    assert (broker["state"], broker["message"]) == ("Stopping", words)


def test_volumes_that_can_not_have_their_new_size_are_reported() -> None:
    words = "data-events-broker-0 has 10Gi, and volumes don't shrink."
    result = conditions(snapshot(), work=Work(unresizable=words))["StorageUnresizable"]
    assert (result.holds, result.message) == (True, words)


def test_claims_that_somebody_has_deleted_are_reported_while_pods_hold_them() -> None:
    """Their data is there until the pods are restarted, and can still be copied."""
    brokers = with_claim(with_claim(component("broker"), 1, deleting=True), 2, deleting=True)
    found = conditions(replace(snapshot(), brokers=brokers))["ClaimsDeleting"]
    assert "data-events-broker-1, data-events-broker-2." in found.message
    for changes in ({"deleting": True}, {"node": None}):
        going = with_pod(with_pod(brokers, 1, **changes), 2, **changes)
        assert "ClaimsDeleting" not in conditions(replace(snapshot(), brokers=going))
    assert "ClaimsDeleting" not in conditions(snapshot())


def test_a_rack_label_that_no_node_has_is_reported() -> None:
    spec = cluster(brokers={"rack": {"nodeLabel": "zone"}})
    nodes = {"node-0": {"zone": "a"}, "node-1": {}, "node-2": {"zone": ""}, "node-3": {}}
    result = conditions(replace(snapshot(), nodes=nodes), spec)["RackUnknown"]
    assert result.message == "Nodes without the label zone, so that replicas are not spread: node-1, node-2."
    labelled = {name: {"zone": name} for name in nodes}
    assert "RackUnknown" not in conditions(replace(snapshot(), nodes=labelled), spec)
    assert "RackUnknown" not in conditions(replace(snapshot(), nodes=nodes))


# --- Loads ---

WAREHOUSE = {"location": "s3://lake/events"}


async def test_a_load_that_kubernetes_refuses_holds_up_no_other_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(applied: Manifest) -> str:
        wrong = applied.get("spec", {}).get("timeZone") == "Europe/Nowhere"
        return "spec.timeZone: Invalid value: unknown time zone Europe/Nowhere" if wrong else ""

    async with connected(tmp_path, monkeypatch) as (kubernetes, kube):
        kubernetes.refuses = refuses
        context = cast(Any, Context)(kube, cast(Observer, None), None, Images(), None, None, "ops")
        there = manifest("BrokerCluster", "events", brokers={"replicas": 3}, warehouse=WAREHOUSE)
        pairs: list[tuple[TopicSpec, Object]] = [
            (
                topic_of(
                    manifest(
                        "Topic",
                        name,
                        clusterRef={"name": "events"},
                        warehouse={"schedule": "@hourly", "timeZone": zone},
                    )
                ),
                {},
            )
            for name, zone in (("first", "Europe/Nowhere"), ("second", "Europe/Berlin"))
        ]
        result = await bring_about_loads(context, there, pairs, [], Alone())
        (loaded,) = result["default", "first"].conditions
        assert (loaded.holds, loaded.reason) == (False, "CannotLoad")
        assert "unknown time zone Europe/Nowhere" in loaded.message
        assert [job["metadata"]["name"] for job in kubernetes.find("cronjobs")] == ["second-load"]


def test_a_load_whose_pod_can_not_start_is_reported() -> None:
    """A Secret or a claim that is not there keeps a pod waiting for hours, and no Job ends."""
    job = {"metadata": {"name": "clicks-load-1", "creationTimestamp": "2026-11-21T11:00:00Z"}}
    run = run_of(job, "", 'CreateContainerConfigError: secret "lake" not found')
    topic = topic_of(
        manifest("Topic", "clicks", clusterRef={"name": "events"}, warehouse={"schedule": "@hourly"})
    )
    (loaded,) = load_conditions(topic, None, [run], None, NOW)
    assert (loaded.holds, loaded.reason) == (False, "LoadCannotStart")
    assert loaded.message.endswith('CreateContainerConfigError: secret "lake" not found')


# --- Groups ---


@with_operator
async def test_a_group_of_a_cluster_that_is_not_there_says_so(operator: RunningOperator) -> None:
    operator.kubernetes.apply(manifest("ConsumerGroup", "billing", clusterRef={"name": "nowhere"}))
    result = await operator.condition("consumergroups", "billing", "Ready", "False", "ClusterNotFound")
    assert result["message"] == "There is no BrokerCluster nowhere in the namespace default."


def test_a_day_that_the_month_does_not_have_is_reported() -> None:
    reset = {"requestId": "1", "to": "datetime", "datetime": "2026-02-30T00:00:00Z"}
    with pytest.raises(InvalidSpec, match=r"spec\.reset\.datetime must be like 2026"):
        group_of(manifest("ConsumerGroup", "billing", clusterRef={"name": "events"}, reset=reset))


def test_what_is_not_as_in_the_manifest_is_named_where_nothing_is_left_to_do() -> None:
    stable = conditions(snapshot(), work=Work(unresizable="data-events-broker-0 can't grow."))["Stable"]
    assert stable.holds
    assert stable.message == "Nothing is left to do. What is not as in the manifest, say StorageUnresizable."


def test_why_a_broker_is_not_removed_is_reported() -> None:
    drain = Drain((2,), {}, {})
    work = Work(drain=drain, not_moved="events-broker-1 is not ready.")
    assert conditions(snapshot(), cluster(2), work)["Stable"].message == (
        "Brokers 2 go. events-broker-1 is not ready."
    )
    assert plan_lines(work)[0]["waitingFor"] == "events-broker-1 is not ready."


SECURED = {"clients": [{"name": "tls", "port": 9093}, {"name": "internal", "port": 9092, "tls": False}]}


def test_settings_that_the_operator_replaces_are_named() -> None:
    """They would be dropped in silence."""
    config = {"listener.name.tls.ssl.client.auth": "requested", "num.partitions": 3}
    found = conditions(snapshot(), cluster(brokers={"config": config}, listeners=SECURED))
    assert "listener.name.tls.ssl.client.auth." in found["SettingsReplaced"].message
    assert "num.partitions" not in found["SettingsReplaced"].message
    same = {"listener.name.tls.ssl.client.auth": "none"}
    assert "SettingsReplaced" not in conditions(
        snapshot(), cluster(brokers={"config": same}, listeners=SECURED)
    )


@pytest.mark.parametrize(
    ("replicas", "claims", "before"),
    [(3, 3, 0), (3, 0, 0), (3, 2, 0), (1, 1, 0), (1, 3, 3), (3, 1, 1), (5, 3, 3), (1, 2, 3)],
)
def test_an_ensemble_does_not_begin_with_the_volumes_of_one_of_another_size(
    replicas: int, claims: int, before: int
) -> None:
    """R43: servers without the data would be a quorum, and every topic would be lost."""
    there = Component(None, {}, component("zookeeper", claims).claims)
    text = other_ensemble(cluster(zookeeper={"replicas": replicas}), there)
    assert bool(text) == bool(before)
    if before:
        assert f"volumes of {before} ZooKeeper servers" in text
    running = component("zookeeper", max(claims, 1))
    assert other_ensemble(cluster(zookeeper={"replicas": replicas}), running) == ""
