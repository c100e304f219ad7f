"""The whole operator over a BrokerCluster, against a fake API server: it comes up, it is rolled, it rests."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from tests.support.fake_kubernetes import Kubernetes, Manifest
from tests.support.manifests import resource
from tests.support.running_operator import RunningOperator, with_operator
from tests.unit.operator.played_cluster import CLICKS, PlayedCluster
from tests.unit.operator.played_context import brought_up

from mainstem_operator.brokers.admin import Brokers


def cluster(replicas: int = 3, **brokers: Any) -> Manifest:
    return resource("BrokerCluster", "events", {"brokers": {"replicas": replicas, **brokers}})


def pods(kubernetes: Kubernetes, component: str) -> dict[str, str]:
    """Pods and their uids."""
    return {
        pod["metadata"]["name"]: pod["metadata"]["uid"]
        for pod in kubernetes.find("pods")
        if pod["metadata"]["labels"]["app.kubernetes.io/component"] == component
    }


def restarted(kubernetes: Kubernetes, pod: str, before: dict[str, str]) -> bool:
    return pods(kubernetes, "broker")[pod] != before[pod]


@with_operator
async def test_a_cluster_comes_up_and_then_nothing_is_written(operator: RunningOperator) -> None:
    kubernetes = await brought_up(operator, cluster())
    await operator.condition("brokerclusters", "events", "Ready", "True")
    assert list(pods(kubernetes, "broker")) == ["events-broker-0", "events-broker-1", "events-broker-2"]
    assert len(pods(kubernetes, "zookeeper")) == 3
    status = kubernetes.get("brokerclusters", "events")["status"]
    assert status["bootstrapServers"] == "events-bootstrap.default.svc:9092"
    assert [broker["state"] for broker in status["brokers"]] == ["Running"] * 3
    # An idle look: told by an event that changes nothing, it asks, and writes nothing (R25).
    writes = len(kubernetes.writes)
    requested = len(kubernetes.requests)
    kubernetes.set_ready("events-broker-0", True)
    await operator.until(lambda: len(kubernetes.requests) > requested + 15, "a look")
    assert kubernetes.writes[writes:] == []
    assert {method for method, _ in kubernetes.requests[requested:]} == {"GET"}  # no rehearsals either


@with_operator
async def test_brokers_wait_for_the_quorum(operator: RunningOperator) -> None:
    kubernetes = operator.kubernetes
    kubernetes.kubelet = lambda pod: "broker" in pod["metadata"]["name"]
    kubernetes.apply(cluster())
    await operator.condition("brokerclusters", "events", "CoordinationHealthy", "False", "NoQuorum")
    assert pods(kubernetes, "broker") == {}
    for name in pods(kubernetes, "zookeeper"):
        kubernetes.set_ready(name, True)
    await operator.condition("brokerclusters", "events", "Ready", "True")


@with_operator
async def test_racks_are_not_asked_for_while_there_is_no_broker(operator: RunningOperator) -> None:
    """A client would look for brokers for half a minute, and each look would take as long."""
    operator.kubernetes.kubelet = lambda pod: False
    operator.kubernetes.apply(cluster(rack={"nodeLabel": "zone"}))
    await operator.condition("brokerclusters", "events", "CoordinationHealthy", "False", "NoQuorum")


@with_operator
async def test_racks_are_not_asked_for_while_brokers_answer_and_none_is_ready(
    operator: RunningOperator,
) -> None:
    """As when the others' nodes are lost: one runs, and waits for ZooKeeper's quorum."""
    kubernetes = operator.kubernetes
    kubernetes.kubelet = lambda pod: "broker" not in pod["metadata"]["name"]
    operator.health.starting = {f"events-broker-{index}" for index in range(3)}
    kubernetes.apply(cluster(rack={"nodeLabel": "zone"}))
    await operator.condition("brokerclusters", "events", "Healthy", "False", "BrokersMissing")


@with_operator
async def test_changed_settings_roll_one_broker_at_a_time_with_the_controller_last(
    operator: RunningOperator,
) -> None:
    kubernetes = await brought_up(operator, cluster())
    before = pods(kubernetes, "broker")
    kubernetes.kubelet = lambda pod: False  # new pods become ready when this test says so
    kubernetes.apply(cluster(config={"num.partitions": 7}))
    for name in ("events-broker-1", "events-broker-2", "events-broker-0"):
        await operator.until(partial(restarted, kubernetes, name, before), f"{name} restarted")
        await operator.condition("brokerclusters", "events", "Progressing", "True")
        changed = [pod for pod, uid in pods(kubernetes, "broker").items() if uid != before[pod]]
        assert name in changed
        kubernetes.set_ready(name, True)
    await operator.condition("brokerclusters", "events", "Stable", "True")
    reasons = [event["message"] for event in kubernetes.find("events")]
    assert sum("its settings have changed" in reason for reason in reasons) == 3
    config = kubernetes.get("configmaps", "events-broker")["data"]["broker-0.properties"]
    assert "num.partitions=7\n" in config


@with_operator
async def test_a_broker_that_may_not_stop_is_not_stopped(operator: RunningOperator) -> None:
    kubernetes = await brought_up(operator, cluster())
    before = pods(kubernetes, "broker")
    operator.health.changes[1] = {"may_stop": False, "blockers": ("clicks-0: min.insync.replicas",)}
    kubernetes.apply(cluster(config={"num.partitions": 7}))
    condition = await operator.condition("brokerclusters", "events", "Stable", "False", "Rolling")
    assert "events-broker-1 may not stop now: clicks-0: min.insync.replicas" in condition["message"]
    assert pods(kubernetes, "broker") == before
    plan = kubernetes.get("brokerclusters", "events")["status"]["plan"]
    assert [line["target"] for line in plan] == ["events-broker-1", "events-broker-2", "events-broker-0"]
    operator.health.changes.clear()
    await operator.condition("brokerclusters", "events", "Stable", "True")


@with_operator
async def test_what_is_deleted_is_made_again(operator: RunningOperator) -> None:
    kubernetes = await brought_up(operator, cluster())
    lost = [
        ("configmaps", "events-broker"),
        ("services", "events-bootstrap"),
        ("statefulsets", "events-zookeeper"),
    ]
    for plural, name in lost:
        kubernetes.delete(plural, name)
    for plural, name in lost:
        await operator.until(lambda: bool(kubernetes.get(plural, name)), name)  # noqa: B023


@with_operator
async def test_a_paused_cluster_is_left_alone(operator: RunningOperator) -> None:
    kubernetes = await brought_up(operator, cluster())
    kubernetes.annotate("brokerclusters", "events", {"mainstem.dev/pause-reconciliation": "true"})
    await operator.condition("brokerclusters", "events", "Paused", "True")
    kubernetes.apply(cluster(replicas=4))
    await operator.condition("brokerclusters", "events", "Stable", "Unknown", "Paused")
    assert kubernetes.get("statefulsets", "events-broker")["spec"]["replicas"] == 3
    kubernetes.annotate("brokerclusters", "events", {"mainstem.dev/pause-reconciliation": None})
    await operator.until(lambda: len(pods(kubernetes, "broker")) == 4, "four brokers")


@with_operator
async def test_a_cluster_that_makes_no_sense_is_reported(operator: RunningOperator) -> None:
    operator.kubernetes.apply(cluster(config={"broker.id": 7}))
    condition = await operator.condition("brokerclusters", "events", "Ready", "False", "InvalidSpec")
    assert condition["message"] == "spec.brokers.config.broker.id is set by the operator: leave it out."
    assert operator.kubernetes.find("statefulsets") == []


@pytest.mark.parametrize(
    ("host", "shown"), [("kafka.example.org", "kafka.example.org"), ("2001:db8::1", "[2001:db8::1]")]
)
@with_operator
async def test_clients_outside_get_the_node_ports_of_brokers(
    operator: RunningOperator, monkeypatch: pytest.MonkeyPatch, host: str, shown: str
) -> None:
    async def silent(*_: Any) -> dict[int, dict[str, str]]:
        return {}

    monkeypatch.setattr(Brokers, "file_settings", silent)
    kubernetes = operator.kubernetes
    manifest = cluster()
    manifest["spec"]["listeners"] = {"external": {"type": "NodePort", "host": host}}
    kubernetes.apply(manifest)
    await operator.condition("brokerclusters", "events", "Stable", "True")
    service = kubernetes.get("services", "events-broker-1-external")
    port = service["spec"]["ports"][0]["nodePort"]
    settings = kubernetes.get("configmaps", "events-broker")["data"]["broker-1.properties"]
    assert f",EXTERNAL://{shown}:{port}\n" in settings
    outside = kubernetes.get("brokerclusters", "events")["status"]["externalBootstrapServers"]
    assert f"{shown}:{port}" in outside.split(",")
    del manifest["spec"]["listeners"]
    kubernetes.apply(manifest)
    await operator.until(
        lambda: ("services", "default", "events-broker-1-external") not in kubernetes.objects,
        "no service",
    )


def claim_uids(kubernetes: Kubernetes) -> dict[str, str]:
    position = kubernetes.find("persistentvolumeclaims")
    return {claim["metadata"]["name"]: claim["metadata"]["uid"] for claim in position}


def is_marked(kubernetes: Kubernetes, claim: str) -> bool:
    metadata = kubernetes.get("persistentvolumeclaims", claim)["metadata"]
    return "mainstem.dev/node-lost-since" in metadata["annotations"]


@with_operator
async def test_a_volume_of_a_lost_node_is_replaced_and_no_other(operator: RunningOperator) -> None:
    kubernetes = operator.kubernetes
    for index in range(3):
        kubernetes.add_node(f"node-{index}")
    kubernetes.apply(cluster())
    await operator.condition("brokerclusters", "events", "Stable", "True")
    claims = claim_uids(kubernetes)
    for index in range(3):
        kubernetes.tie_volume(f"data-events-broker-{index}", f"node-{index}")
    # The machine of broker 1 is gone for good: its pod can be placed nowhere.
    operator.health.changes = {
        broker: {"live_brokers": frozenset({0, 2}), "under_replicated": 4} for broker in (0, 2)
    }
    kubernetes.delete("nodes", "node-1", namespace="")
    kubernetes.kubelet = lambda pod: False
    kubernetes.set_unschedulable("events-broker-1")
    lost = "data-events-broker-1"
    await operator.until(partial(is_marked, kubernetes, lost), "the loss is noted")
    assert claim_uids(kubernetes) == claims
    condition = await operator.condition("brokerclusters", "events", "Stable", "False", "ReplacingDisk")
    assert "is gone: it has 5 minutes to return" in condition["message"]
    kubernetes.annotate(
        "persistentvolumeclaims", lost, {"mainstem.dev/node-lost-since": "2026-01-01T00:00:00Z"}
    )
    kubernetes.annotate("brokerclusters", "events", {"look": "now"})
    await operator.until(lambda: claim_uids(kubernetes)[lost] != claims[lost], "a new claim")
    others = {name: uid for name, uid in claim_uids(kubernetes).items() if name != lost}
    assert others.items() <= claims.items()


@with_operator
async def test_with_plan_only_the_plan_is_shown_and_nothing_is_written_but_the_status(
    operator: RunningOperator,
) -> None:
    kubernetes = await brought_up(operator, cluster())
    kubernetes.annotate("brokerclusters", "events", {"mainstem.dev/plan-only": "true"})
    await operator.condition("brokerclusters", "events", "Stable", "True")
    before = {
        key: item["metadata"]["resourceVersion"]
        for key, item in kubernetes.objects.items()
        if key[0] not in ("brokerclusters", "events")
    }
    kubernetes.apply(cluster(image="example.com/broker:2", config={"num.partitions": 7}))
    await operator.condition("brokerclusters", "events", "Stable", "False", "Rolling")
    plan = kubernetes.get("brokerclusters", "events")["status"]["plan"]
    assert [line["action"] for line in plan] == ["Restart"] * 3
    after = {key: kubernetes.objects[key]["metadata"]["resourceVersion"] for key in before}
    assert after == before


@with_operator
async def test_a_restart_annotation_that_is_removed_leaves_the_pod_template_as_it_is(
    operator: RunningOperator,
) -> None:
    """A template that changes restarts every broker (R25)."""
    kubernetes = operator.kubernetes
    kubernetes.apply(cluster(1))
    kubernetes.annotate("brokerclusters", "events", {"mainstem.dev/restart": "monday"})
    await operator.condition("brokerclusters", "events", "Stable", "True")
    before = pods(kubernetes, "broker")
    template = kubernetes.get("statefulsets", "events-broker")["spec"]["template"]
    kubernetes.annotate("brokerclusters", "events", {"mainstem.dev/restart": None})
    requested = len(kubernetes.requests)
    await operator.until(lambda: len(kubernetes.requests) > requested + 15, "a look")
    await operator.condition("brokerclusters", "events", "Stable", "True")
    assert kubernetes.get("statefulsets", "events-broker")["spec"]["template"] == template
    assert pods(kubernetes, "broker") == before


@with_operator
async def test_no_broker_is_restarted_for_a_setting_that_it_ignores_nor_for_others_before_the_status_has_it(
    operator: RunningOperator,
) -> None:
    """R25: nobody would look for a misspelled name after a roll that ended well."""
    kubernetes = await brought_up(operator, cluster(1))
    told: list[bool] = []

    def note(method: str, key: tuple[str, str, str], _: Any) -> int:
        if (method, key[0]) == ("DELETE", "pods"):
            conditions = kubernetes.get("brokerclusters", "events")["status"]["conditions"]
            told.append(any("log.retention.minuts" in item.get("message", "") for item in conditions))
        return 0

    kubernetes.fails = note
    before = pods(kubernetes, "broker")
    kubernetes.apply(cluster(1, config={"log.retention.houres": 7}))
    await operator.condition("brokerclusters", "events", "SettingsUnknown", "True")
    requested = len(kubernetes.requests)
    await operator.until(lambda: len(kubernetes.requests) > requested + 15, "a look")
    await operator.condition("brokerclusters", "events", "Stable", "True")
    assert pods(kubernetes, "broker") == before
    kubernetes.apply(cluster(1, config={"log.retention.minuts": 7, "num.partitions": 7}))
    await operator.until(lambda: pods(kubernetes, "broker") != before, "a restart")
    await operator.condition("brokerclusters", "events", "Stable", "True")
    assert told == [True]
    reasons = [event["reason"] for event in kubernetes.find("events")]
    assert reasons.count("SettingsUnknown") == 2, "once for each"


@with_operator
async def test_a_broker_that_cannot_be_emptied_stays_until_it_may_go_with_what_it_holds(
    operator: RunningOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = PlayedCluster()
    brokers.replicas = {CLICKS: (0, 1, 2, 3)}
    monkeypatch.setattr("mainstem_operator.runtime.context.Brokers", lambda _servers: brokers)
    kubernetes = await brought_up(operator, cluster(4))
    kubernetes.apply(cluster(3))
    blocked = await operator.condition("brokerclusters", "events", "ScaleDownBlocked", "True", "Refused")
    assert blocked["message"].startswith("clicks-0 has 4 replicas, and only 3 brokers would remain")
    assert kubernetes.get("statefulsets", "events-broker")["spec"]["replicas"] == 4
    kubernetes.annotate("brokerclusters", "events", {"mainstem.dev/scale-down-anyway": "true"})
    await operator.until(lambda: len(pods(kubernetes, "broker")) == 3, "it goes")
    assert brokers.under_way == {}
    (told,) = [item for item in kubernetes.find("events") if item["reason"] == "RemovingBroker"]
    assert (told["type"], "regardless of its replicas" in told["message"]) == ("Warning", True)


def budget(kubernetes: Kubernetes, component: str = "broker") -> tuple[int, str]:
    spec = kubernetes.get("poddisruptionbudgets", f"events-{component}")["spec"]
    return spec["maxUnavailable"], spec["unhealthyPodEvictionPolicy"]


@with_operator
async def test_a_broker_that_never_starts_does_not_hold_the_nodes_of_the_others(
    operator: RunningOperator,
) -> None:
    """Kubernetes takes a pod that is not ready for one that is away already (R25)."""
    kubernetes = await brought_up(operator, cluster())
    assert budget(kubernetes)[0] == 1
    kubernetes.kubelet = lambda pod: False
    kubernetes.apply(cluster(4))
    await operator.until(lambda: budget(kubernetes)[0] == 2, "the fourth one holds nothing")
    operator.health.changes = {broker: {"under_replicated": 1} for broker in range(3)}
    kubernetes.annotate("brokerclusters", "events", {"look": "now"})
    await operator.until(lambda: budget(kubernetes)[0] == 0, "it may hold what the others lack")


@with_operator
async def test_what_has_never_served_does_not_hold_its_nodes(operator: RunningOperator) -> None:
    """Its pods have no data yet, also where these would go with the pod."""
    kubernetes = operator.kubernetes
    kubernetes.kubelet = lambda pod: "zookeeper" in pod["metadata"]["name"]
    manifest = cluster(storage={"type": "ephemeral"})
    manifest["spec"]["zookeeper"] = {"storage": {"type": "ephemeral"}}
    kubernetes.apply(manifest)
    await operator.until(lambda: len(pods(kubernetes, "broker")) == 3, "the pods")
    assert budget(kubernetes) == (0, "AlwaysAllow")
    assert budget(kubernetes, "zookeeper") == (1, "AlwaysAllow")
    for name in pods(kubernetes, "broker"):
        kubernetes.set_ready(name, True)
    await operator.condition("brokerclusters", "events", "Stable", "True")
    for name in pods(kubernetes, "broker"):
        kubernetes.set_ready(name, False)
    await operator.until(lambda: budget(kubernetes) == (0, "IfHealthyBudget"), "data that may be lost")
    assert budget(kubernetes, "zookeeper") == (1, "IfHealthyBudget")


@with_operator
async def test_a_mark_that_is_refused_of_one_claim_holds_up_nothing_else(operator: RunningOperator) -> None:
    """As an admission policy for claims does (R25)."""
    kubernetes = await brought_up(operator, cluster())
    for index in range(3):
        kubernetes.add_node(f"node-{index}")
        kubernetes.tie_volume(f"data-events-broker-{index}", f"node-{index}")
    lost = ("persistentvolumeclaims", "default", "data-events-broker-1")
    kubernetes.fails = lambda method, key, _: 403 if (method, key) == ("PATCH", lost) else 0
    operator.health.changes = {
        broker: {"live_brokers": frozenset({0, 2}), "under_replicated": 4} for broker in (0, 2)
    }
    kubernetes.delete("nodes", "node-1", namespace="")
    kubernetes.kubelet = lambda pod: False
    kubernetes.set_unschedulable("events-broker-1")

    def condition(kind: str) -> tuple[str, str, str]:
        conditions = kubernetes.get("brokerclusters", "events")["status"]["conditions"]
        (found,) = (item for item in conditions if item["type"] == kind)
        return found["status"], found["reason"], found["message"]

    await operator.until(lambda: "Kubernetes refuses the annotation" in condition("Stable")[2], "the reason")
    assert condition("Stable")[1] == "ReplacingDisk"
    assert "of the PersistentVolumeClaim data-events-broker-1" in condition("Stable")[2]
    assert "PATCH of data-events-broker-1 fails." in condition("Stable")[2]
    assert condition("Ready")[:2] == ("True", "Serving")
    kubernetes.fails = lambda *_: 0
    await operator.until(partial(is_marked, kubernetes, "data-events-broker-1"), "the loss is noted")
