"""`mainstem produce`: lines from standard input or files to a topic."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from mainstem.client import DEFAULT_BOOTSTRAP_SERVERS, Cluster
from mainstem.errors import BadInput, CommandError
from mainstem.lines import LineReader, Record, line_reader
from mainstem.options import BootstrapServers, OutputChoice, TopicName, settings_of
from mainstem.output import Advance, Output, OutputFormat
from mainstem.sending import ANY_PARTITION, Sender, Sent, tell_sent

_LINES_BETWEEN_BARS = 1000


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    NONE = "0"
    LEADER = "1"
    ALL = "all"


def produce(
    topic: TopicName,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="Files; else standard input.")
    ] = None,
    file: Annotated[
        list[Path] | None, typer.Option("--file", "-f", help="A file; the same as naming it as an argument.")
    ] = None,
    json_lines: Annotated[
        bool, typer.Option("--json-lines", "-j", help="Each line is a JSON value; anything else is refused.")
    ] = False,
    key_field: Annotated[
        str | None, typer.Option(metavar="FIELD", help="Field of a JSON line that is the key.")
    ] = None,
    timestamp_field: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD", help="Field of a JSON line that is the time: ISO 8601 or ms since 1970."
        ),
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What stands between key and value in a plain line.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Send all to this partition; else by key.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME=VALUE", help="A header of every record; may be repeated."),
    ] = None,
    compression: Annotated[Compression, typer.Option(help="How batches are compressed.")] = Compression.NONE,
    acks: Annotated[Acks, typer.Option(help="Who must have a record before it counts as sent.")] = Acks.ALL,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Send lines to a topic, one record each."""
    out, cluster = Output(output), Cluster(bootstrap_servers)
    read_line = line_reader(json_lines, key_field, timestamp_field, key_separator)
    headers = [(name, value.encode()) for name, value in settings_of(header, "--header").items()]
    paths = [*(file or []), *(files or [])]
    if not paths and sys.stdin is None:
        raise BadInput("There is nothing to read: standard input is closed, and no file is named.")
    for path in paths:
        if not path.is_file() and not path.is_fifo():
            raise BadInput(f"{path} is not a file.")
    found = cluster.topic(topic)
    if partition is not None and partition >= len(found.partitions):
        raise BadInput(f"Topic {topic} has partitions 0 to {len(found.partitions) - 1}, not {partition}.")
    sender = Sender(cluster, topic, out.warn, acks.value, compression.value)
    started = time.monotonic()
    try:
        with _bar(paths, out) as advance:
            for name, source in _sources(paths, out):
                records = _records(name, source, read_line, advance)
                sender.send(records, ANY_PARTITION if partition is None else partition, headers)
        with out.waiting("Waiting for acknowledgements"):
            sent = sender.finish()
    except CommandError as error:
        raise tell_sent(error, sender.finish()) from error
    except KeyboardInterrupt:
        sent = sender.give_up()
        out.say(f"Interrupted: {sent.acknowledged:,} of {sent.records:,} records were acknowledged.")
        raise typer.Exit(130) from None
    _show(out, topic, sent, time.monotonic() - started)
    sent.check(topic)


def _bar(paths: list[Path], out: Output) -> AbstractContextManager[Advance]:
    if not paths and sys.stdin.isatty():
        return nullcontext(lambda _bytes: None)
    sizes = [path.stat().st_size for path in paths if path.is_file()]
    total = sum(sizes) if paths and len(sizes) == len(paths) else None
    return out.progress("Sending", total, "bytes")


def _sources(paths: list[Path], out: Output) -> Iterator[tuple[str, BinaryIO]]:
    if not paths:
        if sys.stdin.isatty():
            out.say("One record per line; Ctrl-D ends.", style="dim")
        yield "standard input", sys.stdin.buffer
    for path in paths:
        try:
            with path.open("rb") as source:
                yield str(path), source
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {error.strerror}.") from error


def _records(name: str, source: BinaryIO, read_line: LineReader, advance: Advance) -> Iterator[Record]:
    unseen_bytes = 0
    for number, line in enumerate(source, start=1):
        try:
            yield read_line(line.rstrip(b"\r\n"))
        except BadInput as error:
            raise BadInput(f"Line {number:,} of {name} was not sent: {error}.") from error
        unseen_bytes += len(line)
        if number % _LINES_BETWEEN_BARS == 0:
            advance(unseen_bytes)
            unseen_bytes = 0
    advance(unseen_bytes)


def _show(out: Output, topic: str, sent: Sent, seconds: float) -> None:
    value: dict[str, Any] = {
        "topic": topic,
        "records": sent.records,
        "acknowledged": sent.acknowledged,
        "failed": sent.failed,
        "seconds": round(seconds, 3),
    }
    if out.json:
        out.result(value)
    elif sent.records == sent.acknowledged:
        records = "1 record" if sent.records == 1 else f"{sent.records:,} records"
        out.done(f"Sent {records} to {topic} in {seconds:.1f} s ({sent.records / seconds:,.0f} a second).")
