"""Questions to the warehouse, and what is said when there is no answer (R36)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from mainstem_loader.errors import QueryError, WarehouseError
from mainstem_loader.table.folder import Folder
from mainstem_loader.table.iceberg_catalog import IcebergCatalog
from mainstem_loader.table.query import query, tables


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    rows = pa.table(
        {"Carrier": ["UA", "AA"], "delay": [1.5, None], "s": [{"k": "a"}, None], "l": [["x"], []]}
    )
    for name in ("flights", "web.events-2", "Flights"):
        write_deltalake(tmp_path / name, rows)
    (tmp_path / "no_table").mkdir()
    return tmp_path


def test_every_table_is_known_by_its_folders_name(warehouse: Path) -> None:
    assert tables(warehouse) == ["Flights", "flights", "web.events-2"]
    for name in ("flights", "Flights", '"web.events-2"'):
        assert query(warehouse, f"SELECT count(*) AS n FROM {name}").to_pylist() == [{"n": 2}]
    assert "flights" in query(warehouse, "SHOW TABLES").column("table_name").to_pylist()


def test_answers_have_plain_types(warehouse: Path) -> None:
    answer = query(warehouse, "SELECT Carrier, s, l, arrow_cast(Carrier, 'Binary') AS b FROM flights")
    assert answer.schema.field("Carrier").type == pa.string()
    assert answer.schema.field("s").type == pa.struct([("k", pa.string())])
    assert answer.schema.field("l").type == pa.list_(pa.string())
    assert answer.schema.field("b").type == pa.binary()


def test_tables_are_joined(warehouse: Path) -> None:
    sql = """
        WITH a AS (SELECT * FROM flights)
        SELECT sum(a.delay) AS d FROM a JOIN "web.events-2" b USING (Carrier)
    """
    assert query(warehouse, sql).to_pylist() == [{"d": 1.5}]


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT * FROM trains", "There is no table trains, only Flights, flights, web.events-2"),
        ("SELECT nope FROM flights", "cannot be answered: .*nope.* Table flights has "),
        ("SELECT a.", "cannot be answered: Expected: an identifier"),
        ("SELEC 1", "SELEC is no question"),
        ("", "nothing to ask"),
        ("  -- only a comment", "nothing to ask"),
        ("INSERT INTO flights VALUES (1)", "INSERT is no question"),
        ("/* hidden */ COPY (SELECT 1) TO 'x.csv'", "COPY is no question"),
        ("DROP TABLE flights", "DROP is no question"),
        ("TABLE flights", "TABLE is no question"),
        ("SELECT delay INTO late FROM flights", "INTO would write"),
        ("WITH a AS (SELECT 1) SELECT * /* as */ INTO b FROM a", "INTO would write"),
        ("(SELECT 'as'INTO b)", "INTO would write"),
        ("EXPLAIN ANALYZE SELECT 1 into b", "INTO would write"),
        ("EXPLAIN", "EXPLAIN is answered only"),
        ("EXPLAIN/**/ANALYZE VERBOSE COPY flights TO 'x.csv'", "EXPLAIN is answered only"),
        ("explain (analyze, format tree) COPY flights TO 'x.csv'", "EXPLAIN is answered only"),
        ("EXPLAIN FORMAT TREE INSERT INTO flights VALUES (1)", "EXPLAIN is answered only"),
        ("EXPLAIN CREATE TABLE a AS SELECT 1", "EXPLAIN is answered only"),
        ("SELECT 1; SELECT 2", "cannot be answered"),
        ("SELECT 1/0", "cannot be answered: .*ivide by zero"),
    ],
)
def test_what_cannot_be_answered_is_said(warehouse: Path, sql: str, words: str) -> None:
    with pytest.raises(QueryError, match=words):
        query(warehouse, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 'go into' AS a, $$ into $$ AS b, E'it\\'s into' AS c",
        'SELECT "into" FROM (SELECT 1 AS into)',
        "SELECT x.into FROM (SELECT 1 AS into) x",
        "SELECT 1 -- into",
        "/* INSERT /* INTO */ into */ SELECT 1",
        "EXPLAIN ANALYZE VERBOSE (SELECT 1)",
        "EXPLAIN (ANALYZE) WITH a AS (SELECT 1) SELECT * FROM a",
        "explain format tree values (1)",
    ],
)
def test_questions_that_look_like_more_are_answered(warehouse: Path, sql: str) -> None:
    assert query(warehouse, sql).num_rows > 0


def test_an_empty_warehouse_says_what_to_do(tmp_path: Path) -> None:
    assert tables(tmp_path / "missing") == []
    with pytest.raises(QueryError, match=r"There is no table flights, nor any other in .*load a topic first"):
        query(tmp_path / "missing", "SELECT * FROM flights")


def test_a_damaged_table_is_named(warehouse: Path) -> None:
    for commit in (warehouse / "flights" / "_delta_log").glob("*.json"):
        commit.write_text("garbage")
    with pytest.raises(QueryError, match="Table flights cannot be opened"):
        query(warehouse, "SELECT * FROM flights")


def test_a_damaged_table_stops_no_question_about_others(warehouse: Path) -> None:
    for commit in (warehouse / "flights" / "_delta_log").glob("*.json"):
        commit.write_text("garbage")
    assert query(warehouse, 'SELECT count(*) AS n FROM "web.events-2"').to_pylist() == [{"n": 2}]
    assert query(warehouse, "SELECT 1 AS flight").to_pylist() == [{"flight": 1}]
    assert "web.events-2" in query(warehouse, "SHOW TABLES").column("table_name").to_pylist()


class PanicException(BaseException):
    """Named as that of PyO3, which cannot be imported."""


@pytest.mark.parametrize("function", ["is_deltatable", "__init__"])
def test_a_table_that_makes_the_library_panic_stops_no_question_about_others(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    plain = getattr(DeltaTable, function)

    def panic(*arguments: Any, **more: Any) -> Any:
        if any(str(argument).endswith("/flights") for argument in arguments):
            raise PanicException("index out of bounds")
        return plain(*arguments, **more)

    replaced: Any = staticmethod(panic) if function == "is_deltatable" else panic
    monkeypatch.setattr(DeltaTable, function, replaced)
    assert query(warehouse, 'SELECT count(*) AS n FROM "web.events-2"').to_pylist() == [{"n": 2}]
    assert "web.events-2" in query(warehouse, "SHOW TABLES").column("table_name").to_pylist()
    if function == "__init__":
        with pytest.raises(
            QueryError, match=r"flights cannot be opened .*gave up: index out of bounds.*whole"
        ):
            query(warehouse, "SELECT * FROM flights")


def test_a_question_that_makes_the_engine_panic_is_refused(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def panic(*_: object) -> None:
        raise PanicException("attempt to divide by zero")

    monkeypatch.setattr(QueryBuilder, "execute", panic)
    with pytest.raises(QueryError, match="cannot be answered: the Delta library gave up: attempt to divide"):
        query(warehouse, "SELECT * FROM flights")


def test_comments_before_a_question_do_not_matter(warehouse: Path) -> None:
    assert query(warehouse, "-- how many\n /* really */ (SELECT 1 AS one)").to_pylist() == [{"one": 1}]


def test_a_folder_with_a_name_that_no_load_makes_stops_no_question(warehouse: Path) -> None:
    (warehouse / "flights").rename(warehouse / "a%20b")
    assert tables(warehouse) == ["Flights", "web.events-2"]
    assert query(warehouse, 'SELECT count(*) AS n FROM "web.events-2"').to_pylist() == [{"n": 2}]


def iceberg_tables_of(warehouse: Path, **tables_by_name: pa.Table) -> None:
    catalog = IcebergCatalog().open(Folder.of(warehouse))
    catalog.create_namespace_if_not_exists("mainstem")
    for name, rows in tables_by_name.items():
        catalog.create_table(f"mainstem.{name}", rows.schema).append(rows)


def test_rows_of_iceberg_tables_keep_the_columns_that_a_statement_does_not_name(tmp_path: Path) -> None:
    rows = pa.table({"id": [1], "v": [2], "w": ["x"]})
    iceberg_tables_of(tmp_path, clicks=rows, copies=rows)
    row = {"id": 1, "v": 2, "w": "x"}
    assert query(tmp_path, "SELECT clicks AS row FROM clicks").to_pylist() == [{"row": row}]
    assert query(tmp_path, "SELECT c AS row FROM clicks c").to_pylist() == [{"row": row}]
    assert query(tmp_path, "SELECT columns('i|w') FROM clicks").to_pylist() == [{"id": 1, "w": "x"}]


def test_iceberg_tables_are_joined_by_all_columns_that_they_have_in_common(tmp_path: Path) -> None:
    iceberg_tables_of(
        tmp_path,
        sent=pa.table({"id": [1, 2], "v": [7, 7]}),
        stored=pa.table({"id": [2, 3], "v": [7, 7]}),
    )
    assert query(tmp_path, "SELECT v FROM sent NATURAL JOIN stored").to_pylist() == [{"v": 7}]


def test_iceberg_tables_that_differ_in_case_alone_are_told_apart(tmp_path: Path) -> None:
    iceberg_tables_of(tmp_path, clicks=pa.table({"n": [1]}), Clicks=pa.table({"n": [2]}))
    assert query(tmp_path, "SELECT n FROM clicks").to_pylist() == [{"n": 1}]
    assert query(tmp_path, "SELECT n FROM Clicks").to_pylist() == [{"n": 2}]
    with pytest.raises(QueryError, match=r"(Clicks and clicks|clicks and Clicks) differ in case alone"):
        query(tmp_path, "SELECT a.n FROM clicks a, Clicks b")


def test_a_damaged_catalog_stops_no_question_about_delta_tables(warehouse: Path) -> None:
    iceberg_tables_of(warehouse, clicks=pa.table({"n": [1]}))
    database = warehouse / "_iceberg" / "catalog.sqlite"
    database.write_bytes(b"garbage" * 1000)
    assert query(warehouse, "SELECT count(*) AS n FROM flights").to_pylist() == [{"n": 2}]
    with pytest.raises(WarehouseError, match="catalog"):
        query(warehouse, "SELECT count(*) AS n FROM clicks")


def test_a_damaged_table_stops_no_question_about_one_that_differs_in_case_alone(warehouse: Path) -> None:
    for commit in (warehouse / "Flights" / "_delta_log").glob("*.json"):
        commit.write_text("garbage")
    assert query(warehouse, "SELECT count(*) AS n FROM flights").to_pylist() == [{"n": 2}]
