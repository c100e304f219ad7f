"""Filters of a query that narrow what is read: on topic, partition, offset and timestamp. Pure but for
PySpark's names of filters.

A filter on a timestamp can only move the beginning of a read: brokers find the first record that is as new,
and later records may be older.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from mainstem_loader.spark.source.offsets import AtTime, Positions, Split, TopicsNow

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_OFFSET_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Pruning:
    """What of a topic can match: None for all topics, partitions or times. Offsets are from `offset_min` to
    `offset_max`, inclusive.
    """

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset_min: int = 0
    offset_max: int = _OFFSET_MAX
    timestamp_ms_min: int | None = None

    def since(self) -> Positions:
        """The time that brokers must look up, as positions."""
        return Positions(
            None if self.timestamp_ms_min is None else AtTime(self.timestamp_ms_min, or_latest=True)
        )

    def prune(self, splits: Sequence[Split], now: TopicsNow) -> list[Split]:
        """What of `splits` can match.

        Args:
            splits: of a batch.
            now: with the offsets at `timestamp_ms_min`; not read where that is None.
        """
        pruned: list[Split] = []
        for split in splits:
            if self.topics is not None and split.topic not in self.topics:
                continue
            if self.partitions is not None and split.partition not in self.partitions:
                continue
            start, end = max(split.start, self.offset_min), min(split.end, self.offset_max + 1)
            if self.timestamp_ms_min is not None:
                first = now[split.topic].offset_at[self.timestamp_ms_min].get(split.partition)
                start = end if first is None else max(start, first)
            if start < end:
                pruned.append(replace(split, start=start, end=end))
        return pruned


def pruning_of(filters: Sequence[Any]) -> Pruning:
    """What all of PySpark's filters together leave; a filter that says nothing here leaves everything."""
    pruning = Pruning()
    for one in filters:
        pruning = _narrow(
            pruning, type(one).__name__, getattr(one, "attribute", ()), getattr(one, "value", None)
        )
    return pruning


def _narrow(pruning: Pruning, kind: str, attribute: tuple[str, ...], value: Any) -> Pruning:
    match attribute, kind:
        case ("topic",), "EqualTo" | "EqualNullSafe" | "In":
            topics = frozenset(value if kind == "In" else (value,))
            return replace(pruning, topics=topics if pruning.topics is None else topics & pruning.topics)
        case ("partition",), "EqualTo" | "EqualNullSafe" | "In":
            numbers = frozenset(value if kind == "In" else (value,))
            return replace(
                pruning, partitions=numbers if pruning.partitions is None else numbers & pruning.partitions
            )
        case ("offset",), "EqualTo" | "EqualNullSafe" | "In":
            offsets = value if kind == "In" else (value,)
            if not offsets or None in offsets:
                return pruning
            return _offsets(pruning, min(offsets), max(offsets))
        case ("offset",), "GreaterThan":
            return _offsets(pruning, value + 1, _OFFSET_MAX)
        case ("offset",), "GreaterThanOrEqual":
            return _offsets(pruning, value, _OFFSET_MAX)
        case ("offset",), "LessThan":
            return _offsets(pruning, 0, value - 1)
        case ("offset",), "LessThanOrEqual":
            return _offsets(pruning, 0, value)
        case ("timestamp",), "GreaterThan" | "GreaterThanOrEqual" | "EqualTo" if isinstance(value, datetime):
            # Naive values of PySpark are in UTC; rounded down, because records have whole milliseconds.
            at_ms = (value.replace(tzinfo=value.tzinfo or UTC) - _EPOCH) // _MILLISECOND
            earlier_ms = pruning.timestamp_ms_min
            return replace(pruning, timestamp_ms_min=at_ms if earlier_ms is None else max(at_ms, earlier_ms))
        case _:
            return pruning


def _offsets(pruning: Pruning, lowest: int, highest: int) -> Pruning:
    return replace(
        pruning, offset_min=max(pruning.offset_min, lowest), offset_max=min(pruning.offset_max, highest)
    )
