"""Produce (key 0), versions 3 to 11; 0 to 2 are announced but refused.

- acks 0: no response at all; a failed append closes the connection, which is all the client can notice.
  acks 1: after the append. acks -1 (all): after the in-sync set has it.
- Partitions fail one by one; one batch of format 2 per partition and request.
- v3 batch format 2; v5 log start offset; v7 zstd; v8 errors by record; v9 flexible; v10 hints at the
  new leader (KIP-951: left out, that is, -1).
- v0 to v2 are announced because librdkafka up to 2.11.0 decides by them whether it may compress.
- Not done: transactional ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import structlog

from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.errors import (
    InvalidRecord,
    InvalidRequestBytes,
    InvalidRequiredAcks,
    ProtocolError,
)
from mainstem_broker.protocol.codec import Body, Entity

logger = structlog.get_logger(__name__)


def partitions_of(request: Entity) -> Iterator[tuple[str, int]]:
    return ((topic.name, data.index) for topic in request.topic_data for data in topic.partition_data)


def handle(broker: BrokerContext, request: Entity, context: RequestContext) -> Body | None:
    now_ms = broker.now_ms()
    acks = request.acks
    failed: ProtocolError | None = None
    topics: list[Body] = []
    for topic in request.topic_data:
        name = topic.name
        partitions: list[Body] = []
        for data in topic.partition_data:
            try:
                if acks not in (-1, 0, 1):
                    raise InvalidRequiredAcks(f"acks is {acks}; it may be 0, 1 or -1 (all).")
                partitions.append(_append(broker, name, data, acks, context.version, now_ms))
            except ProtocolError as error:
                failed = error
                partitions.append(_failure(data.index, error))
        topics.append({"name": name, "partition_responses": partitions})
    if acks == 0:
        if failed is not None:
            raise InvalidRequestBytes(f"A produce with acks=0 failed, so its connection is closed: {failed}")
        return None
    return {"responses": topics, "throttle_time": 0}


def _append(
    broker: BrokerContext, topic: str, data: Any, acks: int, version: int, now_ms: int
) -> dict[str, Any]:
    partition = broker.find_replica(topic, data.index)
    info = partition.append(data.records, acks=acks, produce_version=version, now_ms=now_ms)
    return {
        "index": data.index,
        "error_code": 0,
        "base_offset": info.first_offset,
        "log_append_time": info.log_append_time_ms,
        "log_start_offset": info.log_start_offset,
    }


def _failure(index: int, error: ProtocolError) -> dict[str, Any]:
    record_errors: list[Body] = []
    if isinstance(error, InvalidRecord) and error.batch_index is not None:
        record_errors.append({"batch_index": error.batch_index, "batch_index_error_message": error.message})
    return {
        "index": index,
        "error_code": error.code,
        "base_offset": -1,
        "log_append_time": -1,
        "log_start_offset": -1,
        "record_errors": record_errors,
        "error_message": error.message,
    }
