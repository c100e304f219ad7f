"""`python -m mainstem_loader`: the driver's command line (R28)."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.loader.batch_bytes import Record
from tests.unit.loader.fake_cluster import FakeCluster

from mainstem_loader import __main__ as command
from mainstem_loader.arguments import load_parser
from mainstem_loader.column_types import type_of_name
from mainstem_loader.errors import SettingsError
from mainstem_loader.table.iceberg_catalog import IcebergCatalog
from mainstem_loader.table.query import query


def test_a_load_prints_its_report_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeCluster() as cluster:
        cluster.topic("t").partitions[0].append(
            [Record(0, 0, None, b'{"a":"2013-01-01T05:00:00Z"}'), Record(1)]
        )
        arguments = ["t", "--bootstrap-servers", cluster.bootstrap_servers, "--warehouse", str(tmp_path)]
        arguments += [
            "--column",
            "a=timestamp",
            "--event-time",
            "a",
            "--headers",
            "--sweep-orphans-after-hours",
            "24",
            "--max-rejected-percent",
            "50",
        ]
        assert command.main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["outcome"], report["loaded"], report["dead_lettered"]) == ("loaded", 1, 1)
    assert report["days"] == ["2013-01-01"]
    assert report["orphans_swept"] == 0
    assert query(tmp_path, "SELECT count(*) AS n FROM t").to_pylist() == [{"n": 1}]


def test_an_iceberg_table_is_loaded_by_one_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeCluster() as cluster:
        cluster.topic("t").partitions[0].append([Record(0, 0, None, b'{"a":1,"b":2}')])
        arguments = ["t", "--bootstrap-servers", cluster.bootstrap_servers, "--warehouse", str(tmp_path)]
        arguments += ["--format", "iceberg", "--catalog-namespace", "lake", "--column", "b=short"]
        assert command.main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["loaded"] == 1
    answer = query(tmp_path, "SELECT a, b FROM t", IcebergCatalog(namespace="lake"))
    assert answer.to_pylist() == [{"a": 1, "b": 2}]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--catalog", "http://x"], "Delta tables are in no catalog"),
        (["--format", "iceberg", "--catalog", "x"], "is named by its URL"),
        (["--format", "iceberg", "--catalog-namespace", ""], "No namespace can be called ''"),
    ],
)
def test_a_catalog_that_cannot_be_is_said_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    arguments = ["t", "--bootstrap-servers", "localhost:1", "--warehouse", str(tmp_path), *options]
    assert command.main(arguments) == 1
    assert words in capsys.readouterr().err


def test_an_error_is_one_sentence_and_an_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["t", "--bootstrap-servers", "localhost", "--warehouse", str(tmp_path)]
    assert command.main(arguments) == 1
    assert (
        capsys.readouterr().err
        == "'localhost' is not a bootstrap server; write host:port, several with commas.\n"
    )


@pytest.mark.parametrize("column", ["a", "=long", "a=bigint"])
def test_what_names_no_column_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], column: str
) -> None:
    arguments = ["t", "--bootstrap-servers", "localhost:1", "--warehouse", str(tmp_path), "--column", column]
    assert command.main(arguments) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("string", pa.string()),
        ("long", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("decimal(10,2)", pa.decimal128(10, 2)),
        ('{"type":"array","elementType":"long","containsNull":true}', pa.list_(pa.int64())),
    ],
)
def test_types_are_named_as_spark_names_them(name: str, kind: pa.DataType) -> None:
    assert type_of_name(name) == kind


@pytest.mark.parametrize("name", ["bigint", "", "{", '{"type":"array"}', "array<long>"])
def test_what_is_no_type_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=r"There is no column type .*; use string, long"):
        type_of_name(name)


def test_rows_are_loaded_again_once_for_each_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """R33: as the operator's Jobs do it."""
    with FakeCluster() as cluster:
        cluster.topic("t").partitions[0].append([Record(0, 0, None, b'{"a":1}')])
        summary = tmp_path / "summary"
        arguments = ["t", "--bootstrap-servers", cluster.bootstrap_servers, "--warehouse", str(tmp_path)]
        arguments += ["--summary-file", str(summary)]
        assert command.main(arguments) == 0
        rewind = [*arguments, "--rewrite=rewind", "--request-id=-1"]
        assert command.main(rewind) == 0
        assert json.loads(summary.read_text())["removed"] == 1
        assert query(tmp_path, "SELECT count(*) AS n FROM t").to_pylist() == [{"n": 0}]
        assert command.main(arguments) == 0
        assert command.main(rewind) == 0
        assert json.loads(summary.read_text())["repeated"] is True
        backfill = [*arguments, "--rewrite=replace", "--since=1970-01-01T00:00:00+00:00", "--partition=0"]
        assert command.main(backfill) == 0
        assert json.loads(summary.read_text())["removed"] == 1
    assert query(tmp_path, "SELECT count(*) AS n FROM t").to_pylist() == [{"n": 1}]
    capsys.readouterr()


def test_a_transform_is_named_by_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["t", "--bootstrap-servers", "localhost:1", "--warehouse", str(tmp_path)]
    assert command.main([*arguments, "--transform", str(tmp_path / "gone.sql")]) == 1
    assert "cannot be read" in capsys.readouterr().err
    assert command.main([*arguments, "--input", "users=table:users"]) == 1
    assert "name the transform" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("--max-records=1_000", "'1_000' is not a whole number, such as 1000"),
        ("--cores= 2", "' 2' is not a whole number"),
        ("--partition=٣", "'٣' is not a whole number"),
        ("--max-rejected-percent=nan", "'nan' is not a number, such as 2.5"),
    ],
)
def test_numbers_that_only_python_reads_are_refused(
    option: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        load_parser().parse_args(["--topic", "t", "--warehouse", "w", option])
    assert reason in capsys.readouterr().err
