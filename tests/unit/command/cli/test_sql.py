"""How results of queries are shown (R36)."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from mainstem.cli.main import app
from mainstem.cli.output import Output, OutputFormat
from mainstem.cli.sql import show_rows

TWO_NAMED_X = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["x", "x", "x_2"])


def test_columns_that_share_a_name_keep_their_values_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows(Output(OutputFormat.JSON), TWO_NAMED_X)
    assert json.loads(capsys.readouterr().out) == [{"x": 1, "x_3": 2, "x_2": 3}]


def test_columns_that_share_a_name_keep_their_values_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows(Output(OutputFormat.TABLE), TWO_NAMED_X)
    names, values = capsys.readouterr().out.splitlines()
    assert names.split() == ["x", "x_3", "x_2"]
    assert values.split() == ["1", "2", "3"]


def test_the_list_of_tables_marks_a_damaged_one(tmp_path: Path) -> None:
    for name in ("good", "bad"):
        write_deltalake(tmp_path / name, pa.table({"n": [1, 2]}))
    for commit in (tmp_path / "bad" / "_delta_log").glob("*.json"):
        commit.write_text("garbage")
    result = CliRunner().invoke(app, ["sql", "-w", str(tmp_path), "--output", "json"])
    assert result.exit_code == 0
    bad, good = json.loads(result.stdout)
    assert (bad["table"], bad["rows"]) == ("bad", None)
    assert "Table bad cannot be opened" in bad["error"]
    assert good == {"table": "good", "rows": 2, "error": None}
