"""Data directories fill up together (R8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from mainstem_broker.log.placement import LATEST_MAX, LogPlacement, Space, space_of

A, B, C = Path("/a"), Path("/b"), Path("/c")
GIB = 1024**3


def place(
    spaces: Mapping[Path, Space], count: int, log_counts: Mapping[Path, int] | None = None
) -> Counter[Path]:
    """How many of `count` new logs go to each directory."""
    placement = LogPlacement()
    counts = Counter(log_counts or {})
    placed = Counter[Path]()
    for _ in range(count):
        chosen = placement.choose_by(spaces, counts)
        placed[chosen] += 1
        counts[chosen] += 1
    return placed


def test_new_logs_are_spread_in_proportion_to_what_is_free() -> None:
    spaces = {A: Space(1, 100 * GIB), B: Space(2, 300 * GIB)}
    assert place(spaces, 40) == {A: 10, B: 30}


@pytest.mark.parametrize("count", [3000, 10 * LATEST_MAX])
def test_thousands_at_once_are_spread_too(count: int) -> None:
    spaces = {A: Space(1, 100 * GIB), B: Space(2, 100 * GIB), C: Space(3, 200 * GIB)}
    placed = place(spaces, count)
    assert placed[C] == pytest.approx(count / 2, rel=0.02)
    assert placed[A] == pytest.approx(count / 4, rel=0.02)


def test_a_full_disk_gets_none_though_it_has_the_fewest_logs() -> None:
    spaces = {A: Space(1, 0), B: Space(2, 50 * GIB)}
    assert place(spaces, 100, {A: 1, B: 500}) == {B: 100}


def test_of_directories_on_one_file_system_the_one_with_the_fewest_logs_is_chosen() -> None:
    spaces = {A: Space(1, 100 * GIB), B: Space(1, 100 * GIB - 1), C: Space(1, 100 * GIB + 1)}
    assert place(spaces, 7, {A: 3, B: 0, C: 1}) == {A: 1, B: 4, C: 2}


def test_where_as_much_is_free_the_number_of_logs_decides() -> None:
    spaces = {A: Space(1, GIB), B: Space(2, GIB)}
    assert place(spaces, 1, {A: 5, B: 2}) == {B: 1}


def test_what_has_been_placed_long_ago_counts_no_more() -> None:
    placement = LogPlacement()
    for _ in range(20 * LATEST_MAX):
        placement.choose_by({A: Space(1, GIB), B: Space(2, GIB)}, Counter())
    placed = Counter(
        placement.choose_by({A: Space(1, GIB), B: Space(2, 9 * GIB)}, Counter()) for _ in range(1000)
    )
    assert placed[B] == pytest.approx(900, abs=LATEST_MAX / 2)


def test_the_space_of_a_directory_is_that_of_its_file_system(tmp_path: Path) -> None:
    space = space_of(tmp_path)
    assert space.device == tmp_path.stat().st_dev
    assert space.free_bytes > 0
    assert space_of(tmp_path / "none") == Space(-1, 0)
