"""The admin clients of confluent-kafka and kafka-python ask for what Apache Kafka's tools ask for (R36)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import ConfigResourceType
from kio.schema.errors import ErrorCode
from tests.support.clusters import Cluster, ReachableCluster, SharedCluster, is_reference
from tests.support.topics import ANSWER_SECONDS, TopicFactory, error_name
from tests.support.waiting import wait_until
from tests.support.wire import Connection


@pytest.fixture
def confluent(local_stack: SharedCluster) -> Any:
    return confluents_client(local_stack)


def confluents_client(cluster: ReachableCluster) -> Any:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})


@pytest.fixture
def python(local_stack: SharedCluster) -> Iterator[Any]:
    client = KafkaAdminClient(bootstrap_servers=local_stack.bootstrap_servers.split(","))
    yield client
    client.close()


def described(admin: Any, kind: ConfigResource.Type, name: str) -> dict[str, Any]:
    resource = ConfigResource(kind, name)
    return dict(admin.describe_configs([resource])[resource].result(ANSWER_SECONDS))


def test_confluents_client_describes_brokers_and_changes_them_while_they_run(
    own_cluster: Cluster,
) -> None:
    confluent = confluents_client(own_cluster)
    before = described(confluent, ConfigResource.Type.BROKER, "1")
    assert (before["broker.id"].value, before["broker.id"].is_read_only) == ("1", True)
    assert not before["log.retention.ms"].is_read_only

    def change(operation: AlterConfigOpType) -> None:
        entry = ConfigEntry("log.retention.ms", "86400000", incremental_operation=operation)
        resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
        confluent.incremental_alter_configs([resource])[resource].result(ANSWER_SECONDS)

    change(AlterConfigOpType.SET)
    wait_until(
        lambda: described(confluent, ConfigResource.Type.BROKER, "1")["log.retention.ms"].value == "86400000",
        "the broker has heard of it",
    )
    reported = described(confluent, ConfigResource.Type.BROKER, "1")["log.retention.ms"]
    assert ConfigSource(reported.source) is ConfigSource.DYNAMIC_BROKER_CONFIG
    change(AlterConfigOpType.DELETE)


def test_trap_28_confluents_client_replaces_a_topics_settings(
    new_topic: TopicFactory, confluent: Any
) -> None:
    """redpanda-data/docs#635."""
    topic = new_topic(config={"retention.ms": "5000", "segment.ms": "6000"})
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, set_config={"segment.ms": "7000"})
    confluent.alter_configs([resource])[resource].result(ANSWER_SECONDS)
    wait_until(
        lambda: described(confluent, ConfigResource.Type.TOPIC, topic)["segment.ms"].value == "7000",
        "the settings are replaced",
    )
    reported = described(confluent, ConfigResource.Type.TOPIC, topic)
    assert reported["retention.ms"].value == "604800000"
    wrong = ConfigResource(ConfigResource.Type.TOPIC, topic, set_config={"no.such": "1"})
    assert error_name(confluent.alter_configs([wrong]), wrong) == "INVALID_CONFIG"


def test_kafka_python_describes_log_directories_partitions_and_settings(
    local_stack: SharedCluster, new_topic: TopicFactory, python: Any
) -> None:
    topic = new_topic(2, config={"retention.ms": "5000"})
    # Each broker opens its replicas when it hears of them.
    wait_until(lambda: topic in repr(python.describe_log_dirs()), "its replicas are there")
    (reported,) = python.describe_topic_partitions([topic])["topics"]
    assert [one["partition_index"] for one in reported["partitions"]] == [0, 1]
    configs = python.describe_configs([PythonResource(ConfigResourceType.TOPIC, topic)])
    assert "5000" in repr(configs)
    assert topic in repr(python.list_config_resources())


def test_kafka_python_sets_a_groups_settings(python: Any) -> None:
    group = f"group-{uuid4().hex}"
    changes = {"consumer.session.timeout.ms": "50000"}
    python.alter_configs([PythonResource(ConfigResourceType.GROUP, group, changes)])
    request = [PythonResource(ConfigResourceType.GROUP, group)]
    wait_until(lambda: "50000" in repr(python.describe_configs(request)), "the broker has heard of it")


def test_a_broker_logs_less_or_more_while_it_runs(own_cluster: Cluster) -> None:
    """KIP-412; sent without a client, because clients name loggers in ways of their own."""

    def log_from(level: str) -> None:
        entry = {"name": "root", "value": level, "config_operation": 0}
        resource = {"resource_type": 8, "resource_name": "1", "configs": [entry]}
        with Connection(own_cluster.brokers[1]) as connection:
            answer = connection.ask("incremental_alter_configs", 1, resources=[resource], validate_only=False)
        assert answer.responses[0].error_code == ErrorCode.none, answer.responses[0].error_message

    def level() -> str:
        with Connection(own_cluster.brokers[1]) as connection:
            request = {"resource_type": 8, "resource_name": "1", "configuration_keys": ["root"]}
            answer = connection.ask("describe_configs", 2, resources=[request], include_synonyms=False)
        return str(answer.results[0].configs[0].value)

    sizes = itertools.count(-1_000_000)  # none is possible, and each is a reason of its own, logged at INFO

    def last_words_of_a_closed_connection() -> str:
        with Connection(own_cluster.brokers[1]) as connection:
            connection.send_bytes(next(sizes).to_bytes(4, "big", signed=True))
            assert connection.is_closed_by_broker()
        return own_cluster.log_tail().get("Broker 1", "")

    before = level()
    log_from("ERROR")
    assert level() == "ERROR"
    assert last_words_of_a_closed_connection() == last_words_of_a_closed_connection()
    log_from(before)
    if not is_reference(own_cluster):
        assert last_words_of_a_closed_connection() != last_words_of_a_closed_connection()
