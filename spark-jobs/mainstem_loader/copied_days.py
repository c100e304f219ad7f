"""Copies of the rows that stay in the days whose files a rewrite replaces.

A live load may add files to the table while the copies are made, and move the offsets that a rewind sets
back. Its commit then has to be made from the newer snapshot. Copying all days again would take as long as
before, and beside a loader that commits every few seconds the rewind would never come to its commit. So only
what the live loads have added is copied then, which takes less time than their loads.

Must not live here: which offsets a rewrite removes, and the commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mainstem_loader.rewrite_plan import RewritePlan
from mainstem_loader.spark.tasks import CopyTask, TaskResult
from mainstem_loader.table import contents
from mainstem_loader.table.parquet_files import FileOfDay
from mainstem_loader.task_runs import TaskRuns, WorkSize


@dataclass(frozen=True, slots=True)
class CopiedDays:
    """The rows that stay, as of one version of the table.

    Attributes:
        version: of the table.
        files: that the days have there.
        removed_of_day: by ISO date, how many rows do not stay; a day without any is not replaced.
        results: of the tasks that have copied the others.
    """

    version: int
    files: tuple[FileOfDay, ...]
    removed_of_day: Mapping[str, int]
    results: tuple[TaskResult, ...]


def copy_days(runs: TaskRuns, plan: RewritePlan, run_id: str, numbers: Iterator[int]) -> CopiedDays:
    """Copy the rows that stay of all days that have rows of the plan's ranges, as of the snapshot at hand.

    Args:
        runs: of the rewrite.
        plan: whose ranges are removed.
        run_id: of the rewrite.
        numbers: gives each task one that no other task of the run has.
    """
    table = runs.table
    removed_of_day = contents.days_of_ranges(table.folder, table.delta, plan.topic_id, plan.choice.ranges)
    files = contents.files_of_days(table.folder, table.delta, tuple(removed_of_day))
    tasks = [_task(runs, plan, run_id, next(numbers), day) for day in removed_of_day]
    results = runs.run_copies(tasks, _work(files))
    return CopiedDays(table.delta.version(), tuple(files), removed_of_day, tuple(results))


def copy_what_was_added(
    runs: TaskRuns, plan: RewritePlan, run_id: str, numbers: Iterator[int], copied: CopiedDays
) -> CopiedDays | None:
    """Copy what live loads have added since, as of the snapshot at hand; None if something else has changed.

    Args:
        runs, plan, run_id, numbers: see `copy_days`.
        copied: what was copied of an earlier version. No rewrite was committed since.
    """
    table = runs.table
    added_runs = table.runs_since(copied.version)
    added_of_day = contents.days_of_ranges(
        table.folder, table.delta, plan.topic_id, plan.choice.ranges, added_runs
    )
    removed_of_day = {
        day: copied.removed_of_day.get(day, 0) + added_of_day.get(day, 0)
        for day in sorted({*copied.removed_of_day, *added_of_day})
    }
    files = contents.files_of_days(table.folder, table.delta, tuple(removed_of_day))
    paths = {file.path for file in files}
    if not all(file.path in paths for file in copied.files):
        return None  # Another program has merged or changed files.
    known = {file.path for file in copied.files}
    tasks: list[CopyTask] = []
    added_files: list[FileOfDay] = []
    for day in removed_of_day:
        of_day = [file for file in files if file.day == day and file.path not in known]
        if sum(file.rows for file in of_day) == added_of_day.get(day, 0):
            continue  # Nothing of them stays.
        added_files += of_day
        # A day that had no such rows before is copied whole.
        only = added_runs if day in copied.removed_of_day else None
        tasks.append(_task(runs, plan, run_id, next(numbers), day, only))
    rows = contents.row_count(table.folder, table.delta, tuple(removed_of_day)) - sum(removed_of_day.values())
    results = copied.results
    if tasks:
        results = (*results, *runs.run_copies(tasks, _work(added_files)))
    if rows != sum(file.rows for result in results for file in result.files):
        # Others have added rows that name no run, or removed some by deletion vectors.
        runs.delete(results[len(copied.results) :])
        return None
    return CopiedDays(table.delta.version(), tuple(files), removed_of_day, results)


def _task(
    runs: TaskRuns,
    plan: RewritePlan,
    run_id: str,
    number: int,
    day: str,
    only: Sequence[str] | None = None,
) -> CopyTask:
    table = runs.table
    return CopyTask(
        run_id,
        number,
        plan.topic_id,
        table.folder,
        table.delta.version(),
        day,
        plan.choice.ranges,
        None if only is None else tuple(only),
    )


def _work(files: Sequence[FileOfDay]) -> WorkSize:
    return WorkSize(sum(file.rows for file in files), sum(file.size_bytes for file in files))
