"""What a load tells while it runs and when it is done: values for people and programs, without any doing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from mainstem_loader.ranges import OffsetRange
from mainstem_loader.tasks import RangeCounts


class Stage(StrEnum):
    """The stages of a run, in order."""

    CONNECT = "connect"
    START = "start"
    LOAD = "load"
    COMMIT = "commit"
    DEAD_LETTERS = "dead letters"


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a run is. `done` of `total` tasks in stage `load`; elsewhere both are 0."""

    stage: Stage
    done: int = 0
    total: int = 0


OnProgress = Callable[[LoadProgress], None]


class LoadOutcome(StrEnum):
    """`SUPERSEDED`: another load moved the offsets first and brought its records, this one nothing."""

    LOADED = "loaded"
    UP_TO_DATE = "up to date"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a run did. `read` = `loaded` + `dead_lettered`, in records; `ranges` hold offsets, which may have
    holes.

    `gaps`: offsets that were gone before they could be loaded. `days`: partitions that got rows, as ISO
    dates. `size_bytes`: of the new files. `bytes_read`: of batches as stored by the broker. `seconds`: by
    stage, and of the stage `load` by what tasks did, added up over tasks. `tries`: how often tasks ran, above
    their number when types had to be settled.
    """

    outcome: LoadOutcome
    topic: str
    topic_id: str
    table: str
    run_id: str
    read: int
    loaded: int
    dead_lettered: int
    days: tuple[str, ...]
    files: int
    size_bytes: int
    bytes_read: int
    ranges: tuple[RangeCounts, ...]
    gaps: tuple[OffsetRange, ...]
    tries: int
    seconds: dict[str, float]
    task_seconds: dict[str, float]

    def summary(self) -> dict[str, object]:
        """What is worth keeping of a run, of bounded size, in JSON's types."""
        return {
            "runId": self.run_id,
            "outcome": str(self.outcome),
            "topicId": self.topic_id,
            "table": self.table,
            "read": self.read,
            "loaded": self.loaded,
            "deadLettered": self.dead_lettered,
            "files": self.files,
            "sizeBytes": self.size_bytes,
            "gapRecords": sum(gap.end - gap.start for gap in self.gaps),
            "seconds": round(sum(self.seconds.values()), 1),
        }
