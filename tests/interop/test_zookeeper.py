"""What the cluster keeps in ZooKeeper, in Kafka's layout, and what deaths do to it (R18, R20).

Looked at with kazoo, as a `zookeeper-shell` user would. Layout: AK 3.9's ZkData.scala.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from confluent_kafka import KafkaError, KafkaException
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kio.schema.errors import ErrorCode
from tests.support.clusters import MainstemCluster, ReachableCluster, SharedCluster, StartCluster
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.support.stock_clients import CLIENTS
from tests.support.topics import TopicFactory
from tests.support.waiting import wait_until
from tests.support.wire import Connection, fetch, produce

SESSION_SECONDS: Final = 30.0  # far more than the brokers' session, and than a busy machine needs


@pytest.fixture(autouse=True)
def ours_only(reference: bool) -> None:
    if reference:
        pytest.skip("this Apache Kafka has no ZooKeeper")


def _connect(cluster: ReachableCluster) -> Any:
    assert isinstance(cluster, SharedCluster | MainstemCluster)
    client = KazooClient(f"127.0.0.1:{cluster.zookeeper_port}")
    client.start(20)
    return client


@pytest.fixture
def tree(local_stack: SharedCluster) -> Iterator[Any]:
    """A ZooKeeper client of `local_stack`."""
    client = _connect(local_stack)
    yield client
    client.stop()
    client.close()


def _read(tree: Any, path: str) -> Any:
    return json.loads(tree.get(path)[0])


def test_brokers_are_registered_under_ephemeral_nodes(local_stack: SharedCluster, tree: Any) -> None:
    assert {int(name) for name in tree.get_children("/brokers/ids")} == set(local_stack.brokers)
    for broker_id, address in local_stack.brokers.items():
        data, stat = tree.get(f"/brokers/ids/{broker_id}")
        registration = json.loads(data)
        assert stat.ephemeralOwner != 0
        assert f"{registration['host']}:{registration['port']}" == address
        assert registration["endpoints"] == [f"PLAINTEXT://{address}"]
        assert registration["listener_security_protocol_map"] == {"PLAINTEXT": "PLAINTEXT"}
        assert registration["version"] in (4, 5)
        assert int(registration["timestamp"]) > 1_600_000_000_000


def test_the_tree_is_created_whole(tree: Any) -> None:
    """Tools watch these before anything is in them."""
    for path in (
        "/brokers/ids",
        "/brokers/topics",
        "/config/topics",
        "/config/brokers",
        "/admin/delete_topics",
    ):
        assert tree.exists(path), path


# Deaths


def _metadata(cluster: ReachableCluster, broker_id: int, topic: str) -> Any:
    with Connection(cluster.brokers[broker_id]) as connection:
        return connection.ask(
            "metadata",
            9,
            topics=[{"name": topic}],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )


def _controller(tree: Any) -> int:
    result = tree.exists("/controller")
    try:
        return int(_read(tree, "/controller")["brokerid"]) if result else -1
    except NoNodeError:  # it went between the two questions
        return -1


def test_a_dead_controller_is_succeeded_and_its_brokers_partitions_wait_for_it(
    own_stack: StartCluster,
) -> None:
    """Trap T35: without a leader a partition says -1, with an error that clients wait on; others go on."""
    cluster = own_stack(brokers=3)
    tree = _connect(cluster)
    with TopicFactory(cluster) as new_topic:
        topic = new_topic(partitions=3)
        CLIENTS[0].produce(cluster.bootstrap_servers, topic, [Message(b"kept")])
        dead = _controller(tree)
        epoch = int(tree.get("/controller_epoch")[0])
        alive = next(broker_id for broker_id in cluster.brokers if broker_id != dead)

        cluster.kill_broker(dead)
        wait_until(lambda: _controller(tree) not in (-1, dead), "another is controller", SESSION_SECONDS)

        assert int(tree.get("/controller_epoch")[0]) == epoch + 1
        assert str(dead) not in tree.get_children("/brokers/ids")

        def orphans() -> list[Any]:
            partitions = _metadata(cluster, alive, topic).topics[0].partitions
            return [partition for partition in partitions if partition.leader_id == -1]

        (orphan,) = wait_until(orphans, "the dead broker's partition has no leader", SESSION_SECONDS)
        assert orphan.error_code == ErrorCode.leader_not_available
        assert list(orphan.replica_nodes) == [dead]
        assert dead not in {broker.node_id for broker in _metadata(cluster, alive, topic).brokers}
        # The living take new topics, on themselves. (With a new client: librdkafka 2.16 goes on knocking
        # at the controller it knows until it next refreshes its metadata.)
        with TopicFactory(cluster) as new_client:
            other = new_client(partitions=4)
            partitions = _metadata(cluster, alive, other).topics[0].partitions
        assert {partition.leader_id for partition in partitions} == set(cluster.brokers) - {dead}

        cluster.start_broker(dead)
        wait_until(
            lambda: all(p.leader_id != -1 for p in _metadata(cluster, alive, topic).topics[0].partitions),
            "all partitions are led again",
            SESSION_SECONDS,
        )
        assert CLIENTS[0].consume(cluster.bootstrap_servers, topic, 1) == [Message(b"kept")]
    tree.stop()
    tree.close()


def test_brokers_outlive_zookeepers_absence(own_stack: StartCluster) -> None:
    """Reading goes on without it; afterwards writing and creating do, and nothing has to be restarted."""
    cluster = own_stack(brokers=2)
    assert isinstance(cluster, MainstemCluster)
    pids = [cluster.broker_pid(broker_id) for broker_id in cluster.brokers]
    with TopicFactory(cluster) as new_topic:
        topic = new_topic()
        address = new_topic.leader_address(topic)
        with Connection(address) as leader:
            assert produce(leader, topic, 0, encode_batch([Message(b"before")])).base_offset == 0
            cluster.stop_zookeeper(kill=True)
            assert fetch(leader, topic, 0, 0).records
            cluster.start_zookeeper()

        def writes() -> bool:
            with Connection(address) as leader:
                answer = produce(leader, topic, 0, encode_batch([Message(b"after")]))
                return bool(answer.error_code == ErrorCode.none)

        def creates() -> bool:
            try:
                return bool(new_topic(partitions=2))
            except KafkaException as error:
                # By the broker that has no session yet: it says so, and the client may try again.
                assert error.args[0].code() == KafkaError.REQUEST_TIMED_OUT
                return False

        wait_until(writes, "writing goes on", SESSION_SECONDS)
        wait_until(creates, "creating goes on", SESSION_SECONDS)
        assert [cluster.broker_pid(broker_id) for broker_id in cluster.brokers] == pids
