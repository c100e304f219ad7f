"""From the tasks of a run to the rows it commits: as the tasks write them, or through a transform.

With a transform, tasks write the records to a folder that no table names (staging), and Spark reads them from
there. So records are parsed, typed and rejected as in any load, each is fetched once however often the
transform reads its view, and the offsets of the run are those of the tasks, whatever the transform returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from mainstem_loader.kafka.fetch import IsolationLevel, TopicReader
from mainstem_loader.payload.event_time import DAY_MS, EventTimes
from mainstem_loader.payload.readers import RAW_COLUMN, PayloadFormat
from mainstem_loader.payload.rows import PayloadSettings
from mainstem_loader.ranges import GapPolicy, PartitionOffsets, ReadLimits, plan_load
from mainstem_loader.report import Stage
from mainstem_loader.settings import LoadSettings
from mainstem_loader.spark.tasks import LoadTask, TaskResult, TaskSeconds
from mainstem_loader.table.folder import Folder
from mainstem_loader.table.parquet_files import STAGED_FOLDER
from mainstem_loader.task_runs import TaskRuns, WorkSize
from mainstem_loader.transform.definition import RECORDS_VIEW, TopicInput, Transform
from mainstem_loader.transform.result_rows import RowStamp
from mainstem_loader.transform.spark_job import TransformedRows, TransformJob, run_transform
from mainstem_loader.transform.views import View, staged_records, table_snapshot


def produce_rows(
    runs: TaskRuns,
    settings: LoadSettings,
    tasks: Sequence[LoadTask],
    settled: dict[str, pa.DataType],
    work: WorkSize,
    started_s: float,
) -> tuple[list[TaskResult], dict[str, pa.DataType]]:
    """Write the rows of a run. If that fails, no file of the run stays.

    Args:
        runs: where the tasks run.
        settings: of the job.
        tasks: of one run.
        settled: payload columns whose type is given.
        work: what the job reads.
        started_s: when the run began, in seconds since 1970; the day of rows that have none.

    Returns:
        Results whose files and counts are those of the run, and the columns that the files have beyond the
        record's own. Counts are of records; with a transform there may be more rows or fewer.
    """
    if settings.transform is None:
        return runs.run_load(tasks, settled, work)
    if not tasks:
        return [], {}
    with runs.abandoning(tasks):
        return _Transformation(runs, settings, settings.transform, tasks, started_s).run(settled, work)


class _Transformation:
    """One run with a transform."""

    def __init__(
        self,
        runs: TaskRuns,
        settings: LoadSettings,
        transform: Transform,
        tasks: Sequence[LoadTask],
        started_s: float,
    ) -> None:
        self._runs = runs
        self._settings = settings
        self._transform = transform
        self._tasks = tasks
        self._started_s = started_s
        self._staged: list[tuple[Folder, TaskResult]] = []

    def run(
        self, settled: dict[str, pa.DataType], work: WorkSize
    ) -> tuple[list[TaskResult], dict[str, pa.DataType]]:
        tasks = [replace(task, rows_folder=self._folder(RECORDS_VIEW)) for task in self._tasks]
        results, columns = self._runs.run_until_settled(tasks, settled, work)
        counts = [part for result in results for part in result.counts]
        loaded = sum(part.loaded for part in counts)
        rows = TransformedRows((), {})
        if loaded:
            views: dict[str, View] = {RECORDS_VIEW: self._staged_view(RECORDS_VIEW, results, columns)}
            for name, source in self._transform.inputs.items():
                views[name] = (
                    self._topic_view(name, source)
                    if isinstance(source, TopicInput)
                    else table_snapshot(self._runs.table.warehouse / source.table, self._runs.cores)
                )
            rows = self._run_on_spark(views, work)
        for folder, result in self._staged:
            self._runs.delete([replace(result, dead_files=())], folder)
        if loaded and not rows.files:
            self._runs.totals.warnings.append(f"The transform returned no rows for {loaded:,} records.")
        transformed = TaskResult(len(tasks), rows.files, (), (), {}, {}, 0, TaskSeconds())
        # What the staged rows have in `_rest` says nothing of the rows that the transform returned.
        read = [replace(result, files=(), untyped_columns={}, wider_columns={}) for result in results]
        return [*read, transformed], rows.columns

    def _run_on_spark(self, views: dict[str, View], work: WorkSize) -> TransformedRows:
        table = self._runs.table
        first = self._tasks[0]
        job = TransformJob(
            transform=self._transform,
            views=views,
            folder=table.folder,
            table_columns=table.payload_columns,
            stamp=RowStamp(
                topic_id=first.topic_id,
                run_id=first.run_id,
                ranges=tuple(sorted(part for task in self._tasks for part in task.ranges)),
                day=int(self._started_s * 1000) // DAY_MS,
            ),
        )
        executor = self._runs.started_executor(work, len(self._tasks))
        with self._runs.stage(Stage.TRANSFORM):
            return executor.run_frames(partial(run_transform, job=job), self._transform.deadline_s)

    def _staged_view(self, name: str, results: Sequence[TaskResult], columns: dict[str, pa.DataType]) -> View:
        folder = self._folder(name)
        self._staged += [(folder, result) for result in results]
        files = [written for result in results for written in result.files]
        return staged_records(folder, files, columns, self._runs.cores)

    def _topic_view(self, name: str, source: TopicInput) -> View:
        """All that another topic holds now."""
        settings, folder = self._settings, self._folder(name)
        with TopicReader(self._runs.brokers, source.topic, settings.isolation) as reader:
            bounds, topic_id = reader.offsets(), reader.topic_id
        plan = plan_load(
            source.topic,
            [PartitionOffsets(partition, None, *offsets) for partition, offsets in bounds.items()],
            ReadLimits(parallelism=self._runs.cores),
            GapPolicy.SKIP,
        )
        columns = dict(source.columns)
        if source.payload is PayloadFormat.RAW:
            columns[RAW_COLUMN] = pa.binary()
        first = self._tasks[0]
        number = len(self._tasks) + len(self._staged)
        tasks = [
            LoadTask(
                run_id=first.run_id,
                number=number + position,
                brokers=self._runs.brokers,
                topic=source.topic,
                topic_id=topic_id,
                isolation=IsolationLevel(settings.isolation),
                ranges=ranges,
                payload=PayloadSettings(
                    format=source.payload,
                    columns=columns,
                    times=EventTimes(None),
                    with_headers=True,
                    schema_registry=settings.schema_registry,
                ),
                table=first.table,
                table_name=first.table_name,
                table_format=first.table_format,
                # Records that cannot be read belong to loads of that topic, not to this one.
                dead_letters=folder,
                fetch_bytes=settings.fetch_bytes,
                rows_folder=folder,
            )
            for position, ranges in enumerate(plan.tasks)
        ]
        results, found_columns = self._runs.run_until_settled(tasks, columns, WorkSize(plan.offset_count))
        self._runs.check_unchanged(topic_id, results, source.topic)
        dead = sum(part.dead for result in results for part in result.counts)
        for result in results:
            self._runs.delete([replace(result, files=())], dead_letters=folder)
        if dead:
            self._runs.totals.warnings.append(
                f"{dead:,} records of topic {source.topic} could not be read; view {name} does not have them."
            )
        return self._staged_view(name, results, found_columns)

    def _folder(self, view: str) -> Folder:
        return self._runs.table.folder / STAGED_FOLDER / view
