"""The events of kopf: each updates the stored object and queues its BrokerCluster. No decisions.

Only raw events are used: kopf then writes nothing of its own, neither annotations nor finalizers, and
needs no operator to let a namespace go. Everything else is found by looking (`*/reconcile.py`).
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import kopf
import structlog

from mainstem_operator.api import names
from mainstem_operator.api.conditions import Condition, not_measured
from mainstem_operator.api.fields import Object
from mainstem_operator.api.objects import decisions_in, key_of, text_in
from mainstem_operator.brokers.errors import BrokersRefused, BrokersUnreachable
from mainstem_operator.cluster.reconcile import reconcile_cluster
from mainstem_operator.groups.reconcile import reconcile_groups
from mainstem_operator.kubernetes.client import Refused
from mainstem_operator.runtime.alone import Alone, defect
from mainstem_operator.runtime.context import Context
from mainstem_operator.runtime.work_queue import Key, Kind, WorkQueue
from mainstem_operator.snapshot import is_orphan
from mainstem_operator.topics.reconcile import reconcile_topics
from mainstem_operator.users.reconcile import reconcile_users

logger = structlog.get_logger(__name__)

WORKERS: Final = 4
_RETRY_SECONDS: Final = 10.0
_UNREACHABLE_SECONDS: Final = 15.0
_JITTER: Final = 0.1

Store = dict[tuple[str, str], Object]

_QUEUES: Final[dict[str, Kind]] = {"Topic": "topics", "ConsumerGroup": "groups", "User": "users"}
"""The kinds whose objects name a BrokerCluster, and how they are queued: all of a BrokerCluster at once."""


class Reconciler:
    """The objects as the watches tell them, the queue, and the tasks that work on it."""

    def __init__(self, context: Context, resync_seconds: float) -> None:
        self.queue = WorkQueue()
        self.heard = time.monotonic()
        self._context = context
        self._resync_seconds = resync_seconds
        self._stores: dict[str, Store] = {"BrokerCluster": {}, **{kind: {} for kind in _QUEUES}}
        self._began: dict[Key, float] = {}
        self._refused: set[Key] = set()
        """Looks that Kubernetes or brokers have refused since they last went well."""
        self._orphaned: set[Key] = set()
        """Looks at what BrokerClusters that are gone have left behind, until they go well."""
        self._leads = False

    def stuck_seconds(self) -> float:
        """How long the longest look that is under way has lasted."""
        return time.monotonic() - min(self._began.values(), default=time.monotonic())

    # --- Events ---

    def heard_of(self, event: Any, body: Any, kind: str) -> None:
        """An event about one of our own objects."""
        self.heard = time.monotonic()
        self._take(body, kind, is_gone=event.get("type") == "DELETED")

    def _take(self, body: Any, kind: str, *, is_gone: bool = False) -> None:
        """Remember an object as it is now, and queue what its change may concern."""
        metadata = body["metadata"]
        key = metadata["namespace"], metadata["name"]
        store = self._stores[kind]
        stored = store.get(key)
        if is_gone:
            store.pop(key, None)
        else:
            store[key] = {**body, "kind": kind, "apiVersion": names.API_VERSION}
        if stored is not None and not is_gone and decisions_in(stored) == decisions_in(body):
            return  # our own write of the status, most of the time
        if kind == "BrokerCluster":
            self._queue(Key("cluster", *key))
            if stored is None or is_gone or metadata.get("deletionTimestamp"):
                for queue in _QUEUES.values():
                    self._queue(Key(queue, *key))
            else:  # listeners, authorization and warehouse decide what Users and loads get
                self._queue(Key("users", *key))
                self._queue(Key("topics", *key))
            return
        if cluster := _cluster_named_by(body):
            self._queue(Key(_QUEUES[kind], metadata["namespace"], cluster))

    def heard_of_part(self, body: Any) -> None:
        """An event about a pod or a StatefulSet of a BrokerCluster."""
        self.heard = time.monotonic()
        metadata = body["metadata"]
        labels = metadata.get("labels") or {}
        cluster = labels.get(names.CLUSTER_LABEL)
        if not cluster:
            return
        if (metadata["namespace"], cluster) in self._stores["BrokerCluster"]:
            is_load = labels.get(names.COMPONENT_LABEL) in (names.LOADER, names.RESIDENT_LOADER)
            self._queue(Key("topics" if is_load else "cluster", metadata["namespace"], cluster))
        elif is_orphan(body) or labels.get(names.COMPONENT_LABEL) == names.LOADER:
            # There may be no Topic either that has its loads suspended. Of CronJobs only pods are watched.
            key = Key("topics", metadata["namespace"], cluster)
            self._orphaned.add(key)
            self._queue(key)

    def _queue(self, key: Key) -> None:
        """Queue a key, if anybody works on it: the queue of a replica that waits would only grow."""
        if self._leads:
            self.queue.add(key)

    # --- What is done ---

    async def run(self, leading: Callable[[], Any], namespaces: Sequence[str] = ()) -> None:
        """Work, once this replica leads, until it is cancelled.

        Args:
            namespaces: those that are watched; empty for all.
        """
        await leading()
        self._leads = True
        for key in self._keys():
            self.queue.add(key)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._resync(namespaces))
            for _ in range(WORKERS):
                tasks.create_task(self.queue.work(self._look))

    async def _resync(self, namespaces: Sequence[str]) -> None:
        """Reconcile everything periodically: events can be missed, and drift sends none."""
        while True:
            await self._list(namespaces)
            for key in self._keys():
                self.queue.add(key, random.uniform(0, self._resync_seconds * _JITTER))
            await asyncio.sleep(self._resync_seconds)

    async def _list(self, namespaces: Sequence[str]) -> None:
        """Take note of objects that no watch has reported: kopf does not begin one again that has failed."""
        for kind, store in self._stores.items():
            for namespace in namespaces or (None,):
                try:
                    listed = await self._context.kube.find(names.API_VERSION, kind, namespace)
                except (Refused, OSError, TimeoutError) as error:
                    logger.warning("not listed", kind=kind, namespace=namespace, error=str(error))
                    continue
                for item in listed:
                    if key_of(item) not in store:  # its event, if there is one, comes too late to queue it
                        self._take(item, kind)

    def _keys(self) -> set[Key]:
        # The Topics of every BrokerCluster, too: the last one may be gone, and its loads left.
        keys = {Key(kind, *key) for key in self._stores["BrokerCluster"] for kind in ("cluster", "topics")}
        for store, queue in _QUEUES.items():
            for (namespace, _), manifest in self._stores[store].items():
                keys.add(Key(queue, namespace, _cluster_named_by(manifest)))
        return keys | self._orphaned

    async def _look(self, key: Key) -> float | None:
        """One reconciliation; errors are reported, and it is tried again."""
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
            await self._say_refused(key, error)
        except Exception as error:  # a defect in one BrokerCluster must not stop the others
            result, again = "error", _RETRY_SECONDS
            logger.exception("look ended by a defect", key=key)
            await self._say_ended(key, names.INTERNAL_ERROR, defect(error))
        if result == "ok":
            self._refused.discard(key)
            self._orphaned.discard(key)
        del self._began[key]
        metrics.reconciles.labels(key.kind, result).inc()
        metrics.duration.labels(key.kind).observe(time.monotonic() - began)
        if (key.namespace, key.name) not in self._stores["BrokerCluster"]:
            metrics.forget(key.namespace, key.name)
        elif result == "ok":
            metrics.last_success.labels(key.kind, key.namespace, key.name).set(time.time())
        # At the end of each look: one that began before its object was gone has kept something since.
        self._context.forget_gone(self._stores)
        return again

    async def _say_refused(self, key: Key, error: Exception) -> None:
        """Report a refusal that lasts. Once may be an election of brokers, or a restart of the API server;
        what is refused by its content, as when a right is missing, will not pass.
        """
        lasts = key in self._refused
        self._refused.add(key)
        if isinstance(error, Refused):
            if error.by_content or (lasts and not error.conflict):
                text = f"Kubernetes refuses what the operator needs, and it tries again: {error}"
                await self._say_ended(key, names.KUBERNETES_REFUSED, text)
        elif isinstance(error, BrokersRefused) and lasts and key.kind != "cluster":
            text = f"Brokers refuse what the operator needs, and it tries again: {error}"
            await self._say_ended(key, names.BROKERS_REFUSED, text)

    async def _say_ended(self, key: Key, reason: str, text: str) -> None:
        """Replace the last good status of the objects of a look that has ended before its end."""
        conditions = [Condition("Ready", None, reason, text)]
        try:
            if key.kind == "cluster":
                cluster = await self._fresh_cluster(key)
                manifests = [] if cluster is None else [cluster]
                conditions.append(Condition("Stable", False, reason, text))
            else:
                kind = next(kind for kind, queue in _QUEUES.items() if queue == key.kind)
                manifests = await self._fresh_objects(kind, key)
            alone = Alone()
            for manifest in manifests:
                with alone(key_of(manifest)):
                    await self._context.say(manifest, *conditions, *not_measured(manifest, text))
        except Exception:  # a status that cannot be read or written must not end the worker
            logger.exception("the end of a look is not reported", key=key)

    async def _dispatch(self, key: Key) -> float | None:
        cluster = await self._fresh_cluster(key)
        if cluster is not None:
            await self._context.log_in(cluster)
        match key.kind:
            case "cluster":
                return None if cluster is None else await reconcile_cluster(self._context, cluster)
            case "topics":
                topics = await self._fresh_objects("Topic", key)
                return await reconcile_topics(self._context, key.namespace, key.name, topics, cluster)
            case "groups":
                groups = await self._fresh_objects("ConsumerGroup", key)
                return await reconcile_groups(self._context, key.namespace, key.name, groups, cluster)
            case "users":
                users = await self._fresh_objects("User", key)
                return await reconcile_users(self._context, key.namespace, key.name, users, cluster)

    # A watch may miss a deletion: after a 410 (Gone) kopf lists all objects again and reports those that are
    # left, but not those that are gone. So what is acted on is read anew; the stores only say what to queue,
    # and of which objects something is kept.

    async def _fresh_cluster(self, key: Key) -> Object | None:
        cluster = await self._context.kube.get(names.API_VERSION, "BrokerCluster", key.namespace, key.name)
        store = self._stores["BrokerCluster"]
        if cluster is None:
            store.pop((key.namespace, key.name), None)
        elif (key.namespace, key.name) not in store:
            self._take(cluster, "BrokerCluster")  # before its event, or its watch has failed
        return cluster

    async def _fresh_objects(self, kind: str, key: Key) -> list[Object]:
        """The objects of this kind that name the cluster, as they are now."""
        listed = await self._context.kube.find(names.API_VERSION, kind, key.namespace)
        # The items of a list do not say what they are.
        objects: list[Object] = [
            {**item, "apiVersion": names.API_VERSION, "kind": kind}
            for item in listed
            if _cluster_named_by(item) == key.name
        ]
        store, present = self._stores[kind], {item["metadata"]["name"] for item in objects}
        for item in objects:
            store.setdefault(key_of(item), item)
        for other, manifest in list(store.items()):
            of_this_cluster = other[0] == key.namespace and _cluster_named_by(manifest) == key.name
            if of_this_cluster and other[1] not in present:
                del store[other]
        return objects


def _cluster_named_by(manifest: Object) -> str:
    """The name in `spec.clusterRef`; empty if there is none."""
    return text_in(manifest, "clusterRef", "name") or ""


def registry_for(reconciler: Reconciler) -> kopf.OperatorRegistry:
    """The watches: our own kinds, and the pods and StatefulSets that carry our label."""
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(_login)
    for plural, kind in (
        (names.CLUSTERS, "BrokerCluster"),
        (names.TOPICS, "Topic"),
        (names.GROUPS, "ConsumerGroup"),
        (names.USERS, "User"),
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
    operator_settings = kopf.OperatorSettings()
    operator_settings.posting.enabled = False
    operator_settings.persistence.finalizer = f"{names.GROUP}/kopf"
    operator_settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=names.GROUP)
    operator_settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=names.GROUP)
    operator_settings.execution.max_workers = 4
    operator_settings.peering.standalone = True
    for plural in ("pods", "statefulsets"):
        operator_settings.watching.label_selectors[plural] = names.CLUSTER_LABEL
    return operator_settings
