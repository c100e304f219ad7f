"""The job: one load that brings a topic's new records into its table, in steps.

    connect       deliver what a killed load left (dead letters), ask the brokers for offsets, plan
    start         start Spark, if there is more to load than this process loads sooner
    load          the tasks: fetch, decode, write files
    transform     if there is one: Spark reads these files, and writes those of the table (`produce_rows`)
    commit        files and offsets become visible together
    dead letters  what could not be loaded becomes visible, too
    retention     if retention waits for loads: delete records that are loaded and old
    sweep         once a day: delete files that no commit will ever name

The end offsets are fixed when the load begins. A backlog that is too large for one commit is loaded in steps,
each of which plans, loads and commits by itself, so a load that is killed or fails keeps its earlier steps.
Run it again and it continues where the last commit ended; kill it anywhere, or run two at once, and no row is
lost or duplicated, because the table's own commit is the only memory (`table.commits`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from mainstem_loader.adapt_table import adapt_table
from mainstem_loader.columns import field_of_column, types_of
from mainstem_loader.errors import (
    LoaderError,
    SettingsError,
    WarehouseError,
)
from mainstem_loader.kafka.batches import wire_bytes_per_offset
from mainstem_loader.kafka.delete_records import delete_records_before
from mainstem_loader.kafka.fetch import IsolationLevel, TopicReader
from mainstem_loader.kafka.range_reader import has_timestamp, oldest_time_ms
from mainstem_loader.payload.rows import PayloadSettings
from mainstem_loader.produce_rows import produce_rows
from mainstem_loader.ranges import (
    GapPolicy,
    LoadPlan,
    OffsetRange,
    PartitionOffsets,
    ReadLimits,
    deletable_ends,
    plan_load,
    unloaded_positions,
)
from mainstem_loader.report import (
    LoadOutcome,
    LoadProgress,
    LoadReport,
    OnProgress,
    RangeCounts,
    Stage,
)
from mainstem_loader.settings import LoadSettings
from mainstem_loader.spark.executors import TaskExecutor
from mainstem_loader.spark.tasks import TaskResult, untyped_names
from mainstem_loader.table.commits import CommitOutcome, LoadCommit, OffsetMove
from mainstem_loader.table.parquet_files import new_run_id
from mainstem_loader.task_runs import TaskRuns, WorkSize

__all__ = [
    "LoadOutcome",
    "LoadProgress",
    "LoadReport",
    "LoadSettings",
    "OnProgress",
    "Stage",
    "load_topic",
]

# A step is planned anew when another load changed the columns' types meanwhile.
PLANS_MAX: Final = 5
# A step gives each core a few tasks: enough to keep cores busy, little enough to commit within minutes.
TASKS_PER_CORE: Final = 4
SAMPLE_BYTES: Final = 1024 * 1024
# The default of transaction.max.timeout.ms, after which coordinators have ended every transaction they know.
HANGING_AFTER_MS: Final = 15 * 60 * 1000
_PARTITIONS_SHOWN_MAX: Final = 5
_FIELDS_SHOWN_MAX: Final = 20


def load_topic(
    settings: LoadSettings, executor: TaskExecutor | None = None, on_progress: OnProgress | None = None
) -> LoadReport:
    """Load what the topic has now and the table does not.

    Args:
        settings: see there.
        executor: where tasks run, entered only if there is work. If None, this process for small loads
            (`WorkSize.is_small`), and Spark for larger ones, for transforms, and where the settings name its
            master.
        on_progress: called when a stage begins and when tasks end; may be called from another thread.

    Raises:
        LoaderError: with what to do. Earlier steps stay committed, and the message says so.
    """
    settings.check()
    with TaskRuns(settings, executor, on_progress or (lambda _: None)) as runs:
        try:
            return _Load(settings, runs).run()
        except LoaderError as error:
            if runs.totals.steps:
                raise type(error)(
                    f"{error} Before that, {runs.totals.loaded:,} records were loaded; they stay."
                ) from error
            raise


class _Load:
    """One call of `load_topic`."""

    def __init__(self, settings: LoadSettings, runs: TaskRuns) -> None:
        self.table = runs.table
        self.totals = runs.totals
        self._runs = runs
        self._settings = settings
        self._limits = ReadLimits(settings.max_records, settings.max_bytes, parallelism=runs.cores)
        # All set by the first step: the topic, what all steps together read, and when that was asked for.
        self._topic_id: str | None = None
        self._is_first_load = False
        self._whole: LoadPlan | None = None
        self._asked_at_s = 0.0
        self._ends: dict[int, int] = {}
        self._high_watermarks: dict[int, int] = {}
        self._wire_bytes_per_offset = 0.0

    def run(self) -> LoadReport:
        """Load step by step."""
        outcome = self._step()
        step = outcome
        while step is LoadOutcome.LOADED and not self._is_complete():
            step = self._step()
        self.totals.loaded_up_to_ms = self._loaded_up_to_ms()
        self._delete_loaded()
        self._sweep()
        assert self._topic_id is not None
        return self.totals.report(
            outcome,
            topic=self._settings.topic,
            topic_id=self._topic_id,
            table=self.table.name,
            max_rejected_share=self._settings.max_rejected_share,
        )

    def _step(self) -> LoadOutcome:
        for _ in range(PLANS_MAX):
            outcome = self._try_step()
            if outcome is not None:
                return outcome
        raise WarehouseError(
            f"Other loads changed the columns of table {self.table.name} {PLANS_MAX} times while this one"
            " ran; run one at a time until the columns are settled."
        )

    def _try_step(self) -> LoadOutcome | None:
        """Plan, load and commit; None when the commit needs another plan."""
        started_s = time.time()
        run_id = new_run_id(started_s)
        with self._runs.stage(Stage.CONNECT):
            self.table.reload()
            self.table.deliver_dead_letters()
            with TopicReader(
                self._runs.brokers, self._settings.topic, self._settings.isolation, self._topic_id
            ) as reader:
                committed, plan = self._plan(reader)
                self._topic_id = topic_id = reader.topic_id
            planned_version = self.table.version
            self._check_transform(topic_id)
            payload = self._runs.payload_settings()
        self.totals.run_id = run_id
        if not plan.ranges:
            return LoadOutcome.UP_TO_DATE
        self.table.check_store()
        tasks = self._runs.load_tasks(run_id, topic_id, plan.tasks, payload)
        assert self._whole is not None
        results, columns = produce_rows(
            self._runs, self._settings, tasks, dict(payload.columns), self._work(self._whole), started_s
        )
        untyped = types_of(untyped_names(results), self.table.payload_columns)
        commit = LoadCommit(
            run_id=run_id,
            started_s=started_s,
            topic_id=topic_id,
            moves=tuple(
                OffsetMove(part.partition, committed[part.partition], part.end) for part in plan.ranges
            ),
            files=tuple(written for result in results for written in result.files),
            dead_files=tuple(written for result in results for written in result.dead_files),
            columns=columns,
            metadata=self._metadata(topic_id, plan, results),
            is_transformed=self._settings.transform is not None,
            planned_version=planned_version,
        )
        with self._runs.stage(Stage.COMMIT):
            try:
                self._check_event_time(payload, results)
                self._runs.check_unchanged(topic_id, results)
                if adapt_table(self._runs, self._settings, results, columns, untyped):
                    self._runs.delete(results)
                    return None
            except BaseException:
                self._runs.delete(results)
                raise
            commit = replace(commit, untyped=types_of(untyped, self.table.payload_columns))
            outcome = self.table.commit(commit)
        if outcome is not CommitOutcome.COMMITTED:
            self._runs.delete(results)
        if outcome is CommitOutcome.COLUMNS_MOVED:
            return None
        if outcome is CommitOutcome.SUPERSEDED:
            return LoadOutcome.SUPERSEDED
        self.totals.add_step(plan.gaps, _counts_of(plan, results), results)
        if self._settings.transform is None:
            self.totals.note_rest(results)
        with self._runs.stage(Stage.DEAD_LETTERS):
            self.table.deliver_dead_letters()
        return LoadOutcome.LOADED if plan.tasks or plan.gaps else LoadOutcome.UP_TO_DATE

    def _check_transform(self, topic_id: str) -> None:
        if self._settings.transform is None and self.table.is_transformed(topic_id):
            raise SettingsError(
                f"Table {self.table.name} was loaded through a transform, and this load has none; name the"
                " transform, or load into another table."
            )

    def _check_event_time(self, payload: PayloadSettings, results: Sequence[TaskResult]) -> None:
        """Refuse an event time that neither the table nor any record of the load has: a mistyped name would
        make dead letters of all records. One that the table has may be missing in all new records.
        """
        column = payload.times.column
        if column is None or column in payload.columns:
            return
        if self._settings.transform is not None and not self.table.is_empty():
            return  # The table's columns are not those of the records.
        found = {name for result in results for name in result.found_columns}
        if column in found or not any(part.dead for result in results for part in result.counts):
            return
        fields = sorted(field_of_column(name) for name in {*payload.columns, *found})
        if not fields:
            return  # The records have no fields at all, so the name is not what is wrong.
        shown = ", ".join(fields[:_FIELDS_SHOWN_MAX]) + (", ..." if len(fields) > _FIELDS_SHOWN_MAX else "")
        raise SettingsError(
            f"No record of {self._settings.topic} has a field {field_of_column(column)!r} with the event"
            f" time, so nothing was loaded. The fields are {shown}; fields inside of objects cannot be the"
            " event time."
        )

    def _plan(self, reader: TopicReader) -> tuple[dict[int, int | None], LoadPlan]:
        """The committed offsets, and the plan of one step."""
        settings = self._settings
        if self._whole is None:
            self._asked_at_s = time.time()
            # Before the ends, see `unloaded_positions`.
            self._high_watermarks = reader.high_watermarks()
        bounds = reader.offsets()
        committed = {partition: self.table.committed(reader.topic_id, partition) for partition in bounds}
        if any(offset is not None for offset in committed.values()):
            self.table.check_not_restored(reader.topic_id)
        if self._whole is None:  # The first step's commit gives all partitions an offset.
            self.table.check_offsets_of_rows(reader.topic_id, committed)
        partitions = [
            PartitionOffsets(partition, committed[partition], earliest, latest)
            for partition, (earliest, latest) in bounds.items()
        ]
        on_gap = self._gap_policy(committed)
        if self._whole is None:
            self._ends = {partition: latest for partition, (_, latest) in bounds.items()}
            whole = plan_load(settings.topic, partitions, self._limits, on_gap)
            if settings.max_bytes is not None or whole.offset_count > self._limits.task_records_min:
                starts = {part.partition: part.start for part in whole.ranges if part.offset_count}
                self._wire_bytes_per_offset = wire_bytes_per_offset(
                    reader.sample(starts, SAMPLE_BYTES), settings.topic
                )
                whole = self._plan_up_to(partitions, self._limits, on_gap)
            self._whole = whole
        ends = {part.partition: part.end for part in self._whole.ranges}
        partitions = [
            replace(part, latest=min(part.latest, max(ends[part.partition], part.committed or 0)))
            for part in partitions
            if part.partition in ends
        ]
        limits = replace(self._limits, run_records=self._limits.task_records * self._task_count_max())
        if self._wire_bytes_per_offset:
            limits = replace(limits, run_bytes=limits.task_bytes * self._task_count_max())
        return committed, self._plan_up_to(partitions, limits, on_gap)

    def _work(self, whole: LoadPlan) -> WorkSize:
        size_bytes = int(whole.offset_count * self._wire_bytes_per_offset)
        return WorkSize(whole.offset_count, size_bytes or None)

    def _gap_policy(self, committed: Mapping[int, int | None]) -> GapPolicy:
        """What to do about gaps: as set, or fail unless nothing of the table exists yet."""
        is_new = all(offset is None for offset in committed.values())
        if self._whole is None:
            self._is_first_load = is_new and self.table.is_empty()
        if self._settings.on_gap is not None:
            return self._settings.on_gap
        # Later steps of a first load have committed offsets, and what they miss was lost.
        return GapPolicy.SKIP if self._is_first_load and is_new else GapPolicy.FAIL

    def _plan_up_to(
        self, partitions: Sequence[PartitionOffsets], limits: ReadLimits, on_gap: GapPolicy
    ) -> LoadPlan:
        return plan_load(self._settings.topic, partitions, limits, on_gap, self._wire_bytes_per_offset)

    def _task_count_max(self) -> int:
        return self._limits.parallelism * TASKS_PER_CORE

    def _is_complete(self) -> bool:
        assert self._whole is not None and self._topic_id is not None
        return all(
            (self.table.committed(self._topic_id, part.partition) or 0) >= part.end
            for part in self._whole.ranges
        )

    def _loaded_up_to_ms(self) -> int | None:
        """The newest time up to which everything is loaded: when the load began, or the time of the oldest
        record that is still missing because of a cap or an open transaction. None if that cannot be found
        out.
        """
        assert self._topic_id is not None
        up_to_ms = int(self._asked_at_s * 1000)
        committed = {part: self.table.committed(self._topic_id, part) or 0 for part in self._ends}
        readable, waiting = unloaded_positions(committed, self._ends, self._high_watermarks)
        self.totals.has_more = bool(readable)
        if not readable and not waiting:
            return up_to_ms
        time_of: dict[int, int | None] = {}
        try:
            # A reader of committed records gets nothing where an open transaction begins.
            with TopicReader(
                self._runs.brokers, self._settings.topic, IsolationLevel.READ_UNCOMMITTED, self._topic_id
            ) as reader:
                for partition, position in {**readable, **waiting}.items():
                    time_of[partition] = oldest_time_ms(reader, partition, position)
                old = {
                    partition: position
                    for partition, position in waiting.items()
                    if (time_ms := time_of[partition]) is not None and up_to_ms - time_ms > HANGING_AFTER_MS
                }
                if old:
                    # Transactions that were open when the load began may have ended since.
                    stable = reader.last_stable_offsets()
                    old = {part: position for part, position in old.items() if stable[part] <= position}
        except LoaderError:
            return None  # The records are loaded; only the age of the others is unknown.
        if old:
            self.totals.warnings.append(_hanging(self._settings.topic, old))
        times_ms = [time_ms for time_ms in time_of.values() if time_ms is not None]
        return min(up_to_ms, *times_ms) if len(times_ms) == len(time_of) else None

    def _metadata(self, topic_id: str, plan: LoadPlan, results: Sequence[TaskResult]) -> dict[str, object]:
        return {
            "topic": self._settings.topic,
            "topicId": topic_id,
            "ranges": [
                {
                    "partition": counts.range.partition,
                    "start": counts.range.start,
                    "end": counts.range.end,
                    "read": counts.read,
                    "loaded": counts.loaded,
                    "dead": counts.dead,
                }
                for counts in _counts_of(plan, results)
            ],
            "gaps": [{"partition": gap.partition, "start": gap.start, "end": gap.end} for gap in plan.gaps],
            "rows": sum(written.rows for result in results for written in result.files),
        }

    def _delete_loaded(self) -> None:
        """Delete records that are in the table, or dead letters, and older than the topic is to keep them.

        Retention that waits for loads leaves all deletion to this, but for a limit of size. A rewind may have
        set the offsets back since the last commit, or be about to: the newest snapshot decides. Records
        without a timestamp are as old as the next record that has one, and stay until there is one.
        """
        after_ms, topic_id = self._settings.delete_loaded_after_ms, self._topic_id
        if after_ms is None:
            return
        assert topic_id is not None
        settings, brokers = self._settings, self._runs.brokers
        with self._runs.stage(Stage.RETENTION):
            try:
                with TopicReader(brokers, settings.topic, settings.isolation, topic_id) as reader:
                    bounds = reader.offsets()
                    young = reader.offsets_at(int(time.time() * 1000) - after_ms)

                    old = self._loaded_ends(topic_id, bounds, young)
                    timed = {part: end for part, end in old.items() if has_timestamp(reader, part, end - 1)}
                if len(timed) < len(old):
                    self.totals.warnings.append(_of_unknown_age(sorted(old.keys() - timed.keys())))
                kept = {part: timed.get(part, earliest) for part, (earliest, _) in bounds.items()}
                done = delete_records_before(
                    brokers, settings.topic, topic_id, lambda: self._loaded_ends(topic_id, bounds, kept)
                )
                self.totals.offsets_deleted = sum(end - bounds[part][0] for part, end in done.items())
            except LoaderError as error:
                # The records are loaded; the next load deletes them.
                self.totals.warnings.append(f"Loaded records were not deleted from the topic: {error}")

    def _loaded_ends(
        self, topic_id: str, bounds: Mapping[int, tuple[int, int]], young: Mapping[int, int | None]
    ) -> dict[int, int]:
        """See `deletable_ends`, by the newest snapshot."""
        self.table.reload()
        kept_from = {part: self.table.kept_from(topic_id, part) for part in bounds}
        return deletable_ends(bounds, young, kept_from)

    def _sweep(self) -> None:
        hours = self._settings.sweep_after_hours
        if hours is None or not self.table.is_sweep_due():
            return
        with self._runs.stage(Stage.SWEEP):
            try:
                self.totals.orphans_swept = self.table.sweep_orphans(hours)
            except LoaderError as error:
                # The records are loaded; the next load sweeps.
                self.totals.warnings.append(f"Orphans were not swept: {error}")


def _hanging(topic: str, position_of: Mapping[int, int]) -> str:
    """A warning about open transactions, by partition the offset where the first begins."""
    shown = list(position_of.items())[:_PARTITIONS_SHOWN_MAX]
    where = ", ".join(f"offset {position} of partition {partition}" for partition, position in shown)
    more = ", ..." if len(position_of) > len(shown) else ""
    return (
        f"Topic {topic} has records that cannot be loaded, because a transaction has been open for more than"
        f" {HANGING_AFTER_MS // 60_000} minutes, from {where}{more} on. Find out whether it hangs with"
        f" `mainstem transaction find-hanging {topic}`, which shows how to abort it."
    )


def _of_unknown_age(partitions: Sequence[int]) -> str:
    """A warning about loaded records that stay in the topic."""
    shown = ", ".join(map(str, partitions[:_PARTITIONS_SHOWN_MAX]))
    more = ", ..." if len(partitions) > _PARTITIONS_SHOWN_MAX else ""
    return (
        "Loaded records were not deleted from the topic where the last of them has no timestamp, so that"
        f" their age is not known (partitions: {shown}{more})."
    )


def _counts_of(plan: LoadPlan, results: Sequence[TaskResult]) -> tuple[RangeCounts, ...]:
    """One for each partition that moved, whatever tasks its offsets were divided among."""
    parts: dict[int, list[RangeCounts]] = {}
    for result in results:
        for counts in result.counts:
            parts.setdefault(counts.range.partition, []).append(counts)
    return tuple(_sum_of(whole, parts.get(whole.partition, ())) for whole in plan.ranges)


def _sum_of(whole: OffsetRange, parts: Sequence[RangeCounts]) -> RangeCounts:
    return RangeCounts(
        whole,
        sum(part.read for part in parts),
        sum(part.loaded for part in parts),
        sum(part.dead for part in parts),
    )
