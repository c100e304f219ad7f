"""`mainstem load status`, `backfill`, `rewind` and `replay-dead`: what was loaded, and loading it again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from mainstem.cli.load_run import (
    Cores,
    EventTime,
    EventTimeUnit,
    FormatChoice,
    InputColumns,
    Inputs,
    MaxRejectedPercent,
    Payload,
    PayloadChoice,
    SchemaRegistry,
    TableFormatChoice,
    TransformSource,
    TypedFields,
    UnitChoice,
    WithHeaders,
    catalog_of,
    load_settings,
    run_job,
)
from mainstem.cli.number_options import integer
from mainstem.cli.options import (
    BootstrapServers,
    ClientProperties,
    OutputChoice,
    TableName,
    TopicName,
    connect,
)
from mainstem.cli.output import Column, Output, OutputFormat, facts, table
from mainstem.cli.registry_access import registry_access
from mainstem.cli.sql import DEFAULT_NAMESPACE, DEFAULT_WAREHOUSE, Catalog, CatalogNamespace, Warehouse
from mainstem.errors import BadInput, CommandError
from mainstem.times import date_time_ms, duration_text, text_of_ms
from mainstem.whole_numbers import is_whole_number

if TYPE_CHECKING:
    from mainstem_loader.chosen_offsets import ChosenOffsets
    from mainstem_loader.rewrite_rows import RewriteReport

_OFFSETS: Final = re.compile(r"([0-9]+):([0-9]+)-([0-9]+)")
_INT64_MAX: Final = 2**63 - 1

_COLUMNS: Final = (
    Column("partition", "partition"),
    Column("loaded up to", "loaded_up_to"),
    Column("log start", "log_start"),
    Column("log end", "log_end"),
    Column("lag", "lag"),
    Column("behind", "behind"),
    Column("dead letters", "dead_letters"),
)

Days = Annotated[
    list[str] | None,
    typer.Option("--day", metavar="DAY", help="A day of events (UTC), such as 2026-01-31; repeatable."),
]
Since = Annotated[
    str | None, typer.Option("--from", metavar="TIME", help="Records from this time on (ISO 8601).")
]
Until = Annotated[str | None, typer.Option("--to", metavar="TIME", help="Records before this time.")]
Offsets = Annotated[
    list[str] | None,
    typer.Option(
        "--offsets", metavar="PARTITION:FIRST-LAST", help="Offsets of a partition, such as 0:100-199."
    ),
]
Everything = Annotated[bool, typer.Option("--all", help="Everything that was loaded.")]
Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", **integer(0), metavar="N", help="Only this partition; repeatable."),
]


def status(
    topic: TopicName,
    warehouse: Warehouse = DEFAULT_WAREHOUSE,
    table_name: TableName = None,
    table_format: TableFormatChoice = FormatChoice.DELTA,
    catalog: Catalog = None,
    catalog_namespace: CatalogNamespace = DEFAULT_NAMESPACE,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show how far each partition of a topic is loaded, and how far behind the table is.

    The lag is in offsets, which may be more than records; "behind" is the age of the oldest record that is
    still to be loaded.
    """
    from mainstem_loader.errors import LoaderError
    from mainstem_loader.load_status import load_status

    place = catalog_of(table_format, catalog, catalog_namespace)
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    cluster.topic(topic)
    try:
        with out.waiting("Asking the brokers"):
            settings = load_settings(cluster, topic, warehouse, table_name)
            table_status = load_status(replace(settings, catalog=place))
    except LoaderError as error:
        raise CommandError(str(error)) from error
    rows: list[dict[str, Any]] = [
        asdict(part) | {"behind": None if part.behind_ms is None else _age(part.behind_ms)}
        for part in table_status.partitions
    ]
    folder = f"{warehouse.rstrip('/')}/" if place is None else f"{catalog_namespace}."
    shown: dict[str, object] = {"Table": f"{folder}{table_status.table}"}
    if table_status.last_run is None:
        shown["Last run"] = "none"
    else:
        run = table_status.last_run
        shown["Last run"] = f"{run.kind}, {text_of_ms(run.committed_ms)} ({run.run_id})"
        shown["Loaded"] = run.loaded
        shown["Dead letters"] = run.dead
    out.result(asdict(table_status), facts(shown), table(f"Loads of {topic}", _COLUMNS, rows))


def backfill(
    topic: TopicName,
    warehouse: Warehouse = DEFAULT_WAREHOUSE,
    table_name: TableName = None,
    days: Days = None,
    since: Since = None,
    until: Until = None,
    offsets: Offsets = None,
    everything: Everything = False,
    partitions: Partitions = None,
    replace_rows: Annotated[
        bool,
        typer.Option("--replace", help="Replace rows, in one commit. Default: add missing rows."),
    ] = False,
    payload: Payload = PayloadChoice.JSON,
    schema_registry: SchemaRegistry = None,
    event_time: EventTime = None,
    event_time_unit: EventTimeUnit = UnitChoice.MILLISECONDS,
    with_headers: WithHeaders = False,
    typed_fields: TypedFields = None,
    transform: TransformSource = None,
    inputs: Inputs = None,
    input_columns: InputColumns = None,
    max_rejected_percent: MaxRejectedPercent = 5.0,
    cores: Cores = None,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Load records again that were loaded before: add missing rows, or replace rows.

    It may run beside scheduled loads, and be killed at any time. Rows of records that the topic no longer has
    stay as they are.
    """
    from mainstem_loader import rewrite_rows

    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    chosen = _chosen(days, since, until, offsets, everything, partitions)
    settings = load_settings(
        cluster,
        topic,
        warehouse,
        table_name,
        payload,
        registry_access(schema_registry, client_properties),
        event_time,
        event_time_unit,
        with_headers,
        max_rejected_percent,
        cores,
        typed_fields,
        transform,
        inputs,
        input_columns,
    )
    cluster.topic(topic)
    job = partial(rewrite_rows.backfill, settings, chosen, replace_rows)
    report = run_job(out, f"Loading {topic} again", job)
    if report.run_id is None:
        sentence = f"Nothing is missing in table {report.table}: nothing was changed."
        if not report.ranges:
            sentence = f"Topic {topic} has none of the chosen records: nothing was changed."
    elif replace_rows:
        sentence = f"Replaced {report.removed:,} rows of table {report.table} by {report.loaded:,}."
    else:
        sentence = f"Added {report.loaded:,} missing rows to table {report.table}."
    _show(out, report, sentence)


def rewind(
    topic: TopicName,
    to: Annotated[
        str,
        typer.Option("--to", metavar="WHERE", help="earliest, an offset, or a time (ISO 8601)."),
    ],
    warehouse: Warehouse = DEFAULT_WAREHOUSE,
    table_name: TableName = None,
    partitions: Partitions = None,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Remove the last rows of a table and set its offsets back, in one commit.

    The next load reads the records again. Until then the rows are missing; `backfill --replace` leaves
    no such gap. Rows of records that the topic no longer has stay as they are.
    """
    from mainstem_loader import rewrite_rows
    from mainstem_loader.chosen_offsets import ChosenOffsets
    from mainstem_loader.ranges import OffsetRange

    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    if is_whole_number(to):
        if not partitions:
            raise BadInput("An offset belongs to one partition: name the partition with --partition.")
        if int(to) >= _INT64_MAX:
            raise BadInput(f"--to is {to}, which is too large for an offset.")
        chosen = ChosenOffsets(ranges=tuple(OffsetRange(part, int(to), _INT64_MAX) for part in partitions))
    else:
        since_ms = None if to == "earliest" else _time_ms("--to", to)
        chosen = ChosenOffsets(since_ms=since_ms, partitions=tuple(partitions or ()))
    cluster.topic(topic)
    settings = load_settings(cluster, topic, warehouse, table_name)
    report = run_job(out, f"Rewinding {topic}", partial(rewrite_rows.rewind, settings, chosen))
    sentence = f"Table {report.table} has loaded nothing from there on: nothing was changed."
    if report.run_id is not None:
        sentence = f"Removed {report.removed:,} rows of table {report.table}; the next load reads them again."
    _show(out, report, sentence)


def replay_dead(
    topic: TopicName,
    warehouse: Warehouse = DEFAULT_WAREHOUSE,
    table_name: TableName = None,
    offsets: Offsets = None,
    partitions: Partitions = None,
    payload: Payload = PayloadChoice.JSON,
    schema_registry: SchemaRegistry = None,
    event_time: EventTime = None,
    event_time_unit: EventTimeUnit = UnitChoice.MILLISECONDS,
    with_headers: WithHeaders = False,
    typed_fields: TypedFields = None,
    transform: TransformSource = None,
    inputs: Inputs = None,
    input_columns: InputColumns = None,
    cores: Cores = None,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Load the dead letters of a topic that can be read now, each once.

    Run it after the cause is removed, such as a missing schema or a wrong option. It reads the bytes in
    the table `dead_letters`, not the topic. Records that still cannot be read stay there.
    """
    from mainstem_loader import rewrite_rows

    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    chosen = _chosen(None, None, None, offsets, not offsets, partitions)
    settings = load_settings(
        cluster,
        topic,
        warehouse,
        table_name,
        payload,
        registry_access(schema_registry, client_properties),
        event_time,
        event_time_unit,
        with_headers,
        cores=cores,
        typed_fields=typed_fields,
        transform=transform,
        inputs=inputs,
        input_columns=input_columns,
    )
    cluster.topic(topic)
    job = partial(rewrite_rows.replay_dead_letters, settings, chosen)
    report = run_job(out, f"Loading dead letters of {topic}", job)
    sentence = f"Loaded {report.loaded:,} of {report.read:,} dead letters into table {report.table}."
    if not report.ranges:
        sentence = f"Table {report.table} has no dead letters of {topic}: nothing was changed."
    elif report.read and not report.loaded:
        sentence = f"None of {report.read:,} dead letters can be read: nothing was changed."
    _show(out, report, sentence)


def _chosen(
    days: Sequence[str] | None,
    since: str | None,
    until: str | None,
    offsets: Sequence[str] | None,
    everything: bool,
    partitions: Sequence[int] | None,
) -> ChosenOffsets:
    from mainstem_loader.chosen_offsets import ChosenOffsets
    from mainstem_loader.ranges import OffsetRange

    if not (days or since or until or offsets or everything):
        raise BadInput("Choose what to load again: --day, --from and --to, --offsets, or --all.")
    if everything and (days or since or until or offsets):
        raise BadInput("--all includes everything: remove it, or remove the days, times and offsets.")
    ranges = []
    for text in offsets or ():
        match = _OFFSETS.fullmatch(text)
        if match is None or int(match[3]) >= _INT64_MAX:
            raise BadInput(f"--offsets is {text!r}; write PARTITION:FIRST-LAST, such as 0:100-199.")
        ranges.append(OffsetRange(int(match[1]), int(match[2]), int(match[3]) + 1))
    return ChosenOffsets(
        ranges=tuple(ranges),
        days=tuple(_day(text) for text in days or ()),
        since_ms=None if since is None else _time_ms("--from", since),
        until_ms=None if until is None else _time_ms("--to", until),
        partitions=tuple(partitions or ()),
    )


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise BadInput(f"--day is {text!r}; write a date, such as 2026-01-31.") from error


def _time_ms(option: str, text: str) -> int:
    time_ms = date_time_ms(text)
    if time_ms is None:
        raise BadInput(f"{option} is {text!r}; write a date or a time, such as 2026-01-31T10:00:00Z.")
    return time_ms


def _age(behind_ms: int) -> str:
    return duration_text(max(behind_ms, 0) // 1000 * 1000)


def _show(out: Output, report: RewriteReport, sentence: str) -> None:
    out.done(sentence)
    days = f"{len(report.days)} ({report.days[0]} to {report.days[-1]})" if report.days else "0"
    shown: dict[str, object] = {
        "Offsets": [f"partition {part.partition}: {part.start} to {part.end - 1}" for part in report.ranges],
        "Read": report.read,
        "Loaded": report.loaded,
        "Dead letters": report.dead_lettered,
        "Removed rows": report.removed,
        "Days": days,
        "Seconds": [f"{stage} {seconds:.1f}" for stage, seconds in report.seconds.items() if seconds],
    }
    out.result(asdict(report), facts(shown))
    for warning in report.warnings:
        out.warn(warning)
