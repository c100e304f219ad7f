"""What every look shares: connections, the status writer, events, and whether this replica may act."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import structlog

from mainstem_operator import names
from mainstem_operator.admin import Brokers
from mainstem_operator.conditions import Condition, merged
from mainstem_operator.fields import Object
from mainstem_operator.kube import Kube, Refused
from mainstem_operator.limited_moves import LimitedMoves
from mainstem_operator.metrics import Metrics
from mainstem_operator.observe import Addresses, Observer
from mainstem_operator.observed import written
from mainstem_operator.resources import Images

logger = structlog.get_logger(__name__)

_VOLATILE: Final = ("measured",)


class Context:
    """Made once; a look gets it and keeps nothing in it."""

    def __init__(
        self,
        kube: Kube,
        observer: Observer,
        addresses: Addresses,
        images: Images,
        metrics: Metrics,
        may_act: Callable[[], Awaitable[bool]],
    ) -> None:
        self.kube = kube
        self.observer = observer
        self.images = images
        self.metrics = metrics
        self.may_act = may_act
        self._addresses = addresses
        self._brokers: dict[tuple[str, str], Brokers] = {}
        self._moves: dict[tuple[str, str], LimitedMoves] = {}
        self._progress: dict[tuple[str, str], tuple[str, dt.datetime]] = {}
        self._said: dict[tuple[str, str, str], str] = {}

    def brokers(self, namespace: str, cluster: str) -> Brokers:
        """The connection to the brokers of a Cluster, made when it is used."""
        key = namespace, cluster
        if key not in self._brokers:
            self._brokers[key] = Brokers(self._addresses.bootstrap_servers(namespace, cluster))
        return self._brokers[key]

    def moves(self, namespace: str, cluster: str) -> LimitedMoves:
        """What begins the moves of a Cluster's replicas: one for all looks, which wait for each other."""
        key = namespace, cluster
        if key not in self._moves:
            self._moves[key] = LimitedMoves(self.kube, self.brokers(*key), self.may_act)
        return self._moves[key]

    def forget(self, namespace: str, cluster: str) -> None:
        """Drop the connection to the brokers of a Cluster that is gone."""
        self._brokers.pop((namespace, cluster), None)
        self._moves.pop((namespace, cluster), None)

    async def put_status(self, manifest: Object, status: Mapping[str, Any]) -> None:
        """Write the status, if it says anything that the present one does not."""
        present = manifest.get("status") or {}
        if all(present.get(name) == value for name, value in status.items() if name not in _VOLATILE) and all(
            name in status for name in present
        ):
            return
        await self.kube.apply_status(manifest, status)

    async def say(self, manifest: Object, condition: Condition) -> None:
        """Write one condition, and leave the rest of the status as it is."""
        present = manifest.get("status") or {}
        generation = manifest["metadata"].get("generation", 0)
        kept = [item for item in present.get("conditions") or () if item["type"] != condition.type]
        told = merged(present, [condition], generation, dt.datetime.now(dt.UTC))
        conditions = sorted([*told, *kept], key=lambda item: str(item["type"]))
        status = {**present, "observedGeneration": generation, "conditions": conditions}
        await self.put_status(manifest, status)

    async def say_invalid(self, manifest: Object, sentence: str) -> None:
        """Tell in the status that the manifest makes no sense."""
        await self.say(manifest, Condition("Ready", False, "InvalidSpec", sentence))

    def watch_progress(
        self, manifest: Object, status: Mapping[str, Any], stuck_after_seconds: int, now: dt.datetime
    ) -> None:
        """Turn the gauge on when a Cluster has said the same of its progress for too long."""
        metadata = manifest["metadata"]
        key = metadata["namespace"], metadata["name"]
        progress = next(item for item in status["conditions"] if item["type"] == "Progressing")
        # Its first sentence counts; what follows says what is waited for, and may change for ever.
        said = f"{progress['reason']}: {progress['message'].partition('. ')[0]}"
        text = said if progress["status"] == "True" else ""
        before, since = self._progress.get(key, ("", now))
        if text != before:
            since = now
        self._progress[key] = text, since
        stuck = bool(text) and (now - since).total_seconds() > stuck_after_seconds
        self.metrics.stuck.labels(*key).set(stuck)

    async def event(self, manifest: Object, reason: str, message: str, *, warning: bool = False) -> None:
        """Tell in an event, once, what is done to an object and why."""
        metadata = manifest["metadata"]
        key = manifest["kind"], metadata.get("uid", ""), reason
        if self._said.get(key) == message:
            return
        self._said[key] = message
        now = dt.datetime.now(dt.UTC)
        digest = hashlib.sha256(f"{key}{message}{now}".encode()).hexdigest()[:16]
        try:
            await self.kube.create(
                {
                    "apiVersion": "v1",
                    "kind": "Event",
                    "metadata": {"name": f"{metadata['name']}.{digest}", "namespace": metadata["namespace"]},
                    "involvedObject": {
                        "apiVersion": names.API_VERSION,
                        "kind": manifest["kind"],
                        "name": metadata["name"],
                        "namespace": metadata["namespace"],
                        "uid": metadata.get("uid", ""),
                    },
                    "reason": reason,
                    "message": message[:1024],
                    "type": "Warning" if warning else "Normal",
                    "source": {"component": names.FIELD_MANAGER},
                    "firstTimestamp": written(now),
                    "lastTimestamp": written(now),
                    "count": 1,
                }
            )
        except Refused as refused:  # a namespace that is going takes no events; the act itself counts
            logger.info("event not written", reason=reason, error=str(refused))
