"""Topics that brokers keep for themselves: clients read them, do not write them, and may delete them."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import confluent_kafka
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.support.clusters import Cluster, StartCluster
from tests.support.topics import ANSWER_SECONDS
from tests.support.waiting import wait_until

OFFSETS = "__consumer_offsets"


def commits(cluster: Cluster, group: str, offset: int) -> bool:
    """Whether a commit of this offset is taken and can be read back."""
    consumer: Any = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, "log_level": 0}
    )
    try:
        consumer.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
        (reported,) = consumer.committed([TopicPartition("t", 0)], timeout=ANSWER_SECONDS)
        return bool(reported.offset == offset)
    except KafkaException:
        return False
    finally:
        consumer.close()


def test_the_offsets_topic_takes_no_records_of_clients_and_may_be_deleted_and_comes_back(
    own_stack: StartCluster,
) -> None:
    """As in Apache Kafka: with it goes all that was committed."""
    cluster = own_stack()
    admin: Any = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    producer: Any = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    refused: list[str] = []

    def note(error: Any, _message: object) -> None:
        refused.append("none" if error is None else error.name())

    producer.produce("t", b"x", partition=0, on_delivery=note)
    assert producer.flush(ANSWER_SECONDS) == 0
    group = f"group-{uuid4().hex[:12]}"
    wait_until(lambda: commits(cluster, group, 5), "offsets are committed")
    producer.produce(OFFSETS, b"x", partition=0, on_delivery=note)
    assert producer.flush(ANSWER_SECONDS) == 0
    assert refused == ["none", "TOPIC_EXCEPTION"]
    admin.delete_topics([OFFSETS], operation_timeout=ANSWER_SECONDS)[OFFSETS].result(ANSWER_SECONDS)
    wait_until(lambda: commits(cluster, group, 7), "offsets are committed again")
