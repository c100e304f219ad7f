"""One look at all ConsumerGroups of a Cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mainstem_operator.conditions import Condition
from mainstem_operator.context import Context
from mainstem_operator.fields import InvalidSpec, Object
from mainstem_operator.group_work import look_at_groups
from mainstem_operator.resources import GroupSpec, group_of

_MEASURE_SECONDS: Final = 30.0  # lag changes all the time, and each change is a write to etcd
_PENDING_SECONDS: Final = 5.0


async def reconcile_groups(
    context: Context, namespace: str, cluster: str, manifests: Sequence[Object], there: Object | None
) -> float | None:
    """Look at the groups of a Cluster; `there` is the Cluster, or None. Answers when to look again."""
    pairs: dict[tuple[str, str], tuple[Object, GroupSpec]] = {}
    for manifest in manifests:
        if manifest["metadata"].get("deletionTimestamp"):
            continue
        try:
            spec = group_of(manifest)
        except InvalidSpec as error:
            await context.say_invalid(manifest, str(error))
        else:
            pairs[spec.identity.key] = manifest, spec
    if not pairs:
        return None
    if there is None:
        text = f"There is no Cluster {cluster} in the namespace {namespace}."
        for manifest, _ in pairs.values():
            await context.say(manifest, Condition("Ready", False, "ClusterNotFound", text))
        return None

    if not (there.get("status") or {}).get("brokersReady"):
        text = f"No broker of the Cluster {cluster} is ready."
        for manifest, _ in pairs.values():
            await context.say(manifest, Condition("Ready", None, "ClusterNotReady", text))
        return _PENDING_SECONDS

    async def note(spec: GroupSpec, status: Mapping[str, Any]) -> None:
        await context.kube.apply_status(pairs[spec.identity.key][0], status)

    statuses = await _fresh_statuses(context, pairs)
    looked_at = [spec for _, spec in pairs.values()]
    found, failed = await look_at_groups(context.brokers(namespace, cluster), looked_at, statuses, note)
    for key, status in found.items():
        manifest, spec = pairs[key]
        told_before = {**manifest, "status": statuses.get(key, {})}
        await context.put_status(told_before, status)
        last = status.get("lastReset") or {}
        if last != (statuses.get(key) or {}).get("lastReset") and last.get("state") in ("Done", "Failed"):
            text = last.get("message") or f"The reset {last['requestId']} put {len(last['offsets'])} offsets."
            await context.event(manifest, f"Reset{last['state']}", text, warning=last["state"] == "Failed")
            if last["state"] == "Done":
                context.metrics.steps.labels("move_offsets").inc()
    for key, sentence in failed.items():
        manifest, spec = pairs[key]
        await context.say(manifest, Condition("Ready", None, "NotTold", sentence))
    if any(_pending(status) for status in found.values()) or failed:
        return _PENDING_SECONDS
    limited = any(spec.max_lag is not None or spec.max_lag_seconds is not None for spec in looked_at)
    return _MEASURE_SECONDS if limited else None


async def _fresh_statuses(
    context: Context, pairs: Mapping[tuple[str, str], tuple[Object, GroupSpec]]
) -> dict[tuple[str, str], Object]:
    """The statuses, read anew where a reset may be due: what the watch told last may be old."""
    found: dict[tuple[str, str], Object] = {}
    for key, (manifest, spec) in pairs.items():
        status = manifest.get("status") or {}
        last = status.get("lastReset") or {}
        due = spec.reset is not None and (
            last.get("requestId") != spec.reset.request_id or last.get("state") == "Started"
        )
        if due:
            fresh = await context.kube.get(manifest["apiVersion"], "ConsumerGroup", *key)
            status = (fresh or {}).get("status") or {}
        found[key] = status
    return found


def _pending(status: Mapping[str, Any]) -> bool:
    return any(item["type"] == "ResetPending" and item["status"] == "True" for item in status["conditions"])
