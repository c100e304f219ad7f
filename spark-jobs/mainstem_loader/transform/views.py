"""What a view of a transform reads, in parts that tasks take: staged files, or a snapshot of a table.

A view is a value that can be sent anywhere and read any number of times, always with the same rows, so Spark
may repeat its tasks. Must not live here: PySpark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final, Protocol

import pyarrow as pa
from pyarrow import parquet

from mainstem_loader.arrow_arrays import Array, repeated
from mainstem_loader.columns import (
    DAY_COLUMN,
    KEY_COLUMN,
    OFFSET_COLUMN,
    OPTIONAL_COLUMNS,
    PARTITION_COLUMN,
    RECORD_COLUMNS,
    TIMESTAMP_COLUMN,
    Columns,
)
from mainstem_loader.errors import TransformError
from mainstem_loader.table import contents
from mainstem_loader.table.delta import arrow_schema, explaining_table_errors, open_table
from mainstem_loader.table.folder import Folder, explaining_file_errors
from mainstem_loader.table.parquet_files import WrittenFile

_BATCH_ROWS: Final = 32_768
_PARTS_MAX: Final = 64
_OWN_NAMES: Final = (PARTITION_COLUMN, OFFSET_COLUMN, TIMESTAMP_COLUMN, KEY_COLUMN)


class View(Protocol):
    """Rows of fixed columns, in parts."""

    @property
    def schema(self) -> pa.Schema: ...

    def part_count(self) -> int: ...

    def batches(self, part: int) -> Iterator[pa.RecordBatch]:
        """The rows of a part."""
        ...


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file of staged records. `day`: of its rows, as an ISO date."""

    path: str
    day: str


@dataclass(frozen=True, slots=True)
class StagedRecords:
    """Records of a topic, in files that no table names."""

    folder: Folder
    parts: tuple[tuple[StagedFile, ...], ...]
    schema: pa.Schema

    def part_count(self) -> int:
        return len(self.parts)

    def batches(self, part: int) -> Iterator[pa.RecordBatch]:
        for staged in self.parts[part]:
            day = date.fromisoformat(staged.day)
            with explaining_file_errors(self.folder), self.folder.open_to_read(staged.path) as file:
                for batch in parquet.ParquetFile(file).iter_batches(_BATCH_ROWS):
                    yield _conformed(batch, self.schema, day)


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """A table at one version. `days`: by part, the ISO dates whose rows it has; empty where the table is not
    divided by days, and is one part.
    """

    folder: Folder
    version: int
    days: tuple[tuple[str, ...], ...]
    schema: pa.Schema

    def part_count(self) -> int:
        return max(len(self.days), 1)

    def batches(self, part: int) -> Iterator[pa.RecordBatch]:
        table = contents.snapshot(self.folder, self.version)
        for rows in contents.rows_of_days(self.folder, table, self.days[part] if self.days else ()):
            yield from rows.to_batches()


def staged_records(
    folder: Folder, files: Sequence[WrittenFile], payload_columns: Columns, part_count: int
) -> StagedRecords:
    """The view of records that tasks have staged.

    Its columns are those of the payload, then those of every record, even where no record has any.

    Args:
        folder: of the files.
        files: those of all tasks.
        payload_columns: of all files together.
        part_count: how many tasks read them, if there are as many files.
    """
    own: dict[str, pa.DataType] = {name: RECORD_COLUMNS[name] for name in _OWN_NAMES}
    own |= {**OPTIONAL_COLUMNS, DAY_COLUMN: pa.date32()}
    payload = {name: kind for name, kind in payload_columns.items() if name not in own}
    # The largest files first, each to the part that has least.
    sizes = [0] * max(1, min(part_count, len(files), _PARTS_MAX))
    parts: list[list[StagedFile]] = [[] for _ in sizes]
    for written in sorted(files, key=lambda one: one.size_bytes, reverse=True):
        smallest = sizes.index(min(sizes))
        sizes[smallest] += written.size_bytes
        parts[smallest].append(StagedFile(written.path, written.partition_values[DAY_COLUMN]))
    return StagedRecords(folder, tuple(map(tuple, parts)), pa.schema({**payload, **own}))


def table_snapshot(folder: Folder, part_count: int) -> TableSnapshot:
    """The view of a table as it is now.

    Raises:
        TransformError: there is no such table.
        WarehouseError: it cannot be read.
    """
    with explaining_table_errors(folder):
        table = open_table(folder)
    if table is None:
        raise TransformError(
            f"There is no table {folder.name} in the warehouse, which the transform has as an input; load it"
            " first, or correct the input's name."
        )
    schema = arrow_schema(table)
    days: list[str] = []
    if table.metadata().partition_columns == [DAY_COLUMN]:
        days = contents.days_of_table(folder, table)
    count = min(max(part_count, 1), len(days))
    return TableSnapshot(
        folder, table.version(), tuple(tuple(days[part::count]) for part in range(count)), schema
    )


def _conformed(batch: pa.RecordBatch, schema: pa.Schema, day: date) -> pa.RecordBatch:
    """The columns of the view: those that this file has, the day, and null for the others."""
    columns: list[Array] = []
    for column in schema:
        if column.name == DAY_COLUMN:
            columns.append(repeated(day, pa.date32(), batch.num_rows))
        elif column.name in batch.schema.names:
            # Members of structs that the file does not have become null.
            columns.append(batch.column(column.name).cast(column.type))
        else:
            columns.append(pa.nulls(batch.num_rows, column.type))
    return pa.record_batch(columns, schema=schema)
