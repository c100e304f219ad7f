"""Retention that waits for loads: a load deletes from the topic what is loaded and old, and nothing else."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.unit.loader.batch_bytes import TRANSACTIONAL, Record, control_batch
from tests.unit.loader.fake_cluster import DELETE_RECORDS, FETCH, LIST_OFFSETS, METADATA, NEWEST, FakeCluster
from tests.unit.loader.test_load_topic import Loads

from mainstem_loader.errors import LoaderError, SettingsError
from mainstem_loader.kafka.delete_records import delete_records_before
from mainstem_loader.kafka.fetch import TopicReader
from mainstem_loader.kafka.leaders import BrokerSettings
from mainstem_loader.load_topic import LoadOutcome
from mainstem_loader.ranges import deletable_ends

HOUR_MS = 3_600_000


@pytest.fixture
def loads(cluster: FakeCluster, tmp_path: Path) -> Loads:
    return Loads(cluster, tmp_path)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def starts(loads: Loads) -> list[int]:
    return [partition.log_start for partition in loads.topic.partitions.values()]


@pytest.mark.parametrize(
    ("bounds", "young", "committed", "ends"),
    [
        pytest.param((0, 9), None, 9, {0: 9}, id="all is loaded and old"),
        pytest.param((0, 9), None, 5, {0: 5}, id="what is not loaded stays"),
        pytest.param((0, 9), 3, 9, {0: 3}, id="what is young stays"),
        pytest.param((0, 9), 0, 9, {}, id="all is young"),
        pytest.param((5, 9), None, 5, {}, id="nothing since the last deletion is loaded"),
        pytest.param((5, 9), None, 3, {}, id="the load is behind a gap"),
        pytest.param((0, 7), None, 9, {0: 7}, id="never beyond the end"),
        pytest.param((0, 0), None, 0, {}, id="empty"),
    ],
)
def test_records_are_deletable_up_to_where_they_are_loaded_and_old(
    bounds: tuple[int, int], young: int | None, committed: int, ends: dict[int, int]
) -> None:
    assert deletable_ends({0: bounds}, {0: young}, {0: committed}) == ends


def test_a_load_deletes_what_is_loaded_and_old(loads: Loads) -> None:
    loads.send({"n": 0}, {"n": 1}, time_ms=now_ms() - 3 * HOUR_MS)
    loads.send({"n": 2}, time_ms=now_ms())
    loads.send(b"dead", time_ms=now_ms() - 3 * HOUR_MS, partition=1)
    report = loads.load(delete_loaded_after_ms=2 * HOUR_MS, max_rejected_share=1)
    assert (report.loaded, report.offsets_deleted, report.warnings) == (3, 3, ())
    assert report.summary()["offsetsDeleted"] == 3
    assert starts(loads) == [2, 1]
    assert [row["n"] for row in loads.rows("n")] == [0, 1, 2]
    again = loads.load(delete_loaded_after_ms=2 * HOUR_MS)
    assert (again.outcome, again.gaps, again.offsets_deleted) == (LoadOutcome.UP_TO_DATE, (), 0)
    assert loads.load(delete_loaded_after_ms=0).offsets_deleted == 1
    assert starts(loads) == [3, 1]


def test_a_load_deletes_nothing_unless_it_is_asked_to(loads: Loads) -> None:
    loads.send({"n": 0})
    assert loads.load().offsets_deleted == 0
    assert starts(loads) == [0, 0]
    assert not any(key == DELETE_RECORDS for _, key, _ in loads.cluster.asked)


def test_records_that_a_cap_left_out_stay(loads: Loads) -> None:
    loads.send(*({"n": n} for n in range(10)))
    assert loads.load(delete_loaded_after_ms=0, max_records=4).loaded == 4
    assert starts(loads) == [4, 0]


OLD, NONE, YOUNG = "old", "none", "young"


@pytest.mark.parametrize(
    ("times", "start"),
    [
        ((NONE, NONE), 0),
        ((OLD, NONE), 0),
        ((NONE, OLD), 2),
        ((OLD, NONE, OLD), 3),
        ((NONE, YOUNG), 0),
        ((NONE, OLD, YOUNG), 2),
    ],
)
def test_records_without_a_timestamp_are_as_old_as_the_next_one_that_has_one(
    loads: Loads, times: tuple[str, ...], start: int
) -> None:
    """KIP-32. Without a later record nothing says that they are old."""
    ms_of = {OLD: now_ms() - 3 * HOUR_MS, NONE: -1, YOUNG: now_ms()}
    for name in times:
        loads.send({"n": 0}, time_ms=ms_of[name])
    report = loads.load(delete_loaded_after_ms=2 * HOUR_MS)
    assert (report.loaded, report.offsets_deleted) == (len(times), start)
    assert starts(loads) == [start, 0]
    assert [warning.endswith("(partitions: 0).") for warning in report.warnings] == [True] * (start == 0)


def test_a_marker_of_a_transaction_has_a_timestamp(loads: Loads) -> None:
    loads.send({"n": 0}, time_ms=-1, attributes=TRANSACTIONAL, producer_id=5)
    loads.topic.partitions[0].add(control_batch(1, 5, commit=True))
    report = loads.load(delete_loaded_after_ms=2 * HOUR_MS)
    assert (report.loaded, report.warnings, starts(loads)) == (1, (), [2, 0])


def test_a_failed_load_deletes_nothing(loads: Loads) -> None:
    loads.send({"n": 0})
    loads.load()
    loads.send({"n": 1})
    loads.cluster.errors[FETCH].extend([ErrorCode.corrupt_message] * 20)
    with pytest.raises(LoaderError):
        loads.load(delete_loaded_after_ms=0)
    assert starts(loads) == [0, 0]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (ErrorCode.topic_authorization_failed, "ask for DELETE on it"),
        (ErrorCode.policy_violation, "its cleanup.policy is not delete"),
        (ErrorCode.invalid_request, "with INVALID_REQUEST"),
    ],
)
def test_a_broker_that_refuses_is_a_warning_of_a_load_that_succeeded(
    loads: Loads, code: ErrorCode, words: str
) -> None:
    loads.send({"n": 0})
    loads.cluster.errors[DELETE_RECORDS].append(code)
    report = loads.load(delete_loaded_after_ms=0)
    assert (report.loaded, report.offsets_deleted) == (1, 0)
    assert report.warnings[0].startswith("Loaded records were not deleted from the topic: ")
    assert words in report.warnings[0]
    assert loads.load(delete_loaded_after_ms=0).offsets_deleted == 1


def test_a_broker_without_the_request_is_a_warning(tmp_path: Path) -> None:
    versions = {key: NEWEST[key] for key in (FETCH, LIST_OFFSETS, METADATA, 18, 23)}
    with FakeCluster(versions=versions) as cluster:
        loads = Loads(cluster, tmp_path)
        loads.send({"n": 0})
        report = loads.load(delete_loaded_after_ms=0)
    assert report.loaded == 1
    assert "DeleteRecords" in report.warnings[0]


def test_leaders_on_several_brokers_are_asked_each_and_again_when_they_move() -> None:
    with FakeCluster(brokers=2) as cluster:
        topic = cluster.topic("t", partitions=3)
        topic.partitions[1].leader = 2
        for partition in topic.partitions.values():
            partition.append([Record(offset) for offset in range(5)])
        cluster.errors[DELETE_RECORDS].append(ErrorCode.not_leader_or_follower)
        brokers = BrokerSettings(cluster.bootstrap_servers, retry_ms=3000)
        with TopicReader(brokers, "t") as reader:
            topic_id = reader.topic_id
        delete_records_before(brokers, "t", topic_id, lambda: {0: 5, 1: 3, 2: 1})
        assert [partition.log_start for partition in topic.partitions.values()] == [5, 3, 1]


def test_what_became_less_while_one_leader_deleted_is_less_for_the_next() -> None:
    """R33: a rewind may set offsets back while a broker waits for its followers."""
    with FakeCluster(brokers=2) as cluster:
        topic = cluster.topic("t", partitions=3)
        topic.partitions[1].leader = 2
        for partition in topic.partitions.values():
            partition.append([Record(offset) for offset in range(5)])
        brokers = BrokerSettings(cluster.bootstrap_servers, retry_ms=3000)
        with TopicReader(brokers, "t") as reader:
            topic_id = reader.topic_id

        def offsets() -> dict[int, int]:
            return {0: 5, 1: 3, 2: 1} if topic.partitions[0].log_start == 0 else {0: 2, 1: 1}

        assert delete_records_before(brokers, "t", topic_id, offsets) == {0: 5, 1: 1, 2: 1}
        assert [partition.log_start for partition in topic.partitions.values()] == [5, 1, 1]


def test_a_topic_that_was_created_anew_keeps_its_records(loads: Loads) -> None:
    loads.send({"n": 0})
    brokers = BrokerSettings(loads.cluster.bootstrap_servers, retry_ms=300)
    with pytest.raises(LoaderError, match="was deleted and created anew"):
        delete_records_before(brokers, "t", "AAAAAAAAAAAAAAAAAAAAAA", lambda: {0: 1})
    assert starts(loads) == [0, 0]


def test_a_negative_age_is_refused(loads: Loads) -> None:
    more: dict[str, Any] = {"delete_loaded_after_ms": -1}
    with pytest.raises(SettingsError, match="must be at least 0"):
        loads.load(**more)
