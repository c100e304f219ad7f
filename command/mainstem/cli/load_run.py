"""`mainstem load run`: loads new records of a topic into its warehouse table, on this machine."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from mainstem.cli.number_options import decimal, integer
from mainstem.cli.options import (
    BootstrapServers,
    ClientProperties,
    OutputChoice,
    TableName,
    TopicName,
    connect,
)
from mainstem.cli.output import Output, OutputFormat, facts
from mainstem.cli.registry_access import REGISTRY_VARIABLE, RegistryAccess, registry_access
from mainstem.cli.sql import DEFAULT_NAMESPACE, DEFAULT_WAREHOUSE, Catalog, CatalogNamespace, Warehouse
from mainstem.errors import BadInput, CommandError
from mainstem.kafka.client import Cluster

if TYPE_CHECKING:
    from mainstem_loader.load_topic import LoadProgress, LoadReport
    from mainstem_loader.settings import LoadSettings
    from mainstem_loader.table.iceberg_catalog import IcebergCatalog

Report = TypeVar("Report")

_DOING: Final = {
    "connect": "asking the brokers",
    "start": "starting Spark",
    "load": "fetching, writing",
    "transform": "transforming",
    "copy": "copying rows that stay",
    "commit": "committing",
    "retention": "deleting records that are loaded and old",
    "sweep": "deleting files of interrupted loads",
}


class LoadInterrupted(CommandError):
    """Ctrl-C during a load."""

    exit_code = 130


class TooManyRejected(CommandError):
    """The load is committed, but too many of its records are dead letters."""

    exit_code = 3


class PayloadChoice(StrEnum):
    """How values become columns: one for each field (JSON objects, Avro, Protobuf), or one with the bytes."""

    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    JSON_SCHEMA = "json-schema"
    RAW = "raw"


class FormatChoice(StrEnum):
    """What the table is."""

    DELTA = "delta"
    ICEBERG = "iceberg"


class UnitChoice(StrEnum):
    """The unit of event times that are numbers."""

    SECONDS = "s"
    MILLISECONDS = "ms"
    MICROSECONDS = "us"
    NANOSECONDS = "ns"


class GapChoice(StrEnum):
    """What to do when records were deleted from the topic before they were loaded."""

    FAIL = "fail"
    SKIP = "skip"


TableFormatChoice = Annotated[FormatChoice, typer.Option("--format", help="Format of the table.")]
Payload = Annotated[PayloadChoice, typer.Option("--payload", help="How values become columns.")]
SchemaRegistry = Annotated[
    str | None,
    typer.Option(
        "--schema-registry",
        metavar="URL",
        envvar=REGISTRY_VARIABLE,
        help="Registry of the schemas of values with ids. Default: the local stack's.",
        show_default=False,
    ),
]
EventTime = Annotated[
    str | None,
    typer.Option(
        "--event-time", metavar="FIELD", help="Field with the event time. Default: the record's timestamp."
    ),
]
EventTimeUnit = Annotated[
    UnitChoice, typer.Option("--event-time-unit", help="Unit of an event time that is a number since 1970.")
]
TypedFields = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="FIELD=TYPE", help="The type of a field, such as amount=double."),
]
TransformSource = Annotated[
    str | None,
    typer.Option(
        "--transform",
        metavar="FILE.sql|MODULE:FUNCTION",
        help="Spark SQL in a file, or a Python function, between topic and table.",
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="NAME=KIND:SOURCE",
        help="Another view of the transform: NAME=table:TABLE or NAME=topic:TOPIC[:FORMAT].",
    ),
]
InputColumns = Annotated[
    list[str] | None,
    typer.Option("--input-column", metavar="NAME.FIELD=TYPE", help="The type of a field of an input topic."),
]
WithHeaders = Annotated[bool, typer.Option("--with-headers", help="Keep headers, as _headers.")]
MaxRejectedPercent = Annotated[
    float, typer.Option(**decimal(0, 100), help="Fail if more of the records cannot be loaded.")
]
Cores = Annotated[
    int | None, typer.Option(**integer(1), help="Number of parallel tasks; by default the number of cores.")
]


def run(
    topic: TopicName,
    warehouse: Warehouse = DEFAULT_WAREHOUSE,
    table: TableName = None,
    table_format: TableFormatChoice = FormatChoice.DELTA,
    catalog: Catalog = None,
    catalog_namespace: CatalogNamespace = DEFAULT_NAMESPACE,
    payload: Payload = PayloadChoice.JSON,
    schema_registry: SchemaRegistry = None,
    event_time: EventTime = None,
    event_time_unit: EventTimeUnit = UnitChoice.MILLISECONDS,
    with_headers: WithHeaders = False,
    typed_fields: TypedFields = None,
    transform: TransformSource = None,
    inputs: Inputs = None,
    input_columns: InputColumns = None,
    on_gap: Annotated[
        GapChoice | None,
        typer.Option(
            help="If records were deleted before they were loaded. Default: fail, or skip for a new table."
        ),
    ] = None,
    max_records: Annotated[
        int | None,
        typer.Option("--max-records", "-n", **integer(1), help="Load about this many records, at most."),
    ] = None,
    max_rejected_percent: MaxRejectedPercent = 5.0,
    cores: Cores = None,
    spark_master: Annotated[
        str | None,
        typer.Option(
            "--master",
            metavar="URL",
            help="Spark master to run on, such as local[4]. Without it, small loads do not need Spark.",
        ),
    ] = None,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Load the records of a topic that its warehouse table does not have yet.

    Run it again at any time, kill it at any time: no record is lost or loaded twice. Values that
    cannot be parsed go to the table `dead_letters`.
    """
    from mainstem_loader.ranges import GapPolicy

    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    settings = replace(
        load_settings(
            cluster,
            topic,
            warehouse,
            table,
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
        ),
        on_gap=None if on_gap is None else GapPolicy(on_gap.value),
        max_records=max_records,
        spark_master=spark_master,
        catalog=catalog_of(table_format, catalog, catalog_namespace),
    )
    cluster.topic(topic)  # an unknown topic is an error that names similar ones
    place = f"{warehouse.rstrip('/')}/" if settings.catalog is None else f"{catalog_namespace}."
    _show(out, run_load(out, settings), place)


def catalog_of(table_format: FormatChoice, uri: str | None, namespace: str) -> IcebergCatalog | None:
    """The catalog that a load's options name; None for a Delta table.

    Raises:
        BadInput: a Delta table has none.
    """
    from mainstem_loader.table.iceberg_catalog import IcebergCatalog

    if table_format is FormatChoice.ICEBERG:
        return IcebergCatalog(uri, namespace)
    if uri is not None:
        raise BadInput("Delta tables are in no catalog: add --format iceberg, or leave out --catalog.")
    return None


def load_settings(
    cluster: Cluster,
    topic: str,
    warehouse: str,
    table: str | None = None,
    payload: PayloadChoice = PayloadChoice.JSON,
    registry: RegistryAccess | None = None,
    event_time: str | None = None,
    event_time_unit: UnitChoice = UnitChoice.MILLISECONDS,
    with_headers: bool = False,
    max_rejected_percent: float = 5.0,
    cores: int | None = None,
    typed_fields: Sequence[str] | None = None,
    transform: str | None = None,
    inputs: Sequence[str] | None = None,
    input_columns: Sequence[str] | None = None,
) -> LoadSettings:
    """What all commands about loads ask the loader to do, from their options.

    Raises:
        BadInput: an option cannot be what it is.
    """
    from mainstem_loader.column_types import columns_of
    from mainstem_loader.errors import SettingsError
    from mainstem_loader.payload.event_time import TimeUnit
    from mainstem_loader.payload.readers import PayloadFormat
    from mainstem_loader.settings import LoadSettings
    from mainstem_loader.transform.definition import declared_transform

    try:
        columns = columns_of(typed_fields or ())
        declared = declared_transform(transform, None, inputs or (), input_columns or ())
    except SettingsError as error:
        raise BadInput(str(error)) from error
    return LoadSettings(
        bootstrap_servers=cluster.bootstrap_servers,
        client_properties={**cluster.properties, **(registry.properties if registry else {})},
        topic=topic,
        warehouse=warehouse,
        table=table,
        payload=PayloadFormat(payload.value),
        schema_registry=registry.url if registry else None,
        event_time_field=event_time,
        event_time_unit=TimeUnit(event_time_unit.value),
        with_headers=with_headers,
        columns=columns,
        transform=declared,
        max_rejected_share=max_rejected_percent / 100,
        cores=cores or os.cpu_count() or 1,
    )


def run_load(out: Output, settings: LoadSettings) -> LoadReport:
    """Load, with a bar on a terminal.

    Raises:
        CommandError: it failed, or was interrupted; the message says what was loaded before.
    """
    from mainstem_loader.load_topic import load_topic

    return run_job(out, f"Loading {settings.topic}", partial(load_topic, settings))


def run_job(out: Output, title: str, job: Callable[..., Report]) -> Report:
    """Run a job of the loader that takes `on_progress`, with a bar on a terminal.

    Raises:
        CommandError: it failed, or was interrupted.
    """
    from mainstem_loader.errors import LoaderError

    try:
        with out.stages(title.partition(" ")[0]) as show, warnings.catch_warnings():
            # pyspark warns of a pandas that others brought along, and that nothing here uses.
            warnings.simplefilter("ignore", FutureWarning)

            def on_progress(progress: LoadProgress) -> None:
                doing = _DOING.get(progress.stage.value, progress.stage.value)
                show(f"{title}: {doing}", progress.done, progress.total)

            return job(on_progress=on_progress)
    except LoaderError as error:
        raise CommandError(str(error)) from error
    except KeyboardInterrupt as error:
        raise LoadInterrupted(
            "The load was interrupted. What was committed before stays; load again to continue."
        ) from error


def _headline(report: LoadReport) -> tuple[bool, str]:
    """Whether the load counts as a success, and a sentence on what it did."""
    if not report.read and report.gaps:
        return True, f"Table {report.table} has all records that {report.topic} still has: nothing to load."
    if not report.read:
        return True, f"Table {report.table} has all records of {report.topic}: nothing to load."
    if not report.loaded:
        return False, (
            f"None of {_counted(report.read)} of {report.topic} could be loaded into table {report.table}: "
            "all are dead letters. See whether --payload fits the topic's values."
        )
    return True, f"Loaded {_counted(report.loaded)} of {report.topic} into table {report.table}."


def _counted(records: int) -> str:
    return "1 record" if records == 1 else f"{records:,} records"


def _show(out: Output, report: LoadReport, place: str) -> None:
    succeeded, sentence = _headline(report)
    (out.done if succeeded else out.problem)(sentence)
    days = f"{len(report.days)} ({report.days[0]} to {report.days[-1]})" if report.days else "0"
    shown: dict[str, object] = {
        "Table": f"{place}{report.table}",
        "Read": report.read,
        "Loaded": report.loaded,
        "Dead letters": report.dead_lettered,
        "Days": days,
        "Files": f"{report.files:,} ({report.size_bytes / 2**20:,.1f} MiB)",
        "Seconds": [f"{stage} {seconds:.1f}" for stage, seconds in report.seconds.items() if seconds],
    }
    if report.rows != report.loaded:
        shown["Rows"] = report.rows
    if report.gaps:
        shown["Gaps"] = [f"partition {gap.partition}: {gap.start} to {gap.end - 1}" for gap in report.gaps]
    out.result(asdict(report), facts(shown))
    for warning in report.warnings:
        out.warn(warning)
    if report.rejected_too_many:
        raise TooManyRejected(report.rejection())
    if report.dead_lettered:
        out.warn(
            f"{_counted(report.dead_lettered)} did not parse: table dead_letters has "
            f"{'it' if report.dead_lettered == 1 else 'them'}, with the reason."
        )
