"""`mainstem sql`: questions to the tables of a warehouse."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mainstem.errors import BadInput
from mainstem.output import Column, Output, OutputFormat, drop_stdout, stdout_bytes, table

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_WAREHOUSE: Final = "data/warehouse"
ROWS_SHOWN_MAX: Final = 1000  # what a person could still look at

Warehouse = Annotated[
    str,
    typer.Option(
        "--warehouse", "-w", metavar="DIR", help="Folder of the warehouse's tables, or s3://bucket/prefix."
    ),
]


class AnswerFormat(StrEnum):
    """How an answer is shown."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def sql(
    context: typer.Context,
    statement: Annotated[
        str, typer.Argument(metavar="[SQL]", help="One statement, as 'SELECT ...'; none lists the tables.")
    ] = "",
    warehouse: Warehouse = DEFAULT_WAREHOUSE,
    output: Annotated[
        AnswerFormat | None,
        typer.Option(
            "--output", "-o", help="Tables for people, JSON or CSV for programs.", show_default=False
        ),
    ] = None,
) -> None:
    """Ask a question in SQL.

    Runs without Spark and without a broker.
    """
    chosen = AnswerFormat(output or context.find_root().params["output"])
    out = Output(OutputFormat.JSON if chosen is AnswerFormat.JSON else OutputFormat.TABLE)
    with out.waiting("Asking"):
        answer = ask(warehouse, statement) if statement else _tables(warehouse)
    if chosen is AnswerFormat.CSV:
        _write_csv(answer)
    else:
        show_answer(out, answer)


def ask(warehouse: str | Path, statement: str) -> pa.Table:
    """The answer of the warehouse.

    Raises:
        BadInput: it cannot be answered; the message tells why.
    """
    from mainstem_loader.errors import LoaderError
    from mainstem_loader.query import query

    try:
        return query(warehouse, statement)
    except LoaderError as error:
        raise BadInput(str(error)) from error


def _tables(warehouse: str) -> pa.Table:
    import pyarrow as pa

    from mainstem_loader.query import tables

    names = tables(warehouse)
    if not names:
        raise BadInput(
            f"There are no tables in {warehouse}: load a topic first, or name another --warehouse."
        )
    counts = [ask(warehouse, f'SELECT count(*) AS rows FROM "{name}"')["rows"][0] for name in names]
    return pa.table({"table": names, "rows": counts})


def show_answer(out: Output, answer: pa.Table, title: str = "") -> None:
    """Show an answer as a table or as a JSON list of objects."""
    if out.json:
        out.result(answer.to_pylist())
        return
    columns = [Column(name, name, separators=False) for name in answer.column_names]
    out.result(None, table(title, columns, answer.slice(0, ROWS_SHOWN_MAX).to_pylist()))
    if answer.num_rows > ROWS_SHOWN_MAX:
        out.warn(
            f"the first {ROWS_SHOWN_MAX:,} of {answer.num_rows:,} rows are shown: add a LIMIT, or ask for "
            "--output json or csv."
        )


def _write_csv(answer: pa.Table) -> None:
    import pyarrow as pa
    from pyarrow import csv

    try:
        csv.write_csv(answer, stdout_bytes())
    except pa.ArrowInvalid as error:
        raise BadInput(f"The answer does not fit in CSV ({error}): ask for --output json.") from error
    except BrokenPipeError:
        drop_stdout()
        raise typer.Exit(0) from None
