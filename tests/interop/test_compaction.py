"""R5: compacted topics of real brokers that are killed, as stock clients write and read them."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path

import psutil
from confluent_kafka import KafkaError, Producer
from tests.support.clusters import Cluster, StartCluster, partition_directory
from tests.support.load import read_to_end
from tests.support.topics import TopicFactory
from tests.support.waiting import wait_until

from mainstem_broker.log.verification import verify_log

SETTINGS = {
    "log.cleaner.backoff.ms": "50",
    "log.flush.offset.checkpoint.interval.ms": "100",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.segment.bytes": "20000",
    "offsets.topic.replication.factor": "1",
}
TOPIC = {"cleanup.policy": "compact", "internal.segment.bytes": "100000", "min.cleanable.dirty.ratio": "0.1"}
KEYS = 500
CODECS = ["none", "lz4", "zstd"]


def test_r5_the_newest_value_of_each_key_outlives_compaction_and_kills(own_stack: StartCluster) -> None:
    cluster = own_stack(1, SETTINGS)
    chance = random.Random(20261123)
    newest: dict[str, str | None] = {}
    with TopicFactory(cluster) as new_topic:
        topic = new_topic(1, TOPIC)
        directory = partition_directory(cluster, topic)
        for number in range(len(CODECS)):
            codec = CODECS[number]
            produce(cluster, topic, chance, newest, codec)
            wait_until(partial(is_compacted_past, cluster, topic, 3_000 * number), "a part is compacted", 60)
            cluster.kill_broker(1)
            cluster.start_broker(1)
            assert read(cluster, topic) == {key: value for key, value in newest.items() if value is not None}
        assert sum(path.stat().st_size for path in directory.glob("*.log")) < 1_500_000, "of 4 MB"
        cluster.stop_broker(1)
        assert verify_log(directory).problems == []
        cluster.start_broker(1)
        assert read(cluster, topic) == {key: value for key, value in newest.items() if value is not None}


def test_the_compacting_process_ends_with_its_broker_however_that_ends(own_stack: StartCluster) -> None:
    cluster = own_stack(1, SETTINGS)
    with TopicFactory(cluster) as new_topic:
        topic = new_topic(1, TOPIC)
        produce(cluster, topic, random.Random(1), {}, "none")
        wait_until(lambda: first_dirty_offset(cluster, topic) > 0, "a part is compacted", 60)
        workers = psutil.Process(cluster.broker_pid(1)).children()
        assert len(workers) == 1
        cluster.kill_broker(1)
        assert psutil.wait_procs(workers, timeout=60)[1] == []
        cluster.start_broker(1)


def produce(
    cluster: Cluster, topic: str, chance: random.Random, newest: dict[str, str | None], codec: str
) -> None:
    """6,000 records to 500 keys, some of them tombstones."""
    failures: list[KafkaError] = []

    def note(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "compression.type": codec,
            "linger.ms": 1,
            "batch.size": 9000,
        }
    )
    for number in range(6_000):
        key = f"key-{chance.randrange(KEYS)}"
        newest[key] = None if chance.random() < 0.1 else json.dumps({"number": number, "pad": "x" * 150})
        producer.produce(topic, newest[key], key, on_delivery=note)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert failures == []


def read(cluster: Cluster, topic: str) -> dict[str, str]:
    """What a reader of the whole topic makes of it."""
    newest = {record.key(): record.value() for record in read_to_end(cluster.bootstrap_servers, topic)}
    return {key.decode(): value.decode() for key, value in newest.items() if value is not None}


def is_compacted_past(cluster: Cluster, topic: str, offset: int) -> bool:
    return first_dirty_offset(cluster, topic) > offset


def first_dirty_offset(cluster: Cluster, topic: str) -> int:
    """Of partition 0, as the broker has written it down."""
    path: Path = partition_directory(cluster, topic).parent / "cleaner-offset-checkpoint"
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[2]) for line in lines if line.startswith(f"{topic} 0 ")), 0)
