"""Protobuf of the stock serializer, through the registry, into tables (R28, R31)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.serialization import MessageField, SerializationContext
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
ADDRESS: Final = """
syntax = "proto3";
package shop;
message Address { string city = 1; }
"""
ORDER: Final = """
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
NOON_S: Final = 1_769_860_800  # 2026-01-31


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


def classes_of(order: str = ORDER) -> dict[str, Any]:
    return message_classes({"shop/address.proto": ADDRESS, "shop/order.proto": order})


def serialized(registry: RegistryInstance, topic: str, *messages: Any, **settings: Any) -> list[bytes]:
    """Messages as an application sends them, by one serializer that has just started."""
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

    context = SerializationContext(topic, MessageField.VALUE)
    client = SchemaRegistryClient({"url": registry.url})
    serializer = ProtobufSerializer(type(messages[0]), client, settings)
    return [serializer(message, context) for message in messages]


def send(cluster: Cluster, topic: str, *values: bytes | None) -> None:
    producer: Any = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0


def load(cluster: Cluster, registry: RegistryInstance, topic: str, warehouse: Path) -> LoadReport:
    settings = LoadSettings(
        cluster.bootstrap_servers,
        topic,
        warehouse,
        table="orders",
        payload=PayloadFormat.PROTOBUF,
        schema_registry=registry.url,
        event_time_field="at",
        max_rejected_share=1.0,
    )
    return load_topic(settings, InProcessExecutor())


def test_the_stock_serializer_works_unchanged_with_imports(registry: RegistryInstance) -> None:
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


def test_messages_become_rows_and_the_table_grows_with_the_schema(
    cluster: Cluster, registry: RegistryInstance, topic: str, tmp_path: Path
) -> None:
    order_class = classes_of()["shop.Order"]
    at = {"seconds": NOON_S}
    send(
        cluster,
        topic,
        *serialized(
            registry,
            topic,
            order_class(id=1, note="é", at=at, home={"city": "Wien"}, counts={"a": 1}, status="CLOSED"),
            order_class(id=2, at=at, lines=[{"sku": "x"}, {"sku": "y"}]),
        ),
        b"\0\x7f\xff\xff\xff\0",
        b"plain text",
        None,
    )
    report = load(cluster, registry, topic, tmp_path)
    assert (report.loaded, report.dead_lettered) == (3, 2)
    newer = ORDER.replace("string sku = 1;", "string sku = 1; uint64 cents = 2;")
    newer = newer.replace("repeated Line lines = 7;", "repeated Line lines = 7; bool gift = 8;")
    newer_class = classes_of(newer)["shop.Order"]
    lines = [{"sku": "z", "cents": 2**64 - 1}]
    send(cluster, topic, *serialized(registry, topic, newer_class(id=3, at=at, lines=lines, gift=True)))
    (refund,) = serialized(registry, topic, classes_of(newer)["shop.Refund"](id=4, at=at))
    damaged = refund + b"\xff"
    send(cluster, topic, refund, damaged)
    report = load(cluster, registry, topic, tmp_path)
    assert (report.loaded, report.dead_lettered) == (2, 1)

    statement = "SELECT id, note, status, home, lines, gift FROM orders WHERE id IS NOT NULL ORDER BY id"
    rows = query(tmp_path, statement).to_pylist()
    assert [(row["id"], row["note"], row["status"], row["gift"]) for row in rows] == [
        (1, "é", "CLOSED", None),
        (2, None, "OPEN", None),
        (3, None, "OPEN", True),
        (4, None, None, None),
    ]
    assert rows[0]["home"] == {"city": "Wien"}
    assert rows[1]["lines"] == [{"sku": "x", "cents": None}, {"sku": "y", "cents": None}]
    assert [(line["sku"], int(line["cents"])) for line in rows[2]["lines"]] == [("z", 2**64 - 1)]
    errors = query(tmp_path, "SELECT error FROM dead_letters ORDER BY _offset").to_pylist()
    words = ("does not know the id 2147483647", "the value begins with byte 112", "not what schema")
    assert all(word in row["error"] for word, row in zip(words, errors, strict=True))
    days = query(tmp_path, "SELECT CAST(day AS VARCHAR) AS day FROM orders WHERE id = 4").to_pylist()
    assert days == [{"day": "2026-01-31"}]


def test_the_command_registers_proto_files_and_loads_their_records(
    cluster: Cluster, registry: RegistryInstance, topic: str, tmp_path: Path
) -> None:
    address, order = tmp_path / "address.proto", tmp_path / "order.proto"
    address.write_text(ADDRESS)
    order.write_text(ORDER)
    subject, place = f"{topic}-value", ["--registry", registry.url]
    mainstem("schema", "register", f"{topic}-address", address, *place)
    reference = ["--reference", f"shop/address.proto={topic}-address:1"]
    mainstem("schema", "register", subject, order, *reference, *place)
    assert "message Refund" in mainstem("schema", "show", subject, *place).stdout.decode()
    order.write_text(ORDER.replace("int32 id = 1;", "string id = 1;"))
    refused = mainstem("schema", "check", subject, order, *reference, *place, exit_code=1)
    assert "the field shop.Order.id (1) is of kind string or bytes" in refused.stderr.decode()
    order.write_text("message")
    refused = mainstem("schema", "register", subject, order, *place, exit_code=1)
    assert "neither Protobuf text" in error_of(refused)

    message = classes_of()["shop.Order"](id=7, note="x", at={"seconds": NOON_S})
    send(cluster, topic, *serialized(registry, topic, message))
    options = ["--warehouse", str(tmp_path / "warehouse"), "--table", "orders", "--cores", "1"]
    protobuf = ["--payload", "protobuf", "--schema-registry", registry.url]
    assert mainstem_json("load", topic, *options, *protobuf, cluster=cluster)["loaded"] == 1
    statement = "SELECT id, note FROM orders"
    output = mainstem("sql", statement, "--warehouse", tmp_path / "warehouse", "-o", "json")
    assert json.loads(output.stdout) == [{"id": 7, "note": "x"}]
