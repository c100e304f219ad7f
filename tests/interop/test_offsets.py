"""Finding offsets: earliest, latest, by time, by greatest time; and cutting the beginning (R4, R13)."""

from __future__ import annotations

import asyncio
from typing import Final

import aiokafka
import confluent_kafka
import kafka
from confluent_kafka.admin import OffsetSpec
from kio.schema.errors import ErrorCode
from tests.support.clusters import SharedCluster
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.support.stock_clients import CLIENTS
from tests.support.topics import TopicFactory, unique_name
from tests.support.wire import Connection, produce

LATEST: Final = -1
EARLIEST: Final = -2
T: Final = 1_700_000_000_000
# Offsets 0..6 and their times; out of order, as times of several producers are.
TIMES: Final = (T + 10, T + 20, T + 15, T + 40, T + 30, T + 40, T + 35)


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

    assert asyncio.run(_ask_aiokafka(servers, topic)) == (0, 7, 3)


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


def _delete_records(leader: Connection, topic: str, offset: int) -> tuple[ErrorCode, int]:
    answer = leader.ask(
        "delete_records",
        2,
        topics=[{"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}],
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
