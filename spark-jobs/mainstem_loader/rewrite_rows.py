"""Loading again what was loaded before: backfill, rewind and the replay of dead letters.

    backfill   reads offsets again, and adds the records that are missing, or replaces the rows of all
    rewind     removes the rows of the last offsets, so that the next load reads them again
    replay     reads dead letters again, and adds the rows that they have become

All three plan (`rewrite_plan`), read, write files and commit once, as a load does (`load_topic`), and a kill
at any moment leaves the table as it was or as it is to be. They are safe beside live loads, which only add
offsets that were not loaded before, and beside each other: what was planned on rows that another one changed
is planned again (`table.commits`).

A rewind removes rows only if the topic has their records. It keeps loads from deleting those (holds, see
`table.commits`), looks whether the topic still has them afterwards and right before its commit, and plans
again if not. Retention of the brokers can still delete them after the commit.

Each offset below the committed one stays one row or one dead letter. Dead letters follow the commit
(`table.delivery`): those of replaced or replayed offsets are removed when the new ones are added.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final

from mainstem_loader.chosen_offsets import (
    ChosenOffsets,
    divided,
)
from mainstem_loader.columns import DAY_COLUMN, types_of
from mainstem_loader.copied_days import CopiedDays, copy_days, copy_what_was_added
from mainstem_loader.errors import LoaderError, OffsetsLostError, SettingsError, WarehouseError
from mainstem_loader.kafka.fetch import TopicReader
from mainstem_loader.produce_rows import produce_rows
from mainstem_loader.ranges import OffsetRange, ReadLimits
from mainstem_loader.report import OnProgress, Stage, rejects_too_many
from mainstem_loader.rewrite_plan import RewriteKind, RewritePlan, as_of_snapshot, plan_rewrite
from mainstem_loader.settings import LoadSettings
from mainstem_loader.spark.executors import TaskExecutor
from mainstem_loader.spark.record_sources import RecordSource
from mainstem_loader.spark.tasks import TaskResult, untyped_names
from mainstem_loader.table.commits import CommitOutcome, LoadCommit
from mainstem_loader.table.formats import COMPLETES
from mainstem_loader.table.parquet_files import new_run_id
from mainstem_loader.task_runs import TaskRuns, WorkSize

# A rewrite is planned anew when another one was faster, and its commit when rows it copied have moved.
PLANS_MAX: Final = 5
COMMITS_MAX: Final = 5
# Live loads move the offsets of a rewind. It copies only what they added, which takes a fraction of a second
# at most times, so it needs many tries only beside loads that commit as often as that.
REWIND_COMMITS_MAX: Final = 50
END_OF_PARTITION: Final = 2**63 - 1


class RewriteTooManyRejectedError(LoaderError):
    """More records were rejected than is allowed, so nothing was committed."""


@dataclass(frozen=True, slots=True)
class RewriteReport:
    """What a rewrite did.

    Attributes:
        kind: see there.
        topic, topic_id, table: from where, to where.
        run_id: of the commit; None if there was nothing to commit.
        ranges: the offsets that were chosen and read, or are to be loaded again after a rewind.
        expired: chosen offsets that the topic no longer has; their rows stay as they were.
        read, loaded, dead_lettered: in records; `read` is the sum of the others.
        removed: rows that were replaced, or that a rewind removed.
        days: that got or lost rows, as ISO dates.
        files, size_bytes: written, with copies of the rows that stay in replaced days.
        seconds: by stage.
        warnings: sentences that a person should read.
        repeated: whether the request was carried out before, so that nothing was done now.
    """

    kind: RewriteKind
    topic: str
    topic_id: str
    table: str
    run_id: str | None
    ranges: tuple[OffsetRange, ...]
    expired: tuple[OffsetRange, ...]
    read: int = 0
    loaded: int = 0
    dead_lettered: int = 0
    removed: int = 0
    days: tuple[str, ...] = ()
    files: int = 0
    size_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    repeated: bool = False

    def summary(self) -> dict[str, object]:
        """What is worth keeping of a rewrite, of bounded size, in JSON's types."""
        return {
            "kind": str(self.kind),
            "runId": self.run_id,
            "topicId": self.topic_id,
            "table": self.table,
            "read": self.read,
            "loaded": self.loaded,
            "deadLettered": self.dead_lettered,
            "removed": self.removed,
            "repeated": self.repeated,
            "seconds": round(sum(self.seconds.values()), 1),
        }


def backfill(
    settings: LoadSettings,
    chosen: ChosenOffsets,
    replace_rows: bool = False,
    executor: TaskExecutor | None = None,
    on_progress: OnProgress | None = None,
    request_id: str | None = None,
) -> RewriteReport:
    """Read offsets that were loaded before, and add the records that are missing or replace the rows of all.

    If more of the records are rejected than the settings allow, nothing is changed.

    Args:
        settings: as for a load; caps and the gap policy do not apply.
        chosen: which offsets.
        replace_rows: replace rows and dead letters by what is read now; otherwise only add what is neither.
        executor, on_progress: see `load_topic`.
        request_id: if it is given, this is done once: the table remembers it, in the same commit.

    Raises:
        LoaderError: with what to do; nothing was changed.
    """
    kind = RewriteKind.REPLACE if replace_rows else RewriteKind.APPEND_MISSING
    return _run(kind, settings, chosen, executor, on_progress, request_id)


def rewind(
    settings: LoadSettings,
    chosen: ChosenOffsets,
    on_progress: OnProgress | None = None,
    request_id: str | None = None,
) -> RewriteReport:
    """Remove the rows and dead letters from the beginning of the chosen offsets on, and set what is loaded
    back to there, in one commit. The next load reads the offsets again.

    Args:
        settings: as for a load.
        chosen: of each partition only the first offset counts.
        on_progress: see `load_topic`.
        request_id: see `backfill`.

    Raises:
        LoaderError: with what to do; nothing was changed.
    """
    return _run(RewriteKind.REWIND, settings, chosen, None, on_progress, request_id)


def replay_dead_letters(
    settings: LoadSettings,
    chosen: ChosenOffsets,
    executor: TaskExecutor | None = None,
    on_progress: OnProgress | None = None,
    request_id: str | None = None,
) -> RewriteReport:
    """Load the dead letters of a topic that can be read now, each once. The others stay, with their reason of
    today. The bytes come from the dead letter table, so the topic need not have them any more.

    Args:
        settings: as for a load.
        chosen: which offsets.
        executor, on_progress: see `load_topic`.
        request_id: see `backfill`.

    Raises:
        LoaderError: with what to do; nothing was changed.
    """
    return _run(RewriteKind.REPLAY_DEAD, settings, chosen, executor, on_progress, request_id)


def _run(
    kind: RewriteKind,
    settings: LoadSettings,
    chosen: ChosenOffsets,
    executor: TaskExecutor | None,
    on_progress: OnProgress | None,
    request_id: str | None,
) -> RewriteReport:
    settings.check()
    chosen.check()
    if settings.catalog is not None:
        raise SettingsError(
            f"Only Delta tables can be loaded again ({kind}); the rows of Iceberg tables stay as they were"
            " loaded."
        )
    with TaskRuns(settings, executor, on_progress or (lambda _: None)) as runs:
        return _Rewrite(kind, settings, chosen, runs, request_id).run()


class _Rewrite:
    """One call of `backfill`, `rewind` or `replay_dead_letters`."""

    def __init__(
        self,
        kind: RewriteKind,
        settings: LoadSettings,
        chosen: ChosenOffsets,
        runs: TaskRuns,
        request_id: str | None,
    ) -> None:
        # One id may stand in several fields of a Topic, and several topics may have one table.
        self._request_id = None if request_id is None else f"{_FIELDS[kind]}\n{settings.topic}\n{request_id}"
        self._kind = kind
        self._settings = settings
        self._chosen = chosen
        self._runs = runs
        self._table = runs.table
        # Whether the last plan was given up because records of a rewind were gone from the topic.
        self._records_are_gone = False
        self._held: tuple[str, dict[int, int], float] | None = None

    def run(self) -> RewriteReport:
        try:
            return self._run()
        finally:
            self._end_hold()

    def _end_hold(self) -> None:
        """Let loads delete records again that this rewind has kept and does not need. What a killed one has
        kept expires.
        """
        if self._held is not None:
            with suppress(LoaderError):  # the first error counts
                self._table.end_hold(*self._held)

    def _run(self) -> RewriteReport:
        for _ in range(PLANS_MAX):
            report = self._try()
            if report is not None:
                return replace(
                    report, seconds=dict(self._runs.totals.seconds), warnings=self._warnings(report.expired)
                )
        if self._records_are_gone:
            raise OffsetsLostError(
                f"Topic {self._settings.topic} lost the first records of the rewind {PLANS_MAX} times while"
                " it ran, so nothing was removed; rewind to a later time, which retention does not reach"
                " meanwhile, or replace the rows instead (backfill --replace)."
            )
        raise WarehouseError(
            f"Table {self._table.name} was changed by others {PLANS_MAX} times while this ran, and nothing of"
            " it was committed; run one backfill at a time, then run it again."
        )

    def _try(self) -> RewriteReport | None:
        """Plan, read and commit; None when that needs another plan."""
        started_s = time.time()
        with self._runs.stage(Stage.CONNECT):
            self._table.reload()
            self._table.deliver_dead_letters()
            plan = plan_rewrite(self._kind, self._settings, self._chosen, self._runs)
        if self._request_id is not None and self._table.has_carried_out(self._request_id):
            return RewriteReport(
                self._kind, self._settings.topic, plan.topic_id, self._table.name, None, (), (), repeated=True
            )
        report = RewriteReport(
            self._kind,
            self._settings.topic,
            plan.topic_id,
            self._table.name,
            None,
            plan.choice.ranges,
            plan.choice.expired,
        )
        # Even if none is missing, which loads have to learn.
        completes_rows = (
            self._kind is RewriteKind.APPEND_MISSING
            and self._completes_rows
            and self._table.was_restored(plan.topic_id)
        )
        if not plan.choice.ranges and not completes_rows:
            return self._changed_nothing(report)
        if self._kind is RewriteKind.REWIND:
            with self._runs.stage(Stage.CONNECT):
                starts = {part.partition: part.start for part in plan.choice.ranges}
                self._held = plan.topic_id, starts, started_s
                self._table.hold(*self._held)
                if not self._topic_has_records(plan):
                    return None
        run_id = new_run_id(started_s)
        results: list[TaskResult] = []
        columns = dict(plan.payload.columns)
        source = _SOURCES.get(self._kind)
        if source is not None:
            offset_count = sum(part.offset_count for part in plan.choice.ranges)
            tasks = self._runs.load_tasks(
                run_id,
                plan.topic_id,
                divided(plan.choice.ranges, self._task_offsets(offset_count)),
                plan.payload,
                source,
                plan.snapshot,
            )
            results, columns = produce_rows(
                self._runs,
                self._settings,
                tasks,
                dict(plan.payload.columns),
                WorkSize(offset_count),
                started_s,
            )
            if self._settings.transform is None:
                self._runs.totals.note_rest(results)
        read = sum(counts.read for result in results for counts in result.counts)
        dead = sum(counts.dead for result in results for counts in result.counts)
        report = replace(report, read=read, loaded=read - dead, dead_lettered=dead)
        if self._is_nothing_to_commit(report) and not completes_rows:
            self._runs.delete(results)
            return self._changed_nothing(report)
        self._check_rejected(report, results)
        return self._commit(plan, results, columns, run_id, started_s, report)

    def _topic_has_records(self, plan: RewritePlan) -> bool:
        """Whether the topic still has the records whose rows a rewind removes; notes if not."""
        with TopicReader(
            self._runs.brokers, self._settings.topic, self._settings.isolation, plan.topic_id
        ) as reader:
            bounds = reader.offsets()
        self._records_are_gone = any(bounds[part.partition][0] > part.start for part in plan.choice.ranges)
        return not self._records_are_gone

    def _task_offsets(self, offset_count: int) -> int:
        limits = ReadLimits()
        return min(limits.task_records, max(limits.task_records_min, -(-offset_count // self._runs.cores)))

    def _is_nothing_to_commit(self, report: RewriteReport) -> bool:
        match self._kind:
            case RewriteKind.APPEND_MISSING:
                return not report.read
            case RewriteKind.REPLAY_DEAD:
                # A dead letter that became a row by other means is settled, without being read.
                return bool(report.read) and not report.loaded
            case _:
                return False

    def _changed_nothing(self, report: RewriteReport) -> RewriteReport:
        if self._request_id is not None:
            with self._runs.stage(Stage.COMMIT):
                self._table.note_carried_out(self._request_id)
        return report

    def _check_rejected(self, report: RewriteReport, results: Sequence[TaskResult]) -> None:
        if self._kind is RewriteKind.REPLAY_DEAD:
            return
        if rejects_too_many(report.dead_lettered, report.read, self._settings.max_rejected_share):
            self._runs.delete(results)
            raise RewriteTooManyRejectedError(
                f"{report.dead_lettered:,} of {report.read:,} records were rejected, more than the"
                f" {self._settings.max_rejected_share:.0%} that are allowed, so nothing was changed. See"
                " whether the payload's format is right, or allow more."
            )

    def _commit(
        self,
        plan: RewritePlan,
        results: Sequence[TaskResult],
        columns: dict[str, Any],
        run_id: str,
        started_s: float,
        report: RewriteReport,
    ) -> RewriteReport | None:
        """Commit, each time from the newest snapshot; None when the plan no longer holds."""
        table = self._table
        is_rewind = self._kind is RewriteKind.REWIND
        replaces = is_rewind or self._kind is RewriteKind.REPLACE
        copied: CopiedDays | None = None
        numbers = count(len(results))
        untyped = types_of(untyped_names(results), plan.payload.columns)
        for _ in range(REWIND_COMMITS_MAX if is_rewind else COMMITS_MAX):
            with self._runs.stage(Stage.COMMIT):
                is_fit = table.prepare(columns)
            if not is_fit or table.rewrites != plan.rewrites or table.has_learned(untyped):
                break
            if is_rewind:
                plan = as_of_snapshot(plan, table)
            if replaces:
                before = copied
                if before is not None and is_rewind:
                    copied = copy_what_was_added(self._runs, plan, run_id, numbers, before)
                else:
                    copied = None
                if copied is None:
                    self._runs.delete(() if before is None else before.results)
                    copied = copy_days(self._runs, plan, run_id, numbers)
            commit = self._load_commit(plan, results, copied, columns, run_id, started_s, report)
            with self._runs.stage(Stage.COMMIT):
                try:
                    if results:
                        self._runs.check_unchanged(plan.topic_id, results)
                    is_complete = not is_rewind or self._topic_has_records(plan)
                except BaseException:
                    self._runs.delete([*results, *_results(copied)])
                    raise
                if not is_complete:
                    break
                outcome = table.rewrite(commit)
            if outcome is CommitOutcome.COMMITTED:
                with self._runs.stage(Stage.DEAD_LETTERS):
                    table.deliver_dead_letters()
                removed_of_day = {} if copied is None else copied.removed_of_day
                days = {file.partition_values[DAY_COLUMN] for result in results for file in result.files}
                return replace(
                    report,
                    run_id=run_id,
                    ranges=plan.choice.ranges,
                    removed=sum(removed_of_day.values()),
                    days=tuple(sorted({*days, *removed_of_day})),
                    files=len(commit.files),
                    size_bytes=sum(file.size_bytes for file in commit.files),
                )
        self._runs.delete([*results, *_results(copied)])
        return None

    def _load_commit(
        self,
        plan: RewritePlan,
        results: Sequence[TaskResult],
        copied: CopiedDays | None,
        columns: dict[str, Any],
        run_id: str,
        started_s: float,
        report: RewriteReport,
    ) -> LoadCommit:
        return LoadCommit(
            run_id=run_id,
            started_s=started_s,
            topic_id=plan.topic_id,
            moves=plan.moves,
            files=tuple(file for result in (*results, *_results(copied)) for file in result.files),
            dead_files=tuple(file for result in results for file in result.dead_files),
            columns=columns,
            metadata=self._metadata(plan, report),
            rewrites=plan.rewrites,
            replaced_days=() if copied is None else tuple(copied.removed_of_day),
            settled=plan.settled,
            is_transformed=self._settings.transform is not None,
            request_id=self._request_id,
            planned_version=plan.snapshot.table,
        )

    @property
    def _completes_rows(self) -> bool:
        """Whether all rows are there afterwards that the topic still has, or are loaded next."""
        return self._kind is not RewriteKind.REPLAY_DEAD and self._chosen == ChosenOffsets()

    def _metadata(self, plan: RewritePlan, report: RewriteReport) -> dict[str, object]:
        return {
            "kind": str(self._kind),
            "topic": self._settings.topic,
            "topicId": plan.topic_id,
            COMPLETES: self._completes_rows,
            "ranges": [
                {"partition": part.partition, "start": part.start, "end": part.end}
                for part in plan.choice.ranges
            ],
            "read": report.read,
            "loaded": report.loaded,
            "dead": report.dead_lettered,
        }

    def _warnings(self, expired: Sequence[OffsetRange]) -> tuple[str, ...]:
        warnings = tuple(self._runs.totals.warnings)
        if not expired:
            return warnings
        where = ", ".join(f"{part.start} to {part.end - 1} of partition {part.partition}" for part in expired)
        return (
            *warnings,
            f"Topic {self._settings.topic} no longer has offsets {where}; their rows stay as they were.",
        )


def _results(copied: CopiedDays | None) -> tuple[TaskResult, ...]:
    return () if copied is None else copied.results


_FIELDS: Final = {
    RewriteKind.APPEND_MISSING: "backfill",
    RewriteKind.REPLACE: "backfill",
    RewriteKind.REWIND: "rewind",
    RewriteKind.REPLAY_DEAD: "replay",
}
_SOURCES: Final = {
    RewriteKind.APPEND_MISSING: RecordSource.MISSING,
    RewriteKind.REPLACE: RecordSource.TOPIC,
    RewriteKind.REPLAY_DEAD: RecordSource.DEAD_LETTERS,
}
