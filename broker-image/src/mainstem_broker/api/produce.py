"""Produce (key 0), versions 3 to 11; 0 to 2 are announced but refused.

- acks 0: no response at all; a failed append closes the connection, which is all the client can notice.
  acks 1: after the append. acks -1 (all): after the in-sync set has it, or REQUEST_TIMED_OUT after the
  request's timeout; the records stay appended then.
- A batch that an idempotent producer sends again is not written again: it is answered, and waited for, at
  the offset it has (KIP-98).
- Topics that brokers keep for themselves are refused to everyone but the admin client, as in Apache Kafka,
  whose tools repair them under that name.
- Partitions fail one by one; one batch of format 2 per partition and request.
- v3 batch format 2; v5 log start offset; v7 zstd; v8 errors by record; v9 flexible; v10 hints at the
  new leader (KIP-951: left out, that is, -1).
- v0 to v2 are announced because librdkafka up to 2.11.0 decides by them whether it may compress.
- Not done: transactional ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from typing import Any, Final

import structlog

from mainstem_broker.api.context import INTERNAL_TOPICS, BrokerContext, RequestContext, milliseconds
from mainstem_broker.errors import (
    InvalidRecord,
    InvalidRequestBytes,
    InvalidRequiredAcks,
    InvalidTopic,
    ProtocolError,
    RequestTimedOut,
)
from mainstem_broker.pending import Pending
from mainstem_broker.protocol.wire import Body, Entity
from mainstem_broker.replica.partition import Acknowledgement, Partition

logger = structlog.get_logger(__name__)

ADMIN_CLIENT_ID: Final = "__admin_client"
"""As Apache Kafka's AdminUtils names it."""


def partitions_of(_broker: BrokerContext, request: Entity) -> Iterator[tuple[str, int]]:
    return ((topic.name, data.index) for topic in request.topic_data for data in topic.partition_data)


def handle(broker: BrokerContext, request: Entity, context: RequestContext) -> Body | Awaitable[Body] | None:
    now_ms = broker.now_ms()
    acks = request.acks
    failed = ""
    topics: list[Body] = []
    appended: list[tuple[Partition, int, Body]] = []
    for topic in request.topic_data:
        name = topic.name
        partitions: list[Body] = []
        for data in topic.partition_data:
            try:
                if acks not in (-1, 0, 1):
                    raise InvalidRequiredAcks(f"acks is {acks}; it may be 0, 1 or -1 (all).")
                if name in INTERNAL_TOPICS and context.client_id != ADMIN_CLIENT_ID:
                    raise InvalidTopic(f"'{name}' is kept by the brokers, and clients cannot write to it.")
                partition = broker.find_replica(name, data.index)
                info = partition.append(
                    data.records, acks=acks, produce_version=context.version, now_ms=now_ms
                )
                answer = {
                    "index": data.index,
                    "error_code": 0,
                    "base_offset": info.first_offset,
                    "log_append_time": info.log_append_time_ms,
                    "log_start_offset": info.log_start_offset,
                }
                appended.append((partition, info.last_offset + 1, answer))
                partitions.append(answer)
            except ProtocolError as error:
                failed = str(error)
                partitions.append(_failure(data.index, error))
        topics.append({"name": name, "partition_responses": partitions})
    if acks == 0:
        if failed:
            raise InvalidRequestBytes(f"A produce with acks=0 failed, so its connection is closed: {failed}")
        return None
    body = {"responses": topics, "throttle_time": 0}
    if acks == -1 and any(partition.high_watermark < offset for partition, offset, _ in appended):
        return _await_replicas(body, appended, milliseconds(request.timeout))
    return body


def _await_replicas(
    body: Body, appended: list[tuple[Partition, int, Body]], timeout_ms: int
) -> Pending[Body]:
    """Answer when the in-sync sets have what was appended; a partition where they do not says why.

    No task, which would add two turns of the loop to each produce.
    """
    everyone: Pending[Body] = Pending()
    waiting: dict[Acknowledgement, tuple[Partition, Body]] = {}

    def settle(waited: Acknowledgement, error: ProtocolError | None) -> None:
        _, answer = waiting.pop(waited)
        if error is not None:
            _refuse(answer, error)
        if not waiting and not everyone.done():
            everyone.set_result(body)

    def give_up() -> None:
        for _, answer in waiting.values():
            _refuse(answer, RequestTimedOut("The in-sync replicas did not have the records in time."))
        if not everyone.done():
            everyone.set_result(body)

    def end(_: Pending[Body]) -> None:
        """Also when the connection has closed."""
        timer.cancel()
        for acknowledgement, (partition, _answer) in waiting.items():
            partition.stop_waiting(acknowledgement)

    for partition, offset, answer in appended:
        acknowledgement = Acknowledgement(offset, settle)
        if not partition.acknowledge(acknowledgement):
            waiting[acknowledgement] = (partition, answer)
    timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, give_up)
    everyone.add_done_callback(end)
    return everyone


def _refuse(answer: Body, error: ProtocolError) -> None:
    answer.update(_failure(answer["index"], error))


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
