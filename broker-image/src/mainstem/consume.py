"""`mainstem consume`: a topic's records to standard output."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from types import FrameType
from typing import Annotated

import typer
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import OffsetSpec

from mainstem.client import DEFAULT_BOOTSTRAP_SERVERS, PARTITION_EOF, Cluster, Offsets, Topic, sentence_of
from mainstem.errors import BadInput, ClusterRefused
from mainstem.group_reading import GroupReader
from mainstem.options import BootstrapServers, OutputChoice, TopicName, complete_groups
from mainstem.output import Output, OutputFormat, drop_stdout, stdout_bytes
from mainstem.record_text import Field, RecordWriter, json_line, line_writer
from mainstem.start_point import Kind, StartPoint, offset_to_start_at, parse_start

# Few enough that the memory of one batch is reused for the next: ten thousand cost twice the time.
_RECORDS_PER_CALL = 500
_WAIT_SECONDS = 0.1
_FOLLOWING: Mapping[str, object] = {"enable.partition.eof": False}
_TO_THE_END: Mapping[str, object] = {"enable.partition.eof": True}


def consume(
    topic: TopicName,
    start_at: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="beginning, end, an offset, the last so many of each partition (-10), a date or date-time, "
            "or a time ago (10m, 2h, 1d).",
        ),
    ] = "beginning",
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="Only this partition.")] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="NAME",
            help="Read as a member of this group, from where it is, and commit what was shown. --from holds "
            "where nothing is committed.",
            autocompletion=complete_groups,
        ),
    ] = None,
    follow: Annotated[
        bool | None,
        typer.Option(
            "--follow/--until-end",
            help="Wait for more, or stop at what is the end now.  [default: follow on a terminal]",
        ),
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", "-n", min=1, help="Stop after so many.")
    ] = None,
    with_fields: Annotated[
        str,
        typer.Option(
            "--with",
            metavar="FIELD,...",
            help=f"Show before the value: {', '.join(Field)}. JSON always shows all.",
        ),
    ] = "",
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show a topic's records, one a line."""
    out, cluster = Output(output), Cluster(bootstrap_servers)
    fields = _fields(with_fields)
    start = parse_start(start_at, now_ms=int(time.time() * 1000))
    follows = sys.stdout.isatty() if follow is None else follow
    write = json_line if out.json else line_writer(fields, out.for_a_person)
    partitions = _partitions(cluster.topic(topic), partition)
    if group is not None:
        if partition is not None:
            raise BadInput("--partition and --group exclude each other: the group says who reads what.")
        _consume_in_group(cluster, out, group, topic, start, partitions, follows, write, max_messages)
        return
    points = [OffsetSpec.earliest(), OffsetSpec.latest()]
    if start.kind is Kind.TIME:
        points.append(OffsetSpec.for_timestamp(start.number))
    found = [_known(offsets) for offsets in cluster.offsets(partitions, *points)]
    starts, latest = _starts(start, found, out), found[1]
    if not follows:
        starts = {number: offset for number, offset in starts.items() if offset < latest[number]}
    consumer = cluster.consumer(_FOLLOWING if follows else _TO_THE_END, out.warn)
    consumer.assign([TopicPartition(topic, number, offset) for number, offset in starts.items()])
    batches = _all(consumer) if follows else _until_end(consumer, topic, latest, set(starts))
    with _ended_by_the_reader(follows):
        if _show(batches, write, max_messages) == 0 and out.for_a_person:
            out.say("No records there.", style="dim")


def _consume_in_group(
    cluster: Cluster,
    out: Output,
    group: str,
    topic: str,
    start: StartPoint,
    partitions: list[TopicPartition],
    follows: bool,
    write: RecordWriter,
    max_messages: int | None,
) -> None:
    resets = {Kind.BEGINNING: "earliest", Kind.END: "latest"}
    if start.kind not in resets:
        raise BadInput(
            "With --group, --from takes beginning or end, for where nothing is committed: move the group "
            f"with `mainstem group reset-offsets {group} --topic {topic} --to WHERE`."
        )
    latest = {} if follows else _known(cluster.offsets(partitions, OffsetSpec.latest())[0])
    # Told to end, it leaves the group first: others take over at once, and not when its session ends.
    interruption = _Interruption()
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as for what a script runs in the background
            signal.signal(number, interruption.come)
    with (
        _ended_by_the_reader(follows),
        GroupReader(cluster, group, topic, resets[start.kind], out.warn) as reader,
    ):
        batches = reader.records() if follows else reader.records_until(latest)
        with out.waiting(f"Joining group {group}"):
            first = next((batch for batch in batches if batch or reader.has_joined), [])

        @contextmanager
        def showing(records: list[Message]) -> Iterator[None]:
            with interruption.held_back():
                yield
                reader.written(records)

        shown = _show(chain([first], batches), write, max_messages, showing)
        if shown == 0 and out.for_a_person:
            out.say("No records there that the group has not read.", style="dim")


class _Interruption:
    """Ctrl-C and SIGTERM, which wait while what is shown is not yet noted; a second one does not wait."""

    def __init__(self) -> None:
        self._is_held_back = self._has_come = False

    def come(self, _number: int, _frame: FrameType | None) -> None:
        if self._has_come or not self._is_held_back:
            raise KeyboardInterrupt
        self._has_come = True

    @contextmanager
    def held_back(self) -> Iterator[None]:
        self._is_held_back = True
        try:
            yield
        finally:
            self._is_held_back = False
        if self._has_come:
            raise KeyboardInterrupt


@contextmanager
def _ended_by_the_reader(follows: bool) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(0 if follows else 130) from None  # Ctrl-C is how following ends
    except BrokenPipeError:
        drop_stdout()
        raise typer.Exit(0) from None  # whoever read us has had enough


def _show(
    batches: Iterable[list[Message]],
    write: RecordWriter,
    max_messages: int | None,
    showing: Callable[[list[Message]], AbstractContextManager[None]] = lambda _records: nullcontext(),
) -> int:
    """Write the records and answer how many; each lot goes out within `showing`."""
    stream, shown = stdout_bytes(), 0
    for batch in batches:
        wanted = batch if max_messages is None else batch[: max_messages - shown]
        with showing(wanted):
            stream.write(b"".join(map(write, wanted)))
            stream.flush()
        shown += len(wanted)
        if shown == max_messages:
            break
    return shown


def _all(consumer: Consumer) -> Iterator[list[Message]]:
    while True:
        records: list[Message] = []
        try:
            messages = consumer.consume(_RECORDS_PER_CALL, _WAIT_SECONDS)
            records.extend(message for message in messages if _is_record(message))
        except ClusterRefused:
            yield records  # what lies before a damaged batch is good
            raise
        yield records


def _until_end(
    consumer: Consumer, topic: str, latest: dict[int, int], open_partitions: set[int]
) -> Iterator[list[Message]]:
    """What lies before the ends, which stay what they were when we began.

    A partition is read when its last offset was seen, or its end reported: the last offset may hold no
    record (compaction, transaction markers).
    """
    while open_partitions:
        records: list[Message] = []
        for message in consumer.consume(_RECORDS_PER_CALL, _WAIT_SECONDS):
            number = message.partition()
            if number not in open_partitions:
                continue
            try:
                is_record = _is_record(message)
            except ClusterRefused:
                yield records  # what lies before a damaged batch is good
                raise
            if is_record and message.offset() < latest[number]:
                records.append(message)
            if not is_record or message.offset() >= latest[number] - 1:
                open_partitions.discard(number)
                consumer.incremental_unassign([TopicPartition(topic, number)])
        yield records


def _is_record(message: Message) -> bool:
    """Whether it is a record rather than the news that a partition's end is reached.

    Raises:
        ClusterRefused: it is the news of an error.
    """
    error = message.error()
    if error is None:
        return True
    if error.code() == PARTITION_EOF:
        return False
    raise ClusterRefused(
        f"Reading partition {message.partition()} at offset {message.offset():,} failed: {sentence_of(error)}"
    )


def _partitions(topic: Topic, wanted: int | None) -> list[TopicPartition]:
    """The partitions to read.

    Raises:
        BadInput: there is no such partition.
        ClusterRefused: one has no leader.
    """
    chosen = [partition for partition in topic.partitions if wanted in (None, partition.number)]
    if not chosen:
        raise BadInput(f"Topic {topic.name} has partitions 0 to {len(topic.partitions) - 1}, not {wanted}.")
    for partition in chosen:
        if partition.leader is None:
            raise _no_leader(partition.number)
    return [TopicPartition(topic.name, partition.number) for partition in chosen]


def _no_leader(number: int) -> ClusterRefused:
    return ClusterRefused(
        f"Partition {number} has no leader that answers: start the broker that holds it, or read others with "
        "--partition."
    )


def _known(offsets: Offsets) -> dict[int, int]:
    known = {number: offset for number, offset in offsets.items() if offset is not None}
    for number in sorted(offsets.keys() - known.keys()):
        raise _no_leader(number)
    return known


def _starts(start: StartPoint, found: list[dict[int, int]], out: Output) -> dict[int, int]:
    """Where to begin in each partition; `found` has the earliest offsets, the latest, and those of a time."""
    earliest, latest, *others = found
    at_time = {number: offset for number, offset in others[0].items() if offset >= 0} if others else {}
    if start.kind is Kind.OFFSET:
        if all(start.number > end for end in latest.values()):
            ends = "its end" if len(latest) == 1 else "the end of every partition"
            raise BadInput(f"Offset {start.number:,} lies beyond {ends} ({max(latest.values()):,}).")
        for number, first in earliest.items():
            if start.number < first:
                out.warn(f"partition {number} begins at offset {first:,} by now, so it is read from there.")
    return {
        number: offset_to_start_at(start, earliest[number], end, at_time.get(number))
        for number, end in latest.items()
    }


def _fields(text: str) -> list[Field]:
    try:
        return [Field(name.strip()) for name in text.split(",") if name.strip()]
    except ValueError as error:
        raise BadInput(f"--with knows {', '.join(Field)}; {error}.") from error
