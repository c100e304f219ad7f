"""Namespaces that the operator watched before it was started with others: it lets go of what it holds there.

A Topic or User that has a finalizer of an operator that does not watch its namespace could never be deleted.
Which namespaces are watched is noted in an annotation of the operator's Lease, so the next operator of the
release knows what it has to let go of, however its settings were changed. Nothing else of these objects
changes. Another release that watches them holds them again when it sees them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

import structlog

from mainstem_operator.api import names
from mainstem_operator.kubernetes.client import Kube, Refused
from mainstem_operator.runtime.lease import Lease
from mainstem_operator.uninstall import let_go

logger = structlog.get_logger(__name__)

_ALL: Final = "*"
_WHY_KEPT: Final = "The operator does not watch this namespace any more"


async def leave(kube: Kube, lease: Lease, watched: Collection[str], retry_seconds: float) -> None:
    """Let go of what is held in namespaces that are not watched any more, and note those that are.

    Where Kubernetes refuses, as without the rights, it is logged and tried again: until then the namespaces
    stay noted.

    Args:
        lease: where they are noted.
        watched: the namespaces that are watched; empty for all.
    """
    while True:
        try:
            await _leave(kube, lease, frozenset(watched))
            return
        except (Refused, OSError, TimeoutError) as error:
            logger.warning("namespaces that are not watched any more are not left", error=str(error))
        await asyncio.sleep(retry_seconds)


async def _leave(kube: Kube, lease: Lease, watched: frozenset[str]) -> None:
    before = frozenset(filter(None, (await lease.noted(names.WATCHED)).split(",")))
    left = sorted(before - watched)
    if watched and left:
        # Of all namespaces, if all were watched.
        places = [] if _ALL in before else left
        released = await let_go(kube, places, besides=watched, why_kept=_WHY_KEPT)
        logger.info("left namespaces that are not watched any more", namespaces=left, let_go=released)
    await lease.note(names.WATCHED, ",".join(sorted(watched)) or _ALL)
