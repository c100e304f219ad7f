"""The job from topic to table (R28-R30), on a fake cluster and without Spark."""

from __future__ import annotations

import errno
import json
import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Sequence
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
from tests.unit.loader.batch_bytes import TRANSACTIONAL, Record, control_batch
from tests.unit.loader.fake_cluster import FETCH, FakeCluster, FakePartition

from mainstem_loader import load_topic as job
from mainstem_loader.columns import TableFormat, partition_column
from mainstem_loader.errors import (
    CorruptBatchError,
    DiskFullError,
    LoaderError,
    OffsetsLostError,
    SettingsError,
    TopicRecreatedError,
    WarehouseError,
)
from mainstem_loader.kafka.fetch import IsolationLevel
from mainstem_loader.kafka.range_reader import oldest_time_ms
from mainstem_loader.load_topic import LoadOutcome, LoadProgress, LoadReport, LoadSettings, Stage, load_topic
from mainstem_loader.payload.readers import PayloadFormat
from mainstem_loader.ranges import GapPolicy, OffsetRange, ReadLimits
from mainstem_loader.report import rejects_too_many
from mainstem_loader.spark.executors import InProcessExecutor
from mainstem_loader.spark.tasks import run_task
from mainstem_loader.table.commits import WarehouseTable
from mainstem_loader.table.iceberg_catalog import IcebergCatalog
from mainstem_loader.table.parquet_files import ParquetFile
from mainstem_loader.table.query import query

NEW_YEAR_MS = int(datetime(2013, 1, 1, tzinfo=UTC).timestamp() * 1000)
DAY_MS = 86_400_000


class Loads:
    """One topic `t`, one warehouse, and loads from one to the other."""

    def __init__(
        self, cluster: FakeCluster, warehouse: Path, table_format: TableFormat = TableFormat.DELTA
    ) -> None:
        self.cluster = cluster
        self.warehouse = warehouse
        self.format = table_format
        self.catalog = IcebergCatalog() if table_format is TableFormat.ICEBERG else None
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
        return LoadSettings(
            self.cluster.bootstrap_servers, "t", self.warehouse, catalog=self.catalog, retry_ms=300, **more
        )

    def load(self, executor: InProcessExecutor | None = None, **more: Any) -> LoadReport:
        return load_topic(self.settings(**more), executor or InProcessExecutor(), self.progress.append)

    def ask(self, sql: str) -> list[dict[str, Any]]:
        return query(self.warehouse, sql).to_pylist()

    def rows(self, *columns: str) -> list[dict[str, Any]]:
        partition = partition_column(self.format)
        names = ", ".join(name if name == "*" else f'"{name}"' for name in columns)
        return self.ask(f"SELECT {names} FROM t ORDER BY {partition}, _offset")

    def dead(self) -> list[dict[str, Any]]:
        return self.ask("SELECT * FROM dead_letters ORDER BY _partition, _offset")

    def table(self) -> WarehouseTable:
        return WarehouseTable(self.warehouse, "t", catalog=self.catalog)

    def files(self) -> set[str]:
        return {path.name for path in self.warehouse.rglob("*.parquet") if "_delta_log" not in path.parts}


def limit_tasks(patch: pytest.MonkeyPatch, records: int) -> None:
    """Let no task of a load have more than `records` offsets."""

    def limits(run_records: int | None, run_bytes: int | None, parallelism: int) -> ReadLimits:
        return ReadLimits(run_records, run_bytes, records, task_records_min=1, parallelism=parallelism)

    patch.setattr(job, "ReadLimits", limits)


@pytest.fixture(params=list(TableFormat))
def loads(cluster: FakeCluster, tmp_path: Path, request: pytest.FixtureRequest) -> Loads:
    return Loads(cluster, tmp_path, request.param)


def test_every_character_of_a_path_but_a_few_can_be_in_that_of_a_warehouse(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    """R29: also those with a meaning in URLs, in SQL or to a shell."""
    names = ["a b;c,d", "'\"`$~", "*<>{}", "+&=@!:", "\u00fc\u65e5\U0001f600\u200b"]
    for table_format in TableFormat:
        loads = Loads(cluster, tmp_path / table_format / "/".join(names), table_format)
        loads.topic = cluster.topic("t", partitions=2)
        for delay in (1, 2):
            loads.send({"delay": delay}, b"{oops")
            report = loads.load()
            assert (report.loaded, report.dead_lettered) == (1, 1)
        assert [row["delay"] for row in loads.rows("delay")] == [1, 2]
        assert len(loads.dead()) == 2
    assert {path.name for path in tmp_path.iterdir()} == set(TableFormat)


def test_a_table_with_the_longest_name_of_a_topic_has_dead_letters(loads: Loads) -> None:
    """R30: topics have names of up to 249 bytes, and names of files hold that of the table and more."""
    loads.send({"delay": 1}, b"{oops")
    report = loads.load(table="t" * 249, max_rejected_share=1)
    assert (report.loaded, report.dead_lettered) == (1, 1)
    assert [letter["value"] for letter in loads.dead()] == [b"{oops"]


def test_a_record_without_a_timestamp_has_none_and_the_day_before_1970(loads: Loads) -> None:
    """R30, KIP-32."""
    loads.send({"n": 1, "at": "2013-01-02"}, time_ms=-1)
    loads.send({"n": 2, "at": "2013-01-02"})
    report = loads.load()
    assert report.days == ("1969-12-31", "2013-01-01")
    assert [row["_timestamp"] for row in loads.rows("_timestamp")] == [None, datetime(2013, 1, 1, tzinfo=UTC)]
    loads.send({"n": 3, "at": "2013-01-02"}, None, time_ms=-1)
    assert loads.load(event_time_field="at").days == ("1969-12-31", "2013-01-02")
    days = [str(row["day"]) for row in loads.ask('SELECT day FROM t WHERE "_timestamp" IS NULL ORDER BY day')]
    assert days == ["1969-12-31", "1969-12-31", "2013-01-02"]


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
    partition = partition_column(loads.format)
    assert loads.rows("*") == [
        {
            partition: 0,
            "_offset": 0,
            "_timestamp": datetime(2013, 1, 1, tzinfo=UTC),
            "_key": b"key",
            "_topic_id": report.topic_id,
            "_run": report.run_id,
            "carrier": "UA",
            "delay": 2,
            "day": datetime(2013, 1, 1).date(),  # noqa: DTZ001  # a date has no zone
        },
        {
            partition: 1,
            "_offset": 0,
            "_timestamp": datetime(2013, 1, 2, tzinfo=UTC),
            "_key": b"key",
            "_topic_id": report.topic_id,
            "_run": report.run_id,
            "carrier": "AA",
            "delay": None,
            "day": datetime(2013, 1, 2).date(),  # noqa: DTZ001
        },
    ]


def test_an_empty_topic_starts_no_executor(loads: Loads) -> None:
    class NoExecutor(InProcessExecutor):
        def __enter__(self) -> Self:
            raise AssertionError("there is nothing to run")

    assert loads.load(NoExecutor()).outcome is LoadOutcome.UP_TO_DATE


def test_records_that_come_and_go_between_loads_of_an_empty_partition_are_a_gap(loads: Loads) -> None:
    """The first load commits an offset for every partition, also for an empty one and for one added later."""
    loads.load()
    loads.topic.partitions[2] = FakePartition()
    loads.load()
    loads.send({"n": 0}, {"n": 1}, partition=2)
    loads.topic.partitions[2].log_start = 2
    with pytest.raises(OffsetsLostError, match=r"Offsets 0 to 1 of partition 2 .* before they were loaded"):
        loads.load()
    assert loads.load(on_gap=GapPolicy.SKIP).gaps == (OffsetRange(2, 0, 2),)


def test_a_first_load_begins_at_the_oldest_record_and_reports_what_expired(loads: Loads) -> None:
    loads.send({"n": 0}, {"n": 1})
    loads.send({"n": 2})
    loads.topic.partitions[0].log_start = 2
    with pytest.raises(OffsetsLostError, match=r"Offsets 0 to 1 of partition 0 .* before the first load"):
        loads.load(on_gap=GapPolicy.FAIL)
    report = loads.load()
    assert report.gaps == (OffsetRange(0, 0, 2),)
    assert report.warnings == (
        "2 offsets of topic t were deleted before they were loaded, and the table does not have them:"
        " 0 to 1 of partition 0.",
    )
    assert [row["n"] for row in loads.rows("n")] == [2]
    loads.send({"n": 3})
    loads.topic.partitions[0].log_start = 4
    with pytest.raises(OffsetsLostError, match="Offsets 3 to 3 of partition 0"):
        loads.load()


def test_a_gap_between_the_steps_of_a_first_load_fails(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_tasks(monkeypatch, 1)
    for n in range(12):
        loads.send({"n": n})
    loads.topic.partitions[0].log_start = 1

    class Expiring(InProcessExecutor):
        def run(self, function: Any, tasks: Any, on_ended: Any) -> Any:
            results = super().run(function, tasks, on_ended)
            loads.topic.partitions[0].log_start = 11
            return results

    with pytest.raises(OffsetsLostError, match="before they were loaded"):
        loads.load(Expiring(), cores=1)


def test_a_topic_made_anew_that_lost_records_is_no_first_load(loads: Loads) -> None:
    loads.send({"n": 0})
    loads.load()
    loads.topic.topic_id = UUID(int=77)
    loads.topic.partitions[0].log_start = 1
    with pytest.raises(OffsetsLostError, match="before the first load"):
        loads.load()


def test_raw_values_are_loaded_as_they_are(loads: Loads) -> None:
    loads.send(b"\xff\0", None, b"")
    assert loads.load(payload=PayloadFormat.RAW).loaded == 3
    assert [row["value"] for row in loads.rows("value")] == [b"\xff\0", None, b""]


def test_what_does_not_parse_is_kept_with_its_reason(loads: Loads) -> None:
    """R30."""
    loads.send({"a": 1}, b"nonsense", {"a": "text"}, None)
    report = loads.load(table="events")
    assert (report.read, report.loaded, report.dead_lettered) == (4, 3, 1)
    assert loads.ask("SELECT a, _rest FROM events ORDER BY _offset") == [
        {"a": 1, "_rest": None},
        {"a": None, "_rest": '{"a": "text"}'},
        {"a": None, "_rest": None},
    ]
    assert report.warnings == ("Some fields fit no column; they are in the column _rest, as JSON text.",)
    assert loads.dead() == [
        {
            "topic": "t",
            "_partition": 0,
            "_offset": offset,
            "timestamp_ms": NEW_YEAR_MS,
            "_key": b"key",
            "value": value,
            "error": error,
            "table_name": "_iceberg.mainstem.events" if loads.catalog else "events",
            "_topic_id": report.topic_id,
            "_run": report.run_id,
            "_headers": [],
        }
        for offset, value, error in ((1, b"nonsense", "not a JSON object"),)
    ]


def test_late_data_lands_in_its_own_day(loads: Loads) -> None:
    """R30."""
    loads.send({"at": "2013-06-01T00:00:00Z"}, {"at": "2013-05-01"}, {"at": 1357016400000})
    loads.send({"at": "never"}, {"b": 1}, None)
    report = loads.load(event_time_field="at", columns={"at": pa.string()})
    assert report.days == ("2013-01-01", "2013-05-01", "2013-06-01")
    assert [str(row["day"]) for row in loads.rows("day")] == ["2013-06-01", "2013-05-01", "2013-01-01"]
    reasons = [row["error"] for row in loads.dead()]
    assert reasons == [
        "the event time, field 'at', is missing or not of its column's type",
        "the event time, field 'at', is no time: 'never'",
        "the event time, field 'at', is missing or not of its column's type",
    ]


@pytest.mark.parametrize("field", ["att", "meta.at"])
def test_an_event_time_that_no_record_has_is_refused_and_spends_no_record(loads: Loads, field: str) -> None:
    """R30: with the right name all records are rows."""
    loads.send({"at": NEW_YEAR_MS, "n": 1, "meta": {"at": NEW_YEAR_MS}}, None)
    with pytest.raises(SettingsError, match=rf"has a field '{field}' .* The fields are at, meta, n;"):
        loads.load(event_time_field=field, max_rejected_share=1)
    assert loads.files() == set()
    assert loads.table().is_empty()
    assert loads.load(event_time_field="at").loaded == 2


def test_records_without_the_event_time_that_earlier_ones_had_do_not_stop_loads(loads: Loads) -> None:
    """R30: a single bad record is a dead letter."""
    loads.send({"at": NEW_YEAR_MS})
    loads.load(event_time_field="at")
    loads.send({"b": 1})
    assert loads.load(event_time_field="at", max_rejected_share=1).dead_lettered == 1


def test_timestamps_that_no_table_can_hold_are_dead_and_kept(loads: Loads) -> None:
    loads.send({"a": 1}, time_ms=2**62)
    loads.send({"a": 2}, b"x", time_ms=-5)
    report = loads.load()
    assert (report.loaded, report.dead_lettered) == (1, 2)
    assert [str(row["day"]) for row in loads.rows("day")] == ["1969-12-31"]
    assert [row["timestamp_ms"] for row in loads.dead()] == [2**62, -5]


def test_tasks_that_learned_different_types_run_again(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task learns by itself: integers give way to doubles, else the first in order is right."""
    limit_tasks(monkeypatch, 2)
    loads.send({"a": 1, "b": "x"}, {"a": 2})
    loads.send({"a": 1.5, "b": 7}, {"a": 3, "b": "y", "c": 1})
    report = loads.load(cores=2)
    assert report.tries == 4
    assert (report.loaded, report.dead_lettered) == (4, 0)
    assert loads.rows("a", "b", "c", "_rest") == [
        {"a": 1.0, "b": "x", "c": None, "_rest": None},
        {"a": 2.0, "b": None, "c": None, "_rest": None},
        {"a": 1.5, "b": None, "c": None, "_rest": '{"b": 7}'},
        {"a": 3.0, "b": "y", "c": 1, "_rest": None},
    ]
    assert len(loads.files()) == report.files


def test_named_types_are_used_from_the_first_record(loads: Loads) -> None:
    loads.send({"a": 1, "at": "2013-01-01T05:00:00Z"})
    loads.load(columns={"a": pa.float64(), "at": pa.timestamp("us", "UTC")})
    assert loads.rows("a", "at") == [{"a": 1.0, "at": datetime(2013, 1, 1, 5, tzinfo=UTC)}]
    with pytest.raises(SettingsError, match="Column a of table t is double already and cannot become string"):
        loads.load(columns={"a": pa.string()})


@pytest.mark.parametrize("payload", [PayloadFormat.JSON, PayloadFormat.RAW])
def test_tombstones_differ_from_objects_without_fields(loads: Loads, payload: PayloadFormat) -> None:
    """Also from one whose fields are all null; a raw value says it by itself, and needs no column."""
    loads.send({"a": 1}, {})
    loads.load(payload=payload)
    assert "_tombstone" not in loads.table().all_columns
    loads.send(None, {}, {"a": None})
    loads.send({"a": 2}, None, partition=1)
    loads.load(payload=payload)
    if payload is PayloadFormat.RAW:
        assert "_tombstone" not in loads.table().all_columns
        values = [row["value"] for row in loads.rows("value")]
        assert values == [b'{"a": 1}', b"{}", None, b"{}", b'{"a": null}', b'{"a": 2}', None]
        return
    assert [(row["a"], row["_tombstone"]) for row in loads.rows("a", "_tombstone")] == [
        (1, None),
        (None, None),
        (None, True),
        (None, None),
        (None, None),
        (2, None),
        (None, True),
    ]


def test_a_field_called_as_the_mark_of_tombstones_moves_aside(loads: Loads) -> None:
    loads.send({"_tombstone": "of a hero"}, None)
    loads.load()
    assert loads.rows("payload__tombstone", "_tombstone") == [
        {"payload__tombstone": "of a hero", "_tombstone": None},
        {"payload__tombstone": None, "_tombstone": True},
    ]


def test_headers_are_kept_when_asked_for(loads: Loads) -> None:
    loads.send({"a": 1})
    loads.load()
    loads.topic.partitions[0].append([Record(1, 0, None, b"{}", ((b"trace", b"\1"), (b"empty", None)))])
    loads.load(with_headers=True)
    assert loads.rows("_headers") == [
        {"_headers": None},
        {"_headers": [{"key": "trace", "value": b"\1"}, {"key": "empty", "value": None}]},
    ]


def test_a_run_capped_by_bytes_reads_about_as_much(loads: Loads) -> None:
    for n in range(100):
        loads.send({"n": n})
    size = len(b"".join(loads.topic.partitions[0].batches))
    assert 30 <= loads.load(max_bytes=size // 3).loaded <= 36


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


def test_a_topic_that_is_truncated_while_it_is_loaded_is_not_mixed(loads: Loads) -> None:
    """An unclean election may leave other records at the offsets that were read."""
    loads.send({"n": 0})
    loads.send({"n": 1})
    partition = loads.topic.partitions[0]

    def elect_uncleanly() -> None:
        partition.truncate(1)
        loads.send({"n": 9})

    with pytest.raises(
        TopicRecreatedError, match=r"Partition 0 of topic t was truncated .* up to offset 2, "
    ):
        loads.load(Meddling(elect_uncleanly))
    assert loads.files() == set()
    assert loads.load().loaded == 2


def test_a_topic_that_is_created_anew_while_it_is_loaded_is_not_mixed(loads: Loads) -> None:
    loads.send({"n": 0})

    def create_anew() -> None:
        loads.topic.topic_id = UUID(int=77)

    with pytest.raises(TopicRecreatedError, match="created anew while it was being loaded"):
        loads.load(Meddling(create_anew))
    assert loads.files() == set()


def test_an_interrupted_load_changes_nothing(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_tasks(monkeypatch, 1)
    loads.send({"n": 0}, b"dead")

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loads.load(Meddling(interrupt))
    assert loads.files() == set()
    assert loads.load().read == 2


def test_a_large_backlog_is_loaded_in_steps_that_stay(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_tasks(monkeypatch, 1)
    monkeypatch.setattr(job, "TASKS_PER_CORE", 2)
    for n in range(6):
        loads.send({"n": n})
    loads.topic.partitions[0].batches[5] = loads.topic.partitions[0].batches[5][:-1] + b"?"
    with pytest.raises(CorruptBatchError, match="Before that, 4 records were loaded; they stay"):
        loads.load(cores=1)
    assert [row["n"] for row in loads.rows("n")] == [0, 1, 2, 3]


def test_steps_add_up_to_one_report(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_tasks(monkeypatch, 2)
    monkeypatch.setattr(job, "TASKS_PER_CORE", 1)
    for n in range(3):
        loads.send({"n": n}, b"dead", partition=n % 2)
    report = loads.load(cores=1)
    assert (report.steps, report.read, report.loaded, report.dead_lettered) == (3, 6, 3, 3)
    assert [part.range for part in report.ranges] == [OffsetRange(0, 0, 4), OffsetRange(1, 0, 2)]
    runs = loads.ask("SELECT _run FROM t UNION SELECT _run FROM dead_letters")
    assert len(runs) == 3
    assert {"_run": report.run_id} in runs


def test_a_task_whose_broker_was_away_runs_again(loads: Loads) -> None:
    loads.send({"n": 0})
    away = [ErrorCode.not_leader_or_follower] * 4  # more than a task asks in 0.3 s, fewer than two tasks
    loads.cluster.errors[FETCH] = deque(away)
    report = loads.load()
    assert (report.loaded, report.tries) == (1, 2)


def test_a_load_that_rejects_too_many_records_says_so(loads: Loads) -> None:
    loads.send({"n": 0}, b"dead", b"dead", {"n": 1})
    report = loads.load()
    assert report.rejected_too_many
    assert report.rejection().startswith("2 of 4 records (50%) were rejected, more than the 5%")
    assert report.summary()["error"] == report.rejection()
    loads.send({"n": 1}, {"n": 2}, b"dead", b"dead")
    assert not loads.load(max_rejected_share=0.5).rejected_too_many


@pytest.mark.parametrize(
    ("dead", "read", "share", "is_too_many"),
    [(1, 3, 0.05, False), (1, 1, 0.05, True), (1, 3, 0.0, True), (2, 3, 0.05, True), (0, 0, 0.0, False)],
)
def test_one_bad_record_beside_good_ones_fails_no_load(
    dead: int, read: int, share: float, is_too_many: bool
) -> None:
    assert rejects_too_many(dead, read, share) == is_too_many


def test_freshness_is_when_all_was_loaded_or_the_oldest_missing_record(loads: Loads) -> None:
    for n in range(4):
        loads.send({"n": n}, time_ms=NEW_YEAR_MS + n)
    before_ms = time.time() * 1000 - 1
    capped = loads.load(max_records=2)
    assert (capped.loaded_up_to_ms, capped.has_more) == (NEW_YEAR_MS + 2, True)
    up_to_ms = loads.load().loaded_up_to_ms
    assert up_to_ms is not None
    assert before_ms <= up_to_ms <= time.time() * 1000


def test_a_hanging_transaction_holds_back_the_freshness(loads: Loads) -> None:
    """R12, R30: what follows its first record is in the topic, but not in the table."""
    partition = loads.topic.partitions[0]
    loads.send({"n": 0}, time_ms=NEW_YEAR_MS)
    partition.append([Record(1, NEW_YEAR_MS + 5, None, b'{"n":1}')], attributes=TRANSACTIONAL, producer_id=6)
    loads.send({"n": 2}, time_ms=NEW_YEAR_MS + 9)
    partition.stable = 1
    for _ in range(2):
        report = loads.load()
        assert (report.loaded_up_to_ms, report.has_more) == (NEW_YEAR_MS + 5, False)
        (warning,) = report.warnings
        assert "from offset 1 of partition 0 on" in warning
        assert "`mainstem transaction find-hanging t`" in warning
    assert [row["n"] for row in loads.rows("n")] == [0]
    # Aborted, it leaves a record and a marker that nobody waits for.
    partition.add(control_batch(3, 6, commit=False))
    partition.aborted = [(6, 1)]
    partition.stable = None
    before_ms = time.time() * 1000 - 1
    report = loads.load()
    assert report.loaded_up_to_ms is not None
    assert (report.loaded_up_to_ms >= before_ms, report.warnings) == (True, ())
    assert [row["n"] for row in loads.rows("n")] == [0, 2]


def test_an_open_transaction_that_may_still_end_holds_back_the_freshness_without_a_warning(
    loads: Loads,
) -> None:
    """R12, R30."""
    now_ms = int(time.time() * 1000)
    partition = loads.topic.partitions[0]
    loads.send({"n": 0})
    partition.append([Record(1, now_ms - 60_000, None, b'{"n":1}')], attributes=TRANSACTIONAL, producer_id=6)
    partition.stable = 1
    report = loads.load()
    assert (report.loaded_up_to_ms, report.warnings) == (now_ms - 60_000, ())


def test_readers_of_uncommitted_records_wait_for_no_transaction(loads: Loads) -> None:
    """R12."""
    partition = loads.topic.partitions[0]
    partition.append([Record(0, NEW_YEAR_MS, None, b'{"n":0}')], attributes=TRANSACTIONAL, producer_id=6)
    partition.stable = 0
    before_ms = time.time() * 1000 - 1
    report = loads.load(isolation=IsolationLevel.READ_UNCOMMITTED)
    assert report.loaded_up_to_ms is not None
    assert (report.loaded, report.loaded_up_to_ms >= before_ms, report.warnings) == (1, True, ())


def test_a_load_sweeps_once_a_day(loads: Loads) -> None:
    loads.send({"n": 0})
    loads.load()
    folder = Path(loads.table().folder.url)
    orphan = folder / "day=2013-01-01" / "part-20130101T000000-0123abcd-0-0-1.parquet"
    orphan.parent.mkdir(exist_ok=True)
    orphan.touch()
    os.utime(orphan, (0, 0))
    assert loads.load().orphans_swept == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WarehouseTable, "is_sweep_due", lambda _: True)
        assert loads.load().orphans_swept == 1
    assert not orphan.exists()


def test_a_load_whose_columns_another_load_defined_is_planned_anew(loads: Loads) -> None:
    loads.send({"a": 1})
    other = loads.cluster.topic("u")
    other.partitions[0].append([Record(0, 0, None, b'{"a": "text"}')])
    settings = replace(loads.settings(), topic="u", table="t")
    meddled = iter([True])

    def meddle() -> None:
        if next(meddled, False):
            load_topic(settings, InProcessExecutor())

    report = loads.load(Meddling(meddle))
    assert (report.outcome, report.loaded, report.dead_lettered) == (LoadOutcome.LOADED, 1, 0)
    assert loads.ask("SELECT a, _rest FROM t ORDER BY _rest NULLS FIRST") == [
        {"a": "text", "_rest": None},
        {"a": None, "_rest": '{"a": 1}'},
    ]


def test_a_warehouse_that_cannot_be_made_is_said_in_one_sentence(
    loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads.warehouse /= "new"
    loads.send({"a": 1})

    def fail(*_arguments: Any, **_options: Any) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "/proc/new")

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(WarehouseError, match=r"cannot be made \(No such file or directory\); choose"):
        loads.load()


def test_a_full_disk_is_said_in_one_sentence(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(file: ParquetFile, table: pa.Table) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ParquetFile, "write", write)
    loads.send({"a": 1})
    with pytest.raises(DiskFullError, match=r"The disk of .*/t(-.*/data)? is full; nothing of this run"):
        loads.load()


def test_stages_are_reported_in_order(loads: Loads) -> None:
    loads.send({"a": 1})
    report = loads.load()
    assert loads.progress == [
        LoadProgress(Stage.CONNECT),
        LoadProgress(Stage.START),
        LoadProgress(Stage.LOAD),
        LoadProgress(Stage.LOAD, 1, 1),
        LoadProgress(Stage.COMMIT),
        LoadProgress(Stage.DEAD_LETTERS),
        LoadProgress(Stage.SWEEP),
    ]
    assert set(report.seconds) == {stage.value for stage in Stage}
    assert set(report.task_seconds) == {"fetch", "decode", "parse", "write"}


def test_the_commit_remembers_the_run(loads: Loads) -> None:
    loads.send({"a": 1}, b"x")
    report = loads.load()
    (recorded,) = loads.table().last_runs()
    assert time.time() - 300 < recorded.committed_ms / 1000 < time.time() + 1
    run = recorded.run
    assert (run["run"], run["topic"], run["topicId"]) == (report.run_id, "t", report.topic_id)
    assert [part for part in run["ranges"] if part["end"]] == [
        {"partition": 0, "start": 0, "end": 2, "read": 2, "loaded": 1, "dead": 1}
    ]
    assert run["gaps"] == []


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"payload": PayloadFormat.RAW, "event_time_field": "at"}, "Raw values have no fields"),
        ({"payload": PayloadFormat.RAW, "columns": {"a": pa.int64()}}, "Raw values have no fields"),
        ({"max_records": 0}, "max_records is 0; it must be at least 1"),
        ({"cores": 0}, "cores is 0"),
        ({"max_rejected_share": 5}, "between 0 and 1"),
        ({"sweep_after_hours": 1}, "24 hours at the earliest"),
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
    [b'{"a": 1}', b'{"a": 1.5}', b'{"a":"x"}', b'{"b":{"c":1}}', b'{"b":{"d":"y"}}', b"bad", None, b"{}"]
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
        results: list[tuple[int, int]] = []
        if sent:
            results += [(row["_partition"], row["_offset"]) for row in loads.rows("_partition", "_offset")]
        if (loads.warehouse / "dead_letters").exists():
            results += [(row["_partition"], row["_offset"]) for row in loads.dead()]
        assert sorted(results) == sorted(sent)


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


def test_a_transaction_that_ends_while_its_age_is_looked_up_is_no_warning(
    loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R12, R30: it was open when the load began, so its records are left to the next load."""
    partition = loads.topic.partitions[0]
    partition.append([Record(0, NEW_YEAR_MS, None, b'{"n":0}')], attributes=TRANSACTIONAL, producer_id=6)
    partition.stable = 0

    def ended(*arguments: Any) -> int | None:
        partition.stable = None
        return oldest_time_ms(*arguments)

    monkeypatch.setattr(job, "oldest_time_ms", ended)
    report = loads.load()
    assert (report.loaded_up_to_ms, report.warnings) == (NEW_YEAR_MS, ())
