"""Records of stock serializers, through a registry, into tables that several engines read (R28, R31)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from deltalake import DeltaTable
from tests.support.clusters import Cluster, RunCluster
from tests.support.registries import RegistryInstance, running_registries
from tests.support.topics import TopicFactory

from mainstem_loader.load_topic import LoadReport, LoadSettings, load_topic
from mainstem_loader.payload.readers import PayloadFormat
from mainstem_loader.spark.executors import InProcessExecutor
from mainstem_loader.table.query import query

SETTINGS: Final = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "500"}
ORDER: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
NEWER: Final[dict[str, Any]] = {
    **ORDER,
    "fields": [
        {"name": "id", "type": "long"},
        *ORDER["fields"][1:],
        {"name": "items", "type": {"type": "array", "items": "string"}, "default": []},
    ],
}
NOON_MS: Final = 1_769_860_800_000  # 2026-01-31


@pytest.fixture(scope="module")
def cluster(run_cluster: RunCluster) -> Iterator[Cluster]:
    with run_cluster(1, SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: Cluster) -> Iterator[str]:
    with TopicFactory(cluster) as factory:
        yield factory()


@pytest.fixture(scope="module")
def registry(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryInstance]:
    with running_registries(cluster.bootstrap_servers, tmp_path_factory.mktemp("registry")) as instances:
        yield instances[0]


class _Sender:
    """Sends orders as an application does, with Confluent's serializer."""

    def __init__(self, cluster: Cluster, registry: RegistryInstance, topic: str) -> None:
        self._client = SchemaRegistryClient({"url": registry.url})
        self._producer: Any = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        self._topic = topic

    def send(self, schema: dict[str, Any], *orders: dict[str, Any]) -> None:
        serializer = AvroSerializer(self._client, json.dumps(schema))
        context = SerializationContext(self._topic, MessageField.VALUE)
        self.send_bytes(*(serializer(order, context) for order in orders))

    def send_bytes(self, *values: bytes | None) -> None:
        for value in values:
            self._producer.produce(self._topic, value, partition=0)
        assert self._producer.flush(30) == 0


def load(
    cluster: Cluster,
    registry_url: str,
    topic: str,
    warehouse: Path,
    payload: PayloadFormat = PayloadFormat.AVRO,
    **more: Any,
) -> LoadReport:
    settings = LoadSettings(
        cluster.bootstrap_servers,
        topic,
        warehouse,
        table="orders",
        payload=payload,
        schema_registry=registry_url,
        event_time_field="at",
        **more,
    )
    return load_topic(settings, InProcessExecutor())


def test_records_of_two_schemas_are_loaded_and_the_table_grows_and_every_engine_reads_it(
    cluster: Cluster, registry: RegistryInstance, topic: str, tmp_path: Path
) -> None:
    sender = _Sender(cluster, registry, topic)
    sender.send(ORDER, {"id": 1, "at": NOON_MS, "note": "é"}, {"id": 2, "at": NOON_MS, "note": None})
    assert load(cluster, registry.url, topic, tmp_path).loaded == 2
    # An int that becomes a long, and a new field: the table takes both without being made anew.
    sender.send(NEWER, {"id": 1 << 40, "at": NOON_MS + 86_400_000, "note": None, "items": ["a", "b"]})
    sender.send(ORDER, {"id": 4, "at": NOON_MS, "note": None})
    report = load(cluster, registry.url, topic, tmp_path)
    assert (report.loaded, report.dead_lettered) == (2, 0)

    expected = [(1, "é", None), (2, None, None), (4, None, None), (1 << 40, None, ["a", "b"])]
    statement = "SELECT id, note, items FROM orders ORDER BY id"
    reported = query(tmp_path, statement).to_pylist()
    assert [tuple(row.values()) for row in reported] == expected
    files = DeltaTable(str(tmp_path / "orders")).file_uris()
    with duckdb.connect() as engine:
        read = engine.execute(
            f"SELECT id, note, items FROM read_parquet({files!r}, union_by_name=true) ORDER BY id"
        ).fetchall()
    assert read == expected
    days = query(tmp_path, "SELECT CAST(day AS VARCHAR) AS day FROM orders GROUP BY day ORDER BY day")
    assert [row["day"] for row in days.to_pylist()] == ["2026-01-31", "2026-02-01"]


def test_json_of_the_stock_serializer_is_loaded_without_its_id(
    cluster: Cluster, registry: RegistryInstance, topic: str, tmp_path: Path
) -> None:
    schema = json.dumps({"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}})
    serializer = JSONSerializer(schema, SchemaRegistryClient({"url": registry.url}))
    context = SerializationContext(topic, MessageField.VALUE)
    sender = _Sender(cluster, registry, topic)
    sender.send_bytes(serializer({"id": 3, "at": "2026-01-31T10:00:00Z"}, context))
    client = SchemaRegistryClient({"url": registry.url})
    avro_id = client.register_schema("another-value", Schema(json.dumps(ORDER), "AVRO"))
    sender.send_bytes(b"\0" + avro_id.to_bytes(4, "big") + b"{}")
    report = load(cluster, registry.url, topic, tmp_path, PayloadFormat.JSON_SCHEMA, max_rejected_share=1.0)
    assert (report.loaded, report.dead_lettered) == (1, 1)
    assert query(tmp_path, "SELECT id FROM orders").to_pylist() == [{"id": 3}]
    (dead,) = query(tmp_path, "SELECT error FROM dead_letters").to_pylist()
    assert "is AVRO, not JSON" in dead["error"]
