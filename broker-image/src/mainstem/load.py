"""`mainstem load`: brings a topic's new records into its warehouse table, by the loader on this machine."""

from __future__ import annotations

import os
import warnings
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mainstem.client import DEFAULT_BOOTSTRAP_SERVERS, Cluster
from mainstem.errors import BadInput, CommandError
from mainstem.options import BootstrapServers, OutputChoice, TopicName
from mainstem.output import Output, OutputFormat, facts
from mainstem.sql import DEFAULT_WAREHOUSE, Warehouse

if TYPE_CHECKING:
    from mainstem_loader.load_topic import LoadProgress, LoadReport, LoadSettings


_DOING: Final = {
    "connect": "asking the brokers",
    "start": "starting Spark",
    "load": "fetching, writing",
    "commit": "committing",
}


class PayloadChoice(StrEnum):
    """How values become columns: a column for each field of a JSON object, or one with the bytes."""

    JSON = "json"
    RAW = "raw"


class GapChoice(StrEnum):
    """What to do when records were deleted from the topic before they were loaded."""

    FAIL = "fail"
    SKIP = "skip-and-record"


def load(
    topic: TopicName,
    warehouse: Warehouse = DEFAULT_WAREHOUSE,
    table: Annotated[
        str | None, typer.Option("--table", "-t", help="Name of the table; else the topic's.")
    ] = None,
    payload: Annotated[
        PayloadChoice, typer.Option("--format", "-f", help="How values become columns.")
    ] = PayloadChoice.JSON,
    event_time: Annotated[
        str | None,
        typer.Option("--event-time", metavar="FIELD", help="Field that says when; else the timestamp."),
    ] = None,
    with_headers: Annotated[bool, typer.Option("--with-headers", help="Keep headers, as _headers.")] = False,
    on_gap: Annotated[
        GapChoice, typer.Option(help="What to do about records deleted before they were loaded.")
    ] = GapChoice.FAIL,
    max_records: Annotated[int | None, typer.Option(min=1, help="Load no more than about so many.")] = None,
    cores: Annotated[
        int | None, typer.Option(min=1, help="Tasks side by side; else as many as there are cores.")
    ] = None,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Load what a topic has and its warehouse table has not.

    Run it again at any time, kill it at any time: no record is lost or loaded twice. What does not parse
    goes to the table `dead_letters`.
    """
    from mainstem_loader.load_topic import LoadSettings
    from mainstem_loader.payload import PayloadFormat
    from mainstem_loader.ranges import GapPolicy

    out = Output(output)
    settings = LoadSettings(
        bootstrap_servers=bootstrap_servers,
        topic=topic,
        warehouse=warehouse,
        table=table,
        payload=PayloadFormat(payload.value),
        event_time_field=event_time,
        with_headers=with_headers,
        on_gap=GapPolicy(on_gap.value),
        max_records=max_records,
        cores=cores or os.cpu_count() or 1,
    )
    if "://" not in warehouse:
        try:
            Path(warehouse).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(
                f"The warehouse {warehouse} cannot be used ({error.strerror}): name another."
            ) from error
    Cluster(bootstrap_servers).topic(topic)  # names similar ones when there is none
    _show(out, run_load(out, settings))


def run_load(out: Output, settings: LoadSettings) -> LoadReport:
    """Load, with a bar on a terminal.

    Raises:
        CommandError: it failed; the message is the loader's, and nothing was loaded.
    """
    from mainstem_loader.errors import LoaderError
    from mainstem_loader.load_topic import load_topic

    try:
        with out.stages("Loading") as show, warnings.catch_warnings():
            # pyspark warns of a pandas that others brought along, and that nothing here uses.
            warnings.simplefilter("ignore", FutureWarning)

            def on_progress(progress: LoadProgress) -> None:
                doing = _DOING.get(progress.stage.value, progress.stage.value)
                show(f"Loading {settings.topic}: {doing}", progress.done, progress.total)

            return load_topic(settings, on_progress=on_progress)
    except LoaderError as error:
        raise CommandError(str(error)) from error


def _show(out: Output, report: LoadReport) -> None:
    out.done(
        f"Loaded {report.loaded:,} records of {report.topic} into table {report.table}."
        if report.read
        else f"Table {report.table} has all records of {report.topic}: nothing to load."
    )
    days = f"{len(report.days)} ({report.days[0]} to {report.days[-1]})" if report.days else "0"
    shown: dict[str, object] = {
        "Read": report.read,
        "Loaded": report.loaded,
        "Dead letters": report.dead_lettered,
        "Days": days,
        "Files": f"{report.files:,} ({report.size_bytes / 2**20:,.1f} MiB)",
        "Seconds": [f"{stage} {seconds:.1f}" for stage, seconds in report.seconds.items() if seconds],
    }
    if report.gaps:
        shown["Gaps"] = [f"partition {gap.partition}: {gap.start} to {gap.end - 1}" for gap in report.gaps]
    out.result(asdict(report), facts(shown))
    if report.dead_lettered:
        out.warn(
            f"{report.dead_lettered:,} records did not parse: they are in the table dead_letters, each with "
            "the reason."
        )
