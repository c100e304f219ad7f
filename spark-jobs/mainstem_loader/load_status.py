"""How far a table has loaded a topic: what the table says, beside what the brokers say. Changes nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from mainstem_loader.kafka.fetch import IsolationLevel, TopicReader
from mainstem_loader.kafka.leaders import BrokerSettings
from mainstem_loader.kafka.range_reader import oldest_time_ms
from mainstem_loader.ranges import OffsetRange
from mainstem_loader.settings import LoadSettings
from mainstem_loader.table import contents
from mainstem_loader.table.commits import WarehouseTable
from mainstem_loader.table.delta import open_table

_OFFSET_MAX: Final = 2**63 - 1
_LOAD: Final = "load"


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition.

    Attributes:
        loaded_up_to: the next offset to load; None before the first load.
        log_start, log_end: of what may be read, `log_end` exclusive.
        lag: offsets that are still to be loaded, which may be more than records.
        behind_ms: the age of the oldest record still to be loaded, by its timestamp; 0 if there is none, None
            if its time is not known.
        dead_letters: of this topic and table.
        waiting: how many of `lag` may not be read yet, because a transaction is open (KIP-98). They are from
            `log_end` up to the high watermark.
    """

    partition: int
    loaded_up_to: int | None
    log_start: int
    log_end: int
    lag: int
    behind_ms: int | None
    dead_letters: int
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class LastRun:
    """The newest commit of this topic in the table's log. `kind` is "load" or that of a rewrite."""

    run_id: str
    kind: str
    committed_ms: int
    loaded: int
    dead: int


@dataclass(frozen=True, slots=True)
class LoadStatus:
    """A topic and its table. `last_run` is None if none of the recent commits is of the topic."""

    topic: str
    topic_id: str
    table: str
    partitions: tuple[PartitionStatus, ...]
    last_run: LastRun | None


def load_status(settings: LoadSettings, now_ms: int | None = None) -> LoadStatus:
    """Ask the brokers and the table.

    Args:
        settings: as for a load.
        now_ms: in milliseconds since 1970; the clock's by default.

    Raises:
        LoaderError: a broker or the table cannot be read.
    """
    settings.check()
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    table = WarehouseTable(
        settings.warehouse, settings.table or settings.topic, settings.dead_letter_table, settings.catalog
    )
    brokers = BrokerSettings(
        settings.bootstrap_servers,
        retry_ms=settings.retry_ms,
        client_properties=settings.client_properties,
    )
    with (
        TopicReader(brokers, settings.topic, settings.isolation) as reader,
        # A reader of committed records gets nothing where an open transaction begins.
        TopicReader(brokers, settings.topic, IsolationLevel.READ_UNCOMMITTED) as uncommitted,
    ):
        # The high watermarks first: records that arrive in between wait for no transaction.
        high_watermarks = uncommitted.high_watermarks()
        bounds = reader.offsets()
        topic_id = reader.topic_id
        dead_of = _dead_letters(table, topic_id, list(bounds))
        partitions = []
        for partition, (earliest, latest) in sorted(bounds.items()):
            committed = table.committed(topic_id, partition)
            position = max(committed or 0, earliest)
            end = max(latest, high_watermarks.get(partition, 0))
            behind_ms: int | None = 0
            if position < end:
                oldest_ms = oldest_time_ms(uncommitted, partition, position)
                behind_ms = None if oldest_ms is None else max(now_ms - oldest_ms, 0)
            partitions.append(
                PartitionStatus(
                    partition=partition,
                    loaded_up_to=committed,
                    log_start=earliest,
                    log_end=latest,
                    lag=max(end - position, 0),
                    behind_ms=behind_ms,
                    dead_letters=dead_of.get(partition, 0),
                    waiting=max(end - max(latest, position), 0),
                )
            )
    return LoadStatus(settings.topic, topic_id, table.name, tuple(partitions), _last_run(table, topic_id))


def _dead_letters(table: WarehouseTable, topic_id: str, partitions: list[int]) -> dict[int, int]:
    letters = open_table(table.dead_letter_folder)
    if letters is None:
        return {}
    every = [OffsetRange(partition, 0, _OFFSET_MAX) for partition in partitions]
    found = contents.letter_ranges(table.dead_letter_folder, letters, table.unique_name, topic_id, every)
    return {part.partition: count for part, count in found.items()}


def _last_run(table: WarehouseTable, topic_id: str) -> LastRun | None:
    for recorded in table.last_runs():
        run = recorded.run
        if run.get("topicId") != topic_id:
            continue
        ranges = run.get("ranges", ())
        return LastRun(
            run_id=run["run"],
            kind=run.get("kind", _LOAD),
            committed_ms=recorded.committed_ms,
            loaded=run["loaded"] if "kind" in run else sum(part["loaded"] for part in ranges),
            dead=run["dead"] if "kind" in run else sum(part["dead"] for part in ranges),
        )
    return None
