"""What kopf tells us, and what we do with it: remember the object, and queue its Cluster. No decisions.

Only raw events are used: kopf then writes nothing of its own, neither annotations nor finalizers, and
needs no operator to let a namespace go. Everything else is found by looking (`reconcile_*.py`).
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from typing import Any, Final

import kopf
import structlog

from mainstem_operator import names
from mainstem_operator.admin import BrokersRefused, BrokersUnreachable
from mainstem_operator.context import Context
from mainstem_operator.fields import Object
from mainstem_operator.kube import Refused
from mainstem_operator.reconcile_cluster import reconcile_cluster
from mainstem_operator.reconcile_groups import reconcile_groups
from mainstem_operator.reconcile_topics import reconcile_topics
from mainstem_operator.work_queue import Key, WorkQueue

logger = structlog.get_logger(__name__)

WORKERS: Final = 4
_RETRY_SECONDS: Final = 10.0
_UNREACHABLE_SECONDS: Final = 15.0
_JITTER: Final = 0.1

Store = dict[tuple[str, str], Object]


class Reconciler:
    """The objects as the watches tell them, the queue, and the tasks that work on it."""

    def __init__(self, context: Context, resync_seconds: float) -> None:
        self.queue = WorkQueue()
        self.heard = time.monotonic()
        self._context = context
        self._resync_seconds = resync_seconds
        self._stores: dict[str, Store] = {"Cluster": {}, "Topic": {}, "ConsumerGroup": {}}
        self._began: dict[Key, float] = {}

    def stuck_seconds(self) -> float:
        """How long the longest look that is under way has lasted."""
        return time.monotonic() - min(self._began.values(), default=time.monotonic())

    # --- What is told ---

    def heard_of(self, event: Any, body: Any, kind: str) -> None:
        """An event about one of our own objects."""
        self.heard = time.monotonic()
        metadata = body["metadata"]
        key = metadata["namespace"], metadata["name"]
        store = self._stores[kind]
        known = store.get(key)
        if event.get("type") == "DELETED":
            store.pop(key, None)
        else:
            store[key] = {**body, "kind": kind, "apiVersion": names.API_VERSION}
        if known is not None and event.get("type") != "DELETED" and not _differs(known, body):
            return  # our own write of the status, most of the time
        if kind == "Cluster":
            self.queue.add(Key("cluster", *key))
            if known is None or event.get("type") == "DELETED":
                self.queue.add(Key("topics", *key))
                self.queue.add(Key("groups", *key))
            return
        cluster = ((body.get("spec") or {}).get("clusterRef") or {}).get("name")
        if cluster:
            self.queue.add(Key("topics" if kind == "Topic" else "groups", metadata["namespace"], cluster))

    def heard_of_part(self, body: Any) -> None:
        """An event about a pod or a StatefulSet of a Cluster."""
        self.heard = time.monotonic()
        metadata = body["metadata"]
        labels = metadata.get("labels") or {}
        cluster = labels.get(names.CLUSTER_LABEL)
        if cluster and (metadata["namespace"], cluster) in self._stores["Cluster"]:
            is_load = labels.get(names.COMPONENT_LABEL) == names.LOADER
            self.queue.add(Key("topics" if is_load else "cluster", metadata["namespace"], cluster))

    # --- What is done ---

    async def run(self, leading: Callable[[], Any]) -> None:
        """Work, once this replica leads, until it is cancelled."""
        await leading()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._resync())
            for _ in range(WORKERS):
                tasks.create_task(self.queue.work(self._look))

    async def _resync(self) -> None:
        """Look at everything now and then: what is told can be missed, and drift is told by nobody."""
        while True:
            for key in self._keys():
                self.queue.add(key, random.uniform(0, self._resync_seconds * _JITTER))
            await asyncio.sleep(self._resync_seconds)

    def _keys(self) -> set[Key]:
        keys = {Key("cluster", *key) for key in self._stores["Cluster"]}
        for kind, queue_kind in (("Topic", "topics"), ("ConsumerGroup", "groups")):
            for (namespace, _), manifest in self._stores[kind].items():
                cluster = ((manifest.get("spec") or {}).get("clusterRef") or {}).get("name", "")
                keys.add(Key("topics" if queue_kind == "topics" else "groups", namespace, cluster))
        return keys

    async def _look(self, key: Key) -> float | None:
        """One look, with what went wrong told and tried again."""
        metrics = self._context.metrics
        metrics.queue.set(len(self.queue))
        began = self._began[key] = time.monotonic()
        result, again = "ok", None
        try:
            again = await self._dispatch(key)
        except BrokersUnreachable as error:
            result, again = "unreachable", _UNREACHABLE_SECONDS
            logger.info("brokers unreachable", key=key, error=str(error))
        except (Refused, BrokersRefused, OSError, TimeoutError) as error:
            result, again = "refused", _RETRY_SECONDS
            logger.warning("look failed", key=key, error=str(error) or type(error).__name__)
        except Exception:  # a defect in one Cluster must not stop the others
            result, again = "error", _RETRY_SECONDS
            logger.exception("look ended by a defect", key=key)
        del self._began[key]
        metrics.reconciles.labels(key.kind, result).inc()
        metrics.duration.labels(key.kind).observe(time.monotonic() - began)
        if result == "ok":
            metrics.last_success.labels(key.kind, key.namespace, key.name).set(time.time())
        return again

    async def _dispatch(self, key: Key) -> float | None:
        cluster = self._stores["Cluster"].get((key.namespace, key.name))
        match key.kind:
            case "cluster":
                if cluster is None:
                    self._context.forget(key.namespace, key.name)
                    return None
                return await reconcile_cluster(self._context, cluster)
            case "topics":
                topics = self._of_cluster("Topic", key)
                return await reconcile_topics(self._context, key.namespace, key.name, topics, cluster)
            case "groups":
                groups = self._of_cluster("ConsumerGroup", key)
                return await reconcile_groups(self._context, key.namespace, key.name, groups, cluster)

    def _of_cluster(self, kind: str, key: Key) -> list[Object]:
        return [
            manifest
            for (namespace, _), manifest in self._stores[kind].items()
            if namespace == key.namespace
            and ((manifest.get("spec") or {}).get("clusterRef") or {}).get("name") == key.name
        ]


def _differs(known: Object, body: Object) -> bool:
    """Whether anything has changed that a person, or Kubernetes, decides: all but the status."""

    def decided(manifest: Object) -> tuple[Any, ...]:
        metadata = manifest["metadata"]
        return (
            metadata.get("uid"),
            metadata.get("generation"),
            metadata.get("annotations"),
            metadata.get("deletionTimestamp"),
            metadata.get("finalizers"),
        )

    return decided(known) != decided(body)


def registry_for(reconciler: Reconciler) -> kopf.OperatorRegistry:
    """The watches: our three kinds, and the pods and StatefulSets that carry our label."""
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(_login)
    for plural, kind in (
        (names.CLUSTERS, "Cluster"),
        (names.TOPICS, "Topic"),
        (names.GROUPS, "ConsumerGroup"),
    ):

        def told(event: Any, body: Any, kind: str = kind, **_: Any) -> None:
            reconciler.heard_of(event, dict(body), kind)

        kopf.on.event(names.GROUP, names.VERSION, plural, id=f"{kind}-told", registry=registry)(_async(told))

    def part(body: Any, **_: Any) -> None:
        reconciler.heard_of_part(dict(body))

    labels = {names.CLUSTER_LABEL: kopf.PRESENT}
    kopf.on.event("", "v1", "pods", labels=labels, id="pod-told", registry=registry)(_async(part))
    kopf.on.event("apps", "v1", "statefulsets", labels=labels, id="set-told", registry=registry)(_async(part))
    return registry


async def _login(**arguments: Any) -> kopf.ConnectionInfo | None:
    """By KUBECONFIG where it is set, else as the pod's service account."""
    if "KUBECONFIG" in os.environ:
        return kopf.login_with_kubeconfig(**arguments)
    return kopf.login_with_service_account(**arguments)


def _async(function: Callable[..., None]) -> Callable[..., Any]:
    """As a coroutine: kopf runs plain functions in threads, and ours touch the queue."""

    async def called(**arguments: Any) -> None:
        function(**arguments)

    return called


def settings() -> kopf.OperatorSettings:
    """kopf's settings; prefixes of our own, in case it ever writes."""
    found = kopf.OperatorSettings()
    found.posting.enabled = False
    found.persistence.finalizer = f"{names.GROUP}/kopf"
    found.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=names.GROUP)
    found.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=names.GROUP)
    found.execution.max_workers = 4
    found.peering.standalone = True
    for plural in ("pods", "statefulsets"):
        found.watching.label_selectors[plural] = names.CLUSTER_LABEL
    return found
