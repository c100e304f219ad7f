"""How results of queries are shown (R36)."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from mainstem.cli.arrow_values import unique_names
from mainstem.cli.main import app
from mainstem.cli.output import Output, OutputFormat
from mainstem.cli.sql import show_rows, write_csv

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


def test_the_list_of_tables_goes_on_beside_a_damaged_catalog(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "good", pa.table({"n": [1, 2]}))
    catalog = tmp_path / "_iceberg" / "catalog.sqlite"
    catalog.parent.mkdir()
    catalog.write_bytes(b"garbage" * 1000)
    result = CliRunner().invoke(app, ["sql", "-w", str(tmp_path), "--output", "json"])
    assert result.exit_code == 0
    good, bad = json.loads(result.stdout)
    assert good == {"table": "good", "rows": 2, "error": None}
    assert (bad["table"], bad["rows"]) == ("mainstem.*", None)
    assert "file is not a database" in bad["error"]


def json_of(result: pa.Table, capsys: pytest.CaptureFixture[str]) -> Any:
    show_rows(Output(OutputFormat.JSON), result)
    return json.loads(capsys.readouterr().out)


def table_of(result: pa.Table, capsys: pytest.CaptureFixture[str]) -> list[str]:
    show_rows(Output(OutputFormat.TABLE), result)
    return [line.strip() for line in capsys.readouterr().out.splitlines()]


def csv_of(result: pa.Table, capfdbinary: pytest.CaptureFixture[bytes]) -> list[bytes]:
    write_csv(result)
    return capfdbinary.readouterr().out.splitlines()


def test_numbers_that_json_has_no_form_for_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    floats = pa.table({"f": [float("nan"), float("inf"), float("-inf"), -0.0, None]})
    values = ["NaN", "Infinity", "-Infinity", -0.0, None]
    assert [row["f"] for row in json_of(floats, capsys)] == values
    assert json_of(pa.table({"f": [floats["f"].to_pylist()]}), capsys) == [{"f": values}]
    decimals = pa.table({"d": pa.array([Decimal("0.00000001"), Decimal("1e20")], pa.decimal128(38, 8))})
    assert [row["d"] for row in json_of(decimals, capsys)] == ["0.00000001", "100000000000000000000.00000000"]


def test_bytes_that_are_no_text_are_base64(capsys: pytest.CaptureFixture[str]) -> None:
    bytes_of = pa.struct([("b", pa.binary()), ("b_base64", pa.int64())])
    result = pa.table(
        {
            "key": [b"\xff", b"\\xff", None],
            "l": pa.array([[b"\xff", b"x"], [], None]),
            "s": pa.array([{"b": b"\xff", "b_base64": 1}, None, None], bytes_of),
        }
    )
    assert json_of(result, capsys) == [
        {
            "key_base64": "/w==",
            "l": [{"base64": "/w=="}, "x"],
            "s": {"b_base64_2": "/w==", "b_base64": 1},
        },
        {"key": "\\xff", "l": [], "s": None},
        {"key": None, "l": None, "s": None},
    ]


def test_times_and_intervals_keep_all_digits(capsys: pytest.CaptureFixture[str]) -> None:
    result = pa.table(
        {
            "ns": pa.array([1_500_000_001, None], pa.timestamp("ns")),
            "far": pa.array([9_999_999_999_999_999, -62_135_596_800_001], pa.timestamp("ms", "+05:30")),
            "day": pa.array([-719_163, 2_932_897], pa.date32()),
            "clock": pa.array([36_000_123_456_789, 0], pa.time64("ns")),
            "took": pa.array([-90_061_000_000_001, 0], pa.duration("ns")),
            "every": pa.array([(14, -3, 1_500_000_000), (0, 0, 0)], pa.month_day_nano_interval()),
        }
    )
    first, second = json_of(result, capsys)
    assert list(first.values()) == [
        "1970-01-01 00:00:01.500000001",
        "+318857-05-20T23:16:39.999000+05:30",
        "0000-12-31",
        "10:00:00.123456789",
        "P-1DT-1H-1M-1.000000001S",
        "P1Y2M-3DT1.5S",
    ]
    assert list(second.values()) == [
        None,
        "0001-01-01T05:29:59.999000+05:30",
        "+10000-01-01",
        "00:00:00",
        "PT0S",
        "PT0S",
    ]


def test_repeated_members_and_pairs_are_all_there(capsys: pytest.CaptureFixture[str]) -> None:
    repeated = pa.StructArray.from_arrays([pa.array([1, 3]), pa.array([2, 4])], names=["a", "a"])
    pairs = pa.array([[("k", 1), ("k", 2)], None], pa.map_(pa.string(), pa.int64()))
    result = pa.table({"s": repeated, "m": pairs})
    shown = [{"s": {"a": 1, "a_2": 2}, "m": [["k", 1], ["k", 2]]}, {"s": {"a": 3, "a_2": 4}, "m": None}]
    assert json_of(result, capsys) == shown
    assert json_of(result.slice(1), capsys) == shown[1:]


def test_nothing_and_values_that_look_like_it_differ_in_tables(capsys: pytest.CaptureFixture[str]) -> None:
    result = pa.table({"l": [[], None, ["None, x"], [None, "x"], ["a\x1b[2J"]]})
    assert table_of(result, capsys) == ["l", "[]", "-", '["None, x"]', '[null,"x"]', '["a\\u001b[2J"]']


def test_names_of_columns_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    names, _ = table_of(pa.table({":smile:": [1], "[red]x": [2], "a\n\x1b[2J": [3]}), capsys)
    assert names.split() == [":smile:", "[red]x", "a\\n\\x1b[2J"]


def test_csv_has_all_types(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    result = pa.table(
        {
            "key": [b"\xff", b"x", None],
            "l": [["a,b", None], [], None],
            "took": pa.array([1_500, None, None], pa.duration("ms")),
            "far": pa.array([9_999_999_999_999_999, 0, None], pa.timestamp("ms")),
            "text": ["", None, "x"],
        }
    )
    assert csv_of(result, capfdbinary) == [
        b'"key_base64","l","took","far","text"',
        b'"/w==","[""a,b"",null]","PT1.5S","+318857-05-20 17:46:39.999000",""',
        b'"eA==","[]",,"1970-01-01 00:00:00",',
        b',,,,"x"',
    ]


def test_columns_that_share_a_name_are_numbered_in_linear_time() -> None:
    names = unique_names(["x"] * 50_000)
    assert (names[0], names[-1], len(set(names))) == ("x", "x_50000", 50_000)
