"""Reads all sides of an audit: the audit topic, the topic's log, and its table with its dead letters.

The log is read and decoded by the loader's code, a block of records at a time; a table is counted by SQL.
Must not live
here: what the counts mean (`verdicts`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.audit.counts import (
    AUDIT_TOPIC,
    WINDOW_MS,
    CountKey,
    ProducerCounts,
    combined,
    from_record,
)
from mainstem.audit.verdicts import LoadedCounts, Observations, StoredCounts
from mainstem_loader.columns import TableFormat, partition_column
from mainstem_loader.errors import TopicUnknownError
from mainstem_loader.kafka.batches import NO_TIMESTAMP_MS
from mainstem_loader.kafka.fetch import IsolationLevel, TopicReader
from mainstem_loader.kafka.leaders import BrokerSettings
from mainstem_loader.kafka.range_reader import read_range
from mainstem_loader.table.commits import WarehouseTable
from mainstem_loader.table.dead_letters import DEAD_LETTER_TABLE
from mainstem_loader.table.iceberg_catalog import IcebergCatalog
from mainstem_loader.table.query import iceberg_tables, query, tables

FETCH_BYTES: Final = 16 * 1024 * 1024

# For DataFusion and for DuckDB.
_MICROSECONDS_OF_ROW: Final = {
    TableFormat.DELTA: 'cast("_timestamp" as bigint)',
    TableFormat.ICEBERG: 'epoch_us("_timestamp")',
}


def observe(
    brokers: BrokerSettings,
    topic: str,
    warehouse: str | None,
    table_name: str,
    catalog: IcebergCatalog | None = None,
    dead_letter_table: str = DEAD_LETTER_TABLE,
    is_compacted: bool = False,
) -> Observations:
    """Read all sides of one topic.

    Args:
        brokers: where they are, and how to log in.
        topic: its name.
        warehouse: where the table is; None to compare producers and log only.
        table_name: of the table; it may not exist.
        catalog: of the table, if it is an Iceberg table.
        dead_letter_table: where its loads put what cannot be loaded.
        is_compacted: whether the topic's cleanup.policy has `compact`.

    Raises:
        LoaderError: brokers or table cannot be read.
    """
    # Producers first, then the log, then the table: a record that is sent meanwhile is then found further on,
    # and is never reported as missing.
    produced = _produced(brokers)
    table: WarehouseTable | None = None
    if warehouse is not None:
        table = WarehouseTable(warehouse, table_name, dead_letter_table, catalog)
        table = table if table.exists else None
    if table is not None:
        # A load that was killed after its commit has dead letters that are in no table yet.
        table.deliver_dead_letters()
    with (
        TopicReader(brokers, topic, IsolationLevel.READ_COMMITTED) as reader,
        TopicReader(brokers, topic, IsolationLevel.READ_UNCOMMITTED) as uncommitted_reader,
    ):
        settled_of = {}
        has_rows_of_transform = table is not None and table.is_transformed(reader.topic_id)
        if has_rows_of_transform:
            table = None  # Its rows are not records, so there is nothing to compare.
        if table is not None:
            settled_of = {part: table.committed(reader.topic_id, part) or 0 for part in reader.offsets()}
        stored: dict[int, StoredCounts] = {}
        expired_before_ms: int | None = None
        high_watermarks = uncommitted_reader.high_watermarks()
        bounds = reader.offsets()
        for partition, (earliest, latest) in bounds.items():
            of_partition: dict[int, StoredCounts] = {}
            found = _count_partition(
                reader, partition, earliest, latest, settled_of.get(partition, latest), of_partition
            )
            end = high_watermarks.get(partition, latest)
            if found.has_aborted or latest < end:
                every: dict[int, StoredCounts] = {}
                _count_partition(uncommitted_reader, partition, earliest, end, earliest, every)
                _add_uncommitted(of_partition, every)
            for window_ms, counts in of_partition.items():
                stored[window_ms] = counts.plus(stored.get(window_ms, StoredCounts()))
            if earliest and found.first_ms is not None:
                # Records came out of order, and those before the first that remains were as late as others.
                late_ms = max((counts.lateness_ms_max for counts in of_partition.values()), default=0)
                expired_before_ms = max(expired_before_ms or 0, found.first_ms + late_ms)
        loaded: Mapping[int, LoadedCounts] = {}
        if table is not None and warehouse is not None:
            starts = {partition: earliest for partition, (earliest, _) in bounds.items()}
            loaded = _loaded(
                warehouse, table, reader.topic_id, settled_of, starts, catalog, dead_letter_table
            )
    return Observations(
        produced=produced,
        stored=stored,
        loaded=loaded,
        expired_before_ms=expired_before_ms,
        has_table=table is not None,
        has_rows_of_transform=has_rows_of_transform,
        is_compacted=is_compacted,
        read_ms=int(time.time() * 1000),
    )


def _produced(brokers: BrokerSettings) -> dict[CountKey, ProducerCounts]:
    posts: list[tuple[CountKey, ProducerCounts]] = []
    try:
        with TopicReader(brokers, AUDIT_TOPIC) as reader:
            for partition, (earliest, latest) in reader.offsets().items():
                for block in _blocks(reader, partition, earliest, latest):
                    keys, values = block.column("key").to_pylist(), block.column("value").to_pylist()
                    counts = map(from_record, keys, values)
                    posts += [post for post in counts if post is not None]
    except TopicUnknownError:
        return {}  # No producer is audited.
    return combined(posts)


def _blocks(reader: TopicReader, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
    for part in read_range(reader, partition, start, end, FETCH_BYTES):
        yield from part.records.blocks


@dataclass(frozen=True, slots=True)
class _PartitionRead:
    """The timestamp of the first record; None if there is none. Whether aborted records were left out."""

    first_ms: int | None
    has_aborted: bool


def _add_uncommitted(committed: dict[int, StoredCounts], every: Mapping[int, StoredCounts]) -> None:
    """Note which records of a partition readers of committed records do not get."""
    for window_ms, counts in every.items():
        known = committed.get(window_ms, StoredCounts())
        if counts.stored > known.stored:
            committed[window_ms] = replace(known, uncommitted=counts.stored - known.stored)


def _count_partition(
    reader: TopicReader,
    partition: int,
    start: int,
    end: int,
    settled: int,
    stored: dict[int, StoredCounts],
) -> _PartitionRead:
    """Add the records of a partition to `stored`; those without a timestamp are in no window."""
    newest_ms = first_ms = -1
    has_aborted = False

    def blocks() -> Iterator[pa.RecordBatch]:
        nonlocal has_aborted
        for part in read_range(reader, partition, start, end, FETCH_BYTES):
            has_aborted = has_aborted or part.has_aborted
            for block in part.records.blocks:
                timed = block.filter(pc.not_equal(block.column("timestamp_ms"), pa.scalar(NO_TIMESTAMP_MS)))
                if timed.num_rows:
                    yield timed

    for block in blocks():
        times_ms = block.column("timestamp_ms").to_numpy()
        if first_ms < 0:
            first_ms = int(times_ms[0])
        newest = np.maximum.accumulate(np.concatenate(([newest_ms], times_ms)))
        newest_ms = int(newest[-1])
        behind_ms = newest[:-1] - times_ms
        windows = times_ms // WINDOW_MS
        is_late = newest[:-1] // WINDOW_MS > windows
        is_settled = block.column("offset").to_numpy() < settled
        window_starts, place = np.unique(windows, return_inverse=True)
        counts, settled_counts, late_counts = (
            np.bincount(place, weights=weights, minlength=len(window_starts))
            for weights in (None, is_settled, is_late)
        )
        lateness_ms = np.zeros(len(window_starts), np.int64)
        np.maximum.at(lateness_ms, place[is_late], behind_ms[is_late])
        for number, window in enumerate(window_starts.tolist()):
            counted = StoredCounts(
                int(counts[number]),
                int(settled_counts[number]),
                int(late_counts[number]),
                int(lateness_ms[number]),
            )
            window_ms = window * WINDOW_MS
            stored[window_ms] = counted.plus(stored.get(window_ms, StoredCounts()))
    return _PartitionRead(None if first_ms < 0 else first_ms, has_aborted)


def _loaded(
    warehouse: str,
    table: WarehouseTable,
    topic_id: str,
    settled_of: Mapping[int, int],
    starts: Mapping[int, int],
    catalog: IcebergCatalog | None,
    dead_letter_table: str,
) -> dict[int, LoadedCounts]:
    """The rows and dead letters of the topic, by window, up to the offsets `settled_of`: a load that commits
    while the log is read adds rows beyond them. Those below `starts` are no longer in the log. Rows without a
    timestamp, which earlier versions of the loader have with that of -1 ms, are in no window.
    """
    name = table.name
    if catalog is not None and name not in iceberg_tables(warehouse, catalog):
        name = f"{catalog.namespace}.{name}"  # A Delta table has the name, too.
    time_us = _MICROSECONDS_OF_ROW[table.format]
    partition_name = partition_column(table.format)
    of_rows = _of_topic(partition_name, topic_id, settled_of)
    rows = _counts(
        warehouse,
        f"select {_window(time_us, WINDOW_MS * 1000)} w, count(*) n, {_expired(partition_name, starts)} x"
        f' from "{_quoted(name, chr(34))}"'
        f" where {of_rows} and {time_us} <> {NO_TIMESTAMP_MS * 1000} group by 1",
        catalog,
    )
    dead: dict[int, tuple[int, int]] = {}
    if dead_letter_table in tables(warehouse):
        of_table = f"table_name = '{_quoted(table.unique_name, chr(39))}'"
        partition_name = partition_column(TableFormat.DELTA)
        of_letters = _of_topic(partition_name, topic_id, settled_of)
        dead = _counts(
            warehouse,
            f"select {_window('timestamp_ms', WINDOW_MS)} w, count(*) n, {_expired(partition_name, starts)} x"
            f' from "{_quoted(dead_letter_table, chr(34))}" where {of_letters} and {of_table}'
            f" and timestamp_ms <> {NO_TIMESTAMP_MS} group by 1",
            None,
        )
    counts: dict[int, LoadedCounts] = {}
    for window_ms in {*rows, *dead}:
        (loaded, expired), (rejected, expired_dead) = (of.get(window_ms, (0, 0)) for of in (rows, dead))
        counts[window_ms] = LoadedCounts(loaded, rejected, expired + expired_dead)
    return counts


def _window(time: str, length: int) -> str:
    """The window of a time; integers or not, as engines differ in what a division of them is."""
    return f"cast(({time} - {time} % {length}) / {length} as bigint)"


def _expired(partition_name: str, starts: Mapping[int, int]) -> str:
    """How many of the rows are below the log's start offsets."""
    below = " or ".join(
        f'("{partition_name}" = {partition} and "_offset" < {start})' for partition, start in starts.items()
    )
    return f"sum(case when {below or 'false'} then 1 else 0 end)"


def _of_topic(partition_name: str, topic_id: str, settled_of: Mapping[int, int]) -> str:
    settled = " or ".join(
        f'("{partition_name}" = {partition} and "_offset" < {offset})'
        for partition, offset in settled_of.items()
    )
    return f"\"_topic_id\" = '{_quoted(topic_id, chr(39))}' and ({settled or 'false'})"


def _quoted(text: str, quote: str) -> str:
    return text.replace(quote, 2 * quote)


def _counts(warehouse: str, sql: str, catalog: IcebergCatalog | None) -> dict[int, tuple[int, int]]:
    answer: list[dict[str, Any]] = query(warehouse, sql, catalog).to_pylist()
    return {int(row["w"]) * WINDOW_MS: (int(row["n"]), int(row["x"])) for row in answer}
