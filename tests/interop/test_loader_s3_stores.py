"""R29: a bucket's store is tried before it is trusted with a table.

A proxy before a real S3 server makes it a store that ignores the conditions of puts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Final

import pytest
from pyarrow import fs
from tests.support.s3_proxy import S3Proxy, s3_proxy
from tests.support.s3_server import BUCKET, s3_store
from tests.unit.loader.batch_bytes import Record
from tests.unit.loader.fake_cluster import FakeCluster

from mainstem_loader.errors import WarehouseError
from mainstem_loader.load_topic import LoadReport, LoadSettings, load_topic
from mainstem_loader.spark.executors import InProcessExecutor
from mainstem_loader.table import folder
from mainstem_loader.table.query import tables

pytestmark = pytest.mark.processes

NEW_YEAR_MS: Final = 1_356_998_400_000


@pytest.fixture(scope="module")
def proxy() -> Iterator[S3Proxy]:
    with (
        s3_store() as environment,
        s3_proxy(environment["AWS_ENDPOINT_URL"]) as running,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in (environment | {"AWS_ENDPOINT_URL": running.endpoint}).items():
            patch.setenv(name, value)
        # Other tests of this process may use another store.
        folder._s3.cache_clear()
        yield running
        folder._s3.cache_clear()


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as running:
        running.topic("t", partitions=2)
        yield running


def send(cluster: FakeCluster) -> None:
    for target in cluster.topics["t"].partitions.values():
        values = (json.dumps({"n": target.end + index}).encode() for index in range(10))
        target.append(
            [Record(target.end + index, NEW_YEAR_MS, None, value) for index, value in enumerate(values)]
        )


def load(cluster: FakeCluster, warehouse: str) -> LoadReport:
    settings = LoadSettings(cluster.bootstrap_servers, "t", warehouse, retry_ms=1000)
    return load_topic(settings, InProcessExecutor())


def test_a_store_that_ignores_conditional_puts_is_refused_before_the_first_commit(
    proxy: S3Proxy, cluster: FakeCluster
) -> None:
    warehouse = f"s3://{BUCKET}/careless"
    send(cluster)
    proxy.set_conditions(kept=False)
    with pytest.raises(WarehouseError, match="supports conditional writes"):
        load(cluster, warehouse)
    assert tables(warehouse) == []
    proxy.set_conditions(kept=True)
    assert load(cluster, warehouse).loaded == 20


def test_a_store_is_tried_once_for_a_table_and_nothing_is_left_of_it(
    proxy: S3Proxy, cluster: FakeCluster
) -> None:
    warehouse = f"s3://{BUCKET}/careful"
    proxy.set_conditions(kept=True)
    send(cluster)
    load(cluster, warehouse)
    assert any("_probe-" in path for path in proxy.paths())
    store = fs.S3FileSystem(
        endpoint_override=os.environ["AWS_ENDPOINT_URL"].partition("://")[2], scheme="http"
    )
    left = store.get_file_info(fs.FileSelector(f"{BUCKET}/careful"))
    assert [item.base_name for item in left] == ["t"]
    proxy.set_conditions(kept=True)
    send(cluster)
    assert load(cluster, warehouse).loaded == 20
    assert not [path for path in proxy.paths() if "_probe-" in path]
