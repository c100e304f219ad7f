"""`mainstem demo`: the main job on real data, from events to query results, on this machine.

A stock client sends the flights of 2013 as JSON events to three brokers, the loader writes them to a table
partitioned by day, and two queries run on it. Then a second batch arrives with some malformed events, and a
second load takes only that batch. Every count is checked.

The topic alone shows what has been sent: the events of a partition are always the same, in the same order. A
run therefore skips as many events as each partition holds, after an interrupted run as after a complete one.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic, OffsetSpec

from mainstem.cli.fitted_table import Column, FittedTable
from mainstem.cli.load_run import run_load
from mainstem.cli.options import OutputChoice
from mainstem.cli.output import Advance, Output, OutputFormat, table
from mainstem.cli.sql import query_warehouse, show_rows
from mainstem.errors import ClusterUnreachable, CommandError, program_name
from mainstem.kafka.client import ADMIN_TIMEOUT_SECONDS, Cluster
from mainstem.local.stack import Stack
from mainstem.records.flights import BROKEN_EVENTS, FLIGHT_COUNT, first_batch, second_batch
from mainstem.records.lines import Record
from mainstem.records.partitioner import partition_of
from mainstem.records.sending import Sender

if TYPE_CHECKING:
    from mainstem_loader.load_topic import LoadReport

DEFAULT_DATA_DIRECTORY: Final = Path("data/demo")
BROKERS: Final = 3
PARTITIONS: Final = 6
LEADERS_TIMEOUT_SECONDS: Final = 30.0
LEADERS_PAUSE_SECONDS: Final = 0.2
TOPIC: Final = "flights"
_STAGE_TITLES: Final = {"send": "Seconds to send", "load": "Seconds to load", "ask": "Seconds to query"}
_DAY_MS: Final = 86_400_000
_EVENTS_BETWEEN_BARS: Final = 1000

QUESTIONS: Final = {
    "Which carriers kept people waiting longest?": """
        SELECT carrier, count(*) AS flights, round(avg(dep_delay), 1) AS mean_delay_minutes,
               round(100.0 * sum(CASE WHEN dep_delay > 60 THEN 1 ELSE 0 END) / count(dep_delay), 1)
                   AS late_by_an_hour_percent
        FROM flights WHERE year = 2013
        GROUP BY carrier ORDER BY mean_delay_minutes DESC LIMIT 5""",
    "Which days were the worst to fly?": """
        SELECT make_date(year, month, payload_day) AS date, count(*) AS flights,
               count(*) - count(dep_time) AS cancelled, round(avg(dep_delay), 1) AS mean_delay_minutes
        FROM flights WHERE year = 2013
        GROUP BY year, month, payload_day ORDER BY cancelled DESC LIMIT 5""",
}
_COUNTS: Final = """
    SELECT count(*) AS rows, count(DISTINCT 1000000000 * CAST(_partition AS BIGINT) + _offset) AS records,
           count(DISTINCT day) AS days
    FROM flights"""
_REJECTED: Final = f"SELECT count(*) AS rows FROM dead_letters WHERE topic = '{TOPIC}'"


class CountIsOff(CommandError):
    """A count of the demo is not the expected one."""


@dataclass(slots=True)
class Batch:
    """A batch of events, and what this run did with it.

    `sent`, `loaded` and `rejected` count events of this run. `stored` is the number of records in the topic
    afterwards, with older ones. `days` is the number of days that got rows.
    """

    name: str
    events: int
    sent: int = 0
    stored: int = 0
    loaded: int = 0
    rejected: int = 0
    days: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.seconds[stage] = round(self.seconds.get(stage, 0) + time.monotonic() - started, 1)


def demo(
    data: Annotated[
        Path,
        typer.Option("--data", "-d", metavar="DIR", help="Folder of the brokers' data and the warehouse."),
    ] = DEFAULT_DATA_DIRECTORY,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Send 336,776 real events to three brokers, load them into a table and query it.

    A second run on the same folder sends and loads nothing twice.
    """
    out = Output(output)
    started = time.monotonic()
    stack = Stack(data / "stack", BROKERS, port=0)
    try:
        with out.waiting(f"Starting ZooKeeper and {BROKERS} brokers"):
            stack.start()
        out.done(f"ZooKeeper and {BROKERS} brokers are up, in {time.monotonic() - started:.1f} s.")
        run = DemoRun(out, Cluster(stack.bootstrap_servers), data / "warehouse")
        run.all()
    except KeyboardInterrupt:
        out.say("\nInterrupted. The next run continues from here.")
        raise typer.Exit(130) from None
    finally:
        with out.waiting("Stopping the brokers"):
            stack.stop()
    run.show(time.monotonic() - started)
    program = program_name()
    out.say("\nQuery the table:")
    out.command(f"{program} sql 'SELECT * FROM flights LIMIT 5' --warehouse {data / 'warehouse'}")
    out.say("Start the brokers again:")
    out.command(f"{program} up --data {data / 'stack'}")


class DemoRun:
    """The demo on a running cluster, with its tables in `warehouse`."""

    def __init__(self, out: Output, cluster: Cluster, warehouse: Path) -> None:
        self._out = out
        self._cluster = cluster
        self._warehouse = warehouse
        self._batches: list[Batch] = []
        self._answers: dict[str, list[dict[str, Any]]] = {}
        self._totals: dict[str, int] = {}

    def all(self) -> None:
        """Send and load both batches, with the queries in between.

        Raises:
            CountIsOff: a count is not the expected one.
        """
        self._create_topic()
        unsent = Unsent(self._stored())
        total = FLIGHT_COUNT + sum(1 for _ in second_batch())
        if unsent.stored_count > total:
            raise CountIsOff(
                f"Topic {TOPIC} holds {unsent.stored_count:,} records, more than the demo sends: choose "
                "another folder with --data."
            )
        first = self._bring(Batch("year 2013", FLIGHT_COUNT), unsent.of(first_batch()), unsent)
        for question, statement in QUESTIONS.items():
            with first.timed("ask"):
                result = query_warehouse(self._warehouse, statement)
            self._answers[question] = result.to_pylist()
            if not self._out.json:
                self._out.say("")
                show_rows(self._out, result, title=question)
        more = Batch("one more day", total - FLIGHT_COUNT)
        self._bring(more, unsent.of(second_batch()), unsent)
        self._totals = self._count()
        _check("days in the table", self._totals["days"], len(unsent.days))
        _check("dead letters", self._totals["rejected"], len(BROKEN_EVENTS))

    def show(self, seconds: float) -> None:
        """Show the counts and times of both batches."""
        out = self._out
        value = {
            "batches": [asdict(batch) for batch in self._batches],
            "table": self._totals,
            "answers": self._answers,
            "seconds": round(seconds, 1),
        }
        if not out.json:
            out.say("")
        out.result(value, account_table(self._batches))
        totals = self._totals
        out.done(
            f"The table holds {totals['rows']:,} rows of {totals['days']} days, each record once. "
            f"{totals['rejected']} malformed records are in dead_letters. Total time: {seconds:.0f} s."
        )

    def _create_topic(self) -> None:
        # The events are of 2013: any retention would delete them at once.
        new = NewTopic(TOPIC, PARTITIONS, BROKERS, config={"retention.ms": "-1"})
        try:
            self._cluster.admin.create_topics([new], request_timeout=ADMIN_TIMEOUT_SECONDS)[TOPIC].result()
        except KafkaException as exception:
            if exception.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._cluster.refusal(exception, f"Topic {TOPIC} was not created") from exception

    def _stored(self) -> dict[int, int]:
        """The number of records in each partition: the high watermark minus the earliest offset.

        Waits for leaders, whose election takes some seconds after all brokers were killed. Without the wait,
        an unknown offset would count as 0 and everything would be sent again.
        """
        deadline = time.monotonic() + LEADERS_TIMEOUT_SECONDS
        while True:
            partitions = self._cluster.topic(TOPIC).topic_partitions()  # with the current leaders
            earliest, latest = self._cluster.offsets(partitions, OffsetSpec.earliest(), OffsetSpec.latest())
            stored = {
                number: end - first
                for number, first in earliest.items()
                if first is not None and (end := latest[number]) is not None
            }
            if len(stored) == len(partitions):
                return stored
            if time.monotonic() > deadline:
                raise ClusterUnreachable(
                    f"Not all partitions of {TOPIC} have leaders: run the demo again in a moment."
                )
            time.sleep(LEADERS_PAUSE_SECONDS)

    def _bring(self, batch: Batch, events: Iterable[Record], unsent: Unsent) -> Batch:
        """Send a batch's unsent events, then load the records that the table does not have yet."""
        self._batches.append(batch)
        sender = Sender(self._cluster, TOPIC, self._out.warn, compression="lz4")
        with batch.timed("send"):
            with self._out.progress(f"Sending the events of {batch.name}", batch.events) as advance:
                sender.send(_with_bar(events, advance))
                sent = sender.finish()
            sent.check(TOPIC)
        batch.sent = sent.records
        unsent.stored_count += sent.records
        batch.stored = sum(self._stored().values())
        _check("records in the topic", batch.stored, unsent.stored_count)
        self._out.done(
            f"Sent {batch.sent:,} events of {batch.name}; the topic holds {batch.stored:,}."
            if batch.sent
            else f"All {batch.events:,} events of {batch.name} are in the topic already: nothing sent."
        )
        with batch.timed("load"):
            report = self._load()
        batch.loaded, batch.rejected, batch.days = report.loaded, report.dead_lettered, len(report.days)
        self._out.done(
            f"Loaded {batch.loaded:,} rows into {batch.days} days; {batch.rejected} events were malformed."
            if report.read
            else "The table has all records already: nothing loaded."
        )
        counts = self._count()
        _check("rows and dead letters together", counts["rows"] + counts["rejected"], batch.stored)
        _check("different records among the rows", counts["records"], counts["rows"])
        return batch

    def _load(self) -> LoadReport:
        from mainstem_loader.load_topic import LoadSettings

        settings = LoadSettings(
            bootstrap_servers=self._cluster.bootstrap_servers,
            topic=TOPIC,
            warehouse=self._warehouse,
            cores=os.cpu_count() or 1,
        )
        return run_load(self._out, settings)

    def _count(self) -> dict[str, int]:
        from mainstem_loader.table.query import tables

        (counts,) = query_warehouse(self._warehouse, _COUNTS).to_pylist()
        has_rejected = "dead_letters" in tables(self._warehouse)
        rejected = query_warehouse(self._warehouse, _REJECTED).to_pylist()[0]["rows"] if has_rejected else 0
        return {**counts, "rejected": rejected}


def account_table(batches: Sequence[Batch]) -> FittedTable:
    """A column for each batch, a row for each count and time."""
    counts = ("events", "sent", "stored", "loaded", "rejected", "days")
    rows: list[dict[str, object]] = [
        {"what": name.capitalize(), **{batch.name: getattr(batch, name) for batch in batches}}
        for name in counts
    ]
    for stage, title in _STAGE_TITLES.items():
        seconds = {batch.name: batch.seconds[stage] for batch in batches if stage in batch.seconds}
        rows.append({"what": title, **dict.fromkeys((batch.name for batch in batches), None), **seconds})
    return table(
        "Summary", [Column("", "what"), *(Column(batch.name, batch.name) for batch in batches)], rows
    )


class Unsent:
    """Filters out the events that a topic's partitions hold already.

    `stored` is the number of records that each partition held in the beginning. `days` are the days of all
    events, sent or not, as days since 1970 (UTC).
    """

    def __init__(self, stored: Mapping[int, int]) -> None:
        self._stored = stored
        self._seen: Counter[int] = Counter()
        self.stored_count = sum(stored.values())
        self.days: set[int] = set()

    def of(self, events: Iterable[Record]) -> Iterator[Record]:
        """The events that are not stored yet. Call it once per batch, always in the same order."""
        partitions: dict[bytes | None, int] = {}
        for event in events:
            _, key, timestamp_ms = event
            partition = partitions.get(key)
            if partition is None:
                partition = partitions[key] = partition_of(key or b"", len(self._stored))
            self.days.add(timestamp_ms // _DAY_MS)
            self._seen[partition] += 1
            if self._seen[partition] > self._stored[partition]:
                yield event


def _with_bar(events: Iterable[Record], advance: Advance) -> Iterator[Record]:
    for number, event in enumerate(events, start=1):
        yield event
        if number % _EVENTS_BETWEEN_BARS == 0:
            advance(_EVENTS_BETWEEN_BARS)


def _check(what: str, actual: int, expected: int) -> None:
    if actual != expected:
        raise CountIsOff(f"There are {actual:,} {what}, but {expected:,} were expected.")
