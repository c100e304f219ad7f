"""`python -m mainstem_loader`: one load from a command line, as a Spark driver in a pod or on a laptop.

Prints the report as one line of JSON. Exits with 1 and one sentence on the error output when nothing was
loaded.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import pyarrow as pa

from mainstem_loader.column_types import type_of_name
from mainstem_loader.dead_letters import DEAD_LETTER_TABLE
from mainstem_loader.errors import LoaderError, SettingsError
from mainstem_loader.executor_pods import RECORDS_PER_EXECUTOR_MIN, pods_from_environment
from mainstem_loader.fetch import IsolationLevel
from mainstem_loader.load_topic import LoadSettings, load_topic
from mainstem_loader.payload import PayloadFormat
from mainstem_loader.ranges import GapPolicy
from mainstem_loader.warehouse import WarehouseTable

TERMINATION_MESSAGE_CHARACTERS_MAX: Final = 4000


def main(arguments: Sequence[str] | None = None) -> int:
    """Load, and tell the exit code."""
    options = _parser().parse_args(arguments)
    try:
        settings = LoadSettings(
            bootstrap_servers=options.bootstrap_servers,
            topic=options.topic,
            warehouse=options.warehouse,
            table=options.table,
            dead_letter_table=options.dead_letter_table,
            payload=PayloadFormat(options.payload),
            columns=_columns(options.column),
            event_time_field=options.event_time,
            with_headers=options.headers,
            isolation=IsolationLevel[options.isolation.upper()],
            on_gap=GapPolicy(options.on_gap),
            max_records=options.max_records,
            max_bytes=options.max_bytes,
            cores=options.cores,
            spark_master=options.master,
            executor_pods=pods_from_environment(os.environ, options.executors, options.records_per_executor)
            if options.executors
            else None,
        )
        report = load_topic(settings)
        told = asdict(report)
        if options.sweep_orphans_after_hours is not None:
            table = WarehouseTable(
                settings.warehouse, settings.table or settings.topic, settings.dead_letter_table
            )
            told["orphans_swept"] = table.sweep_orphans(options.sweep_orphans_after_hours)
    except LoaderError as error:
        _note(options.summary_file, {"error": str(error)})
        sys.stderr.write(f"{error}\n")
        return 1
    _note(options.summary_file, report.summary())
    sys.stdout.write(json.dumps(told) + "\n")
    return 0


def _note(file: Path | None, summary: dict[str, object]) -> None:
    """Of a pod, Kubernetes keeps what is in /dev/termination-log, up to 4096 bytes, in its status."""
    if file is not None:
        file.write_text(json.dumps(summary)[:TERMINATION_MESSAGE_CHARACTERS_MAX])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m mainstem_loader", description="Load a topic into its table."
    )
    parser.add_argument("topic")
    parser.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT,...")
    parser.add_argument("--warehouse", required=True, help="the folder of all tables, or s3://bucket/prefix")
    parser.add_argument("--table", help="the table's name; the topic's by default")
    parser.add_argument("--dead-letter-table", default=DEAD_LETTER_TABLE, metavar="TABLE")
    parser.add_argument("--payload", choices=[*PayloadFormat], default=PayloadFormat.JSON)
    parser.add_argument("--column", action="append", default=[], metavar="FIELD=TYPE", help="a field's type")
    parser.add_argument("--event-time", metavar="FIELD", help="the field that says when the event happened")
    parser.add_argument("--headers", action="store_true", help="keep the records' headers")
    parser.add_argument(
        "--isolation", choices=[level.name.lower() for level in IsolationLevel], default="read_committed"
    )
    parser.add_argument("--on-gap", choices=[*GapPolicy], default=GapPolicy.FAIL)
    parser.add_argument("--max-records", type=int)
    parser.add_argument("--max-bytes", type=int)
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--master", help="Spark's master; local[cores] by default")
    parser.add_argument(
        "--executors",
        type=int,
        default=0,
        metavar="N",
        help="in a Kubernetes pod: up to this many executor pods for loads that are worth it",
    )
    parser.add_argument(
        "--records-per-executor",
        type=int,
        default=RECORDS_PER_EXECUTOR_MIN,
        metavar="N",
        help="how many records make an executor worth its start",
    )
    parser.add_argument(
        "--summary-file",
        type=Path,
        metavar="FILE",
        help="write a short report there, for a pod's status",
    )
    parser.add_argument(
        "--sweep-orphans-after-hours",
        type=int,
        metavar="HOURS",
        help="delete older files that no table names",
    )
    return parser


def _columns(options: Sequence[str]) -> dict[str, pa.DataType]:
    columns: dict[str, pa.DataType] = {}
    for option in options:
        field, separator, name = option.partition("=")
        if not field or not separator:
            raise SettingsError(
                f"{option!r} names no column and type; write FIELD=TYPE, such as distance=long."
            )
        columns[field] = type_of_name(name)
    return columns


if __name__ == "__main__":
    sys.exit(main())
