"""Reads partitions without a group: forever, or up to the ends that they have now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from confluent_kafka import Consumer, Message
from confluent_kafka import TopicPartition as Position

from mainstem.errors import ClusterRefused
from mainstem.kafka.client import PARTITION_EOF, Cluster, sentence_of
from mainstem.kafka.reassignment_plan import TopicPartition

# Few enough that the memory of one batch is reused for the next: ten thousand cost twice the time.
_RECORDS_PER_CALL: Final = 500
_WAIT_SECONDS: Final = 0.1


def read_forever(
    cluster: Cluster, starts: Mapping[TopicPartition, int], on_trouble: Callable[[str], None]
) -> Iterator[list[Message]]:
    """The records from the offsets `starts` on; an empty list from time to time while none arrive.

    Raises:
        ClusterRefused: reading a partition failed; the records before the failure were yielded.
    """
    consumer = _assigned(cluster, starts, {"enable.partition.eof": False}, on_trouble)
    while True:
        records: list[Message] = []
        try:
            messages = consumer.consume(_RECORDS_PER_CALL, _WAIT_SECONDS)
            records.extend(message for message in messages if _is_record(message))
        except ClusterRefused:
            yield records  # the records before a damaged batch are good
            raise
        yield records


def read_until(
    cluster: Cluster,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    on_trouble: Callable[[str], None],
) -> Iterator[list[Message]]:
    """The records from the offsets `starts` up to, not including, `ends`.

    A partition is finished when its last offset was read or its end was reported: the last offset may hold
    no record (compaction, transaction markers).

    Raises:
        ClusterRefused: reading a partition failed; the records before the failure were yielded.
    """
    open_starts = {key: offset for key, offset in starts.items() if offset < ends[key]}
    consumer = _assigned(cluster, open_starts, {"enable.partition.eof": True}, on_trouble)
    open_partitions = set(open_starts)
    while open_partitions:
        records: list[Message] = []
        for message in consumer.consume(_RECORDS_PER_CALL, _WAIT_SECONDS):
            key = (message.topic(), message.partition())
            if key not in open_partitions:
                continue
            try:
                is_record = _is_record(message)
            except ClusterRefused:
                yield records  # the records before a damaged batch are good
                raise
            if is_record and message.offset() < ends[key]:
                records.append(message)
            if not is_record or message.offset() >= ends[key] - 1:
                open_partitions.discard(key)
                consumer.incremental_unassign([Position(*key)])
        yield records


def _assigned(
    cluster: Cluster,
    starts: Mapping[TopicPartition, int],
    settings: Mapping[str, object],
    on_trouble: Callable[[str], None],
) -> Consumer:
    consumer = cluster.consumer(settings, on_trouble)
    consumer.assign([Position(topic, number, offset) for (topic, number), offset in starts.items()])
    return consumer


def _is_record(message: Message) -> bool:
    """Whether the message is a record and not the report that a partition's end is reached.

    Raises:
        ClusterRefused: it reports an error.
    """
    error = message.error()
    if error is None:
        return True
    if error.code() == PARTITION_EOF:
        return False
    raise ClusterRefused(
        f"Reading partition {message.partition()} at offset {message.offset():,} failed: {sentence_of(error)}"
    )
