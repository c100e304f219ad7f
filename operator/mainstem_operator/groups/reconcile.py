"""One look at all ConsumerGroups of a BrokerCluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mainstem_operator.api.conditions import Condition, absence_of, not_measured
from mainstem_operator.api.fields import InvalidSpec, Object
from mainstem_operator.api.groups import GroupSpec, claim_of_group, group_of
from mainstem_operator.api.objects import key_of
from mainstem_operator.brokers.errors import BrokersUnreachable
from mainstem_operator.groups.apply import look_at_groups
from mainstem_operator.groups.plan import conflict_conditions, owners_of
from mainstem_operator.runtime.alone import Alone
from mainstem_operator.runtime.context import Context

_MEASURE_SECONDS: Final = 30.0  # lag changes all the time, and each change is a write to etcd
_PENDING_SECONDS: Final = 5.0


async def reconcile_groups(
    context: Context, namespace: str, cluster: str, manifests: Sequence[Object], there: Object | None
) -> float | None:
    """Reconcile the groups of a BrokerCluster; return in how many seconds to continue.

    Args:
        there: the BrokerCluster, or None if there is none.
    """
    alone = Alone()
    pairs: dict[tuple[str, str], tuple[Object, GroupSpec]] = {}
    alive = [item for item in manifests if not item["metadata"].get("deletionTimestamp")]
    for manifest in manifests:
        if manifest["metadata"].get("deletionTimestamp"):
            with alone(key_of(manifest)):
                await context.say_deleting(manifest)
            continue
        with alone(key_of(manifest)):
            try:
                pairs[key_of(manifest)] = manifest, group_of(manifest)
            except InvalidSpec as error:
                await context.say_invalid(manifest, str(error))
    invalid = [claim_of_group(manifest) for manifest in alive if key_of(manifest) not in pairs]
    pause = None
    if pairs:
        pause = await _reconcile_valid(context, (namespace, cluster), pairs, invalid, there, alone)
    await context.say_defects(manifests, alone)
    if alone.refused:
        return _PENDING_SECONDS if pause is None else min(pause, _PENDING_SECONDS)
    return pause


async def _reconcile_valid(
    context: Context,
    cluster: tuple[str, str],
    pairs: Mapping[tuple[str, str], tuple[Object, GroupSpec]],
    invalid: Sequence[GroupSpec],
    there: Object | None,
    alone: Alone,
) -> float | None:
    """The same for those that make sense; the others keep what they claim."""
    namespace, name = cluster
    absence = absence_of(name, namespace, there)
    if absence is not None:
        await _say_of_all(context, pairs, absence, alone)
        return None
    if not ((there or {}).get("status") or {}).get("brokersReady"):
        text = f"No broker of the BrokerCluster {name} is ready."
        await _say_of_all(context, pairs, Condition("Ready", None, "ClusterNotReady", text), alone)
        return _PENDING_SECONDS

    owners = owners_of([*(spec for _, spec in pairs.values()), *invalid])
    for key, (manifest, spec) in pairs.items():
        if (owner := owners[spec.group]) is not spec:
            with alone(key):
                conditions = conflict_conditions(spec, owner, manifest.get("status") or {})
                unknown = not_measured(manifest, conditions[0].message)
                await context.say(manifest, *conditions, *unknown)
    pairs = {key: (manifest, spec) for key, (manifest, spec) in pairs.items() if owners[spec.group] is spec}
    statuses = {key: manifest.get("status") or {} for key, (manifest, _) in pairs.items()}
    noted = {key: manifest for key, (manifest, _) in pairs.items()}

    async def note(spec: GroupSpec, status: Mapping[str, Any]) -> None:
        # Of several operators that found the same reset to be due, one writes its note, and acts.
        key = spec.identity.key
        noted[key] = await context.kube.apply_status(noted[key], status, unchanged=True)

    looked_at = [spec for _, spec in pairs.values()]
    try:
        snapshots, failed = await look_at_groups(
            context.brokers(namespace, name), looked_at, statuses, note, context.may_act, alone
        )
    except BrokersUnreachable as error:
        for key in pairs:
            with alone(key):  # what was noted of a reset is part of the status
                unreachable = Condition("Ready", None, "Unreachable", str(error))
                await context.say_unseen(noted[key], unreachable)
        raise
    for key, status in snapshots.items():
        with alone(key):
            await _write(context, pairs[key][0], statuses[key], status)
    for key, sentence in failed.items():
        with alone(key):  # what was noted of a reset is part of the status
            await context.say_unseen(noted[key], Condition("Ready", None, "NotTold", sentence))
    if any(_pending(status) for status in snapshots.values()) or failed:
        return _PENDING_SECONDS
    limited = any(spec.max_lag is not None or spec.max_lag_seconds is not None for spec in looked_at)
    return _MEASURE_SECONDS if limited else None


async def _say_of_all(
    context: Context,
    pairs: Mapping[tuple[str, str], tuple[Object, GroupSpec]],
    condition: Condition,
    alone: Alone,
) -> None:
    for key, (manifest, _) in pairs.items():
        with alone(key):
            await context.say_unseen(manifest, condition)


async def _write(context: Context, manifest: Object, before: Object, status: dict[str, Any]) -> None:
    """Write the status of one group, and tell of a reset that has ended since `before`."""
    await context.put_status({**manifest, "status": before}, status)
    last = status.get("lastReset") or {}
    if last != before.get("lastReset") and last.get("state") in ("Done", "Failed"):
        text = last.get("message") or f"The reset {last['requestId']} put {len(last['offsets'])} offsets."
        await context.event(manifest, f"Reset{last['state']}", text, warning=last["state"] == "Failed")
        if last["state"] == "Done":
            context.metrics.steps.labels("move_offsets").inc()


def _pending(status: Mapping[str, Any]) -> bool:
    return any(item["type"] == "ResetPending" and item["status"] == "True" for item in status["conditions"])
