"""Files damaged behind the broker's back: indexes are built anew, a bad middle is found by clients (R6).

The damage is done while the broker is down. A bad tail: `tests/unit/broker/log/test_recovery.py`.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import aiokafka
import confluent_kafka
import kafka
import pytest
from aiokafka.errors import CorruptRecordException
from kafka.errors import KafkaError
from kio.schema.errors import ErrorCode
from tests.support.clusters import Cluster, RunCluster, StartCluster, partition_directory
from tests.support.log_checks import problems_in
from tests.support.messages import Message
from tests.support.record_batches import HEADER, batch_positions, encode_batch, read_headers
from tests.support.topics import TopicFactory
from tests.support.wire import Connection, fetch, list_offset, produce

BATCHES: Final = 20
PER_BATCH: Final = 5


def _message(offset: int) -> Message:
    return Message(b"value %d " % offset * 20, b"key %d" % offset, timestamp_ms=1_700_000_000_000 + offset)


def _fill(cluster: Cluster, new_topic: TopicFactory) -> str:
    topic = new_topic()
    with Connection(new_topic.leader_address(topic)) as leader:
        for base in range(0, BATCHES * PER_BATCH, PER_BATCH):
            batch = encode_batch([_message(offset) for offset in range(base, base + PER_BATCH)])
            assert produce(leader, topic, 0, batch).base_offset == base
    return topic


def _segment(cluster: Cluster, topic: str) -> Path:
    (segment,) = partition_directory(cluster, topic).glob("*.log")
    return segment


def _rewrite(segment: Path, data: bytes) -> None:
    # In place: the broker may have linked or preallocated the file.
    with segment.open("r+b") as file:
        file.write(data)
        file.truncate(len(data))


INDEX_DAMAGES: Final = {"empty": b"", "garbage": b"\x5a" * 96, "zeros": bytes(96), "missing": None}


def test_a_damaged_index_is_built_anew(own_stack: StartCluster, reference: bool) -> None:
    cluster = own_stack()
    with TopicFactory(cluster) as new_topic:
        topics = {
            new_topic(): (suffix, damage)
            for suffix in ("index", "timeindex")
            for damage in INDEX_DAMAGES.values()
        }
        with Connection(cluster.brokers[1]) as leader:
            for topic in topics:
                for number in range(50):  # of 1 KB each: an entry every few of them
                    message = Message(b"x" * 1_000, timestamp_ms=1_700_000_000_000 + number)
                    produce(leader, topic, 0, encode_batch([message]))
        cluster.kill_broker(1)
        for topic, (suffix, damage) in topics.items():
            (index,) = partition_directory(cluster, topic).glob(f"*.{suffix}")
            if damage is None:
                index.unlink()
            else:
                index.write_bytes(damage)
        cluster.start_broker(1)

        with Connection(cluster.brokers[1]) as leader:
            for topic, what in topics.items():
                for offset in (0, 17, 49):
                    (first, *_) = read_headers(fetch(leader, topic, 0, offset).records)
                    assert first.base_offset == offset, what
                    assert list_offset(leader, topic, 0, 1_700_000_000_000 + offset).offset == offset, what
                if not reference:
                    assert problems_in(partition_directory(cluster, topic)) == [], what


# A flipped byte in the middle


@pytest.fixture(scope="module")
def flipped(run_cluster: RunCluster) -> Iterator[tuple[Cluster, str]]:
    """A cluster and a topic whose ninth batch (offsets 40 to 44) has a flipped bit in a record.

    The broker was stopped cleanly in between, so it has no reason to read its old files again.
    """
    with run_cluster() as cluster:
        topic = _fill(cluster, TopicFactory(cluster))
        cluster.stop_broker(1)
        segment = _segment(cluster, topic)
        data = bytearray(segment.read_bytes())
        (position,) = (
            position for position, header in batch_positions(bytes(data)) if header.base_offset == 40
        )
        data[position + HEADER.size + 30] ^= 0x01
        _rewrite(segment, bytes(data))
        cluster.start_broker(1)
        yield cluster, topic


def test_a_flipped_byte_in_the_middle_costs_nothing_around_it(flipped: tuple[Cluster, str]) -> None:
    """The broker does not open what it serves; it cuts nothing that comes after, either."""
    cluster, topic = flipped
    with Connection(cluster.brokers[1]) as leader:
        assert list_offset(leader, topic, 0, -1).offset == BATCHES * PER_BATCH
        after = fetch(leader, topic, 0, 45)
        assert after.error_code == ErrorCode.none
        assert [header.base_offset for header in read_headers(after.records)] == list(
            range(45, 100, PER_BATCH)
        )


def test_a_flipped_byte_in_the_middle_is_never_shown_by_the_consume_command(
    flipped: tuple[Cluster, str],
) -> None:
    cluster, topic = flipped
    shown = subprocess.run(
        [
            str(Path(sys.executable).with_name("mainstem")),
            "consume",
            topic,
            *("--bootstrap-servers", cluster.bootstrap_servers),
            *("--from", "beginning", "--until-end", "--output", "json"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert shown.returncode == 1
    assert "offset 40" in shown.stderr
    offsets = [json.loads(line)["offset"] for line in shown.stdout.splitlines()]
    assert offsets == list(range(len(offsets)))
    assert len(offsets) <= 40


def _read_with_confluent(servers: str, topic: str) -> list[int]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    read: list[int] = []
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            for record in consumer.consume(100, 0.5):
                if record.error():
                    assert record.error().code() == confluent_kafka.KafkaError._BAD_MSG
                    return read
                read.append(record.offset())
    finally:
        consumer.close()
    raise AssertionError("confluent-kafka found nothing wrong")


def _read_with_kafka_python(servers: str, topic: str) -> list[int]:
    consumer: Any = kafka.KafkaConsumer(
        bootstrap_servers=servers, group_id=None, enable_auto_commit=False, check_crcs=True
    )
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    read: list[int] = []
    try:
        with pytest.raises(KafkaError, match=r"(?i)corrupt|crc"):
            for _ in range(20):
                for records in consumer.poll(timeout_ms=500, max_records=PER_BATCH).values():
                    read += [record.offset for record in records]
    finally:
        consumer.close()
    return read


def _read_with_aiokafka(servers: str, topic: str) -> list[int]:
    async def run() -> list[int]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=servers, group_id=None, enable_auto_commit=False, check_crcs=True
        )
        await consumer.start()
        read: list[int] = []
        try:
            partition = aiokafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, 0)
            with pytest.raises(CorruptRecordException):
                for _ in range(20):
                    for records in (await consumer.getmany(timeout_ms=500, max_records=PER_BATCH)).values():
                        read += [record.offset for record in records]
        finally:
            await consumer.stop()
        return read

    return asyncio.run(run())


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(_read_with_confluent, id="confluent-kafka"),
        pytest.param(_read_with_kafka_python, id="kafka-python"),
        pytest.param(_read_with_aiokafka, id="aiokafka"),
    ],
)
def test_a_flipped_byte_in_the_middle_is_found_by_a_clients_crc_check(
    flipped: tuple[Cluster, str], read: Callable[[str, str], list[int]]
) -> None:
    """All that comes before it arrives, nothing of the bad batch does."""
    cluster, topic = flipped

    offsets = read(cluster.bootstrap_servers, topic)

    assert offsets == list(range(len(offsets)))
    assert len(offsets) <= 40
