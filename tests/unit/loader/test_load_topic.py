"""The job from topic to table (R28-R30), on a fake cluster and without Spark."""

from __future__ import annotations

import errno
import json
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from tests.unit.loader.batch_bytes import TRANSACTIONAL, Record, batch_bytes, control_batch
from tests.unit.loader.fake_cluster import FETCH, FakeCluster, FakePartition

from mainstem_loader import load_topic as job
from mainstem_loader.errors import (
    CorruptBatchError,
    DiskFullError,
    LoaderError,
    OffsetsLostError,
    SettingsError,
    TopicRecreatedError,
)
from mainstem_loader.executors import InProcessExecutor
from mainstem_loader.fetch import IsolationLevel
from mainstem_loader.load_topic import LoadOutcome, LoadProgress, LoadReport, LoadSettings, Stage, load_topic
from mainstem_loader.parquet_files import ParquetFile
from mainstem_loader.payload import PayloadFormat
from mainstem_loader.query import query
from mainstem_loader.ranges import GapPolicy, OffsetRange, ReadLimits
from mainstem_loader.tasks import run_task
from mainstem_loader.warehouse import WarehouseTable

NEW_YEAR_MS = int(datetime(2013, 1, 1, tzinfo=UTC).timestamp() * 1000)
DAY_MS = 86_400_000


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as running:
        yield running


class Loads:
    """One topic `t`, one warehouse, and loads from one to the other."""

    def __init__(self, cluster: FakeCluster, warehouse: Path) -> None:
        self.cluster = cluster
        self.warehouse = warehouse
        self.topic = cluster.topic("t", partitions=2)
        self.progress: list[LoadProgress] = []

    def send(self, *values: object, partition: int = 0, time_ms: int = NEW_YEAR_MS, **how: Any) -> None:
        """Append values in one batch: bytes as they are, None as tombstones, all else as JSON."""
        target = self.topic.partitions[partition]
        encoded = [
            value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
            for value in values
        ]
        target.append(
            [Record(target.end + index, time_ms, b"key", value) for index, value in enumerate(encoded)], **how
        )

    def settings(self, **more: Any) -> LoadSettings:
        return LoadSettings(self.cluster.bootstrap_servers, "t", self.warehouse, retry_ms=300, **more)

    def load(self, executor: InProcessExecutor | None = None, **more: Any) -> LoadReport:
        return load_topic(self.settings(**more), executor or InProcessExecutor(), self.progress.append)

    def ask(self, sql: str) -> list[dict[str, Any]]:
        return query(self.warehouse, sql).to_pylist()

    def rows(self, *columns: str) -> list[dict[str, Any]]:
        return self.ask(f"SELECT {', '.join(columns)} FROM t ORDER BY _partition, _offset")

    def dead(self) -> list[dict[str, Any]]:
        return self.ask("SELECT * FROM dead_letters ORDER BY _partition, _offset")

    def files(self) -> set[str]:
        return {path.name for path in self.warehouse.rglob("*.parquet") if "_delta_log" not in path.parts}


def limit_tasks(patch: pytest.MonkeyPatch, records: int) -> None:
    """Let no task of a load have more than `records` offsets."""

    def limits(run_records: int | None, run_bytes: int | None, parallelism: int) -> ReadLimits:
        return ReadLimits(run_records, run_bytes, records, task_records_min=1, parallelism=parallelism)

    patch.setattr(job, "ReadLimits", limits)


@pytest.fixture
def loads(cluster: FakeCluster, tmp_path: Path) -> Loads:
    return Loads(cluster, tmp_path)


def test_records_become_rows_with_their_place_time_and_key(loads: Loads) -> None:
    loads.send({"carrier": "UA", "delay": 2})
    loads.send({"carrier": "AA"}, partition=1, time_ms=NEW_YEAR_MS + DAY_MS)
    report = loads.load()
    assert (report.outcome, report.read, report.loaded, report.dead_lettered) == (LoadOutcome.LOADED, 2, 2, 0)
    assert report.days == ("2013-01-01", "2013-01-02")
    assert report.files == 2
    assert [(part.range, part.loaded) for part in report.ranges] == [
        (OffsetRange(0, 0, 1), 1),
        (OffsetRange(1, 0, 1), 1),
    ]
    assert loads.rows("*") == [
        {
            "_partition": 0,
            "_offset": 0,
            "_timestamp": datetime(2013, 1, 1, tzinfo=UTC),
            "_key": b"key",
            "carrier": "UA",
            "delay": 2,
            "day": datetime(2013, 1, 1).date(),  # noqa: DTZ001  # a date has no zone
        },
        {
            "_partition": 1,
            "_offset": 0,
            "_timestamp": datetime(2013, 1, 2, tzinfo=UTC),
            "_key": b"key",
            "carrier": "AA",
            "delay": None,
            "day": datetime(2013, 1, 2).date(),  # noqa: DTZ001
        },
    ]


def test_a_second_load_takes_only_what_came_since(loads: Loads) -> None:
    loads.send(*({"n": n} for n in range(5)))
    assert loads.load().loaded == 5
    again = loads.load()
    assert (again.outcome, again.loaded, again.files) == (LoadOutcome.UP_TO_DATE, 0, 0)
    loads.send({"n": 5}, {"n": 6})
    assert loads.load().loaded == 2
    assert [row["n"] for row in loads.rows("n")] == list(range(7))


def test_an_empty_topic_makes_no_table_and_starts_no_executor(loads: Loads) -> None:
    class NoExecutor(InProcessExecutor):
        def __enter__(self) -> Self:
            raise AssertionError("there is nothing to run")

    assert loads.load(NoExecutor()).outcome is LoadOutcome.UP_TO_DATE
    assert list(loads.warehouse.iterdir()) == []


def test_raw_values_are_loaded_as_they_are(loads: Loads) -> None:
    loads.send(b"\xff\0", None, b"")
    assert loads.load(payload=PayloadFormat.RAW).loaded == 3
    assert [row["value"] for row in loads.rows("value")] == [b"\xff\0", None, b""]


def test_what_does_not_parse_is_kept_with_its_reason(loads: Loads) -> None:
    """R30."""
    loads.send({"a": 1}, b"nonsense", {"a": "text"}, None)
    report = loads.load(table="events")
    assert (report.read, report.loaded, report.dead_lettered) == (4, 2, 2)
    assert [row["a"] for row in loads.ask("SELECT a FROM events ORDER BY _offset")] == [1, None]
    assert loads.dead() == [
        {
            "topic": "t",
            "_partition": 0,
            "_offset": offset,
            "timestamp_ms": NEW_YEAR_MS,
            "_key": b"key",
            "value": value,
            "error": error,
            "table_name": "events",
        }
        for offset, value, error in (
            (1, b"nonsense", "not a JSON object"),
            (2, b'{"a": "text"}', "field 'a' is a string where it was an integer before"),
        )
    ]


def test_a_topic_of_nothing_but_dead_letters_still_moves(loads: Loads) -> None:
    loads.send(b"x", b"y")
    assert loads.load().dead_lettered == 2
    assert loads.load().outcome is LoadOutcome.UP_TO_DATE
    assert loads.rows("_offset") == []
    assert len(loads.dead()) == 2


def test_late_data_lands_in_its_own_day(loads: Loads) -> None:
    """R30."""
    loads.send({"at": "2013-06-01T00:00:00Z"}, {"at": "2013-05-01"}, {"at": 1357016400000})
    loads.send({"at": "never"}, {"b": 1}, None)
    report = loads.load(event_time_field="at", columns={"at": pa.string()})
    assert report.days == ("2013-01-01", "2013-05-01", "2013-06-01")
    assert [str(row["day"]) for row in loads.rows("day")] == ["2013-06-01", "2013-05-01", "2013-01-01"]
    reasons = [row["error"] for row in loads.dead()]
    assert reasons == [
        "field 'at' is a large integer where the column is a string",
        "the event time, field 'at', is no time: 'never'",
        "the event time, field 'at', is missing",
    ]


def test_timestamps_that_no_table_can_hold_are_dead_and_kept(loads: Loads) -> None:
    loads.send({"a": 1}, time_ms=2**62)
    loads.send({"a": 2}, b"x", time_ms=-5)
    report = loads.load()
    assert (report.loaded, report.dead_lettered) == (1, 2)
    assert [str(row["day"]) for row in loads.rows("day")] == ["1969-12-31"]
    assert [row["timestamp_ms"] for row in loads.dead()] == [2**62, -5]


def test_new_fields_become_columns(loads: Loads) -> None:
    loads.send({"a": 1})
    loads.load()
    loads.send({"a": 2, "b": "x", "s": {"k": 1}})
    loads.load()
    loads.send({"b": "y", "s": {"k": 2, "l": True}})
    loads.load()
    assert loads.rows("a", "b", "s") == [
        {"a": 1, "b": None, "s": None},
        {"a": 2, "b": "x", "s": {"k": 1, "l": None}},
        {"a": None, "b": "y", "s": {"k": 2, "l": True}},
    ]


def test_a_column_keeps_its_type(loads: Loads) -> None:
    loads.send({"a": 1})
    loads.load()
    loads.send({"a": 1.5}, {"a": 2})
    assert loads.load().dead_lettered == 1
    assert [row["a"] for row in loads.rows("a")] == [1, 2]


def test_tasks_that_learned_different_types_run_again(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task learns by itself: integers give way to doubles, else the first in order is right."""
    limit_tasks(monkeypatch, 2)
    loads.send({"a": 1, "b": "x"}, {"a": 2})
    loads.send({"a": 1.5, "b": 7}, {"a": 3, "b": "y", "c": 1})
    report = loads.load(cores=2)
    assert report.tries == 4
    assert (report.loaded, report.dead_lettered) == (3, 1)
    assert loads.rows("a", "b", "c") == [
        {"a": 1.0, "b": "x", "c": None},
        {"a": 2.0, "b": None, "c": None},
        {"a": 3.0, "b": "y", "c": 1},
    ]
    assert [row["error"] for row in loads.dead()] == ["field 'b' is an integer where the column is a string"]
    named = len(loads.ask("SELECT DISTINCT _offset FROM t"))
    assert named == 3
    assert len(loads.files()) == report.files + 1


def test_named_types_are_used_from_the_first_record(loads: Loads) -> None:
    loads.send({"a": 1, "at": "2013-01-01T05:00:00Z"})
    loads.load(columns={"a": pa.float64(), "at": pa.timestamp("us", "UTC")})
    assert loads.rows("a", "at") == [{"a": 1.0, "at": datetime(2013, 1, 1, 5, tzinfo=UTC)}]
    with pytest.raises(SettingsError, match="Column a of table t is double already and cannot become string"):
        loads.load(columns={"a": pa.string()})


def test_headers_are_kept_when_asked_for(loads: Loads) -> None:
    loads.send({"a": 1})
    loads.load()
    loads.topic.partitions[0].append([Record(1, 0, None, b"{}", ((b"trace", b"\1"), (b"empty", None)))])
    loads.load(with_headers=True)
    assert loads.rows("_headers") == [
        {"_headers": None},
        {"_headers": [{"key": "trace", "value": b"\1"}, {"key": "empty", "value": None}]},
    ]


def test_a_capped_run_leaves_the_rest_for_the_next(loads: Loads) -> None:
    for partition in (0, 1):
        for n in range(10):
            loads.send({"n": n}, partition=partition)
    assert [loads.load(max_records=8).loaded for _ in range(4)] == [8, 8, 4, 0]
    assert len(loads.rows("n")) == 20


def test_a_run_capped_by_bytes_reads_about_as_much(loads: Loads) -> None:
    for n in range(100):
        loads.send({"n": n})
    size = len(b"".join(loads.topic.partitions[0].batches))
    assert 30 <= loads.load(max_bytes=size // 3).loaded <= 36


def test_ranges_that_are_cut_inside_of_batches_load_each_record_once(
    loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_tasks(monkeypatch, 7)
    for partition in (0, 1):
        for first in range(0, 50, 10):
            loads.send(*({"n": first + n} for n in range(10)), partition=partition)
    report = loads.load()
    assert report.loaded == 100
    assert report.tries == 15
    assert [row["n"] for row in loads.rows("n")] == [*range(50), *range(50)]


def test_fetches_smaller_than_a_batch_still_get_there(loads: Loads) -> None:
    loads.send(*({"n": n} for n in range(100)))
    loads.send({"n": 100})
    assert loads.load(fetch_bytes=10).loaded == 101


def test_only_committed_transactions_are_loaded(loads: Loads) -> None:
    """R12."""
    partition = loads.topic.partitions[0]
    partition.append([Record(0, 0, None, b'{"n":0}')], attributes=TRANSACTIONAL, producer_id=5)
    partition.add(control_batch(1, 5, commit=False))
    partition.append([Record(2, 0, None, b'{"n":2}')], attributes=TRANSACTIONAL, producer_id=5)
    partition.add(control_batch(3, 5, commit=True))
    partition.append([Record(4, 0, None, b'{"n":4}')], attributes=TRANSACTIONAL, producer_id=6)
    partition.aborted = [(5, 0)]
    partition.stable = 4
    report = loads.load()
    assert (report.read, report.ranges[0].range) == (1, OffsetRange(0, 0, 4))
    assert [row["n"] for row in loads.rows("n")] == [2]
    uncommitted = loads.load(table="all", isolation=IsolationLevel.READ_UNCOMMITTED)
    assert uncommitted.loaded == 3


def test_a_range_of_control_batches_moves_the_offset(loads: Loads) -> None:
    loads.topic.partitions[0].add(control_batch(0, 5, commit=True))
    report = loads.load()
    assert (report.outcome, report.read, report.files) == (LoadOutcome.LOADED, 0, 0)
    assert loads.load().outcome is LoadOutcome.UP_TO_DATE


def test_a_flipped_byte_is_never_loaded(loads: Loads) -> None:
    """R6: nothing of the run becomes visible, and the error says where."""
    loads.send({"a": 1})
    loads.load()
    loads.send({"a": 2})
    loads.send({"a": 3}, partition=1)
    damaged = bytearray(loads.topic.partitions[0].batches[1])
    damaged[-3] ^= 4
    loads.topic.partitions[0].batches[1] = bytes(damaged)
    before = loads.files()
    with pytest.raises(
        CorruptBatchError, match="Partition 0 of topic t is damaged at offset 1: the checksum"
    ):
        loads.load()
    assert [row["a"] for row in loads.rows("a")] == [1]
    assert loads.files() == before


def test_a_gap_fails_the_run_or_is_recorded(loads: Loads) -> None:
    loads.send({"n": 0})
    loads.load()
    for n in range(1, 5):
        loads.send({"n": n})
    loads.topic.partitions[0].log_start = 3
    with pytest.raises(OffsetsLostError, match="Offsets 1 to 2 of partition 0"):
        loads.load()
    report = loads.load(on_gap=GapPolicy.SKIP_AND_RECORD)
    assert report.gaps == (OffsetRange(0, 1, 3),)
    assert [row["n"] for row in loads.rows("n")] == [0, 3, 4]
    assert loads.load().outcome is LoadOutcome.UP_TO_DATE


def test_a_topic_cut_short_fails_and_one_made_anew_starts_at_its_beginning(loads: Loads) -> None:
    loads.send({"n": 0}, {"n": 1})
    loads.load()
    short = loads.topic
    short.partitions[0] = FakePartition()
    with pytest.raises(TopicRecreatedError, match="ends at offset 0, but the table has loaded it up to 2"):
        loads.load()
    short.topic_id = UUID(int=77)
    loads.send({"n": 9})
    assert loads.load().loaded == 1
    assert sorted(row["n"] for row in loads.rows("n")) == [0, 1, 9]


def test_a_partition_that_is_added_is_loaded_from_its_beginning(loads: Loads) -> None:
    loads.send({"n": 0})
    loads.load()
    loads.topic.partitions[2] = FakePartition()
    loads.send({"n": 1}, partition=2)
    assert loads.load().loaded == 1


class Meddling(InProcessExecutor):
    """Does something while tasks are done and nothing is committed yet."""

    def __init__(self, meddle: Callable[[], object]) -> None:
        super().__init__()
        self._meddle = meddle

    def run(self, *arguments: Any) -> list[Any]:
        results = super().run(*arguments)
        self._meddle()
        return results


def test_a_load_that_another_overtook_changes_nothing(loads: Loads) -> None:
    """R29."""
    loads.send({"a": 1}, b"dead")
    report = loads.load(Meddling(loads.load))
    assert (report.outcome, report.loaded, report.dead_lettered) == (LoadOutcome.SUPERSEDED, 0, 0)
    assert [row["a"] for row in loads.rows("a")] == [1]
    assert len(loads.dead()) == 1
    assert len(loads.files()) == 2


def test_a_load_whose_columns_another_load_defined_is_planned_anew(loads: Loads) -> None:
    loads.send({"a": 1})
    other = loads.cluster.topic("u")
    other.partitions[0].append([Record(0, 0, None, b'{"a":"text"}')])
    settings = replace(loads.settings(), topic="u", table="t")
    meddled = iter([True])

    def meddle() -> None:
        if next(meddled, False):
            load_topic(settings, InProcessExecutor())

    report = loads.load(Meddling(meddle))
    assert (report.outcome, report.loaded, report.dead_lettered) == (LoadOutcome.LOADED, 0, 1)
    assert loads.ask("SELECT a FROM t") == [{"a": "text"}]


def test_a_failed_task_fails_the_run_and_leaves_no_files(
    loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_tasks(monkeypatch, 1)
    loads.send({"a": 1})
    loads.send({"a": 2})
    loads.cluster.errors[FETCH] = deque([ErrorCode.none, ErrorCode.offset_out_of_range])
    with pytest.raises(OffsetsLostError):
        loads.load()
    assert loads.files() == set()
    assert loads.load().loaded == 2


def test_a_full_disk_is_said_in_one_sentence(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(file: ParquetFile, table: pa.Table) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ParquetFile, "write", write)
    loads.send({"a": 1})
    with pytest.raises(DiskFullError, match=r"The disk of .*/t is full; nothing of this run was loaded"):
        loads.load()


def test_stages_are_told_in_order(loads: Loads) -> None:
    loads.send({"a": 1})
    report = loads.load()
    assert loads.progress == [
        LoadProgress(Stage.CONNECT),
        LoadProgress(Stage.START),
        LoadProgress(Stage.LOAD),
        LoadProgress(Stage.LOAD, 1, 1),
        LoadProgress(Stage.COMMIT),
        LoadProgress(Stage.DEAD_LETTERS),
    ]
    assert set(report.seconds) == {stage.value for stage in Stage}
    assert set(report.task_seconds) == {"fetch", "decode", "parse", "write"}


def test_the_commit_remembers_the_run(loads: Loads) -> None:
    loads.send({"a": 1}, b"x")
    report = loads.load()
    table = WarehouseTable(loads.warehouse, "t")
    assert table._delta is not None
    (commit,) = [commit for commit in table._delta.history() if "mainstem" in commit]
    run = commit["mainstem"]
    assert (run["run"], run["topic"], run["topicId"]) == (report.run_id, "t", report.topic_id)
    assert run["ranges"] == [{"partition": 0, "start": 0, "end": 2, "read": 2, "loaded": 1, "dead": 1}]
    assert run["gaps"] == []


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"payload": PayloadFormat.RAW, "event_time_field": "at"}, "Raw values have no fields"),
        ({"payload": PayloadFormat.RAW, "columns": {"a": pa.int64()}}, "Raw values have no fields"),
        ({"max_records": 0}, "max_records is 0; it must be at least 1"),
        ({"cores": 0}, "cores is 0"),
        ({"columns": {"a b": pa.int64()}}, "cannot be the name of a column"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_settings_that_make_no_sense_are_refused(loads: Loads, more: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        loads.load(**more)


def test_a_table_of_other_payloads_takes_no_raw_values(loads: Loads) -> None:
    loads.send({"value": "text"})
    loads.load()
    loads.send(b"raw")
    with pytest.raises(SettingsError, match="holds string, not raw values"):
        loads.load(payload=PayloadFormat.RAW)


values = st.sampled_from(
    [b'{"a":1}', b'{"a":1.5}', b'{"a":"x"}', b'{"b":{"c":1}}', b'{"b":{"d":"y"}}', b"bad", None, b"{}"]
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sends=st.lists(st.tuples(st.integers(0, 1), st.lists(values, min_size=1, max_size=4)), max_size=6),
    cap=st.integers(1, 9),
    task_records=st.integers(1, 5),
)
def test_every_record_is_one_row_or_one_dead_letter_whatever_the_runs(
    tmp_path_factory: pytest.TempPathFactory,
    sends: Sequence[tuple[int, Sequence[bytes | None]]],
    cap: int,
    task_records: int,
) -> None:
    """R29: over any split into runs and tasks, with types that change and fields that come."""
    with FakeCluster() as cluster, pytest.MonkeyPatch.context() as patch:
        limit_tasks(patch, task_records)
        loads = Loads(cluster, tmp_path_factory.mktemp("warehouse"))
        sent: set[tuple[int, int]] = set()
        for partition, batch in sends:
            sent |= {
                (partition, loads.topic.partitions[partition].end + index) for index in range(len(batch))
            }
            loads.send(*batch, partition=partition)
            loads.load(max_records=cap)
        while loads.load(max_records=cap).outcome is LoadOutcome.LOADED:
            pass
        found: list[tuple[int, int]] = []
        if sent:
            found += [(row["_partition"], row["_offset"]) for row in loads.rows("_partition", "_offset")]
        if (loads.warehouse / "dead_letters").exists():
            found += [(row["_partition"], row["_offset"]) for row in loads.dead()]
        assert sorted(found) == sorted(sent)


def test_a_task_tells_its_error_as_a_value(loads: Loads) -> None:
    """What crosses from executor to driver must survive pickling with its sentence."""
    captured: list[Any] = []

    class Capturing(InProcessExecutor):
        def run(self, function: Any, tasks: Any, on_ended: Any) -> list[Any]:
            captured.extend(tasks)
            return super().run(function, tasks, on_ended)

    loads.send({"a": 1})
    result = loads.load(Capturing())
    task = pickle.loads(pickle.dumps(captured[0]))
    assert task == captured[0]
    loads.topic.partitions[0].log_start = 1
    failure = pickle.loads(pickle.dumps(run_task(task, 2)))
    assert isinstance(failure.error, OffsetsLostError)
    assert "Offset 0 of partition 0 of topic t is gone" in str(failure.error)
    assert result.loaded == 1


def test_a_task_that_lies_about_its_rows_is_caught(loads: Loads) -> None:
    class Forgetful(InProcessExecutor):
        def run(self, *arguments: Any) -> list[Any]:
            return [replace(result, files=()) for result in super().run(*arguments)]

    loads.send({"a": 1})
    with pytest.raises(LoaderError, match="wrote other rows than it read"):
        loads.load(Forgetful())


def test_a_batch_twice_in_a_fetch_is_damage(loads: Loads) -> None:
    loads.send({"a": 1})
    loads.topic.partitions[0].batches.append(batch_bytes([Record(0, 0, None, b"{}")]))
    loads.topic.partitions[0].end = 2
    with pytest.raises(CorruptBatchError):
        loads.load()
