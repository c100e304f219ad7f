"""Records that could not be loaded, kept byte for byte with the reason.

They go to a table that all tables of the warehouse may share, `dead_letters` unless it is named otherwise,
partitioned by topic:

    topic         string   partition column
    table_name    string   the table it was meant for
    _topic_id     string   of the topic
    _run          string   the run that rejected it
    _partition    integer  with `_offset`, names the record
    _offset       long
    _key          binary
    timestamp_ms  long     as the record has it, even if it is no time
    value         binary   the bytes as they were sent
    error         string   why the record is here
    _headers      array    null where an earlier version rejected the record

A run's dead letters become visible right after its rows (`warehouse`). Must not live here: what makes a
record dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from mainstem_loader.arrow_arrays import repeated
from mainstem_loader.columns import (
    HEADERS_COLUMN,
    HEADERS_TYPE,
    KEY_COLUMN,
    OFFSET_COLUMN,
    PARTITION_COLUMN,
    RUN_COLUMN,
    TOPIC_ID_COLUMN,
)
from mainstem_loader.kafka.batches import Source
from mainstem_loader.kafka.decode import headers_of
from mainstem_loader.payload.rows import RejectedRecord
from mainstem_loader.table.folder import Folder, shortened
from mainstem_loader.table.parquet_files import ParquetFile, WrittenFile

DEAD_LETTER_TABLE: Final = "dead_letters"
TOPIC_COLUMN: Final = "topic"

_TYPES: Final[dict[str, pa.DataType]] = {
    PARTITION_COLUMN: pa.int32(),
    OFFSET_COLUMN: pa.int64(),
    "timestamp_ms": pa.int64(),
    KEY_COLUMN: pa.binary(),
    "value": pa.binary(),
    "error": pa.string(),
    "table_name": pa.string(),
    TOPIC_ID_COLUMN: pa.string(),
    RUN_COLUMN: pa.string(),
    HEADERS_COLUMN: HEADERS_TYPE,
}
DEAD_LETTER_SCHEMA: Final = pa.schema(_TYPES)

ROW_GROUP_BYTES: Final = 32 * 1024 * 1024


def letters_path(topic: str, table_name: str, name: str) -> str:
    """The path of a file in the folder of the dead letter table.

    Args:
        topic: of its records.
        table_name: what they were meant for.
        name: what `parquet_files.file_name` says.
    """
    return f"{TOPIC_COLUMN}={topic}/{shortened(table_name)}-{name}.parquet"


class DeadLetterFile:
    """The dead letters of one task: no file until there is one.

    Args:
        folder: of the dead letter table.
        table_name: what they were meant for.
        topic, topic_id: whose records they are.
        run_id: of the run that rejects them.
        name: what the file's name begins with; unique to this try of the task.
    """

    def __init__(
        self, folder: Folder, table_name: str, topic: str, topic_id: str, run_id: str, name: str
    ) -> None:
        self._folder = folder
        self._table_name = table_name
        self._topic = topic
        self._topic_id = topic_id
        self._run_id = run_id
        self._name = name
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._file: ParquetFile | None = None

    def append(self, block: pa.RecordBatch, partition: int, rejected: Sequence[RejectedRecord]) -> None:
        """Add rows of a block.

        Args:
            block: decoded records, see `decode`.
            partition: all of theirs.
            rejected: those of its records to add.
        """
        count = len(rejected)
        rows = block.take(pa.array([one.record for one in rejected], pa.int64()))
        letters = pa.table(
            {
                PARTITION_COLUMN: repeated(partition, pa.int32(), count),
                OFFSET_COLUMN: rows.column("offset"),
                "timestamp_ms": rows.column("timestamp_ms"),
                KEY_COLUMN: rows.column("key"),
                "value": rows.column("value"),
                "error": pa.array([one.reason for one in rejected], pa.string()),
                "table_name": repeated(self._table_name, pa.string(), count),
                TOPIC_ID_COLUMN: repeated(self._topic_id, pa.string(), count),
                RUN_COLUMN: repeated(self._run_id, pa.string(), count),
                HEADERS_COLUMN: headers_of(rows, Source(self._topic, partition)),
            },
            schema=DEAD_LETTER_SCHEMA,
        )
        self._waiting.append(letters)
        self._waiting_bytes += letters.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> list[WrittenFile]:
        """Write what waits and finish the file, if there is one."""
        if self._waiting:
            self._flush()
        return [] if self._file is None else [self._file.close()]

    def abandon(self) -> None:
        if self._file is not None:
            self._file.abandon()

    def _flush(self) -> None:
        if self._file is None:
            path = letters_path(self._topic, self._table_name, self._name)
            self._file = ParquetFile(self._folder, path, DEAD_LETTER_SCHEMA, {TOPIC_COLUMN: self._topic})
        self._file.write(pa.concat_tables(self._waiting))
        self._waiting, self._waiting_bytes = [], 0
