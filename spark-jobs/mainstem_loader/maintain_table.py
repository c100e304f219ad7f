"""Upkeep of a table: small files are merged, old snapshots and files that no commit names are deleted.

A merge is a rewrite that changes no row. It copies all rows of a day to new files and replaces the files of
the day in one commit. So it is safe beside live loads, whose files are added meanwhile and stay, and beside
backfills and other merges, of which the second commit is refused (`table.commits`). What a merge replaced
stays on the disk as long as orphans do (`table.sweep`), for readers of older snapshots.

Iceberg tables are not merged: pyiceberg 0.12 has no such operation. Their snapshots are expired.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from mainstem_loader.columns import TableFormat
from mainstem_loader.errors import WarehouseError
from mainstem_loader.report import OnProgress, Stage
from mainstem_loader.settings import LoadSettings
from mainstem_loader.spark.executors import TaskExecutor
from mainstem_loader.spark.tasks import CopyTask, TaskResult
from mainstem_loader.table import contents
from mainstem_loader.table.commits import CommitOutcome, LoadCommit
from mainstem_loader.table.parquet_files import new_run_id
from mainstem_loader.table.small_files import DayToMerge, days_to_merge, first_batch
from mainstem_loader.table.sweep import ORPHAN_HOURS, check_orphan_hours
from mainstem_loader.task_runs import TaskRuns, WorkSize

MERGE: Final = "merge"
CONFLICTS_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class MaintenanceReport:
    """What one maintenance of a table did.

    Attributes:
        table: its name.
        days: that were merged, as ISO dates.
        files_before, files_after: of these days.
        size_bytes_before, size_bytes_after: of these files.
        files_deleted: that no commit names or that left the table long ago.
        seconds: by stage.
        warnings: sentences that a person should read.
    """

    table: str
    days: tuple[str, ...] = ()
    files_before: int = 0
    files_after: int = 0
    size_bytes_before: int = 0
    size_bytes_after: int = 0
    files_deleted: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def summary(self) -> dict[str, object]:
        """What is worth keeping, of bounded size, in JSON's types."""
        return {
            "kind": MERGE,
            "table": self.table,
            "days": len(self.days),
            "filesBefore": self.files_before,
            "filesAfter": self.files_after,
            "filesDeleted": self.files_deleted,
            "seconds": round(sum(self.seconds.values()), 1),
            "warnings": list(self.warnings)[:1],
        }


def maintain(
    settings: LoadSettings,
    keep_hours: int = ORPHAN_HOURS,
    executor: TaskExecutor | None = None,
    on_progress: OnProgress | None = None,
) -> MaintenanceReport:
    """Merge the small files of a table, and delete what nobody needs any more. Asks no broker.

    Args:
        settings: of the table's loads.
        keep_hours: how long files stay that no commit names, or that left the table.
        executor: where tasks run; see `load_topic`.
        on_progress: called when a stage begins and when tasks end.

    Raises:
        LoaderError: with what to do. Days that were merged before stay merged.
    """
    settings.check()
    check_orphan_hours(keep_hours)
    # Rows are copied as they are, whatever they went through.
    plain = replace(settings, transform=None)
    with TaskRuns(plain, executor, on_progress or (lambda _: None)) as runs:
        return _Maintenance(runs).run(keep_hours)


class _Maintenance:
    """One call of `maintain`."""

    def __init__(self, runs: TaskRuns) -> None:
        self._runs = runs
        self._table = runs.table
        self._merged: list[DayToMerge] = []
        self._written: list[TaskResult] = []

    def run(self, keep_hours: int) -> MaintenanceReport:
        if not self._table.exists:
            raise WarehouseError(f"There is no table {self._table.name}; load the topic first.")
        with self._runs.stage(Stage.SWEEP):  # first: it makes room for merges, and one may fail
            files_deleted = self._table.sweep_orphans(keep_hours)
        if self._table.format is TableFormat.DELTA:
            self._merge_all()
        else:
            self._runs.totals.warnings.append(
                f"Small files of Iceberg table {self._table.name} were not merged; merge them with an engine"
                " such as Spark (rewrite_data_files). Loads continue beside it."
            )
        files = [file for result in self._written for file in result.files]
        return MaintenanceReport(
            table=self._table.name,
            days=tuple(day.day for day in self._merged),
            files_before=sum(day.file_count for day in self._merged),
            files_after=len(files),
            size_bytes_before=sum(day.size_bytes for day in self._merged),
            size_bytes_after=sum(file.size_bytes for file in files),
            files_deleted=files_deleted,
            seconds=dict(self._runs.totals.seconds),
            warnings=tuple(self._runs.totals.warnings),
        )

    def _merge_all(self) -> None:
        """Merge batch by batch; each is a commit of its own."""
        conflicts = 0
        while True:
            with self._runs.stage(Stage.CONNECT):
                # Tables of earlier versions do not have all of the record's own columns.
                self._table.prepare({})
                try:
                    contents.check_rows_may_be_removed(self._table.folder, self._table.delta)
                except WarehouseError as error:
                    self._runs.totals.warnings.append(f"Small files were not merged: {error}")
                    return
                files = contents.files_of_days(self._table.folder, self._table.delta)
            merged = {day.day for day in self._merged}
            batch = first_batch([day for day in days_to_merge(files) if day.day not in merged])
            if not batch:
                return
            results = self._merge(batch)
            if results is not None:
                self._merged += batch
                self._written += results
                continue
            conflicts += 1
            if conflicts == CONFLICTS_MAX:
                self._runs.totals.warnings.append(
                    f"Table {self._table.name} was rewritten by others {CONFLICTS_MAX} times meanwhile, so"
                    " some small files were left; the next maintenance merges them."
                )
                return

    def _merge(self, batch: Sequence[DayToMerge]) -> list[TaskResult] | None:
        """Merge the files of these days in one commit; None if others changed the days meanwhile."""
        table = self._table
        started_s = time.time()
        run_id = new_run_id(started_s)
        version, rewrites = table.delta.version(), table.rewrites
        tasks = [
            CopyTask(run_id, number, "", table.folder, version, day.day, ())
            for number, day in enumerate(batch)
        ]
        days = tuple(day.day for day in batch)
        rows_before = contents.row_count(table.folder, table.delta, days)
        work = WorkSize(sum(day.rows for day in batch), sum(day.size_bytes for day in batch))
        results = self._runs.run_copies(tasks, work)
        files = tuple(file for result in results for file in result.files)
        rows_after = sum(file.rows for file in files)
        if rows_before != rows_after:
            self._runs.delete(results)
            raise WarehouseError(
                f"The files of table {table.name} hold {rows_after:,} rows in these days, but its log says"
                f" {rows_before:,}; nothing was merged. Check the table."
            )
        commit = LoadCommit(
            run_id=run_id,
            started_s=started_s,
            topic_id="",
            moves=(),
            files=files,
            dead_files=(),
            columns={},
            metadata={"kind": MERGE, "days": list(days), "rows": rows_after},
            rewrites=rewrites,
            replaced_days=days,
        )
        with self._runs.stage(Stage.COMMIT):
            outcome = table.rewrite(commit)
        if outcome is CommitOutcome.COMMITTED:
            return results
        self._runs.delete(results)
        return None
