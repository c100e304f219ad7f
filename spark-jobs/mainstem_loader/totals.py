"""Adding up the steps of one load, for its report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from mainstem_loader.columns import DAY_COLUMN, REST_COLUMN
from mainstem_loader.ranges import OffsetRange
from mainstem_loader.report import LoadOutcome, LoadReport, RangeCounts, Stage
from mainstem_loader.spark.tasks import TaskResult, untyped_names

GAPS_SHOWN_MAX: Final = 5
FIELDS_SHOWN_MAX: Final = 5


@dataclass(slots=True)
class LoadTotals:
    """Adds up the steps of one load."""

    run_id: str = ""
    steps: int = 0
    tries: int = 0
    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    bytes_read: int = 0
    orphans_swept: int = 0
    offsets_deleted: int = 0
    loaded_up_to_ms: int | None = None
    has_more: bool = False
    days: set[str] = field(default_factory=set)
    counts: dict[int, RangeCounts] = field(default_factory=dict)
    gaps: list[OffsetRange] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {stage.value: 0.0 for stage in Stage})
    task_seconds: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def loaded(self) -> int:
        """Records that became rows so far."""
        return sum(counts.loaded for counts in self.counts.values())

    def note_rest(self, results: Sequence[TaskResult]) -> None:
        """Say once that some fields of rows are in `_rest`."""
        if not any(REST_COLUMN in written.columns for result in results for written in result.files):
            return
        names = sorted(untyped_names(results))
        shown = ", ".join(names[:FIELDS_SHOWN_MAX]) + (", ..." if len(names) > FIELDS_SHOWN_MAX else "")
        reason = f", or were empty in all records so far and have no type yet ({shown})" if names else ""
        warning = f"Some fields fit no column{reason}; they are in the column _rest, as JSON text."
        if warning not in self.warnings:
            self.warnings.append(warning)

    def add_step(
        self, gaps: Iterable[OffsetRange], counts: Iterable[RangeCounts], results: Sequence[TaskResult]
    ) -> None:
        """Add a step that was committed."""
        self.steps += 1
        self.gaps += gaps
        for part in counts:
            before = self.counts.get(part.range.partition)
            self.counts[part.range.partition] = part if before is None else before.followed_by(part)
        for result in results:
            self.rows += sum(written.rows for written in result.files)
            self.files += len(result.files)
            self.size_bytes += sum(written.size_bytes for written in result.files)
            self.bytes_read += result.bytes_read
            self.days |= {written.partition_values[DAY_COLUMN] for written in result.files}
            for stage in result.seconds.__slots__:
                self.task_seconds[stage] = self.task_seconds.get(stage, 0.0) + getattr(result.seconds, stage)

    def report(
        self, outcome: LoadOutcome, *, topic: str, topic_id: str, table: str, max_rejected_share: float
    ) -> LoadReport:
        """All steps as one report."""
        counts = sorted(self.counts.values(), key=lambda part: part.range)
        return LoadReport(
            outcome=outcome,
            topic=topic,
            topic_id=topic_id,
            table=table,
            run_id=self.run_id,
            steps=self.steps,
            read=sum(part.read for part in counts),
            loaded=self.loaded,
            dead_lettered=sum(part.dead for part in counts),
            rows=self.rows,
            days=tuple(sorted(self.days)),
            files=self.files,
            size_bytes=self.size_bytes,
            bytes_read=self.bytes_read,
            ranges=tuple(counts),
            gaps=tuple(self.gaps),
            tries=self.tries,
            seconds=dict(self.seconds),
            task_seconds=dict(self.task_seconds),
            loaded_up_to_ms=self.loaded_up_to_ms,
            max_rejected_share=max_rejected_share,
            orphans_swept=self.orphans_swept,
            offsets_deleted=self.offsets_deleted,
            has_more=self.has_more,
            warnings=(*self.warnings, *self._warnings_of_gaps(topic)),
        )

    def _warnings_of_gaps(self, topic: str) -> list[str]:
        if not self.gaps:
            return []
        count = sum(gap.offset_count for gap in self.gaps)
        partitions = ", ".join(
            f"{gap.start} to {gap.end - 1} of partition {gap.partition}" for gap in self.gaps[:GAPS_SHOWN_MAX]
        )
        more = ", ..." if len(self.gaps) > GAPS_SHOWN_MAX else ""
        return [
            f"{count:,} offsets of topic {topic} were deleted before they were loaded, and the table does not"
            f" have them: {partitions}{more}."
        ]
