"""Where a task's records come from: ranges of a topic, what of them a table is missing, or dead letters.

Tasks of plain loads need no deltalake, and import it only when they ask a table.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol, Self

import numpy as np
import pyarrow as pa

from mainstem_loader.arrow_arrays import of_numbers
from mainstem_loader.chosen_offsets import missing_spans
from mainstem_loader.columns import HEADERS_COLUMN, HEADERS_TYPE, KEY_COLUMN, OFFSET_COLUMN
from mainstem_loader.kafka.fetch import EpochEnd, IsolationLevel, TopicReader
from mainstem_loader.kafka.leaders import BrokerSettings
from mainstem_loader.kafka.range_reader import read_range
from mainstem_loader.ranges import OffsetRange
from mainstem_loader.table.folder import Folder

# Reading this many records that the table has already costs less than another request.
JOIN_WITHIN_OFFSETS: Final = 10_000


class RecordSource(StrEnum):
    """`MISSING`: of the topic's records those that are neither rows nor dead letters of the snapshot.
    `DEAD_LETTERS`: the snapshot's dead letters.
    """

    TOPIC = "topic"
    MISSING = "missing"
    DEAD_LETTERS = "dead letters"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Versions of a table and of its dead letter table; None where that does not exist."""

    table: int
    dead_letters: int | None


class ReadsRecords(Protocol):
    """What of a task says which records to read."""

    @property
    def brokers(self) -> BrokerSettings: ...
    @property
    def topic(self) -> str: ...
    @property
    def topic_id(self) -> str: ...
    @property
    def isolation(self) -> IsolationLevel: ...
    @property
    def fetch_bytes(self) -> int: ...
    @property
    def table(self) -> Folder: ...
    @property
    def table_name(self) -> str: ...
    @property
    def dead_letters(self) -> Folder: ...
    @property
    def source(self) -> RecordSource: ...
    @property
    def snapshot(self) -> Snapshot | None: ...


@dataclass(slots=True)
class Clock:
    """Adds up where the time goes."""

    seconds: dict[str, float]
    since: float = field(default_factory=time.perf_counter)

    def spent_on(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] += now - self.since
        self.since = now


class RecordReader:
    """Reads the records of a task; a context manager.

    Attributes:
        bytes_read: of batches as stored by the broker.
        epochs_of: for each partition the leader epochs that were read.
    """

    def __init__(self, task: ReadsRecords, with_headers: bool, clock: Clock) -> None:
        self.bytes_read = 0
        self.epochs_of: dict[int, list[EpochEnd]] = {}
        self._task = task
        self._with_headers = with_headers
        self._clock = clock
        self._exits = ExitStack()
        self._topic: TopicReader | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def blocks(self, part: OffsetRange) -> Iterator[pa.RecordBatch]:
        """The records of a range: blocks as `decode` makes them, each used before the next is taken."""
        match self._task.source:
            case RecordSource.TOPIC:
                yield from self._of_topic(part)
            case RecordSource.MISSING:
                yield from self._missing(part)
            case RecordSource.DEAD_LETTERS:
                yield from self._dead_letters(part)

    def _of_topic(self, part: OffsetRange) -> Iterator[pa.RecordBatch]:
        task = self._task
        if self._topic is None:
            self._topic = self._exits.enter_context(
                TopicReader(task.brokers, task.topic, task.isolation, task.topic_id)
            )
        epochs: dict[int, int] = {}
        for fetched in read_range(
            self._topic, part.partition, part.start, part.end, task.fetch_bytes, self._with_headers
        ):
            self.bytes_read += fetched.size_bytes
            self._clock.spent_on("fetch")
            for block in fetched.records.blocks:
                self._clock.spent_on("decode")
                yield block
            epochs |= {ended.epoch: ended.end_offset for ended in fetched.records.epochs}
            self._clock.spent_on("decode")
        self.epochs_of.setdefault(part.partition, []).extend(
            EpochEnd(epoch, end_offset) for epoch, end_offset in epochs.items()
        )

    def _missing(self, part: OffsetRange) -> Iterator[pa.RecordBatch]:
        from mainstem_loader.table import contents

        task, snapshot = self._task, self._task.snapshot
        assert snapshot is not None
        present = contents.offsets_of_rows(
            task.table, contents.snapshot(task.table, snapshot.table), task.topic_id, part
        )
        if snapshot.dead_letters is not None:
            letters = contents.snapshot(task.dead_letters, snapshot.dead_letters)
            dead = contents.offsets_of_letters(
                task.dead_letters, letters, task.table_name, task.topic_id, part
            )
            present = np.union1d(present, dead)
        self._clock.spent_on("fetch")
        for span in missing_spans(present, part, JOIN_WITHIN_OFFSETS):
            for block in self._of_topic(span):
                missing = ~np.isin(block.column("offset").to_numpy(), present)
                if missing.all():
                    yield block
                elif missing.any():
                    yield block.take(of_numbers(np.flatnonzero(missing)))

    def _dead_letters(self, part: OffsetRange) -> Iterator[pa.RecordBatch]:
        from mainstem_loader.table import contents

        task, snapshot = self._task, self._task.snapshot
        assert snapshot is not None and snapshot.dead_letters is not None
        # A dead letter whose record is a row already is none any more.
        table = contents.snapshot(task.table, snapshot.table)
        loaded = contents.offsets_of_rows(task.table, table, task.topic_id, part)
        letters = contents.snapshot(task.dead_letters, snapshot.dead_letters)
        seen = np.empty(0, np.int64)
        for rows in contents.letter_blocks(task.dead_letters, letters, task.table_name, task.topic_id, part):
            offsets = rows.column(OFFSET_COLUMN).to_numpy()
            _, first = np.unique(offsets, return_index=True)
            first = np.sort(first)
            chosen = first[~np.isin(offsets[first], loaded) & ~np.isin(offsets[first], seen)]
            seen = np.union1d(seen, offsets)
            if not len(chosen):
                continue
            records = rows.take(of_numbers(chosen)).combine_chunks()
            columns: dict[str, pa.Array[Any] | pa.ChunkedArray[Any]] = {
                "offset": records.column(OFFSET_COLUMN),
                "timestamp_ms": records.column("timestamp_ms"),
                "key": records.column(KEY_COLUMN),
                "value": records.column("value"),
            }
            # Also for a table without them: letters that stay keep theirs. Earlier versions kept none.
            columns["headers"] = (
                records.column(HEADERS_COLUMN).cast(HEADERS_TYPE)
                if HEADERS_COLUMN in records.column_names
                else pa.nulls(len(chosen), HEADERS_TYPE)
            )
            self._clock.spent_on("fetch")
            yield from pa.table(columns).to_batches()
