"""What is acted on is read anew: a watch may miss that an object was deleted (R25)."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from tests.support.fake_kubernetes import Kubernetes, Manifest
from tests.support.manifests import resource

from mainstem_operator.api import names
from mainstem_operator.brokers.errors import BrokersRefused
from mainstem_operator.kubernetes.client import Kube, Refused
from mainstem_operator.runtime import handlers
from mainstem_operator.runtime.context import Context
from mainstem_operator.runtime.handlers import Reconciler
from mainstem_operator.runtime.metrics import Metrics
from mainstem_operator.runtime.work_queue import GATHER_SECONDS, Key


def manifest(kind: str, name: str, **spec: Any) -> Manifest:
    return resource(kind, name, spec)


ROLES = Path(__file__).parents[4] / "helm/mainstem/templates/roles.yaml"
VERBS = {"GET": ("list", "get"), "PATCH": ("patch", "patch")}
CLUSTER = manifest("BrokerCluster", "events", brokers={"replicas": 1})
CLICKS = manifest("Topic", "clicks", clusterRef={"name": "events"})


async def _nothing(_: Manifest) -> None:
    """As the log-in of a BrokerCluster that is not secured."""


class Played:
    """A Reconciler whose reconciles only record what they are given."""

    def __init__(self, kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clusters: list[Manifest | None] = []
        self.topics: list[Manifest] = []
        context = SimpleNamespace(
            kube=kube, log_in=_nothing, metrics=Metrics(), forget_gone=lambda _present: None
        )
        self.reconciler = Reconciler(cast(Context, context), 1.0)

        async def cluster(_: Context, manifest: Manifest) -> None:
            self.clusters.append(manifest)

        async def topics(
            _: Context, __: str, ___: str, results: list[Manifest], there: Manifest | None
        ) -> None:
            self.topics, self.clusters = results, [there]

        monkeypatch.setattr(handlers, "reconcile_cluster", cluster)
        monkeypatch.setattr(handlers, "reconcile_topics", topics)

    def reported(self, kubernetes: Kubernetes, *manifests: Manifest) -> None:
        for item in manifests:
            self.reconciler.heard_of({"type": "ADDED"}, kubernetes.apply(item), item["kind"])

    async def dispatch(self, kind: Any) -> None:
        await self.reconciler._dispatch(Key(kind, "default", "events"))


async def test_a_topic_whose_deletion_no_event_reported_is_not_reconciled(
    monkeypatch: pytest.MonkeyPatch, kubernetes: Kubernetes, kube: Kube
) -> None:
    played = Played(kube, monkeypatch)
    views = manifest("Topic", "views", clusterRef={"name": "events"})
    others = manifest("Topic", "others", clusterRef={"name": "elsewhere"})
    played.reported(kubernetes, CLUSTER, CLICKS, views, others)
    del kubernetes.objects["topics", "default", "clicks"]
    await played.dispatch("topics")
    assert [item["metadata"]["name"] for item in played.topics] == ["views"]
    assert {item["kind"] for item in played.topics} == {"Topic"}
    assert Key("topics", "default", "elsewhere") in played.reconciler._keys()


async def test_a_cluster_whose_deletion_no_event_reported_is_not_reconciled(
    monkeypatch: pytest.MonkeyPatch, kubernetes: Kubernetes, kube: Kube
) -> None:
    played = Played(kube, monkeypatch)
    played.reported(kubernetes, CLUSTER, CLICKS)
    del kubernetes.objects["brokerclusters", "default", "events"]
    await played.dispatch("topics")
    assert played.clusters == [None]
    await played.dispatch("cluster")
    assert played.clusters == [None]
    assert played.reconciler._keys() == {Key("topics", "default", "events")}, "of the Topic alone"


async def test_an_object_that_a_cluster_has_left_behind_has_the_loads_looked_at(
    monkeypatch: pytest.MonkeyPatch, kube: Kube
) -> None:
    """Neither a BrokerCluster nor a Topic may be left that would have them suspended (R25)."""
    played = Played(kube, monkeypatch)
    played.reconciler._leads = True
    labels = {"mainstem.dev/cluster": "events", "app.kubernetes.io/managed-by": "mainstem-operator"}
    left = {"name": "events-broker", "namespace": "default", "labels": labels}
    controlled = {**left, "ownerReferences": [{"uid": "u-1", "controller": True}]}
    played.reconciler.heard_of_part({"metadata": controlled})
    assert not played.reconciler.queue._due
    played.reconciler.heard_of_part({"metadata": left})
    assert set(played.reconciler.queue._due) == {Key("topics", "default", "events")}


async def test_an_object_left_behind_is_looked_at_by_the_replica_that_leads_later(
    monkeypatch: pytest.MonkeyPatch, kube: Kube
) -> None:
    """Also if it is the pod of a CronJob, since no event reports CronJobs (R25)."""
    played = Played(kube, monkeypatch)
    labels = {"mainstem.dev/cluster": "events", "app.kubernetes.io/component": "loader"}
    pod = {"name": "clicks-load-1", "namespace": "default", "labels": labels}
    owners = [{"uid": "u-1", "controller": True}]
    played.reconciler.heard_of_part({"metadata": {**pod, "ownerReferences": owners}})
    assert not played.reconciler.queue._due, "another replica leads"
    key = Key("topics", "default", "events")
    assert played.reconciler._keys() == {key}
    await played.reconciler._look(key)
    assert played.reconciler._keys() == set()


async def test_a_cluster_is_reconciled_as_it_is_and_not_as_it_was_reported(
    monkeypatch: pytest.MonkeyPatch, kubernetes: Kubernetes, kube: Kube
) -> None:
    played = Played(kube, monkeypatch)
    played.reported(kubernetes, CLUSTER)
    kubernetes.apply(manifest("BrokerCluster", "events", brokers={"replicas": 3}))
    await played.dispatch("cluster")
    (seen,) = played.clusters
    assert seen is not None
    assert seen["spec"]["brokers"]["replicas"] == 3


@pytest.mark.parametrize("namespaces", [(), ("default", "empty")])
async def test_what_no_watch_has_reported_is_found_by_the_resync(
    monkeypatch: pytest.MonkeyPatch, kubernetes: Kubernetes, kube: Kube, namespaces: tuple[str, ...]
) -> None:
    """A watch that has failed is not begun again, and the others go on."""
    played = Played(kube, monkeypatch)
    played.reconciler._leads = True
    kubernetes.apply(CLUSTER)
    kubernetes.apply(CLICKS)
    kubernetes.apply(manifest("ConsumerGroup", "billing", clusterRef={"name": "events"}))
    kubernetes.fails = lambda method, key, _: 403 if key[0] == "users" else 0
    assert played.reconciler._keys() == set()
    await played.reconciler._list(namespaces)
    kinds: list[Any] = ["cluster", "topics", "groups"]
    assert played.reconciler._keys() == {Key(kind, "default", "events") for kind in kinds}
    due_s = played.reconciler.queue._due
    # Not a resync's random time later: the event of an object that is known already queues nothing.
    assert due_s[Key("cluster", "default", "events")] <= asyncio.get_running_loop().time() + GATHER_SECONDS


def rights_in_every_namespace() -> set[tuple[str, str]]:
    """Resource and verb, as the chart's ClusterRole grants them whatever namespaces are watched."""
    result = re.search(
        r'^kind: ClusterRole\nmetadata:\n  name: {{ include "mainstem.clusterName" . \| quote }}\n'
        r".*?^rules:\n(.*?)^---$",
        ROLES.read_text(),
        re.MULTILINE | re.DOTALL,
    )
    assert result
    rules = yaml.safe_load(result[1])
    return {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}


async def test_a_topic_goes_with_its_namespace_though_the_role_there_went_first(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    """Else nobody would remove its finalizer, and the namespace would never be gone."""
    held = manifest("Topic", "clicks", clusterRef={"name": "events"}, deletionPolicy="Delete")
    held["metadata"]["finalizers"] = [names.FINALIZER]
    kubernetes.apply(held)
    kubernetes.delete("topics", "clicks")
    rights = rights_in_every_namespace()
    refused = set()

    def refuses(method: str, key: tuple[str, str, str], subresource: str) -> int:
        request = f"{key[0]}/{subresource}" if subresource else key[0], VERBS[method][bool(key[2])]
        if request in rights:
            return 0
        refused.add(request)
        return 403

    kubernetes.fails = refuses
    reconciler = Reconciler(cast(Any, Context)(kube, None, None, None, None, None, "ops"), 1.0)
    await reconciler._dispatch(Key("topics", "default", "events"))
    assert kubernetes.find("topics") == []
    assert refused == {("cronjobs", "list")}, "only what a BrokerCluster left behind is listed beyond them"


@pytest.mark.parametrize(
    ("error", "reason", "words"),
    [
        (ValueError("invalid literal"), "InternalError", "ValueError: invalid literal"),
        (Refused(403, "cannot list pods"), "KubernetesRefused", "Kubernetes refuses what the operator needs"),
    ],
)
async def test_a_look_that_ends_before_its_end_replaces_the_last_good_status(
    monkeypatch: pytest.MonkeyPatch,
    kubernetes: Kubernetes,
    kube: Kube,
    error: Exception,
    reason: str,
    words: str,
) -> None:
    """The status would else say that a manifest that nobody has read is carried out (R24)."""
    context = cast(Any, Context)(kube, None, None, None, Metrics(), None, "ops")
    context.log_in = _nothing
    reconciler = Reconciler(context, 1.0)

    async def defective(*_: object) -> None:
        raise error

    monkeypatch.setattr(handlers, "reconcile_cluster", defective)
    monkeypatch.setattr(handlers, "reconcile_topics", defective)
    good = {"status": "True", "reason": "Good", "lastTransitionTime": "2026-11-21T11:00:00Z"}
    for item in (CLUSTER, CLICKS):
        stored = kubernetes.apply(item)
        stored["metadata"]["generation"] = 2
        stored["status"] = {
            "observedGeneration": 1,
            "conditions": [{"type": "Ready", **good}, {"type": "Stable", **good}],
        }
    assert await reconciler._look(Key("cluster", "default", "events")) == handlers._RETRY_SECONDS
    assert await reconciler._look(Key("topics", "default", "events")) == handlers._RETRY_SECONDS
    status = kubernetes.get("brokerclusters", "events")["status"]
    assert status["observedGeneration"] == 2
    found = {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]}
    assert found == {"Ready": ("Unknown", reason), "Stable": ("False", reason)}
    assert words in status["conditions"][0]["message"]
    (ready,) = [
        item for item in kubernetes.get("topics", "clicks")["status"]["conditions"] if item["type"] == "Ready"
    ]
    assert (ready["status"], ready["reason"], ready["observedGeneration"]) == ("Unknown", reason, 2)


async def test_what_a_look_that_ended_has_not_measured_is_unknown(
    monkeypatch: pytest.MonkeyPatch, kubernetes: Kubernetes, kube: Kube
) -> None:
    """Also that the resident loader loads: nobody has read its page (R30, R26)."""
    context = cast(Any, Context)(kube, None, None, None, Metrics(), None, "ops")
    context.log_in = _nothing
    reconciler = Reconciler(context, 1.0)

    async def defective(*_: object) -> None:
        raise ValueError("invalid literal")

    monkeypatch.setattr(handlers, "reconcile_topics", defective)
    monkeypatch.setattr(handlers, "reconcile_groups", defective)
    good = {"status": "True", "reason": "Good", "lastTransitionTime": "2026-11-21T11:00:00Z"}
    reference = {"name": "events"}
    for item, measured in (
        (manifest("Topic", "clicks", clusterRef=reference, warehouse={"freshness": "60s"}), "Loaded"),
        (manifest("Topic", "orders", clusterRef=reference, warehouse={"schedule": "@hourly"}), "Fresh"),
        (manifest("ConsumerGroup", "readers", clusterRef=reference), "WithinSLO"),
    ):
        kubernetes.apply(item)["status"] = {"conditions": [{"type": measured, **good}]}
    for kind in ("topics", "groups"):
        await reconciler._look(Key(cast(Any, kind), "default", "events"))
    for plural, name in (("topics", "clicks"), ("topics", "orders"), ("consumergroups", "readers")):
        conditions = kubernetes.get(plural, name)["status"]["conditions"]
        assert len(conditions) == 2
        assert {item["status"] for item in conditions} == {"Unknown"}


async def test_what_brokers_refuse_of_all_topics_again_replaces_the_last_good_status(
    monkeypatch: pytest.MonkeyPatch, kubernetes: Kubernetes, kube: Kube
) -> None:
    """As of an operator that they no longer let in. Once may be an election (R24)."""
    context = cast(Any, Context)(kube, None, None, None, Metrics(), None, "ops")
    context.log_in = _nothing
    reconciler = Reconciler(context, 1.0)

    async def refused(*_: object) -> None:
        raise BrokersRefused("CLUSTER_AUTHORIZATION_FAILED", "Cluster authorization failed.")

    monkeypatch.setattr(handlers, "reconcile_topics", refused)
    kubernetes.apply(CLUSTER)
    stored = kubernetes.apply(CLICKS)
    good = {"status": "True", "reason": "Good", "lastTransitionTime": "2026-11-21T11:00:00Z"}
    stored["status"] = {"observedGeneration": 1, "conditions": [{"type": "Ready", **good}]}
    for expected in (("True", "Good"), ("Unknown", "KafkaError")):
        await reconciler._look(Key("topics", "default", "events"))
        (ready,) = kubernetes.get("topics", "clicks")["status"]["conditions"]
        assert (ready["status"], ready["reason"]) == expected
    assert "Cluster authorization failed." in ready["message"]


async def test_an_error_of_the_api_server_that_lasts_replaces_the_last_good_status(
    monkeypatch: pytest.MonkeyPatch, kubernetes: Kubernetes, kube: Kube
) -> None:
    """As of a full etcd. Once may be a restart, and a conflict is an object that has changed (R24)."""
    context = cast(Any, Context)(kube, None, None, None, Metrics(), None, "ops")
    context.log_in = _nothing
    reconciler = Reconciler(context, 1.0)
    errors = [Refused(409, "changed"), Refused(409, "changed"), Refused(500, "etcdserver: no space")]
    told = [("True", "Good"), ("True", "Good"), ("Unknown", "KubernetesRefused")]

    async def refused(*_: object) -> None:
        raise errors.pop(0)

    monkeypatch.setattr(handlers, "reconcile_cluster", refused)
    stored = kubernetes.apply(CLUSTER)
    good = {"status": "True", "reason": "Good", "lastTransitionTime": "2026-11-21T11:00:00Z"}
    stored["status"] = {"observedGeneration": 1, "conditions": [{"type": "Ready", **good}]}
    for expected in told:
        await reconciler._look(Key("cluster", "default", "events"))
        conditions = kubernetes.get("brokerclusters", "events")["status"]["conditions"]
        ready = next(item for item in conditions if item["type"] == "Ready")
        assert (ready["status"], ready["reason"]) == expected
    assert "etcdserver: no space" in ready["message"]


def test_a_cluster_that_is_being_deleted_is_looked_at_with_all_that_names_it() -> None:
    """Its ConsumerGroups, too: nobody answers for them soon."""
    reconciler = Reconciler(cast(Context, None), 1.0)
    reconciler._leads = True
    queued: list[Key] = []
    reconciler.queue = cast(Any, SimpleNamespace(add=queued.append))
    metadata = {"name": "events", "namespace": "default", "uid": "u"}
    reconciler.heard_of({"type": "ADDED"}, {"metadata": metadata}, "BrokerCluster")
    queued.clear()
    going = {**metadata, "deletionTimestamp": "2026-11-21T11:00:00Z"}
    reconciler.heard_of({"type": "MODIFIED"}, {"metadata": going}, "BrokerCluster")
    assert {key.kind for key in queued} == {"cluster", "topics", "groups", "users"}
