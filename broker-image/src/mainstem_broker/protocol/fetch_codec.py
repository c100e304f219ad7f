"""Fetch 15 to 17, which have the same fields: read and written without a schema, on both sides.

Consumers and followers send the request; a follower also writes it and reads the response. As in
`produce_codec.py` this costs a third of what `schema_codec.py` costs, and records are not copied: in a
response that is written they may be a slice of a file, and in one that is read they are a view of its frame.

Layout: Kafka's FetchRequest.json and FetchResponse.json. Unknown tagged fields are skipped.
"""

from __future__ import annotations

import struct
from datetime import timedelta
from functools import lru_cache
from typing import Final, NamedTuple
from uuid import UUID

from mainstem_broker.protocol.compression import Buffer
from mainstem_broker.protocol.leader_hint_fields import encode_leader, encode_response_tags
from mainstem_broker.protocol.primitives import (
    REQUEST_ELEMENTS_MAX,
    duration_of,
    encode_compact_string,
    encode_tagged_fields,
    encode_tagged_int32_and_int64,
    encode_unsigned_varint,
    has_tagged_field,
    read_bytes,
    read_count,
    read_required_string,
    read_tagged_int32_and_int64,
    too_long,
    too_many_elements,
    walk_tagged_fields,
)
from mainstem_broker.protocol.wire import NULL_UUID, Body, Frame

VERSIONS: Final[tuple[int, ...]] = (15, 16, 17)
FIELDS_NOT_READ: Final = frozenset(("cluster_id", "replica_directory_id"))
"""Fields of the request that no handler reads, and that its entities do not have."""
FIELDS_NOT_WRITTEN: Final = frozenset(("snapshot_id",))
"""Fields of the response that this broker never fills."""

_INT32: Final = struct.Struct(">i")
_FETCH_LIMITS: Final = struct.Struct(">iiibii")
"""Longest wait, least bytes, most bytes, isolation level, session id, session epoch."""
_PARTITION_REQUEST: Final = struct.Struct(">iiqiqi")
"""As `FetchPartition`."""
_RESPONSE_HEAD: Final = struct.Struct(">ihi")
"""Throttle time, error code, session id."""
_PARTITION_RESPONSE: Final = struct.Struct(">ihqqq")
"""Partition, error code, high watermark, last stable offset, log start offset."""
_ABORTED: Final = struct.Struct(">qqb")
_NO_RECORDS: Final = memoryview(b"")
_NO_PREFERRED_REPLICA: Final = -1

_EPOCH_END: Final = struct.Struct(">iqb")
"""An epoch, its end at the leader, no tagged fields."""

_DIVERGING_EPOCH_TAG: Final = 0
_CURRENT_LEADER_TAG: Final = 1
_REPLICA_STATE_TAG: Final = 1
_GRANTS_TAG: Final = 10_000
"""A field of our own, far from the numbers of Kafka's fields; brokers that do not know it skip it."""


class FetchPartition(NamedTuple):
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int


class FetchTopic(NamedTuple):
    topic_id: UUID | None
    partitions: list[FetchPartition]


class ForgottenTopic(NamedTuple):
    topic_id: UUID | None
    partitions: tuple[int, ...]


class ReplicaState(NamedTuple):
    """The follower that sent the request, -1 for a consumer (KIP-903); `replica_epoch`: its broker epoch.

    `grants` says that the follower will not answer clients in the leader's place for a while
    (`replica/lease.py`).
    """

    replica_id: int = -1
    replica_epoch: int = -1
    grants: bool = False


class FetchRequest(NamedTuple):
    replica_state: ReplicaState
    max_wait: timedelta
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten_topics_data: list[ForgottenTopic]
    rack_id: str


def read_fetch_request(frame: memoryview, position: int) -> tuple[FetchRequest, int]:
    """The request, and the position after it.

    Raises:
        InvalidRequestBytes: a length or count does not fit, or there are too many elements.
        IndexError, struct.error, ValueError: the frame ends early, or a name is not UTF-8.
    """
    max_wait_ms, min_bytes, max_bytes, isolation, session_id, epoch = _FETCH_LIMITS.unpack_from(
        frame, position
    )
    topic_count, position = read_count(frame, position + _FETCH_LIMITS.size)
    elements = topic_count
    topics = []
    for _ in range(topic_count):
        topic_id, partition_count, position = _topic(frame, position)
        elements += partition_count
        if elements > REQUEST_ELEMENTS_MAX:
            raise too_many_elements(REQUEST_ELEMENTS_MAX)
        partitions = []
        for _ in range(partition_count):
            partitions.append(FetchPartition._make(_PARTITION_REQUEST.unpack_from(frame, position)))
            position = walk_tagged_fields(frame, position + _PARTITION_REQUEST.size)
        position = walk_tagged_fields(frame, position)
        topics.append(FetchTopic(topic_id, partitions))
    forgotten_count, position = read_count(frame, position)
    elements += forgotten_count
    forgotten = []
    for _ in range(forgotten_count):
        topic_id, index_count, position = _topic(frame, position)
        elements += index_count
        if elements > REQUEST_ELEMENTS_MAX:
            raise too_many_elements(REQUEST_ELEMENTS_MAX)
        end = position + 4 * index_count
        if end > len(frame):
            raise too_long()
        forgotten.append(
            ForgottenTopic(topic_id, tuple(index for (index,) in _INT32.iter_unpack(frame[position:end])))
        )
        position = walk_tagged_fields(frame, end)
    rack_id, position = read_required_string(frame, position)
    grants = has_tagged_field(frame, position, _GRANTS_TAG)
    replica, position = read_tagged_int32_and_int64(frame, position, _REPLICA_STATE_TAG)
    return (
        FetchRequest(
            ReplicaState() if replica is None else ReplicaState(replica[0], replica[1], grants),
            duration_of(max_wait_ms),
            min_bytes,
            max_bytes,
            isolation,
            session_id,
            epoch,
            topics,
            forgotten,
            rack_id,
        ),
        position,
    )


def _topic(frame: memoryview, position: int) -> tuple[UUID | None, int, int]:
    """(a topic's id, how many partitions of it follow, where)."""
    topic_id = _topic_id(bytes(frame[position : position + 16]))
    return topic_id, *read_count(frame, position + 16)


@lru_cache(maxsize=4096)
def _topic_id(raw: bytes) -> UUID | None:
    """Clients send the same few again and again, and making one takes a microsecond."""
    topic_id = UUID(bytes=raw)
    return None if topic_id == NULL_UUID else topic_id


def write_fetch_response(out: Frame, body: Body) -> None:
    """A Fetch response of version 13 to 17."""
    topics = body.get("responses", ())
    run = bytearray(_RESPONSE_HEAD.pack(body["throttle_time"], body["error_code"], body.get("session_id", 0)))
    run += encode_unsigned_varint(len(topics) + 1)
    for topic in topics:
        topic_id, partitions = topic.get("topic_id"), topic.get("partitions", ())
        run += (topic_id or NULL_UUID).bytes
        run += encode_unsigned_varint(len(partitions) + 1)
        for partition in partitions:
            records, aborted = partition.get("records"), partition.get("aborted_transactions")
            run += _PARTITION_RESPONSE.pack(
                partition["partition_index"],
                partition["error_code"],
                partition["high_watermark"],
                partition.get("last_stable_offset", -1),
                partition.get("log_start_offset", -1),
            )
            run += encode_unsigned_varint(0 if aborted is None else len(aborted) + 1)
            for transaction in aborted or ():
                run += _ABORTED.pack(transaction["producer_id"], transaction["first_offset"], 0)
            run += _INT32.pack(partition.get("preferred_read_replica", _NO_PREFERRED_REPLICA))
            if records is None:
                run += b"\0"
            elif isinstance(records, bytes):
                run += encode_unsigned_varint(len(records) + 1) + records
            else:
                run += encode_unsigned_varint(records.size_bytes + 1)
                out.append(bytes(run))
                out.append(records)
                run.clear()
            diverging, leader = partition.get("diverging_epoch"), partition.get("current_leader")
            if diverging is None and leader is None:
                run += b"\0"
            else:
                run += _partition_tags(diverging, leader)
        run += b"\0"
    run += encode_response_tags(body.get("node_endpoints", ()))
    out.append(bytes(run))


def _partition_tags(diverging: Body | None, leader: Body | None) -> bytes:
    fields = []
    if diverging is not None:
        epoch, end_offset = diverging.get("epoch", -1), diverging.get("end_offset", -1)
        fields.append((_DIVERGING_EPOCH_TAG, _EPOCH_END.pack(epoch, end_offset, 0)))
    if leader is not None:
        fields.append((_CURRENT_LEADER_TAG, encode_leader(leader)))
    return encode_tagged_fields(fields)


# --- The follower's side: the request that it writes, and the response that it reads ---


def write_fetch_request(out: Frame, body: Body) -> None:
    """A Fetch request of version 15 to 17, of a follower."""
    state = body["replica_state"]
    run = bytearray(
        _FETCH_LIMITS.pack(
            body["max_wait"],
            body["min_bytes"],
            body["max_bytes"],
            body["isolation_level"],
            body["session_id"],
            body["session_epoch"],
        )
    )
    topics, forgotten = body["topics"], body["forgotten_topics_data"]
    run += encode_unsigned_varint(len(topics) + 1)
    for topic in topics:
        partitions = topic["partitions"]
        run += topic["topic_id"].bytes + encode_unsigned_varint(len(partitions) + 1)
        for partition in partitions:
            run += _PARTITION_REQUEST.pack(
                partition["partition"],
                partition["current_leader_epoch"],
                partition["fetch_offset"],
                partition["last_fetched_epoch"],
                partition["log_start_offset"],
                partition["partition_max_bytes"],
            )
            run += b"\0"
        run += b"\0"
    run += encode_unsigned_varint(len(forgotten) + 1)
    for topic in forgotten:
        indexes = topic["partitions"]
        run += topic["topic_id"].bytes + encode_unsigned_varint(len(indexes) + 1)
        run += b"".join(map(_INT32.pack, indexes)) + b"\0"
    run += encode_compact_string(body["rack_id"])
    tags = encode_tagged_int32_and_int64(_REPLICA_STATE_TAG, state["replica_id"], state["replica_epoch"])
    if state.get("grants", False):
        tags = b"\2" + tags[1:] + encode_unsigned_varint(_GRANTS_TAG) + b"\0"  # two fields, the second empty
    run += tags
    out.append(bytes(run))


class FetchedPartition(NamedTuple):
    partition_index: int
    error_code: int
    high_watermark: int
    log_start_offset: int
    diverging: tuple[int, int] | None
    """The epoch and its end at the leader."""
    records: Buffer


class FetchedTopic(NamedTuple):
    topic_id: UUID | None
    partitions: list[FetchedPartition]


class FetchResponse(NamedTuple):
    error_code: int
    session_id: int
    responses: list[FetchedTopic]


def read_fetch_response(frame: memoryview, position: int) -> tuple[FetchResponse, int]:
    """A Fetch response of version 13 to 17, as far as followers read it; records are a view of `frame`.

    Raises as `read_fetch_request`.
    """
    _, error_code, session_id = _RESPONSE_HEAD.unpack_from(frame, position)
    topic_count, position = read_count(frame, position + _RESPONSE_HEAD.size)
    topics = []
    for _ in range(topic_count):
        topic_id, partition_count, position = _topic(frame, position)
        partitions = []
        for _ in range(partition_count):
            index, code, high_watermark, _, log_start = _PARTITION_RESPONSE.unpack_from(frame, position)
            aborted_count, position = read_count(frame, position + _PARTITION_RESPONSE.size)
            for _ in range(aborted_count):
                position = walk_tagged_fields(frame, position + 16)
            records, position = read_bytes(frame, position + 4)  # after the preferred replica
            diverging, position = read_tagged_int32_and_int64(frame, position, _DIVERGING_EPOCH_TAG)
            records = records or _NO_RECORDS
            partitions.append(FetchedPartition(index, code, high_watermark, log_start, diverging, records))
        position = walk_tagged_fields(frame, position)
        topics.append(FetchedTopic(topic_id, partitions))
    return FetchResponse(error_code, session_id, topics), walk_tagged_fields(frame, position)
