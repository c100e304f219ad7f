"""Apache Kafka's own tools ask about our cluster and change its settings (R36).

Each start of a tool costs a second or two, so a test goes through a whole story.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from kio.schema.errors import ErrorCode
from tests.support.clusters import Cluster, ReachableCluster, SharedCluster
from tests.support.kafka_tools import run_tool
from tests.support.messages import Message
from tests.support.stock_clients import CLIENTS
from tests.support.topics import TopicFactory
from tests.support.wire import Connection


@pytest.fixture
def topic(group_topic: TopicFactory) -> str:
    """A topic of 3 partitions."""
    return group_topic(3)


def configs(cluster: ReachableCluster, *arguments: str) -> str:
    """What `kafka-configs` prints."""
    return run_tool("ConfigCommand", "--bootstrap-server", cluster.bootstrap_servers, *arguments)


def described(printed: str) -> dict[str, tuple[str, list[str]]]:
    """Value and synonyms of each setting that `kafka-configs --describe` prints."""
    lines = re.findall(r"^  (\S+?)=(.*?) sensitive=false synonyms=\{(.*)\}$", printed, re.MULTILINE)
    return {name: (value, synonyms.split(", ")) for name, value, synonyms in lines}


@contextmanager
def broker_setting(cluster: Cluster, broker: str, name: str, value: str) -> Iterator[None]:
    """A dynamic setting of one broker, or of all (""), while the block runs; set without a tool."""

    def change(operation: int) -> None:
        entry = {"name": name, "value": value, "config_operation": operation}
        resource = {"resource_type": 4, "resource_name": broker, "configs": [entry]}
        with Connection(cluster.brokers[1]) as connection:
            answer = connection.ask("incremental_alter_configs", 1, resources=[resource], validate_only=False)
        assert answer.responses[0].error_code == ErrorCode.none, answer.responses[0].error_message

    change(0)
    yield
    change(1)


# --- kafka-configs ---


def test_a_topics_settings_are_altered_and_described_with_all_the_places_they_come_from(
    own_cluster: Cluster,
) -> None:
    with TopicFactory(own_cluster) as new_topic:
        topic = new_topic()
        entity = ("--entity-type", "topics", "--entity-name", topic)
        with broker_setting(own_cluster, "", "log.retention.ms", "77000"):
            changes = "retention.ms=55000,cleanup.policy=[compact,delete]"
            assert "Completed updating" in configs(own_cluster, "--alter", *entity, "--add-config", changes)
            settings = described(configs(own_cluster, "--describe", *entity, "--all"))
        assert settings["retention.ms"] == (
            "55000",
            [
                "DYNAMIC_TOPIC_CONFIG:retention.ms=55000",
                "DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=77000",
                "DEFAULT_CONFIG:log.retention.hours=168",
            ],
        )
        assert settings["cleanup.policy"][0] == "compact,delete"
        assert settings["max.message.bytes"] == ("1048588", ["DEFAULT_CONFIG:message.max.bytes=1048588"])
        assert "Completed updating" in configs(
            own_cluster, "--alter", *entity, "--delete-config", "cleanup.policy"
        )
        assert described(configs(own_cluster, "--describe", *entity)).keys() == {"retention.ms"}


def test_brokers_settings_are_changed_for_all_and_for_one_and_described(own_cluster: Cluster) -> None:
    name = "message.max.bytes"
    defaults = ("--entity-type", "brokers", "--entity-default")
    one = ("--entity-type", "brokers", "--entity-name", "1")
    changed = configs(own_cluster, "--alter", *defaults, "--add-config", f"{name}=2000000")
    assert "Completed updating default config for brokers" in changed
    with broker_setting(own_cluster, "1", name, "3000000"):
        settings = described(configs(own_cluster, "--describe", *one, "--all"))
    assert settings[name] == (
        "3000000",
        [
            f"DYNAMIC_BROKER_CONFIG:{name}=3000000",
            f"DYNAMIC_DEFAULT_BROKER_CONFIG:{name}=2000000",
            f"DEFAULT_CONFIG:{name}=1048588",
        ],
    )
    assert described(configs(own_cluster, "--describe", *defaults))[name][0] == "2000000"
    assert "Completed" in configs(own_cluster, "--alter", *defaults, "--delete-config", name)


def test_groups_have_settings_of_their_own(group_stack: SharedCluster) -> None:
    group = f"group/{uuid4().hex}"
    entity = ("--entity-type", "groups", "--entity-name", group)
    setting = "consumer.session.timeout.ms=50000"
    assert "Completed updating" in configs(group_stack, "--alter", *entity, "--add-config", setting)
    listed = configs(group_stack, "--describe", "--entity-type", "groups")
    assert f"Dynamic configs for group {group} are:" in listed
    settings = described(configs(group_stack, "--describe", *entity, "--all"))
    value, synonyms = settings["consumer.session.timeout.ms"]
    assert value == "50000"
    assert synonyms[0] == "DYNAMIC_GROUP_CONFIG:consumer.session.timeout.ms=50000"
    assert settings["consumer.heartbeat.interval.ms"][0] == "200", "the brokers', which the stack has set"


def test_quotas_of_clients_are_set_described_and_taken_back(group_stack: SharedCluster) -> None:
    user, client = f"user/{uuid4().hex}", f"client {uuid4().hex}"
    of_user = ("--entity-type", "users", "--entity-name", user)
    of_both = (*of_user, "--entity-type", "clients", "--entity-name", client)
    settings = "producer_byte_rate=1000000,request_percentage=50.5"
    assert "Completed" in configs(group_stack, "--alter", *of_user, "--add-config", settings)
    assert "Completed" in configs(
        group_stack, "--alter", *of_both, "--add-config", "consumer_byte_rate=2000000"
    )
    printed = configs(group_stack, "--describe", *of_user)
    (line,) = (line for line in printed.splitlines() if line.startswith("Quota configs"))
    assert f"user-principal '{user}'" in line
    assert set(re.findall(r"\w+=[\d.]+", line)) == {"producer_byte_rate=1000000.0", "request_percentage=50.5"}
    (line,) = configs(group_stack, "--describe", *of_both).splitlines()
    assert f"client-id '{client}'" in line
    assert line.endswith("are consumer_byte_rate=2000000.0")
    assert "Completed" in configs(group_stack, "--alter", *of_both, "--delete-config", "consumer_byte_rate")
    assert "Quota configs" not in configs(group_stack, "--describe", *of_both)


# --- The others ---


def test_log_directories_are_described_with_what_lies_in_them(group_stack: SharedCluster, topic: str) -> None:
    CLIENTS[0].produce(group_stack.bootstrap_servers, topic, [Message(b"x" * 1_000)])
    printed = run_tool(
        "LogDirsCommand",
        *("--bootstrap-server", group_stack.bootstrap_servers),
        *("--describe", "--topic-list", topic),
    )
    brokers = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))["brokers"]
    directories = [directory for broker in brokers for directory in broker["logDirs"]]
    assert {broker["broker"] for broker in brokers} == set(group_stack.brokers)
    assert all(Path(directory["logDir"]).is_dir() and directory["error"] is None for directory in directories)
    partitions = [partition for directory in directories for partition in directory["partitions"]]
    assert {one["partition"] for one in partitions} == {f"{topic}-{index}" for index in range(3)}
    assert sum(one["size"] for one in partitions) > 1_000
    assert {(one["offsetLag"], one["isFuture"]) for one in partitions} == {(0, False)}


def test_topics_are_described_with_their_eligible_leaders(group_stack: SharedCluster, topic: str) -> None:
    """Only DescribeTopicPartitions tells of these."""
    printed = run_tool(
        "TopicCommand", "--bootstrap-server", group_stack.bootstrap_servers, "--describe", "--topic", topic
    )
    lines = [re.split(r"\t", line.strip()) for line in printed.splitlines() if "Leader: " in line]
    assert [line[1] for line in lines] == [f"Partition: {index}" for index in range(3)]
    assert all(line[5] == "Elr: " or line[5] == "Elr:" for line in lines), printed
    assert re.search(rf"Topic: {topic}\tTopicId: \S{{22}}\tPartitionCount: 3", printed)


def test_trap_39_the_java_admin_gets_offsets_versions_endpoints_and_features(
    group_stack: SharedCluster, topic: str
) -> None:
    """KafScale/platform#36: Flink begins with the Java admin's question for offsets."""
    servers = ("--bootstrap-server", group_stack.bootstrap_servers)
    CLIENTS[0].produce(group_stack.bootstrap_servers, topic, [Message(b"x")] * 5)
    lines = run_tool("GetOffsetShell", *servers, "--topic", topic).splitlines()
    assert lines == [f"{topic}:0:5", f"{topic}:1:0", f"{topic}:2:0"]
    versions = run_tool("BrokerApiVersionsCommand", *servers)
    assert versions.count("-> (") == len(group_stack.brokers)
    assert "ERROR" not in versions
    cluster_id = run_tool("ClusterTool", "cluster-id", *servers).removeprefix("Cluster ID: ").strip()
    assert len(cluster_id) == 22
    endpoints = run_tool("ClusterTool", "list-endpoints", *servers).splitlines()
    assert [line.split()[0] for line in endpoints[1:]] == [str(number) for number in group_stack.brokers]
    described = run_tool("FeatureCommand", *servers, "describe")
    features = re.findall(r"Feature: (\S+)\s.*FinalizedVersionLevel: (\d+)", described)
    assert sorted(features) == [("group.version", "1"), ("transaction.version", "2")], described
