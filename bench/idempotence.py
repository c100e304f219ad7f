"""What idempotence costs the brokers: the same batches, with and without a producer's id and sequence (R11).

By a bare socket, because librdkafka itself keeps one request in flight instead of five when it is
idempotent (0.37 of its rate with three Apache Kafka brokers), and that would be all one sees. Both runs do
the same in this process: they number each batch and make its checksum anew.
"""

from __future__ import annotations

import datetime as dt
import struct
from typing import Any, Final

import crc32c
from confluent_kafka.admin import AdminClient
from kio.schema.init_producer_id.v1.request import InitProducerIdRequest
from kio.schema.init_producer_id.v1.response import InitProducerIdResponse
from kio.static.primitive import i32Timedelta

from bench.bare_socket import BareSocket
from bench.system import Cluster
from bench.workloads import ANSWER_SECONDS, BATCHES_16_KB, create_topic, delete_topic, produce

_NEVER: Final = i32Timedelta.parse(dt.timedelta(seconds=60))  # no transaction
_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = 17
_CRC_BEGINS_AT: Final = 21
_PRODUCER: Final = struct.Struct(">qhi")  # id, epoch, base sequence
_PRODUCER_AT: Final = 43


class NumberedBatch:
    """A batch of `count` records that is sent over and over, under another sequence number each time.

    A producer of id -1 is nobody, whose batches all have the sequence -1.
    """

    def __init__(self, batch: bytes, count: int, producer_id: int = -1, producer_epoch: int = -1) -> None:
        self._batch = bytearray(batch)
        self._producer = (producer_id, producer_epoch)
        self._step = count if producer_id >= 0 else 0
        self._sequence = 0 if producer_id >= 0 else -1

    def next(self) -> bytes:
        _PRODUCER.pack_into(self._batch, _PRODUCER_AT, *self._producer, self._sequence)
        _CRC.pack_into(self._batch, _CRC_AT, crc32c.crc32c(memoryview(self._batch)[_CRC_BEGINS_AT:]))
        self._sequence += self._step
        return bytes(self._batch)


def rates(
    cluster: Cluster, *, messages: int, message_bytes: int, replicas: int, idempotent_first: bool
) -> dict[bool, float]:
    """Messages per second, acks=all, batches of 16 KB, five in flight: with idempotence and without."""
    rate_by_idempotence: dict[bool, float] = {}
    for idempotent in (idempotent_first, not idempotent_first):
        topic = create_topic(cluster, replicas=replicas)
        produce(
            cluster, topic, messages=5_000, message_bytes=message_bytes, batching=BATCHES_16_KB, acks="all"
        )
        with BareSocket(cluster, _leader(cluster, topic)) as bare:
            batch, count = bare.largest_batch(topic)
            if idempotent:
                request = InitProducerIdRequest(transactional_id=None, transaction_timeout=_NEVER)
                given: Any = bare.ask(request, InitProducerIdResponse)
                numbered = NumberedBatch(batch, count, given.producer_id, given.producer_epoch)
            else:
                numbered = NumberedBatch(batch, count)
            taken = bare.produce_each(topic, numbered.next, messages, message_bytes, count, acks=-1)
        rate_by_idempotence[idempotent] = taken.messages_per_second
        delete_topic(cluster, topic)
    return rate_by_idempotence


def _leader(cluster: Cluster, topic: str) -> str:
    admin: Any = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    metadata = admin.list_topics(topic, timeout=ANSWER_SECONDS)
    broker = metadata.brokers[metadata.topics[topic].partitions[0].leader]
    return f"{broker.host}:{broker.port}"
