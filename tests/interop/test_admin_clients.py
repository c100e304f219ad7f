"""The admin clients of confluent-kafka and kafka-python ask for what Apache Kafka's tools ask for (R36)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import ConfigResourceType
from tests.support.clusters import Cluster, SharedCluster
from tests.support.topics import ANSWER_SECONDS, TopicFactory
from tests.support.waiting import wait_until


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
    confluent = AdminClient({"bootstrap.servers": own_cluster.bootstrap_servers, "log_level": 0})
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
