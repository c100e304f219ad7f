"""`python -m mainstem_operator.farewell`: lets go of all Topics before the operator is uninstalled.

A Topic whose topic is to be deleted with it is held by a finalizer until that is done. Without an operator
nobody would do it, and the Topic, and its namespace, could never be deleted. The chart runs this before a
release goes, and ends the operator before, which would hold them again: OPERATOR names its Deployment, in
POD_NAMESPACE, and INSTANCE its release. WATCH_NAMESPACES as for the operator.
An operator that is ended because its own namespace goes does the same for the Topics there.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Final

import structlog

from mainstem_operator import names
from mainstem_operator.kube import Kube, Refused

_POLL_SECONDS: Final = 0.5

logger = structlog.get_logger(__name__)


async def let_go(kube: Kube, namespaces: Sequence[str]) -> list[str]:
    """Take our finalizer off all Topics there (in all namespaces, if none are named); answer their names."""
    released: set[str] = set()
    # Again until none is held: one that others change as we let it go keeps the finalizer that time.
    while held := [
        topic
        for namespace in namespaces or (None,)
        for topic in await kube.find(names.API_VERSION, "Topic", namespace)
        if names.FINALIZER in (topic["metadata"].get("finalizers") or ())
    ]:
        for topic in held:
            metadata = topic["metadata"]
            finalizers = [name for name in metadata["finalizers"] if name != names.FINALIZER]
            try:
                found = {**topic, "apiVersion": names.API_VERSION, "kind": "Topic"}
                await kube.set_finalizers(found, finalizers)
            except Refused as refused:
                if not (refused.missing or refused.conflict):
                    raise
            released.add(f"{metadata['namespace']}/{metadata['name']}")
    return sorted(released)


async def end_operator(kube: Kube, namespace: str, deployment: str, instance: str) -> None:
    """Stop the operator and wait until none of its pods is left."""
    await kube.stop_deployment(namespace, deployment)
    selector = {names.COMPONENT_LABEL: "operator", "app.kubernetes.io/instance": instance}
    while await kube.find("v1", "Pod", namespace, selector):  # noqa: ASYNC110  # another process sets no event
        await asyncio.sleep(_POLL_SECONDS)


async def let_go_with(kube: Kube, namespace: str) -> list[str]:
    """The same, if the namespace is being deleted: its Topics go, and the operator that lives there too."""
    found = await kube.get("v1", "Namespace", None, namespace)
    if found is None or not found["metadata"].get("deletionTimestamp"):
        return []
    return await let_go(kube, [namespace])


async def _main() -> None:
    kube = await Kube.connect()
    try:
        if deployment := os.environ.get("OPERATOR"):
            await end_operator(kube, os.environ["POD_NAMESPACE"], deployment, os.environ["INSTANCE"])
        watched = [name for name in os.environ.get("WATCH_NAMESPACES", "").split(",") if name]
        logger.info("let go", topics=await let_go(kube, watched))
    finally:
        await kube.close()


if __name__ == "__main__":
    asyncio.run(_main())
