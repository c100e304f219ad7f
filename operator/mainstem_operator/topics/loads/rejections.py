"""Loads that rejected more records than their Topic allows: the last one, and whether it still counts. Pure.

The next load often finds nothing to read, and says nothing of the data. So a rejection counts until a load
that read records has stayed within the limit. `status.lastRejection` stays after that: it says which runs
were judged before, since Jobs that failed are kept for longer than others.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from mainstem_operator.api.conditions import Condition, pruned
from mainstem_operator.api.fields import Object
from mainstem_operator.api.timestamps import moment_noted, written
from mainstem_operator.api.topics import TopicSpec
from mainstem_operator.topics.loads.runs import Run, summary_of

REJECTED: Final = "RecordsRejected"


@dataclass(frozen=True, slots=True)
class Rejection:
    """A load that rejected too many of the records that it read, and when it ended."""

    at: dt.datetime
    run_id: str | None
    read: int
    rejected: int

    def status(self) -> dict[str, Any]:
        """`status.lastRejection`."""
        return pruned(
            {"at": written(self.at), "runId": self.run_id, "read": self.read, "rejected": self.rejected}
        )


@dataclass(frozen=True, slots=True)
class Rejections:
    """The last load that rejected too many records, if any; whether all loads since have read nothing."""

    last: Rejection | None = None
    counts: bool = False


def rejections_in(status: Object) -> Rejections:
    """What the status says."""
    noted = status.get("lastRejection") or {}
    if (at := moment_noted(noted.get("at"))) is None:
        return Rejections()
    try:
        last = Rejection(at, noted.get("runId"), int(noted["read"]), int(noted["rejected"]))
    except (KeyError, TypeError, ValueError):  # somebody has damaged it
        return Rejections()
    counts = any(
        item.get("type") == REJECTED and item.get("status") == "True"
        for item in status.get("conditions") or ()
    )
    return Rejections(last, counts)


def rejections_of_runs(topic: TopicSpec, status: Object, runs: Iterable[Run]) -> Rejections:
    """What is known after these runs, of which the status may know some already."""
    known = rejections_in(status)
    last, counts = known.last, known.counts
    ended = [(run.finished, run) for run in runs if run.finished is not None]
    for finished, run in sorted(ended, key=lambda pair: pair[0]):
        summary = summary_of(run.message)
        read, rejected = summary.get("read"), summary.get("deadLettered")
        if not isinstance(read, int) or not isinstance(rejected, int) or read == 0:
            continue
        if last is not None and finished <= last.at:
            continue
        counts = exceeds(topic, read, rejected)
        if counts:
            last = Rejection(finished, summary.get("runId"), read, rejected)
    return Rejections(last, counts and last is not None and exceeds(topic, last.read, last.rejected))


def exceeds(topic: TopicSpec, read: int, rejected: int) -> bool:
    """Whether that is a larger share than the Topic allows."""
    return topic.warehouse is not None and rejected * 100 > read * topic.warehouse.max_rejected_percent


def rejection_condition(topic: TopicSpec, rejections: Rejections) -> Condition | None:
    """RecordsRejected; None where no load has ever rejected too many."""
    last = rejections.last
    if last is None or topic.warehouse is None:
        return None
    if not rejections.counts:
        return Condition(REJECTED, False, "WithinLimit")
    text = (
        f"{last.rejected} of {last.read} records were rejected by the load that ended at {written(last.at)},"
        f" and {topic.warehouse.max_rejected_percent} % are allowed. They are in the dead-letter table, each"
        " with its reason; spec.warehouse.replayDeadLetters loads them again."
    )
    return Condition(REJECTED, True, "TooManyRejected", text)
