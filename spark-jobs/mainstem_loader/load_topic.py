"""The job: one run that brings a topic's new records into its table.

    connect   finish what a killed run left (dead letters), ask the brokers for offsets, plan
    start     start Spark, if there is anything to load
    load      the tasks: fetch, decode, write files
    commit    files and offsets become visible together

Run it again and it goes on where the last commit ended; kill it anywhere, or run two at once, and no row is
lost or doubled, because the table's own commit is the only memory (`warehouse`).

Tasks learn the types of new payload fields from what they read, each by itself. Where two learn different
types, the first in order of partition and offset is right, except that integers give way to doubles; tasks
whose files do not fit run again with the types settled.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa

from mainstem_loader.batches import wire_bytes_per_offset
from mainstem_loader.columns import (
    DAY_COLUMN,
    HEADERS_COLUMN,
    HEADERS_TYPE,
    ColumnError,
    Columns,
    check_name,
    column_of_field,
    fit_all,
    merge_found,
)
from mainstem_loader.dead_letters import DEAD_LETTER_TABLE
from mainstem_loader.errors import LoaderError, SettingsError, WarehouseError
from mainstem_loader.executor_pods import MASTER, ExecutorPods, executor_count, pod_template, spark_settings
from mainstem_loader.executors import SparkExecutor, TaskExecutor
from mainstem_loader.fetch import IsolationLevel, TopicReader
from mainstem_loader.leaders import BrokerSettings
from mainstem_loader.payload import RAW_COLUMN, PayloadFormat
from mainstem_loader.ranges import GapPolicy, LoadPlan, PartitionOffsets, ReadLimits, plan_load
from mainstem_loader.report import LoadOutcome, LoadProgress, LoadReport, OnProgress, Stage
from mainstem_loader.tasks import LoadTask, PayloadSettings, RangeCounts, TaskFailure, TaskResult, run_task
from mainstem_loader.warehouse import CommitOutcome, LoadCommit, OffsetMove, WarehouseTable

__all__ = [
    "LoadOutcome",
    "LoadProgress",
    "LoadReport",
    "LoadSettings",
    "OnProgress",
    "Stage",
    "load_topic",
]

# Runs are planned anew when another load changed the columns' types meanwhile.
PLANS_MAX: Final = 5
# Tasks run again until their types agree; each round settles at least one more.
ROUNDS_MAX: Final = 10
SAMPLE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """What to load, from where, to where.

    Attributes:
        bootstrap_servers: `host:port`, several with commas.
        topic: its name.
        warehouse: the folder of all tables, or s3://bucket/prefix (see `folder`).
        table: its name; the topic's, if None.
        dead_letter_table: where records go that cannot be read.
        payload: how values become columns.
        columns: payload fields whose type is given, such as `{"sent": pa.timestamp("us", "UTC")}`; only for
            JSON.
        event_time_field: the payload field that says when the event happened, see `event_time`; only for
            JSON.
        with_headers: keep the records' headers in `_headers`.
        isolation: whether records of open and aborted transactions are left out.
        on_gap: what to do when records were deleted before they were loaded.
        max_records, max_bytes: caps of this run, as stored by the broker; None for none.
        cores: how many tasks run side by side when Spark runs on this machine.
        spark_master: Spark's master; `local[cores]` if None.
        executor_pods: Kubernetes pods to run tasks in when the load is large; None for this machine alone.
        fetch_bytes: how much one request asks for.
        retry_ms: how long to wait for a leader that went away.
    """

    bootstrap_servers: str
    topic: str
    warehouse: str | Path
    table: str | None = None
    dead_letter_table: str = DEAD_LETTER_TABLE
    payload: PayloadFormat = PayloadFormat.JSON
    columns: Columns = field(default_factory=dict)
    event_time_field: str | None = None
    with_headers: bool = False
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    on_gap: GapPolicy = GapPolicy.FAIL
    max_records: int | None = None
    max_bytes: int | None = None
    cores: int = 2
    spark_master: str | None = None
    executor_pods: ExecutorPods | None = None
    fetch_bytes: int = 16 * 1024 * 1024
    retry_ms: int = 30_000


def load_topic(
    settings: LoadSettings, executor: TaskExecutor | None = None, on_progress: OnProgress | None = None
) -> LoadReport:
    """Load what the topic has now and the table does not.

    Args:
        settings: see there.
        executor: where tasks run, entered only if there is work; Spark by the settings, if None.
        on_progress: told when a stage begins and when tasks end; may be called from another thread.

    Raises:
        LoaderError: with what to do; nothing was loaded.
    """
    choose = partial(_spark, settings) if executor is None else lambda _: executor
    run = _Run(settings, choose, on_progress or (lambda _: None))
    for _ in range(PLANS_MAX):
        report = run.try_once()
        if report is not None:
            return report
    raise WarehouseError(
        f"Other loads changed the columns of table {run.table.name} {PLANS_MAX} times while this one ran;"
        " run one at a time until the columns are settled."
    )


def _spark(settings: LoadSettings, plan: LoadPlan) -> TaskExecutor:
    pods = settings.executor_pods
    count = 0 if pods is None else executor_count(pods, plan.offset_count, len(plan.tasks))
    if pods is None or count == 0:
        return SparkExecutor(settings.spark_master or f"local[{settings.cores}]")
    return SparkExecutor(MASTER, spark_settings(pods, count), pod_template(pods), executors=count)


class _Run:
    """One call of `load_topic`."""

    def __init__(
        self,
        settings: LoadSettings,
        choose_executor: Callable[[LoadPlan], TaskExecutor],
        on_progress: OnProgress,
    ) -> None:
        _check(settings)
        self.run_id = ""
        self.table = WarehouseTable(
            settings.warehouse, settings.table or settings.topic, settings.dead_letter_table
        )
        self._settings = settings
        self._choose_executor = choose_executor
        self._on_progress = on_progress
        self._seconds = dict.fromkeys((stage.value for stage in Stage), 0.0)
        self._tries = 0

    def try_once(self) -> LoadReport | None:
        """Plan, load and commit; None when the commit needs another plan."""
        settings = self._settings
        # Sortable by time, and unlike any other even when many start at once: no two files may share a name.
        self.run_id = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
        with self._stage(Stage.CONNECT):
            self.table.reload()
            self.table.deliver_dead_letters()
            brokers = BrokerSettings(settings.bootstrap_servers, retry_ms=settings.retry_ms)
            with TopicReader(brokers, settings.topic, settings.isolation) as reader:
                committed, plan = self._plan(reader)
                topic_id = reader.topic_id
            payload = self._payload()
        if not plan.ranges:
            return self._report(LoadOutcome.UP_TO_DATE, topic_id, plan, ())
        tasks = [
            LoadTask(
                run_id=self.run_id,
                number=number,
                brokers=brokers,
                topic=settings.topic,
                topic_id=topic_id,
                isolation=settings.isolation,
                ranges=ranges,
                payload=payload,
                table=self.table.folder,
                dead_letters=self.table.dead_letter_folder,
                fetch_bytes=settings.fetch_bytes,
            )
            for number, ranges in enumerate(plan.tasks)
        ]
        results, columns = self._load(plan, tasks, payload.columns)
        if settings.with_headers:
            columns[HEADERS_COLUMN] = HEADERS_TYPE
        commit = LoadCommit(
            topic_id=topic_id,
            moves=tuple(
                OffsetMove(part.partition, committed[part.partition], part.end) for part in plan.ranges
            ),
            files=tuple(written for result in results for written in result.files),
            dead_files=tuple(written for result in results for written in result.dead_files),
            columns=columns,
            metadata=self._metadata(topic_id, plan, results),
        )
        with self._stage(Stage.COMMIT):
            outcome = self.table.commit(commit)
        if outcome is not CommitOutcome.COMMITTED:
            self._delete(results)
        if outcome is CommitOutcome.COLUMNS_MOVED:
            return None
        if outcome is CommitOutcome.SUPERSEDED:
            return self._report(LoadOutcome.SUPERSEDED, topic_id, plan, ())
        with self._stage(Stage.DEAD_LETTERS):
            self.table.deliver_dead_letters()
        return self._report(LoadOutcome.LOADED, topic_id, plan, results)

    @contextmanager
    def _stage(self, stage: Stage) -> Iterator[None]:
        self._on_progress(LoadProgress(stage))
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[stage.value] += time.perf_counter() - begin

    def _plan(self, reader: TopicReader) -> tuple[dict[int, int | None], LoadPlan]:
        settings = self._settings
        offsets = reader.offsets()
        committed = {partition: self.table.committed(reader.topic_id, partition) for partition in offsets}
        partitions = [
            PartitionOffsets(partition, committed[partition], earliest, latest)
            for partition, (earliest, latest) in offsets.items()
        ]
        pods = settings.executor_pods
        cores = settings.cores if pods is None else max(settings.cores, pods.count_max * pods.cores)
        limits = ReadLimits(settings.max_records, settings.max_bytes, parallelism=cores)
        plan = plan_load(settings.topic, partitions, limits, settings.on_gap)
        if settings.max_bytes is not None or plan.offset_count > limits.task_records_min:
            samples = reader.sample({part.partition: part.start for part in plan.ranges}, SAMPLE_BYTES)
            estimate = wire_bytes_per_offset(samples, settings.topic)
            plan = plan_load(settings.topic, partitions, limits, settings.on_gap, estimate)
        return committed, plan

    def _payload(self) -> PayloadSettings:
        """The columns whose type tasks must keep: the table's, and those the settings name."""
        settings = self._settings
        columns: dict[str, pa.DataType] = dict(self.table.payload_columns)
        for name, wanted in settings.columns.items():
            column = column_of_field(name)
            if columns.setdefault(column, wanted) != wanted:
                raise SettingsError(
                    f"Column {column} of table {self.table.name} is {columns[column]} already and cannot"
                    f" become {wanted}; leave its type away, or load into another table."
                )
        if settings.payload is PayloadFormat.RAW:
            if columns.get(RAW_COLUMN, pa.binary()) != pa.binary():
                raise SettingsError(
                    f"Column {RAW_COLUMN} of table {self.table.name} holds {columns[RAW_COLUMN]}, not raw"
                    " values; load into another table."
                )
            columns[RAW_COLUMN] = pa.binary()
        event_time = settings.event_time_field
        return PayloadSettings(
            format=settings.payload,
            columns=columns,
            event_time_column=None if event_time is None else column_of_field(event_time),
            with_headers=settings.with_headers,
        )

    def _load(
        self, plan: LoadPlan, tasks: Sequence[LoadTask], settled: Columns
    ) -> tuple[list[TaskResult], dict[str, pa.DataType]]:
        """Run all tasks, and again those whose files' columns do not fit what all have found.

        Returns:
            A result for each task, and the columns that all files fit.
        """
        if not tasks:
            # Everything that was not loaded is gone: the offsets move over the gap.
            return [], dict(settled)
        results: dict[int, TaskResult] = {}
        columns = dict(settled)
        unsettled = list(tasks)
        with self._starting(plan) as executor:
            for _ in range(ROUNDS_MAX):
                found = self._run(executor, unsettled, results)
                results |= {result.number: result for result in found}
                columns = merge_found(columns, settled, [result.found_columns for result in found])
                unsettled = [
                    replace(task, payload=replace(task.payload, columns=columns))
                    for task in tasks
                    if not all(fit_all(written.columns, columns) for written in results[task.number].files)
                ]
                if not unsettled:
                    return [results[task.number] for task in tasks], columns
                self._delete([results[task.number] for task in unsettled])
        raise WarehouseError(
            f"The types of {self._settings.topic}'s fields did not settle in {ROUNDS_MAX} tries; name the"
            " types of those that vary."
        )

    @contextmanager
    def _starting(self, plan: LoadPlan) -> Iterator[TaskExecutor]:
        with self._stage(Stage.START):
            executor = self._choose_executor(plan)
            executor.__enter__()
        try:
            yield executor
        finally:
            executor.__exit__(None, None, None)

    def _run(
        self, executor: TaskExecutor, tasks: Sequence[LoadTask], finished: dict[int, TaskResult]
    ) -> list[TaskResult]:
        self._tries += len(tasks)
        total = len(tasks)
        with self._stage(Stage.LOAD):
            ended = executor.run(
                run_task, tasks, lambda done: self._on_progress(LoadProgress(Stage.LOAD, done, total))
            )
        failures = [result for result in ended if isinstance(result, TaskFailure)]
        results = [result for result in ended if isinstance(result, TaskResult)]
        if failures:
            self._delete([*results, *finished.values()])
            raise failures[0].error
        for task, result in zip(tasks, results, strict=True):
            _check_complete(task, result)
        return results

    def _delete(self, results: Sequence[TaskResult]) -> None:
        """Files that no commit will name. What stays after a kill is swept later."""
        for result in results:
            for written in result.files:
                self.table.folder.delete(written.path)
            for written in result.dead_files:
                self.table.dead_letter_folder.delete(written.path)

    def _metadata(self, topic_id: str, plan: LoadPlan, results: Sequence[TaskResult]) -> dict[str, object]:
        return {
            "run": self.run_id,
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
        }

    def _report(
        self, outcome: LoadOutcome, topic_id: str, plan: LoadPlan, results: Sequence[TaskResult]
    ) -> LoadReport:
        files = [written for result in results for written in result.files]
        counts = _counts_of(plan, results) if results or outcome is LoadOutcome.LOADED else ()
        task_seconds: dict[str, float] = {}
        for result in results:
            for stage in result.seconds.__slots__:
                task_seconds[stage] = task_seconds.get(stage, 0.0) + getattr(result.seconds, stage)
        return LoadReport(
            outcome=outcome,
            topic=self._settings.topic,
            topic_id=topic_id,
            table=self.table.name,
            run_id=self.run_id,
            read=sum(part.read for part in counts),
            loaded=sum(part.loaded for part in counts),
            dead_lettered=sum(part.dead for part in counts),
            days=tuple(sorted({written.partition_values[DAY_COLUMN] for written in files})),
            files=len(files),
            size_bytes=sum(written.size_bytes for written in files),
            bytes_read=sum(result.bytes_read for result in results),
            ranges=tuple(counts),
            gaps=plan.gaps,
            tries=self._tries,
            seconds=dict(self._seconds),
            task_seconds=task_seconds,
        )


def _check(settings: LoadSettings) -> None:
    if settings.payload is PayloadFormat.RAW and (settings.columns or settings.event_time_field is not None):
        raise SettingsError(
            "Raw values have no fields; leave away the columns and the event time, or load JSON."
        )
    for name in ("max_records", "max_bytes", "cores", "fetch_bytes"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise SettingsError(f"{name} is {value}; it must be at least 1.")
    for column in settings.columns:
        try:
            check_name(column, settings.columns)
        except ColumnError as error:
            raise SettingsError(f"The columns cannot be as named: {error}.") from error


def _check_complete(task: LoadTask, result: TaskResult) -> None:
    """A task answers for all it was given, and its files hold what it counted."""
    loaded = sum(counts.loaded for counts in result.counts)
    dead = sum(counts.dead for counts in result.counts)
    if (
        tuple(counts.range for counts in result.counts) != task.ranges
        or loaded != sum(written.rows for written in result.files)
        or dead != sum(written.rows for written in result.dead_files)
    ):
        raise LoaderError(
            f"Task {task.number} of run {task.run_id} wrote other rows than it read; nothing was loaded."
            " Report this."
        )


def _counts_of(plan: LoadPlan, results: Sequence[TaskResult]) -> tuple[RangeCounts, ...]:
    """One for each partition that moved, whatever tasks its offsets were cut into."""
    parts = [counts for result in results for counts in result.counts]
    return tuple(
        RangeCounts(
            whole,
            sum(part.read for part in parts if part.range.partition == whole.partition),
            sum(part.loaded for part in parts if part.range.partition == whole.partition),
            sum(part.dead for part in parts if part.range.partition == whole.partition),
        )
        for whole in plan.ranges
    )
