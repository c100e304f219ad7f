"""What one executor does: read ranges of offsets, and leave Parquet files behind that no table names yet.

A task is a value and so is its result; a task may run anywhere, any number of times, and side by side with
another try of itself, because every try writes files of its own. An error that tells what to do is a value
too, so that it reaches the person unwrapped. Must not live here: the table's log, or anything about other
tasks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date

import numpy as np
import pyarrow as pa

from mainstem_loader.arrow_arrays import null_flags, of_numbers, repeated
from mainstem_loader.columns import (
    HEADERS_COLUMN,
    KEY_COLUMN,
    OFFSET_COLUMN,
    PARTITION_COLUMN,
    RECORD_COLUMNS,
    RUN_COLUMN,
    TIMESTAMP_COLUMN,
    TIMESTAMP_TYPE,
    TOMBSTONE_COLUMN,
    TOPIC_ID_COLUMN,
    Columns,
    TableFormat,
    partition_column,
)
from mainstem_loader.errors import LoaderError
from mainstem_loader.kafka.batches import NO_TIMESTAMP_MS
from mainstem_loader.kafka.client_security import ClientProperties
from mainstem_loader.kafka.fetch import EpochEnd, IsolationLevel
from mainstem_loader.kafka.leaders import BrokerSettings
from mainstem_loader.payload.avro_payload import AvroPayload
from mainstem_loader.payload.event_time import EPOCH
from mainstem_loader.payload.json_payload import JsonPayload
from mainstem_loader.payload.json_schema_payload import JsonSchemaPayload
from mainstem_loader.payload.learned_types import with_learned_types
from mainstem_loader.payload.readers import PayloadFormat, PayloadReader, RawPayload
from mainstem_loader.payload.rows import DividedBlock, PayloadSettings, divide_block
from mainstem_loader.payload.schema_source import SchemaSource
from mainstem_loader.ranges import OffsetRange
from mainstem_loader.report import RangeCounts
from mainstem_loader.spark.record_sources import Clock, RecordReader, RecordSource, Snapshot
from mainstem_loader.table.day_files import DayFiles
from mainstem_loader.table.dead_letters import DeadLetterFile
from mainstem_loader.table.folder import Folder, explaining_file_errors
from mainstem_loader.table.parquet_files import WrittenFile, file_name


@dataclass(frozen=True, slots=True)
class LoadTask:
    """All that an executor needs to know. A value, so that it can be sent anywhere and run again.

    Attributes:
        table: the folder of its files.
        table_name: how dead letters name it.
        rows_folder: where rows go, if not to the table's own folder.
    """

    run_id: str
    number: int
    brokers: BrokerSettings
    topic: str
    topic_id: str
    isolation: IsolationLevel
    ranges: tuple[OffsetRange, ...]
    payload: PayloadSettings
    table: Folder
    table_name: str
    table_format: TableFormat
    dead_letters: Folder
    fetch_bytes: int
    source: RecordSource = RecordSource.TOPIC
    snapshot: Snapshot | None = None
    rows_folder: Folder | None = None


@dataclass(frozen=True, slots=True)
class CopyTask:
    """Copy the rows of a day, as of a version of the table, except those of some ranges; only those that some
    runs have written, if `only_of_runs` is not None. Columns that are in `learned` get these types, and what
    was in `_rest` for want of them.
    """

    run_id: str
    number: int
    topic_id: str
    table: Folder
    version: int
    day: str
    without: tuple[OffsetRange, ...]
    only_of_runs: tuple[str, ...] | None = None
    learned: Columns = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskSeconds:
    """Where the time of a task went, on its own clock."""

    fetch: float = 0.0
    decode: float = 0.0
    parse: float = 0.0
    write: float = 0.0


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task left behind.

    Attributes:
        number: the task's.
        files, dead_files: rows, and dead letters.
        counts: one for each range.
        epochs_of: for each partition the leader epochs that were read.
        found_columns: those beyond, or wider than, the settled ones.
        bytes_read: of batches as stored by the broker.
        seconds: where the time went.
        untyped_columns, wider_columns: see `PayloadReader`.
    """

    number: int
    files: tuple[WrittenFile, ...]
    dead_files: tuple[WrittenFile, ...]
    counts: tuple[RangeCounts, ...]
    epochs_of: Mapping[int, tuple[EpochEnd, ...]]
    found_columns: Columns
    bytes_read: int
    seconds: TaskSeconds
    untyped_columns: Columns = field(default_factory=dict)
    wider_columns: Columns = field(default_factory=dict)


def untyped_names(results: Iterable[TaskResult]) -> set[str]:
    """The columns of which the files of these tasks have values in `_rest` for want of a type."""
    return {name for result in results for name in result.untyped_columns}


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """A task that gave up, with the error to raise in the driver."""

    number: int
    error: LoaderError


def run_task(task: LoadTask, attempt: int) -> TaskResult | TaskFailure:
    """Read, decode and write the ranges of a task.

    Args:
        task: what to do.
        attempt: a number that no other try of the same run's task has.

    Returns:
        Files that are whole; or why there are none.
    """
    name = file_name(task.run_id, task.number, attempt)
    files = DayFiles(task.rows_folder or task.table, name, task.table_format)
    dead_letters = DeadLetterFile(
        task.dead_letters, task.table_name, task.topic, task.topic_id, task.run_id, name
    )
    try:
        with explaining_file_errors(task.table):
            try:
                return _load(task, files, dead_letters)
            except BaseException:
                files.abandon()
                dead_letters.abandon()
                raise
    except LoaderError as error:
        return TaskFailure(task.number, error)


def run_copy(task: CopyTask, attempt: int) -> TaskResult | TaskFailure:
    """Write the rows of a day that stay.

    Args:
        task: what to do.
        attempt: a number that no other try of the same run's task has.

    Returns:
        Files that are whole; or why there are none.
    """
    from mainstem_loader.table import contents

    files = DayFiles(task.table, file_name(task.run_id, task.number, attempt))
    begin = time.perf_counter()
    day = (date.fromisoformat(task.day) - EPOCH.date()).days
    try:
        with explaining_file_errors(task.table):
            try:
                table = contents.snapshot(task.table, task.version)
                for rows in contents.rows_of_day_without(
                    task.table, table, task.topic_id, task.day, task.without, task.only_of_runs
                ):
                    copied = with_learned_types(rows, task.learned) if task.learned else rows
                    files.append(np.full(rows.num_rows, day, np.int32), copied)
                written = files.close()
            except BaseException:
                files.abandon()
                raise
    except LoaderError as error:
        return TaskFailure(task.number, error)
    seconds = TaskSeconds(write=time.perf_counter() - begin)
    return TaskResult(task.number, tuple(written), (), (), {}, {}, 0, seconds)


def _load(task: LoadTask, files: DayFiles, dead_letters: DeadLetterFile) -> TaskResult:
    payload = _reader(task.payload, task.brokers.client_properties)
    clock = Clock(dict.fromkeys(TaskSeconds.__slots__, 0.0))
    counts: list[RangeCounts] = []
    with RecordReader(task, task.payload.with_headers, clock) as reader:
        for part in task.ranges:
            read, dead = 0, 0
            for block in reader.blocks(part):
                divided = divide_block(block, payload, task.payload)
                clock.spent_on("parse")
                files.append(divided.days, _table(task, block, part.partition, divided))
                if divided.rejected:
                    dead_letters.append(block, part.partition, divided.rejected)
                clock.spent_on("write")
                read += block.num_rows
                dead += len(divided.rejected)
            counts.append(RangeCounts(part, read, read - dead, dead))
    written = files.close()
    dead_written = dead_letters.close()
    clock.spent_on("write")
    return TaskResult(
        number=task.number,
        files=tuple(written),
        dead_files=tuple(dead_written),
        counts=tuple(counts),
        epochs_of={partition: tuple(epoch_ends) for partition, epoch_ends in reader.epochs_of.items()},
        found_columns=dict(payload.found_columns()),
        bytes_read=reader.bytes_read,
        seconds=TaskSeconds(**clock.seconds),
        untyped_columns=dict(payload.untyped_columns()),
        wider_columns=dict(payload.wider_columns()),
    )


def _reader(settings: PayloadSettings, properties: ClientProperties) -> PayloadReader:
    match settings.format:
        case PayloadFormat.RAW:
            return RawPayload()
        case PayloadFormat.AVRO:
            assert settings.schema_registry is not None  # `LoadSettings.check` has seen to it
            return AvroPayload(
                settings.columns, SchemaSource(settings.schema_registry, properties).writer_schema
            )
        case PayloadFormat.PROTOBUF:
            # Loads of other formats do not wait for its libraries.
            from mainstem_loader.payload.protobuf_payload import ProtobufPayload

            assert settings.schema_registry is not None
            schemas = SchemaSource(settings.schema_registry, properties)
            return ProtobufPayload(settings.columns, schemas.protobuf_schema)
        case PayloadFormat.JSON_SCHEMA:
            assert settings.schema_registry is not None
            return JsonSchemaPayload(
                settings.columns, SchemaSource(settings.schema_registry, properties).check_json
            )
    return JsonPayload(settings.columns)


def _table(task: LoadTask, block: pa.RecordBatch, partition: int, divided: DividedBlock) -> pa.Table:
    """The rows of a block as the table has them, except for the day."""
    count = len(divided.records)
    if count != block.num_rows:
        block = block.take(of_numbers(divided.records))
    timestamps_ms = block.column("timestamp_ms").to_numpy()
    microseconds = of_numbers(timestamps_ms * 1000, timestamps_ms == NO_TIMESTAMP_MS)
    arrays = {
        partition_column(task.table_format): repeated(partition, RECORD_COLUMNS[PARTITION_COLUMN], count),
        OFFSET_COLUMN: block.column("offset"),
        TIMESTAMP_COLUMN: microseconds.view(TIMESTAMP_TYPE),
        KEY_COLUMN: block.column("key"),
        TOPIC_ID_COLUMN: repeated(task.topic_id, RECORD_COLUMNS[TOPIC_ID_COLUMN], count),
        RUN_COLUMN: repeated(task.run_id, RECORD_COLUMNS[RUN_COLUMN], count),
    }
    if task.payload.with_headers:
        arrays[HEADERS_COLUMN] = block.column("headers")
    if task.payload.format is not PayloadFormat.RAW and block.column("value").null_count:
        is_tombstone = null_flags(block.column("value"))
        arrays[TOMBSTONE_COLUMN] = of_numbers(is_tombstone, ~is_tombstone)
    names = [*arrays, *divided.columns.column_names]
    return pa.Table.from_arrays([*arrays.values(), *divided.columns.columns], names=names)
