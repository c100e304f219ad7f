"""Which offsets of a topic are loaded again: a pure choice, made before anything is read.

Only offsets that the table has loaded before can be chosen, so a choice never meets a load of new records.
What the topic no longer has cannot be read again, and its rows stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from types import MappingProxyType
from typing import Final

import numpy as np

from mainstem_loader.arrow_arrays import Int64s
from mainstem_loader.errors import SettingsError
from mainstem_loader.ranges import OffsetRange

DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class ChosenOffsets:
    """What a person chooses; everything, if nothing is set. What is set more than once adds up.

    Attributes:
        ranges: offsets of partitions.
        days: days of events, as the table has them.
        since_ms, until_ms: times of records, in milliseconds since 1970, `until_ms` exclusive; None for no
            limit.
        partitions: only these; all, if empty.
    """

    ranges: tuple[OffsetRange, ...] = ()
    days: tuple[date, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    partitions: tuple[int, ...] = ()

    @property
    def times_ms(self) -> frozenset[int]:
        """The times whose offsets `chosen_ranges` needs to know."""
        of_days = {time_ms for day in self.days for time_ms in _bounds_of_day(day)}
        given = {time_ms for time_ms in (self.since_ms, self.until_ms) if time_ms is not None}
        return frozenset(of_days | given)

    def check(self) -> None:
        """Refuse a choice that contradicts itself.

        Raises:
            SettingsError: see there.
        """
        has_times = self.since_ms is not None or self.until_ms is not None
        if bool(self.ranges) + bool(self.days) + has_times > 1:
            raise SettingsError("Choose by days, by times or by offsets, not by several of them.")
        if self.since_ms is not None and self.until_ms is not None and self.since_ms >= self.until_ms:
            raise SettingsError("The chosen time ends before it begins; exchange its beginning and its end.")
        for part in self.ranges:
            if part.partition < 0 or not 0 <= part.start < part.end:
                raise SettingsError(
                    f"Offsets {part.start} to {part.end} of partition {part.partition} are no range; the end"
                    " is exclusive and lies behind the beginning."
                )


@dataclass(frozen=True, slots=True)
class LoadedPartition:
    """A partition of which something was loaded.

    Attributes:
        earliest: the log start offset.
        committed: the next offset to load.
    """

    earliest: int
    committed: int


@dataclass(frozen=True, slots=True)
class Choice:
    """The outcome: `ranges` can be loaded again, `expired` are no longer in the topic."""

    ranges: tuple[OffsetRange, ...]
    expired: tuple[OffsetRange, ...] = ()


def chosen_ranges(
    chosen: ChosenOffsets,
    partitions: Mapping[int, LoadedPartition],
    offset_at: Mapping[int, Mapping[int, int | None]],
    rows_of_days: Mapping[date, Iterable[OffsetRange]] = MappingProxyType({}),
) -> Choice:
    """The offsets that are chosen, in ranges that neither overlap nor touch, by partition and offset.

    A time chooses the offsets between the first record of that time or a later one, and the first one after
    its end. A day chooses the same of its times, and all offsets between those of its rows: records that came
    late are far from the others, and those between them are chosen, too.

    Args:
        chosen: see there.
        partitions: those that the table has loaded.
        offset_at: by time and partition, the first offset of that time or later; None for none.
        rows_of_days: of the chosen days, from the first to behind the last row in each partition.

    Raises:
        SettingsError: there is no such partition.
    """
    for partition in (*chosen.partitions, *(part.partition for part in chosen.ranges)):
        if partition not in partitions:
            raise SettingsError(
                f"Nothing of partition {partition} was loaded yet; choose among"
                f" {', '.join(map(str, sorted(partitions)))}."
            )
    ranges: list[OffsetRange] = []
    expired: list[OffsetRange] = []
    for partition, loaded in sorted(partitions.items()):
        if chosen.partitions and partition not in chosen.partitions:
            continue
        for first, end in _joined(_spans(chosen, partition, loaded, offset_at, rows_of_days)):
            start = min(max(first, loaded.earliest), end)
            if first < start:
                expired.append(OffsetRange(partition, first, start))
            if start < end:
                ranges.append(OffsetRange(partition, start, end))
    return Choice(tuple(ranges), tuple(expired))


def first_ranges(ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """The first range of each partition."""
    first: dict[int, OffsetRange] = {}
    for part in sorted(ranges):
        first.setdefault(part.partition, part)
    return tuple(first.values())


def parts_within(ranges: Iterable[OffsetRange], bounds: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """What of ranges lies within bounds, of which each partition has one or none."""
    bounds_of = {part.partition: part for part in bounds}
    inside = [
        OffsetRange(part.partition, max(part.start, bound.start), min(part.end, bound.end))
        for part in ranges
        if (bound := bounds_of.get(part.partition)) is not None
    ]
    return tuple(part for part in inside if part.start < part.end)


def _spans(
    chosen: ChosenOffsets,
    partition: int,
    loaded: LoadedPartition,
    offset_at: Mapping[int, Mapping[int, int | None]],
    rows_of_days: Mapping[date, Iterable[OffsetRange]],
) -> list[tuple[int, int]]:
    """What is chosen of a partition, from a first offset to behind a last one each, in any order."""

    def at(time_ms: int) -> int:
        offset = offset_at[time_ms].get(partition)
        return loaded.committed if offset is None else offset

    def loaded_of(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        bounded = ((start, min(end, loaded.committed)) for start, end in spans)
        return [(start, end) for start, end in bounded if start < end]

    if chosen.ranges:
        return loaded_of((part.start, part.end) for part in chosen.ranges if part.partition == partition)
    if chosen.days:
        spans: list[tuple[int, int]] = []
        for day in chosen.days:
            begin_ms, end_ms = _bounds_of_day(day)
            rows = [
                (part.start, part.end) for part in rows_of_days.get(day, ()) if part.partition == partition
            ]
            if of_day := loaded_of([(at(begin_ms), at(end_ms)), *rows]):
                spans.append((min(start for start, _ in of_day), max(end for _, end in of_day)))
        return spans
    start = 0 if chosen.since_ms is None else at(chosen.since_ms)
    return loaded_of([(start, loaded.committed if chosen.until_ms is None else at(chosen.until_ms))])


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same offsets in as few spans as possible, in order."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def _bounds_of_day(day: date) -> tuple[int, int]:
    begin_ms = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1000)
    return begin_ms, begin_ms + DAY_MS


def missing_spans(present: Int64s, part: OffsetRange, join_within: int) -> list[OffsetRange]:
    """The offsets of a range that are missing, in as few spans as is reasonable to read.

    Args:
        present: offsets of the range, in any order.
        part: the range.
        join_within: spans with at most so many present offsets between them become one.

    Returns:
        Spans in order; they hold present offsets, too, where spans were joined.
    """
    edges = np.concatenate(([part.start - 1], np.unique(present), [part.end]))
    before = np.flatnonzero(np.diff(edges) > 1)
    spans: list[OffsetRange] = []
    for start, end in zip((edges[before] + 1).tolist(), edges[before + 1].tolist(), strict=True):
        joins = bool(spans) and start - spans[-1].end <= join_within
        spans.append(OffsetRange(part.partition, spans.pop().start if joins else start, end))
    return spans


def divided(ranges: Sequence[OffsetRange], offsets_max: int) -> list[tuple[OffsetRange, ...]]:
    """Ranges cut into tasks of at most `offsets_max` offsets each, one range to a task."""
    return [
        (OffsetRange(part.partition, start, min(start + offsets_max, part.end)),)
        for part in ranges
        for start in range(part.start, part.end, offsets_max)
    ]
