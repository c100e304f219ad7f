"""Produce and Fetch of today's clients and brokers, read and written by hand.

What `codec.py` does by schema for every API and version, this does in straight lines for the messages on
which the cost of a batch depends: Produce 9 to 11 and Fetch 15 to 17, which have the same fields each. It
costs a third, and records are not copied: those of a request are a view of its frame, which dies with the
handler's call. Entities have the names of kio's fields, bodies are those of `codec.py`, and tests hold the
two ways against each other.

Layout: Kafka's ProduceRequest.json, FetchRequest.json and their responses; compact lengths and tagged fields:
KIP-482. Unknown tagged fields are skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Final, NamedTuple
from uuid import UUID

from mainstem_broker.errors import InvalidRequestBytes
from mainstem_broker.protocol.bounds import read_unsigned_varint, too_long, walk_tagged_fields
from mainstem_broker.protocol.compression import Buffer
from mainstem_broker.protocol.wire import (
    FETCH_KEY,
    NULL_UUID,
    PRODUCE_KEY,
    Body,
    Frame,
    Read,
    Write,
    encode_compact_string,
    encode_unsigned_varint,
)

_INT32: Final = struct.Struct(">i")
_ACKS_AND_TIMEOUT: Final = struct.Struct(">hi")
_PRODUCED: Final = struct.Struct(">ihqqq")
"""Index, error code, base offset, time of append, log start offset."""
_FETCH_LIMITS: Final = struct.Struct(">iiibii")
"""Longest wait, least bytes, most bytes, isolation level, session id, session epoch."""
_ASKED: Final = struct.Struct(">iiqiqi")
"""As `FetchPartition`."""
_PAIR: Final = struct.Struct(">iq")
"""A replica's id and life, or an epoch and its end."""
_FETCHED_HEAD: Final = struct.Struct(">ihi")
"""Throttle time, error code, session id."""
_FETCHED: Final = struct.Struct(">ihqqq")
"""Partition, error code, high watermark, last stable offset, log start offset."""
_ABORTED: Final = struct.Struct(">qqb")
_TAGGED: Final = struct.Struct(">bbbiqb")
"""One tagged field: their count, its number, its size, its int32 and int64, no tagged fields of its own."""
_TAGGED_BYTES: Final = 13
_NO_RECORDS: Final = memoryview(b"")
_NO_PREFERRED_REPLICA: Final = _INT32.pack(-1)

_DIVERGING_TAG: Final = 0
_REPLICA_STATE_TAG: Final = 1

UNREAD: Final = frozenset(("cluster_id", "replica_directory_id"))
"""Fields of the requests that no handler asks for, and that their entities lack."""
LEFT_OUT: Final = frozenset(("preferred_read_replica", "current_leader", "snapshot_id", "node_endpoints"))
"""Fields of the responses that this broker never gives, and that are not written."""


@dataclass(slots=True)
class ProduceData:
    index: int
    records: memoryview | None


class ProduceTopic(NamedTuple):
    name: str
    partition_data: list[ProduceData]


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout: timedelta
    topic_data: list[ProduceTopic]


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
    """Who asks, if it is a broker (KIP-903)."""

    replica_id: int = -1
    replica_epoch: int = -1


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


# --- Requests ---


def read_produce(frame: memoryview, position: int) -> tuple[ProduceRequest, int]:
    """The request, and the position after it.

    Raises:
        InvalidRequestBytes: a length or count does not fit.
        IndexError, struct.error, ValueError: the frame ends early, or a name is no UTF-8.
    """
    transactional_id, position = _string(frame, position)
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(frame, position)
    topic_count, position = _count(frame, position + _ACKS_AND_TIMEOUT.size)
    topics = []
    for _ in range(topic_count):
        name, position = _text(frame, position)
        data_count, position = _count(frame, position)
        data = []
        for _ in range(data_count):
            (index,) = _INT32.unpack_from(frame, position)
            records, position = _bytes(frame, position + 4)
            position = walk_tagged_fields(frame, position)
            data.append(ProduceData(index, records))
        position = walk_tagged_fields(frame, position)
        topics.append(ProduceTopic(name, data))
    request = ProduceRequest(transactional_id, acks, _duration(timeout_ms), topics)
    return request, walk_tagged_fields(frame, position)


def read_fetch(frame: memoryview, position: int) -> tuple[FetchRequest, int]:
    """As `read_produce`."""
    max_wait_ms, min_bytes, max_bytes, isolation, session_id, epoch = _FETCH_LIMITS.unpack_from(
        frame, position
    )
    topic_count, position = _count(frame, position + _FETCH_LIMITS.size)
    topics = []
    for _ in range(topic_count):
        topic_id, partition_count, position = _topic(frame, position)
        partitions = []
        for _ in range(partition_count):
            partitions.append(FetchPartition._make(_ASKED.unpack_from(frame, position)))
            position = walk_tagged_fields(frame, position + _ASKED.size)
        position = walk_tagged_fields(frame, position)
        topics.append(FetchTopic(topic_id, partitions))
    forgotten_count, position = _count(frame, position)
    forgotten = []
    for _ in range(forgotten_count):
        topic_id, index_count, position = _topic(frame, position)
        end = position + 4 * index_count
        if end > len(frame):
            raise too_long()
        forgotten.append(
            ForgottenTopic(topic_id, tuple(index for (index,) in _INT32.iter_unpack(frame[position:end])))
        )
        position = walk_tagged_fields(frame, end)
    rack_id, position = _text(frame, position)
    replica, position = _tagged_pair(frame, position, _REPLICA_STATE_TAG)
    return (
        FetchRequest(
            ReplicaState() if replica is None else ReplicaState._make(replica),
            _duration(max_wait_ms),
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


def _tagged_pair(frame: memoryview, position: int, wanted: int) -> tuple[tuple[int, int] | None, int]:
    """(the int32 and int64 of the tagged field `wanted`, if it is there, the position after all of them)."""
    pair: tuple[int, int] | None = None
    count, position = read_unsigned_varint(frame, position)
    for _ in range(count):
        tag, position = read_unsigned_varint(frame, position)
        size, position = read_unsigned_varint(frame, position)
        if tag == wanted:
            if size < _PAIR.size:
                raise too_long()
            pair = _PAIR.unpack_from(frame, position)
        position += size
        if position > len(frame):
            raise too_long()
    return pair, position


def _topic(frame: memoryview, position: int) -> tuple[UUID | None, int, int]:
    """(a topic's id, how many partitions of it follow, where)."""
    topic_id = _topic_id(bytes(frame[position : position + 16]))
    return topic_id, *_count(frame, position + 16)


def _count(frame: memoryview, position: int) -> tuple[int, int]:
    """(length of a compact array, the position after it). Null counts as empty."""
    byte = frame[position]
    if byte < 0x80:
        return byte - 1 if byte else 0, position + 1
    value, position = read_unsigned_varint(frame, position)
    return max(value - 1, 0), position


def _bytes(frame: memoryview, position: int) -> tuple[memoryview | None, int]:
    """(a view of compact bytes, the position after them)."""
    size, position = read_unsigned_varint(frame, position)
    if size == 0:
        return None, position
    end = position + size - 1
    if end > len(frame):
        raise too_long()
    return frame[position:end], end


def _string(frame: memoryview, position: int) -> tuple[str | None, int]:
    encoded, position = _bytes(frame, position)
    return None if encoded is None else str(encoded, "utf-8"), position


def _text(frame: memoryview, position: int) -> tuple[str, int]:
    text, position = _string(frame, position)
    if text is None:
        raise InvalidRequestBytes("A text that a request must have is null.")
    return text, position


@lru_cache(maxsize=4096)
def _topic_id(raw: bytes) -> UUID | None:
    """The same few again and again; making one takes a microsecond."""
    topic_id = UUID(bytes=raw)
    return None if topic_id == NULL_UUID else topic_id


@lru_cache(maxsize=256)
def _duration(duration_ms: int) -> timedelta:
    return timedelta(milliseconds=duration_ms)


# --- Responses ---


def write_produced(out: Frame, body: Body) -> None:
    """A Produce response of version 9, 10 or 11."""
    topics = body.get("responses", ())
    run = bytearray(encode_unsigned_varint(len(topics) + 1))
    for topic in topics:
        partitions = topic.get("partition_responses", ())
        run += encode_compact_string(topic["name"]) + encode_unsigned_varint(len(partitions) + 1)
        for answer in partitions:
            run += _PRODUCED.pack(
                answer["index"],
                answer["error_code"],
                answer["base_offset"],
                answer.get("log_append_time", -1),
                answer.get("log_start_offset", -1),
            )
            errors = answer.get("record_errors", ())
            run += encode_unsigned_varint(len(errors) + 1)
            for error in errors:
                run += (
                    _INT32.pack(error["batch_index"])
                    + encode_compact_string(error.get("batch_index_error_message"))
                    + b"\0"
                )
            run += encode_compact_string(answer.get("error_message")) + b"\0"
        run += b"\0"
    run += _INT32.pack(body.get("throttle_time", 0)) + b"\0"
    out.append(bytes(run))


def write_fetched(out: Frame, body: Body) -> None:
    """A Fetch response of version 13 to 17."""
    topics = body.get("responses", ())
    run = bytearray(_FETCHED_HEAD.pack(body["throttle_time"], body["error_code"], body.get("session_id", 0)))
    run += encode_unsigned_varint(len(topics) + 1)
    for topic in topics:
        topic_id, partitions = topic.get("topic_id"), topic.get("partitions", ())
        run += (topic_id or NULL_UUID).bytes
        run += encode_unsigned_varint(len(partitions) + 1)
        for answer in partitions:
            records, aborted = answer.get("records"), answer.get("aborted_transactions")
            run += _FETCHED.pack(
                answer["partition_index"],
                answer["error_code"],
                answer["high_watermark"],
                answer.get("last_stable_offset", -1),
                answer.get("log_start_offset", -1),
            )
            run += encode_unsigned_varint(0 if aborted is None else len(aborted) + 1)
            for transaction in aborted or ():
                run += _ABORTED.pack(transaction["producer_id"], transaction["first_offset"], 0)
            run += _NO_PREFERRED_REPLICA
            if records is None:
                run += b"\0"
            elif isinstance(records, bytes):
                run += encode_unsigned_varint(len(records) + 1) + records
            else:
                run += encode_unsigned_varint(records.size_bytes + 1)
                out.append(bytes(run))
                out.append(records)
                run.clear()
            diverging = answer.get("diverging_epoch")
            if diverging is None:
                run += b"\0"
            else:
                epoch, end_offset = diverging.get("epoch", -1), diverging.get("end_offset", -1)
                run += _TAGGED.pack(1, _DIVERGING_TAG, _TAGGED_BYTES, epoch, end_offset, 0)
        run += b"\0"
    run += b"\0"
    out.append(bytes(run))


# --- The follower's side: what it asks, and what the leader answers ---


def write_fetch(out: Frame, body: Body) -> None:
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
        for asked in partitions:
            run += _ASKED.pack(
                asked["partition"],
                asked["current_leader_epoch"],
                asked["fetch_offset"],
                asked["last_fetched_epoch"],
                asked["log_start_offset"],
                asked["partition_max_bytes"],
            )
            run += b"\0"
        run += b"\0"
    run += encode_unsigned_varint(len(forgotten) + 1)
    for topic in forgotten:
        indexes = topic["partitions"]
        run += topic["topic_id"].bytes + encode_unsigned_varint(len(indexes) + 1)
        run += b"".join(map(_INT32.pack, indexes)) + b"\0"
    run += encode_compact_string(body["rack_id"])
    run += _TAGGED.pack(1, _REPLICA_STATE_TAG, _TAGGED_BYTES, state["replica_id"], state["replica_epoch"], 0)
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


def read_fetched(frame: memoryview, position: int) -> tuple[FetchResponse, int]:
    """A Fetch response of version 13 to 17, as far as followers want it; records are a view of `frame`.

    Raises as `read_produce`.
    """
    _, error_code, session_id = _FETCHED_HEAD.unpack_from(frame, position)
    topic_count, position = _count(frame, position + _FETCHED_HEAD.size)
    topics = []
    for _ in range(topic_count):
        topic_id, partition_count, position = _topic(frame, position)
        partitions = []
        for _ in range(partition_count):
            index, code, high_watermark, _, log_start = _FETCHED.unpack_from(frame, position)
            aborted_count, position = _count(frame, position + _FETCHED.size)
            for _ in range(aborted_count):
                position = walk_tagged_fields(frame, position + 16)
            records, position = _bytes(frame, position + 4)  # after the preferred replica
            diverging, position = _tagged_pair(frame, position, _DIVERGING_TAG)
            records = records or _NO_RECORDS
            partitions.append(FetchedPartition(index, code, high_watermark, log_start, diverging, records))
        position = walk_tagged_fields(frame, position)
        topics.append(FetchedTopic(topic_id, partitions))
    return FetchResponse(error_code, session_id, topics), walk_tagged_fields(frame, position)


_PRODUCE_VERSIONS: Final = (9, 10, 11)
_FETCH_VERSIONS: Final = (15, 16, 17)

READERS: Final[Mapping[tuple[int, int], Read]] = {
    **{(PRODUCE_KEY, version): read_produce for version in _PRODUCE_VERSIONS},
    **{(FETCH_KEY, version): read_fetch for version in _FETCH_VERSIONS},
}
"""By API key and version, as the tables below."""
RESPONSE_WRITERS: Final[Mapping[tuple[int, int], Write]] = {
    **{(PRODUCE_KEY, version): write_produced for version in _PRODUCE_VERSIONS},
    **{(FETCH_KEY, version): write_fetched for version in _FETCH_VERSIONS},
}
REQUEST_WRITERS: Final[Mapping[tuple[int, int], Write]] = {
    (FETCH_KEY, version): write_fetch for version in _FETCH_VERSIONS
}
RESPONSE_READERS: Final[Mapping[tuple[int, int], Read]] = {
    (FETCH_KEY, version): read_fetched for version in _FETCH_VERSIONS
}
