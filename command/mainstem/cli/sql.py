"""`mainstem sql`: queries on the tables of a warehouse."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from mainstem.cli.output import Column, Output, OutputFormat, drop_stdout, json_line, stdout_bytes, table
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
        write_csv(result)
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
    from mainstem_loader.table.query import delta_tables, tables

    counts: dict[str, int | None] = {}
    errors: dict[str, str] = {}
    try:
        try:
            names = tables(warehouse, catalog)
        except LoaderError as error:
            # The tables that can be listed are, and what cannot is named.
            names = delta_tables(warehouse)
            if not names:
                raise
            errors[f"{(catalog.namespace if catalog else DEFAULT_NAMESPACE)}.*"] = str(error)
    except LoaderError as error:
        raise BadInput(str(error)) from error
    if not names:
        raise BadInput(
            f"There are no tables in {warehouse}: load a topic with `mainstem load TOPIC`, or choose another "
            "--warehouse."
        )
    for name in names:
        quoted = name.replace('"', '""')
        try:
            answer = query_warehouse(warehouse, f'SELECT count(*) AS rows FROM "{quoted}"', catalog)
        except BadInput as error:
            errors[name] = str(error)
        else:
            counts[name] = answer["rows"][0].as_py()
    listed = sorted({*names, *errors})
    result = pa.table({"table": listed, "rows": pa.array([counts.get(name) for name in listed], pa.int64())})
    if not errors:
        return result
    return result.append_column("error", pa.array([errors.get(name) for name in listed], pa.string()))


def show_rows(out: Output, result: pa.Table, title: str = "") -> None:
    """Show rows as a table or as a JSON list of objects. Columns that share a name are numbered."""
    from mainstem.cli.arrow_values import json_objects, json_values, unique_names

    if out.json:
        out.result(json_objects(result.column_names, [json_values(column) for column in result.columns]))
        return
    names = unique_names(result.column_names)
    columns = [Column(name, name, separators=False) for name in names]
    cells = [_cells(column) for column in result.slice(0, ROWS_SHOWN_MAX).columns]
    rows = [dict(zip(names, values, strict=True)) for values in zip(*cells, strict=True)]
    out.result(None, table(title, columns, rows))
    if result.num_rows > ROWS_SHOWN_MAX:
        out.warn(
            f"The first {ROWS_SHOWN_MAX:,} of {result.num_rows:,} rows are shown: add a LIMIT, or use "
            "--output json or csv."
        )


def _cells(column: Any) -> list[Any]:
    """The values of a column for a person. Arrays and objects are JSON, which distinguishes an empty array
    from null, and a comma in an item from one between items.
    """
    import pyarrow as pa

    from mainstem.cli.arrow_values import is_bytes, json_values

    if pa.types.is_floating(column.type) or is_bytes(column.type):
        return cast("list[Any]", column.to_pylist())
    values = json_values(column)
    if pa.types.is_timestamp(column.type):
        return [None if value is None else value.replace("T", " ") for value in values]
    return _as_texts(values)


def _as_texts(values: list[Any]) -> list[Any]:
    """The same with JSON for arrays and objects."""
    return [json_line(value) if isinstance(value, list | dict) else value for value in values]


def _csv_column(name: str, column: Any) -> tuple[str, Any]:
    """A column, and its name, that Arrow's CSV writer takes and writes without loss."""
    import pyarrow as pa

    from mainstem.cli.arrow_values import Base64, encoded, is_bytes, json_values, years_are_plain

    kind, types = column.type, pa.types
    if is_bytes(kind):
        if not any(isinstance(value, Base64) for value in json_values(column)):
            return name, column
        texts = [None if value is None else encoded(value).text for value in column.to_pylist()]
        return f"{name}_base64", pa.array(texts, pa.string())
    is_date = types.is_date(kind) or types.is_timestamp(kind)
    is_text = types.is_nested(kind) or types.is_duration(kind) or types.is_interval(kind)
    if not is_text and not (is_date and not years_are_plain(column)):
        return name, column
    return name, pa.array(_as_texts(json_values(column)), pa.string())


def write_csv(result: pa.Table) -> None:
    """Write rows to standard output as CSV. Arrays and objects are JSON; bytes of a column that has some
    which are no text are base64.
    """
    import pyarrow as pa
    from pyarrow import csv

    columns = [_csv_column(*column) for column in zip(result.column_names, result.columns, strict=True)]
    try:
        written = pa.Table.from_arrays([values for _, values in columns], names=[name for name, _ in columns])
        csv.write_csv(written, stdout_bytes())
        stdout_bytes().flush()
    except BrokenPipeError:
        drop_stdout()
        raise typer.Exit(0) from None
