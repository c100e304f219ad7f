"""`python -m mainstem_operator.uninstall`: lets go of Topics and Users before the operator is uninstalled.

A Topic whose topic is to be deleted with it is held by a finalizer until that is done, and so is a User,
whose password and ACLs are removed with it. Without an operator it would not happen, and neither they nor
their namespace could ever be deleted. The chart runs this before a release goes, and ends the operator
before, which would hold them again: OPERATOR names its Deployment, in POD_NAMESPACE, and INSTANCE its
release. WATCH_NAMESPACES as for the operator.
An operator that is ended because its own namespace goes does the same for the objects there, and one that
starts, in the namespaces that it does not watch any more (`runtime/left_namespaces.py`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import structlog

from mainstem_operator.api import names
from mainstem_operator.api.fields import Object
from mainstem_operator.kubernetes.client import Kube, Refused, whose

_POLL_SECONDS: Final = 0.5
_KEPT: Final = {
    "Topic": "The topic is kept: delete it with `mainstem topic delete`.",
    "User": "The password, ACLs and quotas of the user are kept.",
}

logger = structlog.get_logger(__name__)


async def let_go(
    kube: Kube,
    namespaces: Sequence[str],
    *,
    besides: Collection[str] = (),
    why_kept: str = "The operator is uninstalled",
) -> list[str]:
    """Take our finalizers off all Topics and Users there (in all namespaces, if none are named); answer
    their names.

    Args:
        besides: namespaces that are left out.
        why_kept: why what is being deleted leaves something behind in the brokers, for an event; empty if
            brokers go, too.

    Raises:
        Refused: the removal was refused for some of them, which the text names. All others are let go.
    """
    refusals: dict[str, Refused] = {}
    released = [
        name
        for kind, finalizer in (("Topic", names.FINALIZER), ("User", names.USER_FINALIZER))
        for name in await _let_go(kube, namespaces, besides, kind, finalizer, refusals, why_kept)
    ]
    if refusals:
        listed = "; ".join(f"{name}: {refused}" for name, refused in sorted(refusals.items()))
        text = f"Kubernetes refuses the removal of finalizers. Allow it, and try again. {listed}"
        raise Refused(next(iter(refusals.values())).status, text)
    return sorted(released)


async def _let_go(
    kube: Kube,
    namespaces: Sequence[str],
    besides: Collection[str],
    kind: str,
    finalizer: str,
    refusals: dict[str, Refused],
    why_kept: str,
) -> set[str]:
    """The same for one kind; `refusals` gets those that are refused for their content, by kind and name."""
    released: set[str] = set()
    # Again until none is held: one that others change as we let it go keeps the finalizer that time.
    while held := [
        item
        for namespace in namespaces or (None,)
        for item in await _all(kube, kind, namespace)
        if finalizer in (item["metadata"].get("finalizers") or ())
        and item["metadata"]["namespace"] not in besides
        and _named(kind, item) not in refusals
    ]:
        for item in held:
            metadata = item["metadata"]
            finalizers = [name for name in metadata["finalizers"] if name != finalizer]
            manifest = {**item, "apiVersion": names.API_VERSION, "kind": kind}
            try:
                await kube.set_finalizers(manifest, finalizers)
            except Refused as refused:
                if refused.by_content:
                    refusals[_named(kind, item)] = refused
                    logger.warning("finalizer not removed", object=_named(kind, item), error=str(refused))
                    continue
                if not (refused.missing or refused.conflict):
                    raise
            else:
                if why_kept and metadata.get("deletionTimestamp"):
                    await _say_kept(kube, manifest, why_kept)
            released.add(f"{metadata['namespace']}/{metadata['name']}")
    return released


async def _say_kept(kube: Kube, manifest: Object, why: str) -> None:
    kind = manifest["kind"]
    text = f"{why} before the deletion was carried out. {_KEPT[kind]}"
    await kube.tell(manifest, f"{kind}Kept", text, warning=True)
    logger.warning(f"{kind.lower()} kept", name=_named(kind, manifest), reason=text)


async def _all(kube: Kube, kind: str, namespace: str | None) -> Sequence[Object]:
    try:
        return await kube.find(names.API_VERSION, kind, namespace)
    except Refused as refused:
        if refused.missing:  # the definitions were never made, or are gone
            return ()
        raise


def _named(kind: str, item: Object) -> str:
    return f"{kind} {item['metadata']['namespace']}/{item['metadata']['name']}"


async def end_operator(kube: Kube, namespace: str, deployment: str, instance: str) -> None:
    """Stop the operator and wait until none of its pods runs. A Deployment of others, which may have the name
    if ours is gone, is not stopped.

    Raises:
        Refused: an account that the chart did not make may not do that, and the operator runs, or may run.
    """
    selector = {names.COMPONENT_LABEL: "operator", "app.kubernetes.io/instance": instance}

    async def runs() -> bool:
        return any(_may_run(pod, deployment) for pod in await kube.find("v1", "Pod", namespace, selector))

    try:
        try:
            await _stop(kube, namespace, deployment, selector)
        except Refused as refused:
            # It does not matter if somebody has stopped it already.
            if refused.status != 403 or await runs():
                raise
        is_running = await runs()
        while is_running:
            await asyncio.sleep(_POLL_SECONDS)
            is_running = await runs()
    except Refused as refused:
        if refused.status != 403:
            raise
        raise _may_not_end(deployment, refused) from refused


async def _stop(kube: Kube, namespace: str, deployment: str, labels: Mapping[str, str]) -> None:
    live = await kube.get("apps/v1", "Deployment", namespace, deployment)
    if live is not None and labels.items() <= (live["metadata"].get("labels") or {}).items():
        await kube.stop_deployment(namespace, deployment)
    elif live is not None:
        logger.warning("not stopped", deployment=deployment, reason=f"It belongs to {whose(live)}.")


def _may_not_end(deployment: str, refused: Refused) -> Refused:
    """To go on would be in vain: the operator would hold the Topics again, and nobody would let them go."""
    text = (
        "The operator has to end before its Topics and Users are let go, and this account may not end it:"
        f" {refused} Give the account the rights in the chart's templates/uninstall.yaml, or stop the"
        f" operator (`kubectl scale deployment/{deployment} --replicas=0`), and try again."
    )
    return Refused(refused.status, text)


def _may_run(pod: Object, deployment: str) -> bool:
    """Whether it is a pod of the Deployment that has not ended. One that was evicted stays as an object."""
    owners = pod["metadata"].get("ownerReferences") or ()
    is_ours = any(
        owner["kind"] == "ReplicaSet" and owner["name"].rpartition("-")[0] == deployment for owner in owners
    )
    return is_ours and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


async def let_go_with(kube: Kube, namespace: str) -> list[str]:
    """The same, if the namespace is being deleted: its Topics go, and the operator that lives there too."""
    namespace_object = await kube.get("v1", "Namespace", None, namespace)
    if namespace_object is None or not namespace_object["metadata"].get("deletionTimestamp"):
        return []
    return await let_go(kube, [namespace], why_kept="")


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
