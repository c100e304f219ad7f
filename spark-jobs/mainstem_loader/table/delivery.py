"""Delivery: the dead letters of committed runs become visible in their own table, each once.

Dead letters are in another table than rows, and no commit spans two. So the commit of a run names the files
of its dead letters and the table that they belong to, and numbers such runs: `mainstem/dead-letters`. Right
after the commit, or after a kill before the next run reads anything, the files are added to that table, whose
own `txn` `mainstem/<table id>` holds the number of the last run delivered to it. Last, `mainstem/delivered`
in the first table follows `mainstem/dead-letters`, so that a later run looks no further back. Dead letters
are in Delta tables, whatever the format of the rows is.

A rewrite settles dead letters: those of its offsets are rows now, or are among its own dead letters. Its
commit names the offsets, and its delivery removes what earlier runs left there, and adds its files, in one
commit.

The dead letter table is named by each commit, not by the settings: a run's files are in the folder of the
table that was configured when it ran, whatever is configured now. Commits of earlier versions name no table;
theirs is where the files are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError

from mainstem_loader.columns import OFFSET_COLUMN
from mainstem_loader.errors import DiskFullError, WarehouseError
from mainstem_loader.ranges import OffsetRange
from mainstem_loader.table import contents
from mainstem_loader.table.dead_letters import DEAD_LETTER_SCHEMA, TOPIC_COLUMN, letters_path
from mainstem_loader.table.delta import (
    add_of_json,
    arrow_schema,
    check_layout,
    check_vacant,
    commit_files,
    create_table,
    delta_schema,
    explaining_table_errors,
    json_of_add,
    open_table,
)
from mainstem_loader.table.folder import Folder
from mainstem_loader.table.formats import (
    DEAD_LETTER_RUNS,
    DELIVERED_RUNS,
    Change,
    CommitConflictError,
    TableSnapshot,
)
from mainstem_loader.table.parquet_files import ParquetFile, file_name, new_run_id

COMMIT_TRIES_MAX: Final = 20


def deliver_dead_letters(
    warehouse: Folder, table: TableSnapshot, table_name: str, configured_table: str
) -> None:
    """Add the dead letters of all committed runs to their tables, unless that was done. Safe to repeat, and
    to be done by several loaders at once.

    Args:
        warehouse: the folder of the dead letter tables.
        table: of the runs; a new snapshot is taken when something was delivered.
        table_name: how dead letters name it.
        configured_table: the dead letter table of runs whose commits do not name one.

    Raises:
        WarehouseError: the table no longer names the files, or others keep changing a table.
    """
    for _ in range(COMMIT_TRIES_MAX):
        last = table.counter(DEAD_LETTER_RUNS) or 0
        if not last:
            return
        delivered = table.counter(DELIVERED_RUNS)
        if delivered is None:
            # Earlier versions of the loader counted only in the dead letter table.
            delivered = min(last, _last_delivered(warehouse / configured_table, table))
        elif delivered >= last:
            return
        by_table: dict[str, list[dict[str, Any]]] = {}
        for _, letters in sorted(table.letters_of_runs(delivered, last).items()):
            target = letters.get("table") or _table_of_files(warehouse, letters["files"], configured_table)
            by_table.setdefault(target, []).append(letters)
        for target, runs in by_table.items():
            for together in _delivered_together(runs):
                _deliver_to(warehouse / target, table, table_name, together)
        try:
            table.commit(Change(counters={DELIVERED_RUNS: last}))
        except CommitConflictError:
            pass  # Another loader delivered, too; look at what is left.
        table.refresh()
    raise WarehouseError(
        f"Table {table_name} was changed by others {COMMIT_TRIES_MAX} times while dead letters were"
        " delivered; the next load delivers them."
    )


def _application(table: TableSnapshot) -> str:
    return f"mainstem/{table.table_id}"


def next_run(folder: Folder, table: TableSnapshot) -> int:
    """The number of a table's next run with dead letters: larger than that of any run before, also if another
    program has removed the counter from the table's log.

    Args:
        folder: of the dead letter table.
        table: the newest snapshot.
    """
    number = table.next_dead_letter_run
    if table.counter(DEAD_LETTER_RUNS) is None:
        delivered = max(table.counter(DELIVERED_RUNS) or 0, _last_delivered(folder, table))
        number = max(number, delivered + 1)
    return number


def _last_delivered(folder: Folder, table: TableSnapshot) -> int:
    with explaining_table_errors(folder):
        letters = open_table(folder)
        return 0 if letters is None else letters.transaction_version(_application(table)) or 0


def _table_of_files(warehouse: Folder, files: list[dict[str, Any]], configured_table: str) -> str:
    """The dead letter table of a run whose commit does not name it: the one whose folder has the files."""
    with explaining_table_errors(warehouse):
        for name in (configured_table, *warehouse.subfolders()):
            if (warehouse / name).holds(files[0]["path"]):
                return name
    return configured_table


def _delivered_together(runs: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Runs in order, divided where one settles dead letters of those before."""
    parts: list[list[dict[str, Any]]] = []
    for letters in runs:
        if not parts or "settled" in letters:
            parts.append([])
        parts[-1].append(letters)
    return parts


def check_dead_letter_table(folder: Folder) -> None:
    """Whether dead letters can be added to the table in a folder, or it can be created there.

    Raises:
        WarehouseError: another program has made the table, or it cannot be opened.
    """
    with explaining_table_errors(folder):
        letters = open_table(folder)
        advice = "choose another table for dead letters, or move it away"
        if letters is None:
            check_vacant(folder, advice)
            return
        present = arrow_schema(letters).names
        # Tables of earlier versions do not have all columns.
        columns = {
            field.name: field.type
            for field in DEAD_LETTER_SCHEMA
            if field.name in present or field.name == OFFSET_COLUMN
        }
        check_layout(
            letters,
            folder,
            TOPIC_COLUMN,
            columns,
            advice,
        )


def _deliver_to(folder: Folder, table: TableSnapshot, table_name: str, runs: list[dict[str, Any]]) -> None:
    """Bring runs to one dead letter table, except those that it already has. Only the first may settle."""
    application = _application(table)
    with _explaining_full_disks(folder), explaining_table_errors(folder):
        for _ in range(COMMIT_TRIES_MAX):
            letters = open_table(folder)
            if letters is None:
                if not any(run["files"] for run in runs):
                    return
                letters = create_table(
                    folder, DEAD_LETTER_SCHEMA.append(pa.field(TOPIC_COLUMN, pa.string())), TOPIC_COLUMN
                )
            done = letters.transaction_version(application) or 0
            present = arrow_schema(letters).names
            missing = [field for field in DEAD_LETTER_SCHEMA if field.name not in present]
            new_runs = [run for run in runs if run["run"] > done]
            if not new_runs:
                return
            try:
                if missing:
                    letters.alter.add_columns(list(delta_schema(pa.schema(missing)).fields))
                    continue  # With a new snapshot: what is settled is read from the one that is committed.
                remaining, replaced = _remaining(folder, letters, table_name, new_runs[0])
                adds = [add for run in new_runs for add in run["files"]] + remaining
                transactions = [Transaction(application, new_runs[-1]["run"])]
                commit_files(
                    letters, [add_of_json(add) for add in adds], TOPIC_COLUMN, transactions, {}, replaced
                )
            except CommitFailedError:
                continue
            return
    raise WarehouseError(
        f"Table {folder.name} was changed by others {COMMIT_TRIES_MAX} times while this load tried to add to"
        " it; the next load will do it."
    )


@contextmanager
def _explaining_full_disks(folder: Folder) -> Iterator[None]:
    """The run itself was committed, whatever becomes of its dead letters now."""
    try:
        yield
    except DiskFullError as error:
        raise DiskFullError(
            f"The disk of {folder} is full, so dead letters of a run that was committed are not in that table"
            " yet. Free some room, then load again: the next load adds them."
        ) from error


def _remaining(
    folder: Folder, letters: DeltaTable, table_name: str, run: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[str]]:
    """What stays of the dead letters of a topic when a run settles some of them.

    Returns:
        The files to add, and the topics whose files they replace; nothing, if the run settles none.
    """
    if "settled" not in run:
        return [], []
    topic, topic_id = run["settled"]["topic"], run["settled"]["topicId"]
    ranges = [OffsetRange(*part) for part in run["settled"]["ranges"]]
    if not contents.letter_ranges(folder, letters, table_name, topic_id, ranges):
        return [], []
    file: ParquetFile | None = None
    path = letters_path(topic, table_name, file_name(new_run_id(time.time()), 0, 0))
    try:
        for rows in contents.letters_of_topic_without(folder, letters, topic, table_name, topic_id, ranges):
            if rows.num_rows:
                file = file or ParquetFile(folder, path, rows.schema, {TOPIC_COLUMN: topic})
                file.write(rows.cast(file.schema))
    except BaseException:
        if file is not None:
            file.abandon()
        raise
    return ([] if file is None else [json_of_add(file.close())]), [topic]
