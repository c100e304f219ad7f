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
from tests.support.command_line import error_of, mainstem, mainstem_json
from tests.support.proto_messages import message_classes
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
ADDRESS_PROTO: Final = """
syntax = "proto3";
package shop;
message Address { string city = 1; }
"""
ORDER_PROTO: Final = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "shop/address.proto";
message Order {
  int32 id = 1;
  optional string note = 2;
  google.protobuf.Timestamp at = 3;
  Address home = 4;
  map<string, int64> counts = 5;
  Status status = 6;
  message Line { string sku = 1; }
  repeated Line lines = 7;
}
enum Status { OPEN = 0; CLOSED = 1; }
message Refund { int32 id = 1; google.protobuf.Timestamp at = 2; }
"""
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


class Sender:
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
    sender = Sender(cluster, registry, topic)
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
    sender = Sender(cluster, registry, topic)
    sender.send_bytes(serializer({"id": 3, "at": "2026-01-31T10:00:00Z"}, context))
    client = SchemaRegistryClient({"url": registry.url})
    avro_id = client.register_schema("another-value", Schema(json.dumps(ORDER), "AVRO"))
    sender.send_bytes(b"\0" + avro_id.to_bytes(4, "big") + b"{}")
    report = load(cluster, registry.url, topic, tmp_path, PayloadFormat.JSON_SCHEMA, max_rejected_share=1.0)
    assert (report.loaded, report.dead_lettered) == (1, 1)
    assert query(tmp_path, "SELECT id FROM orders").to_pylist() == [{"id": 3}]
    (dead,) = query(tmp_path, "SELECT error FROM dead_letters").to_pylist()
    assert "is AVRO, not JSON" in dead["error"]


# --- Protobuf ---


def classes_of(order: str = ORDER_PROTO) -> dict[str, Any]:
    return message_classes({"shop/address.proto": ADDRESS_PROTO, "shop/order.proto": order})


def serialized(registry: RegistryInstance, topic: str, *messages: Any, **settings: Any) -> list[bytes]:
    """Messages as an application sends them, by one serializer that has just started."""
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

    context = SerializationContext(topic, MessageField.VALUE)
    client = SchemaRegistryClient({"url": registry.url})
    serializer = ProtobufSerializer(type(messages[0]), client, settings)
    return [serializer(message, context) for message in messages]


def test_the_stock_protobuf_serializer_works_unchanged_with_imports(registry: RegistryInstance) -> None:
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer

    client = SchemaRegistryClient({"url": registry.url})
    order_class = classes_of()["shop.Order"]
    order = order_class(id=7, note="é", home={"city": "Wien"}, counts={"a": 1}, lines=[{"sku": "k"}])
    context = SerializationContext("orders", MessageField.VALUE)
    (value,) = serialized(registry, "orders", order)
    assert value[:1] == b"\0"
    deserializer = ProtobufDeserializer(order_class, {"use.deprecated.format": False}, client)
    assert deserializer(value, context) == order
    # Each start registers again, which changes nothing.
    assert serialized(registry, "orders", order) == [value]
    assert client.get_versions("orders-value") == [1]
    schema = client.get_latest_version("orders-value").schema
    assert schema.schema_type == "PROTOBUF"
    assert "map<string, int64> counts = 5;" in str(schema.schema_str)
    assert [(one.name, one.subject, one.version) for one in schema.references or ()] == [
        ("shop/address.proto", "shop/address.proto", 1)
    ]
    # Without the right to register, the serializer finds what is there, and takes the newest if it may.
    assert serialized(registry, "orders", order, **{"auto.register.schemas": False}) == [value]
    latest = {"auto.register.schemas": False, "use.latest.version": True}
    assert serialized(registry, "orders", order, **latest) == [value]


def test_the_command_registers_proto_files_and_loads_their_records(
    cluster: Cluster, registry: RegistryInstance, topic: str, tmp_path: Path
) -> None:
    address, order = tmp_path / "address.proto", tmp_path / "order.proto"
    address.write_text(ADDRESS_PROTO)
    order.write_text(ORDER_PROTO)
    subject, place = f"{topic}-value", ["--registry", registry.url]
    mainstem("schema", "register", f"{topic}-address", address, *place)
    reference = ["--reference", f"shop/address.proto={topic}-address:1"]
    mainstem("schema", "register", subject, order, *reference, *place)
    assert "message Refund" in mainstem("schema", "show", subject, *place).stdout.decode()
    order.write_text(ORDER_PROTO.replace("int32 id = 1;", "string id = 1;"))
    refused = mainstem("schema", "check", subject, order, *reference, *place, exit_code=1)
    assert "the field shop.Order.id (1) is of kind string or bytes" in refused.stderr.decode()
    order.write_text("message")
    refused = mainstem("schema", "register", subject, order, *place, exit_code=1)
    assert "neither Protobuf text" in error_of(refused)

    message = classes_of()["shop.Order"](id=7, note="x", at={"seconds": NOON_MS // 1000})
    Sender(cluster, registry, topic).send_bytes(*serialized(registry, topic, message))
    options = ["--warehouse", str(tmp_path / "warehouse"), "--table", "orders", "--cores", "1"]
    protobuf = ["--payload", "protobuf", "--schema-registry", registry.url]
    assert mainstem_json("load", topic, *options, *protobuf, cluster=cluster)["loaded"] == 1
    statement = "SELECT id, note FROM orders"
    output = mainstem("sql", statement, "--warehouse", tmp_path / "warehouse", "-o", "json")
    assert json.loads(output.stdout) == [{"id": 7, "note": "x"}]
