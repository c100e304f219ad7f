"""Rows dealt out to the files of their days, with bounded memory and a bounded number of open files.

Rows wait in memory by day until a day has enough for a row group, or all days together have too much; then
the largest day is written. So a task that reads one day writes one file, and a backlog that mixes years of
days writes few files for each and never holds more than the bound. A file ends when it is large enough, when
a payload brings columns it lacks, or when it is the one not written to for longest and too many are open.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import numpy as np
import pyarrow as pa

from mainstem_loader.arrow_arrays import Int32s, of_numbers, repeated
from mainstem_loader.columns import DAY_COLUMN, TableFormat
from mainstem_loader.exact_numbers import rounds
from mainstem_loader.payload.event_time import EPOCH
from mainstem_loader.table.folder import Folder
from mainstem_loader.table.parquet_files import ParquetFile, WrittenFile

# Memory of one task, before compression. Several tasks run side by side.
WAITING_BYTES_MAX: Final = 192 * 1024 * 1024
ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
FILE_BYTES: Final = 256 * 1024 * 1024
OPEN_FILES_MAX: Final = 32


@dataclass(slots=True)
class _Waiting:
    tables: list[pa.Table] = field(default_factory=list)
    size_bytes: int = 0


class DayFiles:
    """The files of one task.

    Args:
        folder: of the table's files.
        name: what all file names begin with; unique to this try of the task.
        table_format: Iceberg's files hold the day, which Delta has in its log alone.
    """

    def __init__(
        self,
        folder: Folder,
        name: str,
        table_format: TableFormat = TableFormat.DELTA,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
        row_group_bytes: int = ROW_GROUP_BYTES,
        file_bytes: int = FILE_BYTES,
        open_files_max: int = OPEN_FILES_MAX,
    ) -> None:
        self._folder = folder
        self._name = name
        self._table_format = table_format
        self._waiting_bytes_max = waiting_bytes_max
        self._row_group_bytes = row_group_bytes
        self._file_bytes = file_bytes
        self._open_files_max = open_files_max
        self._waiting: dict[int, _Waiting] = {}
        self._waiting_bytes = 0
        # By day, the one written to last at the end.
        self._open: OrderedDict[int, ParquetFile] = OrderedDict()
        self._written: list[WrittenFile] = []
        self._count = 0

    def append(self, days: Int32s, rows: pa.Table) -> None:
        """Add rows of any days.

        Args:
            days: days since 1970, one for each row.
            rows: the table's columns, without the day.
        """
        for day, part in _split(days, rows):
            waiting = self._waiting.setdefault(day, _Waiting())
            waiting.tables.append(part)
            waiting.size_bytes += part.nbytes
            self._waiting_bytes += part.nbytes
            if waiting.size_bytes >= self._row_group_bytes:
                self._flush(day)
        while self._waiting_bytes > self._waiting_bytes_max:
            self._flush(max(self._waiting, key=lambda day: self._waiting[day].size_bytes))

    def close(self) -> list[WrittenFile]:
        """Write what waits, finish all files, and tell them."""
        for day in sorted(self._waiting):
            self._flush(day)
            self._finish(day)
        for day in list(self._open):
            self._finish(day)
        return self._written

    def abandon(self) -> None:
        """Remove all files, finished or not; for a task that failed."""
        for unfinished in self._open.values():
            unfinished.abandon()
        for written in self._written:
            with suppress(OSError):  # What stays is swept.
                self._folder.delete(written.path)

    def _flush(self, day: int) -> None:
        waiting = self._waiting.pop(day)
        self._waiting_bytes -= waiting.size_bytes
        if rounds(waiting.tables):  # apart: the task runs again, once all types of the load are known
            for table in waiting.tables:
                self._write(day, table)
        else:
            self._write(day, pa.concat_tables(waiting.tables, promote_options="permissive"))

    def _write(self, day: int, table: pa.Table) -> None:
        if self._table_format is TableFormat.ICEBERG:
            table = table.append_column(
                DAY_COLUMN, repeated(day, pa.int32(), table.num_rows).view(pa.date32())
            )
        unfinished = self._open.get(day)
        if unfinished is not None and not _holds(unfinished.schema, table.schema):
            self._finish(day)
            unfinished = None
        if unfinished is None:
            unfinished = self._begin(day, table.schema)
        unfinished.write(_conform(table, unfinished.schema))
        self._open.move_to_end(day)
        if unfinished.size_bytes >= self._file_bytes:
            self._finish(day)

    def _begin(self, day: int, schema: pa.Schema) -> ParquetFile:
        while len(self._open) >= self._open_files_max:
            self._finish(next(iter(self._open)))
        self._count += 1
        date = (EPOCH + timedelta(days=day)).date().isoformat()
        path = f"{DAY_COLUMN}={date}/{self._name}-{self._count}.parquet"
        self._open[day] = ParquetFile(self._folder, path, schema, {DAY_COLUMN: date}, self._table_format)
        return self._open[day]

    def _finish(self, day: int) -> None:
        if (unfinished := self._open.get(day)) is not None:
            # If this fails, `abandon` still has to remove the file.
            self._written.append(unfinished.close())
            del self._open[day]


def _split(days: Int32s, rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each day, in their order."""
    if not len(days):
        return
    if (days == days[0]).all():
        yield int(days[0]), rows
        return
    order = np.argsort(days, kind="stable")
    ordered = days[order]
    by_day = rows.take(of_numbers(order))
    begins = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(days)], strict=True):
        yield int(ordered[begin]), by_day.slice(begin, end - begin)


def _holds(schema: pa.Schema, other: pa.Schema) -> bool:
    """Whether rows of the schema `other` can go to a file of the schema `schema`, with nulls for what they
    lack.
    """
    return all(
        name in schema.names and schema.field(name).type == other.field(name).type for name in other.names
    )


def _conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        table.column(field.name) if field.name in table.column_names else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
