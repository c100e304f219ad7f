"""`mainstem demo`: the main job on real data, from events to answers, on this machine.

Three brokers take the flights of 2013 as JSON events from a stock client, the loader brings them into a
table by day, and two questions are asked of it. Then a second batch arrives, some of it broken, and a second
load takes only that. Every count is checked.

What has been sent is known from the topic alone: the events of a partition are always the same ones in the
same order, so as many as a partition holds have been sent, and sending goes on behind them. That is so after
a run that was interrupted, and after one that was not.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic, OffsetSpec

from mainstem.client import ADMIN_TIMEOUT_SECONDS, Cluster
from mainstem.errors import ClusterUnreachable, CommandError
from mainstem.flights import BROKEN_EVENTS, FLIGHT_COUNT, first_batch, second_batch
from mainstem.lines import Record
from mainstem.load import run_load
from mainstem.options import OutputChoice
from mainstem.output import Advance, Column, Output, OutputFormat, program_name, table
from mainstem.partitioner import partition_of
from mainstem.sending import Sender
from mainstem.sql import ask, show_answer
from mainstem.stack import Stack

if TYPE_CHECKING:
    from mainstem_loader.load_topic import LoadReport

DEFAULT_DATA_DIRECTORY: Final = Path("data/demo")
BROKERS: Final = 3
PARTITIONS: Final = 6
LEADERS_TIMEOUT_SECONDS: Final = 30.0
LEADERS_PAUSE_SECONDS: Final = 0.2
TOPIC: Final = "flights"
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
    """The demo found another number of records somewhere than there must be."""


@dataclass(slots=True)
class Batch:
    """A batch of events on its way, and what this run did with it.

    `stored`: records in the topic afterwards, older ones included. `days`: that got rows.
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
        Path, typer.Option("--data", "-d", metavar="DIR", help="Folder that keeps brokers and warehouse.")
    ] = DEFAULT_DATA_DIRECTORY,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Run the main job end to end: 336,776 real events, three brokers, a table by day, questions to it.

    Run it again on the same folder and it sends and loads nothing twice.
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
        out.say("\nInterrupted. Run it again, and it goes on where it was.")
        raise typer.Exit(130) from None
    finally:
        with out.waiting("Stopping the brokers"):
            stack.stop()
    run.show(time.monotonic() - started)
    program = program_name()
    out.say(f"\nAsk more:     {program} sql 'SELECT * FROM flights LIMIT 5' --warehouse {data / 'warehouse'}")
    out.say(f"The brokers:  {program} up --data {data / 'stack'}")


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
        """Bring both batches, with the questions in between.

        Raises:
            CountIsOff: a count is not what it must be.
        """
        self._create_topic()
        unsent = Unsent(self._stored())
        total = FLIGHT_COUNT + sum(1 for _ in second_batch())
        if unsent.stored_count > total:
            raise CountIsOff(
                f"Topic {TOPIC} holds {unsent.stored_count:,} records, more than the demo ever sends: choose "
                "another folder with --data."
            )
        first = self._bring(Batch("year 2013", FLIGHT_COUNT), unsent.of(first_batch()), unsent)
        for question, statement in QUESTIONS.items():
            with first.timed("ask"):
                answer = ask(self._warehouse, statement)
            self._answers[question] = answer.to_pylist()
            if not self._out.json:
                self._out.say("")
                show_answer(self._out, answer, title=question)
        more = Batch("one more day", total - FLIGHT_COUNT)
        self._bring(more, unsent.of(second_batch()), unsent)
        self._totals = self._count()
        _check("days in the table", self._totals["days"], len(unsent.days))
        _check("dead letters", self._totals["rejected"], len(BROKEN_EVENTS))

    def show(self, seconds: float) -> None:
        """Show the account of both batches."""
        out = self._out
        columns = [Column("Batch", "name"), Column("Events", "events"), Column("Sent", "sent")]
        columns += [Column("Stored", "stored"), Column("Loaded", "loaded"), Column("Rejected", "rejected")]
        columns += [
            Column("Days", "days"),
            *(Column(f"{stage} s", stage) for stage in ("send", "load", "ask")),
        ]
        rows = [{**asdict(batch), **batch.seconds} for batch in self._batches]
        value = {
            "batches": [asdict(batch) for batch in self._batches],
            "table": self._totals,
            "answers": self._answers,
            "seconds": round(seconds, 1),
        }
        if not out.json:
            out.say("")
        out.result(value, table("The account", columns, rows))
        totals = self._totals
        out.done(
            f"The table holds {totals['rows']:,} rows of {totals['days']} days, each record once, and "
            f"{totals['rejected']} broken ones are dead letters. {seconds:.0f} s in all."
        )

    def _create_topic(self) -> None:
        # The events are of 2013: with any retention they would be gone at once.
        new = NewTopic(TOPIC, PARTITIONS, BROKERS, config={"retention.ms": "-1"})
        try:
            self._cluster.admin.create_topics([new], request_timeout=ADMIN_TIMEOUT_SECONDS)[TOPIC].result()
        except KafkaException as exception:
            if exception.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._cluster.refusal(exception, f"Topic {TOPIC} was not created") from exception

    def _stored(self) -> dict[int, int]:
        """How many records each partition holds: the high watermark less the earliest offset.

        Waits for leaders, which brokers that were all killed take some seconds to elect: an unknown offset
        taken for 0 would have everything sent once more.
        """
        deadline = time.monotonic() + LEADERS_TIMEOUT_SECONDS
        while True:
            partitions = self._cluster.topic(TOPIC).topic_partitions()  # with the leaders of now
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
                    f"Not all partitions of {TOPIC} have leaders: see `mainstem cluster status`, then run"
                    " this again."
                )
            time.sleep(LEADERS_PAUSE_SECONDS)

    def _bring(self, batch: Batch, events: Iterable[Record], unsent: Unsent) -> Batch:
        """Send a batch's unsent events, then load what the table has not."""
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
            f"Loaded {batch.loaded:,} rows into {batch.days} days; {batch.rejected} events did not parse."
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
        from mainstem_loader.query import tables

        (counts,) = ask(self._warehouse, _COUNTS).to_pylist()
        has_rejected = "dead_letters" in tables(self._warehouse)
        rejected = ask(self._warehouse, _REJECTED).to_pylist()[0]["rows"] if has_rejected else 0
        return {**counts, "rejected": rejected}


class Unsent:
    """Leaves out of the events those that a topic's partitions hold already.

    `stored` is how many records each partition held in the beginning. `days` are the days of all events, sent
    or not, as days since 1970 (UTC).
    """

    def __init__(self, stored: Mapping[int, int]) -> None:
        self._stored = stored
        self._seen: Counter[int] = Counter()
        self.stored_count = sum(stored.values())
        self.days: set[int] = set()

    def of(self, events: Iterable[Record]) -> Iterator[Record]:
        """The events that are not there yet; to be asked batch after batch, always in the same order."""
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


def _check(what: str, found: int, expected: int) -> None:
    if found != expected:
        raise CountIsOff(f"There are {found:,} {what}, and there must be {expected:,}.")
