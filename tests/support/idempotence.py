"""Producers with ids, batch by batch, and what partitions remember of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confluent_kafka.admin import NewTopic
from kio.schema.errors import ErrorCode
from tests.support.clusters import Cluster
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.support.topics import ANSWER_SECONDS, TopicFactory
from tests.support.wire import Connection


def sequence_batch(producer_id: int, sequence: int, count: int = 1, epoch: int = 0) -> bytes:
    return encode_batch(
        [Message(b"%d" % (sequence + number)) for number in range(count)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def remembered(connection: Connection, topic: str) -> Sequence[Any]:
    """What a replica of partition 0 remembers of producers."""
    answer = connection.ask("describe_producers", 0, topics=[{"name": topic, "partition_indexes": [0]}])
    (reported,) = answer.topics[0].partitions
    assert reported.error_code == ErrorCode.none
    producers: Sequence[Any] = reported.active_producers
    return producers


def replicated_topic(new_topic: TopicFactory, replicas: int) -> str:
    """A topic of one partition, two of whose replicas have to be in sync."""
    name = f"replicated-{replicas}"
    expected = NewTopic(name, 1, replicas, config={"min.insync.replicas": "2"})
    new_topic.admin.create_topics([expected], operation_timeout=ANSWER_SECONDS)[name].result(ANSWER_SECONDS)
    return name


def broker_at(cluster: Cluster, address: str) -> int:
    (result,) = (broker_id for broker_id, its_address in cluster.brokers.items() if its_address == address)
    return result
