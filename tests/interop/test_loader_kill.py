"""R29: loaders that are killed many times, and run two at once, load every record exactly once.

Most loaders run their tasks in their own process, because a JVM takes seconds to start and adds nothing to
what is at stake; some are real Spark drivers. Kills come at random moments of a run, and at two chosen ones:
when files are written and nothing is committed, and when rows are committed and their dead letters are not
delivered. After every kill, data and offsets must have moved together. Fields come up all the while, so that
columns are added under way. `make kills` kills 200 loaders of each table format (`LOADER_KILLS=200`).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from confluent_kafka import Producer
from tests.support.clusters import ReachableCluster, SharedCluster
from tests.support.topics import TopicFactory
from tests.support.waiting import let_pass

from mainstem.local.child_process import spawn
from mainstem_loader.columns import TableFormat, partition_column
from mainstem_loader.kafka.fetch import TopicReader
from mainstem_loader.kafka.leaders import BrokerSettings
from mainstem_loader.table.commits import WarehouseTable
from mainstem_loader.table.iceberg_catalog import IcebergCatalog
from mainstem_loader.table.query import query, tables

KILLS: Final = int(os.environ.get("LOADER_KILLS", "16"))
"""Of loaders without Spark, for each table format."""
SPARK_KILLS: Final = 2
TIMEOUT_S: Final = 600 + 20 * (KILLS - 16)
PARTITIONS: Final = 3
FIRST_RECORDS: Final = 30_000
RECORDS_PER_ROUND: Final = 3_000
RUN_RECORDS: Final = 2_000
SPARK_RUN_RECORDS: Final = 20_000

# A run of RUN_RECORDS takes about a tenth of a second, so a kill may fall anywhere into the first few.
KILL_WITHIN_S: Final = 0.35
SPARK_KILL_WITHIN_S: Final = 1.5
END_WITHIN_S: Final = 60

LOADING_PROCESS: Final = Path(__file__).parent.parent / "unit" / "loader" / "loading_process.py"


class Topic:
    """A topic whose records follow from their place: every 97th does not parse."""

    def __init__(self, cluster: ReachableCluster, name: str) -> None:
        self.name = name
        self.bootstrap_servers = cluster.bootstrap_servers
        self.ends = dict.fromkeys(range(PARTITIONS), 0)
        self._producer: Any = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "linger.ms": 5,
                "batch.num.messages": 200,
                "log_level": 0,
            }
        )

    def send(self, count: int, round_number: int) -> None:
        for index in range(count):
            partition = index % PARTITIONS
            offset = self.ends[partition]
            value = b"nonsense" if self.is_bad(offset) else b'{"n":%d,"f%d":1}' % (offset, round_number)
            self._producer.produce(self.name, value, partition=partition)
            self.ends[partition] += 1
        assert self._producer.flush(30) == 0

    @staticmethod
    def is_bad(offset: int) -> bool:
        return offset % 97 == 0


@dataclass(frozen=True)
class Lake:
    """Where the topic is loaded to."""

    warehouse: Path
    format: TableFormat

    def table(self, name: str) -> WarehouseTable:
        catalog = IcebergCatalog() if self.format is TableFormat.ICEBERG else None
        return WarehouseTable(self.warehouse, name, catalog=catalog)

    def places(self, sql: str) -> list[tuple[int, int]]:
        return [tuple(row.values()) for row in query(self.warehouse, sql).to_pylist()]


class Loader:
    """A loading process, and a way to kill it that leaves nothing behind."""

    def __init__(self, topic: Topic, lake: Lake, *, spark: bool = False, die_at: str | None = None) -> None:
        order = {
            "bootstrap_servers": topic.bootstrap_servers,
            "topic": topic.name,
            "warehouse": str(lake.warehouse),
            "format": lake.format,
            "max_records": SPARK_RUN_RECORDS if spark else RUN_RECORDS,
            "spark": spark,
            "die_at": die_at,
        }
        self._process: subprocess.Popen[str] = spawn(
            [sys.executable, str(LOADING_PROCESS), json.dumps(order)], stdout=subprocess.PIPE, text=True
        )

    def wait_for(self, stages: Sequence[str]) -> str | None:
        """The first of the stages that it enters; None if it ends before."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() in stages:
                return line.strip()
        return None

    def kill(self) -> None:
        """SIGKILL, and wait until it and all it started are gone."""
        children: list[psutil.Process] = []
        try:
            children = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            pass  # It killed itself.
        self._process.kill()
        self.wait()
        # Spark's JVM ends when its driver's end of a pipe closes, and Python workers end with the JVM.
        _, alive = psutil.wait_procs(children, timeout=END_WITHIN_S)
        assert not alive, f"processes outlived their driver: {alive}"

    def wait(self) -> int:
        assert self._process.stdout is not None
        self._process.stdout.close()
        return self._process.wait(END_WITHIN_S)

    def wait_done(self) -> None:
        """Until the table has all."""
        assert self.wait_for(["done"]) == "done", (
            "the loader ended early; its error is in the captured output"
        )
        assert self.wait() == 0


@pytest.fixture
def topic(local_stack: SharedCluster, new_topic: TopicFactory) -> Topic:
    return Topic(local_stack, new_topic(PARTITIONS))


@pytest.fixture
def started() -> Iterator[list[Loader]]:
    """Loaders that end with the test, however it ends."""
    loaders: list[Loader] = []
    yield loaders
    for loader in loaders:
        loader.kill()


def check_data_and_offsets_moved_together(topic: Topic, topic_id: str, lake: Lake, seed: int) -> None:
    if topic.name not in tables(lake.warehouse):
        return
    # Opened first: what a loader that still runs commits meanwhile may only add rows.
    table = lake.table(topic.name)
    committed = {partition: table.committed(topic_id, partition) or 0 for partition in range(PARTITIONS)}
    column = partition_column(lake.format)
    conditions = " OR ".join(f"({column} = {p} AND _offset < {end})" for p, end in committed.items())
    result = lake.places(f'SELECT {column}, _offset FROM "{topic.name}" WHERE {conditions}')
    expected = {
        (p, offset) for p, end in committed.items() for offset in range(end) if not topic.is_bad(offset)
    }
    assert len(result) == len(set(result)), f"rows are doubled; seed {seed}"
    assert set(result) == expected, f"data and offsets did not move together; seed {seed}"


def check_all_is_loaded_once(topic: Topic, lake: Lake, seed: int) -> None:
    """Rows = unique rows = records of the topic, with those that do not parse in the dead letters."""
    every = {(partition, offset) for partition, end in topic.ends.items() for offset in range(end)}
    rows = lake.places(f'SELECT {partition_column(lake.format)}, _offset FROM "{topic.name}"')
    dead = lake.places(f"SELECT _partition, _offset FROM dead_letters WHERE topic = '{topic.name}'")
    assert len(rows) == len(set(rows)), f"rows are doubled; seed {seed}"
    assert len(dead) == len(set(dead)), f"dead letters are doubled; seed {seed}"
    assert set(rows) == {place for place in every if not topic.is_bad(place[1])}, f"seed {seed}"
    assert set(dead) == {place for place in every if topic.is_bad(place[1])}, f"seed {seed}"
    assert lake.places(f'SELECT n, _offset FROM "{topic.name}" WHERE n <> _offset') == [], f"seed {seed}"


def topic_id_of(topic: Topic) -> str:
    with TopicReader(BrokerSettings(topic.bootstrap_servers), topic.name) as reader:
        return reader.topic_id


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("table_format", list(TableFormat))
def test_kills_and_two_loaders_at_once_lose_and_double_nothing(
    topic: Topic, tmp_path: Path, started: list[Loader], table_format: TableFormat
) -> None:
    lake = Lake(tmp_path, table_format)
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    topic.send(FIRST_RECORDS, 0)
    topic_id = topic_id_of(topic)
    killed = 0
    for number in range(KILLS):
        topic.send(RECORDS_PER_ROUND, number)
        die_at = {0: "commit", 1: "dead letters", 2: "load"}.get(number % 8)
        loaders = [Loader(topic, lake, die_at=die_at)]
        if number % 3 == 0:
            loaders.append(Loader(topic, lake))
        started.extend(loaders)
        if die_at is None:
            assert loaders[0].wait_for(["connect"]), f"the loader did not start; seed {seed}"
            let_pass(chance.uniform(0, KILL_WITHIN_S), "the moment of the kill is what varies")
            loaders[0].kill()
        else:
            # It kills itself, unless the other one has left it nothing to load.
            loaders[0].wait_for(["done"])
        killed += loaders[0].wait() == -signal.SIGKILL
        check_data_and_offsets_moved_together(topic, topic_id, lake, seed)
        for other in loaders[1:]:
            other.kill()
    assert killed >= KILLS * 3 // 4, f"only {killed} loaders were killed at work; seed {seed}"
    for number in range(SPARK_KILLS):
        topic.send(RECORDS_PER_ROUND, KILLS + number)
        loader = Loader(topic, lake, spark=True, die_at="commit" if number == 0 else None)
        started.append(loader)
        assert loader.wait_for(["load"]), f"Spark did not start; seed {seed}"
        if number:
            let_pass(chance.uniform(0, SPARK_KILL_WITHIN_S), "the moment of the kill is what varies")
        else:
            loader.wait_for(["done"])
        loader.kill()
        check_data_and_offsets_moved_together(topic, topic_id, lake, seed)
    last = [Loader(topic, lake), Loader(topic, lake)]
    started.extend(last)
    for loader in last:
        loader.wait_done()
    check_all_is_loaded_once(topic, lake, seed)
    left = list(tmp_path.rglob("*part-*.parquet"))
    swept = lake.table(topic.name).sweep_orphans(24, now_s=time.time() + 25 * 3600)
    assert len(left) - len(list(tmp_path.rglob("*part-*.parquet"))) == swept > 0
    check_all_is_loaded_once(topic, lake, seed)
