"""Everything that the command prints.

Results go to stdout, as tables for people or JSON for programs (`--output`). Messages, progress and errors
go to stderr, so that stdout can always be piped. Cells and messages are data, never markup. On a terminal
no line is longer than the terminal is wide; in a pipe no line is broken.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, Final

import orjson
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

from mainstem.cli.fitted_table import Column as Column
from mainstem.cli.fitted_table import FittedTable
from mainstem.cli.values import cell as cell
from mainstem.cli.values import size_text as size_text
from mainstem.records.text import printable

_PIPE_WIDTH: Final = 100_000  # what a program reads is never cut to the width of a screen

Advance = Callable[[int], None]
ShowStage = Callable[[str, int, int], None]


class OutputFormat(StrEnum):
    """How results are shown."""

    TABLE = "table"
    JSON = "json"


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

    @property
    def width(self) -> int:
        """The width of the terminal that results go to; very large if they go to a pipe or a file."""
        return self._out.width

    def result(self, value: object, *tables: RenderableType) -> None:
        """Show a result: `value` as JSON, or the same as tables."""
        if self.json:
            try:
                sys.stdout.write(json_text(value) + "\n")
                sys.stdout.flush()
            except BrokenPipeError:
                drop_stdout()  # the exit code is still that of what was done
            return
        for table in tables:
            self._out.print(table, markup=False, highlight=False)

    def say(self, text: str, style: str = "") -> None:
        """Show a message that is not a result."""
        _print_message(self._messages, "", style, text, style)

    def command(self, text: str) -> None:
        """Show a command to copy. It is never broken into lines; the terminal wraps it."""
        self._messages.print(Text(f"  {printable(text)}", style="bold"), soft_wrap=True)

    def warn(self, text: str) -> None:
        _print_message(self._messages, "Note: ", "yellow", text)

    def problem(self, text: str) -> None:
        """Report something that is wrong."""
        _print_message(self._messages, "✗ ", "red", text)

    def done(self, text: str) -> None:
        """Report that a request has been carried out."""
        _print_message(self._messages, "✓ ", "green", text)

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show a spinner during the block, on a terminal."""
        if not self._messages.is_terminal:
            yield
            return
        with self._messages.status(Text(text)):
            yield

    @contextmanager
    def progress(self, text: str, total: int | None, unit: str = "records") -> Iterator[Advance]:
        """Show a progress bar during the block, on a terminal; the yielded function advances it."""
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
        """Show the current stage during the block, on a terminal.

        The yielded function takes a text, the amount done and the total (0: unknown).
        """
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
    """Show the error that ends the command."""
    _print_message(_console(sys.stderr), "Error: ", "bold red", text)


def print_traceback() -> None:
    """Show the traceback of the current exception, for `--verbose`."""
    _console(sys.stderr).print_exception()


def stdout_bytes() -> BinaryIO:
    """Standard output for records, which are many bytes; the caller flushes."""
    return sys.stdout.buffer


def drop_stdout() -> None:
    """Discard what is still buffered for stdout, after its reader has closed the pipe (`| head`)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def short_path(path: Path) -> str:
    """`path` relative to the current folder if it is below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def table(
    title: str, columns: Sequence[Column], rows: Sequence[Mapping[str, object]], total_row: bool = False
) -> FittedTable:
    """A table of `rows`; the last may be a total. The title is shown on a terminal only."""
    return FittedTable(title, columns, rows, total_row)


def facts(pairs: Mapping[str, object]) -> Table:
    """A list of names and values."""
    result = Table.grid(padding=(0, 2))
    result.add_column(style="cyan", no_wrap=True)
    result.add_column(overflow="fold")
    for name, value in pairs.items():
        result.add_row(Text(name), Text(cell(value)))
    return result


def json_text(value: object) -> str:
    """`value` as indented JSON; values without a JSON form (times, bytes, decimals) as text."""
    option = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    return orjson.dumps(value, default=_json_form, option=option).decode()


def json_line(value: object) -> str:
    """`value` as JSON on one line."""
    return orjson.dumps(value, default=_json_form, option=orjson.OPT_NON_STR_KEYS).decode()


def _json_form(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


class _Console(Console):
    """Rich exits with 1 if the reader of a pipe has ended, whatever the command has done or still has to."""

    def on_broken_pipe(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


def _console(stream: object) -> Console:
    stderr = stream is sys.stderr
    terminal = sys.stderr.isatty() if stderr else sys.stdout.isatty()
    return _Console(stderr=stderr, width=None if terminal else _PIPE_WIDTH, highlight=False)


def _print_message(console: Console, mark: str, mark_style: str, text: str, style: str = "") -> None:
    """Print `text` after a mark, broken between words at the width of a terminal.

    A longer word, such as a path, stays whole: the terminal wraps it, and it can be copied.
    """
    for line in f"{mark}{text}".split("\n"):
        wrapped = textwrap.wrap(line, console.width, break_long_words=False, break_on_hyphens=False)
        # Names and values of others are part of messages, and may hold what steers a terminal.
        shown = Text("\n".join(map(printable, wrapped)), style=style)
        if mark:
            shown.stylize(mark_style, 0, len(mark))
            mark = ""
        console.print(shown, soft_wrap=True)
