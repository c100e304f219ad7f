"""Runs transforms without Spark: views as Arrow tables, and a function from them to the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from mainstem_loader.spark.executors import InProcessExecutor
from mainstem_loader.table.day_files import DayFiles
from mainstem_loader.table.parquet_files import file_name
from mainstem_loader.transform.result_columns import result_columns
from mainstem_loader.transform.result_rows import rows_of_batch
from mainstem_loader.transform.spark_job import TransformedRows, TransformJob
from mainstem_loader.transform.views import View

Views = dict[str, pa.Table]


class FramesExecutor(InProcessExecutor):
    """Tasks in this process, and a function in the place of SQL."""

    def __init__(self, transform: Callable[[Views], pa.Table]) -> None:
        super().__init__()
        self._transform = transform
        self.deadline_s = 0.0

    def run_frames(self, function: Callable[[Any], Any], deadline_s: float) -> Any:
        self.deadline_s = deadline_s
        job: TransformJob = function.keywords["job"]  # type: ignore[attr-defined]  # a partial
        result = self._transform({name: table_of(view) for name, view in job.views.items()})
        columns = result_columns(result.schema, job.table_columns)
        files = DayFiles(job.folder, file_name(job.stamp.run_id, 0, 1))
        for batch in result.to_batches():
            files.append(*rows_of_batch(batch, columns, job.stamp))
        return TransformedRows(tuple(files.close()), columns.of_files)


def table_of(view: View) -> pa.Table:
    """All rows of a view."""
    batches = [batch for part in range(view.part_count()) for batch in view.batches(part)]
    return pa.Table.from_batches([batch.cast(view.schema) for batch in batches], schema=view.schema)
