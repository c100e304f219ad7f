"""`mainstem sql`: queries on the tables of a warehouse."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mainstem.cli.output import Column, Output, OutputFormat, drop_stdout, stdout_bytes, table
from mainstem.errors import BadInput

if TYPE_CHECKING:
    import pyarrow as pa

    from mainstem_loader.table.iceberg_catalog import IcebergCatalog

DEFAULT_WAREHOUSE: Final = "data/warehouse"
DEFAULT_NAMESPACE: Final = "mainstem"
ROWS_SHOWN_MAX: Final = 1000  # more than a person reads

Warehouse = Annotated[
    str,
    typer.Option(
        "--warehouse", "-w", metavar="DIR", help="Folder of the warehouse's tables, or s3://bucket/prefix."
    ),
]

Catalog = Annotated[
    str | None,
    typer.Option(
        "--catalog",
        metavar="URL",
        help="Catalog of Iceberg tables, such as http://catalog:8181. Default: a file in the warehouse.",
        show_default=False,
    ),
]
CatalogNamespace = Annotated[
    str, typer.Option("--catalog-namespace", metavar="NAME", help="Namespace of the tables in the catalog.")
]


class AnswerFormat(StrEnum):
    """How a result is shown."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def sql(
    context: typer.Context,
    statement: Annotated[
        str, typer.Argument(metavar="[SQL]", help="A SELECT statement. Without it, the tables are listed.")
    ] = "",
    warehouse: Warehouse = DEFAULT_WAREHOUSE,
    catalog: Catalog = None,
    catalog_namespace: CatalogNamespace = DEFAULT_NAMESPACE,
    output: Annotated[
        AnswerFormat | None,
        typer.Option(
            "--output", "-o", help="Tables for people, JSON or CSV for programs.", show_default=False
        ),
    ] = None,
) -> None:
    """Query the tables of a warehouse in SQL.

    Needs neither Spark nor a broker. Rows that are wider than the terminal are shown one below the other.
    """
    iceberg = iceberg_catalog(warehouse, catalog, catalog_namespace)
    chosen = AnswerFormat(output or context.find_root().params["output"])
    out = Output(OutputFormat.JSON if chosen is AnswerFormat.JSON else OutputFormat.TABLE)
    with out.waiting("Querying"):
        result = query_warehouse(warehouse, statement, iceberg) if statement else _tables(warehouse, iceberg)
    if chosen is AnswerFormat.CSV:
        _write_csv(result)
    else:
        show_rows(out, result)


def iceberg_catalog(warehouse: str, uri: str | None, namespace: str) -> IcebergCatalog | None:
    """The catalog of a warehouse's Iceberg tables; None where it is not named and there is no default."""
    from mainstem_loader.table.iceberg_catalog import IcebergCatalog

    return None if uri is None and "://" in warehouse else IcebergCatalog(uri, namespace)


def query_warehouse(warehouse: str | Path, statement: str, catalog: IcebergCatalog | None = None) -> pa.Table:
    """The result of a SELECT statement.

    Raises:
        BadInput: the statement is wrong; the message says why.
    """
    from mainstem_loader.errors import LoaderError
    from mainstem_loader.table.query import query

    try:
        return query(warehouse, statement, catalog)
    except LoaderError as error:
        raise BadInput(str(error)) from error


def _tables(warehouse: str, catalog: IcebergCatalog | None) -> pa.Table:
    import pyarrow as pa

    from mainstem_loader.errors import LoaderError
    from mainstem_loader.table.query import tables

    try:
        names = tables(warehouse, catalog)
    except LoaderError as error:
        raise BadInput(str(error)) from error
    if not names:
        raise BadInput(
            f"There are no tables in {warehouse}: load a topic with `mainstem load TOPIC`, or choose another "
            "--warehouse."
        )
    counts: list[int | None] = []
    errors: list[str | None] = []
    for name in names:
        quoted = name.replace('"', '""')
        try:
            answer = query_warehouse(warehouse, f'SELECT count(*) AS rows FROM "{quoted}"', catalog)
        except BadInput as error:
            counts.append(None)
            errors.append(str(error))
        else:
            counts.append(answer["rows"][0].as_py())
            errors.append(None)
    listed = pa.table({"table": names, "rows": pa.array(counts, pa.int64())})
    return listed.append_column("error", pa.array(errors, pa.string())) if any(errors) else listed


def show_rows(out: Output, result: pa.Table, title: str = "") -> None:
    """Show rows as a table or as a JSON list of objects. Columns that share a name are numbered."""
    result = result.rename_columns(_unique_names(result.column_names))
    if out.json:
        out.result(result.to_pylist())
        return
    columns = [Column(name, name, separators=False) for name in result.column_names]
    out.result(None, table(title, columns, result.slice(0, ROWS_SHOWN_MAX).to_pylist()))
    if result.num_rows > ROWS_SHOWN_MAX:
        out.warn(
            f"The first {ROWS_SHOWN_MAX:,} of {result.num_rows:,} rows are shown: add a LIMIT, or use "
            "--output json or csv."
        )


def _unique_names(names: Sequence[str]) -> list[str]:
    """The names, with `_2`, `_3` and so on after those that are there already: objects in JSON need them, and
    the columns of a join share names.
    """
    unique: list[str] = []
    taken = set(names)
    for name in names:
        number, candidate = 1, name
        while candidate in unique or (number > 1 and candidate in taken):
            number += 1
            candidate = f"{name}_{number}"
        unique.append(candidate)
    return unique


def _write_csv(result: pa.Table) -> None:
    import pyarrow as pa
    from pyarrow import csv

    try:
        csv.write_csv(result, stdout_bytes())
    except pa.ArrowInvalid as error:
        raise BadInput(f"The result cannot be written as CSV ({error}): use --output json.") from error
    except BrokenPipeError:
        drop_stdout()
        raise typer.Exit(0) from None
