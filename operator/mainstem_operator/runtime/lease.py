"""Who of several replicas acts: a coordination.k8s.io Lease that one of them holds and renews.

Followers watch and fill their memory, so they take over within seconds. A replica that is about to do what
can't be taken back reads the Lease again: a replica that was paused must not act on what it believed before.
Annotations of the Lease note what the next one has to know. Only this module writes it.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from typing import Any, Final

import structlog

from mainstem_operator.api.fields import Object
from mainstem_operator.api.objects import annotations_of
from mainstem_operator.kubernetes.client import Kube, Refused

logger = structlog.get_logger(__name__)

_API_VERSION: Final = "coordination.k8s.io/v1"
DURATION_SECONDS: Final = 15
_RENEW_SECONDS: Final = 5
_TRY_SECONDS: Final = 7.0
"""A request on a dead connection would take longer than the Lease holds. The next one has another."""
_RETRY_SECONDS: Final = 1.0


class Lease:
    """The office of the acting replica, `name` in `namespace`, as seen by the replica `identity`."""

    def __init__(self, kube: Kube, namespace: str, name: str, identity: str) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._leading = asyncio.Event()
        self._seen: tuple[Any, float] = (None, 0.0)

    @property
    def leading(self) -> bool:
        return self._leading.is_set()

    async def wait(self) -> None:
        """Until this replica holds the Lease."""
        await self._leading.wait()

    async def still_mine(self) -> bool:
        """Whether this replica holds it now, according to the API server."""
        return self._is_mine(await self._read())

    async def keep(self) -> None:
        """Take the Lease when it is free, and renew it. Ends when it was lost: the process must too."""
        while True:
            pause_s: float = _RENEW_SECONDS
            try:
                async with asyncio.timeout(_TRY_SECONDS):
                    mine = await self._try()
            except (Refused, OSError, TimeoutError) as error:
                logger.warning("lease not renewed", error=str(error))
                mine = self.leading and self._age() < DURATION_SECONDS
                pause_s = _RETRY_SECONDS
            if mine and not self.leading:
                logger.info("leading", identity=self._identity)
                self._leading.set()
            elif self.leading and not mine:
                logger.error("lease lost", identity=self._identity)
                return
            await asyncio.sleep(pause_s)

    async def release(self) -> None:
        """Let another replica take over at once."""
        free = {"holderIdentity": "", "leaseDurationSeconds": 1}
        await self._change(lambda lease: self._with(lease, spec=free) if self._is_mine(lease) else None)

    async def noted(self, annotation: str) -> str:
        """What this annotation of the Lease says; empty if there is none."""
        lease = await self._read()
        return "" if lease is None else annotations_of(lease).get(annotation, "")

    async def note(self, annotation: str, text: str) -> None:
        """Set an annotation of the Lease, which is only a place for it where there is one replica."""

        def change(lease: Object | None) -> dict[str, Any] | None:
            if lease is not None and annotations_of(lease).get(annotation) == text:
                return None
            return self._with(lease, annotations={annotation: text})

        await self._change(change)

    async def _change(self, change: Callable[[Object | None], dict[str, Any] | None]) -> None:
        """Write what `change` makes of the Lease that is there, anew if it was renewed meanwhile; None leaves
        it as it is.
        """
        while (changed := change(lease := await self._read())) is not None:
            try:
                await self._write(lease, changed)
                return
            except Refused as refused:
                if not refused.conflict:
                    raise

    def _is_mine(self, lease: Object | None) -> bool:
        return lease is not None and lease["spec"].get("holderIdentity") == self._identity

    def _age(self) -> float:
        return _clock() - self._seen[1]

    async def _try(self) -> bool:
        lease = await self._read()
        now = _written(dt.datetime.now(dt.UTC))
        held = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": DURATION_SECONDS,
            "renewTime": now,
        }
        try:
            spec: Object = {} if lease is None else lease["spec"]
            holder = spec.get("holderIdentity")
            if holder != self._identity:
                if holder and not self._expired(spec):
                    return False
                held["acquireTime"] = now
            await self._write(lease, self._with(lease, spec=held))
        except Refused as refused:
            if refused.conflict:  # another replica was quicker, or the Lease was annotated
                return await self.still_mine()
            raise
        self._seen = (now, _clock())
        return True

    async def _read(self) -> Object | None:
        return await self._kube.get(_API_VERSION, "Lease", self._namespace, self._name)

    async def _write(self, lease: Object | None, changed: dict[str, Any]) -> None:
        """Replace the Lease, unless it has changed since it was read; make it, if there was none."""
        await (self._kube.create(changed) if lease is None else self._kube.replace(changed))

    def _with(
        self, lease: Object | None, *, spec: Object | None = None, annotations: Object | None = None
    ) -> dict[str, Any]:
        """The Lease, or a new one that nobody holds, with these fields."""
        before: Object = lease or {
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": {"holderIdentity": ""},
        }
        return {
            **before,
            "apiVersion": _API_VERSION,
            "kind": "Lease",
            "metadata": {
                **before["metadata"],
                "annotations": {**annotations_of(before), **(annotations or {})},
            },
            "spec": {**before["spec"], **(spec or {})},
        }

    def _expired(self, spec: Object) -> bool:
        """Whether the holder has not renewed for the Lease's length, by our clock alone: clocks differ."""
        now = _clock()
        mark = spec.get("renewTime"), spec.get("holderIdentity")
        if self._seen[0] != mark:
            self._seen = (mark, now)
            return False
        return now - self._seen[1] > float(spec.get("leaseDurationSeconds") or DURATION_SECONDS)


def _clock() -> float:
    """Seconds that only grow."""
    return asyncio.get_running_loop().time()


def _written(now: dt.datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
