"""SQL over the tables of a warehouse, without Spark: deltalake's query engine (Apache DataFusion) reads them.

Every Delta table in the warehouse's folder is a table of its folder's name; `SHOW TABLES` lists them. Names
are taken as they are written, capitals too, and in double quotes if they hold dots or dashes. Only questions
are answered: what would write is refused, because a row that no load brought would have no offset.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from mainstem_loader.arrow_arrays import fields_of
from mainstem_loader.errors import QueryError
from mainstem_loader.folder import Folder

_QUESTIONS: Final = frozenset({"select", "with", "show", "describe", "explain", "values", "table", "("})
_FIRST_WORD: Final = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*(\w+|\()", re.DOTALL)
_UNKNOWN_TABLE: Final = re.compile(r"table '(?:datafusion\.)?(?:public\.)?(.+?)' not found")
_PARSER_MESSAGE: Final = re.compile(r'ParserError\("(.*)"\)')

# View types are an engine's way to save copies; few consumers of Arrow know them.
_PLAIN_TYPES: Final[dict[pa.DataType, pa.DataType]] = {
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
}


def tables(warehouse: str | Path) -> list[str]:
    """The names of all tables, sorted."""
    folder = Folder.of(warehouse)
    options = folder.delta_options
    return [name for name in folder.subfolders() if DeltaTable.is_deltatable((folder / name).url, options)]


def query(warehouse: str | Path, sql: str) -> pa.Table:
    """Answer a question.

    Args:
        warehouse: the folder of all tables, or s3://bucket/prefix.
        sql: one statement.

    Raises:
        QueryError: there is no such table or column, the SQL does not parse, or it would write.
    """
    first = _FIRST_WORD.match(sql)
    if first is None:
        raise QueryError("There is nothing to ask; write a statement such as SELECT count(*) FROM a table.")
    if first.group(1).lower() not in _QUESTIONS:
        raise QueryError(
            f"{first.group(1).upper()} is no question; only SELECT, WITH, SHOW TABLES, DESCRIBE and EXPLAIN"
            " are answered."
        )
    names = tables(warehouse)
    engine = QueryBuilder({"datafusion.catalog.information_schema": "true"})
    for name in names:
        quoted = name.replace('"', '""')
        try:
            folder = Folder.of(warehouse) / name
            engine.register(f'"{quoted}"', DeltaTable(folder.url, storage_options=folder.delta_options))
        except (DeltaError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise QueryError(f"Table {name} cannot be opened ({reason}); check that it is whole.") from error
    try:
        return _plain(pa.table(engine.execute(sql).read_all()))
    except Exception as error:
        # The engine's errors have no common root: some are DeltaError, some ValueError, some bare Exception.
        raise QueryError(_sentence(str(error), warehouse, names)) from error


def _sentence(message: str, warehouse: str | Path, names: Sequence[str]) -> str:
    if (unknown := _UNKNOWN_TABLE.search(message)) is not None:
        if not names:
            return f"There is no table {unknown.group(1)}, nor any other in {warehouse}; load a topic first."
        there_are = ", ".join(names)
        return (
            f"There is no table {unknown.group(1)}, only {there_are}; put names with dots in double quotes."
        )
    parser = _PARSER_MESSAGE.search(message)
    return f"The query cannot be answered: {parser.group(1) if parser else message.splitlines()[0]}"


def _plain(answer: pa.Table) -> pa.Table:
    return answer.cast(pa.schema([field.with_type(_plain_type(field.type)) for field in answer.schema]))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([member.with_type(_plain_type(member.type)) for member in fields_of(kind)])
    return _PLAIN_TYPES.get(kind, kind)
