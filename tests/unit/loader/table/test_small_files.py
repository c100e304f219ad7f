"""Which days are worth a merge of their files."""

from __future__ import annotations

import pytest

from mainstem_loader.table.parquet_files import FileOfDay
from mainstem_loader.table.small_files import DayToMerge, days_to_merge, first_batch

KIB, MIB, GIB = 2**10, 2**20, 2**30


def files(day: str, *sizes_bytes: int) -> list[FileOfDay]:
    return [FileOfDay(f"day={day}/{n}", day, size, 10) for n, size in enumerate(sizes_bytes)]


@pytest.mark.parametrize(
    ("sizes_bytes", "is_merged"),
    [
        pytest.param([], False, id="no files"),
        pytest.param([KIB] * 3, False, id="few small files"),
        pytest.param([KIB] * 4, True, id="small files"),
        pytest.param([256 * MIB] * 50, False, id="large files"),
        pytest.param([256 * MIB] * 3 + [90 * MIB] * 4, True, id="a good part is small"),
        pytest.param([256 * MIB] * 3 + [KIB] * 99, False, id="late records beside large files"),
        pytest.param([256 * MIB] * 3 + [KIB] * 100, True, id="very many small files"),
    ],
)
def test_a_day_is_merged_where_that_pays(sizes_bytes: list[int], is_merged: bool) -> None:
    days = days_to_merge(files("2013-01-01", *sizes_bytes))
    expected = [DayToMerge("2013-01-01", len(sizes_bytes), sum(sizes_bytes), 10 * len(sizes_bytes))]
    assert days == (expected if is_merged else [])


def test_a_merge_of_many_small_files_leaves_nothing_to_merge() -> None:
    """Or each maintenance would write the same day again: 100 GiB become files of 256 MiB and a rest."""
    assert days_to_merge(files("2013-01-01", *[256 * MIB] * 400, 5 * MIB)) == []


def test_days_are_judged_each_by_itself_and_batches_are_bounded() -> None:
    every = [
        *files("2013-01-03", *[100 * MIB] * 45),
        *files("2013-01-01", *[KIB] * 5),
        *files("2013-01-02", KIB),
        *files("2013-01-04", *[100 * MIB] * 45),
    ]
    days = days_to_merge(every)
    assert [day.day for day in days] == ["2013-01-01", "2013-01-03", "2013-01-04"]
    assert [day.day for day in first_batch(days)] == ["2013-01-01", "2013-01-03"]
    assert first_batch(days[2:]) == days[2:]
    assert first_batch([]) == []


def test_a_day_larger_than_a_batch_is_a_batch_of_its_own() -> None:
    days = days_to_merge([*files("2013-01-01", *[100 * MIB] * 200), *files("2013-01-02", *[KIB] * 4)])
    assert [day.day for day in first_batch(days)] == ["2013-01-01"]
