"""`mainstem load maintain`: merges the small files of a warehouse table, and deletes old ones."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from mainstem.cli.load_run import FormatChoice, TableFormatChoice, catalog_of, run_job
from mainstem.cli.number_options import integer
from mainstem.cli.options import OutputChoice, TableName, TopicName
from mainstem.cli.output import Output, OutputFormat, facts
from mainstem.cli.sql import DEFAULT_NAMESPACE, DEFAULT_WAREHOUSE, Catalog, CatalogNamespace, Warehouse

KEEP_HOURS = 168
"""As long as Delta keeps files for readers of older snapshots."""


def maintain(
    topic: TopicName,
    warehouse: Warehouse = DEFAULT_WAREHOUSE,
    table_name: TableName = None,
    table_format: TableFormatChoice = FormatChoice.DELTA,
    catalog: Catalog = None,
    catalog_namespace: CatalogNamespace = DEFAULT_NAMESPACE,
    keep_hours: Annotated[
        int,
        typer.Option(
            **integer(24), help="Delete files that no commit names, or that left the table, when older."
        ),
    ] = KEEP_HOURS,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Merge the small files of a topic's table, and delete old files that it does not need.

    Loads and queries continue beside it. No row changes. Files that a merge replaced stay for readers of
    older snapshots for --keep-hours. Of Iceberg tables, old snapshots are expired, and files are not merged.
    """
    from mainstem_loader import maintain_table
    from mainstem_loader.settings import LoadSettings

    out = Output(output)
    settings = LoadSettings(
        bootstrap_servers="",  # no broker is needed
        topic=topic,
        warehouse=warehouse,
        table=table_name,
        catalog=catalog_of(table_format, catalog, catalog_namespace),
    )
    report = run_job(
        out, f"Maintaining {table_name or topic}", partial(maintain_table.maintain, settings, keep_hours)
    )
    if report.days:
        out.done(f"Merged {report.files_before:,} files of table {report.table} into {report.files_after:,}.")
    else:
        out.done(f"No small files of table {report.table} were worth a merge.")
    shown: dict[str, object] = {
        "Days": f"{len(report.days)} ({report.days[0]} to {report.days[-1]})" if report.days else "0",
        "Before": f"{report.files_before:,} files ({report.size_bytes_before / 2**20:,.1f} MiB)",
        "After": f"{report.files_after:,} files ({report.size_bytes_after / 2**20:,.1f} MiB)",
        "Deleted files": report.files_deleted,
        "Seconds": [f"{stage} {seconds:.1f}" for stage, seconds in report.seconds.items() if seconds],
    }
    out.result(asdict(report), facts(shown))
    for warning in report.warnings:
        out.warn(warning)
