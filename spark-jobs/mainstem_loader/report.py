"""What a load reports while it runs and when it is done: values for people and programs, without effects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from mainstem_loader.ranges import OffsetRange


class Stage(StrEnum):
    """The stages of a load; all but the last repeat in each step. Only rewrites copy rows."""

    CONNECT = "connect"
    START = "start"
    LOAD = "load"
    TRANSFORM = "transform"
    COPY = "copy"
    COMMIT = "commit"
    RETENTION = "retention"
    DEAD_LETTERS = "dead letters"
    SWEEP = "sweep"


def rejects_too_many(dead: int, read: int, max_share: float) -> bool:
    """Whether so many of the records that were read are dead that the load has failed.

    One beside others is a bad record and says nothing of the rest, however few those are; only a share of 0
    allows none at all.
    """
    if dead == 1 and read > 1 and max_share > 0:
        return False
    return dead > read * max_share


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a step is. `done` of `total` tasks in stage `load`; elsewhere both are 0."""

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
class RangeCounts:
    """What became of the records of one range: `read` = `loaded` + `dead`."""

    range: OffsetRange
    read: int
    loaded: int
    dead: int

    def followed_by(self, later: RangeCounts) -> RangeCounts:
        """Both ranges of one partition as one."""
        return RangeCounts(
            OffsetRange(self.range.partition, self.range.start, later.range.end),
            self.read + later.read,
            self.loaded + later.loaded,
            self.dead + later.dead,
        )


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a load did.

    Attributes:
        outcome: see there.
        topic, topic_id, table: from where, to where.
        run_id: of the last step; rows have their step's in `_run`.
        steps: how many commits were made.
        read, loaded, dead_lettered: in records; `read` is the sum of the others.
        rows: added to the table; as many as `loaded`, unless a transform returned more or fewer.
        days: partitions that got rows, as ISO dates.
        files, size_bytes: of the new rows.
        bytes_read: of batches as stored by the broker.
        ranges: offsets by partition, which may have holes.
        gaps: offsets that were gone before they could be loaded.
        tries: how often tasks ran, above their number when types had to be settled or tasks were retried.
        seconds: by stage.
        task_seconds: of the stage `load`, by what tasks did, added up over tasks.
        loaded_up_to_ms: the newest time up to which everything is loaded, in milliseconds since 1970; None if
            a cap or an open transaction left records over whose time is unknown.
        max_rejected_share: above it, the load has failed.
        orphans_swept: how many files were deleted that no commit names.
        offsets_deleted: how many offsets of the topic were deleted, because their records are loaded and old.
        warnings: sentences that a person should read.
        has_more: whether a cap left records over that could be read.
    """

    outcome: LoadOutcome
    topic: str
    topic_id: str
    table: str
    run_id: str
    steps: int
    read: int
    loaded: int
    dead_lettered: int
    rows: int
    days: tuple[str, ...]
    files: int
    size_bytes: int
    bytes_read: int
    ranges: tuple[RangeCounts, ...]
    gaps: tuple[OffsetRange, ...]
    tries: int
    seconds: dict[str, float]
    task_seconds: dict[str, float]
    loaded_up_to_ms: int | None
    max_rejected_share: float
    orphans_swept: int
    warnings: tuple[str, ...]
    offsets_deleted: int = 0
    has_more: bool = False

    @property
    def rejected_too_many(self) -> bool:
        """Whether more records are dead letters than the settings allow."""
        return rejects_too_many(self.dead_lettered, self.read, self.max_rejected_share)

    @property
    def gap_records(self) -> int:
        """How many offsets were gone before they could be loaded."""
        return sum(gap.end - gap.start for gap in self.gaps)

    def rejection(self) -> str:
        """A sentence about the share of dead letters, for a load that rejected too many."""
        share = self.dead_lettered / self.read if self.read else 0.0
        return (
            f"{self.dead_lettered:,} of {self.read:,} records ({share:.0%}) were rejected, more than the"
            f" {self.max_rejected_share:.0%} that are allowed. They are in the dead letter table, each with"
            f" its"
            " reason."
        )

    def summary(self) -> dict[str, object]:
        """What is worth keeping of a load, of bounded size, in JSON's types."""
        found: dict[str, object] = {
            "runId": self.run_id,
            "outcome": str(self.outcome),
            "topicId": self.topic_id,
            "table": self.table,
            "read": self.read,
            "loaded": self.loaded,
            "rows": self.rows,
            "deadLettered": self.dead_lettered,
            "files": self.files,
            "sizeBytes": self.size_bytes,
            "gapRecords": self.gap_records,
            "orphansSwept": self.orphans_swept,
            "offsetsDeleted": self.offsets_deleted,
            "seconds": round(sum(self.seconds.values()), 1),
        }
        if self.loaded_up_to_ms is not None:
            up_to = datetime.fromtimestamp(self.loaded_up_to_ms / 1000, UTC)
            found["loadedUpTo"] = f"{up_to:%Y-%m-%dT%H:%M:%SZ}"
        if self.rejected_too_many:
            found["error"] = self.rejection()
        return found
