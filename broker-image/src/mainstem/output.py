"""Everything the command shows: the only module that prints.

Results go to stdout, as tables for people or JSON for programs (`--output`). Messages, progress and errors
go to stderr, so that stdout can always be piped. Cells and messages are data, never markup.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, Final

import orjson
from rich import box
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

_PIPE_WIDTH: Final = 100_000  # a table that is read by a program is never cut to the width of a screen

Advance = Callable[[int], None]
ShowStage = Callable[[str, int, int], None]


def program_name() -> str:
    """How the person who runs this can run it again from here: by name, or by the path they used."""
    name = "mainstem"
    if shutil.which(name) is not None:
        return name
    path = Path(sys.argv[0])
    return str(path) if path.name == name else name


class OutputFormat(StrEnum):
    """How results are shown."""

    TABLE = "table"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title and the key of its value in each row."""

    title: str
    key: str
    separators: bool = True  # whether a large number is 1,234,567; not for years and ids
    whole: bool = False  # whether others are to be folded before this one, on a narrow terminal


class Output:
    """Where one command shows its results and messages."""

    def __init__(self, output_format: OutputFormat = OutputFormat.TABLE) -> None:
        self.json = output_format is OutputFormat.JSON
        self._out = _console(sys.stdout)
        self._messages = _console(sys.stderr)

    @property
    def for_a_person(self) -> bool:
        """Whether results go to a terminal, as tables."""
        return self._out.is_terminal and not self.json

    def result(self, value: object, *tables: RenderableType) -> None:
        """Show a result: `value` as JSON, or the same as tables."""
        if self.json:
            sys.stdout.write(json_text(value) + "\n")
            sys.stdout.flush()
            return
        for table in tables:
            self._out.print(table, markup=False, highlight=False)

    def say(self, text: str, style: str = "") -> None:
        """Tell a person something that is no result."""
        self._messages.print(Text(text, style=style), soft_wrap=True)

    def warn(self, text: str) -> None:
        self._messages.print(Text.assemble(("Note: ", "yellow"), text), soft_wrap=True)

    def problem(self, text: str) -> None:
        """Tell something that was looked for and is wrong."""
        self._messages.print(Text.assemble(("✗ ", "red"), text), soft_wrap=True)

    def done(self, text: str) -> None:
        """Tell that something asked for has been done."""
        self._messages.print(Text.assemble(("✓ ", "green"), text), soft_wrap=True)

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show a spinner meanwhile, on a terminal."""
        if not self._messages.is_terminal:
            yield
            return
        with self._messages.status(Text(text)):
            yield

    @contextmanager
    def progress(self, text: str, total: int | None, unit: str = "records") -> Iterator[Advance]:
        """Draw a bar meanwhile, on a terminal; the yielded function adds what has been done."""
        if not self._messages.is_terminal:
            yield lambda _count: None
            return
        counts: list[ProgressColumn] = [DownloadColumn() if unit == "bytes" else MofNCompleteColumn()]
        if total is None:
            counts = [TextColumn("{task.completed:,} " + unit)]
        time = TimeElapsedColumn() if total is None else TimeRemainingColumn()
        columns = [
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            *counts,
            time,
        ]
        with Progress(*columns, console=self._messages, transient=True) as bar:
            task = bar.add_task(text, total=total)

            def advance(count: int) -> None:
                bar.advance(task, count)

            yield advance

    @contextmanager
    def stages(self, text: str) -> Iterator[ShowStage]:
        """Draw what goes on, on a terminal; the yielded function is told: text, done, total (0: unknown)."""
        if not self._messages.is_terminal:
            yield lambda _text, _done, _total: None
            return
        text_column = TextColumn("{task.description}", markup=False)
        columns = [SpinnerColumn(), text_column, BarColumn(), TimeElapsedColumn()]
        with Progress(*columns, console=self._messages, transient=True) as bar:
            task = bar.add_task(text, total=None)

            def show(text: str, done: int, total: int) -> None:
                bar.update(task, description=text, completed=done, total=total or None)

            yield show


def print_line(text: str) -> None:
    """Show one line of text on stdout."""
    _console(sys.stdout).print(Text(text), soft_wrap=True)


def print_error(text: str) -> None:
    """Show the sentence that ends the command."""
    _console(sys.stderr).print(Text.assemble(("Error: ", "bold red"), text), soft_wrap=True)


def print_traceback() -> None:
    """Show where the current exception came from, for `--verbose`."""
    _console(sys.stderr).print_exception()


def stdout_bytes() -> BinaryIO:
    """Standard output for records, which are bytes and many; the caller flushes."""
    return sys.stdout.buffer


def drop_stdout() -> None:
    """Let what is still buffered for stdout vanish, after its reader has gone (`| head`)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def table(
    title: str, columns: Sequence[Column], rows: Sequence[Mapping[str, object]], total_row: bool = False
) -> Table:
    """A table of `rows`, numbers to the right and with thousands separators; the last may be a total."""
    terminal = sys.stdout.isatty()
    result = Table(
        title=Text(title, style="bold") if terminal and title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD if terminal else None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="bold cyan",
    )
    counted = rows[:-1] if total_row and len(rows) > 1 else rows
    for column in columns:
        numeric = all(
            isinstance(row[column.key], int | float | None) and not isinstance(row[column.key], bool)
            for row in counted
            if column.key in row
        )
        result.add_column(
            column.title,
            justify="right" if numeric and rows else "left",
            overflow="fold",
            no_wrap=column.whole,
        )
    for number, row in enumerate(rows, start=1):
        if total_row and number == len(rows) > 1:
            result.add_section()
        result.add_row(*(Text(cell(row.get(column.key, ""), column.separators)) for column in columns))
    return result


def facts(pairs: Mapping[str, object]) -> Table:
    """A list of names and values."""
    result = Table.grid(padding=(0, 2))
    result.add_column(style="cyan")
    result.add_column(overflow="fold")
    for name, value in pairs.items():
        result.add_row(Text(name), Text(cell(value)))
    return result


def cell(value: object, separators: bool = True) -> str:
    """One value as a person reads it; `separators` are those between thousands."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}" if separators else str(value)
        case float():
            return _float_text(value) if separators else repr(float(f"{value:.10g}"))
        case bytes():
            return printable(value.decode("utf-8", "backslashreplace"))
        case list() | tuple() | set() | frozenset():
            return ", ".join(str(item) for item in value) or "-"
        case _:
            return printable(str(value))


def size_text(size_bytes: int | None) -> str | None:
    """A number of bytes in the largest unit that it fills, units of a thousand."""
    if size_bytes is None:
        return None
    size, units = float(size_bytes), ["B", "KB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:,.0f} B" if units[0] == "B" else f"{size:,.1f} {units[0]}"


def _float_text(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.1f}"
    return f"{value:.3f}".rstrip("0").rstrip(".") if abs(value) >= 0.001 else f"{value:.3g}"


def printable(text: str) -> str:
    """`text` without characters that would steer a terminal."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def json_text(value: object) -> str:
    """`value` as indented JSON; what JSON has no form for (times, bytes, decimals) as text."""
    option = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    return orjson.dumps(value, default=_json_form, option=option).decode()


def _json_form(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _console(stream: object) -> Console:
    stderr = stream is sys.stderr
    terminal = sys.stderr.isatty() if stderr else sys.stdout.isatty()
    return Console(stderr=stderr, width=None if terminal else _PIPE_WIDTH, highlight=False)
