"""Which offsets are loaded again: pure (R33)."""

from __future__ import annotations

from datetime import date
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mainstem_loader.chosen_offsets import (
    DAY_MS,
    Choice,
    ChosenOffsets,
    LoadedPartition,
    chosen_ranges,
    divided,
    missing_spans,
)
from mainstem_loader.ranges import OffsetRange

LOADED = {0: LoadedPartition(10, 100), 1: LoadedPartition(0, 50)}


def test_everything_is_what_was_loaded_and_is_still_there() -> None:
    assert chosen_ranges(ChosenOffsets(), LOADED, {}) == Choice(
        (OffsetRange(0, 10, 100), OffsetRange(1, 0, 50)), (OffsetRange(0, 0, 10),)
    )


def test_offsets_behind_what_was_loaded_are_left_to_live_loads() -> None:
    chosen = ChosenOffsets(ranges=(OffsetRange(1, 40, 60), OffsetRange(0, 100, 110)))
    assert chosen_ranges(chosen, LOADED, {}) == Choice((OffsetRange(1, 40, 50),))


def test_a_day_is_its_times_and_its_rows() -> None:
    day = date(1970, 1, 2)
    at: dict[int, dict[int, int | None]] = {DAY_MS: {0: 30, 1: None}, 2 * DAY_MS: {0: 40, 1: None}}
    chosen = ChosenOffsets(days=(day,))
    assert chosen.times_ms == {DAY_MS, 2 * DAY_MS}
    late = {day: (OffsetRange(0, 35, 71), OffsetRange(1, 7, 9))}
    assert chosen_ranges(chosen, LOADED, at, late) == Choice((OffsetRange(0, 30, 71), OffsetRange(1, 7, 9)))


def test_what_lies_between_chosen_days_is_not_chosen() -> None:
    days = date(1970, 1, 2), date(1970, 1, 4), date(1970, 1, 5)
    at: dict[int, dict[int, int | None]] = {
        number * DAY_MS: {0: 10 + 10 * number, 1: 0} for number in range(1, 6)
    }
    rows = {days[0]: (OffsetRange(0, 22, 25),), days[2]: (OffsetRange(0, 55, 65),)}
    assert chosen_ranges(ChosenOffsets(days=days, partitions=(0,)), LOADED, at, rows) == Choice(
        (OffsetRange(0, 20, 30), OffsetRange(0, 40, 65))
    )


def test_what_lies_between_chosen_offsets_is_not_chosen() -> None:
    chosen = ChosenOffsets(ranges=(OffsetRange(0, 39, 40), OffsetRange(0, 20, 30), OffsetRange(0, 0, 12)))
    assert chosen_ranges(chosen, LOADED, {}) == Choice(
        (OffsetRange(0, 10, 12), OffsetRange(0, 20, 30), OffsetRange(0, 39, 40)), (OffsetRange(0, 0, 10),)
    )


def test_chosen_offsets_that_overlap_or_touch_are_chosen_once() -> None:
    spans = ((20, 30), (25, 28), (30, 40), (38, 45), (46, 47))
    chosen = ChosenOffsets(ranges=tuple(OffsetRange(0, *span) for span in spans))
    assert chosen_ranges(chosen, LOADED, {}) == Choice((OffsetRange(0, 20, 45), OffsetRange(0, 46, 47)))


def test_times_that_no_record_reaches_end_with_what_was_loaded() -> None:
    chosen = ChosenOffsets(since_ms=5, until_ms=9, partitions=(0,))
    at: dict[int, dict[int, int | None]] = {5: {0: 20, 1: 0}, 9: {0: None, 1: 0}}
    assert chosen_ranges(chosen, LOADED, at) == Choice((OffsetRange(0, 20, 100),))


@given(st.sets(st.integers(5, 60)), st.integers(0, 10))
def test_spans_hold_all_that_is_missing_and_are_far_apart(present: set[int], join_within: int) -> None:
    part = OffsetRange(3, 5, 61)
    offsets = np.array(list(present), np.int64)
    spans = missing_spans(offsets, part, join_within)
    covered = {offset for span in spans for offset in range(span.start, span.end)}
    assert covered >= set(range(5, 61)) - present
    for span in spans:
        assert span.start not in present
        assert span.end - 1 not in present
    for one, other in pairwise(spans):
        assert other.start - one.end > join_within


def test_ranges_are_divided_into_tasks() -> None:
    assert divided([OffsetRange(0, 0, 5), OffsetRange(1, 7, 8)], 2) == [
        (OffsetRange(0, 0, 2),),
        (OffsetRange(0, 2, 4),),
        (OffsetRange(0, 4, 5),),
        (OffsetRange(1, 7, 8),),
    ]
