"""The resident loader and the maintenance of tables come and go with the Topics that need them (R30), on a
played API server.
"""

from __future__ import annotations

import copy
import datetime as dt
import json
from typing import Any, cast

import pytest
from tests.support.fake_kubernetes import Kubernetes, Manifest
from tests.support.manifests import resource

from mainstem_operator.api.clusters import Images
from mainstem_operator.api.fields import Object
from mainstem_operator.api.timestamps import written
from mainstem_operator.api.topics import TopicSpec, topic_of
from mainstem_operator.kubernetes.client import Kube
from mainstem_operator.kubernetes.observe import Observer
from mainstem_operator.runtime.alone import Alone
from mainstem_operator.runtime.context import Context
from mainstem_operator.runtime.metrics import Metrics
from mainstem_operator.topics.loads.apply import bring_about_loads, stop_resident
from mainstem_operator.topics.loads.plan import maintenance_name, request_name
from mainstem_operator.topics.loads.unseen import loads_not_seen
from mainstem_operator.topics.reconcile import reconcile_topics

PAGE: dict[str, Any] = {
    "loadedUpToMs": 1_700_000_000_000,
    "startedMs": 1_700_000_000_000,
    "finishedMs": 1_700_000_000_000,
    "succeeded": True,
    "message": "1 rows loaded.",
    "runId": "run-1",
    "rows": 1,
    "rejected": 0,
}


class PlayedObserver:
    """The resident loader's page, of every pod."""

    async def loads(self, pod_ip: str) -> Any:
        return {"topics": {"clicks": PAGE}} if pod_ip == "10.0.0.7" else None


async def may_act() -> bool:
    return True


def cluster() -> Manifest:
    return {
        "apiVersion": "mainstem.dev/v1beta1",
        "kind": "BrokerCluster",
        "metadata": {"name": "events", "namespace": "default", "uid": "cluster-uid"},
        "spec": {"brokers": {"replicas": 3}, "warehouse": {"location": "s3://lake/events"}},
    }


def pair(name: str, **warehouse: Any) -> tuple[TopicSpec, Object]:
    spec = {"clusterRef": {"name": "events"}, "warehouse": warehouse}
    return topic_of({"metadata": {"name": name, "namespace": "default"}, "spec": spec}), {}


@pytest.fixture
def context(kube: Kube) -> Context:
    observer = cast(Observer, PlayedObserver())
    return cast(Context, cast(Any, Context)(kube, observer, None, Images(), Metrics(), may_act, "ops"))


def pod(name: str, labels: dict[str, str], owner: Manifest | None = None, **status: str) -> Manifest:
    metadata: Manifest = {"name": name, "namespace": "default", "labels": labels}
    if owner is not None:
        ids = {key: owner["metadata"][key] for key in ("uid", "name")}
        metadata["ownerReferences"] = [{**ids, "controller": True}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": []},
        "status": status,
    }


def names(kubernetes: Kubernetes, plural: str) -> list[str]:
    return [item["metadata"]["name"] for item in kubernetes.find(plural)]


def replicas(kubernetes: Kubernetes) -> list[int]:
    """Of the workload of each resident loader."""
    return [item["spec"]["replicas"] for item in kubernetes.find("statefulsets")]


async def test_the_resident_loader_has_a_pod_while_a_topic_is_to_be_fresh(
    context: Context, kubernetes: Kubernetes
) -> None:
    there = kubernetes.apply(cluster())
    await stop_resident(context, there, Alone())
    assert kubernetes.find("statefulsets") == []

    pairs = [pair("clicks", freshness="60s"), pair("orders", schedule="@hourly")]
    found = await bring_about_loads(context, there, pairs, [], Alone())
    assert found["default", "clicks"].conditions[0].reason == "LoaderNotReady"
    (workload,) = kubernetes.find("statefulsets")
    assert (workload["metadata"]["name"], workload["spec"]["replicas"]) == ("events-resident-loader", 1)
    assert names(kubernetes, "cronjobs") == ["orders-load"]

    labels = workload["spec"]["template"]["metadata"]["labels"]
    kubernetes.apply(pod("of-others", labels, podIP="10.0.0.7"))  # anybody may give a pod these labels
    found = await bring_about_loads(context, there, pairs, [], Alone())
    assert found["default", "clicks"].conditions[0].reason == "LoaderNotReady"
    kubernetes.apply(pod("events-resident-loader-0", labels, workload, podIP="10.0.0.7"))
    found = await bring_about_loads(context, there, pairs, [], Alone())
    status = found["default", "clicks"]
    assert status.conditions[0].reason == "LoadSucceeded"
    assert status.newest is not None
    assert status.newest.timestamp() == 1_700_000_000

    await bring_about_loads(context, there, pairs[1:], [], Alone())
    assert replicas(kubernetes) == [0]
    await bring_about_loads(context, there, pairs, [], Alone())
    assert replicas(kubernetes) == [1]
    await bring_about_loads(context, there, [], [], Alone())
    assert replicas(kubernetes) == [0]


def fresh_topic(kubernetes: Kubernetes, name: str, **warehouse: Any) -> Manifest:
    """A Topic for the resident loader, as it is stored."""
    spec = {"clusterRef": {"name": "events"}, "warehouse": {"freshness": "60s", **warehouse}}
    return kubernetes.apply(resource("Topic", name, spec))


def loaded_topics(kubernetes: Kubernetes) -> set[str]:
    """Those that the resident loader loads; none without a pod."""
    if replicas(kubernetes) == [0]:
        return set()
    file = kubernetes.get("configmaps", "events-resident-loader")["data"]["topics.json"]
    return set(json.loads(file)["topics"])


async def test_the_resident_loader_goes_on_with_topics_at_which_nobody_looks(
    context: Context, kubernetes: Kubernetes
) -> None:
    """A Topic that is unmanaged, or of which Kubernetes refuses something, is not looked at. A scheduled load
    of it would go on, too (R30).
    """
    there = kubernetes.apply(cluster())
    topics = [fresh_topic(kubernetes, name) for name in ("clicks", "orders")]
    pairs: list[tuple[TopicSpec, Object]] = [(topic_of(item), {}) for item in topics]
    await bring_about_loads(context, there, pairs, topics, Alone())
    before = dict(kubernetes.get("configmaps", "events-resident-loader")["data"])
    await bring_about_loads(context, there, pairs[1:], topics, Alone())
    assert loaded_topics(kubernetes) == {"clicks", "orders"}
    assert kubernetes.get("configmaps", "events-resident-loader")["data"] == before
    await bring_about_loads(context, there, [], topics, Alone())
    assert loaded_topics(kubernetes) == {"clicks", "orders"}
    await bring_about_loads(context, there, [], topics[:1], Alone())
    assert loaded_topics(kubernetes) == {"clicks"}

    suspended = pair("clicks", freshness="60s", suspend=True)
    await bring_about_loads(context, there, [suspended], topics[:1], Alone())
    assert loaded_topics(kubernetes) == set(), "what is looked at counts as it is"
    await bring_about_loads(context, there, [], topics[:1], Alone())
    assert loaded_topics(kubernetes) == set(), "nothing begins that did not run"


@pytest.mark.parametrize("change", ["deleting", "scheduled", "another cluster", "no warehouse"])
async def test_the_resident_loader_ends_when_no_topic_is_for_it_any_more(
    context: Context, kubernetes: Kubernetes, change: str
) -> None:
    there = kubernetes.apply(cluster())
    topic = fresh_topic(kubernetes, "clicks")
    await bring_about_loads(context, there, [(topic_of(topic), {})], [topic], Alone())
    match change:
        case "deleting":
            topic["metadata"]["deletionTimestamp"] = "2026-11-21T11:00:00Z"
        case "scheduled":
            topic["spec"]["warehouse"] = {"schedule": "@hourly"}
        case "no warehouse":
            there = {**there, "spec": {"brokers": {"replicas": 3}}}
    topics = [] if change == "another cluster" else [topic]
    await bring_about_loads(context, there, [], topics, Alone())
    assert replicas(kubernetes) == [0]


@pytest.mark.parametrize("brokers_ready", [0, 3])
async def test_a_topic_that_becomes_invalid_is_loaded_as_before(
    context: Context, kubernetes: Kubernetes, brokers_ready: int
) -> None:
    there = kubernetes.apply(cluster())
    there["status"] = {"brokersReady": brokers_ready}
    topic = fresh_topic(kubernetes, "clicks")
    await bring_about_loads(context, there, [(topic_of(topic), {})], [topic], Alone())
    invalid = fresh_topic(kubernetes, "clicks", format="avro")
    await reconcile_topics(context, "default", "events", [invalid], there)
    (ready,) = kubernetes.get("topics", "clicks")["status"]["conditions"]
    assert "spec.warehouse.schemaRegistry is missing" in ready["message"]
    assert loaded_topics(kubernetes) == {"clicks"}


async def test_other_credentials_of_the_store_restart_the_resident_loader(
    context: Context, kubernetes: Kubernetes
) -> None:
    """It has them in its environment, which a running pod keeps. A scheduled load is a new pod each time."""
    manifest = cluster()
    manifest["spec"]["warehouse"]["credentialsSecret"] = "lake"
    there = kubernetes.apply(manifest)
    pairs = [pair("clicks", freshness="60s")]

    async def template(key: str | None) -> Manifest:
        if key is not None:
            metadata = {"name": "lake", "namespace": "default"}
            secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"KEY": key}}
            kubernetes.apply(secret)
        await bring_about_loads(context, there, pairs, [], Alone())
        (workload,) = kubernetes.find("statefulsets")
        found: Manifest = workload["spec"]["template"]
        return copy.deepcopy(found)

    missing, first, second = await template(None), await template("b2xk"), await template("bmV3")
    assert first not in (missing, second)
    writes = len(kubernetes.writes)
    assert await template(None) == second
    assert len(kubernetes.writes) == writes, "it rests"


async def test_a_table_is_maintained_for_as_long_as_its_topic_says_so(
    context: Context, kubernetes: Kubernetes
) -> None:
    there = kubernetes.apply(cluster())
    kept = {"retention": "untilLoaded", "retentionLimit": "1Gi"}
    with_both = [
        pair("clicks", schedule="@hourly", maintenance={"schedule": "@daily"}),
        pair("orders", schedule="@hourly", **kept),
    ]
    found = await bring_about_loads(context, there, with_both, [], Alone())
    assert set(names(kubernetes, "cronjobs")) == {"clicks-load", maintenance_name("clicks"), "orders-load"}
    assert "Maintained" in {item.type for item in found["default", "clicks"].conditions}
    assert "KeptUntilLoaded" in {item.type for item in found["default", "orders"].conditions}

    found = await bring_about_loads(context, there, [pair("clicks", schedule="@hourly")], [], Alone())
    assert maintenance_name("clicks") not in names(kubernetes, "cronjobs")
    assert "Maintained" not in {item.type for item in found["default", "clicks"].conditions}


async def test_the_page_of_the_resident_loader_says_whether_records_were_kept_until_they_were_loaded(
    context: Context, kubernetes: Kubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R30. It has no Jobs whose reports could say so."""
    monkeypatch.setitem(PAGE, "readMs", 1_700_000_000_000)
    monkeypatch.setitem(PAGE, "gapRecords", 7)
    there = kubernetes.apply(cluster())
    pairs = [pair("clicks", freshness="60s", retention="untilLoaded", retentionLimit="1Gi")]
    await bring_about_loads(context, there, pairs, [], Alone())
    (workload,) = kubernetes.find("statefulsets")
    labels = workload["spec"]["template"]["metadata"]["labels"]
    kubernetes.apply(pod("events-resident-loader-0", labels, workload, podIP="10.0.0.7"))
    (loads,) = (await bring_about_loads(context, there, pairs, [], Alone())).values()
    (kept,) = [item for item in loads.conditions if item.type == "KeptUntilLoaded"]
    assert (kept.holds, kept.reason) == (False, "RecordsDeleted")
    assert "7 offsets were deleted" in kept.message


async def test_a_topic_that_another_one_claims_has_no_loads(context: Context, kubernetes: Kubernetes) -> None:
    there = kubernetes.apply(cluster())
    pairs = [pair("clicks", freshness="60s"), pair("orders", schedule="@hourly")]
    await bring_about_loads(context, there, pairs, [], Alone())
    reason = "The Topic older is older and claims it too."
    not_theirs = {("default", name): reason for name in ("clicks", "orders")}
    found = await bring_about_loads(context, there, pairs, [], Alone(), not_theirs)
    for name in ("clicks", "orders"):
        condition = found["default", name].conditions[0]
        assert (condition.type, condition.holds) == ("Loaded", False)
        assert reason in condition.message
    assert kubernetes.find("cronjobs") == []
    assert replicas(kubernetes) == [0]


async def test_a_run_that_never_started_is_replaced_when_its_manifest_is_corrected(
    context: Context, kubernetes: Kubernetes
) -> None:
    """It would hold up all later runs for six hours (R30). A run that has started goes on."""
    there = kubernetes.apply(cluster())
    too_much = [pair("orders", schedule="@hourly", resources={"requests": {"memory": "900Gi"}})]
    await bring_about_loads(context, there, too_much, [], Alone())
    (cron_job,) = kubernetes.find("cronjobs")
    template = cron_job["spec"]["jobTemplate"]
    for name, phase in (("waiting", "Pending"), ("running", "Running")):
        metadata = pod(name, template["metadata"]["labels"], cron_job)["metadata"]
        metadata = {**template["metadata"], **metadata}
        job = kubernetes.apply(
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": template["spec"]}
        )
        kubernetes.apply(pod(name, template["metadata"]["labels"], job, phase=phase))
    await bring_about_loads(context, there, too_much, [], Alone())
    assert names(kubernetes, "jobs") == ["running", "waiting"]
    corrected = [pair("orders", schedule="@hourly", resources={"requests": {"memory": "1Gi"}})]
    await bring_about_loads(context, there, corrected, [], Alone())
    assert names(kubernetes, "jobs") == ["running"]


@pytest.mark.parametrize("job", ["load", "request", "maintenance"])
async def test_a_run_that_does_not_end_since_its_node_is_lost_is_replaced_and_reported(
    context: Context, kubernetes: Kubernetes, job: str
) -> None:
    """Kubernetes waits for the end of its pod for hours, and begins no other run (R30)."""
    there = kubernetes.apply(cluster())
    more = {"backfill": {"requestId": "b1"}, "maintenance": {"schedule": "@daily"}}
    pairs = [pair("orders", schedule="@hourly", **more)]
    await bring_about_loads(context, there, pairs, [], Alone())
    name = {
        "load": "orders-load",
        "request": request_name("orders", "backfill", "b1"),
        "maintenance": maintenance_name("orders"),
    }[job]
    cron_job = kubernetes.get("cronjobs", name)
    template = cron_job["spec"]["jobTemplate"]
    labels = template["metadata"]["labels"]
    for run, phase, seconds in (
        ("ends-soon", "Running", 30),
        ("has-ended", "Succeeded", 300),
        ("lost", "Running", 90),
        ("runs", "Running", None),
    ):
        metadata = {**template["metadata"], **pod(run, labels, cron_job)["metadata"]}
        owner = kubernetes.apply(
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": template["spec"]}
        )
        stored = kubernetes.apply(pod(run, labels, owner, phase=phase))
        stored["spec"]["nodeName"] = "node-7"
        if seconds is not None:
            deleted = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=seconds)
            stored["metadata"]["deletionTimestamp"] = written(deleted)
    (loads,) = (await bring_about_loads(context, there, pairs, [], Alone())).values()
    assert names(kubernetes, "jobs") == ["ends-soon", "has-ended", "runs"]
    said = {item.type: item for item in loads.conditions}
    kind, reason = {
        "load": ("Loaded", "LoadLost"),
        "request": ("LoadedAgain", "RequestPending"),
        "maintenance": ("Maintained", "MaintenanceLost"),
    }[job]
    assert said[kind].reason == reason
    assert "lost does not end. Its pod lost was to end by" in said[kind].message
    assert "the node node-7 does not report that it has" in said[kind].message
    (loads,) = (await bring_about_loads(context, there, pairs, [], Alone())).values()
    assert "node-7" not in str(loads.conditions)


async def test_a_resident_loader_that_does_not_end_since_its_node_is_lost_says_so(
    context: Context, kubernetes: Kubernetes
) -> None:
    """Kubernetes starts no second pod of it before the first has ended (R30)."""
    there = kubernetes.apply(cluster())
    pairs = [pair("clicks", freshness="60s")]
    await bring_about_loads(context, there, pairs, [], Alone())
    stored = kubernetes.get("pods", "events-resident-loader-0")
    deleted = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=90)
    stored["metadata"]["deletionTimestamp"] = written(deleted)
    (loads,) = (await bring_about_loads(context, there, pairs, [], Alone())).values()
    assert loads.conditions[0].reason == "LoadCannotStart"
    assert "`kubectl delete node node-0`" in loads.conditions[0].message


LOG_TAIL = "INFO MemoryStore: Block stored as values in memory"
FAILED_RUNS: list[tuple[dict[str, Any], str]] = [
    (
        {
            "phase": "Failed",
            "containerStatuses": [
                {"name": "loader", "state": {"terminated": {"reason": "OOMKilled", "message": LOG_TAIL}}}
            ],
        },
        "The loader needed more memory than its limit allows (OOMKilled): raise"
        " spec.warehouse.resources.limits.memory.",
    ),
    (
        {
            "phase": "Failed",
            "reason": "Evicted",
            "message": "The node was low on resource: ephemeral-storage.",
        },
        "Evicted: The node was low on resource: ephemeral-storage.",
    ),
    (
        {
            "phase": "Failed",
            "reason": "Evicted",
            "message": "The node was low on resource: memory.",
            "containerStatuses": [
                {"name": "loader", "state": {"terminated": {"message": '{"error": "No broker answers."}'}}}
            ],
        },
        "No broker answers.",
    ),
    (
        {
            "phase": "Failed",
            "containerStatuses": [
                {"name": "a-sidecar", "state": {"terminated": {"message": "proxy ended"}}},
                {"name": "loader", "state": {"terminated": {"message": '{"error": "No broker answers."}'}}},
            ],
        },
        "No broker answers.",
    ),
]


@pytest.mark.parametrize(
    ("status", "message"), FAILED_RUNS, ids=["out of memory", "evicted", "its own words", "a sidecar"]
)
async def test_a_load_that_kubernetes_ended_says_why(
    context: Context, kubernetes: Kubernetes, status: dict[str, Any], message: str
) -> None:
    """The Job only says that it has reached its backoff limit (R30)."""
    there = kubernetes.apply(cluster())
    pairs = [pair("orders", schedule="@hourly")]
    await bring_about_loads(context, there, pairs, [], Alone())
    (cron_job,) = kubernetes.find("cronjobs")
    labels = cron_job["spec"]["jobTemplate"]["metadata"]["labels"]
    backoff = {
        "type": "Failed",
        "status": "True",
        "message": "Job has reached the specified backoff limit",
        "lastTransitionTime": "2026-11-21T11:00:00Z",
    }
    run = {**pod("orders-load-1", labels, cron_job), "apiVersion": "batch/v1", "kind": "Job"}
    job = kubernetes.apply({**run, "status": {"conditions": [backoff]}})
    kubernetes.apply({**pod("orders-load-1-x7f2q", labels, job), "status": status})
    (loads,) = (await bring_about_loads(context, there, pairs, [], Alone())).values()
    loaded = next(item for item in loads.conditions if item.type == "Loaded")
    assert (loaded.holds, loaded.reason, loaded.message) == (False, "LoadFailed", message)


async def test_loads_that_a_cluster_has_left_behind_are_suspended_until_there_is_one(
    context: Context, kubernetes: Kubernetes
) -> None:
    """As `kubectl delete --cascade=orphan` leaves them: no run could succeed."""
    there = kubernetes.apply(cluster())
    topics = []
    for name, warehouse in {
        "clicks": {"freshness": "60s"},
        "orders": {"schedule": "@hourly", "backfill": {"requestId": "b1"}},
    }.items():
        spec = {"clusterRef": {"name": "events"}, "warehouse": warehouse}
        topics.append(kubernetes.apply(resource("Topic", name, spec)))
    pairs: list[tuple[TopicSpec, Object]] = [(topic_of(item), {}) for item in topics]
    await bring_about_loads(context, there, pairs, topics, Alone())
    loads = kubernetes.find("cronjobs")
    assert names(kubernetes, "cronjobs") == [request_name("orders", "backfill", "b1"), "orders-load"]
    (workload,) = kubernetes.find("statefulsets")
    copied = {**loads[1], "metadata": {**loads[1]["metadata"], "name": "copied", "ownerReferences": []}}
    kubernetes.apply(copied)
    await reconcile_topics(context, "default", "events", topics, None)
    assert not any(item["spec"]["suspend"] for item in kubernetes.find("cronjobs")), "they have an owner"

    for item in (*loads, workload):
        item["metadata"]["ownerReferences"] = []
    await reconcile_topics(context, "default", "events", topics, None)
    suspended = {item["metadata"]["name"]: item["spec"]["suspend"] for item in kubernetes.find("cronjobs")}
    assert suspended == {**{item["metadata"]["name"]: True for item in loads}, "copied": False}
    assert kubernetes.get("statefulsets", workload["metadata"]["name"])["spec"]["replicas"] == 0
    for name in ("clicks", "orders"):
        conditions = kubernetes.get("topics", name)["status"]["conditions"]
        assert ("Loaded", "ClusterNotFound") in {(item["type"], item["reason"]) for item in conditions}
    writes = len(kubernetes.writes)
    topics = kubernetes.find("topics")
    await reconcile_topics(context, "default", "events", topics, None)
    assert len(kubernetes.writes) == writes

    kubernetes.delete("brokerclusters", "events")
    there = kubernetes.apply(cluster())
    await bring_about_loads(context, there, pairs, topics, Alone())
    assert not any(item["spec"]["suspend"] for item in kubernetes.find("cronjobs"))
    assert kubernetes.get("statefulsets", workload["metadata"]["name"])["spec"]["replicas"] == 1


async def test_loads_that_a_cluster_has_left_behind_are_suspended_though_their_topics_are_gone(
    context: Context, kubernetes: Kubernetes
) -> None:
    there = kubernetes.apply(cluster())
    pairs = [pair("clicks", freshness="60s"), pair("orders", schedule="@hourly")]
    await bring_about_loads(context, there, pairs, [], Alone())
    kubernetes.orphan("brokerclusters", "events")
    await reconcile_topics(context, "default", "events", [], None)
    assert [item["spec"]["suspend"] for item in kubernetes.find("cronjobs")] == [True]
    assert replicas(kubernetes) == [0]


@pytest.mark.parametrize("was_suspended", [False, True])
async def test_a_resident_loader_that_was_left_behind_and_that_no_topic_needs_goes_with_the_next_cluster(
    context: Context, kubernetes: Kubernetes, was_suspended: bool
) -> None:
    """Or it would stay for ever, with its ConfigMap (R25)."""
    there = kubernetes.apply(cluster())
    await bring_about_loads(context, there, [pair("clicks", freshness="60s")], [], Alone())
    kubernetes.orphan("brokerclusters", "events")
    if was_suspended:
        await reconcile_topics(context, "default", "events", [], None)
    there = kubernetes.apply(cluster())
    await stop_resident(context, there, Alone())
    assert replicas(kubernetes) == [0]
    writes = len(kubernetes.writes)
    await stop_resident(context, there, Alone())
    assert len(kubernetes.writes) == writes
    kubernetes.delete("brokerclusters", "events")
    assert kubernetes.find("statefulsets") == kubernetes.find("configmaps") == []


async def test_a_resident_loader_that_a_cluster_of_another_name_has_left_behind_is_not_stopped(
    context: Context, kubernetes: Kubernetes
) -> None:
    there = kubernetes.apply(cluster())
    await bring_about_loads(context, there, [pair("clicks", freshness="60s")], [], Alone())
    kubernetes.orphan("brokerclusters", "events")
    (workload,) = kubernetes.find("statefulsets")
    workload["metadata"]["labels"]["mainstem.dev/cluster"] = "others"
    await reconcile_topics(context, "default", "events", [], None)
    assert replicas(kubernetes) == [1]


async def test_loads_that_may_not_be_suspended_hold_up_nothing(
    context: Context, kubernetes: Kubernetes
) -> None:
    """The Roles in a namespace that is being deleted may go before the Topics there."""
    spec = {"clusterRef": {"name": "events"}, "warehouse": {"schedule": "@hourly"}}
    topic = kubernetes.apply(resource("Topic", "orders", spec))
    kubernetes.fails = lambda method, key, subresource: 403 if key[0] == "cronjobs" else 0
    pause = await reconcile_topics(context, "default", "events", [topic], None)
    (ready,) = (
        item for item in kubernetes.get("topics", "orders")["status"]["conditions"] if item["type"] == "Ready"
    )
    assert ready["reason"] == "ClusterNotFound"
    assert pause is not None, "it is looked at again"


@pytest.mark.parametrize("forbidden", ["cronjobs", "statefulsets"])
async def test_topics_without_loads_need_no_right_to_read_those_left_behind(
    forbidden: str, context: Context, kubernetes: Kubernetes
) -> None:
    topic = kubernetes.apply(resource("Topic", "orders", {"clusterRef": {"name": "events"}}))
    kubernetes.fails = lambda method, key, subresource: 403 if key[0] == forbidden else 0
    assert await reconcile_topics(context, "default", "events", [topic], None) is None


async def test_loads_left_behind_are_stopped_beside_topics_without_loads(
    context: Context, kubernetes: Kubernetes
) -> None:
    there = kubernetes.apply(cluster())
    await bring_about_loads(context, there, [pair("clicks", freshness="60s")], [], Alone())
    kubernetes.orphan("brokerclusters", "events")
    topic = kubernetes.apply(resource("Topic", "orders", {"clusterRef": {"name": "events"}}))
    await reconcile_topics(context, "default", "events", [topic], None)
    assert replicas(kubernetes) == [0]


async def test_a_copy_of_the_resident_loaders_pod_is_not_asked(
    context: Context, kubernetes: Kubernetes
) -> None:
    """A copy keeps labels and owner, and may not even start."""
    there = kubernetes.apply(cluster())
    pairs = [pair("clicks", freshness="60s")]
    await bring_about_loads(context, there, pairs, [], Alone())
    (workload,) = kubernetes.find("statefulsets")
    labels = workload["spec"]["template"]["metadata"]["labels"]
    kubernetes.apply(pod("zz-copy", labels, workload, podIP="10.0.0.7"))
    found = await bring_about_loads(context, there, pairs, [], Alone())
    assert found["default", "clicks"].conditions[0].reason == "LoaderNotReady"


async def test_a_pod_of_the_resident_loader_that_never_started_is_replaced_when_its_manifest_is_corrected(
    context: Context, kubernetes: Kubernetes
) -> None:
    """Kubernetes may leave it as it is for ever. One that runs is Kubernetes' own to replace."""
    there = kubernetes.apply(cluster())
    pairs = [pair("clicks", freshness="60s")]
    await bring_about_loads(context, there, pairs, [], Alone())
    key = ("pods", "default", "events-resident-loader-0")
    (workload,) = kubernetes.find("statefulsets")
    for phase, revision, is_replaced in (
        ("Pending", workload["status"]["updateRevision"], False),
        ("Running", "earlier", False),
        ("Pending", "earlier", True),
    ):
        stored = kubernetes.objects[key]
        stored["metadata"]["labels"]["controller-revision-hash"] = revision
        stored["status"]["phase"] = phase
        before = stored["metadata"]["uid"]
        await bring_about_loads(context, there, pairs, [], Alone())
        assert (kubernetes.objects[key]["metadata"]["uid"] != before) == is_replaced


async def test_a_request_of_a_topic_that_cannot_be_loaded_has_no_more_runs(
    context: Context, kubernetes: Kubernetes
) -> None:
    there = kubernetes.apply(cluster())
    pairs = [pair("orders", schedule="@hourly", backfill={"requestId": "b1"})]
    await bring_about_loads(context, there, pairs, [], Alone())
    assert request_name("orders", "backfill", "b1") in names(kubernetes, "cronjobs")
    without = {**there, "spec": {"brokers": {"replicas": 3}}}
    found = await bring_about_loads(context, without, pairs, [], Alone())
    assert kubernetes.find("cronjobs") == []
    (entry,) = found["default", "orders"].requests
    assert entry["succeeded"] is False
    assert "has no spec.warehouse" in entry["message"]


@pytest.mark.parametrize("reason", ["invalid", "unmanaged"])
async def test_what_is_known_of_loads_stays_while_nobody_looks_at_them(
    context: Context, kubernetes: Kubernetes, reason: str
) -> None:
    """Else a status would lose how far the table is loaded, and which losses count."""
    since = "2026-11-21T11:00:00Z"
    status = {
        "lastLoad": {"job": "clicks-load-1"},
        "lastGoodLoad": since,
        "loadedUpTo": since,
        "loadRequests": [{"field": "backfill", "requestId": "b1", "succeeded": True, "message": ""}],
        "conditions": [
            {"type": kind, "status": "True", "reason": "R", "message": "M", "lastTransitionTime": since}
            for kind in ("Loaded", "Fresh", "KeptUntilLoaded", "RecordsRejected", "Ready")
        ],
    }
    if reason == "invalid":
        there = {**cluster(), "spec": {"brokers": {"replicas": 0}}}
        pairs = [(pair("clicks", schedule="@hourly")[0], status)]
        loads = (await bring_about_loads(context, there, pairs, [], Alone()))["default", "clicks"]
    else:
        loads = loads_not_seen(status, "Unmanaged", "It is left alone.")
    assert (loads.last_load, loads.last_good_load, loads.loaded_up_to) == (
        status["lastLoad"],
        since,
        since,
    )
    assert list(loads.requests) == status["loadRequests"]
    assert {item.type: item.holds for item in loads.conditions} == {
        "Loaded": None,
        "Fresh": None,
        "KeptUntilLoaded": True,
        "RecordsRejected": True,
    }
