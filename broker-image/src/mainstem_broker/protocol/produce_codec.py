"""Produce 9 to 12, which have the same fields: read and written without a schema.

A batch's cost depends on these messages, and reading them field by field takes a third of the time that
`schema_codec.py` takes. Records are not copied: they are views of the request's frame, which is valid only
during the handler's call. Entities have the names of kio's fields, and tests compare both codecs.

Layout: Kafka's ProduceRequest.json and ProduceResponse.json. Unknown tagged fields are skipped.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple

from mainstem_broker.protocol.leader_hint_fields import encode_leader, encode_response_tags
from mainstem_broker.protocol.primitives import (
    REQUEST_ELEMENTS_MAX,
    duration_of,
    encode_compact_string,
    encode_tagged_fields,
    encode_unsigned_varint,
    read_bytes,
    read_count,
    read_required_string,
    read_string,
    too_many_elements,
    walk_tagged_fields,
)
from mainstem_broker.protocol.wire import Body, Frame

VERSIONS: Final[tuple[int, ...]] = (9, 10, 11, 12)
ELEMENTS_MAX: Final = REQUEST_ELEMENTS_MAX // 2
"""Topics and partitions of a request. They have no arrays of their own, so 10,000 partitions are 20,000."""
_CURRENT_LEADER_TAG: Final = 0
_INT32: Final = struct.Struct(">i")
_ACKS_AND_TIMEOUT: Final = struct.Struct(">hi")
_PARTITION_RESPONSE: Final = struct.Struct(">ihqqq")
"""Index, error code, base offset, log append time, log start offset."""


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


def read_produce_request(frame: memoryview, position: int) -> tuple[ProduceRequest, int]:
    """The request, and the position after it.

    Raises:
        InvalidRequestBytes: a length or count does not fit, or there are too many elements.
        IndexError, struct.error, ValueError: the frame ends early, or a name is no UTF-8.
    """
    transactional_id, position = read_string(frame, position)
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(frame, position)
    topic_count, position = read_count(frame, position + _ACKS_AND_TIMEOUT.size)
    elements = topic_count
    topics = []
    for _ in range(topic_count):
        name, position = read_required_string(frame, position)
        data_count, position = read_count(frame, position)
        elements += data_count
        if elements > ELEMENTS_MAX:
            raise too_many_elements(ELEMENTS_MAX)
        data = []
        for _ in range(data_count):
            (index,) = _INT32.unpack_from(frame, position)
            records, position = read_bytes(frame, position + 4)
            position = walk_tagged_fields(frame, position)
            data.append(ProduceData(index, records))
        position = walk_tagged_fields(frame, position)
        topics.append(ProduceTopic(name, data))
    request = ProduceRequest(transactional_id, acks, duration_of(timeout_ms), topics)
    return request, walk_tagged_fields(frame, position)


def write_produce_response(out: Frame, body: Body) -> None:
    """A Produce response of version 9 to 12."""
    topics = body.get("responses", ())
    run = bytearray(encode_unsigned_varint(len(topics) + 1))
    for topic in topics:
        partitions = topic.get("partition_responses", ())
        run += encode_compact_string(topic["name"]) + encode_unsigned_varint(len(partitions) + 1)
        for partition in partitions:
            run += _PARTITION_RESPONSE.pack(
                partition["index"],
                partition["error_code"],
                partition["base_offset"],
                partition.get("log_append_time", -1),
                partition.get("log_start_offset", -1),
            )
            errors = partition.get("record_errors", ())
            run += encode_unsigned_varint(len(errors) + 1)
            for error in errors:
                run += (
                    _INT32.pack(error["batch_index"])
                    + encode_compact_string(error.get("batch_index_error_message"))
                    + b"\0"
                )
            run += encode_compact_string(partition.get("error_message"))
            leader = partition.get("current_leader")
            if leader is None:
                run += b"\0"
            else:
                run += encode_tagged_fields([(_CURRENT_LEADER_TAG, encode_leader(leader))])
        run += b"\0"
    run += _INT32.pack(body.get("throttle_time", 0))
    run += encode_response_tags(body.get("node_endpoints", ()))
    out.append(bytes(run))
