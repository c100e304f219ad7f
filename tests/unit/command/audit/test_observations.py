"""What an audit counts in tables (R32), of either format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.loader.batch_bytes import TRANSACTIONAL, Record, control_batch
from tests.unit.loader.fake_cluster import FakeCluster
from tests.unit.loader.test_load_topic import NEW_YEAR_MS, Loads

from mainstem.audit import observations
from mainstem.audit.counts import AUDIT_TOPIC, WINDOW_MS, CountKey, ProducerCounts, to_record
from mainstem.audit.observations import observe
from mainstem.audit.verdicts import LoadedCounts, StoredCounts
from mainstem_loader.columns import TableFormat
from mainstem_loader.kafka.leaders import BrokerSettings
from mainstem_loader.kafka.range_reader import read_range


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as running:
        yield running


@pytest.mark.parametrize("table_format", list(TableFormat))
def test_rows_and_dead_letters_are_counted_by_window(
    cluster: FakeCluster, tmp_path: Path, table_format: TableFormat
) -> None:
    loads = Loads(cluster, tmp_path, table_format)
    for window in range(3):
        begin_ms = NEW_YEAR_MS + window * WINDOW_MS
        loads.send({"n": 1}, b"nonsense", time_ms=begin_ms, partition=window % 2)
        loads.send({"n": 2}, time_ms=begin_ms + WINDOW_MS - 1)
    loads.load(max_rejected_share=1)
    # Not loaded yet, so neither stored nor loaded counts have it below the offsets of the load.
    loads.send({"n": 3})
    brokers = BrokerSettings(cluster.bootstrap_servers, retry_ms=300)
    observed = observe(brokers, "t", str(tmp_path), "t", loads.catalog)
    assert observed.has_table
    assert observed.loaded == {NEW_YEAR_MS + window * WINDOW_MS: LoadedCounts(2, 1) for window in range(3)}
    assert [observed.stored[NEW_YEAR_MS + window * WINDOW_MS].settled for window in range(3)] == [3, 3, 3]


@pytest.mark.parametrize("table_format", list(TableFormat))
def test_records_without_a_timestamp_are_in_no_window(
    cluster: FakeCluster, tmp_path: Path, table_format: TableFormat
) -> None:
    """R32, KIP-32."""
    loads = Loads(cluster, tmp_path, table_format)
    loads.send({"n": 1})
    loads.send({"n": 2}, b"nonsense", time_ms=-1)
    loads.send(b"nonsense", time_ms=-1, partition=1)
    loads.load(max_rejected_share=1)
    brokers = BrokerSettings(cluster.bootstrap_servers, retry_ms=300)
    observed = observe(brokers, "t", str(tmp_path), "t", loads.catalog)
    assert observed.loaded == {NEW_YEAR_MS: LoadedCounts(1)}
    assert observed.stored == {NEW_YEAR_MS: StoredCounts(1, 1)}


def test_a_table_that_is_not_there_is_none(cluster: FakeCluster, tmp_path: Path) -> None:
    Loads(cluster, tmp_path).send({"n": 1})
    brokers = BrokerSettings(cluster.bootstrap_servers, retry_ms=300)
    assert not observe(brokers, "t", str(tmp_path), "t").has_table
    assert not observe(brokers, "t", None, "t").has_table


def test_dead_letters_of_a_table_with_another_name_are_counted(cluster: FakeCluster, tmp_path: Path) -> None:
    """R30, R32: otherwise they would be missing."""
    loads = Loads(cluster, tmp_path)
    loads.send({"n": 1}, b"nonsense")
    loads.load(max_rejected_share=1, dead_letter_table="rejects")
    brokers = BrokerSettings(cluster.bootstrap_servers, retry_ms=300)
    observed = observe(brokers, "t", str(tmp_path), "t", dead_letter_table="rejects")
    assert observed.loaded == {NEW_YEAR_MS: LoadedCounts(1, 1)}


@pytest.mark.parametrize("table_format", list(TableFormat))
def test_rows_below_the_start_of_the_log_are_counted_as_expired(
    cluster: FakeCluster, tmp_path: Path, table_format: TableFormat
) -> None:
    """R32: by offset, for timestamps may be out of order: the window of a deleted record is not over."""
    loads = Loads(cluster, tmp_path, table_format)
    later_ms = NEW_YEAR_MS + WINDOW_MS
    loads.send({"n": 0}, b"nonsense", time_ms=later_ms)
    loads.send({"n": 2}, time_ms=NEW_YEAR_MS)
    loads.send({"n": 3}, time_ms=later_ms)
    loads.send({"n": 4}, time_ms=later_ms, partition=1)
    loads.load(max_rejected_share=1)
    loads.topic.partitions[0].log_start = 2
    brokers = BrokerSettings(cluster.bootstrap_servers, retry_ms=300)
    observed = observe(brokers, "t", str(tmp_path), "t", loads.catalog)
    assert observed.loaded == {NEW_YEAR_MS: LoadedCounts(1), later_ms: LoadedCounts(3, 1, expired=2)}
    assert {window_ms: counts.stored for window_ms, counts in observed.stored.items()} == {
        NEW_YEAR_MS: 1,
        later_ms: 2,
    }


def test_without_a_table_records_that_expired_may_be_as_late_as_those_that_remain(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    """R32."""
    loads = Loads(cluster, tmp_path)
    for time_ms in (NEW_YEAR_MS, NEW_YEAR_MS, NEW_YEAR_MS + WINDOW_MS, NEW_YEAR_MS):
        loads.send({"n": 0}, time_ms=time_ms)
    loads.topic.partitions[0].log_start = 1
    brokers = BrokerSettings(cluster.bootstrap_servers, retry_ms=300)
    assert observe(brokers, "t", None, "t").expired_before_ms == NEW_YEAR_MS + WINDOW_MS


def test_records_of_aborted_and_of_open_transactions_are_counted_apart(cluster: FakeCluster) -> None:
    """R12, R32."""
    topic = cluster.topic("t", partitions=2)
    aborted, opened = topic.partitions[0], topic.partitions[1]
    aborted.append([Record(0, NEW_YEAR_MS, None, b"{}")], attributes=TRANSACTIONAL, producer_id=5)
    aborted.add(control_batch(1, 5, commit=False))
    aborted.append([Record(2, NEW_YEAR_MS, None, b"{}")], attributes=TRANSACTIONAL, producer_id=5)
    aborted.add(control_batch(3, 5, commit=True))
    aborted.aborted = [(5, 0)]
    opened.append([Record(0, NEW_YEAR_MS, None, b"{}"), Record(1, NEW_YEAR_MS + WINDOW_MS, None, b"{}")])
    opened.append([Record(2, NEW_YEAR_MS, None, b"{}")], attributes=TRANSACTIONAL, producer_id=6)
    opened.stable = 2
    observed = observe(BrokerSettings(cluster.bootstrap_servers, retry_ms=300), "t", None, "t")
    assert observed.stored[NEW_YEAR_MS] == StoredCounts(2, 2, uncommitted=2)
    assert observed.stored[NEW_YEAR_MS + WINDOW_MS].uncommitted == 0


def test_what_is_sent_and_loaded_during_an_audit_is_not_missed(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R32: each side is read before those that it is compared with can only have more."""
    loads = Loads(cluster, tmp_path)
    log, posts = loads.topic.partitions[0], cluster.topic(AUDIT_TOPIC).partitions[0]
    key = CountKey("web-1", "t", NEW_YEAR_MS)

    def send_and_load() -> None:
        loads.send({"n": log.end})
        posted = to_record(key, ProducerCounts(log.end, log.end, 0, NEW_YEAR_MS))
        posts.append([Record(posts.end, NEW_YEAR_MS, *posted)])
        loads.load()

    def read_while_clients_send(*wanted: Any) -> Iterator[Any]:
        yield from read_range(*wanted)
        send_and_load()

    send_and_load()
    monkeypatch.setattr(observations, "read_range", read_while_clients_send)
    brokers = BrokerSettings(cluster.bootstrap_servers, retry_ms=300)
    observed = observe(brokers, "t", str(tmp_path), "t")
    stored = observed.stored[NEW_YEAR_MS]
    assert observed.produced[key].expected <= stored.stored
    assert stored.settled <= observed.loaded[NEW_YEAR_MS].loaded
