"""Backfill, rewind and the replay of dead letters (R33), on a fake cluster and without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.unit.loader.batch_bytes import TRANSACTIONAL, Record
from tests.unit.loader.deletion_vectors import delete_by_vector
from tests.unit.loader.fake_cluster import FakeCluster
from tests.unit.loader.test_load_topic import DAY_MS, NEW_YEAR_MS, Loads

from mainstem_loader import rewrite_rows
from mainstem_loader.chosen_offsets import ChosenOffsets
from mainstem_loader.columns import TableFormat
from mainstem_loader.errors import LoaderError, OffsetsLostError, SettingsError, WarehouseError
from mainstem_loader.kafka.fetch import TopicReader
from mainstem_loader.load_status import PartitionStatus, load_status
from mainstem_loader.load_topic import LoadOutcome
from mainstem_loader.payload.event_time import TimeUnit
from mainstem_loader.payload.readers import PayloadFormat
from mainstem_loader.ranges import OffsetRange
from mainstem_loader.rewrite_rows import (
    RewriteReport,
    RewriteTooManyRejectedError,
    backfill,
    replay_dead_letters,
    rewind,
)
from mainstem_loader.spark.executors import InProcessExecutor
from mainstem_loader.spark.tasks import TaskResult
from mainstem_loader.table import contents, delivery, delta
from mainstem_loader.table.commits import CommitOutcome, LoadCommit, WarehouseTable
from mainstem_loader.table.dead_letters import DEAD_LETTER_SCHEMA
from mainstem_loader.table.delta import commit_files, open_table
from mainstem_loader.table.folder import Folder
from mainstem_loader.task_runs import TaskRuns

EVERYTHING = ChosenOffsets()


@pytest.fixture
def loads(tmp_path: Path) -> Iterator[Loads]:
    with FakeCluster() as cluster:
        yield Loads(cluster, tmp_path)


def fill(loads: Loads, chosen: ChosenOffsets = EVERYTHING, **more: Any) -> RewriteReport:
    replace_rows = more.pop("replace_rows", False)
    return backfill(loads.settings(**more), chosen, replace_rows, InProcessExecutor())


def replay(loads: Loads, chosen: ChosenOffsets = EVERYTHING, **more: Any) -> RewriteReport:
    return replay_dead_letters(loads.settings(**more), chosen, InProcessExecutor())


def places(loads: Loads, table: str = "t") -> list[tuple[int, int]]:
    rows = loads.ask(f'SELECT _partition, _offset FROM "{table}" ORDER BY _partition, _offset')
    return [(row["_partition"], row["_offset"]) for row in rows]


def remove_rows(loads: Loads, condition: str) -> None:
    table = open_table(Folder.of(loads.warehouse) / "t")
    assert table is not None
    table.delete(condition)


def three_days(loads: Loads) -> None:
    """Nine records of partition 0 on three days, three of partition 1 on the first, with a bad one each."""
    for day in range(3):
        values = [b"nonsense" if n == 1 else {"n": 10 * day + n} for n in range(3)]
        loads.send(*values, time_ms=NEW_YEAR_MS + day * DAY_MS)
    loads.send({"n": 100}, b"bad", {"n": 102}, partition=1)


def test_what_is_missing_is_added_and_nothing_else(loads: Loads) -> None:
    three_days(loads)
    loads.load(max_rejected_share=1)
    before = places(loads)
    remove_rows(loads, "_offset = 3 and _partition = 0 or _partition = 1 and _offset = 2")
    report = fill(loads)
    assert (report.read, report.loaded, report.dead_lettered, report.removed) == (2, 2, 0, 0)
    assert report.days == ("2013-01-01", "2013-01-02")
    assert places(loads) == before
    again = fill(loads)
    assert (again.read, again.run_id) == (0, None)
    assert places(loads) == before
    assert len(loads.dead()) == 4


def test_a_backfill_leaves_the_offsets_of_live_loads_alone(loads: Loads) -> None:
    three_days(loads)
    loads.load(max_rejected_share=1)
    loads.send({"n": 200})
    fill(loads, replace_rows=True, max_rejected_share=1)
    assert (0, 9) not in places(loads)
    assert loads.load().loaded == 1


def test_replaced_rows_have_what_is_read_now_and_other_rows_stay(loads: Loads) -> None:
    three_days(loads)
    loads.load(max_rejected_share=1)
    columns_before = loads.rows("_partition", "_offset", "n", "_timestamp", "_run")
    report = fill(loads, ChosenOffsets(days=(date(2013, 1, 2),)), replace_rows=True, max_rejected_share=1)
    assert report.ranges == (OffsetRange(0, 3, 6),)
    assert (report.read, report.loaded, report.dead_lettered, report.removed) == (3, 2, 1, 2)
    assert report.days == ("2013-01-02",)
    after = loads.rows("_partition", "_offset", "n", "_timestamp", "_run")
    assert [{**row, "_run": 0} for row in after] == [{**row, "_run": 0} for row in columns_before]
    assert {row["_offset"] for row in after if row["_run"] == report.run_id} == {3, 5}
    assert [(row["_partition"], row["_offset"]) for row in loads.dead()] == [(0, 1), (0, 4), (0, 7), (1, 1)]


def test_rows_of_another_topic_and_of_expired_offsets_in_a_replaced_day_stay(loads: Loads) -> None:
    loads.send({"n": 0}, {"n": 1})
    loads.send({"n": 2})
    loads.load()
    loads.cluster.topics["other"] = loads.cluster.topic("t", partitions=2)
    loads.topic, first = loads.cluster.topics["t"], loads.topic
    loads.send({"n": 7}, {"n": 8})
    loads.load()
    loads.cluster.topics["t"] = first
    first.partitions[0].log_start = 2
    report = fill(loads, replace_rows=True)
    assert report.expired == (OffsetRange(0, 0, 2),)
    assert "no longer has offsets 0 to 1 of partition 0" in report.warnings[0]
    assert (report.read, report.removed) == (1, 1)
    assert sorted(row["n"] for row in loads.rows("n")) == [0, 1, 2, 7, 8]


def test_a_replacement_moves_rows_to_the_day_that_is_now_right(loads: Loads) -> None:
    loads.send({"at": "2013-01-05T00:00:00Z"}, {"at": "2013-01-06T00:00:00Z"})
    loads.load()
    report = fill(loads, replace_rows=True, event_time_field="at")
    assert report.days == ("2013-01-01", "2013-01-05", "2013-01-06")
    assert [str(row["day"]) for row in loads.rows("day")] == ["2013-01-05", "2013-01-06"]


def test_times_and_offsets_choose_ranges(loads: Loads) -> None:
    three_days(loads)
    loads.load(max_rejected_share=1)
    second = ChosenOffsets(since_ms=NEW_YEAR_MS + DAY_MS, until_ms=NEW_YEAR_MS + 2 * DAY_MS)
    remove_rows(loads, "_offset in (3, 6)")
    assert fill(loads, second).ranges == (OffsetRange(0, 3, 6),)
    assert (0, 6) not in places(loads)
    assert fill(loads, ChosenOffsets(ranges=(OffsetRange(0, 6, 7),))).loaded == 1
    with pytest.raises(SettingsError, match="Nothing of partition 9 was loaded"):
        fill(loads, ChosenOffsets(partitions=(9,)))


APART: Final = ChosenOffsets(ranges=(OffsetRange(0, 7, 9), OffsetRange(0, 1, 3), OffsetRange(0, 2, 4)))


def test_rows_between_chosen_offsets_are_not_replaced(loads: Loads) -> None:
    loads.send(*({"n": n} for n in range(10)))
    loads.load()
    report = fill(loads, APART, replace_rows=True)
    assert report.ranges == (OffsetRange(0, 1, 4), OffsetRange(0, 7, 9))
    assert (report.read, report.loaded, report.removed) == (5, 5, 5)
    replaced = [row["_offset"] for row in loads.rows("_offset", "_run") if row["_run"] == report.run_id]
    assert (replaced, places(loads)) == ([1, 2, 3, 7, 8], [(0, n) for n in range(10)])


def test_rows_between_chosen_offsets_are_not_added(loads: Loads) -> None:
    loads.send(*({"n": n} for n in range(10)))
    loads.load()
    remove_rows(loads, "_offset < 10")
    assert fill(loads, APART).loaded == 5
    assert places(loads) == [(0, n) for n in (1, 2, 3, 7, 8)]


def test_dead_letters_between_chosen_offsets_are_not_replayed(loads: Loads) -> None:
    loads.send(*(b"raw" for _ in range(10)))
    loads.load(max_rejected_share=1)
    report = replay(loads, APART, payload=PayloadFormat.RAW)
    assert (report.read, report.loaded) == (5, 5)
    assert places(loads) == [(0, n) for n in (1, 2, 3, 7, 8)]
    assert [row["_offset"] for row in loads.dead()] == [0, 4, 5, 6, 9]


def test_a_rewind_begins_at_the_first_of_the_chosen_offsets(loads: Loads) -> None:
    loads.send(*({"n": n} for n in range(10)))
    loads.load()
    report = rewind(loads.settings(), APART)
    assert (report.ranges, report.removed) == ((OffsetRange(0, 1, 10),), 9)
    assert loads.load().loaded == 9


def test_days_between_chosen_days_are_not_replaced(loads: Loads) -> None:
    three_days(loads)
    loads.load(max_rejected_share=1)
    days = ChosenOffsets(days=(date(2013, 1, 1), date(2013, 1, 3)), partitions=(0,))
    report = fill(loads, days, replace_rows=True, max_rejected_share=1)
    assert report.ranges == (OffsetRange(0, 0, 3), OffsetRange(0, 6, 9))
    assert report.days == ("2013-01-01", "2013-01-03")


def test_too_many_rejected_records_change_nothing(loads: Loads) -> None:
    three_days(loads)
    loads.load(max_rejected_share=1)
    before, files = places(loads), loads.files()
    with pytest.raises(RewriteTooManyRejectedError, match="4 of 12 records were rejected"):
        fill(loads, replace_rows=True)
    assert (places(loads), loads.files()) == (before, files)


def test_dead_letters_are_replayed_once_and_those_that_stay_dead_stay(loads: Loads) -> None:
    """A record whose event time was read in the wrong unit is right after the fix; nonsense stays."""
    seconds = NEW_YEAR_MS // 1000
    loads.send({"at": seconds}, b"nonsense", {"at": seconds + 1})
    assert loads.load(event_time_field="at", max_rejected_share=1).dead_lettered == 3
    loads.topic.partitions[0].log_start = 3  # the topic no longer has them
    report = replay(loads, event_time_field="at", event_time_unit=TimeUnit.SECONDS)
    assert (report.read, report.loaded, report.dead_lettered) == (3, 2, 1)
    assert places(loads) == [(0, 0), (0, 2)]
    assert [(row["_offset"], row["error"]) for row in loads.dead()] == [(1, "not a JSON object")]
    again = replay(loads, event_time_field="at", event_time_unit=TimeUnit.SECONDS)
    assert (again.loaded, again.run_id) == (0, None)
    assert places(loads) == [(0, 0), (0, 2)]
    assert len(loads.dead()) == 1


def test_dead_letters_of_other_tables_stay(loads: Loads) -> None:
    loads.send({"at": NEW_YEAR_MS // 1000})
    loads.load(event_time_field="at", max_rejected_share=1)
    loads.load(event_time_field="at", max_rejected_share=1, table="other")
    assert replay(loads).loaded == 1
    assert [row["table_name"] for row in loads.dead()] == ["other"]


TRACE = ((b"trace", b"\1"), (b"trace", b"\2"), (b"empty", None))
TRACE_OF_ROW = [
    {"key": "trace", "value": b"\1"},
    {"key": "trace", "value": b"\2"},
    {"key": "empty", "value": None},
]


@pytest.mark.parametrize("with_headers", [True, False], ids=["kept as a column", "not kept"])
def test_dead_letters_keep_their_headers(loads: Loads, with_headers: bool) -> None:
    """R30: also where rows do not have them; and a letter that stays keeps them through a replay."""
    good, bad = b'{"n": 1}', b"nonsense"
    sent = [(good, TRACE), (bad, ()), (bad, TRACE), (good, ()), (bad, TRACE)]
    batch = [Record(offset, NEW_YEAR_MS, None, *record) for offset, record in enumerate(sent)]
    loads.topic.partitions[0].append(batch)
    loads.load(with_headers=with_headers, max_rejected_share=1)
    expected = [(1, []), (2, TRACE_OF_ROW), (4, TRACE_OF_ROW)]
    assert [(row["_offset"], row["_headers"]) for row in loads.dead()] == expected
    assert replay(loads, ChosenOffsets(ranges=(OffsetRange(0, 2, 3),)), payload=PayloadFormat.RAW).loaded == 1
    assert replay(loads).loaded == 0
    assert [(row["_offset"], row["_headers"]) for row in loads.dead()] == [expected[0], expected[2]]


@pytest.mark.parametrize(("again", "rows"), [("replay", 2), ("replace", 2), ("append missing", 1)])
def test_rows_that_come_again_have_headers_where_the_table_does(loads: Loads, again: str, rows: int) -> None:
    """Whether the one who loads them again asks for headers or not."""
    log = loads.topic.partitions[0]
    log.append([Record(0, NEW_YEAR_MS, None, b'{"n": 0}', TRACE)])
    loads.load(with_headers=True)
    log.append([Record(1, NEW_YEAR_MS, None, b'{"at": %d}' % (NEW_YEAR_MS // 1000), TRACE)])
    loads.load(event_time_field="at", max_rejected_share=1)
    if again == "append missing":
        remove_rows(loads, "_offset = 0")
    report = replay(loads) if again == "replay" else fill(loads, replace_rows=again == "replace")
    assert report.loaded
    assert [row["_headers"] for row in loads.rows("_headers")] == [TRACE_OF_ROW] * rows


def test_dead_letters_of_a_version_that_kept_no_headers_are_replayed(loads: Loads) -> None:
    loads.send({"at": NEW_YEAR_MS // 1000})
    loads.load(event_time_field="at", max_rejected_share=1, with_headers=True)
    folder = loads.warehouse / "dead_letters"
    earlier = pa.Table.from_pylist(
        loads.dead(), pa.schema([field for field in DEAD_LETTER_SCHEMA if field.name != "_headers"])
    ).append_column("topic", pa.array(["t"]))
    write_deltalake(folder, earlier, mode="overwrite", schema_mode="overwrite", partition_by=["topic"])
    assert replay(loads).loaded == 1
    assert loads.rows("_offset", "_headers") == [{"_offset": 0, "_headers": None}]


def test_after_a_rewind_the_next_load_brings_the_same_rows_again(loads: Loads) -> None:
    three_days(loads)
    loads.load(max_rejected_share=1)
    before, dead = places(loads), len(loads.dead())
    report = rewind(loads.settings(), ChosenOffsets(since_ms=NEW_YEAR_MS + DAY_MS, partitions=(0,)))
    assert report.ranges == (OffsetRange(0, 3, 9),)
    assert (report.removed, report.days) == (4, ("2013-01-02", "2013-01-03"))
    assert places(loads) == [place for place in before if place[0] == 1 or place[1] < 3]
    assert len(loads.dead()) == dead - 2
    assert loads.load(max_rejected_share=1).read == 6
    assert places(loads) == before
    assert len(loads.dead()) == dead


def test_nothing_can_be_chosen_of_a_topic_that_was_never_loaded(loads: Loads) -> None:
    loads.send({"n": 1})
    with pytest.raises(SettingsError, match="has loaded nothing of topic t yet"):
        fill(loads)


@pytest.mark.parametrize("replaces", [False, True])
def test_a_live_load_that_commits_first_neither_stops_a_backfill_nor_loses_rows(
    loads: Loads, monkeypatch: pytest.MonkeyPatch, replaces: bool
) -> None:
    """The live rows are of the very day that is replaced."""
    loads.send({"n": 0}, {"n": 1})
    loads.load()
    remove_rows(loads, "_offset = 1")
    loads.send({"n": 2, "new": "column"})
    plain = WarehouseTable.rewrite
    tries: list[CommitOutcome] = []

    def after_a_live_load(table: WarehouseTable, commit: LoadCommit) -> CommitOutcome:
        if not tries:
            assert loads.load().outcome is LoadOutcome.LOADED
        tries.append(plain(table, commit))
        return tries[-1]

    monkeypatch.setattr(WarehouseTable, "rewrite", after_a_live_load)
    fill(loads, replace_rows=replaces)
    assert tries[-1] is CommitOutcome.COMMITTED
    assert loads.rows("n", "new") == [{"n": 0, "new": None}, {"n": 1, "new": None}, {"n": 2, "new": "column"}]


@pytest.mark.parametrize("replaces", [False, True])
def test_of_two_backfills_at_once_the_second_plans_again(
    loads: Loads, monkeypatch: pytest.MonkeyPatch, replaces: bool
) -> None:
    loads.send({"n": 0}, {"n": 1}, {"n": 2})
    loads.load()
    remove_rows(loads, "_offset = 1")
    plain = WarehouseTable.rewrite
    entered: list[int] = []

    def after_another(table: WarehouseTable, commit: LoadCommit) -> CommitOutcome:
        entered.append(1)
        if len(entered) == 1:
            assert fill(loads).loaded == 1
        return plain(table, commit)

    monkeypatch.setattr(WarehouseTable, "rewrite", after_another)
    report = fill(loads, replace_rows=replaces)
    assert report.read == (3 if replaces else 0)
    assert places(loads) == [(0, 0), (0, 1), (0, 2)]


def test_a_live_load_that_was_planned_before_a_rewind_loads_nothing(
    loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads.send({"n": 0}, {"n": 1})
    loads.load()
    loads.send({"n": 2})
    plain = WarehouseTable.commit

    def after_a_rewind(table: WarehouseTable, commit: LoadCommit) -> CommitOutcome:
        monkeypatch.setattr(WarehouseTable, "commit", plain)
        rewind(loads.settings(), EVERYTHING)
        return plain(table, commit)

    monkeypatch.setattr(WarehouseTable, "commit", after_a_rewind)
    assert loads.load().outcome is LoadOutcome.SUPERSEDED
    assert loads.load().loaded == 3
    assert places(loads) == [(0, 0), (0, 1), (0, 2)]


def while_copying(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something whenever a rewrite has copied the rows that stay, before it commits."""
    plain = TaskRuns.run_copies

    def copy(runs: TaskRuns, *arguments: Any) -> list[TaskResult]:
        results = plain(runs, *arguments)
        act()
        return results

    monkeypatch.setattr(TaskRuns, "run_copies", copy)


def test_a_rewind_beside_a_loader_that_commits_during_every_copy_is_carried_out(
    loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R33: it ends where the loader was when it committed, and copies no row twice."""
    loads.send({"n": 0}, {"n": 1})
    loads.send({"n": 100}, partition=1)
    loads.load()
    copied: list[int] = []
    plain = TaskRuns.run_copies

    def beside_a_loader(runs: TaskRuns, *arguments: Any) -> list[TaskResult]:
        results = plain(runs, *arguments)
        copied.append(sum(file.rows for result in results for file in result.files))
        loads.send({"n": 9}, time_ms=NEW_YEAR_MS + len(copied) * DAY_MS // 2)
        if len(copied) == 1:
            loads.send({"n": 101}, partition=1)
        assert loads.load().outcome is LoadOutcome.LOADED
        return results

    monkeypatch.setattr(TaskRuns, "run_copies", beside_a_loader)
    report = rewind(loads.settings(), ChosenOffsets(ranges=(OffsetRange(0, 1, 2),)))
    # The rows that stay; then the new row of partition 1; then nothing, as only rows of partition 0 came.
    assert copied == [2, 1]
    assert (report.ranges, report.removed) == ((OffsetRange(0, 1, 4),), 3)
    assert places(loads) == [(0, 0), (1, 0), (1, 1)]
    assert loads.load().loaded == 3
    assert places(loads) == [(0, n) for n in range(4)] + [(1, 0), (1, 1)]


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_rows_that_others_delete_by_deletion_vectors_stay_deleted_after_a_rewind(
    loads: Loads, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """R33: the path of their file stays, and so does the number of its rows in the log."""
    loads.send({"n": 0}, {"n": 1})
    loads.send({"n": 100}, {"n": 101}, partition=1)
    loads.load()
    copied: list[int] = []
    plain = TaskRuns.run_copies

    def beside_others(runs: TaskRuns, *arguments: Any) -> list[TaskResult]:
        results = plain(runs, *arguments)
        copied.append(sum(file.rows for result in results for file in result.files))
        if len(copied) == 1:
            if when == "meanwhile":
                delete_by_vector(loads.warehouse / "t", "n", 101)
            loads.send({"n": 2})
            loads.send({"n": 102}, partition=1)
            loads.load()
        return results

    if when == "before":
        delete_by_vector(loads.warehouse / "t", "n", 101)
    monkeypatch.setattr(TaskRuns, "run_copies", beside_others)
    rewind(loads.settings(), ChosenOffsets(ranges=(OffsetRange(0, 1, 2),)))
    assert places(loads) == [(0, 0), (1, 0), (1, 2)]
    # Beside the load alone, only its row is copied in the end.
    assert copied[-1] == (1 if when == "before" else 3)


def test_rows_that_another_program_adds_during_a_rewind_are_copied(
    loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R33: they name no run, so all days are copied again."""
    loads.send({"n": 0}, {"n": 1})
    loads.load()
    plain = TaskRuns.run_copies

    def beside_another(runs: TaskRuns, *arguments: Any) -> list[TaskResult]:
        results = plain(runs, *arguments)
        monkeypatch.setattr(TaskRuns, "run_copies", plain)
        table = open_table(Folder.of(loads.warehouse) / "t")
        assert table is not None
        write_deltalake(
            table, pa.table({"n": [77], "day": [date(2013, 1, 1)]}), mode="append", schema_mode="merge"
        )
        loads.send({"n": 2})
        loads.load()
        return results

    monkeypatch.setattr(TaskRuns, "run_copies", beside_another)
    monkeypatch.setattr(contents, "check_rows_name_their_topic", lambda *_: None)
    assert rewind(loads.settings(), EVERYTHING).removed == 3
    assert [row["n"] for row in loads.rows("n")] == [77]


def test_a_load_that_deletes_loaded_records_leaves_those_of_a_rewind_under_way(
    loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R33: otherwise both the rows and the records would be gone."""
    for n in range(4):
        loads.send({"n": n})
    loads.load()
    deleted: list[int] = []
    while_copying(monkeypatch, lambda: deleted.append(loads.load(delete_loaded_after_ms=0).offsets_deleted))
    rewind(loads.settings(), ChosenOffsets(ranges=(OffsetRange(0, 2, 4),)))
    assert (deleted, loads.topic.partitions[0].log_start) == ([2], 2)
    assert places(loads) == [(0, 0), (0, 1)]
    # The hold has ended with the commit: what is loaded again is deleted again.
    assert loads.load(delete_loaded_after_ms=0).offsets_deleted == 2
    assert places(loads) == [(0, n) for n in range(4)]


def test_the_hold_of_a_rewind_that_was_killed_expires(loads: Loads) -> None:
    """R33: after the time within which it could still have committed."""
    loads.send({"n": 0})
    topic_id = loads.load().topic_id
    loads.table().hold(topic_id, {0: 0}, started_s=time.time() - 12 * 3600)
    assert loads.load(delete_loaded_after_ms=0).offsets_deleted == 0
    table = loads.table()
    assert table.kept_from(topic_id, 0) == 0
    assert table.kept_from(topic_id, 0, time.time() + 3600) == 1


def test_the_hold_of_a_rewind_that_failed_has_ended_and_that_of_another_one_has_not(
    loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R33: else loads would leave loaded records in the topic for half a day."""
    loads.send(*({"n": n} for n in range(4)))
    topic_id = loads.load().topic_id

    def full(*_: Any) -> list[TaskResult]:
        raise WarehouseError("The disk is full.")

    monkeypatch.setattr(TaskRuns, "run_copies", full)
    with pytest.raises(WarehouseError, match="full"):
        rewind(loads.settings(), ChosenOffsets(ranges=(OffsetRange(0, 2, 4),)))
    assert loads.table().kept_from(topic_id, 0) == 4
    loads.table().hold(topic_id, {0: 1}, time.time())
    with pytest.raises(WarehouseError, match="full"):
        rewind(loads.settings(), ChosenOffsets(ranges=(OffsetRange(0, 2, 4),)))
    assert loads.table().kept_from(topic_id, 0) == 1


def test_of_two_rewinds_the_earlier_start_is_held(loads: Loads) -> None:
    """R33."""
    loads.send(*({"n": n} for n in range(9)))
    topic_id = loads.load().topic_id
    loads.table().hold(topic_id, {0: 3}, time.time())
    loads.table().hold(topic_id, {0: 5}, time.time())
    assert loads.table().kept_from(topic_id, 0) == 3


def test_a_load_deletes_nothing_that_a_rewind_has_just_taken_out_of_the_table(
    loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R33: the snapshot of the load's own commit is older than the rewind."""
    loads.send({"n": 0}, {"n": 1})
    plain = TopicReader.offsets_at

    def after_a_rewind(reader: TopicReader, timestamp_ms: int) -> dict[int, int | None]:
        monkeypatch.setattr(TopicReader, "offsets_at", plain)
        rewind(loads.settings(), EVERYTHING)
        return plain(reader, timestamp_ms)

    monkeypatch.setattr(TopicReader, "offsets_at", after_a_rewind)
    assert loads.load(delete_loaded_after_ms=0).offsets_deleted == 0
    assert loads.load().loaded == 2


def test_rows_whose_records_retention_deletes_during_a_rewind_stay(
    loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R33: it is planned again, from the first record that the topic still has."""
    for n in range(4):
        loads.send({"n": n})
    loads.load()

    def expire() -> None:
        loads.topic.partitions[0].log_start = 2

    while_copying(monkeypatch, expire)
    report = rewind(loads.settings(), EVERYTHING)
    assert (report.ranges, report.expired) == ((OffsetRange(0, 2, 4),), (OffsetRange(0, 0, 2),))
    assert places(loads) == [(0, 0), (0, 1)]
    assert loads.load().loaded == 2


def test_a_rewind_that_retention_keeps_overtaking_removes_nothing(
    loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R33."""
    for n in range(20):
        loads.send({"n": n})
    loads.load()

    def expire() -> None:
        loads.topic.partitions[0].log_start += 1

    while_copying(monkeypatch, expire)
    files = loads.files()
    with pytest.raises(OffsetsLostError, match=r"lost the first records .* \(backfill --replace\)"):
        rewind(loads.settings(), EVERYTHING)
    assert (len(places(loads)), loads.files()) == (20, files)


def test_a_lost_answer_to_a_commit_is_found_in_the_log(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    loads.send({"n": 0}, {"n": 1})
    loads.load()
    plain = commit_files

    def lose_the_answer(*arguments: Any) -> None:
        plain(*arguments)
        monkeypatch.setattr(delta, "commit_files", plain)
        raise OSError("the connection was lost")

    monkeypatch.setattr(delta, "commit_files", lose_the_answer)
    assert fill(loads, replace_rows=True).run_id is not None
    assert places(loads) == [(0, 0), (0, 1)]


def test_dead_letters_that_a_killed_replay_left_are_settled_by_the_next_run(
    loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads.send({"at": NEW_YEAR_MS // 1000}, b"nonsense")
    loads.load(event_time_field="at", max_rejected_share=1)
    plain = delivery.deliver_dead_letters
    calls: list[int] = []

    def die(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        plain(*arguments)

    monkeypatch.setattr(delivery, "deliver_dead_letters", die)
    with pytest.raises(KeyboardInterrupt):
        replay(loads)
    monkeypatch.setattr(delivery, "deliver_dead_letters", plain)
    assert len(loads.dead()) == 2
    assert replay(loads).loaded == 0
    assert (places(loads), [row["_offset"] for row in loads.dead()]) == ([(0, 0)], [1])


def test_a_table_that_others_keep_rewriting_is_left_as_it_is(
    loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads.send({"n": 0})
    loads.load()
    monkeypatch.setattr(rewrite_rows, "COMMITS_MAX", 1)
    monkeypatch.setattr(WarehouseTable, "rewrite", lambda *_: CommitOutcome.SUPERSEDED)
    files = loads.files()
    with pytest.raises(WarehouseError, match="was changed by others 5 times"):
        fill(loads, replace_rows=True)
    assert loads.files() == files


def test_contradicting_choices_are_refused() -> None:
    for chosen in (
        ChosenOffsets(days=(date(2013, 1, 1),), since_ms=1),
        ChosenOffsets(since_ms=2, until_ms=1),
        ChosenOffsets(ranges=(OffsetRange(0, 5, 5),)),
    ):
        with pytest.raises(LoaderError):
            chosen.check()


@pytest.mark.parametrize("table_format", list(TableFormat))
def test_the_status_shows_how_far_each_partition_is_loaded(tmp_path: Path, table_format: TableFormat) -> None:
    with FakeCluster() as cluster:
        check_status(Loads(cluster, tmp_path, table_format))


def check_status(loads: Loads) -> None:
    three_days(loads)
    empty = load_status(loads.settings(), NEW_YEAR_MS + DAY_MS)
    assert [(part.loaded_up_to, part.log_end, part.lag) for part in empty.partitions] == [
        (None, 9, 9),
        (None, 3, 3),
    ]
    assert (empty.partitions[0].behind_ms, empty.last_run) == (DAY_MS, None)
    loaded = loads.load(max_rejected_share=1)
    loads.send({"n": 200}, time_ms=NEW_YEAR_MS + DAY_MS)
    status = load_status(loads.settings(), NEW_YEAR_MS + DAY_MS + 5_000)
    assert status.partitions == (
        PartitionStatus(0, 9, 0, 10, lag=1, behind_ms=5_000, dead_letters=3),
        PartitionStatus(1, 3, 0, 3, lag=0, behind_ms=0, dead_letters=1),
    )
    assert status.last_run is not None
    assert (status.last_run.run_id, status.last_run.kind) == (loaded.run_id, "load")
    assert (status.last_run.loaded, status.last_run.dead) == (8, 4)
    if loads.catalog is not None:
        return
    report = fill(loads, replace_rows=True, max_rejected_share=1)
    again = load_status(loads.settings()).last_run
    assert again is not None
    assert (again.run_id, again.kind, again.loaded, again.dead) == (report.run_id, "replace", 8, 4)


def test_the_status_counts_what_waits_for_an_open_transaction(loads: Loads) -> None:
    """R12: a reader of committed records sees nothing of it."""
    loads.send({"n": 0})
    loads.load()
    partition = loads.topic.partitions[0]
    partition.append([Record(1, NEW_YEAR_MS, None, b"{}")], attributes=TRANSACTIONAL, producer_id=6)
    loads.send({"n": 2})
    partition.stable = 1
    status = load_status(loads.settings(), NEW_YEAR_MS + 5_000)
    assert status.partitions[0] == PartitionStatus(
        0, 1, 0, 1, lag=2, behind_ms=5_000, dead_letters=0, waiting=2
    )
    assert (status.partitions[1].lag, status.partitions[1].waiting) == (0, 0)


def test_a_request_by_id_is_carried_out_once(loads: Loads) -> None:
    """R33: whatever repeats it, and though rows were loaded since."""
    loads.send({"a": 1}, {"a": 2})
    loads.load()
    first = rewind(loads.settings(), EVERYTHING, request_id="r1")
    assert (first.removed, first.repeated) == (2, False)
    loads.load()
    again = rewind(loads.settings(), EVERYTHING, request_id="r1")
    assert (again.removed, again.repeated, again.run_id) == (0, True, None)
    assert len(loads.rows("a")) == 2
    assert rewind(loads.settings(), EVERYTHING, request_id="r2").removed == 2


def test_a_request_that_changes_nothing_is_remembered_too(loads: Loads) -> None:
    """Else a replay would load dead letters that came long after it."""
    loads.send({"a": 1}, b"nonsense", b'{"a": 2}')
    loads.load(max_rejected_share=1.0, event_time_field="at", columns={"at": pa.int64()})
    assert len(loads.dead()) == 3
    settings = loads.settings(event_time_field="at")
    first = replay_dead_letters(settings, EVERYTHING, InProcessExecutor(), request_id="d1")
    assert (first.loaded, first.repeated) == (0, False)
    again = replay_dead_letters(loads.settings(), EVERYTHING, InProcessExecutor(), request_id="d1")
    assert again.repeated
    assert len(loads.dead()) == 3
    assert replay_dead_letters(loads.settings(), EVERYTHING, InProcessExecutor(), request_id="d2").loaded == 2


def test_one_id_in_two_fields_is_two_requests(loads: Loads) -> None:
    loads.send({"a": 1})
    loads.load()
    backfill(loads.settings(), EVERYTHING, executor=InProcessExecutor(), request_id="1")
    assert rewind(loads.settings(), EVERYTHING, request_id="1").removed == 1
    loads.load()
    changed_mode = backfill(loads.settings(), EVERYTHING, True, InProcessExecutor(), request_id="1")
    assert changed_mode.repeated


@pytest.mark.parametrize("is_named", [True, False], ids=["named", "found"])
def test_iceberg_tables_are_not_loaded_again(tmp_path: Path, is_named: bool) -> None:
    """Nor is the topic loaded into a new Delta table, when the command does not name the format."""
    with FakeCluster() as cluster:
        loads = Loads(cluster, tmp_path, TableFormat.ICEBERG)
        loads.send({"n": 1})
        loads.load()
        loads.catalog = loads.catalog if is_named else None
        for job in (fill, replay, lambda loads: rewind(loads.settings(), EVERYTHING)):
            with pytest.raises(SettingsError, match=r"[Oo]nly Delta tables can be loaded again"):
                job(loads)
