"""What every look shares: connections, the status writer, events, and whether this replica may act."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from mainstem_operator.api import names
from mainstem_operator.api.clusters import Images
from mainstem_operator.api.conditions import Condition, merged, not_measured
from mainstem_operator.api.fields import Object
from mainstem_operator.api.objects import identity_of, key_of
from mainstem_operator.brokers.admin import Brokers
from mainstem_operator.certificates.apply import NotUsable, client_properties, secret_of
from mainstem_operator.cluster.broker_manifests import settings_filed
from mainstem_operator.cluster.security_steps import Step, step_filed
from mainstem_operator.cluster.throttles.limited_moves import LimitedMoves
from mainstem_operator.kubernetes.client import Kube, Refused
from mainstem_operator.kubernetes.observe import Addresses, Observer
from mainstem_operator.runtime.alone import Alone
from mainstem_operator.runtime.metrics import Metrics

logger = structlog.get_logger(__name__)

_VOLATILE: Final = ("measured",)


@dataclass(slots=True)
class _Kept:
    """All that is kept of one object between looks, so that it goes as a whole.

    Attributes:
        events: the last event of each reason, as the uid of its object and its message.
        brokers: of a BrokerCluster, as all that follows.
        progress: what it has said of its progress, and since when.
    """

    events: dict[str, tuple[str, str]] = field(default_factory=dict)
    brokers: Brokers | None = None
    moves: LimitedMoves | None = None
    is_still_open: bool = False
    progress: tuple[str, dt.datetime] | None = None


class Context:
    """Made once; a look gets it. `operator_namespace`: where the operator runs."""

    def __init__(
        self,
        kube: Kube,
        observer: Observer,
        addresses: Addresses,
        images: Images,
        metrics: Metrics,
        may_act: Callable[[], Awaitable[bool]],
        operator_namespace: str,
        cluster_domain: str = names.CLUSTER_DOMAIN,
    ) -> None:
        self.kube = kube
        self.observer = observer
        self.images = images
        self.metrics = metrics
        self.may_act = may_act
        self.operator_namespace = operator_namespace
        self.cluster_domain = cluster_domain
        self._addresses = addresses
        self._kept: defaultdict[tuple[str, str, str], _Kept] = defaultdict(_Kept)
        """By kind, namespace and name."""

    def brokers(self, namespace: str, cluster: str) -> Brokers:
        """The connection to the brokers of a BrokerCluster, made when it is used."""
        kept = self._kept_of(namespace, cluster)
        if kept.brokers is None:
            kept.brokers = Brokers(self._addresses.bootstrap_servers(namespace, cluster))
        return kept.brokers

    async def log_in(self, cluster: Object) -> None:
        """Let requests to the brokers of a BrokerCluster use its present keys, if it is secured.

        Before its keys exist there are no brokers either. They are read again for each look, since they are
        renewed.
        """
        namespace, name = cluster["metadata"]["namespace"], cluster["metadata"]["name"]
        servers = self._addresses.bootstrap_servers(namespace, name)
        properties: dict[str, str] = {}
        filed = settings_filed(
            await self.kube.get("v1", "ConfigMap", namespace, names.workload(name, names.BROKER))
        )
        is_wanted = bool(((cluster.get("spec") or {}).get("listeners") or {}).get("clients"))
        # While its listeners change, brokers are reached over the one that they use themselves.
        talks_over_tls = is_wanted if filed is None else step_filed(filed) not in (Step.OPEN, Step.BOTH)
        self._kept_of(namespace, name).is_still_open = is_wanted and not talks_over_tls
        if talks_over_tls:
            servers = self._addresses.secured_servers(namespace, name)
            try:
                secret = await secret_of(self.kube, identity_of(cluster), names.operator_certificate(name))
            except NotUsable:
                return  # the BrokerCluster's own pass makes the Secret, or takes it over
            keys = client_properties(secret)
            if keys is None:
                return  # the BrokerCluster's own pass makes them again
            properties = keys
        self.brokers(namespace, name).connect_to(servers, properties)

    def is_still_open(self, namespace: str, cluster: str) -> bool:
        """Whether brokers of a BrokerCluster that is to be secured do not all have its listeners yet."""
        return self._kept_of(namespace, cluster).is_still_open

    def moves(self, namespace: str, cluster: str) -> LimitedMoves:
        """What starts the moves of a BrokerCluster's replicas, shared by all reconciles."""
        kept = self._kept_of(namespace, cluster)
        if kept.moves is None:
            kept.moves = LimitedMoves(self.kube, self.brokers(namespace, cluster), self.may_act)
        return kept.moves

    def _kept_of(self, namespace: str, cluster: str) -> _Kept:
        return self._kept["BrokerCluster", namespace, cluster]

    def forget_gone(self, present: Mapping[str, Container[tuple[str, str]]]) -> None:
        """Drop all that is kept of objects that are gone.

        Args:
            present: the namespaces and names of those that are there, by kind.
        """
        for kind, namespace, name in list(self._kept):
            if (namespace, name) not in present.get(kind, ()):
                del self._kept[kind, namespace, name]

    async def put_status(self, manifest: Object, status: Mapping[str, Any]) -> None:
        """Write the status, if it says anything that the present one does not."""
        present = manifest.get("status") or {}
        if all(present.get(name) == value for name, value in status.items() if name not in _VOLATILE) and all(
            name in status for name in present
        ):
            return
        await self.kube.apply_status(manifest, status)

    async def say(self, manifest: Object, *conditions: Condition) -> None:
        """Write these conditions, and leave the rest of the status as it is."""
        present = manifest.get("status") or {}
        generation = manifest["metadata"].get("generation", 0)
        types = {condition.type for condition in conditions}
        kept = [item for item in present.get("conditions") or () if item["type"] not in types]
        told = merged(present, conditions, generation, dt.datetime.now(dt.UTC))
        entries = sorted([*told, *kept], key=lambda item: str(item["type"]))
        status = {**present, "observedGeneration": generation, "conditions": entries}
        await self.put_status(manifest, status)

    async def say_invalid(self, manifest: Object, sentence: str) -> None:
        """Tell in the status that the manifest makes no sense."""
        await self.say_unseen(manifest, Condition("Ready", False, "InvalidSpec", sentence))

    async def say_unseen(self, manifest: Object, condition: Condition) -> None:
        """Tell why an object is not looked at, and that nobody measures what a look would."""
        await self.say(manifest, condition, *not_measured(manifest, condition.message))

    async def say_defects(self, manifests: Iterable[Object], alone: Alone) -> None:
        """Replace the last good status of the objects on which the operator has failed."""
        defects = dict(alone.defects)
        for manifest in manifests:
            key = key_of(manifest)
            if key in defects:
                with alone(key):
                    condition = Condition("Ready", None, names.INTERNAL_ERROR, defects[key])
                    await self.say_unseen(manifest, condition)

    async def say_deleting(self, manifest: Object, *conditions: Condition) -> None:
        """Tell of an object that is being deleted, and that finalizers of others hold, that nothing more is
        done for it.

        Args:
            conditions: in place of Ready=False.
        """
        held_by = [
            name
            for name in manifest["metadata"].get("finalizers") or ()
            if name not in (names.FINALIZER, names.USER_FINALIZER)
        ]
        if not held_by:
            return  # it goes at once
        text = (
            "It is being deleted, and the operator does nothing more for it. These finalizers hold it:"
            f" {', '.join(held_by)}."
        )
        deleting = conditions or (Condition("Ready", False, "Deleting", ""),)
        said = [replace(condition, message=text) for condition in deleting]
        await self.say(manifest, *said, *not_measured(manifest, text))

    async def say_held(self, manifest: Object, finalizer: str, refused: Refused) -> None:
        """Tell that an object stays, because the removal of our finalizer was refused."""
        text = (
            "It is not deleted, because Kubernetes refuses the removal of the finalizer"
            f" {finalizer}: {refused} Allow this update, or remove the finalizer with `kubectl edit`."
        )
        await self.event(manifest, "FinalizerRefused", text, warning=True)
        await self.say_unseen(manifest, Condition("Ready", False, "FinalizerRefused", text))

    def watch_progress(
        self, manifest: Object, status: Mapping[str, Any], stuck_after_seconds: int, now: dt.datetime
    ) -> None:
        """Set the gauges of a BrokerCluster by its status: how many brokers are ready, and whether it has
        said the same of its progress for too long.
        """
        metadata = manifest["metadata"]
        kept = self._kept_of(metadata["namespace"], metadata["name"])
        progress = next(item for item in status["conditions"] if item["type"] == "Progressing")
        # Its first sentence counts; what follows says what is waited for, and may change for ever.
        said = f"{progress['reason']}: {progress['message'].partition('. ')[0]}"
        text = said if progress["status"] == "True" else ""
        before, since = kept.progress or ("", now)
        if text != before:
            since = now
        kept.progress = text, since
        stuck = bool(text) and (now - since).total_seconds() > stuck_after_seconds
        self.metrics.stuck.labels(metadata["namespace"], metadata["name"]).set(stuck)
        self.metrics.brokers_ready.labels(metadata["namespace"], metadata["name"]).set(status["brokersReady"])

    async def event(self, manifest: Object, reason: str, message: str, *, warning: bool = False) -> None:
        """Tell in an event, once, what is done to an object and why."""
        metadata = manifest["metadata"]
        events = self._kept[manifest["kind"], metadata["namespace"], metadata["name"]].events
        event = metadata.get("uid", ""), message
        if events.get(reason) == event:
            return
        events[reason] = event
        await self.kube.tell(manifest, reason, message, warning=warning)
