"""Produce (key 0), versions 3 to 12; 0 to 2 are announced but refused.

- acks 0: no response at all; a failed append closes the connection, which is all the client can notice.
  acks 1: after the append. acks -1 (all): after the in-sync set has it, or REQUEST_TIMED_OUT after the
  request's timeout; the records stay appended then. Both wait for a flush that `flush.messages` requires.
- A batch that an idempotent producer sends again is not written again: it is answered, and waited for, at
  the offset it has (KIP-98).
- Topics that brokers keep for themselves are refused to everyone but the admin client, as in Apache Kafka,
  whose tools repair them under that name. Where clients are authorized, its principal needs CLUSTER_ACTION,
  which brokers have.
- Partitions fail one by one; one batch of format 2 per partition and request.
- v3 batch format 2; v4 KAFKA_STORAGE_ERROR, before that NOT_LEADER_OR_FOLLOWER; v5 log start offset; v7 zstd;
  v8 errors by record; v9 flexible; v10 hints at the new leader (`api/leader_hints.py`); v12 adds partitions
  to transactions (KIP-890).
- v0 to v2 are announced because librdkafka up to 2.11.0 decides by them whether it may compress.
- A batch whose topic makes the broker read the records (a codec of its own, compaction, bounds on timestamps)
  is decoded by another thread, before the request is handled; later requests of the connection wait for it.
- The first batch of a transaction in a partition waits for the coordinator
  (`api/transaction_verification.py`), and so do later requests of its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import structlog

from mainstem_broker.api import leader_hints
from mainstem_broker.api.authorization import allows, allows_on_cluster, denial, require
from mainstem_broker.api.context import INTERNAL_TOPICS, BrokerContext, RequestContext, milliseconds
from mainstem_broker.api.transaction_verification import Verifications, unverified, verify
from mainstem_broker.errors import (
    InvalidRecord,
    InvalidRequestBytes,
    InvalidRequiredAcks,
    InvalidTimestamp,
    InvalidTopic,
    NotLeaderOrFollower,
    ProtocolError,
    RequestTimedOut,
    StorageError,
)
from mainstem_broker.protocol.batch_validation import ValidatedBatch, must_decode, validate_for_append
from mainstem_broker.protocol.produce_codec import ProduceData, ProduceRequest, ProduceTopic
from mainstem_broker.protocol.wire import Body, Entity
from mainstem_broker.replica.acknowledgements import Acknowledgement
from mainstem_broker.replica.client_batches import append_batch, note_refusal
from mainstem_broker.replica.partition import Partition
from mainstem_broker.runtime.pending import Pending
from mainstem_broker.security.acl import Operation, ResourceType

logger = structlog.get_logger(__name__)

_NOTHING_VERIFIED: Final[Verifications] = {}
STORAGE_ERROR_VERSION: Final = 4
"""From this version on clients know KAFKA_STORAGE_ERROR (KIP-112). Before, they give up at it."""
ADMIN_CLIENT_ID: Final = "__admin_client"
"""As Apache Kafka's AdminUtils names it."""
_TIMED_OUT: Final = "The in-sync replicas did not have the records in time."
_NOT_FLUSHED: Final = "The records were not on the disk in time, as flush.messages requires."


def partitions_of(_broker: BrokerContext, request: Entity) -> Iterator[tuple[str, int]]:
    return ((topic.name, data.index) for topic in request.topic_data for data in topic.partition_data)


class PreparedProduce(NamedTuple):
    """A request after `prepare`: for each partition, in order, its batch or error, None if it was not
    decoded; and the verified transactions that it begins."""

    request: Entity
    results: list[ValidatedBatch | ProtocolError | None]
    verifications: Verifications


def prepare(
    broker: BrokerContext, request: Entity, context: RequestContext
) -> Awaitable[PreparedProduce] | None:
    """The request with the batches decoded that take too long for the event loop, and transactions verified;
    None if there is nothing to do."""
    if (
        request.transactional_id is not None
        and unverified(broker, request)
        and _may_write_all(broker, request, context)
    ):
        return _prepare(broker, _copy_of(request), context)
    find = broker.replicas.find
    now_ms = broker.now_ms()
    for topic in request.topic_data:
        for data in topic.partition_data:
            partition = find(topic.name, data.index)
            if (
                partition is not None
                and data.records is not None
                and must_decode(data.records, partition.log.config, now_ms)
            ):
                return _prepare(broker, _copy_of(request), context)
    return None


def _copy_of(request: Entity) -> ProduceRequest:
    """The request with records of its own: those that were read are views of a frame that is not kept."""
    topics = [
        ProduceTopic(
            topic.name,
            [
                ProduceData(data.index, None if data.records is None else memoryview(bytes(data.records)))
                for data in topic.partition_data
            ],
        )
        for topic in request.topic_data
    ]
    return ProduceRequest(request.transactional_id, request.acks, request.timeout, topics)


async def _prepare(
    broker: BrokerContext, request: ProduceRequest, context: RequestContext
) -> PreparedProduce:
    results: list[ValidatedBatch | ProtocolError | None] = []
    for topic in request.topic_data:
        is_allowed = allows(broker, context, Operation.WRITE, ResourceType.TOPIC, topic.name, quietly=True)
        for data in topic.partition_data:
            partition = broker.replicas.find(topic.name, data.index)
            now_ms = broker.now_ms()
            if (
                partition is None
                or not is_allowed
                or not partition.is_leader
                or data.records is None
                or not must_decode(data.records, partition.log.config, now_ms)
            ):
                results.append(None)
                continue
            validate = partial(
                validate_for_append,
                data.records,
                partition.log.config,
                produce_version=context.version,
                now_ms=now_ms,
            )
            try:
                results.append(await broker.decoding.run(context.peer, validate))
            except ProtocolError as error:
                results.append(error)
    # Last, right before the append: what the coordinator says may change.
    verifications: Verifications = {}
    if request.transactional_id is not None and _may_write_all(broker, request, context):
        verifications = await verify(broker, request, context)
    return PreparedProduce(request, results, verifications)


def handle(broker: BrokerContext, request: Entity, context: RequestContext) -> Body | Awaitable[Body] | None:
    results: Iterator[ValidatedBatch | ProtocolError | None] | None = None
    verifications: Verifications = _NOTHING_VERIFIED
    if isinstance(request, PreparedProduce):
        verifications = request.verifications
        request, results = request.request, iter(request.results)
    now_ms = broker.now_ms()
    acks = request.acks
    failed = ""
    topics: list[Body] = []
    appended: list[tuple[Partition, int, Body]] = []
    for topic in request.topic_data:
        name = topic.name
        partitions: list[Body] = []
        refusal = _refusal(broker, request, context, name)
        for data in topic.partition_data:
            valid = None if results is None else next(results)
            try:
                if refusal is not None:
                    raise refusal
                if isinstance(valid, ProtocolError):
                    raise valid
                if acks not in (-1, 0, 1):
                    raise InvalidRequiredAcks(f"acks is {acks}; it may be 0, 1 or -1 (all).")
                partition = broker.find_replica(name, data.index)
                verification = verifications.get((name, data.index)) if verifications else None
                if isinstance(verification, ProtocolError):
                    note_refusal(partition, data.records, now_ms)
                    raise verification
                info = append_batch(
                    partition,
                    data.records,
                    acks=acks,
                    produce_version=context.version,
                    now_ms=now_ms,
                    valid=valid,
                    verification=verification,
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
                partitions.append(_failure(data.index, error, context.version))
        topics.append({"name": name, "partition_responses": partitions})
    if acks == 0:
        if failed:
            raise InvalidRequestBytes(f"A produce with acks=0 failed, so its connection is closed: {failed}")
        return None
    body: Body = {"responses": topics, "throttle_time": 0}
    if failed:
        _add_hints(broker, context, body)
    if any(partition.acknowledged_offset(acks) < offset for partition, offset, _ in appended):
        return _await_acknowledgements(body, appended, acks, milliseconds(request.timeout), broker, context)
    return body


def _add_hints(broker: BrokerContext, context: RequestContext, body: Body) -> None:
    """To be called where a partition has failed, so that others cost nothing."""
    if context.version >= leader_hints.PRODUCE_VERSION:
        answers = (
            (topic["name"], answer["index"], answer)
            for topic in body["responses"]
            for answer in topic["partition_responses"]
        )
        leader_hints.add_leader_hints(broker, context, body, answers)


def _may_write_all(broker: BrokerContext, request: Entity, context: RequestContext) -> bool:
    """Whether no topic is refused: a request that is refused in part must not add to a transaction."""
    names = (topic.name for topic in request.topic_data)
    return all(_refusal(broker, request, context, name) is None for name in names)


def _refusal(
    broker: BrokerContext, request: Entity, context: RequestContext, topic: str
) -> ProtocolError | None:
    """Why this client may not write to this topic; None if it may."""
    try:
        if broker.authorizer is not None:
            if (transactional_id := request.transactional_id) is not None:
                require(broker, context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
            require(broker, context, Operation.WRITE, ResourceType.TOPIC, topic)
        if topic in INTERNAL_TOPICS:
            if context.client_id != ADMIN_CLIENT_ID:
                raise InvalidTopic(f"'{topic}' is kept by the brokers, and clients cannot write to it.")
            if not allows_on_cluster(broker, context, Operation.CLUSTER_ACTION):
                raise denial(context, Operation.WRITE, ResourceType.TOPIC, topic)
    except ProtocolError as error:
        return error
    return None


def _await_acknowledgements(
    body: Body,
    appended: list[tuple[Partition, int, Body]],
    acks: int,
    timeout_ms: int,
    broker: BrokerContext,
    context: RequestContext,
) -> Pending[Body]:
    """Answer when the in-sync sets have what was appended, or, with acks 1, the disk as `flush.messages`
    requires; a partition where they do not says why.

    No task, which would add two turns of the loop to each produce.
    """
    everyone: Pending[Body] = Pending()
    waiting: dict[Acknowledgement, tuple[Partition, Body]] = {}

    def settle(waited: Acknowledgement, error: ProtocolError | None) -> None:
        _, answer = waiting.pop(waited)
        if error is not None:
            _refuse(answer, error, context.version)
            _add_hints(broker, context, body)
        if not waiting and not everyone.done():
            everyone.set_result(body)

    def give_up() -> None:
        for _, answer in waiting.values():
            error = RequestTimedOut(_TIMED_OUT if acks == -1 else _NOT_FLUSHED)
            _refuse(answer, error, context.version)
        if not everyone.done():
            everyone.set_result(body)

    def end(_: Pending[Body]) -> None:
        """Also when the connection has closed."""
        timer.cancel()
        for acknowledgement, (partition, _answer) in waiting.items():
            partition.waiting(acks).remove(acknowledgement)

    for partition, offset, answer in appended:
        acknowledgement = Acknowledgement(offset, settle)
        if not partition.acknowledge(acknowledgement, acks):
            waiting[acknowledgement] = (partition, answer)
    timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, give_up)
    everyone.add_done_callback(end)
    return everyone


def _refuse(answer: Body, error: ProtocolError, version: int) -> None:
    answer.update(_failure(answer["index"], error, version))


def _failure(index: int, error: ProtocolError, version: int) -> dict[str, Any]:
    is_unknown = isinstance(error, StorageError) and version < STORAGE_ERROR_VERSION
    record_errors: list[Body] = []
    if isinstance(error, InvalidRecord | InvalidTimestamp):
        # The sentence is the response's, once; repeated for each record it would be most of the response.
        record_errors = [{"batch_index": index} for index in error.batch_indexes]
    return {
        "index": index,
        "error_code": NotLeaderOrFollower.code if is_unknown else error.code,
        "base_offset": -1,
        "log_append_time": -1,
        "log_start_offset": -1,
        "record_errors": record_errors,
        "error_message": error.message,
    }
