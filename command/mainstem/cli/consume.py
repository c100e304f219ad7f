"""`mainstem consume`: the records of topics to standard output."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import Annotated

import typer
from confluent_kafka import Message
from confluent_kafka.admin import OffsetSpec

from mainstem.cli.number_options import integer
from mainstem.cli.options import (
    BootstrapServers,
    ClientProperties,
    OutputChoice,
    complete_groups,
    complete_topics,
    connect,
)
from mainstem.cli.output import Output, OutputFormat, drop_stdout, stdout_bytes
from mainstem.errors import BadInput
from mainstem.interruption import Interruption
from mainstem.kafka.client import Cluster, Topic
from mainstem.kafka.group_reader import GroupReader
from mainstem.kafka.offsets import log_ends, read_range, require_leader
from mainstem.kafka.reader import read_forever, read_until
from mainstem.kafka.reassignment_plan import TopicPartition
from mainstem.kafka.start_point import Kind, StartPoint, parse_start
from mainstem.records.text import FORMAT_HELP, Field, RecordWriter, format_writer, json_line, line_writer


def consume(
    topics: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC...", help="One or more topics.", autocompletion=complete_topics),
    ],
    start_at: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="beginning, end, an offset, the last N records of each partition (-10), a date or "
            "date-time, or a time ago (10m, 2h, 1d).",
        ),
    ] = "beginning",
    partition: Annotated[
        int | None, typer.Option("--partition", **integer(0), help="Read only this partition.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="NAME",
            help="Read as a member of this group, from its committed offsets, and commit what was shown. "
            "--from applies where nothing is committed.",
            autocompletion=complete_groups,
        ),
    ] = None,
    follow: Annotated[
        bool | None,
        typer.Option(
            "--follow/--until-end",
            "-f",
            help="Wait for more records, or stop at the present end.  [default: follow on a terminal]",
        ),
    ] = None,
    max_records: Annotated[
        int | None, typer.Option("--max-records", "-n", **integer(1), help="Stop after this many records.")
    ] = None,
    with_fields: Annotated[
        str,
        typer.Option(
            "--with",
            metavar="FIELD,...",
            help=f"Show before the value: {', '.join(Field)}. JSON always shows all.",
        ),
    ] = "",
    record_format: Annotated[
        str | None, typer.Option("--format", metavar="TEXT", help=f"Write each record as {FORMAT_HELP}.")
    ] = None,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show the records of topics, one per line."""
    out, cluster = Output(output), connect(bootstrap_servers, client_properties)
    write = _writer(out, with_fields, record_format)
    start = parse_start(start_at, now_ms=int(time.time() * 1000))
    follows = sys.stdout.isatty() if follow is None else follow
    names = list(dict.fromkeys(topics))
    partitions = [key for name in names for key in _partitions(cluster.topic(name), partition)]
    if group is not None:
        if partition is not None:
            raise BadInput("--partition and --group exclude each other: the group assigns partitions.")
        _consume_in_group(cluster, out, group, names, start, partitions, follows, write, max_records)
        return
    starts, ends = read_range(cluster, partitions, start, out.warn)
    _hint_how_to_leave(out, follows)
    if follows:
        batches = read_forever(cluster, starts, out.warn)
    else:
        batches = read_until(cluster, starts, ends, out.warn)
    with _ended_by_the_reader(follows):
        if _show(batches, write, max_records) == 0 and out.for_a_person:
            out.say("There are no records in this range.", style="dim")


def _consume_in_group(
    cluster: Cluster,
    out: Output,
    group: str,
    topics: Sequence[str],
    start: StartPoint,
    partitions: Sequence[TopicPartition],
    follows: bool,
    write: RecordWriter,
    max_records: int | None,
) -> None:
    resets = {Kind.BEGINNING: "earliest", Kind.END: "latest"}
    if start.kind not in resets:
        raise BadInput(
            "With --group, --from takes beginning or end, for partitions without a committed offset: move "
            f"the group with `mainstem group reset-offsets {group} --topic {topics[0]} --to WHERE`."
        )
    ends: dict[TopicPartition, int] = {}
    if not follows:
        for key, offsets in log_ends(cluster, partitions, OffsetSpec.latest()).items():
            (ends[key],) = require_leader(key, offsets)
    # Leaving the group lets others take over at once, and not only when its session expires.
    interruption = Interruption()
    interruption.install()
    with (
        _ended_by_the_reader(follows),
        GroupReader(cluster, group, topics, resets[start.kind], out.warn) as reader,
    ):
        batches = reader.records() if follows else reader.records_until(ends)
        with out.waiting(f"Joining group {group}"):
            first = next((batch for batch in batches if batch or reader.has_joined), [])
        _hint_how_to_leave(out, follows)

        @contextmanager
        def writing(records: list[Message]) -> Iterator[None]:
            with interruption.deferred():
                yield
                reader.mark_written(records)

        shown = _show(chain([first], batches), write, max_records, writing)
        if shown == 0 and out.for_a_person:
            out.say("The group has read all records there.", style="dim")


def _writer(out: Output, with_fields: str, record_format: str | None) -> RecordWriter:
    if record_format is not None:
        if out.json or with_fields:
            raise BadInput("--format determines how records are written: remove --with and --output json.")
        return format_writer(record_format)
    fields = _fields(with_fields)
    return json_line if out.json else line_writer(fields, out.for_a_person)


def _hint_how_to_leave(out: Output, follows: bool) -> None:
    if follows and out.for_a_person:
        out.say("Following new records; Ctrl-C ends it.", style="dim")


@contextmanager
def _ended_by_the_reader(follows: bool) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        if follows:
            raise typer.Exit(0) from None  # Ctrl-C is the normal end of following
        raise
    except BrokenPipeError:
        drop_stdout()
        raise typer.Exit(0) from None  # the program that reads our output has ended (`| head`)


def _show(
    batches: Iterable[list[Message]],
    write: RecordWriter,
    max_records: int | None,
    writing: Callable[[list[Message]], AbstractContextManager[None]] = lambda _records: nullcontext(),
) -> int:
    """Write the records and return their number; each batch is written within `writing`."""
    stream, shown = stdout_bytes(), 0
    for batch in batches:
        records = batch if max_records is None else batch[: max_records - shown]
        with writing(records):
            stream.write(b"".join(map(write, records)))
            stream.flush()
        shown += len(records)
        if shown == max_records:
            break
    return shown


def _partitions(topic: Topic, number: int | None) -> list[TopicPartition]:
    """The partitions of `topic` to read: all, or the one of this number.

    Raises:
        BadInput: there is no such partition.
        ClusterRefused: a partition has no leader.
    """
    chosen = [partition for partition in topic.partitions if number in (None, partition.number)]
    if not chosen:
        raise BadInput(f"Topic {topic.name} has partitions 0 to {len(topic.partitions) - 1}, not {number}.")
    for partition in chosen:
        require_leader((topic.name, partition.number), [partition.leader])
    return [(topic.name, partition.number) for partition in chosen]


def _fields(text: str) -> list[Field]:
    try:
        return [Field(name.strip()) for name in text.split(",") if name.strip()]
    except ValueError as error:
        raise BadInput(f"--with takes {', '.join(Field)}; {error}.") from error
