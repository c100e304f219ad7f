"""Where the tasks of a job run: small work in the loader's own process, all other on Spark (R28)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.loader.batch_bytes import Record
from tests.unit.loader.fake_cluster import FakeCluster
from tests.unit.loader.test_load_topic import NEW_YEAR_MS, Loads

from mainstem_loader import task_runs
from mainstem_loader.chosen_offsets import ChosenOffsets
from mainstem_loader.load_topic import load_topic
from mainstem_loader.report import Stage
from mainstem_loader.rewrite_rows import backfill, rewind
from mainstem_loader.settings import LoadSettings
from mainstem_loader.spark.executor_pods import ExecutorPods
from mainstem_loader.spark.executors import InProcessExecutor, TaskExecutor
from mainstem_loader.table import contents
from mainstem_loader.table.parquet_files import FileOfDay
from mainstem_loader.task_runs import WorkSize
from mainstem_loader.transform.definition import declared_transform

MIB = 1024 * 1024
PODS = ExecutorPods(4, "mainstem/spark:1", "data", "clicks-load", "10.0.0.7", records_min=100)


@pytest.fixture
def loads(tmp_path: Path) -> Iterator[Loads]:
    with FakeCluster() as cluster:
        yield Loads(cluster, tmp_path)


@pytest.fixture
def sparks(monkeypatch: pytest.MonkeyPatch) -> list[WorkSize]:
    """The work for which Spark would have been started."""
    started: list[WorkSize] = []

    def start(_: LoadSettings, work: WorkSize, __: int) -> TaskExecutor:
        started.append(work)
        return InProcessExecutor()

    monkeypatch.setattr(task_runs, "_spark", start)
    return started


@pytest.mark.parametrize(
    ("work", "is_small"),
    [
        (WorkSize(0), True),
        (WorkSize(100_000), True),
        (WorkSize(100_001), False),
        (WorkSize(1_000_000, 256 * MIB), True),
        (WorkSize(1_000_001, 1), False),
        (WorkSize(2, 256 * MIB + 1), False),
    ],
)
def test_work_is_small_by_its_offsets_and_bytes(work: WorkSize, is_small: bool) -> None:
    assert work.is_small() == is_small


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"spark_master": "local[2]"}, id="a master is named"),
        pytest.param({"executor_pods": PODS}, id="executor pods are worth it"),
    ],
)
def test_small_loads_run_on_spark_on_request(
    loads: Loads, sparks: list[WorkSize], more: dict[str, Any]
) -> None:
    loads.send(*({"n": n} for n in range(100)))
    assert load_topic(loads.settings(**more)).loaded == 100
    assert sparks == [WorkSize(100)]


def test_small_loads_do_not_start_the_pods_that_they_are_not_worth(
    loads: Loads, sparks: list[WorkSize]
) -> None:
    loads.send(*({"n": n} for n in range(99)))
    assert load_topic(loads.settings(executor_pods=PODS)).loaded == 99
    assert not sparks


def test_a_small_load_starts_nothing_and_brings_the_same(loads: Loads, sparks: list[WorkSize]) -> None:
    loads.send({"n": 1}, b"bad", {"n": 2.5, "m": "x"})
    loads.send({"n": 3}, partition=1)
    here = load_topic(loads.settings(table="here", max_rejected_share=1), on_progress=loads.progress.append)
    assert not sparks
    assert Stage.START not in {progress.stage for progress in loads.progress}
    there = load_topic(loads.settings(table="there", max_rejected_share=1, spark_master="local[2]"))
    assert (here.loaded, here.dead_lettered, here.ranges) == (there.loaded, there.dead_lettered, there.ranges)
    columns = "_partition, _offset, _timestamp, _key, _topic_id, n, m, day"
    rows = [loads.ask(f"SELECT {columns} FROM {name} ORDER BY 1, 2") for name in ("here", "there")]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 3


def test_all_steps_of_a_load_count_as_its_work(loads: Loads, sparks: list[WorkSize]) -> None:
    """Offsets that compaction left out count: only reading would tell that they are empty."""
    partition = loads.topic.partitions[0]
    for offset in (0, 1_000_000):
        partition.append([Record(offset, NEW_YEAR_MS, None, b'{"n":1}')])
    assert load_topic(loads.settings()).loaded == 2
    assert [work.offset_count for work in sparks] == [1_000_001]
    assert sparks[0].size_bytes


def test_a_transform_runs_on_spark(loads: Loads) -> None:
    transform = declared_transform(None, "select * from records", (), ())
    assert not task_runs._runs_in_process(loads.settings(transform=transform), WorkSize(1), 1)


def test_rows_are_loaded_again_without_spark_while_that_is_little_work(
    loads: Loads, sparks: list[WorkSize], monkeypatch: pytest.MonkeyPatch
) -> None:
    loads.send(*({"n": n} for n in range(10)))
    loads.load()
    everything = ChosenOffsets()
    assert backfill(loads.settings(), everything, replace_rows=True).loaded == 10
    assert rewind(loads.settings(), ChosenOffsets(since_ms=NEW_YEAR_MS)).removed == 10
    assert not sparks
    assert load_topic(loads.settings()).loaded == 10
    large = FileOfDay("part", "2013-01-01", 1, 1_000_001)
    monkeypatch.setattr(contents, "files_of_days", lambda *_: [large])
    assert backfill(loads.settings(), everything, replace_rows=True).loaded == 10
    assert sparks == [WorkSize(1_000_001, 1)]
    assert len(loads.rows("n")) == 10
