"""Moving replicas over real brokers, by requests as they are on the wire (R20)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartition
from tests.support.clusters import Cluster, RunCluster
from tests.support.load import read_all
from tests.support.moved import ANSWER_SECONDS, Replicas
from tests.support.waiting import wait_until

RECORD: Final = b"r" * 1_000


@pytest.fixture(scope="module")
def cluster(run_cluster: RunCluster, reference: bool) -> Iterator[Cluster]:
    """Four brokers that do not move leaders by themselves."""
    if reference:
        pytest.skip("Apache Kafka is one broker here")
    with run_cluster(4, {"auto.leader.rebalance.enable": "false"}) as running:
        yield running


@pytest.fixture
def replicas(cluster: Cluster) -> Replicas:
    return Replicas(cluster)


@pytest.fixture
def topic(replicas: Replicas) -> Iterator[str]:
    name = f"moved-{uuid4().hex[:8]}"
    yield name
    replicas.delete(name)


def fill(cluster: Cluster, topic: str, records: int, partition: int = 0) -> None:
    producer: Any = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "log_level": 0})
    for _ in range(records):
        producer.produce(topic, RECORD, partition=partition)
    assert producer.flush(ANSWER_SECONDS) == 0


def configure(replicas: Replicas, kind: Any, name: str, **settings: str | None) -> None:
    entries = [
        ConfigEntry(
            key.replace("_", "."),
            value,
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for key, value in settings.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    replicas.admin.incremental_alter_configs([resource])[resource].result(ANSWER_SECONDS)


# --- Moves ---


def test_replicas_move_with_records_lead_and_files(cluster: Cluster, replicas: Replicas, topic: str) -> None:
    replicas.create(topic, [1, 2], [2, 3])
    fill(cluster, topic, 500)
    assert replicas.wish(topic, {0: [4, 3], 1: [2, 3, 4]}) == {0: "none", 1: "none"}
    replicas.wait_moved(topic, 0, [4, 3])
    replicas.wait_moved(topic, 1, [2, 3, 4])
    assert replicas.leader(topic, 0) == 4
    assert replicas.leader(topic, 1) == 2, "a leader that stays goes on leading"
    assert len(read_all(cluster.bootstrap_servers, topic, 0)) == 500
    replicas.wait_held(topic, 0, {3, 4})
    replicas.wish(topic, {0: [3], 1: [4, 2]})
    replicas.wait_moved(topic, 0, [3])
    replicas.wait_moved(topic, 1, [4, 2])
    assert len(read_all(cluster.bootstrap_servers, topic, 0)) == 500
    fill(cluster, topic, 1)


def test_a_topic_grows_by_its_own_number_of_replicas_while_it_is_moved(
    replicas: Replicas, topic: str
) -> None:
    replicas.create(topic, [1, 2])
    hold_back(replicas, topic)
    fill(replicas.cluster, topic, 200)
    replicas.wish(topic, {0: [3, 4]})
    assert replicas.listed()[topic, 0] == ([3, 4, 1, 2], [3, 4], [1, 2])
    answer = replicas.ask(
        "create_partitions", 2, validate_only=False, topics=[{"name": topic, "count": 2, "assignments": None}]
    )
    assert answer.results[0].error_code.name == "none"
    assert len(replicas.replicas(topic, 1)) == 2
    let_go(replicas, topic)
    replicas.wait_moved(topic, 0, [3, 4])


def hold_back(replicas: Replicas, topic: str, bytes_per_second: int = 1) -> None:
    """Throttle all moves of the topic to next to nothing."""
    configure(replicas, ConfigResource.Type.TOPIC, topic, follower_replication_throttled_replicas="*")
    for broker_id in replicas.cluster.brokers:
        rate = {"follower_replication_throttled_rate": str(bytes_per_second)}
        configure(replicas, ConfigResource.Type.BROKER, str(broker_id), **rate)
    fill(replicas.cluster, topic, 2)  # what the first second allows; the next fetch is held back


def let_go(replicas: Replicas, topic: str) -> None:
    for broker_id in replicas.cluster.brokers:
        name = str(broker_id)
        configure(replicas, ConfigResource.Type.BROKER, name, follower_replication_throttled_rate=None)
    configure(replicas, ConfigResource.Type.TOPIC, topic, follower_replication_throttled_replicas=None)


def test_a_move_that_is_taken_back_leaves_everything_as_it_was(
    cluster: Cluster, replicas: Replicas, topic: str
) -> None:
    replicas.create(topic, [1, 2])
    fill(cluster, topic, 3_000)
    hold_back(replicas, topic)
    assert replicas.wish(topic, {0: [3, 4]}) == {0: "none"}
    assert replicas.listed()[topic, 0] == ([3, 4, 1, 2], [3, 4], [1, 2])
    assert replicas.wish(topic, {0: None}) == {0: "none"}
    wait_until(lambda: not replicas.listed(), "no move is under way")
    assert set(replicas.replicas(topic)) == {1, 2}
    assert replicas.leader(topic) == 1
    replicas.wait_held(topic, 0, {1, 2})
    assert replicas.wish(topic, {0: None}) == {0: "no_reassignment_in_progress"}
    let_go(replicas, topic)
    assert len(read_all(cluster.bootstrap_servers, topic, 0)) == 3_002


# --- Bad input ---


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ([], "invalid_replica_assignment"),
        ([1, 1], "invalid_replica_assignment"),
        ([1, 9], "invalid_replica_assignment"),
        ([-1], "invalid_replica_assignment"),
        ([1, 2, 3, 4, 5], "invalid_replica_assignment"),
        (None, "no_reassignment_in_progress"),
    ],
    ids=["none", "twice", "unknown", "negative", "more-than-brokers", "cancel"],
)
def test_a_target_that_makes_no_sense_is_refused_and_others_of_the_request_are_not(
    replicas: Replicas, topic: str, target: list[int] | None, error: str
) -> None:
    replicas.create(topic, [1, 2], [1, 2])
    assert replicas.wish(topic, {0: target, 1: [2, 1], 7: [1]}) == {
        0: error,
        1: "none",
        7: "unknown_topic_or_partition",
    }
    assert (replicas.replicas(topic, 0), replicas.replicas(topic, 1)) == ([1, 2], [2, 1])
    assert not replicas.listed()


def test_the_number_of_replicas_changes_only_if_the_request_allows_it(replicas: Replicas, topic: str) -> None:
    """KIP-860."""
    replicas.create(topic, [1, 2])
    expected = [{"name": topic, "partitions": [{"partition_index": 0, "replicas": [1, 2, 3]}]}]
    answer = replicas.ask(
        "alter_partition_reassignments", 1, allow_replication_factor_change=False, topics=expected
    )
    assert not answer.allow_replication_factor_change
    assert answer.responses[0].partitions[0].error_code.name == "invalid_replication_factor"
    assert replicas.replicas(topic) == [1, 2]


# --- Elections ---


def test_preferred_leaders_are_elected_on_request(replicas: Replicas, topic: str) -> None:
    replicas.create(topic, [1, 2], [2, 1])
    replicas.wish(topic, {0: [2, 1]})
    assert replicas.elect(0, {topic: [0, 1, 5], "nowhere": [0]}) == {
        (topic, 0): "none",
        (topic, 1): "election_not_needed",
        (topic, 5): "unknown_topic_or_partition",
        ("nowhere", 0): "unknown_topic_or_partition",
    }
    assert replicas.leader(topic, 0) == 2
    replicas.wish(topic, {1: [1, 2]})
    assert replicas.elect(0, None) == {(topic, 1): "none"}, "the answer has only partitions that need one"
    assert replicas.elect(0, None) == {}


def test_an_unclean_election_is_not_held_over_a_leader(replicas: Replicas, topic: str) -> None:
    replicas.create(topic, [1, 2])
    assert replicas.elect(1, {topic: [0]}) == {(topic, 0): "election_not_needed"}
    assert replicas.elect(1, None) == {}


def test_an_election_of_an_unknown_kind_is_refused(replicas: Replicas) -> None:
    assert replicas.ask("elect_leaders", 2, election_type=7, topic_partitions=None).error_code.name == (
        "invalid_request"
    )


# --- Stock clients ---


def test_kafka_python_moves_replicas_and_elects_leaders(
    cluster: Cluster, replicas: Replicas, topic: str
) -> None:
    replicas.create(topic, [1, 2])
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers.split(","))
    try:
        client.alter_partition_reassignments({TopicPartition(topic, 0): [3, 1]})
        replicas.wait_moved(topic, 0, [3, 1])
        assert client.list_partition_reassignments() == {}
        assert replicas.leader(topic) == 1
        client.elect_leaders(0, {topic: [0]})
        wait_until(lambda: replicas.leader(topic) == 3, "the preferred leader leads")
    finally:
        client.close()


def test_limits_are_lifted_the_way_the_stock_tool_does_it(replicas: Replicas) -> None:
    """kafka-reassign-partitions takes back a setting that has no meaning here, together with the others."""
    names = ("leader.replication.throttled.rate", "replica.alter.log.dirs.io.max.bytes.per.second")
    gone = {name.replace(".", "_"): None for name in names}
    configure(replicas, ConfigResource.Type.BROKER, "1", **gone)
