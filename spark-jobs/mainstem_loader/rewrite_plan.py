"""What a rewrite decides before it reads: which offsets, which dead letters go, where a rewind ends.

It reads the topic's offsets and one snapshot of the table, and changes neither. A plan holds until another
rewrite commits (`RewritePlan.rewrites`); of a rewind the ends follow the snapshot (`as_of_snapshot`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from mainstem_loader.chosen_offsets import (
    Choice,
    ChosenOffsets,
    LoadedPartition,
    chosen_ranges,
    first_ranges,
    parts_within,
)
from mainstem_loader.columns import HEADERS_COLUMN
from mainstem_loader.errors import SettingsError
from mainstem_loader.kafka.fetch import TopicReader
from mainstem_loader.payload.rows import PayloadSettings
from mainstem_loader.ranges import OffsetRange
from mainstem_loader.settings import LoadSettings
from mainstem_loader.spark.record_sources import Snapshot
from mainstem_loader.table import contents
from mainstem_loader.table.commits import OffsetMove, WarehouseTable
from mainstem_loader.table.delta import open_table
from mainstem_loader.table.query import iceberg_tables
from mainstem_loader.task_runs import TaskRuns


class RewriteKind(StrEnum):
    """What is done about the chosen offsets."""

    APPEND_MISSING = "append missing"
    REPLACE = "replace"
    REWIND = "rewind"
    REPLAY_DEAD = "replay dead letters"


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """What a rewrite decides before it reads.

    Attributes:
        choice: what is read, or rewound.
        settled: offsets whose dead letters go.
        moves: of a rewind, as of one snapshot.
        rewrites: the table's counter.
        snapshot: which the tasks see.
    """

    topic_id: str
    choice: Choice
    settled: tuple[OffsetRange, ...]
    moves: tuple[OffsetMove, ...]
    rewrites: int
    snapshot: Snapshot
    payload: PayloadSettings


def plan_rewrite(
    kind: RewriteKind, settings: LoadSettings, chosen: ChosenOffsets, runs: TaskRuns
) -> RewritePlan:
    """Decide what a rewrite of the table's snapshot reads. Dead letters that wait must have been delivered.

    Raises:
        SettingsError: the table, the topic or the settings do not allow it; the message says why.
    """
    table = runs.table
    with TopicReader(runs.brokers, settings.topic, settings.isolation) as reader:
        bounds = reader.offsets()
        topic_id = reader.topic_id
        offset_at = {time_ms: reader.offsets_at(time_ms) for time_ms in sorted(chosen.times_ms)}
    loaded = {
        partition: LoadedPartition(earliest, committed)
        for partition, (earliest, _) in bounds.items()
        if (committed := table.committed(topic_id, partition)) is not None
    }
    if not table.exists and table.name in iceberg_tables(settings.warehouse):
        raise SettingsError(f"Table {table.name} is an Iceberg table; only Delta tables can be loaded again.")
    if not table.exists or not loaded:
        raise SettingsError(
            f"Table {table.name} has loaded nothing of topic {settings.topic} yet; load it first."
        )
    for partition, (_, latest) in bounds.items():
        if partition in loaded and loaded[partition].committed > latest:
            raise SettingsError(
                f"Partition {partition} of topic {settings.topic} ends at offset {latest}, but the table"
                f" has loaded it up to {loaded[partition].committed}: the topic was truncated or"
                " re-created, so its offsets are no longer those of the rows."
            )
    contents.check_rows_name_their_topic(table.folder, table.delta)
    if kind in (RewriteKind.REPLACE, RewriteKind.REWIND):
        contents.check_rows_may_be_removed(table.folder, table.delta)
    _check_transform(kind, settings, table, topic_id)
    letters = open_table(table.dead_letter_folder)
    if kind is RewriteKind.REPLAY_DEAD:
        # The bytes come from the dead letters, whatever the topic still has.
        loaded = {partition: replace(part, earliest=0) for partition, part in loaded.items()}
    rows_of_days = (
        contents.row_ranges_of_days(table.folder, table.delta, topic_id, chosen.days) if chosen.days else {}
    )
    choice = chosen_ranges(chosen, loaded, offset_at, rows_of_days)
    settled: tuple[OffsetRange, ...] = ()
    match kind:
        case RewriteKind.REPLACE:
            settled = choice.ranges
        case RewriteKind.REWIND:  # see `as_of_snapshot`
            choice = replace(choice, ranges=first_ranges(choice.ranges))
        case RewriteKind.REPLAY_DEAD:
            found = (
                {}
                if letters is None or not choice.ranges
                else contents.letter_ranges(
                    table.dead_letter_folder, letters, table.name, topic_id, choice.ranges
                )
            )
            choice = Choice(parts_within(choice.ranges, found))
            settled = choice.ranges
        case RewriteKind.APPEND_MISSING:
            pass
    plan = RewritePlan(
        topic_id=topic_id,
        choice=choice,
        settled=settled,
        moves=(),
        rewrites=table.rewrites,
        snapshot=Snapshot(table.delta.version(), None if letters is None else letters.version()),
        payload=_with_headers_of_table(runs.payload_settings(), table),
    )
    return as_of_snapshot(plan, table) if kind is RewriteKind.REWIND else plan


def as_of_snapshot(plan: RewritePlan, table: WarehouseTable) -> RewritePlan:
    """A rewind of the table's snapshot at hand: from the chosen starts to what is loaded there. Live loads
    move the ends, and no commit of a rewind can be made from a snapshot before theirs.
    """
    ranges = tuple(
        replace(part, end=table.committed(plan.topic_id, part.partition) or 0) for part in plan.choice.ranges
    )
    return replace(
        plan,
        choice=replace(plan.choice, ranges=ranges),
        settled=ranges,
        moves=tuple(OffsetMove(part.partition, part.end, part.start) for part in ranges),
    )


def _with_headers_of_table(payload: PayloadSettings, table: WarehouseTable) -> PayloadSettings:
    """The rows that come again have headers where the table does, whether the settings ask for them or not:
    the loads that brought them have kept theirs.
    """
    return replace(payload, with_headers=payload.with_headers or HEADERS_COLUMN in table.all_columns)


def _check_transform(kind: RewriteKind, settings: LoadSettings, table: WarehouseTable, topic_id: str) -> None:
    """Whether rows can be loaded again that went through a transform, or are to go through one."""
    is_transformed = table.is_transformed(topic_id)
    if is_transformed and kind in (RewriteKind.REPLACE, RewriteKind.REWIND):
        contents.check_rows_name_their_record(table.folder, table.delta, topic_id)
    if not is_transformed and settings.transform is None:
        return
    if kind is RewriteKind.APPEND_MISSING:
        raise SettingsError(
            f"Rows of table {table.name} come from a transform, which may leave records out, so which are"
            " missing cannot be known; replace the rows instead (--replace)."
        )
    if settings.transform is None and kind is not RewriteKind.REWIND:
        raise SettingsError(
            f"Table {table.name} was loaded through a transform; name it, so that the rows go through it"
            " again."
        )
