"""A Topic that is deleted goes, whatever is written to it meanwhile (R23)."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any, cast

from tests.support.fake_kubernetes import Kubernetes
from tests.support.manifests import resource

from mainstem_operator.api import names
from mainstem_operator.kubernetes.client import Kube
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
    await reconcile_topics(cast(Context, SimpleNamespace(kube=kube)), "default", "gone", [manifest], None)


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
