"""Loads through a transform, without Spark: offsets and rows in one commit, whatever the rows are (R34)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.unit.loader.batch_bytes import Record
from tests.unit.loader.fake_cluster import FakeCluster
from tests.unit.loader.transform.frames_without_spark import FramesExecutor, Views

from mainstem_loader.chosen_offsets import ChosenOffsets
from mainstem_loader.errors import SettingsError, TransformError, WarehouseError
from mainstem_loader.load_topic import LoadOutcome, LoadProgress, LoadReport, LoadSettings, Stage, load_topic
from mainstem_loader.ranges import OffsetRange
from mainstem_loader.rewrite_rows import backfill, replay_dead_letters, rewind
from mainstem_loader.spark.executors import InProcessExecutor
from mainstem_loader.table.query import query
from mainstem_loader.transform.definition import TableInput, TopicInput, Transform

NEW_YEAR_MS = int(datetime(2013, 1, 1, tzinfo=UTC).timestamp() * 1000)
DAY_MS = 86_400_000
AS_THEY_ARE = Transform(sql="SELECT * FROM records")


class Topics:
    """A cluster, a warehouse, and loads of topic `t` through functions."""

    def __init__(self, cluster: FakeCluster, warehouse: Path) -> None:
        self.cluster = cluster
        self.warehouse = warehouse
        cluster.topic("t", partitions=2)

    def send(self, *values: object, topic: str = "t", partition: int = 0, time_ms: int = NEW_YEAR_MS) -> None:
        """Append values in one batch: bytes as they are, all else as JSON."""
        target = self.cluster.topics[topic].partitions[partition]
        target.append(
            [
                Record(
                    target.end + index,
                    time_ms,
                    b"key",
                    value if isinstance(value, bytes) else json.dumps(value).encode(),
                )
                for index, value in enumerate(values)
            ]
        )

    def settings(self, **more: Any) -> LoadSettings:
        chosen = {"transform": AS_THEY_ARE, "max_rejected_share": 1.0, **more}
        return LoadSettings(self.cluster.bootstrap_servers, "t", self.warehouse, retry_ms=300, **chosen)

    def load(self, function: Any = lambda views: views["records"], **more: Any) -> LoadReport:
        return load_topic(self.settings(**more), FramesExecutor(function))

    def ask(self, sql: str) -> list[dict[str, Any]]:
        return query(self.warehouse, sql).to_pylist()

    def files(self) -> list[str]:
        """Those that no table's log names."""
        named = {
            uri.rpartition("/")[2]
            for name in ("t", "people", "dead_letters")
            if (self.warehouse / name / "_delta_log").exists()
            for uri in _uris(self.warehouse, name)
        }
        return sorted(
            str(path.relative_to(self.warehouse))
            for path in self.warehouse.rglob("*.parquet")
            if path.name not in named and "_delta_log" not in path.parts
        )


def _uris(warehouse: Path, name: str) -> list[str]:
    from deltalake import DeltaTable

    return DeltaTable(str(warehouse / name)).file_uris()


@pytest.fixture
def topics(tmp_path: Path) -> Iterator[Topics]:
    with FakeCluster() as cluster:
        yield Topics(cluster, tmp_path)


def even(views: Views) -> pa.Table:
    """Leaves out odd numbers."""
    records = views["records"].select(["n", "_partition", "_offset", "day"])
    numbers: list[Any] = records["n"].to_pylist()
    return records.filter(pa.array([number is not None and number % 2 == 0 for number in numbers]))


def doubled(views: Views) -> pa.Table:
    """Two rows for each record."""
    records = views["records"].select(["n", "_partition", "_offset", "_timestamp"])
    return pa.concat_tables([records, records])


def total(views: Views) -> pa.Table:
    """One row for all records."""
    return pa.table({"total": [pc.sum(views["records"]["n"]).as_py()]})


def test_the_view_has_the_payload_and_all_columns_of_records_even_where_they_are_null(topics: Topics) -> None:
    seen: list[pa.Schema] = []

    def look(views: Views) -> pa.Table:
        seen.append(views["records"].schema)
        return views["records"]

    topics.send({"n": 1})
    topics.load(look, columns={"later": pa.string()})
    assert seen[0].names == [
        "later", "n", "_partition", "_offset", "_timestamp", "_key", "_headers", "_rest", "_tombstone",
        "day",
    ]  # fmt: skip
    (row,) = topics.ask("SELECT * FROM t")
    assert {name: value for name, value in row.items() if name not in ("_topic_id", "_run")} == {
        "later": None,
        "n": 1,
        "_partition": 0,
        "_offset": 0,
        "_timestamp": datetime(2013, 1, 1, tzinfo=UTC),
        "_key": b"key",
        "_headers": [],
        "_rest": None,
        "_tombstone": None,
        "day": date(2013, 1, 1),
    }
    assert row["_topic_id"] and row["_run"]


def test_rows_that_are_left_out_are_loaded_all_the_same(topics: Topics) -> None:
    topics.send(*({"n": number} for number in range(10)))
    report = topics.load(even)
    assert (report.read, report.loaded, report.rows) == (10, 10, 5)
    assert report.summary()["rows"] == 5
    assert topics.load(even).outcome is LoadOutcome.UP_TO_DATE
    assert topics.ask("SELECT n FROM t ORDER BY n") == [{"n": number} for number in range(0, 10, 2)]


def test_an_aggregate_covers_what_one_load_reads(topics: Topics) -> None:
    topics.send({"n": 1}, {"n": 2})
    topics.load(total)
    topics.send({"n": 10}, partition=1)
    topics.load(total)
    assert topics.ask("SELECT total, _offset FROM t ORDER BY 1") == [
        {"total": 3, "_offset": None},
        {"total": 10, "_offset": None},
    ]


def test_no_rows_move_the_offsets_and_are_reported(topics: Topics) -> None:
    topics.send({"n": 1})
    report = topics.load(lambda views: views["records"].slice(0, 0))
    assert (report.loaded, report.rows) == (1, 0)
    assert report.warnings == ("The transform returned no rows for 1 records.",)
    assert topics.load().outcome is LoadOutcome.UP_TO_DATE


def test_records_that_cannot_be_read_are_dead_letters_and_not_in_the_view(topics: Topics) -> None:
    topics.send({"n": 2}, b"no json", {"n": 4})
    report = topics.load(even)
    assert (report.read, report.loaded, report.dead_lettered, report.rows) == (3, 2, 1, 2)
    (letter,) = topics.ask("SELECT * FROM dead_letters")
    assert (letter["_offset"], letter["table_name"], letter["topic"]) == (1, "t", "t")


def test_a_load_of_nothing_but_dead_letters_does_not_run_the_transform(topics: Topics) -> None:
    topics.send(b"no json")

    def never(views: Views) -> pa.Table:
        raise AssertionError("nothing to transform")

    report = topics.load(never)
    assert (report.dead_lettered, report.warnings) == (1, ())


@pytest.mark.parametrize(
    "function",
    [
        lambda views: 1 / 0,
        lambda views: pa.table({"n": pa.array([1], pa.timestamp("us"))}),
        lambda views: pa.table({"n": [1], "day": pa.array([None], pa.date32())}),
        lambda views: pa.table({"n": [1], "_partition": pa.array([0], pa.int32()), "_offset": [99]}),
    ],
    ids=["fails", "wrong type", "no day", "another's offset"],
)
def test_a_transform_that_fails_changes_nothing_and_the_next_load_recovers(
    topics: Topics, function: Any
) -> None:
    topics.send({"n": 2})
    with pytest.raises((TransformError, ZeroDivisionError)):
        topics.load(function)
    assert topics.files() == []
    assert not (topics.warehouse / "t" / "_delta_log").exists()
    topics.load(even)
    assert topics.ask("SELECT n FROM t") == [{"n": 2}]


def test_a_result_whose_columns_changed_says_which(topics: Topics) -> None:
    topics.send({"n": 2})
    topics.load(even)
    topics.send({"n": 4})
    with pytest.raises(TransformError, match="column n as string, and the table has it as int64"):
        topics.load(lambda views: even(views).set_column(0, "n", [["four"]]))
    topics.load(lambda views: even(views).append_column("twice", [[8]]))
    assert topics.ask("SELECT n, twice FROM t ORDER BY n") == [{"n": 2, "twice": None}, {"n": 4, "twice": 8}]


def test_other_topics_and_tables_are_views(topics: Topics) -> None:
    topics.cluster.topic("users", partitions=2)
    topics.send({"id": 1, "name": "Ada"}, b"no json", topic="users")
    topics.send({"id": 2, "name": "Bob"}, topic="users", partition=1, time_ms=NEW_YEAR_MS + DAY_MS)
    load_topic(
        LoadSettings(
            topics.cluster.bootstrap_servers, "users", topics.warehouse, table="people", max_rejected_share=1
        ),
        InProcessExecutor(),
    )
    topics.send({"n": 2, "user": 1})
    inputs: dict[str, TopicInput | TableInput] = {
        "users": TopicInput("users", columns={"town": pa.string()}),
        "people": TableInput("people"),
    }

    def joined(views: Views) -> pa.Table:
        assert "town" in views["users"].schema.names
        assert set(views["people"]["name"].to_pylist()) == {"Ada", "Bob"}
        return (
            views["records"]
            .select(["n", "user"])
            .join(views["users"].select(["id", "name"]), "user", "id")
            .select(["n", "name"])
        )

    report = topics.load(joined, transform=Transform(sql="SELECT 1", inputs=inputs))
    assert topics.ask("SELECT n, name FROM t") == [{"n": 2, "name": "Ada"}]
    assert report.warnings == ("1 records of topic users could not be read; view users does not have them.",)
    assert topics.ask("SELECT count(*) AS c FROM dead_letters WHERE table_name = 't'") == [{"c": 0}]
    assert topics.files() == []


def test_an_input_table_that_does_not_exist_is_named(topics: Topics) -> None:
    topics.send({"n": 2})
    inputs = {"people": TableInput("people")}
    with pytest.raises(TransformError, match="There is no table people"):
        topics.load(even, transform=Transform(sql="SELECT 1", inputs=inputs))
    assert topics.files() == []


def test_a_load_without_the_transform_does_not_mix_its_rows_in(topics: Topics) -> None:
    topics.send({"n": 2})
    topics.load(even)
    topics.send({"n": 3})
    with pytest.raises(SettingsError, match="loaded through a transform"):
        load_topic(topics.settings(transform=None), InProcessExecutor())


@pytest.mark.parametrize("stage", [Stage.TRANSFORM, Stage.COMMIT, Stage.DEAD_LETTERS])
def test_an_end_at_any_stage_leaves_each_record_loaded_once(topics: Topics, stage: Stage) -> None:
    class Ended(BaseException):
        pass

    def end(progress: LoadProgress) -> None:
        if progress.stage is stage:
            raise Ended

    topics.send({"n": 2}, b"no json", {"n": 4})
    with pytest.raises(Ended):
        load_topic(topics.settings(), FramesExecutor(doubled), end)
    topics.load(doubled)
    assert topics.ask("SELECT n, count(*) AS c FROM t GROUP BY 1 ORDER BY 1") == [
        {"n": 2, "c": 2},
        {"n": 4, "c": 2},
    ]
    assert topics.ask("SELECT count(*) AS c FROM dead_letters") == [{"c": 1}]


def test_of_two_loads_at_once_one_counts(topics: Topics) -> None:
    topics.send({"n": 2})

    def interfere(views: Views) -> pa.Table:
        topics.load(even)
        return even(views)

    report = topics.load(interfere)
    assert report.outcome is LoadOutcome.SUPERSEDED
    assert topics.ask("SELECT n FROM t") == [{"n": 2}]
    assert topics.files() == []


def test_a_rewind_goes_by_the_records_that_rows_name(topics: Topics) -> None:
    topics.send(*({"n": number} for number in range(4)))
    topics.load(doubled)
    report = rewind(topics.settings(transform=None), ChosenOffsets(ranges=(OffsetRange(0, 2, 2**62),)))
    assert report.removed == 4
    topics.load(doubled)
    assert topics.ask("SELECT n, count(*) AS c FROM t GROUP BY 1 ORDER BY 1") == [
        {"n": number, "c": 2} for number in range(4)
    ]


def test_replacing_goes_through_the_transform_again(topics: Topics) -> None:
    topics.send(*({"n": number} for number in range(4)))
    topics.load(doubled)
    report = backfill(topics.settings(), ChosenOffsets(), True, FramesExecutor(even))
    assert (report.removed, report.read) == (8, 4)
    assert topics.ask("SELECT n FROM t ORDER BY n") == [{"n": 0}, {"n": 2}]
    assert not [file for file in topics.files() if "_staged" in file]


def test_rows_that_name_no_record_cannot_be_replaced_or_rewound(topics: Topics) -> None:
    topics.send({"n": 1})
    topics.load(total)
    with pytest.raises(WarehouseError, match="do not say which record"):
        backfill(topics.settings(), ChosenOffsets(), True, FramesExecutor(total))
    with pytest.raises(WarehouseError, match="do not say which record"):
        rewind(topics.settings(), ChosenOffsets())
    assert topics.ask("SELECT total FROM t") == [{"total": 1}]


def test_what_is_missing_cannot_be_known_behind_a_transform(topics: Topics) -> None:
    topics.send({"n": 1})
    topics.load(even)
    for transform in (AS_THEY_ARE, None):
        with pytest.raises(SettingsError, match="missing cannot be known"):
            backfill(topics.settings(transform=transform), ChosenOffsets(), executor=FramesExecutor(even))


def test_dead_letters_are_replayed_through_the_transform(topics: Topics) -> None:
    topics.send({"n": 2}, {"n": "four"}, b'{"n": 5}', time_ms=NEW_YEAR_MS)
    topics.load(even, columns={"n": pa.int64(), "at": pa.int64()}, event_time_field="at")
    assert topics.ask("SELECT count(*) AS c FROM dead_letters") == [{"c": 3}]
    with pytest.raises(SettingsError, match="name it"):
        replay_dead_letters(topics.settings(transform=None), ChosenOffsets(), InProcessExecutor())
    report = replay_dead_letters(
        topics.settings(columns={"n": pa.int64()}), ChosenOffsets(), FramesExecutor(even)
    )
    assert (report.read, report.loaded) == (3, 3)
    assert topics.ask("SELECT n FROM t") == [{"n": 2}]
    assert topics.ask("SELECT count(*) AS c FROM dead_letters") == [{"c": 0}]


def test_the_deadline_is_the_transforms(topics: Topics) -> None:
    topics.send({"n": 2})
    executor = FramesExecutor(even)
    load_topic(topics.settings(transform=Transform(sql="SELECT 1", deadline_s=77)), executor)
    assert executor.deadline_s == 77
