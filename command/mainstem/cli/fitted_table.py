"""Tables that fit a terminal: narrowed where text can be folded, else shown as one record below the other.

Rich on its own narrows columns until words come one letter per line, and drops columns when that is not
enough. Here no column is lost and no value other than long text is broken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from mainstem.cli.values import cell
from mainstem.records.text import printable

COLUMN_GAP: Final = 2
FOLDED_WIDTH_MIN: Final = 28
"""A text column is never folded below this width; times and most names fit in it."""
_RULE_WIDTH_MAX: Final = 40


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title and the key of its value in each row."""

    title: str
    key: str
    separators: bool = True  # whether a large number is 1,234,567; not for years and ids
    whole: bool = False  # whether its values are never folded


@dataclass(frozen=True, slots=True)
class ColumnWidths:
    """The widths of a column: at its largest, with the title broken between words, and with text folded."""

    natural: int
    unfolded: int
    minimal: int


def fit_widths(columns: Sequence[ColumnWidths], available: int) -> list[int] | None:
    """The width of each column in a table of `available` characters; None if the columns do not fit.

    Titles are broken before values are folded. In both steps the widest column is narrowed first.
    """
    widths = [column.natural for column in columns]
    excess = sum(widths) + COLUMN_GAP * (len(columns) - 1) - available
    for limits in ([column.unfolded for column in columns], [column.minimal for column in columns]):
        while excess > 0:
            shrinkable = [n for n, limit in enumerate(limits) if widths[n] > limit]
            if not shrinkable:
                break
            widest = max(shrinkable, key=lambda n: widths[n])
            widths[widest] -= 1
            excess -= 1
    return None if excess > 0 else widths


class FittedTable:
    """Rows under column titles, rendered for the width of the console that prints them.

    Numbers are aligned to the right. The last row may be a total, which is set apart.
    """

    def __init__(
        self,
        title: str,
        columns: Sequence[Column],
        rows: Sequence[Mapping[str, object]],
        total_row: bool = False,
    ) -> None:
        self._title = title
        self._columns = columns
        self._titles = [printable(column.title) for column in columns]
        self._numeric = [bool(rows) and _is_numeric(column.key, rows, total_row) for column in columns]
        self._cells = [
            [cell(row.get(column.key, ""), column.separators) for column in columns] for row in rows
        ]
        self._has_total = total_row and len(rows) > 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._title and console.is_terminal:
            yield Text(self._title, style="bold")
        widths = fit_widths([self._widths(n) for n in range(len(self._columns))], options.max_width)
        if widths is not None or not self._cells:
            yield self._table(widths, console.is_terminal)
        else:
            yield from self._records(options.max_width)

    def _widths(self, number: int) -> ColumnWidths:
        column = self._columns[number]
        title = cell_len(self._titles[number])
        title_minimal = max(map(cell_len, self._titles[number].split()), default=0)
        widest = max((cell_len(row[number]) for row in self._cells), default=0)
        foldable = not (column.whole or self._numeric[number])
        return ColumnWidths(
            natural=max(title, widest, 1),
            unfolded=max(title_minimal, widest, 1),
            minimal=max(title_minimal, min(widest, FOLDED_WIDTH_MIN) if foldable else widest, 1),
        )

    def _table(self, widths: Sequence[int] | None, terminal: bool) -> Table:
        result = Table(
            box=box.SIMPLE_HEAD if terminal else None,
            show_edge=False,
            pad_edge=False,
            # The box itself takes one character between two columns.
            padding=(0, COLUMN_GAP - 1 if terminal else COLUMN_GAP, 0, 0),
            header_style="bold cyan",
        )
        for number in range(len(self._columns)):
            result.add_column(
                Text(self._titles[number]),
                justify="right" if self._numeric[number] else "left",
                overflow="fold",
                width=None if widths is None else widths[number],
            )
        for number, row in enumerate(self._cells, start=1):
            if self._has_total and number == len(self._cells):
                result.add_section()
            result.add_row(*map(Text, row))
        return result

    def _records(self, width: int) -> Iterator[Table | Text]:
        titles_width = min(max(map(cell_len, self._titles)), width // 2)
        for number, row in enumerate(self._cells, start=1):
            is_total = self._has_total and number == len(self._cells)
            heading = f"── {'total' if is_total else number} "
            yield Text(heading.ljust(min(width, _RULE_WIDTH_MAX), "─"), style="dim")
            record = Table.grid(padding=(0, COLUMN_GAP, 0, 0))
            record.add_column(style="cyan", overflow="fold", width=titles_width)
            record.add_column(overflow="fold")
            for title, value in zip(self._titles, row, strict=True):
                record.add_row(Text(title), Text(value))
            yield record


def _is_numeric(key: str, rows: Sequence[Mapping[str, object]], total_row: bool) -> bool:
    counted = rows[:-1] if total_row and len(rows) > 1 else rows
    return all(
        isinstance(row[key], int | float | None) and not isinstance(row[key], bool)
        for row in counted
        if key in row
    )
