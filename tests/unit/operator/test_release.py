"""A Topic that is deleted goes, whatever is written to it meanwhile (R23)."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.connected_kube import connected
from tests.support.fake_kubernetes import Kubernetes

from mainstem_operator import names
from mainstem_operator.context import Context
from mainstem_operator.kube import Kube
from mainstem_operator.reconcile_topics import reconcile_topics

KEY = ("topics", "default", "events")


def held_topic(kubernetes: Kubernetes) -> None:
    kubernetes.apply(
        {
            "apiVersion": names.API_VERSION,
            "kind": "Topic",
            "metadata": {"name": "events", "namespace": "default", "finalizers": [names.FINALIZER]},
            "spec": {"clusterRef": {"name": "gone"}, "deletionPolicy": "Delete"},
        }
    )
    kubernetes.delete("topics", "events")


async def look(kube: Kube, manifest: dict[str, Any]) -> None:
    """One look at a Topic whose Cluster is gone, as it was when it was read."""
    await reconcile_topics(cast(Context, SimpleNamespace(kube=kube)), "default", "gone", [manifest], None)


def test_a_status_written_since_it_was_read_does_not_hold_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look before wrote it as the Topic was deleted; no other look follows such a change."""

    async def test() -> None:
        async with connected(tmp_path, monkeypatch) as (kubernetes, kube):
            held_topic(kubernetes)
            read = copy.deepcopy(kubernetes.objects[KEY])
            await kube.apply_status(read, {"partitions": 1})
            await look(kube, read)
            assert KEY not in kubernetes.objects

    asyncio.run(test())


def test_what_a_person_has_changed_since_waits_for_the_look_that_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with connected(tmp_path, monkeypatch) as (kubernetes, kube):
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

    asyncio.run(test())
