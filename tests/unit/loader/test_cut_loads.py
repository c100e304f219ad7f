"""The content of a row depends on its record, not on what else is in a load or where loads end (R29, R30)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from tests.unit.loader.batch_bytes import Record
from tests.unit.loader.fake_cluster import FakeCluster
from tests.unit.loader.payload.test_avro_payload import encoded, record, source_of
from tests.unit.loader.payload.test_cut_blocks import without_nulls
from tests.unit.loader.test_load_topic import DAY_MS, NEW_YEAR_MS, Loads, Meddling, limit_tasks

from mainstem_loader import adapt_table as adapting
from mainstem_loader.chosen_offsets import ChosenOffsets
from mainstem_loader.columns import TIMESTAMP_TYPE, TableFormat, fits
from mainstem_loader.load_topic import LoadOutcome, load_topic
from mainstem_loader.payload.avro_payload import AvroPayload
from mainstem_loader.payload.readers import PayloadFormat
from mainstem_loader.rewrite_rows import backfill
from mainstem_loader.spark import tasks
from mainstem_loader.spark.executors import InProcessExecutor
from mainstem_loader.table import adaptation
from mainstem_loader.table.commits import REWRITES, WarehouseTable

EMPTY = {"tags": [], "list": [None], "more": {"inner": []}}
FULL = {"tags": ["x"], "list": [5], "more": {"inner": [7]}}


@pytest.fixture
def loads(cluster: FakeCluster, tmp_path: Path) -> Loads:
    return Loads(cluster, tmp_path)


def check_files(loads: Loads) -> None:
    """Engines such as Spark read no file whose types are not the table's."""
    table = loads.table().delta
    present = {field.name: field.type for field in pa.schema(table.schema().to_arrow())}  # type: ignore[arg-type]
    for uri in table.file_uris():
        for field in parquet.read_schema(uri.removeprefix("file://")):
            assert fits(field.type, present[field.name])


def commits(loads: Loads) -> list[str]:
    """The kinds of the commits, the oldest first."""
    return [recorded.run.get("kind", "load") for recorded in reversed(loads.table().last_runs())]


def test_empty_values_are_in_their_columns_once_the_type_is_known(loads: Loads) -> None:
    loads.send({"id": 1, **EMPTY})
    first = loads.load()
    assert loads.rows("id", "_rest") == [{"id": 1, "_rest": '{"tags":[],"list":[null],"more":{"inner":[]}}'}]
    assert first.warnings == (
        "Some fields fit no column, or were empty in all records so far and have no type yet (list, more,"
        " tags); they are in the column _rest, as JSON text.",
    )
    loads.send({"id": 2, **EMPTY}, {"id": 3, **FULL})
    report = loads.load()
    assert (report.loaded, report.rows, report.warnings) == (2, 2, ())
    assert loads.rows("id", "tags", "list", "more", "_rest") == [
        {"id": 1, **EMPTY, "_rest": None},
        {"id": 2, **EMPTY, "_rest": None},
        {"id": 3, **FULL, "_rest": None},
    ]
    assert commits(loads) == ["load", "adapt", "load"]
    check_files(loads)


LONGS: Any = {"type": "map", "values": "long"}
MAPS: Final = {1: record(("x", LONGS)), 2: record(("x", {**LONGS, "values": "double"}))}


@pytest.mark.parametrize("schema_ids", [(1, 2, 1), (2, 1, 2)])
def test_a_fraction_makes_doubles_of_whole_numbers_in_maps(
    loads: Loads, monkeypatch: pytest.MonkeyPatch, schema_ids: Sequence[int]
) -> None:
    """R30: whatever the order of the records, and of the loads."""
    source = source_of(MAPS)
    monkeypatch.setattr(tasks, "_reader", lambda payload, _: AvroPayload(payload.columns, source))
    for schema_id in schema_ids:
        loads.send(encoded(MAPS[schema_id], {"x": {"k": schema_id}}, schema_id))
        loads.load(payload=PayloadFormat.AVRO, schema_registry="http://registry")
    loads.send(encoded(MAPS[2], {"x": {"k": 0.5}}, 2))
    report = loads.load(payload=PayloadFormat.AVRO, schema_registry="http://registry")
    assert (report.rows, report.dead_lettered) == (1, 0)
    assert [dict(row["x"]) for row in loads.rows("x")] == [*({"k": n} for n in schema_ids), {"k": 0.5}]
    check_files(loads)


def test_a_fraction_makes_doubles_beside_a_time_of_the_same_object(loads: Loads) -> None:
    """R30: Parquet stores times as integers of 64 bits, too, and they need not be exact as doubles."""
    loads.send({"o": {"n": 1, "at": "9999-12-31T00:00:00Z"}})
    loads.load(columns={"o": pa.struct([("n", pa.int64()), ("at", TIMESTAMP_TYPE)])})
    loads.send({"o": {"n": 2.5}})
    assert loads.load().warnings == ("Column o was one of whole numbers and is one of doubles now.",)
    assert [row["o"]["n"] for row in loads.rows("o")] == [1.0, 2.5]
    check_files(loads)


def test_a_fraction_makes_doubles_of_whole_numbers(loads: Loads) -> None:
    loads.send({"later": 10, "o": {"n": [1]}})
    loads.load()
    loads.send({"later": 9.5, "o": {"n": [2]}}, {"later": 30.0}, b'{"later":3e1,"o":{"n":[2.5]}}')
    report = loads.load()
    assert (report.loaded, report.rows, report.dead_lettered) == (3, 3, 0)
    assert report.warnings == (
        "Column later was one of whole numbers and is one of doubles now.",
        "Column o was one of whole numbers and is one of doubles now.",
    )
    assert loads.rows("later", "o") == [
        {"later": 10.0, "o": {"n": [1.0]}},
        {"later": 9.5, "o": {"n": [2.0]}},
        {"later": 30.0, "o": None},
        {"later": 30.0, "o": {"n": [2.5]}},
    ]
    check_files(loads)


def test_a_fraction_makes_doubles_of_whole_numbers_in_a_column_with_dots_in_its_name(loads: Loads) -> None:
    """It is no path into another column, neither in the log nor in files."""
    loads.send({"a.b": 1}, {"a.b.c": 1})
    loads.load()
    loads.send({"a.b": 0.5})
    loads.load()
    assert [row["a.b"] for row in loads.rows("a.b")] == [1.0, None, 0.5]
    check_files(loads)


def test_a_negative_zero_keeps_its_sign_after_whole_numbers(loads: Loads) -> None:
    """As it does beside them: no integer is -0.0."""
    loads.send({"n": 7})
    loads.load()
    loads.send(b'{"n":-0.0}')
    assert loads.load().dead_lettered == 0
    assert str(loads.rows("n")) == "[{'n': 7.0}, {'n': -0.0}]"


def test_only_days_that_need_it_are_written_anew(loads: Loads) -> None:
    for day, value in enumerate(({"b": 1}, {"a": 1, "tags": []}, {"a": 2})):
        loads.send(value, time_ms=NEW_YEAR_MS + day * DAY_MS)
        loads.load()
    before = loads.files()
    loads.send({"tags": ["x"]}, time_ms=NEW_YEAR_MS + 3 * DAY_MS)
    loads.load()
    assert len(loads.files() - before) == 2
    named = {Path(uri).name for uri in loads.table().delta.file_uris()}
    assert len(before & named) == 2
    loads.send({"a": 2.5}, time_ms=NEW_YEAR_MS + 4 * DAY_MS)
    loads.load()
    now_named = {Path(uri).name for uri in loads.table().delta.file_uris()}
    assert len(named & now_named) == 1  # that of the first record, which has no column "a"
    assert [row["a"] for row in loads.rows("a")] == [None, 1.0, 2.0, None, 2.5]
    assert [row["tags"] for row in loads.rows("tags")] == [None, [], None, ["x"], None]
    check_files(loads)


@pytest.mark.parametrize(
    ("first", "more", "note"),
    [
        ({"n": 2**53 + 1}, {}, "too large to be exact"),
        ({"n": {"m": [2**53 + 1]}}, {}, "too large to be exact"),
        ({"n.m": 2**53 + 1}, {}, "too large to be exact"),
        ({"n": 1}, {"limit": 0}, "which is too much for one load"),
        ({"n": 1}, {"appendOnly": "true"}, "append-only"),
        ({"n": 1}, {"columns": {"n": pa.int64()}}, None),
    ],
    ids=["large", "large inside", "large with a dot", "costly", "append-only", "declared"],
)
def test_what_cannot_be_a_double_keeps_its_type_and_a_note_says_why(
    loads: Loads,
    monkeypatch: pytest.MonkeyPatch,
    first: dict[str, Any],
    more: dict[str, Any],
    note: str | None,
) -> None:
    """No digit is lost, and no value."""
    loads.send({**first, "tags": []})
    loads.load(columns=more.get("columns", {}))
    if "limit" in more:
        monkeypatch.setattr(adaptation, "REWRITTEN_BYTES_MAX", more["limit"])
    if "appendOnly" in more:
        loads.table().delta.alter.set_table_properties({"delta.appendOnly": "true"})
    ((name, number),) = first.items()
    fraction = {name: {"m": [0.5]} if isinstance(number, dict) else 0.5}
    loads.send(fraction)
    report = loads.load(columns=more.get("columns", {}))
    assert (report.loaded, report.dead_lettered) == (1, 0)
    assert [row[name] for row in loads.rows(name)] == [number, None]
    assert json.loads(loads.rows("_rest")[1]["_rest"]) == fraction
    assert note is None or any(note in warning for warning in report.warnings), report.warnings
    assert len(report.warnings) == (1 if note is None else 2)


def test_iceberg_tables_keep_values_in_the_rest(cluster: FakeCluster, tmp_path: Path) -> None:
    loads = Loads(cluster, tmp_path, TableFormat.ICEBERG)
    loads.send({"n": 1, "tags": []})
    loads.load()
    loads.send({"n": 0.5, "tags": ["x"]})
    loads.load()
    assert loads.rows("n", "tags", "_rest") == [
        {"n": 1, "tags": None, "_rest": '{"tags":[]}'},
        {"n": None, "tags": ["x"], "_rest": '{"n": 0.5}'},
    ]


def test_rewrites_that_were_planned_before_are_planned_again(loads: Loads) -> None:
    """A backfill or a merge must not bring rows back that were adapted since."""
    loads.send({"n": 1})
    loads.load()
    before = loads.table().rewrites
    loads.send({"n": 0.5})
    loads.load()
    assert loads.table().rewrites == before + 1
    assert loads.table().delta.transaction_version(REWRITES) == before + 1


def test_a_table_without_rows_gets_other_types_too(loads: Loads) -> None:
    loads.send({"n": 1})
    loads.load()
    loads.table().delta.delete()
    loads.send({"n": 0.5})
    loads.load()
    assert loads.rows("n") == [{"n": 0.5}]


def test_a_backfill_during_which_a_load_shows_a_type_is_planned_again(loads: Loads) -> None:
    loads.send({"id": 1, "tags": []})
    loads.load()
    loads.table().delta.delete()
    loads.send({"id": 2, "tags": ["x"]})
    meddled = iter([True])

    def meddle() -> None:
        if next(meddled, False):
            loads.load()

    backfill(loads.settings(), ChosenOffsets(), executor=Meddling(meddle))
    assert loads.rows("id", "tags", "_rest") == [
        {"id": 1, "tags": [], "_rest": None},
        {"id": 2, "tags": ["x"], "_rest": None},
    ]


def load_other(loads: Loads, *values: bytes) -> None:
    """Load another topic into the same table."""
    other = loads.cluster.topic("u") if "u" not in loads.cluster.topics else loads.cluster.topics["u"]
    end = other.partitions[0].end
    other.partitions[0].append(
        [Record(end + index, NEW_YEAR_MS, None, value) for index, value in enumerate(values)]
    )
    load_topic(replace(loads.settings(), topic="u", table="t"), InProcessExecutor())


@pytest.mark.parametrize("other", [b'{"n":2,"tags":[]}', b'{"n":2.5,"tags":["y"]}'])
@pytest.mark.parametrize("moment", ["read", "copied", "adapted"])
def test_a_load_that_others_overtake_while_it_adapts_the_table_misses_no_row(
    loads: Loads, monkeypatch: pytest.MonkeyPatch, moment: str, other: bytes
) -> None:
    """Their rows are adapted, too."""
    loads.send({"n": 1, "tags": []})
    loads.load()
    loads.send({"n": 0.5, "tags": ["x"]})
    meddled = iter([True])

    def meddle() -> None:
        if next(meddled, False):
            load_other(loads, other)

    adapt = WarehouseTable.adapt

    def overtaken(table: WarehouseTable, *arguments: Any) -> bool:
        if moment == "copied":
            meddle()
        is_done = adapt(table, *arguments)
        if moment == "adapted":
            meddle()
        return is_done

    monkeypatch.setattr(WarehouseTable, "adapt", overtaken)
    loads.load(Meddling(meddle) if moment == "read" else None)
    sent = json.loads(other)
    assert sorted(
        (row["n"], row["tags"], row["_rest"]) for row in loads.rows("n", "tags", "_rest")
    ) == sorted([(1.0, [], None), (0.5, ["x"], None), (float(sent["n"]), sent["tags"], None)])
    check_files(loads)


def test_a_table_that_others_change_all_the_time_keeps_its_types(
    loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads.send({"tags": []})
    loads.load()
    loads.send({"tags": ["x"]})
    adapt = WarehouseTable.adapt

    others = iter([b'{"other":1}', b'{"other":2}'])

    def overtaken(table: WarehouseTable, *arguments: Any) -> bool:
        if (other := next(others, None)) is not None:
            load_other(loads, other)
        return adapt(table, *arguments)

    monkeypatch.setattr(WarehouseTable, "adapt", overtaken)
    monkeypatch.setattr(adapting, "TRIES_MAX", 1)
    report = loads.load()
    assert report.loaded == 1
    assert "was changed by others 1 times while it was adapted" in report.warnings[0]
    assert [row["_rest"] for row in loads.rows("_rest")].count('{"tags":[]}') == 1


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("method", ["adapt", "commit", "deliver_dead_letters", "_append"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", [1, 2])
def test_a_load_that_ends_while_it_adapts_the_table_is_completed_by_the_next(
    loads: Loads, monkeypatch: pytest.MonkeyPatch, method: str, after: bool, call: int
) -> None:
    """Each row is there once at any moment, and with its content."""
    loads.send({"n": 1, "tags": []}, b"dead")
    loads.load(max_rejected_share=1)
    loads.send({"n": 0.5, "tags": ["x"]}, b"dead")
    calls = iter(range(1, 100))
    plain: Callable[..., Any] = getattr(WarehouseTable, method)

    def killed(table: WarehouseTable, *arguments: Any) -> Any:
        number = next(calls)
        if number == call and not after:
            raise Killed
        result = plain(table, *arguments)
        if number == call:
            raise Killed
        return result

    with monkeypatch.context() as patch:
        patch.setattr(WarehouseTable, method, killed)
        try:
            loads.load(max_rejected_share=1)
        except Killed:
            pass
    first, *_ = loads.rows("n", "tags", "_rest") if "tags" in loads.table().payload_columns else [None]
    assert first in (None, {"n": 1.0, "tags": [], "_rest": None})
    while loads.load(max_rejected_share=1).outcome is LoadOutcome.LOADED:
        pass
    assert loads.rows("n", "tags", "_rest") == [
        {"n": 1.0, "tags": [], "_rest": None},
        {"n": 0.5, "tags": ["x"], "_rest": None},
    ]
    assert len(loads.dead()) == 2
    check_files(loads)


scalars = st.one_of(st.none(), st.integers(-5, 5), st.sampled_from([0.5, 2.0, -1.25]))
lists = st.lists(scalars, max_size=2)
nested = st.fixed_dictionaries(
    {},
    optional={
        "n": scalars,
        "l": lists,
        "o": st.fixed_dictionaries({}, optional={"l": st.lists(lists, max_size=2)}),
    },
)
records: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "n": scalars,
        "l": lists,
        "o": nested,
        "a": st.lists(st.one_of(st.none(), nested), max_size=2),
        "e": st.sampled_from([[], {}, [[]], [{}], [None], {"x": []}]),
    },
)


def content(loads: Loads) -> list[dict[str, Any]]:
    """The rows in their order, `_rest` without its spelling; a member that is null is as good as none."""
    rows = loads.rows("*")
    names = [name for name in loads.table().payload_columns if rows]
    return [
        {
            **{name: row[name] for name in names},
            "_rest": without_nulls(json.loads(row["_rest"])) if row.get("_rest") else None,
        }
        for row in rows
    ]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(st.lists(records, min_size=1, max_size=3), min_size=1, max_size=4),
    tasks=st.integers(1, 3),
)
def test_any_cut_of_records_into_loads_and_tasks_gives_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, batches: Sequence[Sequence[dict[str, Any]]], tasks: int
) -> None:
    """R30: as if all records had come in one load."""
    folder = tmp_path_factory.mktemp("warehouse")
    with FakeCluster() as cluster, pytest.MonkeyPatch.context() as patch:
        whole, cut = Loads(cluster, folder / "whole"), Loads(cluster, folder / "cut")
        cut.topic = whole.topic = cluster.topics["t"]
        sent = 0
        for batch in batches:
            whole.send(*batch)
            sent += len(batch)
        assert whole.load().loaded == sent
        limit_tasks(patch, tasks)
        for batch in batches:
            assert cut.load(max_records=len(batch)).dead_lettered == 0
        assert content(cut) == content(whole)
        check_files(cut)
