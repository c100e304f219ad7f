"""What has to be written anew so that columns can have other types, and what is left as it is (R30)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from mainstem_loader.columns import Columns
from mainstem_loader.table import adaptation, contents
from mainstem_loader.table.adaptation import Adaptation, plan_adaptation
from mainstem_loader.table.delta import add_of_json, commit_files, create_table, json_of_add, open_table
from mainstem_loader.table.folder import Folder
from mainstem_loader.table.parquet_files import ParquetFile, WrittenFile, file_name, new_run_id

TAGS: Columns = {"tags": pa.list_(pa.string())}
DOUBLES: Columns = {"n": pa.float64()}
TYPES: dict[str, pa.DataType] = {"n": pa.int64(), "_rest": pa.string(), "day": pa.date32()}
SCHEMA = pa.schema(TYPES)


class Table:
    """A table with a file for each day."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        create_table(folder, SCHEMA, "day")

    def write(self, day: str, **columns: Any) -> WrittenFile:
        """A file of the loader that is not committed yet."""
        rows = pa.table({name: pa.array(values, TYPES[name]) for name, values in columns.items()})
        path = f"day={day}/{file_name(new_run_id(time.time()), 0, 0)}-1.parquet"
        file = ParquetFile(self.folder, path, rows.schema, {"day": day})
        file.write(rows)
        return file.close()

    def add(self, day: str, **columns: Any) -> WrittenFile:
        """A file of the loader."""
        written = self.write(day, **columns)
        table = open_table(self.folder)
        assert table is not None
        commit_files(table, [add_of_json(json_of_add(written))], "day", [], {})
        return written

    def plan(
        self,
        learned: Columns | None = None,
        wider: Columns | None = None,
        new: list[WrittenFile] | None = None,
    ) -> tuple[Adaptation, list[str]]:
        table = open_table(self.folder)
        assert table is not None
        return plan_adaptation(self.folder, table, learned or {}, wider or {}, new or [])


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(Folder.of(tmp_path) / "t")


def test_a_new_column_needs_the_days_whose_rows_name_its_field(table: Table) -> None:
    table.add("2013-01-01", n=[1, 2], _rest=[None, '{"tags":[]}'])
    table.add("2013-01-02", n=[1])
    table.add("2013-01-03", n=[1], _rest=['{"other":{}}'])
    table.add("2013-01-04", n=[1, 2], _rest=['{"other":[]}', '{"t\\u0061gs":[]}'])
    table.add("2013-01-05", n=[1], _rest=[None])
    planned, notes = table.plan(TAGS)
    assert (planned.columns, planned.days, planned.rows, notes) == (TAGS, ("2013-01-01", "2013-01-04"), 4, [])
    assert table.plan({"fresh": pa.bool_()})[0].days == ("2013-01-04",)  # its other escapes may say anything


def test_a_file_whose_rests_are_all_the_same_is_not_read_for_another_field(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.add("2013-01-01", n=[1, 2], _rest=['{"tags":[]}', '{"tags":[]}'])
    asked: list[list[str]] = []
    days_with_rest = contents.days_with_rest

    def noted(folder: Folder, delta: DeltaTable, days: list[str], texts: list[str]) -> list[str]:
        asked.append(days)
        return days_with_rest(folder, delta, days, texts)

    monkeypatch.setattr(contents, "days_with_rest", noted)
    assert table.plan({"fresh": pa.bool_()})[0] == Adaptation({"fresh": pa.bool_()})
    assert asked == []
    assert table.plan(TAGS)[0].days == ("2013-01-01",)
    assert asked == [["2013-01-01"]]


def test_doubles_need_the_days_that_have_the_column_or_its_values_in_the_rest(table: Table) -> None:
    table.add("2013-01-01", n=[1])
    table.add("2013-01-02", n=[None])
    table.add("2013-01-03", _rest=['{"n":0.5}'])
    table.add("2013-01-04", _rest=[None])
    planned, notes = table.plan(wider=DOUBLES)
    assert (planned.columns, planned.days) == (DOUBLES, ("2013-01-01", "2013-01-02", "2013-01-03"))
    assert notes == []


def test_files_of_other_programs_are_looked_into(table: Table) -> None:
    """They have statistics of their own, or none."""
    rows = pa.table({"n": [2**53 + 1], "_rest": pa.array([None], pa.string())})
    foreign = rows.append_column("day", pa.array([0], pa.int32()).cast(pa.date32()))
    write_deltalake(table.folder.url, foreign, mode="append")
    assert table.plan(TAGS)[0].days == ()
    planned, (note,) = table.plan(wider=DOUBLES)
    assert (planned.columns, planned.days) == ({}, ())
    assert "too large to be exact as doubles" in note


@pytest.mark.parametrize("number", [2**53, -(2**53)])
def test_numbers_up_to_a_double_s_precision_are_exact(table: Table, number: int) -> None:
    table.add("2013-01-01", n=[number])
    assert table.plan(wider=DOUBLES)[0].columns == DOUBLES
    beyond = number + (1 if number > 0 else -1)
    new = table.write("2013-01-02", n=[beyond])
    assert table.plan(wider=DOUBLES, new=[new])[0].columns == {}, "nor is what the same load brings rounded"
    table.add("2013-01-02", n=[beyond])
    assert table.plan(wider=DOUBLES)[0].columns == {}


@pytest.mark.parametrize("limit", ["REWRITTEN_BYTES_MAX", "SEARCHED_BYTES_MAX"])
def test_what_costs_too_much_is_left(table: Table, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    table.add("2013-01-01", n=[1], _rest=['{"tags":[]}'])
    monkeypatch.setattr(adaptation, limit, 1)
    planned, (note,) = table.plan(TAGS)
    assert (planned.columns, planned.days) == (TAGS, ())
    assert note.startswith("Earlier rows may have values of tags in the column _rest, and they stay there")
    assert "mainstem load backfill TOPIC --all --replace" in note


def test_small_files_count_as_what_it_costs_to_open_them(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        table.add("2013-01-01", n=[1])
    monkeypatch.setattr(adaptation, "REWRITTEN_BYTES_MAX", 4 * adaptation.FILE_BYTES_MIN)
    assert table.plan(wider=DOUBLES)[0].columns == DOUBLES
    table.add("2013-01-01", n=[1])
    planned, (note,) = table.plan(wider=DOUBLES)
    assert planned.columns == {}
    assert "5 files of 0 MiB would have to be written anew, which is too much for one load" in note
    assert "load into another table with --column n=double" in note


@pytest.mark.parametrize(
    "properties",
    [
        {"delta.appendOnly": "true"},
        {"delta.enableChangeDataFeed": "true"},
        {"delta.enableDeletionVectors": "true"},
    ],
    ids=str,
)
def test_a_table_that_others_have_set_up_otherwise_is_left(table: Table, properties: dict[str, str]) -> None:
    table.add("2013-01-01", n=[1], _rest=['{"tags":[]}'])
    opened = open_table(table.folder)
    assert opened is not None
    opened.alter.set_table_properties(properties)
    planned, notes = table.plan(TAGS, DOUBLES)
    assert planned == Adaptation({})
    assert [note.split(" ", 2)[:2] for note in notes] == [["Column", "n"], ["Earlier", "rows"]]
    assert all("(delta.appendOnly)" in note or "has features of Delta" in note for note in notes)


def test_a_column_that_others_gave_another_type_is_left_to_the_commit(table: Table) -> None:
    table.add("2013-01-01", n=[1], _rest=[json.dumps({"n": "x"})])
    assert table.plan({"n": pa.string()})[0].columns == {}
