"""A table gets the types that a load has shown, before the load commits.

The content of a row must not depend on which load it came with. So when a load shows the type of a field that
was empty before, or the first fraction in a column of whole numbers, the rows that the table has are brought
to what they would be if they were loaded now (`payload.learned_types`): their days are written anew, and
replaced in the commit that changes the columns. That commit adds no rows, changes no offset, and is made from
the very snapshot that was looked at, or not at all. So it can be killed, overtaken or made twice without
harm, and a reader of the table's changes who passes over commits that remove files misses no row.

What costs too much, and what Delta or the table forbids, is left in `_rest`, and a note says so
(`table.adaptation`). Iceberg tables are not written anew: pyiceberg 0.12 has no such operation.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from mainstem_loader.columns import (
    RESERVED_NAMES,
    Columns,
    TableFormat,
    column_of_field,
    fits,
    merge_found,
)
from mainstem_loader.errors import WarehouseError
from mainstem_loader.payload.readers import PayloadFormat
from mainstem_loader.settings import LoadSettings
from mainstem_loader.spark.tasks import CopyTask, TaskResult
from mainstem_loader.table.adaptation import Adaptation, plan_adaptation
from mainstem_loader.table.parquet_files import new_run_id
from mainstem_loader.task_runs import TaskRuns, WorkSize

ADAPT: Final = "adapt"
"""The kind of such a commit, in what the table's log says of its run."""
TRIES_MAX: Final = 3


def adapt_table(
    runs: TaskRuns, settings: LoadSettings, results: Sequence[TaskResult], columns: Columns, untyped: Columns
) -> bool:
    """Give the columns of the table the types that a load has shown, and its rows what they can hold now.

    Args:
        runs: of the load.
        settings: of the load.
        results: of its tasks.
        columns: that their files have.
        untyped: columns that the files have in `_rest` for want of a type, with that of the table.

    Returns:
        Whether the load has to be planned again: its files do not fit the table any more.

    Raises:
        LoaderError: with what to do; the table is as it was.
    """
    table = runs.table
    if settings.transform is not None or table.format is not TableFormat.DELTA:
        return False
    wider = _wider(results, {column_of_field(field) for field in settings.columns})
    # Other formats have schemas, and so no values without a type.
    is_json = settings.payload in (PayloadFormat.JSON, PayloadFormat.JSON_SCHEMA)
    files = [written for result in results for written in result.files]
    for _ in range(TRIES_MAX):
        table.reload()
        if not table.exists:
            return False
        if table.has_learned(untyped):
            return True
        learned = _learned(columns, table.all_columns) if is_json else {}
        if not learned and not wider:
            return False
        adaptation, notes = plan_adaptation(table.folder, table.delta, learned, wider, files)
        if adaptation.columns and not _carry_out(runs, adaptation):
            continue
        widened = sorted(adaptation.columns.keys() & wider.keys())
        notes += [f"Column {name} was one of whole numbers and is one of doubles now." for name in widened]
        _note(runs, notes)
        return bool(widened)
    _note(
        runs,
        [
            f"Table {table.name} was changed by others {TRIES_MAX} times while it was adapted to new types,"
            " so some values of earlier rows may stay in the column _rest."
        ],
    )
    return False


def _wider(results: Sequence[TaskResult], given: set[str]) -> dict[str, pa.DataType]:
    """The columns in which tasks needed doubles, but those whose type is given."""
    found = (
        {name: kind for name, kind in result.wider_columns.items() if name not in given} for result in results
    )
    return merge_found({}, {}, found)


def _learned(columns: Columns, present: Columns) -> dict[str, pa.DataType]:
    """The columns of a load that the table does not have, or not with all members."""
    return {
        name: kind
        for name, kind in columns.items()
        if name not in present or (name not in RESERVED_NAMES and not fits(kind, present[name]))
    }


def _carry_out(runs: TaskRuns, adaptation: Adaptation) -> bool:
    """Write the days anew and commit; False if another commit was faster."""
    table = runs.table
    run_id = new_run_id(time.time())
    task = CopyTask(run_id, 0, "", table.folder, table.delta.version(), "", ())
    payload = {name: kind for name, kind in adaptation.columns.items() if name not in RESERVED_NAMES}
    tasks = [
        replace(task, number=number, day=day, learned=payload) for number, day in enumerate(adaptation.days)
    ]
    results = runs.run_copies(tasks, WorkSize(adaptation.rows, adaptation.size_bytes))
    files = [written for result in results for written in result.files]
    rows = sum(written.rows for written in files)
    if adaptation.rows not in (0, rows):
        runs.delete(results)
        raise WarehouseError(
            f"The files of table {table.name} hold {rows:,} rows in {len(adaptation.days)} days, but its log"
            f" says {adaptation.rows:,}; nothing was loaded. Check the table."
        )
    types = {name: str(kind) for name, kind in payload.items()}
    metadata = {"kind": ADAPT, "columns": types, "days": list(adaptation.days), "rows": rows}
    is_done = table.adapt(run_id, adaptation, files, metadata)
    if not is_done:
        runs.delete(results)
    return is_done


def _note(runs: TaskRuns, notes: Sequence[str]) -> None:
    warnings = runs.totals.warnings
    warnings += [note for note in notes if note not in warnings]
