"""`mainstem audit`: whether records of a topic are missing, for each window of ten minutes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import groupby
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from mainstem.audit.counts import WINDOW_MS
from mainstem.audit.verdicts import UnauditedReason, WindowState, WindowVerdict, verdicts
from mainstem.cli.load_run import FormatChoice, TableFormatChoice, catalog_of
from mainstem.cli.options import (
    BootstrapServers,
    ClientProperties,
    OutputChoice,
    TableName,
    TopicName,
    connect,
)
from mainstem.cli.output import Column, Output, OutputFormat, table
from mainstem.cli.sql import DEFAULT_NAMESPACE, DEFAULT_WAREHOUSE, Catalog, CatalogNamespace, Warehouse
from mainstem.errors import BadInput, ClusterRefused, CommandError
from mainstem.kafka.client import Cluster
from mainstem.times import date_time_ms, duration_ms

_CELL_OF_STATE: Final = {
    WindowState.MISSING: ("!", "bold red"),
    WindowState.DUPLICATES: ("+", "magenta"),
    WindowState.OPEN: ("~", "yellow"),
    WindowState.UNAUDITED: ("?", "dim"),
    WindowState.COMPLETE: ("=", "green"),
}
_NO_RECORDS: Final = "·"
_LINE_HOURS: Final = 6
_LINE_MS: Final = _LINE_HOURS * 3_600_000
_WINDOWS_AN_HOUR: Final = 3_600_000 // WINDOW_MS

_COLUMNS: Final = (
    Column("window", "window", whole=True),
    Column("verdict", "verdict", whole=True),
    Column("sent", "produced"),
    Column("stored", "stored"),
    Column("loaded", "loaded"),
    Column("dead", "dead"),
    Column("%", "percent"),
    Column("late", "late"),
)


class RecordsMissing(CommandError):
    """The audit found records that did not arrive."""

    exit_code = 3


def audit(
    topic: TopicName,
    warehouse: Warehouse = DEFAULT_WAREHOUSE,
    table_name: TableName = None,
    dead_letter_table: Annotated[
        str, typer.Option("--dead-letter-table", metavar="TABLE", help="Table of the loads' dead letters.")
    ] = "dead_letters",
    table_format: TableFormatChoice = FormatChoice.DELTA,
    catalog: Catalog = None,
    catalog_namespace: CatalogNamespace = DEFAULT_NAMESPACE,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only windows from this time on (ISO 8601).")
    ] = None,
    grace: Annotated[
        str,
        typer.Option(
            metavar="DURATION", help="How long records may be in transit after their producer's count."
        ),
    ] = "60s",
    heat_map: Annotated[
        bool, typer.Option("--heat-map", help="Show a character for each window and a line for six hours.")
    ] = False,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Compare what producers sent, what brokers store and what the table holds.

    Records are counted by their timestamps, in windows of ten minutes. Producers count with
    `mainstem.audit.producer.AuditedProducer`, or with `mainstem produce --audit`. If records are missing, the
    exit code is 3.
    """
    from mainstem.audit.observations import observe
    from mainstem_loader.errors import LoaderError
    from mainstem_loader.kafka.client_security import check_client_properties
    from mainstem_loader.kafka.leaders import BrokerSettings

    out = Output(output)
    since_ms, grace_ms = _since_ms(since), duration_ms(grace)
    if grace_ms is None:
        raise BadInput(f"--grace is {grace!r}; write a duration, such as 60s or 10m.")
    place = catalog_of(table_format, catalog, catalog_namespace)
    cluster = connect(bootstrap_servers, client_properties)
    cluster.topic(topic)  # an unknown topic is an error that names similar ones
    try:
        with out.waiting("Counting"):
            brokers = BrokerSettings(cluster.bootstrap_servers, client_properties=cluster.properties)
            check_client_properties(brokers.client_properties)
            observations = observe(
                brokers,
                topic,
                warehouse,
                table_name or topic,
                place,
                dead_letter_table,
                is_compacted=_is_compacted(cluster, topic),
            )
    except LoaderError as error:
        raise CommandError(str(error)) from error
    windows = [one for one in verdicts(topic, observations, grace_ms) if one.window_ms >= since_ms]
    rows = [_row(one, observations.has_table) for one in windows]
    if heat_map and not out.json:
        out.result(rows, *_heat_map(windows))
    else:
        columns = [
            column for column in _COLUMNS if observations.has_table or column.key not in ("loaded", "dead")
        ]
        out.result(rows, table(f"Audit of {topic}", columns, [row | _cells(row) for row in rows]))
    if observations.has_rows_of_transform:
        out.say(
            f"Rows of table {table_name or topic} come from a transform, so records are compared without it."
        )
    if not windows:
        out.say(f"Topic {topic} has no records, and no producer has counted any.")
    for reason, count in Counter(one.reason for one in windows).items():
        if reason not in (None, UnauditedReason.NOT_COUNTED):
            out.say(f"{'1 window is' if count == 1 else f'{count:,} windows are'} not audited: {reason}.")
    _warn_of_duplicates(out, topic, windows)
    _raise_missing(topic, windows)


def _is_compacted(cluster: Cluster, topic: str) -> bool:
    """Whether compaction removes records of the topic; no if its settings may not be read."""
    try:
        policy = (cluster.topic_settings(topic) or {}).get("cleanup.policy")
    except ClusterRefused:
        return False
    return policy is not None and "compact" in (policy.value or "")


def _since_ms(since: str | None) -> int:
    if since is None:
        return -1
    since_ms = date_time_ms(since)
    if since_ms is None:
        raise BadInput(f"--since is {since!r}; write a date or a time, such as 2026-01-31T10:00:00Z.")
    return since_ms - since_ms % WINDOW_MS


def _raise_missing(topic: str, judged: Sequence[WindowVerdict]) -> None:
    short = [one for one in judged if one.missing]
    if not short:
        return
    worst = max(short, key=lambda one: one.missing)
    where = "in the log" if worst.missing_in_log >= worst.missing_in_table else "in the table"
    producers = f"; their producer is {', '.join(worst.producers[:3])}" if worst.producers else ""
    total = sum(one.missing for one in short)
    windows = "1 window" if len(short) == 1 else f"{len(short):,} windows"
    raise RecordsMissing(
        f"Topic {topic}: {_records(total)} missing in {windows}. Window {_time(worst.window_ms)}:"
        f" {_records(worst.missing)} missing {where}{producers}."
    )


def _warn_of_duplicates(out: Output, topic: str, windows: Sequence[WindowVerdict]) -> None:
    doubled = [one for one in windows if one.duplicates]
    if doubled:
        worst = max(doubled, key=lambda one: one.duplicates)
        out.warn(
            f"Topic {topic} has {sum(one.duplicates for one in doubled):,} more records than were counted,"
            " the most in"
            f" window {_time(worst.window_ms)} ({worst.duplicates:,}): a producer without idempotence sent"
            " them again,"
            " or a producer is not audited."
        )


def _records(count: int) -> str:
    return "1 record is" if count == 1 else f"{count:,} records are"


def _row(one: WindowVerdict, has_table: bool) -> dict[str, Any]:
    row = asdict(one) | {
        "window": _time(one.window_ms),
        "state": one.state.value,
        "missing": one.missing,
        "completeness": None if one.completeness is None else one.completeness,
    }
    if not has_table:
        del row["loaded"], row["dead"]
    return row


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a table has instead of the numbers that programs read."""
    verdict = row["state"]
    if row["missing"]:
        verdict = f"{row['missing']:,} missing"
    elif row["duplicates"]:
        verdict = f"{row['duplicates']:,} twice"
    share = row["completeness"]
    # Rounded down, so that what is not complete never reads 100.
    return {"verdict": verdict, "percent": None if share is None else int(10_000 * share) / 100}


def _heat_map(judged: Sequence[WindowVerdict]) -> list[Text]:
    lines: list[Text] = []
    by_line = groupby(judged, key=lambda one: one.window_ms // _LINE_MS)
    for number, windows in by_line:
        states = {one.window_ms: one.state for one in windows}
        line = Text(f"{_time(number * _LINE_MS)}  ")
        for place in range(_LINE_HOURS * _WINDOWS_AN_HOUR):
            if place and place % _WINDOWS_AN_HOUR == 0:
                line.append(" ")
            state = states.get(number * _LINE_MS + place * WINDOW_MS)
            line.append(*((_NO_RECORDS, "dim") if state is None else _CELL_OF_STATE[state]))
        lines.append(line)
    legend = ", ".join(f"{mark} {state.value}" for state, (mark, _) in _CELL_OF_STATE.items())
    return [*lines, Text(f"{legend}, {_NO_RECORDS} no records", style="dim")]


def _time(window_ms: int) -> str:
    return f"{datetime.fromtimestamp(window_ms / 1000, UTC):%Y-%m-%d %H:%M}"
