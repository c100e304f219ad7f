"""`mainstem log`: looks into the files of partitions, without a broker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from mainstem.errors import BadInput, CommandError
from mainstem.options import OutputChoice
from mainstem.output import Column, Output, OutputFormat, drop_stdout, stdout_bytes, table
from mainstem.record_text import header_value, put_bytes, safe
from mainstem.times import text_of_ms

if TYPE_CHECKING:
    from mainstem_broker.log.dump import BatchDump, Problem, SegmentDump, SnapshotDump
    from mainstem_broker.protocol.records import Record

app = typer.Typer(no_args_is_help=True, help="Look into the files of partitions.")

_BATCH_LINE = "{:>12}  {:>12}  {:>10}  {:>8}  {:>10}  {:<6}  {:>6}  {:<24}  {}\n"
_BATCH_TITLES = _BATCH_LINE.format(
    "First", "Last offset", "Position", "Records", "Bytes", "Codec", "Epoch", "Latest timestamp", "Notes"
)

_PRODUCER_LINE = "{:>12}  {:>6}  {:>14}  {:>13}  {:>12}  {:<24}  {}\n"
_PRODUCER_TITLES = _PRODUCER_LINE.format(
    "Producer", "Epoch", "First sequence", "Last sequence", "Last offset", "Last append", "Notes"
)


class LogDamaged(CommandError):
    """Files of a log hold something wrong; each problem was told before."""


@app.callback()
def log() -> None:
    """Look into the files of partitions."""
    # With a callback `dump` stays a command of its own though it is the only one.


@app.command()
def dump(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="Segments, snapshots of producers, folders of partitions, or folders that hold those.",
        ),
    ],
    verify: Annotated[
        bool, typer.Option("--verify", help="Check records and indexes too; alone, it shows a line per log.")
    ] = False,
    records: Annotated[bool, typer.Option("--records", help="Show each batch's records.")] = False,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show the batches in a partition's files, or the producers in a .snapshot file, and what is wrong.

    Ends with exit code 1 when something is wrong. JSON comes as one object a line.
    """
    out = Output(output)
    logs = [found for path in paths for found in _logs_under(path)]
    try:
        if verify and not records:
            problem_count = _verify(out, logs)
        else:
            problem_count = sum(_dump(out, path, verify, records) for path in logs)
    except BrokenPipeError:
        drop_stdout()
        raise typer.Exit(0) from None
    if problem_count:
        raise LogDamaged(f"{problem_count:,} problem{'s were' if problem_count > 1 else ' was'} found.")


def _logs_under(path: Path) -> Iterator[Path]:
    """The segments and folders of segments that `path` is or holds.

    Raises:
        BadInput: there are none.
    """
    if path.is_file():
        yield path
        return
    if not path.is_dir():
        raise BadInput(f"{path} does not exist.")
    folders = sorted({segment.parent for segment in path.rglob("*.log") if segment.stem.isdecimal()})
    if not folders:
        raise BadInput(
            f"{path} holds no segment: name the folder of a partition, as clicks-0, or one above it."
        )
    yield from folders


def _verify(out: Output, logs: list[Path]) -> int:
    from mainstem_broker.log.dump import dump_log, is_snapshot, verify_log

    rows: list[dict[str, object]] = []
    problem_count = 0
    with out.progress("Verifying", len(logs), "logs") as advance:
        for path in logs:
            with _readable(path):
                segments, problems = [] if is_snapshot(path) else dump_log(path), verify_log(path)
            row: dict[str, object] = {
                "log": str(path),
                "segments": len(segments),
                "bytes": sum(segment.size_bytes for segment in segments),
                "problems": [_problem_value(problem) for problem in problems] if out.json else len(problems),
            }
            rows.append(row)
            problem_count += len(problems)
            if not out.json:
                for problem in problems:
                    out.problem(str(problem))
            advance(1)
    if out.json:
        _write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
    else:
        titles = {"log": "Log", "segments": "Segments", "bytes": "Bytes", "problems": "Problems"}
        out.result(rows, table("", [Column(title, key) for key, title in titles.items()], rows))
    return problem_count


def _dump(out: Output, path: Path, verify: bool, records: bool) -> int:
    from mainstem_broker.log.dump import dump_log, dump_snapshot, is_snapshot

    with _readable(path):
        if is_snapshot(path):
            snapshot = dump_snapshot(path)
            _write(_producer_json_lines(snapshot) if out.json else _producer_lines(snapshot))
            return _tell(out, snapshot.problems)
        problem_count = 0
        for segment in dump_log(path, records=records, verify=verify):
            _write(_json_lines(segment) if out.json else _text_lines(segment))
            problem_count += _tell(out, segment.problems)
    return problem_count


def _tell(out: Output, problems: list[Problem]) -> int:
    """Write the problems; answers how many there are."""
    if out.json:
        _write(
            orjson.dumps(_problem_value(problem), option=orjson.OPT_APPEND_NEWLINE) for problem in problems
        )
    else:
        for problem in problems:
            out.problem(str(problem))
    return len(problems)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    from mainstem_broker.log.dump import NotALog

    try:
        yield
    except NotALog as error:
        raise BadInput(str(error)) from error
    except BrokenPipeError:
        raise
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from error


def _json_lines(segment: SegmentDump) -> Iterator[bytes]:
    from mainstem_broker.log.dump import BatchDump

    names = [field.name for field in fields(BatchDump)]
    for batch in segment:
        value = {"segment": str(segment.path), **{name: getattr(batch, name) for name in names}}
        value["records"] = (
            None if batch.records is None else [_record_value(record) for record in batch.records]
        )
        yield orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def _record_value(record: Record) -> dict[str, object]:
    value: dict[str, object] = {"offset": record.offset, "timestamp_ms": record.timestamp_ms}
    put_bytes(value, "key", record.key)
    put_bytes(value, "value", record.value)
    value["headers"] = [header_value(name, content) for name, content in record.headers]
    return value


def _problem_value(problem: Problem) -> dict[str, object]:
    return {"path": str(problem.path), "position": problem.position, "problem": problem.sentence}


def _text_lines(segment: SegmentDump) -> Iterator[bytes]:
    yield f"{segment.path} ({segment.size_bytes:,} bytes)\n{_BATCH_TITLES}".encode()
    for batch in segment:
        yield _batch_line(batch).encode()
        for record in batch.records or ():
            shown = [b"" if part is None else safe(part) for part in (record.key, record.value)]
            before = f"{record.offset:>12}  {text_of_ms(record.timestamp_ms)}  ".encode()
            yield before + b"  ".join(shown) + b"\n"
    yield b"\n"


def _producer_json_lines(snapshot: SnapshotDump) -> Iterator[bytes]:
    for producer in snapshot.producers:
        value = {"snapshot": str(snapshot.path), **asdict(producer)}
        yield orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def _producer_lines(snapshot: SnapshotDump) -> Iterator[bytes]:
    yield f"{snapshot.path} ({len(snapshot.producers):,} producers)\n{_PRODUCER_TITLES}".encode()
    for producer in snapshot.producers:
        open_since = producer.transaction_first_offset
        yield _PRODUCER_LINE.format(
            producer.producer_id,
            producer.producer_epoch,
            producer.first_sequence,
            producer.last_sequence,
            producer.last_offset,
            text_of_ms(producer.last_timestamp),
            f"transaction open since offset {open_since}" if open_since >= 0 else "",
        ).encode()
    yield b"\n"


def _batch_line(batch: BatchDump) -> str:
    notes = [] if batch.crc_valid else ["WRONG CRC"]
    notes += ["control"] if batch.is_control else []
    notes += ["transactional"] if batch.is_transactional else []
    notes += ["LogAppendTime"] if batch.timestamp_type == "LogAppendTime" else []
    notes += [f"producer {batch.producer_id}"] if batch.producer_id >= 0 else []
    return _BATCH_LINE.format(
        batch.base_offset,
        batch.last_offset,
        batch.position,
        batch.record_count,
        batch.size_bytes,
        batch.codec,
        batch.partition_leader_epoch,
        text_of_ms(batch.max_timestamp),
        ", ".join(notes),
    )


def _write(lines: Iterable[bytes]) -> None:
    stream = stdout_bytes()
    for line in lines:
        stream.write(line)
    stream.flush()
