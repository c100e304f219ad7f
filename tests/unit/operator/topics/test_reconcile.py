"""What Kubernetes refuses of one Topic holds up no other one (R23)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tests.support.manifests import resource

from mainstem_operator.api.topics import topic_of
from mainstem_operator.kubernetes.client import Refused
from mainstem_operator.runtime.context import Context
from mainstem_operator.topics.plan import TopicsSeen, plan_topics
from mainstem_operator.topics.reconcile import _Batch


class PlayedKube:
    """Refuses every write of the Topic `first`."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.written: list[str] = []

    async def set_finalizers(self, manifest: dict[str, Any], finalizers: list[str]) -> None:
        if manifest["metadata"]["name"] == "first":
            raise Refused(self.status, "A policy refuses it.")
        self.written.append(manifest["metadata"]["name"])


def topic(name: str) -> dict[str, Any]:
    return resource("Topic", name, {"clusterRef": {"name": "events"}, "deletionPolicy": "Delete"}, uid=name)


async def told(*_: object) -> None:
    """A condition."""


async def test_a_topic_that_may_not_be_written_holds_up_no_other_one() -> None:
    for status in (403, 409, 422):
        kube = PlayedKube(status)
        context = SimpleNamespace(kube=kube, moves=lambda *_: None, say_unseen=told)
        pairs = [(manifest, topic_of(manifest)) for manifest in map(topic, ("first", "second"))]
        cluster = {"metadata": {"name": "events", "namespace": "default"}}
        batch = _Batch(cast(Context, context), cast(Any, None), pairs, cluster, [])
        await batch._set_finalizers()
        assert kube.written == ["second"]
        assert batch._alone.refused == {("default", "first")}


async def test_a_topic_that_may_not_be_written_keeps_its_claim() -> None:
    """A younger Topic of the same topic would else own it meanwhile, and add partitions."""
    context = SimpleNamespace(kube=PlayedKube(409), moves=lambda *_: None, say_unseen=told)
    pairs = []
    for second, name in enumerate(("first", "second")):
        manifest = topic(name)
        manifest["metadata"]["creationTimestamp"] = f"2026-11-21T11:00:0{second}Z"
        manifest["spec"]["topicName"] = "clicks"
        pairs.append((manifest, topic_of(manifest)))
    cluster = {"metadata": {"name": "events", "namespace": "default"}}
    batch = _Batch(cast(Context, context), cast(Any, None), pairs, cluster, [])
    await batch._set_finalizers()
    (plan,) = plan_topics(batch._claims([spec for _, spec in pairs]), {}, TopicsSeen({}, {}, {}, {}))
    assert plan.spec.identity.name == "second"
    assert plan.idle
    assert [refusal.reason for refusal in plan.refusals] == ["ResourceConflict"]
