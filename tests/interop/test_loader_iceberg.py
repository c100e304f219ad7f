"""A topic that a stock client wrote becomes an Iceberg table that a stock reader reads (R28)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyiceberg.catalog.sql import SqlCatalog
from tests.support.clusters import ReachableCluster, SharedCluster
from tests.support.topics import TopicFactory

from mainstem_loader.load_topic import LoadOutcome, LoadReport, LoadSettings, load_topic
from mainstem_loader.spark.executors import InProcessExecutor
from mainstem_loader.table.iceberg_catalog import IcebergCatalog


def send(cluster: ReachableCluster, topic: str, *values: Any) -> None:
    producer: Any = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for value in values:
        producer.produce(topic, json.dumps(value).encode())
    assert producer.flush(30) == 0


def test_a_topic_is_loaded_into_an_iceberg_table_that_pyiceberg_reads(
    local_stack: SharedCluster, new_topic: TopicFactory, tmp_path: Path
) -> None:
    topic = new_topic(partitions=2)
    uri = f"sqlite:///{tmp_path}/catalog.sqlite"

    def load() -> LoadReport:
        settings = LoadSettings(
            local_stack.bootstrap_servers,
            topic,
            tmp_path / "warehouse",
            table="orders",
            catalog=IcebergCatalog(uri),
        )
        return load_topic(settings, InProcessExecutor())

    send(local_stack, topic, {"id": 1}, {"id": 2})
    assert load().loaded == 2
    send(local_stack, topic, {"id": 3, "note": "new"})
    assert load().loaded == 1
    assert load().outcome is LoadOutcome.UP_TO_DATE

    table = SqlCatalog("mainstem", uri=uri).load_table(("mainstem", "orders"))
    rows = table.scan(selected_fields=("id", "note")).to_arrow().sort_by("id").to_pylist()
    assert rows == [{"id": 1, "note": None}, {"id": 2, "note": None}, {"id": 3, "note": "new"}]
