"""A warehouse in a bucket: the same guarantees as in a folder, by the store's conditional put (R28, R29)."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest
from pyarrow import fs
from tests.support.s3_proxy import S3Proxy, s3_proxy
from tests.support.s3_server import BUCKET, s3_store
from tests.unit.loader.batch_bytes import Record
from tests.unit.loader.fake_cluster import FakeCluster

from mainstem_loader.errors import LoaderError, WarehouseError
from mainstem_loader.load_topic import LoadOutcome, LoadReport, LoadSettings, load_topic
from mainstem_loader.spark.executors import InProcessExecutor
from mainstem_loader.table.commits import WarehouseTable
from mainstem_loader.table.iceberg_catalog import IcebergCatalog
from mainstem_loader.table.query import query, tables

pytestmark = pytest.mark.processes

NEW_YEAR_MS = int(datetime(2013, 1, 1, tzinfo=UTC).timestamp() * 1000)
ROUNDS = 5
ORPHAN = "day=2013-01-01/part-20130101T000000-0123abcd-0-0-1.parquet"


@pytest.fixture(scope="module")
def proxy() -> Iterator[S3Proxy]:
    """Before a real S3 server, which it can make one that ignores the conditions of puts."""
    # Clients of S3 read the environment once, so all tests of this process share one store.
    with (
        s3_store() as environment,
        s3_proxy(environment["AWS_ENDPOINT_URL"]) as running,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in (environment | {"AWS_ENDPOINT_URL": running.endpoint}).items():
            patch.setenv(name, value)
        yield running


@pytest.fixture
def store(proxy: S3Proxy) -> S3Proxy:
    """One that keeps conditions; it forgets what was requested before."""
    proxy.set_conditions(kept=True)
    return proxy


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as running:
        running.topic("t", partitions=2)
        yield running


def send(cluster: FakeCluster, *values: object) -> None:
    for target in cluster.topics["t"].partitions.values():
        target.append(
            [
                Record(
                    target.end + index,
                    NEW_YEAR_MS,
                    None,
                    value if isinstance(value, bytes) else json.dumps(value).encode(),
                )
                for index, value in enumerate(values)
            ]
        )


def load(cluster: FakeCluster, warehouse: str, catalog: IcebergCatalog | None = None) -> LoadReport:
    settings = LoadSettings(cluster.bootstrap_servers, "t", warehouse, catalog=catalog, retry_ms=1000)
    return load_topic(settings, InProcessExecutor())


def test_a_load_into_a_bucket_brings_each_record_once_and_dead_letters_too(
    store: S3Proxy, cluster: FakeCluster
) -> None:
    warehouse = f"s3://{BUCKET}/once"
    send(cluster, {"n": 1}, b"broken", {"n": 2})
    first = load(cluster, warehouse)
    assert (first.loaded, first.dead_lettered) == (4, 2)
    assert load(cluster, warehouse).outcome is LoadOutcome.UP_TO_DATE
    send(cluster, {"n": 3})
    assert load(cluster, warehouse).loaded == 2
    assert tables(warehouse) == ["dead_letters", "t"]
    assert query(warehouse, "SELECT count(*) AS rows, sum(n) AS sum FROM t").to_pylist() == [
        {"rows": 6, "sum": 12}
    ]
    assert query(warehouse, "SELECT value FROM dead_letters").to_pylist() == [{"value": b"broken"}] * 2


def test_an_iceberg_table_in_a_bucket_gets_each_record_once_and_is_swept(
    store: S3Proxy, cluster: FakeCluster, tmp_path: Path
) -> None:
    warehouse, catalog = f"s3://{BUCKET}/iceberg", IcebergCatalog(f"sqlite:///{tmp_path}/catalog.sqlite")
    send(cluster, {"n": 1}, b"broken", {"n": 2})
    first = load(cluster, warehouse, catalog)
    assert (first.loaded, first.dead_lettered) == (4, 2)
    assert load(cluster, warehouse, catalog).outcome is LoadOutcome.UP_TO_DATE
    send(cluster, {"n": 3, "m": "x"})
    assert load(cluster, warehouse, catalog).loaded == 2
    assert tables(warehouse, catalog) == ["dead_letters", "t"]
    answer = query(warehouse, "SELECT count(*) AS n, sum(n) AS sum, max(m) AS m FROM t", catalog)
    assert answer.to_pylist() == [{"n": 6, "sum": 12, "m": "x"}]
    table = WarehouseTable(warehouse, "t", catalog=catalog)
    assert table.folder.url.startswith(f"s3://{BUCKET}/iceberg/_iceberg/mainstem/t-")
    orphan = table.folder.open_file(ORPHAN)
    orphan.write(b"x")
    orphan.close()
    assert table.sweep_orphans(24, now_s=time.time() + 25 * 3600) == 1
    answer = query(warehouse, "SELECT count(*) AS n FROM t", catalog)
    assert answer.to_pylist() == [{"n": 6}]


def test_loads_that_race_in_a_bucket_bring_each_record_once(store: S3Proxy, cluster: FakeCluster) -> None:
    warehouse = f"s3://{BUCKET}/race"
    outcomes: list[LoadOutcome | LoaderError] = []

    def run() -> None:
        try:
            outcomes.append(load(cluster, warehouse).outcome)
        except LoaderError as error:
            outcomes.append(error)

    for number in range(ROUNDS):
        send(cluster, *({"n": number} for _ in range(10)))
        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outcomes.count(LoadOutcome.LOADED) == number + 1, outcomes
    assert not [outcome for outcome in outcomes if isinstance(outcome, LoaderError)], outcomes
    answer = query(warehouse, "SELECT count(*) AS rows, count(DISTINCT _offset) AS offsets FROM t")
    assert answer.to_pylist() == [{"rows": 2 * 10 * ROUNDS, "offsets": 10 * ROUNDS}]


def test_a_missing_bucket_is_reported_with_what_to_check(store: S3Proxy, cluster: FakeCluster) -> None:
    send(cluster, {"n": 1})
    with pytest.raises(WarehouseError, match="bucket exists") as refusal:
        load(cluster, "s3://no-such-bucket/x")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("url", ["gs://b/x", "s3://", "hdfs://n/x"])
def test_a_store_that_is_none_is_refused(url: str, cluster: FakeCluster) -> None:
    with pytest.raises(WarehouseError, match="s3://bucket/prefix"):
        load(cluster, url)


TEN: Final = [{"n": number} for number in range(10)]


def test_a_store_that_ignores_conditional_puts_is_refused_before_the_first_commit(
    store: S3Proxy, cluster: FakeCluster
) -> None:
    warehouse = f"s3://{BUCKET}/careless"
    send(cluster, *TEN)
    store.set_conditions(kept=False)
    with pytest.raises(WarehouseError, match="supports conditional writes"):
        load(cluster, warehouse)
    assert tables(warehouse) == []
    store.set_conditions(kept=True)
    assert load(cluster, warehouse).loaded == 20


def test_a_store_is_tried_once_for_a_table_and_nothing_is_left_of_it(
    store: S3Proxy, cluster: FakeCluster
) -> None:
    warehouse = f"s3://{BUCKET}/careful"
    send(cluster, *TEN)
    load(cluster, warehouse)
    assert any("_probe-" in path for path in store.paths())
    files = fs.S3FileSystem(
        endpoint_override=os.environ["AWS_ENDPOINT_URL"].partition("://")[2], scheme="http"
    )
    left = files.get_file_info(fs.FileSelector(f"{BUCKET}/careful"))
    assert [item.base_name for item in left] == ["t"]
    store.set_conditions(kept=True)
    send(cluster, *TEN)
    assert load(cluster, warehouse).loaded == 20
    assert not [path for path in store.paths() if "_probe-" in path]
