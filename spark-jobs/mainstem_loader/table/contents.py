"""What one snapshot of a table holds, asked by SQL: rows, offsets, days, dead letters.

A snapshot is named by its version, so that all who ask see the same, whatever is committed meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from typing import Final

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from mainstem_loader.arrow_arrays import Int64s
from mainstem_loader.columns import (
    DAY_COLUMN,
    OFFSET_COLUMN,
    PARTITION_COLUMN,
    REST_COLUMN,
    RUN_COLUMN,
    TOPIC_ID_COLUMN,
)
from mainstem_loader.errors import WarehouseError
from mainstem_loader.ranges import OffsetRange
from mainstem_loader.table.dead_letters import TOPIC_COLUMN
from mainstem_loader.table.delta import explaining_table_errors, open_table
from mainstem_loader.table.folder import Folder
from mainstem_loader.table.parquet_files import FileOfDay
from mainstem_loader.table.query import plain_types
from mainstem_loader.table.sweep import ORPHAN_HOURS_MIN

_TABLE: Final = "t"
# As DataFusion's errors name an object of a store, local or not.
_MISSING_FILE: Final = re.compile(r"Object at location (\S+) not found")


def snapshot(folder: Folder, version: int) -> DeltaTable:
    """A table as it was at a version.

    Raises:
        WarehouseError: it cannot be opened.
    """
    with explaining_table_errors(folder):
        return DeltaTable(folder.url, version=version, storage_options=folder.delta_options)


def has_rows_of(folder: Folder, table: DeltaTable, topic_id: str, partitions: Sequence[int]) -> bool:
    """Whether a row names this topic and one of these partitions; see `formats.TableSnapshot`."""
    if TOPIC_ID_COLUMN not in (field.name for field in table.schema().fields):
        return False  # The first versions of the loader named no topic.
    of_partitions = f' and "{PARTITION_COLUMN}" in ({", ".join(map(str, partitions))})' if partitions else ""
    sql = f'select 1 from "{_TABLE}" where "{TOPIC_ID_COLUMN}" = {text(topic_id)}{of_partitions} limit 1'
    return any(rows.num_rows for rows in _ask(folder, table, sql))


def offsets_of_rows(folder: Folder, table: DeltaTable, topic_id: str, part: OffsetRange) -> Int64s:
    """The offsets of a range that are rows of the table."""
    return _offsets(folder, table, of_ranges(topic_id, [part]))


def offsets_of_letters(
    folder: Folder, letters: DeltaTable, table_name: str, topic_id: str, part: OffsetRange
) -> Int64s:
    """The offsets of a range that are dead letters of a table."""
    return _offsets(folder, letters, _of_letters(table_name, topic_id, [part]))


def letter_blocks(
    folder: Folder, letters: DeltaTable, table_name: str, topic_id: str, part: OffsetRange
) -> Iterator[pa.Table]:
    """The dead letters of a table in a range, with all their columns."""
    return _ask(
        folder, letters, f'select * from "{_TABLE}" where {_of_letters(table_name, topic_id, [part])}'
    )


def letter_ranges(
    folder: Folder, letters: DeltaTable, table_name: str, topic_id: str, ranges: Sequence[OffsetRange]
) -> dict[OffsetRange, int]:
    """How many dead letters of a table are in these ranges: from the first to behind the last of each
    partition, and their number.
    """
    return _extents(folder, letters, _of_letters(table_name, topic_id, ranges))


def row_ranges_of_days(
    folder: Folder, table: DeltaTable, topic_id: str, days: Sequence[date]
) -> dict[date, dict[OffsetRange, int]]:
    """Of each day from the first to behind the last row of each partition, and the number of its rows."""
    of_topic = f'"{TOPIC_ID_COLUMN}" = {text(topic_id)}'
    return {
        day: _extents(folder, table, f"{of_topic} and \"{DAY_COLUMN}\" = date '{day}'")
        for day in sorted({*days})
    }


def days_of_ranges(
    folder: Folder,
    table: DeltaTable,
    topic_id: str,
    ranges: Sequence[OffsetRange],
    only_of_runs: Sequence[str] | None = None,
) -> dict[str, int]:
    """The days, as ISO dates, that have rows of these ranges, and how many; only the rows that some runs have
    written, if `only_of_runs` is not None.
    """
    sql = (
        f'select cast("{DAY_COLUMN}" as date) d, count(*) n from "{_TABLE}"'
        f" where {of_ranges(topic_id, ranges)}{_and_of_runs(only_of_runs)} group by 1 order by 1"
    )
    return {
        row["d"].isoformat(): int(row["n"]) for rows in _ask(folder, table, sql) for row in rows.to_pylist()
    }


def rows_of_day_without(
    folder: Folder,
    table: DeltaTable,
    topic_id: str,
    day: str,
    ranges: Sequence[OffsetRange],
    only_of_runs: Sequence[str] | None = None,
) -> Iterator[pa.Table]:
    """The rows of a day except those of the ranges, with all columns but the day; only the rows that some
    runs have written, if `only_of_runs` is not None.
    """
    names = ", ".join(
        quoted(field.name) for field in table.schema().fields if field.name.casefold() != DAY_COLUMN
    )
    return _ask(
        folder,
        table,
        f'select {names} from "{_TABLE}" where "{DAY_COLUMN}" = date \'{day}\''
        f" and not coalesce({of_ranges(topic_id, ranges)}, false){_and_of_runs(only_of_runs)}",
    )


def days_of_table(folder: Folder, table: DeltaTable) -> list[str]:
    """The days that have rows, as ISO dates, sorted."""
    sql = (
        f'select distinct cast("{DAY_COLUMN}" as date) d from "{_TABLE}"'
        f' where "{DAY_COLUMN}" is not null order by 1'
    )
    return [row["d"].isoformat() for rows in _ask(folder, table, sql) for row in rows.to_pylist()]


def row_count(folder: Folder, table: DeltaTable, days: Sequence[str]) -> int:
    """How many rows these days, ISO dates, have without those that deletion vectors remove. Files are read
    only if the log does not say.
    """
    names = ", ".join(f"date '{day}'" for day in days)
    sql = f'select count(*) n from "{_TABLE}" where "{DAY_COLUMN}" in ({names})'
    return sum(row["n"] for rows in _ask(folder, table, sql) for row in rows.to_pylist()) if days else 0


def rows_of_days(folder: Folder, table: DeltaTable, days: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of these days, with all columns; of all days, if none is named."""
    condition = ""
    if days:
        names = ", ".join(f"date '{day}'" for day in days)
        condition = f' where "{DAY_COLUMN}" in ({names})'
    columns = ", ".join(quoted(field.name) for field in table.schema().fields)
    return _ask(folder, table, f'select {columns} from "{_TABLE}"{condition}')


def files_of_days(folder: Folder, table: DeltaTable, days: Sequence[str] | None = None) -> list[FileOfDay]:
    """The files of these days (ISO dates), or of all days if None, as the table names them."""
    with explaining_table_errors(folder):
        actions = pa.table(table.get_add_actions(flatten=True))
    columns = [
        actions[name].to_pylist() for name in ("path", f"partition.{DAY_COLUMN}", "size_bytes", "num_records")
    ]
    return [
        FileOfDay(path, day.isoformat(), size_bytes, rows or 0)
        for path, day, size_bytes, rows in zip(*columns, strict=True)
        if day is not None and (days is None or day.isoformat() in days)
    ]


def days_with_rest(folder: Folder, table: DeltaTable, days: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Those of the days, ISO dates, that have a row with one of these texts in `_rest`, or one that may be
    the same text with other escapes.
    """
    names = ", ".join(f"date '{day}'" for day in days)
    any_of = " or ".join(f'strpos("{REST_COLUMN}", {text(one)}) > 0' for one in (*texts, "\\"))
    sql = (
        f'select distinct cast("{DAY_COLUMN}" as date) d from "{_TABLE}" where "{DAY_COLUMN}" in ({names})'
        f' and "{REST_COLUMN}" is not null and ({any_of}) order by 1'
    )
    return [row["d"].isoformat() for rows in _ask(folder, table, sql) for row in rows.to_pylist()]


def letters_of_topic_without(
    folder: Folder,
    letters: DeltaTable,
    topic: str,
    table_name: str,
    topic_id: str,
    ranges: Sequence[OffsetRange],
) -> Iterator[pa.Table]:
    """The dead letters of a topic except those of a table in these ranges, without the topic."""
    names = ", ".join(quoted(field.name) for field in letters.schema().fields if field.name != TOPIC_COLUMN)
    return _ask(
        folder,
        letters,
        f'select {names} from "{_TABLE}" where "{TOPIC_COLUMN}" = {text(topic)}'
        f" and not coalesce({_of_letters(table_name, topic_id, ranges)}, false)",
    )


def check_rows_name_their_topic(folder: Folder, table: DeltaTable) -> None:
    """Refuse a table with rows of which it is not known which topic they come from.

    Raises:
        WarehouseError: see there.
    """
    names = [field.name for field in table.schema().fields]
    unnamed = TOPIC_ID_COLUMN not in names
    if not unnamed:
        sql = f'select 1 from "{_TABLE}" where "{TOPIC_ID_COLUMN}" is null limit 1'
        unnamed = any(rows.num_rows for rows in _ask(folder, table, sql))
    if unnamed:
        raise WarehouseError(
            f"Table {folder.name} has rows of an earlier version of the loader that do not say which topic"
            " they come from (_topic_id); load the topic into another table."
        )


def check_rows_name_their_record(folder: Folder, table: DeltaTable, topic_id: str) -> None:
    """Refuse a table with rows of a topic of which it is not known which record they come from.

    Raises:
        WarehouseError: see there.
    """
    sql = (
        f'select 1 from "{_TABLE}" where "{TOPIC_ID_COLUMN}" = {text(topic_id)}'
        f' and "{OFFSET_COLUMN}" is null limit 1'
    )
    if any(rows.num_rows for rows in _ask(folder, table, sql)):
        raise WarehouseError(
            f"Table {folder.name} has rows of a transform that do not say which record they come from"
            " (_partition, _offset), so they cannot be loaded again; load the topic into another table."
        )


def of_ranges(topic_id: str, ranges: Sequence[OffsetRange]) -> str:
    """A condition: the row's record is in one of the ranges."""
    any_of = " or ".join(
        f'("{PARTITION_COLUMN}" = {part.partition}'
        f' and "{OFFSET_COLUMN}" >= {part.start} and "{OFFSET_COLUMN}" < {part.end})'
        for part in ranges
    )
    return f'("{TOPIC_ID_COLUMN}" = {text(topic_id)} and ({any_of or "false"}))'


def _of_letters(table_name: str, topic_id: str, ranges: Sequence[OffsetRange]) -> str:
    return f'("table_name" = {text(table_name)} and {of_ranges(topic_id, ranges)})'


def _and_of_runs(runs: Sequence[str] | None) -> str:
    if runs is None:
        return ""
    return f' and "{RUN_COLUMN}" in ({", ".join(map(text, runs))})' if runs else " and false"


def text(value: str) -> str:
    """A string as SQL writes it."""
    return "'" + value.replace("'", "''") + "'"


def quoted(name: str) -> str:
    """The name of a column as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _explaining_missing_files(folder: Folder, table: DeltaTable) -> Iterator[None]:
    """Turns the errors of reading data files into the loader's."""
    try:
        yield
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        if (missing := _MISSING_FILE.search(reason)) is not None:
            newest = open_table(folder)
            if newest is not None and newest.version() > table.version() and not _names(newest, missing[1]):
                raise WarehouseError(
                    f"Another program has rewritten table {folder.name} meanwhile, and removed the file"
                    f" {missing[1]}, which this has still read; nothing was committed. Let VACUUM keep files"
                    f" for at least {ORPHAN_HOURS_MIN} hours, and run this again."
                ) from error
            raise WarehouseError(
                f"Table {folder.name} names the file {missing[1]}, which is not there. Restore it, or take it"
                " out of the table (deltalake: DeltaTable.repair) and add its rows again (mainstem load"
                " backfill)."
            ) from error
        raise WarehouseError(
            f"The files of table {folder.name} cannot be read ({reason}). Restore those that are damaged,"
            " then run this again."
        ) from error


def _names(table: DeltaTable, location: str) -> bool:
    """Whether a table has the file at a location, as DataFusion's errors name it."""
    name = location.rpartition("/")[2]
    return any(uri.rpartition("/")[2] == name for uri in table.file_uris())


def check_rows_may_be_removed(folder: Folder, table: DeltaTable) -> None:
    """Refuse a table whose property `delta.appendOnly` forbids every commit that removes files.

    Raises:
        WarehouseError: see there.
    """
    if (table.metadata().configuration.get("delta.appendOnly") or "").lower() == "true":
        raise WarehouseError(
            f"Table {folder.name} is append-only, so its rows cannot be replaced or removed; set its property"
            " delta.appendOnly to false first."
        )


def _offsets(folder: Folder, table: DeltaTable, condition: str) -> Int64s:
    sql = f'select "{OFFSET_COLUMN}" from "{_TABLE}" where {condition}'
    parts = [rows.column(0).to_numpy().astype(np.int64) for rows in _ask(folder, table, sql)]
    return np.unique(np.concatenate([np.empty(0, np.int64), *parts]))


def _extents(folder: Folder, table: DeltaTable, condition: str) -> dict[OffsetRange, int]:
    sql = (
        f'select "{PARTITION_COLUMN}" p, min("{OFFSET_COLUMN}") a, max("{OFFSET_COLUMN}") b, count(*) n'
        f' from "{_TABLE}" where {condition} group by 1 order by 1'
    )
    return {
        OffsetRange(int(row["p"]), int(row["a"]), int(row["b"]) + 1): int(row["n"])
        for rows in _ask(folder, table, sql)
        for row in rows.to_pylist()
    }


def _ask(folder: Folder, table: DeltaTable, sql: str) -> Iterator[pa.Table]:
    """The answer, a batch at a time.

    Raises:
        WarehouseError: a file of the table is missing or damaged.
    """
    with explaining_table_errors(folder), _explaining_missing_files(folder, table):
        engine = QueryBuilder()
        engine.register(_TABLE, table)
        reader = pa.RecordBatchReader.from_stream(engine.execute(sql))
        for batch in reader:
            yield plain_types(pa.Table.from_batches([batch]))
