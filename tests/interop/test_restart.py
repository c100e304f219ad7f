"""A broker that starts is either not there yet or wholly there (R18)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode
from tests.support.clusters import StartCluster
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.support.topics import TopicFactory
from tests.support.wire import Connection, list_offset, produce

RESTARTS = 3


def test_a_starting_broker_never_shows_a_cluster_without_itself(own_stack: StartCluster) -> None:
    """librdkafka takes an answer without brokers for an accident, and does not ask again for long."""
    cluster = own_stack()
    shown: list[tuple[tuple[int, ...], int]] = []
    for _ in range(RESTARTS):
        cluster.stop_broker(1)
        with ThreadPoolExecutor(1) as pool:
            starting = pool.submit(cluster.start_broker, 1)
            while not starting.done():
                try:
                    with Connection(cluster.brokers[1], timeout_seconds=5) as connection:
                        answer = connection.ask(
                            "metadata",
                            9,
                            topics=[],
                            allow_auto_topic_creation=False,
                            include_cluster_authorized_operations=False,
                            include_topic_authorized_operations=False,
                        )
                except OSError:
                    continue  # not there yet
                shown.append((tuple(broker.node_id for broker in answer.brokers), answer.controller_id))
            starting.result()

    assert shown
    assert set(shown) == {((1,), 1)}


def test_the_first_acknowledgement_after_a_restart_is_followed_by_a_working_admin_client(
    own_stack: StartCluster,
) -> None:
    cluster = own_stack()
    with TopicFactory(cluster) as new_topic:
        topic = new_topic()
        for _ in range(RESTARTS):
            cluster.stop_broker(1)
            with ThreadPoolExecutor(1) as pool:
                starting = pool.submit(cluster.start_broker, 1)
                while not _takes_a_batch(cluster.brokers[1], topic):
                    assert not starting.done() or starting.exception() is None
                admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
                assert topic in admin.list_topics(timeout=60).topics
                assert admin.describe_cluster(request_timeout=60).result(60).controller.id == 1
                starting.result()

        with Connection(cluster.brokers[1]) as leader:
            assert list_offset(leader, topic, 0, -1).offset == RESTARTS


def _takes_a_batch(address: str, topic: str) -> bool:
    try:
        with Connection(address, timeout_seconds=5) as connection:
            answer = produce(connection, topic, 0, encode_batch([Message(b"x")]))
    except OSError:
        return False
    return bool(answer.error_code == ErrorCode.none)
