"""How results of queries are shown (R36)."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

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
