"""Running the tasks of a job: stages and their times, the executor, and types that tasks have to agree on.

Tasks infer the types of new payload fields from what they read, each by itself. Where two infer different
types, the types are merged (`columns`), and tasks whose files do not fit run again.

Must not live here: which offsets a job reads, and what it commits.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import starmap
from types import TracebackType
from typing import Final, Self, TypeVar

import pyarrow as pa

from mainstem_loader.columns import (
    HEADERS_COLUMN,
    OPTIONAL_COLUMNS,
    Columns,
    are_of_types,
    column_of_field,
    fit_all,
    merge_found,
)
from mainstem_loader.errors import (
    BrokerUnreachableError,
    DiskFullError,
    LoaderError,
    RegistryUnreachableError,
    SettingsError,
    WarehouseError,
)
from mainstem_loader.kafka.fetch import EpochEnd, TopicReader
from mainstem_loader.kafka.leaders import BrokerSettings
from mainstem_loader.payload.event_time import PLAUSIBLE_DAYS_AHEAD, EventTimes
from mainstem_loader.payload.readers import RAW_COLUMN, PayloadFormat
from mainstem_loader.payload.rows import PayloadSettings
from mainstem_loader.ranges import OffsetRange, ReadLimits
from mainstem_loader.report import LoadProgress, OnProgress, Stage
from mainstem_loader.settings import LoadSettings
from mainstem_loader.spark.executor_pods import (
    HEAP_OF_TRANSFORMS,
    MASTER,
    executor_count,
    pod_template,
    spark_settings,
)
from mainstem_loader.spark.executors import InProcessExecutor, SparkExecutor, TaskExecutor
from mainstem_loader.spark.record_sources import RecordSource, Snapshot
from mainstem_loader.spark.tasks import CopyTask, LoadTask, TaskFailure, TaskResult, run_copy, run_task
from mainstem_loader.table.commits import WarehouseTable
from mainstem_loader.table.folder import Folder
from mainstem_loader.totals import LoadTotals

# Tasks run again until their types agree; each round settles at least one more.
ROUNDS_MAX: Final = 10
# Tasks that failed for a reason that may pass run again, on whichever executor is free.
TASK_TRIES_MAX: Final = 3

# Spark takes about 8 s to start, and its second core saves half of a load's time. One core loads a million
# records in 1 to 3 s, whatever their format.
IN_PROCESS_OFFSETS_MAX: Final = 1_000_000
IN_PROCESS_BYTES_MAX: Final = 256 * 1024 * 1024

Task = TypeVar("Task", LoadTask, CopyTask)


@dataclass(frozen=True, slots=True)
class WorkSize:
    """How much a job reads in all its steps, which decides where its tasks run.

    Attributes:
        offset_count: the most records there can be.
        size_bytes: about how large they are as stored; None if that is not known.
    """

    offset_count: int
    size_bytes: int | None = None

    def is_small(self) -> bool:
        """Whether the work is done sooner than Spark starts, or is that of a single task anyway."""
        if self.size_bytes is None:
            return self.offset_count <= ReadLimits().task_records_min
        return self.offset_count <= IN_PROCESS_OFFSETS_MAX and self.size_bytes <= IN_PROCESS_BYTES_MAX


class TaskRuns:
    """Runs the tasks of one job; a context manager that stops what it started.

    Args:
        settings: of the job.
        executor: entered by the first tasks. If None, this process for small work, and Spark by the
            settings for all other.
        on_progress: called when a stage begins and when tasks end.
    """

    def __init__(
        self, settings: LoadSettings, executor: TaskExecutor | None, on_progress: OnProgress
    ) -> None:
        self.table = WarehouseTable(
            settings.warehouse, settings.table or settings.topic, settings.dead_letter_table, settings.catalog
        )
        self.totals = LoadTotals()
        self.brokers = BrokerSettings(
            settings.bootstrap_servers,
            retry_ms=settings.retry_ms,
            client_properties=settings.client_properties,
        )
        pods = settings.executor_pods
        self.cores = settings.cores if pods is None else max(settings.cores, pods.count_max * pods.cores)
        self._settings = settings
        self._given_executor = executor
        self._on_progress = on_progress
        self._exits = ExitStack()
        self._executor: TaskExecutor | None = None
        self._in_process = InProcessExecutor()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._exits.__exit__(kind, error, traceback)

    @contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        self._on_progress(LoadProgress(stage))
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.totals.seconds[stage.value] += time.perf_counter() - begin

    def payload_settings(self) -> PayloadSettings:
        """The columns whose type tasks must keep: the table's, and those the settings name."""
        settings = self._settings
        self.table.check_columns()
        # With a transform, the table's columns are those of its result.
        is_plain = settings.transform is None
        columns: dict[str, pa.DataType] = dict(self.table.payload_columns) if is_plain else {}
        for name, declared in settings.columns.items():
            column, wanted = column_of_field(name), self.table.storable(declared)
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
            times=EventTimes(
                None if event_time is None else column_of_field(event_time),
                settings.event_time_unit,
                settings.event_day_min,
                settings.event_day_max or datetime.now(UTC).date() + timedelta(days=PLAUSIBLE_DAYS_AHEAD),
            ),
            with_headers=settings.with_headers or not is_plain,
            schema_registry=settings.schema_registry,
        )

    def load_tasks(
        self,
        run_id: str,
        topic_id: str,
        ranges_of_tasks: Sequence[tuple[OffsetRange, ...]],
        payload: PayloadSettings,
        source: RecordSource = RecordSource.TOPIC,
        snapshot: Snapshot | None = None,
    ) -> list[LoadTask]:
        """A task for each tuple of ranges."""
        return [
            LoadTask(
                run_id=run_id,
                number=number,
                brokers=self.brokers,
                topic=self._settings.topic,
                topic_id=topic_id,
                isolation=self._settings.isolation,
                ranges=ranges,
                payload=payload,
                table=self.table.folder,
                table_name=self.table.unique_name,
                table_format=self.table.format,
                dead_letters=self.table.dead_letter_folder,
                fetch_bytes=self._settings.fetch_bytes,
                source=source,
                snapshot=snapshot,
            )
            for number, ranges in enumerate(ranges_of_tasks)
        ]

    def run_load(
        self, tasks: Sequence[LoadTask], settled: Columns, work: WorkSize
    ) -> tuple[list[TaskResult], dict[str, pa.DataType]]:
        """Run the tasks of a run until their columns agree. If that fails, no file of the run stays.

        Args:
            tasks: of one run.
            settled: columns whose type is given.
            work: what there is to read.

        Returns:
            A result for each task, and the columns that the files have beyond the record's own.
        """
        with self.abandoning(tasks):
            results, columns = self.run_until_settled(tasks, settled, work)
        written = {name for result in results for file in result.files for name in file.columns}
        if self._settings.with_headers:
            # Also if all records were rejected: when they are replayed, their headers have a place.
            written.add(HEADERS_COLUMN)
        columns |= {name: kind for name, kind in OPTIONAL_COLUMNS.items() if name in written}
        return results, columns

    def run_copies(self, tasks: Sequence[CopyTask], work: WorkSize) -> list[TaskResult]:
        """Copy rows that stay. If that fails, no file of the run stays."""
        with self.abandoning(tasks):
            return self._run(run_copy, tasks, work, Stage.COPY) if tasks else []

    @contextmanager
    def abandoning(self, tasks: Sequence[LoadTask] | Sequence[CopyTask]) -> Iterator[None]:
        """Delete all files of a run if it fails, also on Ctrl-C. The executor goes first, or tasks that still
        run would write more.
        """
        try:
            yield
        except BaseException:
            self._executor = None
            self._exits.__exit__(*sys.exc_info())
            if tasks:
                self.table.delete_files_of(tasks[0].run_id)
            raise

    def check_unchanged(self, topic_id: str, results: Sequence[TaskResult], topic: str | None = None) -> None:
        """Whether a topic, the job's own by default, still holds what the tasks have read, each for itself,
        from it.
        """
        epochs_of: dict[int, dict[int, int]] = {}
        for result in results:
            for partition, epoch_ends in result.epochs_of.items():
                ends = epochs_of.setdefault(partition, {})
                for read in epoch_ends:
                    ends[read.epoch] = max(read.end_offset, ends.get(read.epoch, 0))
        with TopicReader(self.brokers, topic or self._settings.topic, topic_id=topic_id) as reader:
            reader.check_unchanged(
                {partition: tuple(starmap(EpochEnd, ends.items())) for partition, ends in epochs_of.items()}
            )

    def delete(
        self, results: Sequence[TaskResult], rows: Folder | None = None, dead_letters: Folder | None = None
    ) -> None:
        """Files that no commit will name. What cannot be deleted now, or stays after a kill, is swept.

        Args:
            results: of tasks.
            rows, dead_letters: where their files are; the table's folders by default.
        """
        with suppress(OSError):
            for result in results:
                for written in result.files:
                    (rows or self.table.folder).delete(written.path)
                for written in result.dead_files:
                    (dead_letters or self.table.dead_letter_folder).delete(written.path)

    def started_executor(self, work: WorkSize, task_count: int) -> TaskExecutor:
        """Where tasks run: in this process while their work is small, and once there is Spark, on Spark."""
        if self._executor is None:
            if self._given_executor is None and _runs_in_process(self._settings, work, task_count):
                return self._in_process
            executor = self._given_executor or _spark(self._settings, work, task_count)
            with self.stage(Stage.START):
                self._executor = self._exits.enter_context(executor)
        return self._executor

    def run_until_settled(
        self, tasks: Sequence[LoadTask], settled: Columns, work: WorkSize
    ) -> tuple[list[TaskResult], dict[str, pa.DataType]]:
        """Run all tasks, and again those whose files' columns do not fit what all have inferred, or that had
        values whose type only others have shown.

        Returns:
            A result for each task, and the columns that all files fit.
        """
        results: dict[int, TaskResult] = {}
        columns = dict(settled)
        unsettled = list(tasks)
        for _ in range(ROUNDS_MAX):
            if not unsettled:
                return [results[task.number] for task in tasks], columns
            ended = self._run(run_task, unsettled, work, Stage.LOAD)
            for task, result in zip(unsettled, ended, strict=True):
                _check_complete(task, result)
            results |= {result.number: result for result in ended}
            columns = merge_found(columns, settled, [result.found_columns for result in ended])
            # Tasks that ran again have taken what others found for given.
            wider = [
                {name: kind for name, kind in result.wider_columns.items() if name not in settled}
                for result in ended
            ]
            columns = merge_found(columns, settled, wider)
            unsettled = [
                replace(task, payload=replace(task.payload, columns=columns))
                for task in tasks
                if not _is_settled(results[task.number], columns)
            ]
            for task in unsettled:
                self.delete([results[task.number]], task.rows_folder, task.dead_letters)
        raise WarehouseError(
            f"The types of {self._settings.topic}'s fields did not settle in {ROUNDS_MAX} tries; name the"
            " types of those that vary."
        )

    def _run(
        self,
        function: Callable[[Task, int], TaskResult | TaskFailure],
        tasks: Sequence[Task],
        work: WorkSize,
        stage: Stage,
    ) -> list[TaskResult]:
        """Run tasks, and again those that failed for a reason that may pass.

        Returns:
            A result for each task, in their order.
        """
        executor = self.started_executor(work, len(tasks))
        results: dict[int, TaskResult] = {}
        total = len(tasks)
        left = list(tasks)
        for attempt in range(1, TASK_TRIES_MAX + 1):
            self.totals.tries += len(left)
            done_before: int = len(results)

            def on_ended(count: int, before: int = done_before) -> None:
                self._on_progress(LoadProgress(stage, before + count, total))

            with self.stage(stage):
                ended = executor.run(function, left, on_ended)
            results |= {result.number: result for result in ended if isinstance(result, TaskResult)}
            failures = [result for result in ended if isinstance(result, TaskFailure)]
            for failure in failures:
                if attempt == TASK_TRIES_MAX or not _may_pass(failure.error):
                    raise failure.error
            failed = {failure.number for failure in failures}
            left = [task for task in left if task.number in failed]
            if not left:
                break
        return [results[task.number] for task in tasks]


def _is_settled(result: TaskResult, columns: Columns) -> bool:
    """Whether the files of a task fit the columns, and these have no place for what it put to `_rest` while
    its type was not known.
    """
    return all(fit_all(written.columns, columns) for written in result.files) and are_of_types(
        columns, result.untyped_columns
    )


def _may_pass(error: LoaderError) -> bool:
    """Whether another attempt may succeed: a broker or a store was away."""
    may_pass = (BrokerUnreachableError, RegistryUnreachableError, WarehouseError)
    return isinstance(error, may_pass) and not isinstance(error, DiskFullError)


def _check_complete(task: LoadTask, result: TaskResult) -> None:
    """A task accounts for all it was given, and its files hold what it counted."""
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


def _runs_in_process(settings: LoadSettings, work: WorkSize, task_count: int) -> bool:
    needs_spark = settings.spark_master is not None or settings.transform is not None
    return not needs_spark and not _pod_count(settings, work, task_count) and work.is_small()


def _pod_count(settings: LoadSettings, work: WorkSize, task_count: int) -> int:
    pods = settings.executor_pods
    return 0 if pods is None else executor_count(pods, work.offset_count, task_count)


def _spark(settings: LoadSettings, work: WorkSize, task_count: int) -> TaskExecutor:
    pods = settings.executor_pods
    count = _pod_count(settings, work, task_count)
    if pods is not None and settings.transform is not None:
        pods = replace(pods, heap=HEAP_OF_TRANSFORMS)
    if pods is None or count == 0:
        return SparkExecutor(settings.spark_master or f"local[{settings.cores}]")
    return SparkExecutor(MASTER, spark_settings(pods, count), pod_template(pods), executors=count)
