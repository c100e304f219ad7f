"""R34: SQL and Python between topic and table, on a real Spark; the resident loader as a process (R30)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from tests.support.ports import own_ports
from tests.support.waiting import wait_until
from tests.unit.loader.batch_bytes import Record
from tests.unit.loader.fake_cluster import FakeCluster
from tests.unit.loader.test_transformed_loads import NEW_YEAR_MS, Topics

from mainstem.local.child_process import spawn
from mainstem_loader.errors import TransformError
from mainstem_loader.load_topic import LoadReport, load_topic
from mainstem_loader.spark.executors import SparkExecutor
from mainstem_loader.table.query import query
from mainstem_loader.transform.definition import TableInput, TopicInput, Transform

WITHIN_S: Final = 240


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkExecutor]:
    """One Spark for all tests of the module."""
    with SparkExecutor("local[2]", {"spark.python.authenticate.socketTimeout": "120s"}) as executor:
        yield executor


@pytest.fixture
def topics(tmp_path: Path) -> Iterator[Topics]:
    with FakeCluster() as cluster:
        found = Topics(cluster, tmp_path / "tables")
        found.warehouse.mkdir()
        yield found


def numbers(topics: Topics, *of: int) -> None:
    topics.send(*({"n": n, "word": f"w{n}", "tags": [n, n + 1], "at": {"town": f"t{n}"}} for n in of))


def load(topics: Topics, spark: SparkExecutor, transform: Transform, **more: Any) -> LoadReport:
    return load_topic(topics.settings(transform=transform, **more), spark)


def test_sql_filters_flattens_and_computes(topics: Topics, spark: SparkExecutor) -> None:
    numbers(topics, 1, 2, 3)
    sql = """
        SELECT n * 2 AS doubled, at.town, explode(tags) AS tag, _partition, _offset, day
        FROM records WHERE n <> 2
    """
    report = load(topics, spark, Transform(sql=sql))
    assert (report.loaded, report.rows) == (3, 4)
    assert topics.ask("SELECT doubled, town, tag, _offset FROM t ORDER BY tag") == [
        {"doubled": 2, "town": "t1", "tag": 1, "_offset": 0},
        {"doubled": 2, "town": "t1", "tag": 2, "_offset": 0},
        {"doubled": 6, "town": "t3", "tag": 3, "_offset": 2},
        {"doubled": 6, "town": "t3", "tag": 4, "_offset": 2},
    ]


def test_topics_and_tables_are_joined(topics: Topics, spark: SparkExecutor) -> None:
    numbers(topics, 1, 2)
    load(topics, spark, Transform(sql="SELECT n, _partition, _offset, day FROM records"))
    topics.cluster.topic("users")
    topics.send({"id": 2, "name": "Bob"}, {"id": 3, "name": "Cem"}, topic="users")
    numbers(topics, 2, 3, 4)
    sql = """
        SELECT r.n, u.name, u.town, r._partition, r._offset, r.day
        FROM records r LEFT JOIN users u ON u.id = r.n LEFT ANTI JOIN seen s ON s.n = r.n
    """
    inputs: dict[str, TopicInput | TableInput] = {
        "users": TopicInput("users", columns={}),
        "seen": TableInput("t"),
    }
    with pytest.raises(TransformError, match="declared"):
        load(topics, spark, Transform(sql=sql, inputs=inputs))
    load(topics, spark, Transform(sql=sql.replace("u.town, ", ""), inputs=inputs))
    assert topics.ask("SELECT n, name FROM t ORDER BY n") == [
        {"n": 1, "name": None},
        {"n": 2, "name": None},
        {"n": 3, "name": "Cem"},
        {"n": 4, "name": None},
    ]


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELEKT 1", "PARSE_SYNTAX_ERROR"),
        ("SELECT amount FROM records", "declared"),
        ("SELECT CAST(word AS int) AS i FROM records", "CAST_INVALID_INPUT"),
        ("SELECT map('a', n) AS m FROM records", "to_json"),
        ("SELECT n, _partition, _offset + 100 AS _offset, day FROM records", "has not read"),
        ("SELECT n, CAST(NULL AS date) AS day FROM records", "whose day is null"),
        ("SELECT n FROM records; SELECT n FROM records", "several statements"),
        ("-- nothing", "is no query"),
        ("SET spark.sql.ansi.enabled = false", "is a command"),
        ("DROP VIEW records", "is a command"),
        ("CREATE TABLE made AS SELECT 1 AS n", "is a command"),
        ("INSERT OVERWRITE DIRECTORY 'made' USING parquet SELECT 1 AS n", "is a command"),
        pytest.param(
            "WITH one AS (SELECT 1) INSERT INTO made TABLE one",
            "is a command",
            id="insert-behind-with",
        ),
        ("CALL spark_catalog.system.expire_snapshots('t')", "is a command"),
        ("EXECUTE IMMEDIATE 'CREATE TABLE made AS SELECT 1 AS n'", "is a command"),
    ],
)
def test_a_statement_that_fails_says_why_and_changes_nothing(
    topics: Topics, spark: SparkExecutor, sql: str, reason: str
) -> None:
    numbers(topics, 1, 2)
    with pytest.raises(TransformError, match=reason) as caught:
        load(topics, spark, Transform(sql=sql))
    assert "Traceback" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert topics.files() == []
    load(topics, spark, Transform(sql="SELECT n, _partition, _offset, day FROM records"))
    assert len(topics.ask("SELECT n FROM t")) == 2


def test_a_statement_that_never_ends_is_cancelled_and_spark_goes_on(
    topics: Topics, spark: SparkExecutor
) -> None:
    numbers(topics, 1)
    # Endless, but of little memory: what fills the heap ends Spark.
    sql = """
        SELECT /*+ BROADCAST(records) */ count(*) AS c
        FROM range(1000000000000000) AS a JOIN records ON a.id % 7 = n
    """
    with pytest.raises(TransformError, match="did not end within 5 s"):
        load(topics, spark, Transform(sql=sql, deadline_s=5))
    assert topics.files() == []
    assert load(topics, spark, Transform(sql="SELECT n FROM records")).rows == 1


def test_a_job_that_would_begin_after_the_deadline_does_not(spark: SparkExecutor) -> None:
    with pytest.raises(TransformError, match="did not end within 0 s"):
        spark.run_frames(lambda session: session.range(10**15).where("id % 7 = 8").count(), 0)
    tracker = spark.context.statusTracker()
    wait_until(lambda: not tracker.getActiveJobsIds(), "the end of the job", WITHIN_S)


FUNCTIONS: Final = """
import os
import signal
import sys

from pyspark.sql import functions as F
from pyspark.sql.types import StringType


def shout(records, users):
    upper = F.udf(lambda word: word.upper(), StringType())
    named = records.join(users, records.n == users.id, "left")
    return named.select(upper("word").alias("word"), "name", records._partition, records._offset, records.day)


def fails(records):
    fail = F.udf(lambda word: 1 / 0, StringType())
    return records.select(fail("word").alias("word"))


def fails_at_once(records):
    raise ValueError("no licence")


def fails_at_a_key(records):
    return {}["amount"]


def names_no_column(records):
    return records.select("amount")


def calls_java_wrongly(records):
    return records.sparkSession._jvm.java.net.URI.create("a b")


def exits(records):
    sys.exit()


def interrupts(records):
    raise KeyboardInterrupt


def exits_in_a_worker(records):
    leave = F.udf(lambda word: sys.exit(3), StringType())
    return records.select(leave("word").alias("word"))


def ends_a_worker(records):
    end = F.udf(lambda word: os._exit(0), StringType())
    return records.select(end("word").alias("word"))


def ends_the_process(records):
    os._exit(0)


def kills_java(records):
    os.kill(records.sparkSession._jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
    return records


def stops_spark(records):
    records.sparkSession.stop()
    return records


def of_another_session(records):
    return records.sparkSession.newSession().range(3)


def no_frame(records):
    return 7


def nothing(records):
    records.select("n")


def stream(records):
    return records.sparkSession.readStream.format("rate").load()
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with functions, in the current folder."""
    name = f"functions_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    return name


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("fails", "ZeroDivisionError"),
        ("fails_at_once", r"ValueError: no licence \(functions_.*\.py, line 22\)$"),
        ("fails_at_a_key", r"KeyError: 'amount' \(functions_.*, line 26\)$"),
        ("names_no_column", r"UNRESOLVED_COLUMN.* line 30\)\. A field"),
        ("calls_java_wrongly", r"Illegal character in path at index 1: a b \("),
        ("exits", "SystemExit.*ends with return"),
        ("interrupts", "KeyboardInterrupt"),
        ("exits_in_a_worker", "SystemExit: 3.*ends with return"),
        ("ends_a_worker", "os._exit"),
        ("stops_spark", "remove the call"),
        ("of_another_session", "of another session"),
        ("nothing", "returned NoneType"),
        ("no_frame", "returned int"),
        ("stream", "returned a stream"),
    ],
)
def test_a_function_that_fails_says_why(
    topics: Topics, spark: SparkExecutor, functions: str, function: str, reason: str
) -> None:
    numbers(topics, 1)
    with pytest.raises(TransformError, match=reason) as caught:
        load(topics, spark, Transform(function=f"{functions}:{function}"))
    assert "\n" not in str(caught.value)
    assert topics.files() == []
    assert spark.is_alive()


def load_process(topics: Topics, function: str, *more: str) -> subprocess.CompletedProcess[str]:
    """A load as a process of its own."""
    command = [sys.executable, "-m", "mainstem_loader", "t", "--cores", "1", "--transform", function, *more]
    command += ["--bootstrap-servers", topics.cluster.bootstrap_servers, "--warehouse", str(topics.warehouse)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=WITHIN_S)


@pytest.mark.parametrize(
    ("function", "reason"), [("ends_the_process", "SystemExit: 0"), ("kills_java", "virtual machine ended")]
)
def test_a_function_that_ends_a_process_fails_its_load(
    topics: Topics, functions: str, function: str, reason: str
) -> None:
    numbers(topics, 1)
    ended = load_process(topics, f"{functions}:{function}")
    assert ended.returncode == 1
    # Servers of PySpark print traces before it when their connections to Java end.
    assert reason in ended.stderr.splitlines()[-1]
    assert topics.files() == []


def test_the_loader_runs_a_function_of_the_current_folder(topics: Topics, functions: str) -> None:
    """As a process of its own, as a pod runs it; workers of Spark find the module, too."""
    numbers(topics, 1, 2)
    topics.cluster.topic("users")
    topics.send({"id": 2, "name": "Bob"}, topic="users")
    ended = load_process(
        topics, f"{functions}:shout", "--input", "users=topic:users", "--input-column", "users.name=string"
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["rows"] == 2
    assert topics.ask("SELECT word, name FROM t ORDER BY word") == [
        {"word": "W1", "name": None},
        {"word": "W2", "name": "Bob"},
    ]


class ResidentProcess:
    """`python -m mainstem_loader.resident` on a file."""

    def __init__(self, file: Path) -> None:
        self.port = own_ports()
        self.process: subprocess.Popen[str] = spawn(
            [
                *(sys.executable, "-m", "mainstem_loader.resident", str(file)),
                *("--cores", "1", "--port", str(self.port)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def topics(self) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/status", timeout=60) as answer:
                found: dict[str, Any] = json.load(answer)["topics"]
                return found
        except OSError:
            return {}


@pytest.mark.processes
def test_two_resident_loaders_and_a_kill_load_every_record_once(tmp_path: Path) -> None:
    """A pod that was believed dead, and its successor: one plain topic, and one with a transform."""
    warehouse = tmp_path / "tables"
    warehouse.mkdir()
    with FakeCluster() as cluster:
        for name in ("plain", "doubled"):
            cluster.topic(name)
        base = ["--bootstrap-servers", cluster.bootstrap_servers, "--warehouse", str(warehouse)]
        sql = "SELECT n, explode(array(1, 2)) AS copy, _partition, _offset, day FROM records"
        entries = {
            "plain": {"freshnessSeconds": 5, "arguments": ["plain", *base]},
            "doubled": {"freshnessSeconds": 5, "arguments": ["doubled", *base, "--transform-sql", sql]},
        }
        file = tmp_path / "topics.json"
        file.write_text(json.dumps({"topics": entries}))
        sent = 0

        def send(count: int) -> None:
            nonlocal sent
            for name in ("plain", "doubled"):
                partition = cluster.topics[name].partitions[0]
                partition.append(
                    [
                        Record(partition.end + index, NEW_YEAR_MS, None, b'{"n": %d}' % (sent + index))
                        for index in range(count)
                    ]
                )
            sent += count

        def count(table: str) -> int:
            if not (warehouse / table / "_delta_log").exists():
                return 0
            found: int = query(warehouse, f"SELECT count(*) AS c FROM {table}").to_pylist()[0]["c"]
            return found

        def counts() -> tuple[int, int]:
            return count("plain"), count("doubled")

        def all_are_loaded() -> bool:
            return counts() == (sent, 2 * sent)

        send(10)
        loaders = [ResidentProcess(file), ResidentProcess(file)]
        try:
            wait_until(all_are_loaded, "the first records are loaded", WITHIN_S, 0.1, seen=counts)
            send(10)
            loaders[0].process.kill()
            send(10)
            wait_until(all_are_loaded, "all records are loaded", WITHIN_S, 0.1, seen=counts)
            assert query(warehouse, "SELECT count(DISTINCT n) AS c FROM plain").to_pylist() == [{"c": sent}]
            assert loaders[1].topics()["plain"]["succeeded"] is True
            children = psutil.Process(loaders[1].process.pid).children(recursive=True)
            loaders[1].process.send_signal(signal.SIGTERM)
            assert loaders[1].process.wait(WITHIN_S) == 0
            _, alive = psutil.wait_procs(children, timeout=60)
            assert not alive
        finally:
            for loader in loaders:
                loader.process.kill()
                loader.process.communicate()
