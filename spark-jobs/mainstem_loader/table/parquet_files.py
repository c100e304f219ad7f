"""Parquet files as the warehouse has them: how they are written, and what a commit needs to know of each.

Files are zstd-compressed Parquet 2.6 with plain column names. In Delta tables offsets and timestamps are
delta-encoded, and raw values are their lengths and their bytes; in Iceberg tables both are plain, because
Iceberg's reader for Spark refused such encodings until 2026. All else is a dictionary for as long as that
pays. A file belongs to the table only from the commit that names it; one that no commit names is an orphan,
swept later (`warehouse`).

File names are `part-<run>-<task>-<attempt>-<number>.parquet`; those of dead letters, whose folder other
tables share, begin with `<table>-` (a long name is `shortened`) and have no number. No two attempts of
anything share a name.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from mainstem_loader.columns import (
    DAYS_MAX,
    DAYS_MIN,
    MICROSECONDS_MAX,
    MICROSECONDS_MIN,
    OFFSET_COLUMN,
    TIMESTAMP_COLUMN,
    Columns,
    TableFormat,
)
from mainstem_loader.payload.readers import RAW_COLUMN
from mainstem_loader.table.folder import Folder

STAGED_FOLDER: Final = "_staged"
"""In a table's folder: files that a run reads again, and that no commit ever names. Readers of tables skip
what begins with an underscore.
"""

COMPRESSION: Final = "zstd"
# Level 3 took almost three times as long to write messages of 100 bytes, and saved nothing.
COMPRESSION_LEVEL: Final = 1

_ENCODINGS: Final = {OFFSET_COLUMN: "DELTA_BINARY_PACKED", TIMESTAMP_COLUMN: "DELTA_BINARY_PACKED"}
# For whole messages, which rarely repeat: a dictionary of them costs and gains nothing.
_MESSAGE_ENCODING: Final = "DELTA_LENGTH_BYTE_ARRAY"

# Longer strings as minimum and maximum would fill the log for little skipping.
_STATISTIC_CHARACTERS_MAX: Final = 64


_NAME: Final = re.compile(
    r"(?:(?P<table>.+)-)?part-(?P<run>[0-9]{8}T[0-9]{6}-[0-9a-f]{8})-[0-9]+-[0-9]+(?:-[0-9]+)?\.parquet",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class FileOrigin:
    """Which run wrote a file. `table`: for which table, `shortened`, if it holds dead letters; else None."""

    run_id: str
    table: str | None


def new_run_id(started_s: float) -> str:
    """A run's id: sortable by time, and unlike any other even when many start at once, because no two files
    may share a name.
    """
    return f"{datetime.fromtimestamp(started_s, UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


def file_name(run_id: str, task: int, attempt: int) -> str:
    """What the names of all files of one attempt of a task begin with."""
    return f"part-{run_id}-{task}-{attempt}"


def origin_of_file(path: str) -> FileOrigin | None:
    """The origin of a file, by its name; None if no load wrote it."""
    match = _NAME.fullmatch(path.rpartition("/")[2])
    return None if match is None else FileOrigin(match["run"], match["table"])


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A finished file.

    `path` is relative to the table's folder. `columns` are those the file has. `statistics` is Delta's JSON
    (`numRecords`, `minValues`, `maxValues`, `nullCount`; Delta protocol, "Per-file Statistics").
    """

    path: str
    partition_values: Mapping[str, str]
    rows: int
    size_bytes: int
    modified_ms: int
    columns: Columns
    statistics: str


@dataclass(frozen=True, slots=True)
class FileOfDay:
    """A file that a table names. `day` is an ISO date. `rows` is 0 if the table does not say, and includes
    those that a deletion vector removes.
    """

    path: str
    day: str
    size_bytes: int
    rows: int


class ParquetFile:
    """One file being written. Nothing of it counts before `close`; `abandon` removes it.

    Args:
        folder: of the table.
        path: relative to it; folders on the way are made.
        schema: of all tables that will be written.
        partition_values: column to value, as Delta writes them.
        table_format: of the table.
    """

    def __init__(
        self,
        folder: Folder,
        path: str,
        schema: pa.Schema,
        partition_values: Mapping[str, str],
        table_format: TableFormat = TableFormat.DELTA,
    ) -> None:
        self.path = path
        self.schema = schema
        self._folder = folder
        self._partition_values = partition_values
        self._metadata: list[parquet.FileMetaData] = []
        encodings = {name: encoding for name, encoding in _ENCODINGS.items() if name in schema.names}
        if RAW_COLUMN in schema.names and schema.field(RAW_COLUMN).type == pa.binary():
            encodings[RAW_COLUMN] = _MESSAGE_ENCODING
        self._file = folder.open_file(path)
        self._writer = parquet.ParquetWriter(
            self._file,
            schema,
            compression=COMPRESSION,
            compression_level=COMPRESSION_LEVEL,
            use_dictionary=[name for name in schema.names if name not in encodings],  # type: ignore[arg-type]  # names, too
            column_encoding=encodings
            if table_format is TableFormat.DELTA
            else dict.fromkeys(encodings, "PLAIN"),
            store_decimal_as_integer=table_format is TableFormat.ICEBERG,  # as its specification demands
            write_statistics=True,
            metadata_collector=self._metadata,
        )

    @property
    def size_bytes(self) -> int:
        """What has reached the file so far."""
        return int(self._file.tell())

    def write(self, table: pa.Table) -> None:
        """Append a row group."""
        self._writer.write_table(table, row_group_size=max(table.num_rows, 1))

    def close(self) -> WrittenFile:
        self._writer.close()
        (metadata,) = self._metadata
        size_bytes = self.size_bytes
        self._folder.finish(self.path, self._file)
        return WrittenFile(
            path=self.path,
            partition_values=self._partition_values,
            rows=metadata.num_rows,
            size_bytes=size_bytes,
            modified_ms=time.time_ns() // 1_000_000,
            columns={field.name: field.type for field in self.schema},
            statistics=json.dumps(_statistics(metadata, self.schema)),
        )

    def abandon(self) -> None:
        """Remove the file as far as that is possible. Raises nothing, or the error that made the task fail
        would be replaced; what stays is swept.
        """
        for close in (self._writer.close, self._file.close):
            # On a full disk the footer does not fit, and the writer raises errors of several kinds.
            with suppress(Exception):
                close()
        with suppress(OSError):
            self._folder.delete(self.path)


def _statistics(metadata: parquet.FileMetaData, schema: pa.Schema) -> dict[str, object]:
    """Delta's statistics out of Parquet's, for top-level columns whose values have an order that both agree
    on.
    """
    minima: dict[str, object] = {}
    maxima: dict[str, object] = {}
    null_counts: dict[str, int] = {}
    for index in range(metadata.num_columns):
        column = metadata.schema.column(index)
        if column.max_repetition_level or "." in column.path:
            continue
        groups = [metadata.row_group(group).column(index) for group in range(metadata.num_row_groups)]
        chunks = [group.statistics for group in groups if group.statistics is not None]
        if len(chunks) < len(groups):
            continue
        null_counts[column.path] = sum(chunk.null_count or 0 for chunk in chunks)
        column_type = schema.field(column.path).type
        is_time = pa.types.is_timestamp(column_type) or pa.types.is_date(column_type)
        # Python has no times outside of the years 1 to 9999, which others may have given a table.
        bounds: list[Any] = [
            (chunk.min_raw, chunk.max_raw) if is_time else (chunk.min, chunk.max)
            for chunk in chunks
            if chunk.has_min_max
        ]
        if bounds and all(chunk.has_min_max or not chunk.num_values for chunk in chunks):
            lowest, highest = (
                _text_of_time(bound, column_type) if is_time else _json_of(bound)
                for bound in (min(lower for lower, _ in bounds), max(upper for _, upper in bounds))
            )
            if lowest is not None and highest is not None:
                minima[column.path], maxima[column.path] = lowest, highest
    return {
        "numRecords": metadata.num_rows,
        "minValues": minima,
        "maxValues": maxima,
        "nullCount": null_counts,
    }


def _json_of(value: object) -> object:
    """A statistic as Delta writes it; None for what cannot serve as one: NaN spoils those of numbers."""
    match value:
        case bool():
            return None
        case int():
            return value
        case str():
            return value if len(value) <= _STATISTIC_CHARACTERS_MAX else None
        case _:
            return None


def _text_of_time(value: int, column_type: pa.DataType) -> str | None:
    """A date or timestamp as Delta writes it, with four digits of the year; None if it has no such form.

    Args:
        value: days or microseconds since 1970, as Parquet has them.
        column_type: a timestamp without a zone has none here either.
    """
    if not isinstance(column_type, pa.TimestampType):
        return str(np.datetime64(value, "D")) if DAYS_MIN <= value <= DAYS_MAX else None
    if column_type.unit != "us" or not MICROSECONDS_MIN <= value <= MICROSECONDS_MAX:
        return None
    zone = "" if column_type.tz is None else "Z"
    return f"{np.datetime64(value, 'us')}{zone}"
