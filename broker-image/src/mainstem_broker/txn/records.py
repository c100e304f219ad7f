"""The records of `__transaction_state` in Kafka's own format: bytes to values and back.

    key    0   transactional id string
    value  0   producer id int64, epoch int16, timeout int32 ms, state int8, partitions: array of (topic
               string, indexes: array of int32), null in the state Empty; last update int64 ms, start int64 ms
           1   the same, flexible (KIP-482), with the tagged fields 0 previous producer id int64, 1 next
               producer id int64 (both -1 if left out) and 2 version of the client's protocol int16 (0)

Written are values of version 1, as Apache Kafka does from `transaction.version` 1 on. A null value
(tombstone) deletes the transactional id. Every key and value begins with an int16 version; what the primitive
types are: `coordinator/record_primitives.py`. `transaction.py` says what the fields mean.

Source: Apache Kafka's `TransactionLogKey.json` and `TransactionLogValue.json`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mainstem_broker.coordinator.record_primitives import (
    INT16,
    INT32,
    INT64,
    Reader,
    compact_array,
    compact_string,
    string,
    tagged_fields,
    varint,
)
from mainstem_broker.protocol.topic_partition import TopicPartition
from mainstem_broker.txn.states import State
from mainstem_broker.txn.transaction import NO_ID, Transaction

KEY_VERSION: Final = 0
VALUE_VERSION: Final = 1

_FLEXIBLE_FROM: Final = 1
_PREVIOUS_ID_TAG: Final = 0
_NEXT_ID_TAG: Final = 1
_CLIENT_VERSION_TAG: Final = 2
_NO_CONTENT: Final = tagged_fields()


def encode_key(transactional_id: str) -> bytes:
    return INT16.pack(KEY_VERSION) + string(transactional_id)


def decode_key(key: bytes) -> str | None:
    """The transactional id; None for kinds of records that newer programs write.

    Raises:
        ValueError: the bytes are not a key.
    """
    reader = Reader(key)
    return reader.string() if reader.int16() == KEY_VERSION else None


def encode_value(transaction: Transaction) -> bytes:
    tags = []
    if transaction.previous_producer_id != NO_ID:
        tags.append((_PREVIOUS_ID_TAG, INT64.pack(transaction.previous_producer_id)))
    if transaction.next_producer_id != NO_ID:
        tags.append((_NEXT_ID_TAG, INT64.pack(transaction.next_producer_id)))
    if transaction.client_version != 0:
        tags.append((_CLIENT_VERSION_TAG, INT16.pack(transaction.client_version)))
    return b"".join(
        (
            INT16.pack(VALUE_VERSION),
            INT64.pack(transaction.producer_id),
            INT16.pack(transaction.epoch),
            INT32.pack(transaction.timeout_ms),
            bytes((transaction.state,)),
            varint(0) if transaction.state is State.EMPTY else _encode_partitions(transaction.partitions),
            INT64.pack(transaction.updated_ms),
            INT64.pack(transaction.started_ms),
            tagged_fields(tags),
        )
    )


def _encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    by_topic: dict[str, list[bytes]] = {}
    for topic, index in sorted(partitions):
        by_topic.setdefault(topic, []).append(INT32.pack(index))
    return compact_array(
        [compact_string(topic) + compact_array(indexes) + _NO_CONTENT for topic, indexes in by_topic.items()]
    )


def decode_value(value: bytes) -> Transaction:
    """The transaction of a record.

    Raises:
        ValueError: the bytes are not such a value, or of an unknown version.
    """
    reader = Reader(value)
    reader.version(VALUE_VERSION, _FLEXIBLE_FROM)
    producer_id, epoch, timeout_ms = reader.int64(), reader.int16(), reader.int32()
    state = State(reader.int8())
    partitions = []
    for _ in range(reader.nullable_count() or 0):
        topic = reader.string()
        partitions += [(topic, reader.int32()) for _ in range(reader.count())]
        reader.tagged_fields()
    updated_ms, started_ms = reader.int64(), reader.int64()
    tags = reader.tagged_fields()
    return Transaction(
        producer_id=producer_id,
        epoch=epoch,
        timeout_ms=timeout_ms,
        state=state,
        partitions=frozenset(partitions),
        updated_ms=updated_ms,
        started_ms=started_ms,
        previous_producer_id=_integer(tags.get(_PREVIOUS_ID_TAG), NO_ID),
        next_producer_id=_integer(tags.get(_NEXT_ID_TAG), NO_ID),
        client_version=_integer(tags.get(_CLIENT_VERSION_TAG), 0),
    )


def _integer(content: bytes | None, default: int) -> int:
    return default if content is None else int.from_bytes(content, "big", signed=True)
