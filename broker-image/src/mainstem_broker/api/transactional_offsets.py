"""TxnOffsetCommit (key 28, versions 0 to 5): what a producer's transaction has consumed (KIP-98, KIP-447).

- The offsets go to the group's partition of `__consumer_offsets` as part of the transaction, and count when
  it is committed. Until it ends, OffsetFetch with `require_stable` answers UNSTABLE_OFFSET_COMMIT for them.
- From v3 on the request names the group's member that has consumed, which is refused in another generation
  than its own: after a rebalance only the new owner of a partition commits its offset.
- The coordinator of transactions is asked whether the group's partition is part of the transaction, to which
  AddOffsetsToTxn has added it; from v5 on it is asked to add it (KIP-890).
- v2 leader epochs; v3 flexible; v4 TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from mainstem_broker.api.authorization import require_topic
from mainstem_broker.api.committed_offsets import committed_offset
from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.coordinator.journal import TransactionalProducer
from mainstem_broker.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    NotCoordinator,
    ProducerFenced,
    ProtocolError,
    TransactionAbortable,
    UnknownServerError,
)
from mainstem_broker.group.coordinator import OFFSETS_TOPIC
from mainstem_broker.group.messages import Commit
from mainstem_broker.group.offsets.records import CommittedOffset
from mainstem_broker.protocol.topic_partition import TopicPartition
from mainstem_broker.protocol.wire import Body
from mainstem_broker.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequest

IMPLICIT_SINCE: Final = 5
"""The version from which on this broker adds the group's partition to the transaction."""
ABORTABLE_SINCE: Final = 4

_RETRIED: Final = (
    CoordinatorLoadInProgress.code,
    CoordinatorNotAvailable.code,
    NotCoordinator.code,
    ConcurrentTransactions.code,
)
"""What the other coordinator answers if it, or the last transaction's end, has to be waited for."""


async def handle(broker: BrokerContext, request: TxnOffsetCommitRequest, context: RequestContext) -> Body:
    if not all(topic.name in broker.view.topics for topic in request.topics):
        await broker.catch_up()  # the client may know a topic from another broker already
    now_ms = broker.now_ms()
    topics: list[Body] = []
    offsets: dict[TopicPartition, CommittedOffset] = {}
    accepted: list[Body] = []
    for named in request.topics:
        topic = broker.view.topics.get(named.name)
        partitions: list[Body] = []
        for requested in named.partitions:
            answer = {"partition_index": requested.partition_index, "error_code": 0}
            try:
                require_topic(broker, context, Operation.READ, named.name)
                offset = committed_offset(broker, topic, requested, context, now_ms)
                offsets[named.name, requested.partition_index] = offset
                accepted.append(answer)
            except ProtocolError as error:
                answer["error_code"] = error.code
            partitions.append(answer)
        topics.append({"name": named.name, "partitions": partitions})
    if offsets:
        code = await _commit(broker, request, context, offsets)
        for answer in accepted:
            answer["error_code"] = code
    return {"throttle_time": 0, "topics": topics}


async def _commit(
    broker: BrokerContext,
    request: TxnOffsetCommitRequest,
    context: RequestContext,
    offsets: dict[TopicPartition, CommittedOffset],
) -> int:
    """Commit the offsets; the error code for all of them."""
    commit = Commit(
        # Versions before 3 name no member.
        getattr(request, "member_id", ""),
        getattr(request, "group_instance_id", None),
        getattr(request, "generation_id", -1),
        context.version,
        is_transactional=True,
        partitions=offsets.keys(),
    )
    try:
        async with asyncio.timeout_at(context.deadline_s(broker.groups.settings.commit_timeout_ms)):
            broker.groups.check_commit(request.group_id, commit)
            producer = await _verified(broker, request, context)
            # The group may have changed during the request to the other coordinator: the member is checked
            # again.
            await broker.groups.commit_in_transaction(request.group_id, commit, producer, offsets)
    except TimeoutError:
        return CoordinatorNotAvailable.code
    except ProtocolError as error:
        return error.code
    return 0


async def _verified(
    broker: BrokerContext, request: TxnOffsetCommitRequest, context: RequestContext
) -> TransactionalProducer:
    """The producer, after the coordinator of its transaction has confirmed that the group's partition is part
    of it."""
    group_id, producer_id, epoch = request.group_id, request.producer_id, request.producer_epoch
    # Before the request to the coordinator: a marker that comes meanwhile makes its answer void.
    verification = broker.groups.begin_verification(group_id, producer_id, epoch)
    if verification is not None:
        partition = (OFFSETS_TOPIC, broker.groups.offsets_partition(group_id))
        codes = await broker.verifier.verify(
            request.transactional_id,
            producer_id,
            epoch,
            (partition,),
            add=context.version >= IMPLICIT_SINCE,
        )
        code = codes.get(partition, UnknownServerError.code)
        if code != 0:
            raise _error(code, context.version)
    return TransactionalProducer(producer_id, epoch, verification)


def _error(code: int, version: int) -> ProtocolError:
    """The error of a TxnOffsetCommit of that version, for the error of the coordinator of transactions."""
    reason = f"The transaction could not be verified: its coordinator answered {code}."
    if code in _RETRIED:
        return CoordinatorLoadInProgress(reason)  # which all clients wait for
    if code in (ProducerFenced.code, InvalidProducerEpoch.code):
        return InvalidProducerEpoch(reason)
    if code == InvalidProducerIdMapping.code:
        return InvalidProducerIdMapping(reason)
    if code in (InvalidTxnState.code, TransactionAbortable.code):
        return TransactionAbortable(reason) if version >= ABORTABLE_SINCE else InvalidTxnState(reason)
    return UnknownServerError(reason)
