"""Who of several replicas acts: a coordination.k8s.io Lease that one of them holds and renews.

Followers watch and fill their memory, so they take over within seconds. A replica that is about to do what
can't be taken back reads the Lease again: a replica that was paused must not act on what it believed before.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any, Final

import structlog

from mainstem_operator.api.fields import Object
from mainstem_operator.kubernetes.client import Kube, Refused

logger = structlog.get_logger(__name__)

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
        lease = await self._kube.get("coordination.k8s.io/v1", "Lease", self._namespace, self._name)
        return lease is not None and lease["spec"].get("holderIdentity") == self._identity

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
        while True:
            lease = await self._kube.get("coordination.k8s.io/v1", "Lease", self._namespace, self._name)
            if lease is None or lease["spec"].get("holderIdentity") != self._identity:
                return
            try:
                await self._kube.replace(_with(lease, holderIdentity="", leaseDurationSeconds=1))
            except Refused as refused:
                if not refused.conflict:  # else a renewal of ours was under way
                    raise
            else:
                return

    def _age(self) -> float:
        return _clock() - self._seen[1]

    async def _try(self) -> bool:
        lease = await self._kube.get("coordination.k8s.io/v1", "Lease", self._namespace, self._name)
        now = _written(dt.datetime.now(dt.UTC))
        held = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": DURATION_SECONDS,
            "renewTime": now,
        }
        try:
            if lease is None:
                await self._kube.create(
                    {
                        "apiVersion": "coordination.k8s.io/v1",
                        "kind": "Lease",
                        "metadata": {"name": self._name, "namespace": self._namespace},
                        "spec": {**held, "acquireTime": now},
                    }
                )
            else:
                holder = lease["spec"].get("holderIdentity")
                if holder != self._identity:
                    if holder and not self._expired(lease["spec"]):
                        return False
                    held["acquireTime"] = now
                await self._kube.replace(_with(lease, **held))
        except Refused as refused:
            if refused.conflict:  # another replica was quicker, or others have annotated the Lease
                return await self.still_mine()
            raise
        self._seen = (now, _clock())
        return True

    def _expired(self, spec: Object) -> bool:
        """Whether the holder has not renewed for the Lease's length, by our clock alone: clocks differ."""
        now = _clock()
        mark = spec.get("renewTime"), spec.get("holderIdentity")
        if self._seen[0] != mark:
            self._seen = (mark, now)
            return False
        return now - self._seen[1] > float(spec.get("leaseDurationSeconds") or DURATION_SECONDS)


def _with(lease: Object, **spec: Any) -> Object:
    return {
        **lease,
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "spec": {**lease["spec"], **spec},
    }


def _clock() -> float:
    """Seconds that only grow."""
    return asyncio.get_running_loop().time()


def _written(now: dt.datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
