"""What the commands of `mainstem log` share: which files are meant, lines while files are read, problems."""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson
import typer

from mainstem.cli.output import Output, drop_stdout, stdout_bytes
from mainstem.errors import BadInput, CommandError
from mainstem.times import text_of_ms

if TYPE_CHECKING:
    from mainstem_broker.log.dump import Problem
    from mainstem_broker.protocol.records import Record


class LogDamaged(CommandError):
    """Files of a log are damaged; each problem was reported before."""


JsonObject = dict[str, object]
DecodeRecord = Callable[["Record"], JsonObject]
DescribeRecord = Callable[[JsonObject], str]

_RECORD_LINE: Final = "{:>10}  {:<24}  {}\n"
_RECORD_TITLES: Final = _RECORD_LINE.format("Offset", "Written", "Record")


def logs_under(path: Path) -> Iterator[Path]:
    """The file `path`, or the partition folders at or below it, without those that a broker is deleting.

    Raises:
        BadInput: there are none.
    """
    if path.is_file():
        yield path
        return
    if not path.is_dir():
        raise BadInput(f"{path} does not exist.")
    from mainstem_broker.log.directory_names import DELETED_DIRECTORY_SUFFIX
    from mainstem_broker.log.segment import is_named_by_offset

    folders = sorted(
        folder
        for folder in {segment.parent for segment in path.rglob("*.log") if is_named_by_offset(segment)}
        if folder == path or not folder.name.endswith(DELETED_DIRECTORY_SUFFIX)
    )
    if not folders:
        raise BadInput(
            f"{path} holds no segment: name the folder of a partition, such as clicks-0, or one above it."
        )
    yield from folders


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what cannot be read in `path` into a sentence."""
    from mainstem_broker.log.dump import NotALog

    try:
        yield
    except NotALog as error:
        raise BadInput(str(error)) from error
    except BrokenPipeError:
        raise
    except OSError as error:
        raise BadInput(f"{error.filename or path} cannot be read: {error.strerror}.") from error


@contextmanager
def unless_deleted(log: Path) -> Iterator[None]:
    """Pass over a log that its broker has deleted since it was listed."""
    try:
        yield
    except BadInput:
        if log.exists():
            raise


def folders_of_topic(paths: Sequence[Path], topic: str) -> Iterator[Path]:
    """The partition folders of a topic below each path; a path that is a log itself is taken as it is.

    Raises:
        BadInput: there are none.
    """
    for path in paths:
        logs = list(logs_under(path))
        matching = [log for log in logs if log == path or topic_of(log) == topic]
        if not matching:
            raise BadInput(f"{path} holds no partition of {topic}.")
        yield from matching


def topic_of(path: Path) -> str | None:
    """The topic of a partition folder, or of a file in one, by the folder's name; None if that is no name."""
    from mainstem_broker.log.directory_names import parse_directory_name

    try:
        return parse_directory_name((path if path.is_dir() else path.absolute().parent).name)[0]
    except ValueError:
        return None


def decoded_lines(
    out: Output, path: Path, problems: list[Problem], decode: DecodeRecord, describe: DescribeRecord
) -> Iterator[bytes]:
    """A line for each record and marker in the log of an internal topic; adds to `problems`.

    `decode` makes fields of a record and raises ValueError if it cannot; `describe` makes text of the fields.
    """
    from mainstem_broker.log.dump import Problem, dump_log

    with reading(path):
        if not out.json:
            yield f"{path}\n{_RECORD_TITLES}".encode()
        for segment in dump_log(path, records=True):
            undecoded: list[Problem] = []
            for batch in segment:
                producer_id = batch.producer_id if batch.is_transactional else None
                for record in batch.records or ():
                    try:
                        fields: JsonObject = (
                            {"kind": batch.marker or "control"} if batch.is_control else decode(record)
                        )
                    except ValueError as error:
                        sentence = f"the record of offset {record.offset} cannot be decoded: {error}"
                        undecoded.append(Problem(segment.path, batch.position, sentence))
                        continue
                    if out.json:
                        yield _record_json(record, producer_id, fields)
                    else:
                        text = f"{fields['kind']} marker" if batch.is_control else describe(fields)
                        yield record_lines(record, producer_id, text, out.width).encode()
            segment_problems = [*segment.problems, *undecoded]
            problems += segment_problems
            report(out, segment_problems)


def _record_json(record: Record, producer_id: int | None, fields: JsonObject) -> bytes:
    value = {
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "transaction_of_producer": producer_id,
        **fields,
    }
    return orjson.dumps(value, default=plain, option=orjson.OPT_APPEND_NEWLINE)


def record_lines(record: Record, producer_id: int | None, text: str, width: int) -> str:
    """A record as a line, or as several if the terminal is too narrow for its text."""
    note = "" if producer_id is None else f" (transaction of producer {producer_id})"
    indent = " " * len(_RECORD_LINE.format("", "", "").rstrip("\n"))
    lines = [text + note]
    if len(lines[0]) > width - len(indent):
        lines = textwrap.wrap(lines[0], width - len(indent), break_on_hyphens=False)
    return _RECORD_LINE.format(record.offset, text_of_ms(record.timestamp_ms), f"\n{indent}".join(lines))


def plain(value: object) -> object:
    """What JSON has instead of a value: lists for sets, base64 for bytes."""
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(type(value).__name__)


@contextmanager
def writing_lines() -> Iterator[None]:
    """End quietly when the reader of stdout has closed the pipe (`| head`)."""
    try:
        yield
    except BrokenPipeError:
        drop_stdout()
        raise typer.Exit(0) from None


def write_lines(lines: Iterable[bytes]) -> None:
    stream = stdout_bytes()
    for line in lines:
        stream.write(line)
    stream.flush()


def report(out: Output, problems: Sequence[Problem]) -> None:
    """Show problems: sentences on stderr, or objects of the JSON output."""
    if out.json:
        write_lines(orjson.dumps(problem_value(problem)) + b"\n" for problem in problems)
        return
    for problem in problems:
        out.problem(str(problem))


def problem_value(problem: Problem) -> dict[str, object]:
    return {"path": str(problem.path), "position": problem.position, "problem": problem.sentence}


def fail_if_damaged(problem_count: int) -> None:
    """
    Raises:
        LogDamaged: there are problems.
    """
    if problem_count:
        raise LogDamaged(f"{problem_count:,} problem{'s were' if problem_count > 1 else ' was'} found.")
