"""What is refused of one object holds up no other one (R23)."""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.connected_kube import connected
from tests.support.fake_kubernetes import Key, Kubernetes, Manifest
from tests.support.manifests import resource
from tests.unit.operator.played_context import applied_secured, context_with
from tests.unit.operator.played_groups import PlayedGroups
from tests.unit.operator.played_users import PlayedUsers

from mainstem_operator.api.conditions import Condition, merged
from mainstem_operator.api.fields import InvalidSpec
from mainstem_operator.api.topics import topic_of
from mainstem_operator.brokers.errors import BrokersRefused, BrokersUnreachable
from mainstem_operator.cluster.reconcile import reconcile_cluster
from mainstem_operator.groups.reconcile import reconcile_groups
from mainstem_operator.kubernetes.client import Kube, Refused
from mainstem_operator.runtime.alone import Alone
from mainstem_operator.topics.loads.apply import bring_about_loads, delete_gone_loads
from mainstem_operator.topics.loads.plan import maintenance_name
from mainstem_operator.topics.reconcile import reconcile_topics
from mainstem_operator.users.reconcile import reconcile_users

CLUSTER_REF = {"clusterRef": {"name": "events"}}
RECONCILE: dict[str, Callable[..., Any]] = {
    "Topic": reconcile_topics,
    "ConsumerGroup": reconcile_groups,
    "User": reconcile_users,
}
PLURALS = {"Topic": "topics", "ConsumerGroup": "consumergroups", "User": "users"}
CLUSTER_SPEC = {
    "brokers": {"replicas": 1},
    "listeners": {"clients": [{"name": "tls", "port": 9093}]},
    "warehouse": {"location": "s3://lake/tables"},
}


def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("error", [Refused(409, "x"), BrokersRefused("X", "x"), InvalidSpec("x")])
def test_a_refusal_concerns_one_object(error: Exception) -> None:
    alone = Alone()
    with alone(("default", "first")):
        fail(error)
    assert alone.refused == {("default", "first")}


def test_an_object_that_is_gone_is_not_looked_at_again() -> None:
    alone = Alone()
    with alone(("default", "first")):
        fail(Refused(404, "There is none."))
    assert alone.refused == set()


@pytest.mark.parametrize("error", [BrokersUnreachable("x"), OSError("x"), TimeoutError("x")])
def test_what_concerns_all_objects_ends_the_look(error: Exception) -> None:
    alone = Alone()
    with pytest.raises(type(error)), alone(("default", "first")):
        fail(error)
    assert alone.refused == set()


def fails_for(*requests: tuple[str, Key, str]) -> Callable[[str, Key, str], int]:
    """Refuses these requests, as they are refused of an object that somebody else changes meanwhile."""
    return lambda method, key, subresource: 409 if (method, key, subresource) in requests else 0


def reasons(kubernetes: Kubernetes, plural: str) -> dict[str, str]:
    """The reason of the condition Ready of each object that has one."""
    return {
        item["metadata"]["name"]: condition["reason"]
        for item in kubernetes.find(plural)
        for condition in (item.get("status") or {}).get("conditions") or ()
        if condition["type"] == "Ready"
    }


@pytest.mark.parametrize("kind", RECONCILE)
@pytest.mark.parametrize(
    ("cluster", "spec", "reason"),
    [
        (None, {}, "ClusterNotFound"),
        (resource("BrokerCluster", "events", CLUSTER_SPEC, uid="u"), {}, "ClusterNotReady"),
        (None, {"deletionPolicy": 7, "reset": 7, "acls": "x"}, "InvalidSpec"),
    ],
)
async def test_a_status_that_may_not_be_written_holds_up_no_other_one(
    kind: str, cluster: Manifest | None, spec: dict[str, Any], reason: str, kubernetes: Kubernetes, kube: Kube
) -> None:
    plural = PLURALS[kind]
    manifests = [
        kubernetes.apply(resource(kind, name, {**CLUSTER_REF, **spec})) for name in ("first", "second")
    ]
    kubernetes.fails = fails_for(("PATCH", (plural, "default", "first"), "status"))
    pause = await RECONCILE[kind](context_with(kube), "default", "events", manifests, cluster)
    assert reasons(kubernetes, plural) == {"second": reason}
    assert pause is not None, "the first is looked at again"


# --- Loads ---


@contextlib.asynccontextmanager
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A secured BrokerCluster with a warehouse."""
    async with connected(tmp_path, monkeypatch) as (kubernetes, kube):
        yield kubernetes, kube, await applied_secured(kubernetes, kube, CLUSTER_SPEC)


def topics_of(kubernetes: Kubernetes, topic_names: Iterable[str], **warehouse: Any) -> list[Manifest]:
    spec = {**CLUSTER_REF, "warehouse": {"schedule": "@hourly", **warehouse}}
    return [kubernetes.apply(resource("Topic", name, spec)) for name in topic_names]


async def test_a_load_whose_secret_may_not_be_made_holds_up_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(tmp_path, monkeypatch) as (kubernetes, kube, cluster):
        manifests = topics_of(kubernetes, ("first", "second"))
        kubernetes.fails = fails_for(("POST", ("secrets", "default", "first-load-identity"), ""))
        alone = Alone()
        pairs: list[Any] = [(topic_of(item), {}) for item in manifests]
        statuses = await bring_about_loads(context_with(kube), cluster, pairs, manifests, alone)
        assert list(statuses) == [("default", "second")]
        assert alone.refused == {("default", "first")}
        assert ("secrets", "default", "second-load-identity") in kubernetes.objects


async def test_a_cron_job_that_may_not_be_deleted_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(tmp_path, monkeypatch) as (kubernetes, kube, cluster):
        both = ("first", "second")
        manifests = topics_of(kubernetes, both, maintenance={"schedule": "@daily"})
        context = context_with(kube)
        pairs: list[Any] = [(topic_of(item), {}) for item in manifests]
        await bring_about_loads(context, cluster, pairs, manifests, Alone())
        left = ("cronjobs", "default", maintenance_name("first"))
        kubernetes.fails = fails_for(("DELETE", left, ""))
        manifests = topics_of(kubernetes, both)
        pairs = [(topic_of(item), {}) for item in manifests]
        statuses = await bring_about_loads(context, cluster, pairs, manifests, Alone())
        assert [status.waits for status in statuses.values()] == [True, False]
        assert left in kubernetes.objects
        assert ("cronjobs", "default", maintenance_name("second")) not in kubernetes.objects


async def test_a_load_that_is_gone_and_may_not_be_deleted_holds_up_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(tmp_path, monkeypatch) as (kubernetes, kube, cluster):
        manifests = topics_of(kubernetes, ("first", "second"))
        context, alone = context_with(kube), Alone()
        pairs: list[Any] = [(topic_of(item), {}) for item in manifests]
        await bring_about_loads(context, cluster, pairs, manifests, Alone())
        kubernetes.fails = fails_for(("DELETE", ("cronjobs", "default", "first-load"), ""))
        await delete_gone_loads(context, cluster, [], alone)
        assert [item["metadata"]["name"] for item in kubernetes.find("cronjobs")] == ["first-load"]
        assert alone.refused == {("default", "CronJob first-load")}


# --- Resets ---


READY: Manifest = {
    **resource("BrokerCluster", "events", CLUSTER_SPEC, uid="u"),
    "status": {"brokersReady": 1},
}


def resets(kubernetes: Kubernetes) -> list[Manifest]:
    spec = {**CLUSTER_REF, "reset": {"requestId": "r1", "to": "earliest"}}
    return [kubernetes.apply(resource("ConsumerGroup", name, spec)) for name in ("first", "second")]


async def test_a_group_whose_status_may_not_be_written_holds_up_no_reset(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    """Nor is its own reset carried out: it has to be noted first."""
    manifests, brokers = resets(kubernetes), PlayedGroups()
    kubernetes.fails = fails_for(("PATCH", ("consumergroups", "default", "first"), "status"))
    pause = await reconcile_groups(context_with(kube, brokers), "default", "events", manifests, READY)
    assert [group for group, _ in brokers.put] == ["second"]
    assert kubernetes.get("consumergroups", "second")["status"]["lastReset"]["state"] == "Done"
    assert pause is not None


async def test_a_group_whose_offsets_brokers_refuse_holds_up_no_reset(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    manifests, brokers = resets(kubernetes), PlayedGroups(refuses="first")
    pause = await reconcile_groups(context_with(kube, brokers), "default", "events", manifests, READY)
    assert [group for group, _ in brokers.put] == ["second"]
    assert reasons(kubernetes, "consumergroups") == {"first": "NotTold", "second": "Observed"}
    first = kubernetes.get("consumergroups", "first")["status"]
    assert first["lastReset"]["state"] == "Started", "what was noted is kept"
    assert pause is not None


# --- Objects that are going, and defects ---


@pytest.mark.parametrize("kind", RECONCILE)
@pytest.mark.parametrize(
    "cluster", [None, READY, {**READY, "status": {}}], ids=["none", "ready", "not-ready"]
)
async def test_an_object_that_finalizers_of_others_hold_is_not_ready(
    kind: str, cluster: Manifest | None, kubernetes: Kubernetes, kube: Kube
) -> None:
    plural = PLURALS[kind]
    kubernetes.apply(resource(kind, "first", CLUSTER_REF, finalizers=["example.com/backup"]))
    good = {"type": "Ready", "status": "True", "reason": "Good", "message": ""}
    good["lastTransitionTime"] = "2026-11-21T11:00:00Z"
    kubernetes.get(plural, "first")["status"] = {"conditions": [good]}
    kubernetes.delete(plural, "first")
    manifests = [copy.deepcopy(kubernetes.get(plural, "first"))]
    brokers = SimpleNamespace(**dict.fromkeys(("topics", "racks", "moves", "settings"), _nothing))
    brokers.users = PlayedUsers
    await RECONCILE[kind](context_with(kube, brokers), "default", "events", manifests, cluster)
    (condition,) = kubernetes.get(plural, "first")["status"]["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "Deleting")
    assert "example.com/backup" in condition["message"]


async def _nothing(*_: object) -> dict[Any, Any]:
    return {}


FRESH = {**CLUSTER_REF, "warehouse": {"freshness": "60s"}}
SCHEDULED = {**CLUSTER_REF, "warehouse": {"schedule": "@hourly"}}
MEASURED = {"ConsumerGroup": ("WithinSLO",), "Topic": ("Fresh", "Loaded")}
NOT_LOOKED_AT = [
    ("ConsumerGroup", CLUSTER_REF, "reset", {"requestId": "r1", "to": "yesterday"}, set()),
    ("Topic", FRESH, "partitions", "many", set()),
    ("Topic", SCHEDULED, "partitions", "many", {"Loaded"}),
]
"""Manifests, what makes them invalid, and what holds all the same: a run of a schedule has ended."""


@pytest.mark.parametrize("why", ["invalid", "deleting", "defect"])
@pytest.mark.parametrize(("kind", "spec", "field", "value", "holds"), NOT_LOOKED_AT)
async def test_what_nobody_measures_any_more_is_unknown(
    kind: str,
    spec: dict[str, Any],
    field: str,
    value: Any,
    holds: set[str],
    why: str,
    kubernetes: Kubernetes,
    kube: Kube,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a status would say for ever that a table is fresh, or a lag small (R30, R26)."""
    plural, module = PLURALS[kind], sys.modules[RECONCILE[kind].__module__]
    if why == "invalid":
        spec = {**spec, field: value}
    kubernetes.apply(resource(kind, "first", spec, finalizers=["example.com/backup"]))
    since = {"reason": "Good", "message": "", "lastTransitionTime": "2026-11-21T11:00:00Z"}
    stored = kubernetes.get(plural, "first")
    stored["status"] = {
        "conditions": [{"type": name, "status": "True", **since} for name in (*MEASURED[kind], "Paused")]
    }
    if why == "deleting":
        kubernetes.delete(plural, "first")
    if why == "defect":
        monkeypatch.setattr(
            module, {"Topic": "topic_of", "ConsumerGroup": "group_of"}[kind], lambda item: item["missing"]
        )
    manifests = [copy.deepcopy(kubernetes.get(plural, "first"))]
    await RECONCILE[kind](context_with(kube), "default", "events", manifests, {**READY, "status": {}})
    conditions = {item["type"]: item for item in kubernetes.get(plural, "first")["status"]["conditions"]}
    assert conditions.pop("Paused")["status"] == "True"
    ready = conditions.pop("Ready")
    assert {name for name, item in conditions.items() if item["status"] == "True"} == holds
    unknown = [item for item in conditions.values() if item["status"] == "Unknown"]
    assert {item["message"] for item in unknown} == {ready["message"]}


async def test_a_cluster_that_finalizers_of_others_hold_is_not_stable(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    kubernetes.apply(resource("BrokerCluster", "events", CLUSTER_SPEC, finalizers=["example.com/backup"]))
    kubernetes.delete("brokerclusters", "events")
    manifest = copy.deepcopy(kubernetes.get("brokerclusters", "events"))
    assert await reconcile_cluster(context_with(kube), manifest) is None
    status = kubernetes.get("brokerclusters", "events")["status"]
    found = {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]}
    assert found == {"Ready": ("Unknown", "Deleting"), "Stable": ("False", "Deleting")}


async def test_a_cluster_whose_manifest_is_not_valid_is_not_stable(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    manifest = copy.deepcopy(
        kubernetes.apply(resource("BrokerCluster", "events", {"brokers": {"replicas": 0}}))
    )
    await reconcile_cluster(context_with(kube), manifest)
    status = kubernetes.get("brokerclusters", "events")["status"]
    found = {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]}
    assert found == {"Ready": ("False", "InvalidSpec"), "Stable": ("False", "InvalidSpec")}


async def test_groups_of_a_cluster_that_is_being_deleted_are_not_asked_for(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    manifests, brokers = resets(kubernetes), PlayedGroups()
    going = copy.deepcopy(READY)
    going["metadata"]["deletionTimestamp"] = "2026-11-21T11:00:00Z"
    await reconcile_groups(context_with(kube, brokers), "default", "events", manifests, going)
    assert brokers.put == []
    assert set(reasons(kubernetes, "consumergroups").values()) == {"ClusterNotFound"}


@pytest.mark.parametrize("kind", RECONCILE)
async def test_a_defect_in_one_object_holds_up_no_other_one(
    kind: str, kubernetes: Kubernetes, kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status of the object says that the operator has failed on it."""
    plural, module = PLURALS[kind], sys.modules[RECONCILE[kind].__module__]
    name = {"Topic": "topic_of", "ConsumerGroup": "group_of", "User": "user_of"}[kind]
    read = getattr(module, name)

    def defective(manifest: Manifest) -> Any:
        return manifest["missing"] if manifest["metadata"]["name"] == "first" else read(manifest)

    monkeypatch.setattr(module, name, defective)
    manifests = [kubernetes.apply(resource(kind, name, CLUSTER_REF)) for name in ("first", "second")]
    pause = await RECONCILE[kind](context_with(kube), "default", "events", manifests, None)
    assert reasons(kubernetes, plural) == {"first": "InternalError", "second": "ClusterNotFound"}
    (condition,) = kubernetes.get(plural, "first")["status"]["conditions"]
    assert condition["status"] == "Unknown"
    assert "KeyError: 'missing'" in condition["message"]
    assert pause is not None


def test_a_message_that_no_status_could_hold_is_cut() -> None:
    """The API server would refuse the whole status, and the last good one would stay."""
    (entry,) = merged({}, [Condition("Ready", False, "Refused", "x" * 100_000)], 1, dt.datetime.now(dt.UTC))
    assert len(entry["message"]) == 32_768
