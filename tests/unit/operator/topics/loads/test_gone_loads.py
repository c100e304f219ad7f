"""A load goes with its Topic and with its BrokerCluster, whichever goes first (R23, R28)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tests.support.fake_kubernetes import Kubernetes, Manifest
from tests.support.manifests import resource

from mainstem_operator.api import names
from mainstem_operator.api.clusters import Images, cluster_of
from mainstem_operator.api.topics import topic_of
from mainstem_operator.kubernetes.client import Kube
from mainstem_operator.runtime.context import Context
from mainstem_operator.runtime.metrics import Metrics
from mainstem_operator.topics.loads.plan import load_manifest
from mainstem_operator.topics.reconcile import reconcile_topics


def applied_cluster(kubernetes: Kubernetes) -> Manifest:
    return kubernetes.apply(
        resource(
            "BrokerCluster",
            "events",
            {"brokers": {"replicas": 3}, "warehouse": {"location": "s3://lake/events"}},
        )
    )


def applied_load(kubernetes: Kubernetes, cluster: Manifest, topic: str) -> tuple[Manifest, Manifest]:
    """A Topic and its CronJob."""
    spec = {"clusterRef": {"name": "events"}, "warehouse": {"schedule": "* * * * *"}}
    made = kubernetes.apply(resource("Topic", topic, spec))
    cron_job = load_manifest(topic_of(made), cluster_of(cluster), Images())
    assert isinstance(cron_job, dict)
    return made, kubernetes.apply(cron_job)


def loads_in(kubernetes: Kubernetes) -> list[str]:
    return [item["metadata"]["name"] for item in kubernetes.find("cronjobs")]


async def look(kube: Kube, topics: list[Manifest], cluster: Manifest, *, may_act: bool = True) -> None:
    """One look while no broker is ready."""

    async def acts() -> bool:
        return may_act

    async def say(*_: Any) -> None:
        pass

    ways_to_say = dict.fromkeys(("say", "say_unseen", "say_invalid", "say_deleting", "say_defects"), say)
    context = SimpleNamespace(kube=kube, may_act=acts, metrics=Metrics(), **ways_to_say)
    await reconcile_topics(cast(Context, context), "default", "events", topics, cluster)


async def test_loads_of_topics_that_are_gone_are_deleted_even_if_no_broker_is_ready(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    cluster = applied_cluster(kubernetes)
    kept, _ = applied_load(kubernetes, cluster, "kept")
    going, _ = applied_load(kubernetes, cluster, "going")
    applied_load(kubernetes, cluster, "gone")
    wrong, _ = applied_load(kubernetes, cluster, "wrong")
    going["metadata"]["deletionTimestamp"] = "2026-11-21T11:00:00Z"
    wrong["spec"]["partitions"] = "many"
    await look(kube, [kept, going, wrong], cluster, may_act=False)
    assert loads_in(kubernetes) == ["going-load", "gone-load", "kept-load", "wrong-load"]
    await look(kube, [kept, going, wrong], cluster)
    assert loads_in(kubernetes) == ["kept-load", "wrong-load"]
    await look(kube, [], cluster)
    assert loads_in(kubernetes) == []


async def test_only_loads_that_the_cluster_owns_are_deleted(kubernetes: Kubernetes, kube: Kube) -> None:
    """Anybody can set the labels; a CronJob with another owner, or with none, is not ours."""
    cluster = applied_cluster(kubernetes)
    for name, owners in (
        ("free", []),
        ("another", [{"kind": "Topic", "name": "x", "uid": "x", "controller": True}]),
    ):
        labels = names.pod_labels("events", names.LOADER)
        metadata = {"name": name, "namespace": "default", "labels": labels, "ownerReferences": owners}
        kubernetes.apply({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": metadata, "spec": {}})
    await look(kube, [], cluster)
    assert loads_in(kubernetes) == ["another", "free"]


async def test_a_load_without_a_topic_that_a_cluster_of_the_same_name_has_left_behind_is_deleted(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    """As after `kubectl delete --cascade=orphan`, and the deletion of the Topic."""
    applied_load(kubernetes, applied_cluster(kubernetes), "gone")
    kubernetes.orphan("brokerclusters", "events")
    await look(kube, [], applied_cluster(kubernetes))
    assert loads_in(kubernetes) == []


async def test_a_copy_of_a_load_under_another_name_is_not_deleted(kubernetes: Kubernetes, kube: Kube) -> None:
    """It has our labels and our owner, and belongs to no Topic."""
    cluster = applied_cluster(kubernetes)
    topic, cron_job = applied_load(kubernetes, cluster, "orders")
    copied = {**cron_job, "metadata": {**cron_job["metadata"], "name": "orders-trial"}}
    kubernetes.apply(copied)
    await look(kube, [topic], cluster)
    assert loads_in(kubernetes) == ["orders-load", "orders-trial"]
