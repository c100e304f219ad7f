"""`mainstem produce`: lines from standard input or files to a topic."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import typer

from mainstem.cli.closed_input import ClosedInput
from mainstem.cli.number_options import integer
from mainstem.cli.options import (
    BootstrapServers,
    ClientProperties,
    OutputChoice,
    TopicName,
    connect,
    headers_of,
)
from mainstem.cli.output import Advance, Output, OutputFormat
from mainstem.cli.sending_options import AcksChoice, CompressionChoice
from mainstem.errors import BadInput, CommandError, program_name
from mainstem.interruption import Interruption
from mainstem.kafka.client import Cluster
from mainstem.records.lines import LineReader, Record, RecordWithHeaders, line_reader
from mainstem.records.sending import ANY_PARTITION, Acks, Compression, Sender, Sent, with_sent
from mainstem.times import duration_text

_LINES_BETWEEN_BARS: Final = 1000
_Records = Iterator[Record | RecordWithHeaders]


def produce(
    topic: TopicName,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="Files; standard input by default.")
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option("--file", metavar="FILE", help="A file to read; the same as naming it as an argument."),
    ] = None,
    json_lines: Annotated[
        bool, typer.Option("--json-lines", "-j", help="Each line is a JSON value; other lines are refused.")
    ] = False,
    json_records: Annotated[
        bool,
        typer.Option(
            "--json-records",
            help="Each line is a record as `consume --output json` shows it: value or value_base64, key or "
            "key_base64, timestamp_ms, headers. A null value is a tombstone.",
        ),
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
        str | None, typer.Option(metavar="TEXT", help="Text between key and value in a plain line.")
    ] = None,
    null_text: Annotated[
        str | None,
        typer.Option(
            "--null", metavar="TEXT", help="Send null where a value or key is this text (tombstone)."
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition", **integer(0), help="Send all records to this partition. Default: by key."
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME=VALUE", help="A header of every record; repeatable."),
    ] = None,
    skip: Annotated[
        int,
        typer.Option("--skip", **integer(0), metavar="LINES", help="Skip this many lines, to resume a run."),
    ] = 0,
    compression: CompressionChoice = Compression.NONE,
    audit: Annotated[
        bool,
        typer.Option("--audit", help="Report the number of sent records, for `mainstem audit`."),
    ] = False,
    acks: AcksChoice = Acks.ALL,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Send lines to a topic, one record each.

    Only a line feed ends a line, so that lines that `mainstem consume` writes to a pipe or a file are sent
    back byte for byte. Values that contain line feeds, null values, keys, times and headers are kept by
    `consume --output json` and `produce --json-records`.

    An interrupted run prints how to resume it.
    """
    out, cluster = Output(output), connect(bootstrap_servers, client_properties)
    read_line = line_reader(json_lines, key_field, timestamp_field, key_separator, json_records, null_text)
    headers = headers_of(header)
    paths = [*(file or []), *(files or [])]
    if not paths and isinstance(sys.stdin, ClosedInput):
        raise BadInput("There is nothing to read: standard input is closed, and no file is named.")
    for path in paths:
        if not path.is_file() and not path.is_fifo():
            raise BadInput(f"{path} is not a file.")
    partition_count = len(cluster.topic(topic).partitions)
    if partition is not None and partition >= partition_count:
        raise BadInput(f"Topic {topic} has partitions 0 to {partition_count - 1}, not {partition}.")
    old = _OldTimestamps.of(cluster, topic) if timestamp_field or json_records else None
    carriage_returns = _CarriageReturns()
    if not json_records:  # there it is blank space between the record and the next one
        read_line = carriage_returns.counting(read_line)
    interruption = Interruption()
    interruption.install()
    sender = Sender(cluster, topic, out.warn, acks.value, compression.value, audit, interruption)
    started = time.monotonic()
    try:
        with _bar(paths, out) as advance:
            to_skip = skip
            for name, source in _sources(paths, out):
                skipped = sum(1 for _ in islice(source, to_skip))
                to_skip -= skipped
                records = _records(name, source, skipped, read_line, advance)
                if old is not None:
                    records = old.counting(records)
                sender.send(records, ANY_PARTITION if partition is None else partition, headers)
        with out.waiting("Waiting for acknowledgements"):
            sent = sender.finish()
    except CommandError as error:
        raise with_sent(error, sender.finish()) from error
    except KeyboardInterrupt:
        _show_interruption(out, topic, sender.give_up(), skip, paths)
        raise  # the entry point has the number of the signal
    _show(out, topic, sent, time.monotonic() - started)
    if carriage_returns.count:
        out.warn(
            f"{carriage_returns.count:,} line{' ends' if carriage_returns.count == 1 else 's end'} with a "
            "carriage return, as lines of Windows do, and it was sent as part of the record: to send such "
            "lines without it, pass them through `tr -d '\\r'`."
        )
    if old is not None and old.count:
        out.warn(
            f"{old.count:,} record{' has a timestamp' if old.count == 1 else 's have timestamps'} older than "
            f"retention.ms of topic {topic} ({duration_text(old.retention_ms)}) and will be deleted soon: to "
            f"keep such records, `mainstem config set --topic {topic} retention.ms=-1`."
        )
    sent.check(topic)


@dataclass(slots=True)
class _OldTimestamps:
    """Counts records that the topic's retention deletes as soon as it runs."""

    retention_ms: int
    oldest_kept_ms: int
    count: int = 0

    @classmethod
    def of(cls, cluster: Cluster, topic: str) -> _OldTimestamps | None:
        """None if the topic keeps records forever, or by their arrival, or does not report its settings."""
        entries = cluster.topic_settings(topic) or {}
        settings = {name: entry.value for name, entry in entries.items()}
        retention_ms = int(settings.get("retention.ms") or -1)
        deletes = "delete" in (settings.get("cleanup.policy") or "delete")
        if retention_ms < 0 or not deletes or settings.get("message.timestamp.type") == "LogAppendTime":
            return None
        return cls(retention_ms, int(time.time() * 1000) - retention_ms)

    def counting(self, records: _Records) -> _Records:
        """The same records; counts the old ones."""
        for record in records:
            if 0 < record[2] < self.oldest_kept_ms:
                self.count += 1
            yield record


@dataclass(slots=True)
class _CarriageReturns:
    """Counts lines whose last byte is a carriage return: it may be part of the value, as in lines that
    `consume` wrote, or of a line end of Windows."""

    count: int = 0

    def counting(self, read_line: LineReader) -> LineReader:
        """The same reader of lines."""

        def read(line: bytes) -> Record | RecordWithHeaders:
            self.count += line.endswith(b"\r")
            return read_line(line)

        return read


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


def _records(name: str, source: BinaryIO, skipped: int, read_line: LineReader, advance: Advance) -> _Records:
    bytes_since_bar = 0
    for number, line in enumerate(source, start=skipped + 1):
        try:
            yield read_line(line.removesuffix(b"\n"))
        except BadInput as error:
            raise BadInput(f"Line {number:,} of {name} was not sent: {error}.") from error
        bytes_since_bar += len(line)
        if number % _LINES_BETWEEN_BARS == 0:
            advance(bytes_since_bar)
            bytes_since_bar = 0
    advance(bytes_since_bar)


def _show_interruption(out: Output, topic: str, sent: Sent, skipped: int, paths: Sequence[Path]) -> None:
    out.say(f"Interrupted: {sent.acknowledged:,} of {sent.records:,} records were acknowledged.")
    source = " ".join(shlex.quote(str(path)) for path in paths) or "< the same input"
    # What was sent may have been stored, also if its acknowledgement did not come.
    repeated = sent.records - sent.resume_at
    twice = f" (records that may be stored twice: up to {repeated:,})" if repeated else ""
    out.say(
        f"Resume with the same options and --skip: {program_name()} produce {topic} {source} "
        f"--skip {skipped + sent.resume_at}{twice}"
    )


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
