"""What one executor does: read ranges of offsets, and leave Parquet files behind that no table names yet.

A task is a value and so is its result; a task may run anywhere, any number of times, and side by side with
another try of itself, because every try writes files of its own. An error that tells what to do is a value
too, so that it reaches the person unwrapped. Must not live here: the table's log, or anything about other
tasks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from mainstem_loader.arrow_arrays import Int32s, Int64s, null_flags, of_numbers, repeated
from mainstem_loader.batches import Source
from mainstem_loader.columns import (
    HEADERS_COLUMN,
    KEY_COLUMN,
    OFFSET_COLUMN,
    PARTITION_COLUMN,
    RECORD_COLUMNS,
    TIMESTAMP_COLUMN,
    TIMESTAMP_TYPE,
    Columns,
)
from mainstem_loader.connection import RESPONSE_BYTES_MAX
from mainstem_loader.day_files import DayFiles
from mainstem_loader.dead_letters import DeadLetterFile
from mainstem_loader.decode import decode_records
from mainstem_loader.errors import BrokerUnreachableError, LoaderError
from mainstem_loader.event_time import EventDays, days_of_field, days_of_records
from mainstem_loader.fetch import IsolationLevel, TopicReader
from mainstem_loader.folder import Folder, saying_what_to_do
from mainstem_loader.json_payload import JsonPayload
from mainstem_loader.leaders import BrokerSettings
from mainstem_loader.parquet_files import WrittenFile
from mainstem_loader.payload import PayloadFormat, PayloadReader, RawPayload
from mainstem_loader.ranges import OffsetRange

# The first fetch of a range learns how large its records are; later ones ask for little more than is left.
FIRST_FETCH_BYTES: Final = 1024 * 1024

LARGEST_FETCH_BYTES: Final = RESPONSE_BYTES_MAX // 2

# Offsets below the end that bring nothing, over and over: the broker and the plan disagree about the end.
STALLED_FETCHES_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class PayloadSettings:
    """How values become columns.

    `columns`: those whose type is settled, by the table or by the load. `event_time_column`: holds the
    event's time; None for the record's timestamp.
    """

    format: PayloadFormat
    columns: Columns
    event_time_column: str | None = None
    with_headers: bool = False


@dataclass(frozen=True, slots=True)
class LoadTask:
    """All that an executor needs to know."""

    run_id: str
    number: int
    brokers: BrokerSettings
    topic: str
    topic_id: str
    isolation: IsolationLevel
    ranges: tuple[OffsetRange, ...]
    payload: PayloadSettings
    table: Folder
    dead_letters: Folder
    fetch_bytes: int


@dataclass(frozen=True, slots=True)
class RangeCounts:
    """What became of the records of one range: `read` = `loaded` + `dead`."""

    range: OffsetRange
    read: int
    loaded: int
    dead: int


@dataclass(frozen=True, slots=True)
class TaskSeconds:
    """Where the time of a task went, on its own clock."""

    fetch: float = 0.0
    decode: float = 0.0
    parse: float = 0.0
    write: float = 0.0


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task left behind. `found_columns`: those beyond, or wider than, the settled ones."""

    number: int
    files: tuple[WrittenFile, ...]
    dead_files: tuple[WrittenFile, ...]
    counts: tuple[RangeCounts, ...]
    found_columns: Columns
    bytes_read: int
    seconds: TaskSeconds


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """A task that gave up, with the error to raise in the driver."""

    number: int
    error: LoaderError


@dataclass(slots=True)
class _Clock:
    """Adds up where the time goes."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TaskSeconds.__slots__, 0.0))
    since: float = field(default_factory=time.perf_counter)

    def spent_on(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] += now - self.since
        self.since = now


def run_task(task: LoadTask, attempt: int) -> TaskResult | TaskFailure:
    """Read, decode and write the ranges of a task.

    Args:
        task: what to do.
        attempt: a number that no other try of the same run's task has.

    Returns:
        Files that are whole; or why there are none.
    """
    name = f"part-{task.run_id}-{task.number}-{attempt}"
    files = DayFiles(task.table, name)
    dead_letters = DeadLetterFile(task.dead_letters, task.table.name, task.topic, name)
    try:
        with saying_what_to_do(task.table):
            try:
                return _load(task, files, dead_letters)
            except BaseException:
                files.abandon()
                dead_letters.abandon()
                raise
    except LoaderError as error:
        return TaskFailure(task.number, error)


def _load(task: LoadTask, files: DayFiles, dead_letters: DeadLetterFile) -> TaskResult:
    payload: PayloadReader = (
        RawPayload() if task.payload.format is PayloadFormat.RAW else JsonPayload(task.payload.columns)
    )
    clock = _Clock()
    counts: list[RangeCounts] = []
    bytes_read = 0
    with TopicReader(task.brokers, task.topic, task.isolation, task.topic_id) as reader:
        for part in task.ranges:
            source = Source(task.topic, part.partition)
            position, read, dead, stalled = part.start, 0, 0, 0
            fetch_bytes = min(FIRST_FETCH_BYTES, task.fetch_bytes)
            while position < part.end:
                fetched = reader.fetch(part.partition, position, fetch_bytes)
                bytes_read += len(fetched.records)
                clock.spent_on("fetch")
                decoded = decode_records(fetched, source, position, part.end, task.payload.with_headers)
                for block in decoded.blocks:
                    clock.spent_on("decode")
                    read += block.num_rows
                    dead += _take(block, part.partition, payload, task.payload, files, dead_letters, clock)
                clock.spent_on("decode")
                moved = decoded.next_offset - position
                position = decoded.next_offset
                if moved:
                    stalled = 0
                    left = (part.end - position) * len(fetched.records) // moved
                    fetch_bytes = min(task.fetch_bytes, left + FIRST_FETCH_BYTES)
                    continue
                stalled += 1
                if fetched.records:
                    # A batch larger than a fetch, from a broker that cuts it off.
                    fetch_bytes = min(2 * fetch_bytes, LARGEST_FETCH_BYTES)
                if stalled > STALLED_FETCHES_MAX:
                    raise BrokerUnreachableError(
                        f"Partition {part.partition} of topic {task.topic} brings nothing at offset"
                        f" {position}, though it should reach to {part.end}; check the broker's log, then"
                        " load again."
                    )
            counts.append(RangeCounts(part, read, read - dead, dead))
    written = files.close()
    dead_written = dead_letters.close()
    clock.spent_on("write")
    return TaskResult(
        number=task.number,
        files=tuple(written),
        dead_files=tuple(dead_written),
        counts=tuple(counts),
        found_columns=dict(payload.found_columns()),
        bytes_read=bytes_read,
        seconds=TaskSeconds(**clock.seconds),
    )


def _take(
    block: pa.RecordBatch,
    partition: int,
    payload: PayloadReader,
    settings: PayloadSettings,
    files: DayFiles,
    dead_letters: DeadLetterFile,
    clock: _Clock,
) -> int:
    """Deal a block of records out to files. Returns how many were dead."""
    timestamps_ms = block.column("timestamp_ms").to_numpy()
    record_days = days_of_records(timestamps_ms)
    dead = list(record_days.dead)
    if dead:
        # Their timestamp fits no column, so their payload is not even looked at.
        storable = np.ones(block.num_rows, dtype=np.bool_)
        storable[[row for row, _ in dead]] = False
        kept = np.flatnonzero(storable)
    else:
        kept = None
    values = block.column("value") if kept is None else block.column("value").take(of_numbers(kept))
    parsed = payload.parse(values)
    rows = parsed.rows if kept is None else kept[parsed.rows]
    dead += [(row if kept is None else int(kept[row]), reason) for row, reason in parsed.dead]
    days, late_dead = _event_days(block, rows, parsed.columns, record_days, settings)
    columns = parsed.columns
    if late_dead:
        dead += [(int(rows[row]), reason) for row, reason in late_dead]
        alive = np.ones(len(rows), dtype=np.bool_)
        alive[[row for row, _ in late_dead]] = False
        rows, days = rows[alive], days[alive]
        columns = columns.filter(of_numbers(alive))
    clock.spent_on("parse")
    files.append(days, _table(block, partition, rows, columns, settings.with_headers))
    if dead:
        dead_letters.append(block, partition, sorted(dead))
    clock.spent_on("write")
    return len(dead)


def _event_days(
    block: pa.RecordBatch,
    rows: Int64s,
    columns: pa.Table,
    record_days: EventDays,
    settings: PayloadSettings,
) -> tuple[Int32s, Sequence[tuple[int, str]]]:
    """The day of each of `rows`, and the positions among them of those that have none."""
    if settings.event_time_column is None:
        return record_days.days[rows], ()
    name = settings.event_time_column
    tombstones = null_flags(block.column("value"))[rows]
    found = days_of_field(
        name,
        columns.column(name) if name in columns.column_names else None,
        block.column("timestamp_ms").to_numpy()[rows],
        tombstones,
    )
    return found.days, found.dead


def _table(
    block: pa.RecordBatch, partition: int, rows: Int64s, columns: pa.Table, with_headers: bool
) -> pa.Table:
    """The rows as the table has them, but for the day."""
    if len(rows) != block.num_rows:
        block = block.take(of_numbers(rows))
    microseconds = block.column("timestamp_ms").to_numpy() * 1000
    arrays = {
        PARTITION_COLUMN: repeated(partition, RECORD_COLUMNS[PARTITION_COLUMN], len(rows)),
        OFFSET_COLUMN: block.column("offset"),
        TIMESTAMP_COLUMN: of_numbers(microseconds).view(TIMESTAMP_TYPE),
        KEY_COLUMN: block.column("key"),
    }
    if with_headers:
        arrays[HEADERS_COLUMN] = block.column("headers")
    names = [*arrays, *columns.column_names]
    return pa.Table.from_arrays([*arrays.values(), *columns.columns], names=names)
