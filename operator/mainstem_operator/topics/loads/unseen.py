"""What a Topic's status says of loads that nobody looks at: what it said, and that no more is known. Pure.

Without it the status would lose when the table was last loaded, and which losses and rejections count.
"""

from __future__ import annotations

from typing import Final

from mainstem_operator.api.conditions import FRESH, LOADED, Condition
from mainstem_operator.api.fields import Object
from mainstem_operator.api.timestamps import moment_noted
from mainstem_operator.topics.loads.maintenance import MAINTAINED
from mainstem_operator.topics.loads.rejections import REJECTED, rejections_in
from mainstem_operator.topics.loads.requests import LOADED_AGAIN
from mainstem_operator.topics.loads.runs import KEPT_UNTIL_LOADED, LoadStatus

_OF_THE_MOMENT: Final = frozenset({FRESH, LOADED, LOADED_AGAIN, MAINTAINED})
_REMEMBERED: Final = frozenset({KEPT_UNTIL_LOADED, REJECTED})
"""What they say counts until a load says otherwise."""
_HOLDS: Final = {"True": True, "False": False}


def loads_not_seen(status: Object, reason: str, why: str) -> LoadStatus:
    """The loads as `status` has them.

    Args:
        status: of the Topic.
        reason, why: of the conditions, whose state is not known.
    """
    conditions = []
    for item in status.get("conditions") or ():
        if item["type"] in _OF_THE_MOMENT:
            conditions.append(Condition(item["type"], None, reason, why))
        elif item["type"] in _REMEMBERED:
            holds = _HOLDS.get(item["status"])
            conditions.append(Condition(item["type"], holds, item["reason"], item["message"]))
    return LoadStatus(
        status.get("lastLoad"),
        status.get("lastGoodLoad"),
        status.get("loadedUpTo"),
        conditions,
        freshness_seconds=status.get("freshnessSeconds"),
        newest=moment_noted(status.get("loadedUpTo")),
        requests=status.get("loadRequests") or (),
        last_rejection=status.get("lastRejection"),
        is_rejecting=rejections_in(status).counts,
    )
