"""`mainstem log verify`: check every file of partitions and of the data directories around them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from mainstem.cli.log_files import (
    fail_if_damaged,
    logs_under,
    problem_value,
    reading,
    report,
    unless_deleted,
    write_lines,
    writing_lines,
)
from mainstem.cli.options import OutputChoice
from mainstem.cli.output import Column, Output, OutputFormat, table

if TYPE_CHECKING:
    from mainstem_broker.log.dump import Problem


def verify(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="Data directories, partition folders, segments, producer snapshots, or indexes of aborted"
            " transactions.",
        ),
    ],
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Check every batch, record and index, the snapshots of producers and the checkpoints.

    Exits with 1 if a file is damaged, after naming each file, the position, and what is wrong. JSON output
    has one object per line.
    """
    out = Output(output)
    rows: list[dict[str, object]] = []
    problem_count = 0
    with writing_lines():
        for path in paths:
            for row, problems in _verify(out, path):
                problem_count += len(problems)
                if out.json:
                    row["problems"] = [problem_value(problem) for problem in problems]
                    write_lines([orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)])
                else:
                    report(out, problems)
                    rows.append(row)
    if not out.json:
        titles = {"log": "Log", "segments": "Segments", "bytes": "Bytes", "problems": "Problems"}
        out.result(rows, table("", [Column(title, key) for key, title in titles.items()], rows))
    fail_if_damaged(problem_count)


def _verify(out: Output, path: Path) -> Iterator[tuple[dict[str, object], list[Problem]]]:
    """A row and the problems of each log at or below `path`, and of each data directory among those."""
    from mainstem_broker.log.directory_names import parse_directory_name
    from mainstem_broker.log.verification import DataDirectoryCheck, verify_log

    by_parent: dict[Path, list[Path]] = {}
    for log in logs_under(path):
        by_parent.setdefault(log.parent, []).append(log)
    with out.progress("Verifying", sum(map(len, by_parent.values())), "logs") as advance:
        for directory, logs in by_parent.items():
            with reading(directory):
                # Of single partitions or files that are named, the directory above is not meant.
                check = DataDirectoryCheck(directory) if directory.is_relative_to(path) else None
            end_offsets: dict[tuple[str, int], int] = {}
            for log in logs:
                advance(1)
                with unless_deleted(log):
                    with reading(log):
                        verified = verify_log(log)
                    yield (
                        _row(log, verified.segments, verified.size_bytes, verified.problems),
                        verified.problems,
                    )
                    # A folder with another name is not in the checkpoints.
                    with suppress(ValueError):
                        end_offsets[parse_directory_name(log.name)] = verified.end_offset
            problems = [] if check is None else check.finish(end_offsets)
            if problems:
                yield _row(directory, 0, 0, problems), problems


def _row(path: Path, segments: int, size_bytes: int, problems: list[Problem]) -> dict[str, object]:
    return {"log": str(path), "segments": segments, "bytes": size_bytes, "problems": len(problems)}
