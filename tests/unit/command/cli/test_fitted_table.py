"""Tables at any width: no line is too long, no column and no value is lost."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from mainstem.cli.fitted_table import COLUMN_GAP, Column, ColumnWidths, FittedTable, fit_widths

WIDE_ROWS: list[dict[str, object]] = [
    {f"column_{number}": f"value-{row}-{number}" for number in range(12)} for row in range(3)
]
WIDE_COLUMNS = [Column(name, name) for name in WIDE_ROWS[0]]


def rendered(table: FittedTable, width: int, terminal: bool = True) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_rows_that_are_too_wide_become_records_with_every_column(width: int) -> None:
    lines = rendered(FittedTable("", WIDE_COLUMNS, WIDE_ROWS), width)
    text = "\n".join(lines)
    assert all(cell_len(line) <= width for line in lines)
    for row in WIDE_ROWS:
        for name, value in row.items():
            assert name in text
            assert str(value) in text


def test_records_are_numbered_and_a_total_is_named() -> None:
    lines = rendered(FittedTable("", WIDE_COLUMNS, WIDE_ROWS, total_row=True), 40)
    assert [line.split()[1] for line in lines if line.startswith("──")] == ["1", "2", "total"]


def test_long_text_is_folded_before_rows_become_records() -> None:
    row: dict[str, object] = {"name": "log.dirs", "value": "/a/long/path" * 8, "source": "its file"}
    columns = [Column("Setting", "name", whole=True), Column("Value", "value"), Column("From", "source")]
    lines = rendered(FittedTable("", columns, [row]), 80)
    assert lines[0].split() == ["Setting", "Value", "From"]
    assert all(cell_len(line) <= 80 for line in lines)
    assert "".join(line[10:].split()[0] for line in lines[2:]).startswith("/a/long/path")


def test_titles_are_broken_between_words_only() -> None:
    columns = [Column("Number of brokers", f"c{number}") for number in range(8)]
    rows: list[dict[str, object]] = [{f"c{number}": 1 for number in range(8)}]
    lines = rendered(FittedTable("", columns, rows), 80)
    assert {word for line in lines[:3] for word in line.split()} == {"Number", "of", "brokers"}
    assert all(cell_len(line) <= 80 for line in lines)


def test_in_a_pipe_each_row_is_one_line_without_decoration() -> None:
    lines = rendered(FittedTable("Title", WIDE_COLUMNS, WIDE_ROWS), 100_000, terminal=False)
    assert [line.split() for line in lines] == [
        list(WIDE_ROWS[0]),
        *([str(value) for value in row.values()] for row in WIDE_ROWS),
    ]


def test_without_rows_the_titles_are_shown() -> None:
    assert rendered(FittedTable("", WIDE_COLUMNS[:3], []), 80)[0].split() == list(WIDE_ROWS[0])[:3]


@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 60), st.integers(1, 60)).map(
            lambda widths: ColumnWidths(*sorted(widths, reverse=True))
        ),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 200),
)
def test_widths_fit_exactly_when_the_minimal_ones_do(columns: list[ColumnWidths], available: int) -> None:
    gaps = COLUMN_GAP * (len(columns) - 1)
    widths = fit_widths(columns, available)
    if widths is None:
        assert sum(column.minimal for column in columns) + gaps > available
        return
    assert sum(widths) + gaps <= available
    assert all(
        column.minimal <= width <= column.natural for column, width in zip(columns, widths, strict=True)
    )


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abcdef"), st.text(max_size=60) | st.integers() | st.none()),
        max_size=4,
    ),
    st.integers(20, 120),
)
def test_no_line_is_ever_longer_than_the_terminal(rows: list[dict[str, object]], width: int) -> None:
    columns = [Column(f"column {name}", name) for name in "abcdef"]
    assert all(cell_len(line) <= width for line in rendered(FittedTable("", columns, rows), width))
