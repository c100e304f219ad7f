"""What people and programs are shown."""

from __future__ import annotations

import json
import math
import os
import sys
from datetime import UTC, datetime
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.cli.output import Column, Output, OutputFormat, cell, print_error, size_text, table
from mainstem.records.text import printable

ROWS: list[dict[str, object]] = [
    {"topic": "clicks", "records": 1_234_567, "ok": True},
    {"topic": "views [bold]", "records": None, "ok": False},
]
COLUMNS = [Column("Topic", "topic"), Column("Records", "records"), Column("Fine", "ok")]


@pytest.mark.parametrize("width", [80, 120])
def test_a_message_is_broken_between_words(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    path = "/a/very/long/path" * 8
    text = f"{'Some words that fill the line and more ' * 5}and `a --command` in {path} at last."
    with patch("mainstem.cli.output._PIPE_WIDTH", width):
        Output().warn(text)
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if len(line) > width] == [path], (
        "the terminal wraps it, and it can be copied"
    )
    assert " ".join(lines) == f"Note: {text}"


def test_sizes_are_shown_in_the_largest_unit_that_they_fill() -> None:
    sizes = (0, 999, 1000, 1_234_567, 56_700_000_000, None)
    assert [size_text(size) for size in sizes] == ["0 B", "999 B", "1.0 KB", "1.2 MB", "56.7 GB", None]


def test_json_goes_to_stdout_alone_and_messages_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output(OutputFormat.JSON)
    out.say("working")
    out.warn("careful")
    out.result(ROWS, table("", COLUMNS, ROWS))
    out.done("finished")
    shown = capsys.readouterr()
    assert json.loads(shown.out) == ROWS
    assert shown.err == "working\nNote: careful\n✓ finished\n"


def test_a_table_in_a_pipe_is_never_cut_and_its_cells_are_no_markup(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [*ROWS, {"topic": "x" * 300, "records": 1, "ok": True}]
    Output().result(rows, table("", COLUMNS, rows))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["Topic", "Records", "Fine"]
    assert lines[1].split() == ["clicks", "1,234,567", "yes"]
    assert lines[2].split() == ["views", "[bold]", "-", "no"]
    assert lines[3].split() == ["x" * 300, "1", "yes"]


def test_an_error_is_one_line_however_long(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("a [red]sentence[/red] " * 50)
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (True, "yes"),
        (1234, "1,234"),
        (12.345, "12.345"),
        (1234567.5, "1,234,567.5"),
        (222222221121.75, "222,222,221,121.75"),
        (-1234.0625, "-1,234.062"),
        (1000.0, "1,000"),
        (999.9996, "1,000"),
        (1e17, "1e+17"),
        (math.nan, "nan"),
        (0.00012, "0.00012"),
        (0.0, "0"),
        (b"a\xff", "a\\xff"),
        ([1, 2], "1, 2"),
        ([], "-"),
        ("a", "a"),
    ],
    ids=repr,
)
def test_a_value_is_shown_as_a_person_reads_it(value: object, text: str) -> None:
    assert cell(value) == text


@given(st.text())
def test_nothing_shown_can_steer_the_terminal(text: str) -> None:
    assert printable(text).isprintable()


def test_json_has_a_form_for_times(capsys: pytest.CaptureFixture[str]) -> None:
    Output(OutputFormat.JSON).result({"day": datetime(2013, 1, 1, tzinfo=UTC).date()})
    assert json.loads(capsys.readouterr().out) == {"day": "2013-01-01"}


def test_without_a_terminal_progress_draws_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output()
    with out.waiting("Waiting"), out.progress("Sending", 10) as advance:
        advance(5)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "")


@pytest.mark.parametrize("value", [222222221121.75, 123456789012.5, 0.1, 30.0, 1e300, 2.5e-7])
def test_a_number_without_separators_has_all_its_digits(value: float) -> None:
    """R36: the results of queries."""
    assert float(cell(value, separators=False)) == value


@pytest.mark.parametrize("output_format", list(OutputFormat))
def test_a_reader_that_has_ended_changes_no_exit_code(
    output_format: OutputFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R36: as of `mainstem load run ... | head -1`, which has still to say that too many are rejected."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        out = Output(output_format)
        rows = [{"n": "x" * 1000}] * 1000
        out.result(rows, table("", [Column("n", "n")], rows))
        out.result(rows, table("", [Column("n", "n")], rows))


def test_messages_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Output().problem("topic a\x1b[2Jb\u202e is missing")
    assert capsys.readouterr().err == "\u2717 topic a\\x1b[2Jb\\u202e is missing\n"
