"""Conditions of a status: what is so, since when, under stable reasons. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from mainstem_operator.api.fields import Object
from mainstem_operator.api.objects import text_in
from mainstem_operator.api.timestamps import written

FRESH: Final = "Fresh"
LOADED: Final = "Loaded"
WITHIN_SLO: Final = "WithinSLO"
_MESSAGE_CHARACTERS: Final = 32_768  # of a longer one the whole status would be refused (crds/)


@dataclass(frozen=True, slots=True)
class Condition:
    """`reason` is a stable word for programs, `message` a sentence for people; `holds` None is unknown."""

    type: str
    holds: bool | None
    reason: str
    message: str = ""


def absence_of(cluster: str, namespace: str, there: Object | None) -> Condition | None:
    """Why what names a BrokerCluster waits: it does not exist, or is being deleted; None if neither is so."""
    if there is None:
        text = f"There is no BrokerCluster {cluster} in the namespace {namespace}."
        return Condition("Ready", False, "ClusterNotFound", text)
    if there["metadata"].get("deletionTimestamp"):
        text = f"The BrokerCluster {cluster} is being deleted."
        return Condition("Ready", False, "ClusterNotFound", text)
    return None


def not_measured(manifest: Object, why: str) -> list[Condition]:
    """What each look at an object measures, as unknown, where the status has it: otherwise its last state
    would stay though nobody looks.

    `Loaded` is among it for the resident loader, which loads all the time. Elsewhere it is about a run that
    has ended.
    """
    is_resident = text_in(manifest, "warehouse", "freshness") is not None
    measured = {FRESH, WITHIN_SLO, *((LOADED,) if is_resident else ())}
    present = (manifest.get("status") or {}).get("conditions") or ()
    return [Condition(item["type"], None, "NotTold", why) for item in present if item["type"] in measured]


def merged(
    present: Object | None, conditions: Iterable[Condition], generation: int, now: dt.datetime
) -> list[dict[str, Any]]:
    """`conditions` as they are written: the time of one that has not turned stays what it was.

    Args:
        present: the object's status as it is.
    """
    present_by_type = {item["type"]: item for item in (present or {}).get("conditions") or ()}
    entries = []
    for condition in conditions:
        before = present_by_type.get(condition.type, {})
        status = "Unknown" if condition.holds is None else str(condition.holds)
        turned = before.get("status") != status
        entries.append(
            {
                "type": condition.type,
                "status": status,
                "reason": condition.reason,
                "message": condition.message[:_MESSAGE_CHARACTERS],
                "lastTransitionTime": written(now) if turned else before["lastTransitionTime"],
                "observedGeneration": generation,
            }
        )
    return sorted(entries, key=lambda item: str(item["type"]))


def pruned(status: Object) -> dict[str, Any]:
    """A status without the fields that are not known."""
    return {name: value for name, value in status.items() if value is not None}
