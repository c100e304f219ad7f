"""Finding offsets: earliest, latest, by time, by greatest time; and cutting the beginning (R4, R13)."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import NewTopic, OffsetSpec
from kio.schema.errors import ErrorCode
from tests.support.clusters import SharedCluster, StartCluster, partition_directory
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.support.stock_clients import CLIENTS
from tests.support.topics import TopicFactory, unique_name
from tests.support.waiting import wait_until
from tests.support.wire import Connection, fetch, list_offset, produce

LATEST: Final = -1
EARLIEST: Final = -2
T: Final = 1_700_000_000_000
NO_DELAY: Final = {"log.initial.task.delay.ms": "100"}  # Apache Kafka's first checkpoint is 30 s late
# Offsets 0..6 and their times; out of order, as times of several producers are.
TIMES: Final = (T + 10, T + 20, T + 15, T + 40, T + 30, T + 40, T + 35)


def test_with_log_append_time_the_broker_gives_the_times(new_topic: TopicFactory) -> None:
    """Trap T9: in the answer to the producer, in the batch, and for finding offsets."""
    topic = new_topic(config={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    with Connection(new_topic.leader_address(topic)) as leader:
        answer = produce(
            leader, topic, 0, encode_batch([Message(b"a", timestamp_ms=5), Message(b"b", timestamp_ms=6)])
        )
        match = list_offset(leader, topic, 0, before)
        nothing = list_offset(leader, topic, 0, int(time.time() * 1000) + 60_000)

    after = int(time.time() * 1000)
    given = int(answer.log_append_time.timestamp() * 1000)
    assert before <= given <= after
    assert (match.offset, match.timestamp) == (0, given)
    assert nothing.offset == -1
    for client in CLIENTS:
        read = client.consume(new_topic.cluster.bootstrap_servers, topic, 2)
        assert [message.timestamp_ms for message in read] == [given, given], client.name


def test_every_stock_client_finds_offsets(
    local_stack: SharedCluster, new_topic: TopicFactory, leader: Connection, topic: str
) -> None:
    for timestamp in TIMES:
        produce(leader, topic, 0, encode_batch([Message(b"x", timestamp_ms=timestamp)]))
    servers = local_stack.bootstrap_servers

    librdkafka = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": unique_name("unused")})
    try:
        assert librdkafka.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), 10) == (0, 7)
        request = [confluent_kafka.TopicPartition(topic, 0, T + 21)]
        assert librdkafka.offsets_for_times(request, 10)[0].offset == 3
    finally:
        librdkafka.close()
    whole = confluent_kafka.TopicPartition(topic, 0)
    match = new_topic.admin.list_offsets({whole: OffsetSpec.max_timestamp()})[whole].result(60)
    assert (match.offset, match.timestamp) == (3, T + 40)

    python = kafka.KafkaConsumer(bootstrap_servers=servers, group_id=None)
    try:
        partition = kafka.TopicPartition(topic, 0)
        assert python.beginning_offsets([partition]) == {partition: 0}
        assert python.end_offsets([partition]) == {partition: 7}
        assert python.offsets_for_times({partition: T + 21})[partition].offset == 3
        assert python.offsets_for_times({partition: T + 50})[partition] is None
    finally:
        python.close()


async def _ask_aiokafka(servers: str, topic: str) -> tuple[int, int, int]:
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=servers, group_id=None)
    await consumer.start()
    try:
        partition = aiokafka.TopicPartition(topic, 0)
        earliest = await consumer.beginning_offsets([partition])
        latest = await consumer.end_offsets([partition])
        by_time = await consumer.offsets_for_times({partition: T + 21})
        return earliest[partition], latest[partition], by_time[partition].offset
    finally:
        await consumer.stop()


def test_aiokafka_finds_offsets(local_stack: SharedCluster, leader: Connection, topic: str) -> None:
    for timestamp in TIMES:
        produce(leader, topic, 0, encode_batch([Message(b"x", timestamp_ms=timestamp)]))

    assert asyncio.run(_ask_aiokafka(local_stack.bootstrap_servers, topic)) == (0, 7, 3)


def _delete_records(leader: Connection, topic: str, offset: int, partition: int = 0) -> tuple[ErrorCode, int]:
    answer = leader.ask(
        "delete_records",
        2,
        topics=[{"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}],
        timeout=30_000,
    )
    result = answer.topics[0].partitions[0]
    return result.error_code, result.low_watermark


def test_deleting_up_to_inside_a_batch_hides_its_first_records(
    local_stack: SharedCluster, leader: Connection, topic: str
) -> None:
    messages = [Message(b"%d" % number) for number in range(10)]
    produce(leader, topic, 0, encode_batch(messages))

    assert _delete_records(leader, topic, 4) == (ErrorCode.none, 4)

    for client in CLIENTS:
        assert client.consume(local_stack.bootstrap_servers, topic, 6, 4) == messages[4:], client.name


def test_the_start_of_the_log_survives_a_kill(own_stack: StartCluster) -> None:
    cluster = own_stack(settings={"log.flush.start.offset.checkpoint.interval.ms": "200", **NO_DELAY})
    with TopicFactory(cluster) as new_topic:
        topic = new_topic()
        with Connection(cluster.brokers[1]) as leader:
            for _ in range(5):
                produce(leader, topic, 0, encode_batch([Message(b"x")]))
            _delete_records(leader, topic, 3)
        checkpoint = partition_directory(cluster, topic).parent / "log-start-offset-checkpoint"
        wait_until(
            lambda: checkpoint.exists() and f"{topic} 0 3" in checkpoint.read_text(),
            "the start offset is on disk",
        )
        cluster.kill_broker(1)
        cluster.start_broker(1)
        with Connection(cluster.brokers[1]) as leader:
            assert list_offset(leader, topic, 0, EARLIEST).offset == 3
            assert list_offset(leader, topic, 0, LATEST).offset == 5


def test_deleted_records_stay_deleted_when_the_leader_dies_after_the_answer(own_stack: StartCluster) -> None:
    """R4, R19: the answer comes when the follower has moved its start as well."""
    cluster = own_stack(brokers=2)
    with TopicFactory(cluster) as new_topic:
        topic = "replicated"
        created = new_topic.admin.create_topics([NewTopic(topic, 1, replica_assignment=[[1, 2]])])
        created[topic].result(60)
        with Connection(cluster.brokers[1]) as leader:
            for _ in range(5):
                produce(leader, topic, 0, encode_batch([Message(b"x")]), acks=-1)
            assert _delete_records(leader, topic, 3) == (ErrorCode.none, 3)
        cluster.kill_broker(1)
        with Connection(cluster.brokers[2]) as follower:
            wait_until(
                lambda: list_offset(follower, topic, 0, LATEST).error_code == ErrorCode.none,
                "the follower leads",
            )
            assert list_offset(follower, topic, 0, EARLIEST).offset == 3
            assert list_offset(follower, topic, 0, LATEST).offset == 5


MEGABYTE: Final = 1 << 20


@pytest.mark.parametrize(
    ("config", "timestamp_ms", "left_bytes_max"),
    [
        pytest.param({"retention.ms": "60000"}, T, MEGABYTE, id="by time"),
        pytest.param({"retention.bytes": str(2 * MEGABYTE)}, None, 3 * MEGABYTE, id="by size"),
    ],
)
def test_retention_deletes_whole_old_segments(
    own_stack: StartCluster, config: dict[str, str], timestamp_ms: int | None, left_bytes_max: int
) -> None:
    """R4: whatever was read or not. Segments are 1 MB, eight are written, and the new end stays readable."""
    cluster = own_stack(settings={"log.retention.check.interval.ms": "200", **NO_DELAY})
    with TopicFactory(cluster) as new_topic, Connection(cluster.brokers[1]) as leader:
        topic = new_topic(config={"segment.bytes": str(MEGABYTE), "file.delete.delay.ms": "0", **config})
        at = timestamp_ms or int(time.time() * 1000)
        for _ in range(80):
            answer = produce(leader, topic, 0, encode_batch([Message(b"x" * 100_000, timestamp_ms=at)]))
            assert answer.error_code == ErrorCode.none
        fresh = Message(b"fresh", timestamp_ms=int(time.time() * 1000))
        offset = produce(leader, topic, 0, encode_batch([fresh])).base_offset

        def log_bytes() -> int:
            return sum(path.stat().st_size for path in partition_directory(cluster, topic).glob("*.log"))

        wait_until(lambda: log_bytes() <= left_bytes_max + 100_200, "old segments are gone")

        earliest = list_offset(leader, topic, 0, EARLIEST).offset
        assert 0 < earliest <= offset
        assert fetch(leader, topic, 0, earliest - 1).error_code == ErrorCode.offset_out_of_range
        assert CLIENTS[0].consume(cluster.bootstrap_servers, topic, 1, offset) == [fresh]
