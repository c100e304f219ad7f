"""A log directory that Apache Kafka wrote is opened, recovered, served and compacted by our broker (R9).

Topics of the same names are created here first; then the files of their partitions take the place of ours,
as in a move of data from one system to the other. Topic ids stay ours.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from bench.apache_kafka import ApacheKafka
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.apache_kafka_files import take_over
from tests.support.clusters import Cluster, StartCluster, partition_directory
from tests.support.kafka_tools import tool_jars
from tests.support.load import read_to_end
from tests.support.waiting import wait_until

from mainstem_broker.log.verification import verify_log

OFFSETS_TOPIC: Final = "__consumer_offsets"
SETTINGS: Final = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "log.cleaner.backoff.ms": "50",
    "log.flush.offset.checkpoint.interval.ms": "100",
}
KAFKA_SETTINGS: Final = {
    **SETTINGS,
    "log.segment.bytes": "1048576",
    "log.cleaner.enable": "false",
    "log.index.interval.bytes": "1000",
}
TOPICS: Final = {
    "events": {},
    "latest": {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"},
}
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS: Final = 400
"""Of each codec in each topic."""


@dataclass(slots=True)
class Content:
    """What Apache Kafka's directory holds: committed values in order, the newest of each key, offsets."""

    directory: Path
    events: list[str] = field(default_factory=list)
    latest: dict[str, str] = field(default_factory=dict)
    committed_offset: int = 123


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Content]:
    """Apache Kafka's files after it was killed, with a transaction open."""
    kafka = ApacheKafka(tmp_path_factory.mktemp("kafka"), tool_jars(), KAFKA_SETTINGS)
    kafka.start()
    content = Content(kafka.log_directory)
    try:
        create_topics(kafka.bootstrap_servers)
        for number, codec in enumerate(CODECS):
            write(kafka.bootstrap_servers, content, codec, is_aborted=number % 2 == 1)
        commit_offset(kafka.bootstrap_servers, content.committed_offset)
        begin_transaction(kafka.bootstrap_servers)
    finally:
        kafka.kill()
    yield content


def create_topics(servers: str) -> None:
    admin: Any = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    topics = [NewTopic(name, 1, 1, config=config) for name, config in TOPICS.items()]
    for created in admin.create_topics(topics, operation_timeout=60).values():
        created.result(30)


def transactional(servers: str, transactional_id: str, codec: str = "none") -> Any:
    producer: Any = Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": transactional_id,
            "compression.type": codec,
            "linger.ms": 1,
            "log_level": 0,
        }
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    return producer


def write(servers: str, content: Content, codec: str, *, is_aborted: bool) -> None:
    """One transaction."""
    producer = transactional(servers, f"writer-{codec}", codec)
    chance = random.Random(codec)
    for number in range(RECORDS):
        # Digits by chance, so that segments fill in spite of compression.
        key, value = f"key-{number % 50}", f"{codec}-{number}-{chance.randbytes(750).hex()}"
        producer.produce("events", value, key)
        producer.produce("latest", value, key)
        if not is_aborted:
            content.events.append(value)
            content.latest[key] = value
    assert producer.flush(60) == 0
    if is_aborted:
        producer.abort_transaction(60)
    else:
        producer.commit_transaction(60)


def commit_offset(servers: str, offset: int) -> None:
    consumer: Any = Consumer({"bootstrap.servers": servers, "group.id": "readers", "log_level": 0})
    consumer.commit(offsets=[TopicPartition("events", 0, offset)], asynchronous=False)
    consumer.close()


def begin_transaction(servers: str) -> None:
    producer = transactional(servers, "left-open")
    producer.produce("events", "of an open transaction", "key")
    assert producer.flush(60) == 0


@pytest.fixture
def cluster(own_stack: StartCluster, written: Content) -> Cluster:
    """A broker of ours that has found Apache Kafka's files in its directories."""
    cluster = own_stack(1, SETTINGS)
    servers = cluster.bootstrap_servers
    create_topics(servers)
    commit_offset(servers, 1)  # creates the internal topic
    take_over(cluster, written.directory, (*TOPICS, OFFSETS_TOPIC))
    return cluster


def test_kafkas_files_are_verified_as_they_are(written: Content) -> None:
    for topic in (*TOPICS, OFFSETS_TOPIC):
        assert [str(problem) for problem in verify_log(written.directory / f"{topic}-0").problems] == []


def test_records_and_offsets_are_served_and_go_on(cluster: Cluster, written: Content) -> None:
    """Committed values only, and nothing past the transaction that is open."""
    servers = cluster.bootstrap_servers
    assert [value for _, value in read(servers, "events")] == written.events
    group: Any = Consumer({"bootstrap.servers": servers, "group.id": "readers", "log_level": 0})
    (partition,) = group.committed([TopicPartition("events", 0)], timeout=30)
    group.close()
    assert partition.offset == written.committed_offset
    producer: Any = Producer({"bootstrap.servers": servers, "log_level": 0})
    producer.produce("latest", "new", "key-new")
    assert producer.flush(30) == 0
    shown = dict(read(servers, "latest"))  # compaction may have begun
    assert shown == {**written.latest, "key-new": "new"}


def test_a_compacted_topic_is_compacted(cluster: Cluster, written: Content) -> None:
    directory = partition_directory(cluster, "latest")

    def first_segment_bytes() -> int:
        return min(directory.glob("*.log")).stat().st_size

    before = (written.directory / "latest-0" / f"{0:020d}.log").stat().st_size
    wait_until(lambda: first_segment_bytes() < before // 2, "the first segment is compacted", 60)
    assert dict(read(cluster.bootstrap_servers, "latest")) == written.latest
    cluster.stop_broker(1)
    assert [str(problem) for problem in verify_log(directory).problems] == []


def read(servers: str, topic: str) -> list[tuple[str, str]]:
    """Keys and committed values up to the end."""
    records = read_to_end(servers, topic, is_committed=True)
    return [(record.key().decode(), record.value().decode()) for record in records]
