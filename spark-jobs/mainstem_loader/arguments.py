"""The command line of a load, as values: what `python -m mainstem_loader` and the resident loader take."""

from __future__ import annotations

import argparse
import os
import re
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from pathlib import Path

from mainstem_loader.chosen_offsets import ChosenOffsets
from mainstem_loader.column_types import columns_of
from mainstem_loader.columns import TableFormat
from mainstem_loader.errors import SettingsError
from mainstem_loader.kafka.fetch import IsolationLevel
from mainstem_loader.payload.event_time import EPOCH, PLAUSIBLE_DAY_MIN, TimeUnit
from mainstem_loader.payload.readers import PayloadFormat
from mainstem_loader.properties_format import MalformedLine, read_properties
from mainstem_loader.ranges import GapPolicy
from mainstem_loader.settings import LoadSettings
from mainstem_loader.spark.executor_pods import RECORDS_PER_EXECUTOR_MIN, pods_from_environment
from mainstem_loader.table.dead_letters import DEAD_LETTER_TABLE
from mainstem_loader.table.iceberg_catalog import DEFAULT_NAMESPACE, IcebergCatalog
from mainstem_loader.table.sweep import ORPHAN_HOURS
from mainstem_loader.transform.definition import DEADLINE_SECONDS, declared_transform


class Rewrite(StrEnum):
    """What a command line does about what was loaded, see `rewrite_rows`."""

    APPEND = "append"
    REPLACE = "replace"
    REWIND = "rewind"
    REPLAY = "replay"


def settings_of(options: argparse.Namespace) -> LoadSettings:
    """What the options of `load_parser` ask for.

    Raises:
        SettingsError: an option cannot be what it is.
    """
    return LoadSettings(
        bootstrap_servers=options.bootstrap_servers,
        client_properties=_client_properties(options.client_config),
        topic=options.topic,
        warehouse=options.warehouse,
        table=options.table,
        dead_letter_table=options.dead_letter_table,
        catalog=_catalog(options),
        payload=PayloadFormat(options.payload),
        schema_registry=options.schema_registry,
        columns=columns_of(options.column),
        event_time_field=options.event_time,
        event_time_unit=TimeUnit(options.event_time_unit),
        event_day_min=options.event_day_min,
        event_day_max=options.event_day_max,
        with_headers=options.headers,
        transform=declared_transform(
            options.transform,
            options.transform_sql,
            options.input,
            options.input_column,
            options.transform_deadline_seconds,
        ),
        isolation=IsolationLevel[options.isolation.upper()],
        on_gap=None if options.on_gap is None else GapPolicy(options.on_gap),
        max_records=options.max_records,
        max_bytes=options.max_bytes,
        max_rejected_share=options.max_rejected_percent / 100,
        delete_loaded_after_ms=options.delete_loaded_after_ms,
        sweep_after_hours=options.sweep_orphans_after_hours or None,
        cores=options.cores,
        spark_master=options.master,
        executor_pods=pods_from_environment(os.environ, options.executors, options.records_per_executor)
        if options.executors
        else None,
    )


def _catalog(options: argparse.Namespace) -> IcebergCatalog | None:
    if TableFormat(options.format) is TableFormat.ICEBERG:
        return IcebergCatalog(options.catalog, options.catalog_namespace)
    if options.catalog is not None:
        raise SettingsError("Delta tables are in no catalog; add --format iceberg, or leave out --catalog.")
    return None


def _client_properties(file: Path | None) -> dict[str, str]:
    """Of a file, so that no password is on a command line."""
    if file is None:
        return {}
    try:
        return read_properties(file.read_text(encoding="utf-8"))
    except MalformedLine as error:
        raise SettingsError(f"The file of --client-config, {file}, cannot be read: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"The file of --client-config, {file}, cannot be read; correct it.") from error


def chosen_offsets_of(options: argparse.Namespace) -> ChosenOffsets:
    """Which offsets a rewrite is about."""
    return ChosenOffsets(
        days=tuple(options.day),
        since_ms=options.since,
        until_ms=options.until,
        partitions=tuple(options.partition),
    )


def whole_number(text: str) -> int:
    """For `type` of an option: unlike `int`, without underscores, blanks and digits of other scripts.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    if not re.fullmatch(r"-?[0-9]{1,19}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, such as 1000")
    return int(text)


def _decimal_number(text: str) -> float:
    if not re.fullmatch(r"-?[0-9]{1,19}(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number, such as 2.5")
    return float(text)


def _time_ms(text: str) -> int:
    time = datetime.fromisoformat(text)
    return ((time if time.tzinfo is not None else time.replace(tzinfo=UTC)) - EPOCH) // timedelta(
        milliseconds=1
    )


def load_parser() -> argparse.ArgumentParser:
    """The parser of a load's options."""
    parser = argparse.ArgumentParser(
        prog="python -m mainstem_loader", description="Load a topic into its table."
    )
    parser.add_argument("topic")
    parser.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT,...")
    parser.add_argument(
        "--client-config",
        type=Path,
        metavar="FILE",
        help="name=value lines for encryption and login, as librdkafka names them: security.protocol,"
        " ssl.ca.location, sasl.mechanism, sasl.username, sasl.password and others",
    )
    parser.add_argument("--warehouse", required=True, help="the folder of all tables, or s3://bucket/prefix")
    parser.add_argument("--table", help="the table's name; the topic's by default")
    parser.add_argument("--format", choices=[*TableFormat], default=TableFormat.DELTA, help="of the table")
    parser.add_argument(
        "--catalog", metavar="URL", help="of Iceberg tables, such as http://catalog:8181; else a file"
    )
    parser.add_argument(
        "--catalog-namespace",
        default=DEFAULT_NAMESPACE,
        metavar="NAME",
        help="of the table in the catalog; %(default)s by default",
    )
    parser.add_argument("--dead-letter-table", default=DEAD_LETTER_TABLE, metavar="TABLE")
    parser.add_argument("--payload", choices=[*PayloadFormat], default=PayloadFormat.JSON)
    parser.add_argument(
        "--schema-registry",
        metavar="URL",
        help="knows the schemas of values that have ids, such as http://registry:8081",
    )
    parser.add_argument("--column", action="append", default=[], metavar="FIELD=TYPE", help="a field's type")
    parser.add_argument("--event-time", metavar="FIELD", help="the field that says when the event happened")
    parser.add_argument(
        "--event-time-unit",
        choices=[*TimeUnit],
        default=TimeUnit.MILLISECONDS,
        help="the unit of an event time that is a number since 1970",
    )
    parser.add_argument(
        "--event-day-min",
        type=date.fromisoformat,
        default=PLAUSIBLE_DAY_MIN,
        metavar="DAY",
        help="reject events of earlier days; %(default)s by default",
    )
    parser.add_argument(
        "--event-day-max",
        type=date.fromisoformat,
        metavar="DAY",
        help="reject events of later days; a year from now by default",
    )
    parser.add_argument("--headers", action="store_true", help="keep the records' headers")
    parser.add_argument(
        "--transform",
        metavar="FILE|MODULE:FUNCTION",
        help="a SQL statement in a file, or a Python function, between topic and table",
    )
    parser.add_argument(
        "--transform-sql", metavar="STATEMENT", help="a SQL statement between topic and table"
    )
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=KIND:SOURCE",
        help="another view of the transform: NAME=table:TABLE or NAME=topic:TOPIC[:FORMAT]",
    )
    parser.add_argument(
        "--input-column",
        action="append",
        default=[],
        metavar="NAME.FIELD=TYPE",
        help="the type of a field of an input that is a topic",
    )
    parser.add_argument(
        "--transform-deadline-seconds",
        type=whole_number,
        default=DEADLINE_SECONDS,
        metavar="SECONDS",
        help="how long one run of the transform may take; %(default)s by default",
    )
    parser.add_argument(
        "--isolation", choices=[level.name.lower() for level in IsolationLevel], default="read_committed"
    )
    parser.add_argument(
        "--on-gap",
        choices=[*GapPolicy],
        help="what to do about records deleted before they were loaded; by default a load fails, except for"
        " the first of a table, which begins at the oldest record",
    )
    parser.add_argument(
        "--delete-loaded-after-ms",
        type=whole_number,
        metavar="MS",
        help="after the load, delete records from the topic that are loaded and older than this",
    )
    parser.add_argument("--max-records", type=whole_number)
    parser.add_argument("--max-bytes", type=whole_number)
    parser.add_argument("--cores", type=whole_number, default=os.cpu_count() or 1)
    parser.add_argument("--master", help="run on this master of Spark, also small loads")
    parser.add_argument(
        "--executors",
        type=whole_number,
        default=0,
        metavar="N",
        help="in a Kubernetes pod: up to this many executor pods for loads that are worth it",
    )
    parser.add_argument(
        "--records-per-executor",
        type=whole_number,
        default=RECORDS_PER_EXECUTOR_MIN,
        metavar="N",
        help="how many records make an executor worth its start",
    )
    again = parser.add_argument_group("loading again")
    again.add_argument(
        "--rewrite",
        choices=[*Rewrite],
        help="load again what was loaded: add what is missing, replace it, remove it for the next load, or"
        " load dead letters",
    )
    again.add_argument("--request-id", metavar="ID", help="do so once: the table remembers the id")
    again.add_argument("--day", action="append", default=[], type=date.fromisoformat, metavar="DAY")
    again.add_argument("--since", type=_time_ms, metavar="TIME", help="records from this time on, ISO 8601")
    again.add_argument("--until", type=_time_ms, metavar="TIME", help="records before this time, ISO 8601")
    again.add_argument("--partition", action="append", default=[], type=whole_number, metavar="N")
    parser.add_argument(
        "--maintain",
        action="store_true",
        help="load nothing: merge the table's small files, and delete files that no commit names or that left"
        " the table (--sweep-orphans-after-hours)",
    )
    parser.add_argument(
        "--summary-file",
        type=Path,
        metavar="FILE",
        help="write a short report there, for a pod's status",
    )
    parser.add_argument(
        "--sweep-orphans-after-hours",
        type=whole_number,
        default=ORPHAN_HOURS,
        metavar="HOURS",
        help="once a day, delete older files that no commit names; %(default)s by default, 0 keeps them",
    )
    parser.add_argument(
        "--max-rejected-percent",
        type=_decimal_number,
        default=5.0,
        metavar="PERCENT",
        help="fail if more of the records are rejected; %(default)s by default",
    )
    return parser
