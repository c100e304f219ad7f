"""What a commit reports of a file: minima and maxima by which readers skip files (R30)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.loader.fake_cluster import FakeCluster
from tests.unit.loader.test_load_topic import Loads

from mainstem_loader.arrow_arrays import Array
from mainstem_loader.columns import TIMESTAMP_TYPE, TableFormat
from mainstem_loader.table.folder import Folder
from mainstem_loader.table.parquet_files import ParquetFile

NTZ = pa.timestamp("us")
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def machine_in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


def statistics(folder: Path, **columns: Array) -> Any:
    rows = pa.table(columns)
    file = ParquetFile(Folder.of(folder), "x.parquet", rows.schema, {})
    file.write(rows)
    return json.loads(file.close().statistics)


@pytest.mark.usefixtures("machine_in_berlin")
def test_bounds_of_times_do_not_depend_on_the_zone_of_the_machine(tmp_path: Path) -> None:
    found = statistics(
        tmp_path,
        without_zone=pa.array([NOON.replace(tzinfo=None)], NTZ),
        with_zone=pa.array([NOON], TIMESTAMP_TYPE),
    )
    assert found["minValues"] == found["maxValues"]
    assert found["minValues"] == {
        "without_zone": "2024-01-01T12:00:00.000000",
        "with_zone": "2024-01-01T12:00:00.000000Z",
    }


@pytest.mark.usefixtures("machine_in_berlin")
def test_a_query_by_a_time_without_zone_finds_its_row(cluster: FakeCluster, tmp_path: Path) -> None:
    loads = Loads(cluster, tmp_path)
    loads.send({"at": "2024-01-01T12:00:00"})
    loads.load(columns={"at": NTZ})
    assert loads.rows("at") == [{"at": NOON.replace(tzinfo=None)}]
    assert len(loads.ask("SELECT at FROM t WHERE at >= TIMESTAMP '2024-01-01 11:30:00'")) == 1


@pytest.mark.parametrize("table_format", list(TableFormat))
def test_times_of_early_years_are_in_tables_of_both_formats(
    cluster: FakeCluster, tmp_path: Path, table_format: TableFormat
) -> None:
    """The year 1 is what some languages have for a time that was never set."""
    loads = Loads(cluster, tmp_path, table_format)
    loads.send({"at": "0001-01-01T00:00:00Z"}, {"at": "0999-12-31T23:59:59.999999Z"})
    report = loads.load(columns={"at": TIMESTAMP_TYPE})
    assert (report.loaded, report.rows, report.dead_lettered) == (2, 2, 0)
    assert loads.rows("at") == [
        {"at": datetime(1, 1, 1, tzinfo=UTC)},
        {"at": datetime(999, 12, 31, 23, 59, 59, 999999, UTC)},
    ]


@pytest.mark.parametrize("outside", [-62_135_596_800_000_001, 253_402_300_800_000_000])
def test_a_file_has_no_bounds_of_times_that_have_no_text(tmp_path: Path, outside: int) -> None:
    """Rows that a transform returns or another program has written may have them."""
    times = pa.array([0, outside], pa.int64()).cast(TIMESTAMP_TYPE)
    days = pa.array([0, outside // 86_400_000_000], pa.int32()).cast(pa.date32())
    found = statistics(tmp_path, n=pa.array([1, 2]), at=times, on=days)
    assert found["minValues"] == {"n": 1}
    assert found["maxValues"] == {"n": 2}
    assert found["nullCount"] == {"n": 0, "at": 0, "on": 0}


@pytest.mark.parametrize("table_format", list(TableFormat))
def test_a_time_outside_of_the_years_of_tables_blocks_no_topic(
    cluster: FakeCluster, tmp_path: Path, table_format: TableFormat
) -> None:
    loads = Loads(cluster, tmp_path, table_format)
    loads.send({"at": "0001-01-01T00:00:00+01:00"}, {"at": "2024-01-01T12:00:00Z"})
    report = loads.load(columns={"at": TIMESTAMP_TYPE})
    assert (report.loaded, report.rows, report.dead_lettered) == (2, 2, 0)
    assert loads.rows("at", "_rest") == [
        {"at": None, "_rest": '{"at": "0001-01-01T00:00:00+01:00"}'},
        {"at": NOON, "_rest": None},
    ]
    loads.send({"at": "9999-12-31T23:59:59-05:00"})
    report = loads.load(event_time_field="at")
    assert (report.rows, report.dead_lettered) == (0, 1)


def test_years_have_four_digits_in_bounds(tmp_path: Path) -> None:
    times = [datetime(1, 1, 1, tzinfo=UTC), datetime(999, 12, 31, 23, 59, 59, 999999, UTC)]
    without_zone = [time.replace(tzinfo=None) for time in times]
    found = statistics(tmp_path, z=pa.array(times, TIMESTAMP_TYPE), n=pa.array(without_zone, NTZ))
    assert found["minValues"] == {"z": "0001-01-01T00:00:00.000000Z", "n": "0001-01-01T00:00:00.000000"}
    assert found["maxValues"] == {"z": "0999-12-31T23:59:59.999999Z", "n": "0999-12-31T23:59:59.999999"}
