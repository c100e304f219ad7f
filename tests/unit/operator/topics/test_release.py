"""A Topic that is deleted goes, whatever is written to it meanwhile (R23)."""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any, cast

import pytest
from tests.support.fake_kubernetes import Kubernetes
from tests.support.manifests import resource
from tests.unit.operator.played_context import context_with

from mainstem_operator.api import names
from mainstem_operator.api.timestamps import written
from mainstem_operator.brokers.errors import BrokersRefused
from mainstem_operator.brokers.topic_state import PartitionState, TopicState
from mainstem_operator.kubernetes.client import Kube
from mainstem_operator.proofs import TopicDeletion
from mainstem_operator.runtime.context import Context
from mainstem_operator.topics.reconcile import reconcile_topics

KEY = ("topics", "default", "events")


def held_topic(kubernetes: Kubernetes) -> None:
    kubernetes.apply(
        resource(
            "Topic",
            "events",
            {"clusterRef": {"name": "gone"}, "deletionPolicy": "Delete"},
            finalizers=[names.FINALIZER],
        )
    )
    kubernetes.delete("topics", "events")


async def look(kube: Kube, manifest: dict[str, Any]) -> None:
    """One look at a Topic whose BrokerCluster is gone, as it was when it was read."""
    context = cast(Any, Context)(kube, None, None, None, None, None, "ops")
    await reconcile_topics(context, "default", "gone", [manifest], None)


async def test_a_status_written_since_it_was_read_does_not_hold_it(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    """The look before wrote it as the Topic was deleted; no other look follows such a change."""
    held_topic(kubernetes)
    read = copy.deepcopy(kubernetes.objects[KEY])
    await kube.apply_status(read, {"partitions": 1})
    await look(kube, read)
    assert KEY not in kubernetes.objects


async def test_what_a_person_has_changed_since_waits_for_the_look_that_follows(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    held_topic(kubernetes)
    read = copy.deepcopy(kubernetes.objects[KEY])
    changed = copy.deepcopy(kubernetes.objects[KEY])
    changed["spec"]["partitions"] = 7
    kubernetes.apply(
        {name: changed[name] for name in ("apiVersion", "kind", "spec")}
        | {"metadata": {"name": "events", "namespace": "default", "finalizers": [names.FINALIZER]}}
    )
    await look(kube, read)
    assert kubernetes.objects[KEY]["metadata"]["finalizers"] == [names.FINALIZER]
    await look(kube, kubernetes.objects[KEY])
    assert KEY not in kubernetes.objects


async def test_a_refused_removal_of_the_finalizer_is_reported_and_holds_up_no_other_topic(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    """As an admission policy does that is newer than the Topic (R23)."""
    held_topic(kubernetes)
    other = resource("Topic", "other", {"clusterRef": {"name": "gone"}})
    manifests = copy.deepcopy([kubernetes.objects[KEY], kubernetes.apply(other)])
    kubernetes.fails = lambda method, key, subresource: (
        422 if (method, key, subresource) == ("PATCH", KEY, "") else 0
    )
    context = cast(Any, Context)(kube, None, None, None, None, None, "ops")
    assert await reconcile_topics(context, "default", "gone", manifests, None) is not None
    (condition,) = kubernetes.objects[KEY]["status"]["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "FinalizerRefused")
    assert "PATCH of events fails." in condition["message"]
    assert "`kubectl edit`" in condition["message"]
    (event,) = kubernetes.find("events")
    assert (event["reason"], event["type"]) == ("FinalizerRefused", "Warning")
    assert kubernetes.get("topics", "other")["status"]["conditions"][0]["reason"] == "ClusterNotFound"


async def test_a_deletion_that_waits_for_a_broker_says_until_when_and_then_that_the_topic_is_kept(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    held_topic(kubernetes)
    context = cast(Any, Context)(kube, None, None, None, None, None, "ops")
    there = {"metadata": {"name": "gone", "namespace": "default", "uid": "u"}, "status": {"brokersReady": 0}}
    read = copy.deepcopy(kubernetes.objects[KEY])
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    read["metadata"]["deletionTimestamp"] = written(now - dt.timedelta(minutes=4))
    await reconcile_topics(context, "default", "gone", [read], there)
    (condition,) = kubernetes.objects[KEY]["status"]["conditions"]
    assert (condition["status"], condition["reason"]) == ("Unknown", "DeletionWaits")
    assert written(now + dt.timedelta(minutes=1)) in condition["message"]
    assert "After that the topic is kept." in condition["message"]
    assert kubernetes.find("events") == []

    read["metadata"]["deletionTimestamp"] = written(now - dt.timedelta(minutes=6))
    await reconcile_topics(context, "default", "gone", [read], there)
    assert KEY not in kubernetes.objects
    (event,) = kubernetes.find("events")
    assert (event["reason"], event["type"]) == ("TopicKept", "Warning")


async def test_a_topic_whose_manifest_is_not_valid_is_kept_when_it_goes_and_an_event_says_so(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    held_topic(kubernetes)
    context = cast(Any, Context)(kube, None, None, None, None, None, "ops")
    read = copy.deepcopy(kubernetes.objects[KEY])
    read["spec"]["partitions"] = "many"
    await reconcile_topics(context, "default", "gone", [read], None)
    assert KEY not in kubernetes.objects
    (event,) = kubernetes.find("events")
    assert event["reason"] == "TopicKept"


async def test_the_event_of_an_object_with_the_longest_name_has_a_name_that_kubernetes_takes(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    context = cast(Any, Context)(kube, None, None, None, None, None, "ops")
    await context.event(resource("Topic", "t" * 253, {}), "TopicKept", "It is kept.")
    (event,) = kubernetes.find("events")
    assert len(event["metadata"]["name"]) == 253


async def test_a_topic_without_its_cluster_says_why_it_is_not_loaded(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    """Its CronJob has gone with the BrokerCluster, and the last word of `Loaded` would stay (R30)."""
    spec = {"clusterRef": {"name": "gone"}, "warehouse": {"schedule": "@hourly"}}
    stored = copy.deepcopy(kubernetes.apply(resource("Topic", "events", spec)))
    context = cast(Any, Context)(kube, None, None, None, None, None, "ops")
    await reconcile_topics(context, "default", "gone", [stored], None)
    conditions = {item["type"]: item for item in kubernetes.objects[KEY]["status"]["conditions"]}
    assert conditions["Loaded"]["status"] == "False"
    assert conditions["Loaded"]["reason"] == conditions["Ready"]["reason"] == "ClusterNotFound"


class PlayedBrokers:
    """Brokers with the topic `events`, of which `refuses` is the error when it is to be deleted."""

    def __init__(self, refuses: BrokersRefused | None = None) -> None:
        self.grown: dict[str, int] = {}
        self.there = {"events": TopicState("events", "id", {0: PartitionState(0, (0,), frozenset({0}))})}
        self.refuses = refuses

    async def topics(self, topic_names: Iterable[str]) -> dict[str, TopicState]:
        return {name: self.there[name] for name in topic_names if name in self.there}

    async def racks(self) -> dict[int, None]:
        return {0: None}

    async def moves(self) -> dict[Any, Any]:
        return {}

    async def settings(self, _: Iterable[str]) -> dict[str, dict[str, str]]:
        return {}

    async def grow_topics(self, growths: Mapping[str, int]) -> dict[str, BrokersRefused]:
        self.grown |= growths
        return {}

    async def delete_topic(self, proof: TopicDeletion) -> None:
        if self.refuses is not None:
            raise self.refuses
        del self.there[proof.topic]


THERE = {
    **resource("BrokerCluster", "gone", {"brokers": {"replicas": 1}}, uid="u"),
    "status": {"brokersReady": 1},
}


async def look_again(
    kubernetes: Kubernetes, kube: Kube, brokers: PlayedBrokers, *invalid: Any
) -> float | None:
    context = context_with(kube, brokers)
    manifests = copy.deepcopy([kubernetes.objects[KEY], *invalid])
    return await reconcile_topics(context, "default", "gone", manifests, THERE)


async def owned_topic(kubernetes: Kubernetes, kube: Kube, *others: str) -> None:
    held_topic(kubernetes)
    kubernetes.objects[KEY]["metadata"]["finalizers"] += others
    await kube.apply_status(kubernetes.objects[KEY], {"topicId": "id"})


async def test_a_deletion_that_brokers_refuse_says_so_until_the_topic_is_kept(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    """As they do where delete.topic.enable is false; the look writes nothing when it is as it was."""
    await owned_topic(kubernetes, kube)
    brokers = PlayedBrokers(BrokersRefused("TOPIC_DELETION_DISABLED", "Topic deletion is disabled."))
    assert await look_again(kubernetes, kube, brokers) is not None
    (condition,) = [
        item for item in kubernetes.objects[KEY]["status"]["conditions"] if item["type"] == "Ready"
    ]
    assert (condition["status"], condition["reason"]) == ("False", "KafkaError")
    assert "Topic deletion is disabled." in condition["message"]
    assert "After that the topic is kept." in condition["message"]
    writes = len([path for method, path in kubernetes.writes if path.endswith("/status")])
    await look_again(kubernetes, kube, brokers)
    assert len([path for method, path in kubernetes.writes if path.endswith("/status")]) == writes


async def test_a_topic_that_finalizers_of_others_hold_is_not_ready(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    await owned_topic(kubernetes, kube, "example.com/backup")
    brokers = PlayedBrokers()
    await look_again(kubernetes, kube, brokers)
    assert brokers.there == {}
    for _ in range(2):
        (condition,) = kubernetes.objects[KEY]["status"]["conditions"]
        assert (condition["status"], condition["reason"]) == ("False", "Deleting")
        assert "example.com/backup" in condition["message"]
        await look_again(kubernetes, kube, brokers)


async def test_a_topic_is_kept_that_another_one_claims_whose_manifest_is_not_valid(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    await owned_topic(kubernetes, kube)
    other = resource(
        "Topic", "other", {"clusterRef": {"name": "gone"}, "topicName": "events", "partitions": "x"}
    )
    brokers = PlayedBrokers()
    await look_again(kubernetes, kube, brokers, kubernetes.apply(other))
    assert list(brokers.there) == ["events"]
    assert KEY not in kubernetes.objects
    (event,) = kubernetes.find("events")
    assert "The Topic other claims the same topic" in event["message"]


async def test_the_name_of_an_event_is_valid_wherever_that_of_its_object_is_cut(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    context = cast(Any, Context)(kube, None, None, None, None, None, "ops")
    await context.event(resource("Topic", "t" * 235 + "-." + "t" * 16, {}), "TopicKept", "It is kept.")
    (event,) = kubernetes.find("events")
    assert event["metadata"]["name"].startswith("t" * 235 + ".")


async def test_nobody_says_that_a_table_is_fresh_without_a_cluster(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    spec = {"clusterRef": {"name": "gone"}, "warehouse": {"schedule": "@hourly"}}
    kubernetes.apply(resource("Topic", "events", spec))
    fresh = {"type": "Fresh", "status": "True", "reason": "LoadedRecently", "message": ""}
    fresh["lastTransitionTime"] = "2026-11-21T11:00:00Z"
    for there in (None, {**THERE, "status": {}}):
        kubernetes.objects[KEY]["status"] = {"conditions": [fresh]}
        stored = copy.deepcopy(kubernetes.objects[KEY])
        await reconcile_topics(context_with(kube), "default", "gone", [stored], there)
        conditions = {item["type"]: item for item in kubernetes.objects[KEY]["status"]["conditions"]}
        assert conditions["Fresh"]["status"] == "Unknown"


async def test_nobody_says_that_a_table_is_fresh_while_the_finalizer_of_its_topic_is_refused(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    spec = {"clusterRef": {"name": "gone"}, "deletionPolicy": "Delete", "warehouse": {"freshness": "60s"}}
    kubernetes.apply(resource("Topic", "events", spec))
    good = {"status": "True", "reason": "Good", "message": "", "lastTransitionTime": "2026-11-21T11:00:00Z"}
    kubernetes.objects[KEY]["status"] = {
        "conditions": [{"type": name, **good} for name in ("Fresh", "Loaded")]
    }
    kubernetes.fails = lambda method, key, subresource: (
        422 if (method, key, subresource) == ("PATCH", KEY, "") else 0
    )
    stored = copy.deepcopy(kubernetes.objects[KEY])
    await reconcile_topics(context_with(kube, PlayedBrokers()), "default", "gone", [stored], THERE)
    conditions = {item["type"]: item for item in kubernetes.objects[KEY]["status"]["conditions"]}
    assert conditions["Ready"]["reason"] == "FinalizerRefused"
    assert {conditions[name]["status"] for name in ("Fresh", "Loaded")} == {"Unknown"}


@pytest.mark.parametrize("beside", [True, False])
async def test_an_alert_of_a_table_does_not_end_because_its_topic_is_no_longer_valid(
    beside: bool, kubernetes: Kubernetes, kube: Kube
) -> None:
    """Nobody measures it then (R30). It ends with the Topic, also if no other one is left."""
    brokers = PlayedBrokers()
    brokers.there["other"] = TopicState("other", "id-2", brokers.there["events"].partitions)
    context = context_with(kube, brokers)
    spec = {"clusterRef": {"name": "gone"}, "warehouse": {"freshness": "60s"}}
    others = [resource("Topic", "other", {"clusterRef": {"name": "gone"}})] if beside else []

    async def gauges(*topics: Any) -> tuple[float | None, float | None]:
        """Up to when the table of `events` is loaded, and whether its loads reject, after a look."""
        for topic in topics:
            kubernetes.apply(topic)
        kubernetes.objects[KEY]["status"] = {"loadedUpTo": "2026-11-21T11:00:00Z"}
        manifests = copy.deepcopy(
            [kubernetes.get("topics", topic["metadata"]["name"]) for topic in (*topics, *others)]
        )
        await reconcile_topics(context, "default", "gone", manifests, THERE)
        labels = {"namespace": "default", "cluster": "gone", "topic": "events"}
        value = context.metrics.registry.get_sample_value
        return (
            value("mainstem_topic_loaded_up_to_timestamp_seconds", labels),
            value("mainstem_topic_records_rejected", labels),
        )

    for other in others:
        kubernetes.apply(other)
    up_to = dt.datetime(2026, 11, 21, 11, 0, tzinfo=dt.UTC).timestamp()
    topic = resource("Topic", "events", spec)
    assert await gauges(topic) == (up_to, 0)
    assert await gauges({**topic, "spec": {**spec, "partitions": "many"}}) == (up_to, 0)
    assert await gauges(topic) == (up_to, 0)
    assert await gauges() == (None, None)


@pytest.mark.parametrize(
    ("older", "annotations", "grown"),
    [
        ({"partitions": "many"}, {}, {}),
        ({"config": 7}, {}, {}),
        ({}, {names.MANAGED: "yes please"}, {}),
        ({"partitions": "many"}, {names.MANAGED: "false"}, {"events": 7}),
        ({"partitions": "many", "topicName": "others"}, {}, {"events": 7}),
    ],
    ids=["number", "map", "annotation", "unmanaged", "another topic"],
)
async def test_an_older_topic_whose_manifest_is_not_valid_keeps_its_claim(
    older: Any, annotations: dict[str, str], grown: dict[str, int], kubernetes: Kubernetes, kube: Kube
) -> None:
    """Else a younger one would own the topic meanwhile, and add partitions for ever (R23)."""
    manifests = []
    for second, (name, spec) in enumerate({"first": older, "second": {"partitions": 7}}.items()):
        full = {"clusterRef": {"name": "gone"}, "topicName": "events", **spec}
        manifest = kubernetes.apply(resource("Topic", name, full))
        manifest["metadata"]["creationTimestamp"] = f"2026-11-21T11:00:0{second}Z"
        manifests.append(manifest)
    manifests[0]["metadata"]["annotations"] = annotations
    brokers = PlayedBrokers()
    await reconcile_topics(context_with(kube, brokers), "default", "gone", manifests, THERE)
    assert brokers.grown == grown
    reasons = {
        name: condition["reason"]
        for name in ("first", "second")
        for condition in kubernetes.get("topics", name)["status"]["conditions"]
        if condition["type"] == "Ready"
    }
    assert reasons == {"first": "InvalidSpec", "second": "Synced" if grown else "ResourceConflict"}
