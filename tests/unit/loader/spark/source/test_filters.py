"""Filters that narrow what is read (R34)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from mainstem_loader.spark.source.filters import Pruning, pruning_of
from mainstem_loader.spark.source.offsets import AtTime, Positions, Split, TopicNow

SPLITS = [Split("t", "id", 0, 0, 100), Split("t", "id", 1, 50, 80), Split("u", "ud", 0, 0, 10)]


def pruned(*filters: Any) -> list[tuple[str, int, int, int]]:
    return [
        (split.topic, split.partition, split.start, split.end)
        for split in pruning_of(filters).prune(SPLITS, {})
    ]


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ([], [("t", 0, 0, 100), ("t", 1, 50, 80), ("u", 0, 0, 10)]),
        ([EqualTo(("partition",), 1)], [("t", 1, 50, 80)]),
        ([In(("partition",), (1, 2)), EqualTo(("topic",), "u")], []),
        ([In(("topic",), ("u", "v"))], [("u", 0, 0, 10)]),
        ([GreaterThan(("offset",), 60)], [("t", 0, 61, 100), ("t", 1, 61, 80)]),
        (
            [GreaterThanOrEqual(("offset",), 60), LessThanOrEqual(("offset",), 60)],
            [("t", 0, 60, 61), ("t", 1, 60, 61)],
        ),
        ([LessThan(("offset",), 10)], [("t", 0, 0, 10), ("u", 0, 0, 10)]),
        ([In(("offset",), (5, 9))], [("t", 0, 5, 10), ("u", 0, 5, 10)]),
        ([EqualTo(("partition",), None)], []),
        (
            [Not(EqualTo(("partition",), 1)), IsNotNull(("offset",)), EqualTo(("value", "offset"), 3)],
            [("t", 0, 0, 100), ("t", 1, 50, 80), ("u", 0, 0, 10)],
        ),
    ],
)
def test_filters_leave_only_offsets_that_can_match(
    filters: list[Any], left: list[tuple[str, int, int, int]]
) -> None:
    assert pruned(*filters) == left


def test_a_time_moves_the_beginning_and_never_the_end() -> None:
    """Later records may have earlier timestamps."""
    time = datetime(2013, 1, 1, 0, 0, 0, 1500, UTC)
    pruning = pruning_of([GreaterThanOrEqual(("timestamp",), time), LessThan(("timestamp",), time)])
    assert pruning == Pruning(timestamp_ms_min=1_356_998_400_001)
    assert pruning.since() == Positions(AtTime(1_356_998_400_001, or_latest=True))
    now = {
        "t": TopicNow("id", {0: (0, 100), 1: (50, 80)}, {1_356_998_400_001: {0: 30, 1: None}}),
        "u": TopicNow("ud", {0: (0, 10)}, {1_356_998_400_001: {0: 0}}),
    }
    assert pruning.prune(SPLITS, now) == [Split("t", "id", 0, 30, 100), Split("u", "ud", 0, 0, 10)]
