"""SQL over the tables of a warehouse, without Spark.

Every table is one of its name; `SHOW TABLES` lists the Delta tables. Names are taken as they are written,
capitals too, and in double quotes if they hold dots or dashes. An Iceberg table whose name a Delta table has,
too, is called `namespace.name`. Only questions are answered: what would write is refused, because a row that
no load brought would have no offset.

deltalake's query engine (Apache DataFusion) reads Delta tables. Statements that name an Iceberg table are
answered by DuckDB, from what pyiceberg has read: the columns that the statement names, in memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from mainstem_loader.arrow_arrays import fields_of
from mainstem_loader.errors import QueryError, WarehouseError
from mainstem_loader.table.delta import panics_as_errors
from mainstem_loader.table.folder import Folder, unfit_character
from mainstem_loader.table.iceberg_catalog import IcebergCatalog, explaining_catalog_errors

_QUERIES: Final = frozenset({"select", "with", "values", "("})
_QUESTIONS: Final = _QUERIES | {"show", "describe", "explain"}
_COMMENT: Final = ("--", "/*")
# Comments, which may contain others; quoted strings and names, of which E'...' has escapes; words; all other
# characters.
_TOKEN: Final = re.compile(
    r"""--[^\n]*|/\*(?>/\*.*?\*/|.)*?\*/|e'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|(\$\w*\$).*?\1|\w+|\S""",
    re.DOTALL | re.IGNORECASE,
)
_UNKNOWN_TABLE: Final = re.compile(r"table '(?:datafusion\.)?(?:public\.)?(.+?)' not found")
_UNKNOWN_COLUMN: Final = "No field named"
_PARSER_MESSAGE: Final = re.compile(r'ParserError\("(.*)"\)')

# View types are an engine's way to save copies; few consumers of Arrow know them.
_PLAIN_TYPES: Final[dict[pa.DataType, pa.DataType]] = {
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
}
_COUNT: Final = re.compile(r"count\s*\(\s*\*\s*\)", re.IGNORECASE)


def tables(warehouse: str | Path, catalog: IcebergCatalog | None = None) -> list[str]:
    """The names of all tables, sorted.

    Args:
        warehouse: the folder of all tables, or s3://bucket/prefix.
        catalog: of Iceberg tables; the one in the warehouse, if None.
    """
    folder = Folder.of(warehouse)
    return sorted([*_delta_tables(folder), *iceberg_tables(folder, catalog)])


def delta_tables(warehouse: str | Path) -> list[str]:
    """The names of the Delta tables, sorted; no catalog is read."""
    return _delta_tables(Folder.of(warehouse))


def iceberg_tables(warehouse: str | Path | Folder, catalog: IcebergCatalog | None = None) -> dict[str, Any]:
    """The names of all Iceberg tables, as statements have them, and what identifies each in its catalog."""
    folder = Folder.of(warehouse)
    if catalog is None:
        if not folder.is_local:
            return {}
        catalog = IcebergCatalog()
    if not catalog.is_there(folder):
        return {}
    with explaining_catalog_errors(f"{catalog.namespace}.*", folder):
        opened = catalog.open(folder)
        namespace = tuple(catalog.namespace.split("."))
        identifiers = opened.list_tables(namespace) if opened.namespace_exists(namespace) else []
    of_delta = set(_delta_tables(folder))
    return {
        identifier[-1] if identifier[-1] not in of_delta else ".".join(identifier): identifier
        for identifier in identifiers
    }


def _delta_tables(folder: Folder) -> list[str]:
    # No load makes a table with such a name; with some the library ends the process.
    names = [name for name in folder.subfolders() if unfit_character(name) is None]
    return [name for name in names if _is_delta_table(folder / name)]


def _is_delta_table(folder: Folder) -> bool:
    """Also if that cannot be found out: who opens the table gets to know why."""
    try:
        with panics_as_errors():
            return DeltaTable.is_deltatable(folder.url, folder.delta_options)
    except (DeltaError, OSError):
        return True


def query(warehouse: str | Path, sql: str, catalog: IcebergCatalog | None = None) -> pa.Table:
    """Answer a question.

    Args:
        warehouse: the folder of all tables, or s3://bucket/prefix.
        sql: one statement.
        catalog: of Iceberg tables; the one in the warehouse, if None.

    Raises:
        QueryError: there is no such table or column, the SQL does not parse, or it would write.
    """
    _check_question(sql)
    place = Folder.of(warehouse)
    names = _delta_tables(place)
    of_iceberg: dict[str, Any] = {}
    try:
        of_iceberg = iceberg_tables(place, catalog)
    except WarehouseError:
        # A catalog that cannot be read must not stop a question about Delta tables.
        if not _named_tables(sql, names):
            raise
    named = _named_tables(sql, [*of_iceberg, *names])
    if any(name in named for name in of_iceberg):
        chosen = {name: found for name, found in of_iceberg.items() if name in named}
        return _query_with_iceberg(
            place, sql, catalog or IcebergCatalog(), chosen, sorted(named - chosen.keys())
        )
    opened: dict[str, DeltaTable] = {}
    folded = sql.casefold()
    lists_tables = _tokens(sql)[0] == "show" or "information_schema" in folded
    engine = QueryBuilder({"datafusion.catalog.information_schema": "true"})
    for name in names:
        quoted = name.replace('"', '""')
        is_named = name in named
        # A table that the statement does not name must not stop it: it may be damaged, or another program's.
        if not (is_named or lists_tables or quoted.casefold() in folded):
            continue
        try:
            folder = place / name
            with panics_as_errors():
                opened[name] = DeltaTable(folder.url, storage_options=folder.delta_options)
                engine.register(f'"{quoted}"', opened[name])
        except (DeltaError, OSError) as error:
            if not is_named:
                continue
            reason = str(error).splitlines()[0]
            raise QueryError(f"Table {name} cannot be opened ({reason}); check that it is whole.") from error
    try:
        with panics_as_errors():
            return plain_types(pa.table(engine.execute(sql).read_all()))
    except Exception as error:
        # The engine's errors have no common root: some are DeltaError, some ValueError, some bare Exception.
        columns = _columns_in(sql, opened) if _UNKNOWN_COLUMN in str(error) else ""
        every = sorted([*names, *of_iceberg])
        raise QueryError(_sentence(str(error), warehouse, every) + columns) from error


def _query_with_iceberg(
    warehouse: Folder,
    sql: str,
    catalog: IcebergCatalog,
    identifiers: Mapping[str, Any],
    delta_names: Sequence[str],
) -> pa.Table:
    """Answer a question about some Iceberg tables, and Delta tables beside them."""
    import duckdb

    folded: dict[str, str] = {}
    for name in (*identifiers, *delta_names):
        if (other := folded.setdefault(name.casefold(), name)) != name:
            raise QueryError(
                f"The tables {other} and {name} differ in case alone, and statements about Iceberg tables"
                " do not tell them apart: ask about one at a time, in its own spelling."
            )
    with duckdb.connect() as engine:
        try:
            engine.execute("SET TimeZone = 'UTC'")
            # Only what is registered can be read, neither files nor Python's variables.
            engine.execute("SET enable_external_access = false")
            engine.execute("SET python_enable_replacements = false")
            for name in delta_names:
                folder = warehouse / name
                with panics_as_errors():
                    delta = DeltaTable(folder.url, storage_options=folder.delta_options)
                    engine.register(name, delta.to_pyarrow_table())
            loaded: dict[str, Any] = {}
            for name, identifier in identifiers.items():
                with explaining_catalog_errors(name, warehouse):
                    loaded[name] = catalog.open(warehouse).load_table(identifier)
                    engine.register(name, loaded[name].schema().as_arrow().empty_table())
            bound = _bound_columns(engine, sql)
            for name, table in loaded.items():
                columns = _columns_of(sql, table, bound)
                with explaining_catalog_errors(name, warehouse):
                    engine.register(name, table.scan(selected_fields=columns).to_arrow())
            return plain_types(pa.table(engine.sql(sql).arrow()))
        except (WarehouseError, DeltaError, OSError) as error:
            raise QueryError(str(error)) from error
        except duckdb.Error as error:
            raise QueryError(f"The query cannot be answered: {str(error).splitlines()[0]}") from error


def _bound_columns(engine: Any, sql: str) -> set[str]:
    """The columns that a statement reads, of all tables: also those that it does not name, as it does not
    where a table stands for its rows, or tables are joined by what they have in common.
    """
    if not _is_select(sql):
        return set()
    nodes = json.loads(engine.execute(f"EXPLAIN (FORMAT JSON) {sql}").fetchall()[0][1])
    columns: set[str] = set()
    while nodes:
        node = nodes.pop()
        nodes += node.get("children", [])
        if not node.get("children"):
            projections = node.get("extra_info", {}).get("Projections", [])
            columns.update([projections] if isinstance(projections, str) else projections)
    return columns


def _columns_of(sql: str, table: Any, bound: AbstractSet[str]) -> tuple[str, ...]:
    """The columns that a statement may read: that the engine reads, or whose name is somewhere in it."""
    names = [column.name for column in table.schema().fields]
    reads_all = "*" in _COUNT.sub("", sql) or not _is_select(sql)
    folded = sql.casefold()
    chosen = names if reads_all else [name for name in names if name in bound or name.casefold() in folded]
    return tuple(chosen or names[:1])


def _check_question(sql: str) -> None:
    """Refuse what would write. The engines carry some of it out, or say that they have.

    Raises:
        QueryError: see there.
    """
    tokens = _tokens(sql)
    if not tokens:
        raise QueryError("There is nothing to ask; write a statement such as SELECT count(*) FROM a table.")
    if tokens[0] not in _QUESTIONS:
        raise QueryError(
            f"{tokens[0].upper()} is no question; only SELECT, WITH, SHOW TABLES, DESCRIBE and EXPLAIN are"
            " answered."
        )
    if tokens[0] == "explain" and _explained(tokens[1:]) not in _QUERIES:
        raise QueryError("EXPLAIN is answered only for SELECT, WITH and VALUES.")
    # A column may have that name.
    if any(token == "into" and before not in ("as", ".") for before, token in pairwise(tokens)):
        raise QueryError(
            "INTO would write, and only questions are answered; leave it out, or put a column of that name in"
            " double quotes."
        )


def _explained(tokens: Sequence[str]) -> str:
    """The first word of the statement that follows EXPLAIN and its options; empty if there is none."""
    rest = list(tokens)
    if rest[:1] == ["("] and not _QUERIES.intersection(rest[1:2]) and ")" in rest:
        del rest[: rest.index(")") + 1]  # (ANALYZE, FORMAT TREE)
    while rest[:1] in (["analyze"], ["verbose"], ["format"]):
        del rest[: 2 if rest[0] == "format" else 1]
    return rest[0] if rest else ""


def _tokens(sql: str) -> list[str]:
    """The words, quoted texts and other characters of a statement in lower case, without comments."""
    found = (match[0].lower() for match in _TOKEN.finditer(sql))
    return [token for token in found if not token.startswith(_COMMENT)]


def _is_select(sql: str) -> bool:
    return _tokens(sql)[0] == "select"


def _named_tables(sql: str, names: Iterable[str]) -> set[str]:
    """The tables that a statement may be about. Of some that differ in case alone, those that it spells."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(name.casefold(), []).append(name)
    named: set[str] = set()
    for group in alike.values():
        spelled = [name for name in group if _names(sql, name, flags=0)]
        named.update(spelled or [name for name in group if _names(sql, name, flags=re.IGNORECASE)])
    return named


def _names(sql: str, table: str, flags: int) -> bool:
    quoted = table.replace('"', '""')
    spellings = "|".join(map(re.escape, {table, quoted}))
    return re.search(rf"(?<![\w.])(?:{spellings})(?!\w)", sql, flags) is not None


def _columns_in(sql: str, tables_by_name: Mapping[str, DeltaTable]) -> str:
    """The columns of the tables that a statement names, to follow the message that one does not exist."""
    return "".join(
        f" Table {name} has {', '.join(field.name for field in table.schema().fields)}."
        for name, table in tables_by_name.items()
        if re.search(rf"\b{re.escape(name)}\b", sql)
    )


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


def plain_types(answer: pa.Table) -> pa.Table:
    """A table whose types all consumers of Arrow know."""
    return answer.cast(pa.schema([field.with_type(_plain_type(field.type)) for field in answer.schema]))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([member.with_type(_plain_type(member.type)) for member in fields_of(kind)])
    return _PLAIN_TYPES.get(kind, kind)
