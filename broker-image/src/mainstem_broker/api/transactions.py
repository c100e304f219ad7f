"""Transactions of producers: AddPartitionsToTxn (key 24, versions 0 to 5), AddOffsetsToTxn (25, 0 to 4) and
EndTxn (26, 0 to 5).

- AddPartitionsToTxn: all partitions of a transaction or none. A partition that does not exist is answered
  UNKNOWN_TOPIC_OR_PARTITION, one of the brokers' own topics TOPIC_AUTHORIZATION_FAILED, as in Apache Kafka,
  the others OPERATION_NOT_ATTEMPTED then. v3 flexible; v4 on are for brokers: several transactions at once,
  each to be added (clients of the second protocol do not add partitions themselves) or only verified
  (KIP-890); v5 TRANSACTION_ABORTABLE.
- AddOffsetsToTxn adds the partition of `__consumer_offsets` that holds the group.
- EndTxn is answered when the outcome is certain; readers see it when the markers are written. v5 is the
  second protocol: the answer has the producer id and epoch that the client goes on with.
- The transactional id is being changed, or its last transaction is being ended: CONCURRENT_TRANSACTIONS, and
  clients retry. A producer that was replaced gets PRODUCER_FENCED, before version 2 INVALID_PRODUCER_EPOCH.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from mainstem_broker.api.authorization import allows, allows_on_cluster
from mainstem_broker.api.context import INTERNAL_TOPICS, BrokerContext, RequestContext
from mainstem_broker.coordinator.key_placement import partition_of_key
from mainstem_broker.errors import (
    ClusterAuthorizationFailed,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidTxnState,
    OperationNotAttempted,
    ProducerFenced,
    ProtocolError,
    TopicAuthorizationFailed,
    TransactionAbortable,
    TransactionalIdAuthorizationFailed,
    UnknownTopicOrPartition,
)
from mainstem_broker.group.coordinator import OFFSETS_TOPIC
from mainstem_broker.protocol.topic_partition import TopicPartition
from mainstem_broker.protocol.wire import Body, Entity
from mainstem_broker.security.acl import Operation, ResourceType
from mainstem_broker.txn.coordinator import TRANSACTIONS_TOPIC
from mainstem_broker.txn.transaction import CLIENT_VERSION_1, CLIENT_VERSION_2, Producer

if TYPE_CHECKING:
    from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest
    from kio.schema.add_partitions_to_txn.v5.request import (
        AddPartitionsToTxnRequest,
        AddPartitionsToTxnTopic,
        AddPartitionsToTxnTransaction,
    )
    from kio.schema.end_txn.v5.request import EndTxnRequest

ADD_VERSION_BY_BROKERS: Final = 4
END_VERSION_2: Final = 5
"""The first version of EndTxn that belongs to the second protocol."""
ADDED_AT_ONCE_MAX: Final = 1_000
"""Transactions of one request whose records are written side by side: as many as a broker sends at once."""
ADD_TIMEOUT_S: Final = 1.0
"""How long a transaction may hold up the answer to a broker, which has the answers of others in it."""


def partitions_of_ids(broker: BrokerContext, transactional_ids: Iterable[str]) -> Iterator[tuple[str, int]]:
    """The partitions of `__transaction_state` that hold these ids."""
    return (
        (TRANSACTIONS_TOPIC, broker.transactions.partition_of(transactional_id))
        for transactional_id in transactional_ids
    )


def partitions_of(broker: BrokerContext, request: Entity) -> Iterator[tuple[str, int]]:
    """Of requests about one transactional id."""
    return partitions_of_ids(broker, (request.transactional_id,))


def error_code(error: ProtocolError, *, fenced: bool = True, abortable: bool = True) -> int:
    """The error's code for a client that knows PRODUCER_FENCED and TRANSACTION_ABORTABLE, or does not."""
    if isinstance(error, ProducerFenced) and not fenced:
        return InvalidProducerEpoch.code
    if isinstance(error, TransactionAbortable) and not abortable:
        return InvalidTxnState.code
    return error.code


# --- AddPartitionsToTxn ---


def added_ids(broker: BrokerContext, request: AddPartitionsToTxnRequest) -> Iterator[tuple[str, int]]:
    """Of AddPartitionsToTxn, whose versions before 4 are about one transactional id."""
    transactions = getattr(request, "transactions", None)
    if transactions is None:
        return partitions_of_ids(broker, (request.v3_and_below_transactional_id,))
    return partitions_of_ids(broker, (transaction.transactional_id for transaction in transactions))


async def handle_add_partitions(
    broker: BrokerContext, request: AddPartitionsToTxnRequest, context: RequestContext
) -> Body:
    if context.version >= ADD_VERSION_BY_BROKERS:
        if not allows_on_cluster(broker, context, Operation.CLUSTER_ACTION):
            denied = ClusterAuthorizationFailed.code
            return {"throttle_time": 0, "error_code": denied, "results_by_transaction": ()}
        return {
            "throttle_time": 0,
            "error_code": 0,
            "results_by_transaction": await _add_all(broker, request.transactions, context.version),
        }
    requested = _named_partitions(request.v3_and_below_topics)
    producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    codes = _denied(broker, request, context) or await _missing_in_cluster(broker, requested)
    if not codes:
        try:
            await broker.transactions.add_partitions(
                request.v3_and_below_transactional_id, producer, frozenset(requested), CLIENT_VERSION_1
            )
        except ProtocolError as error:
            code = error_code(error, fenced=context.version >= 2, abortable=False)
            codes = dict.fromkeys(requested, code)
    return {
        "throttle_time": 0,
        "results_by_topic_v3_and_below": _results(request.v3_and_below_topics, codes),
    }


def _denied(
    broker: BrokerContext, request: AddPartitionsToTxnRequest, context: RequestContext
) -> dict[TopicPartition, int]:
    """Error codes if the client may not write with this transactional id, or to one of the topics.

    Nobody may write to the brokers' own topics, whose markers belong to what their coordinators wrote there.
    """
    requested = _named_partitions(request.v3_and_below_topics)
    transactional_id = request.v3_and_below_transactional_id
    if not allows(broker, context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return dict.fromkeys(requested, TransactionalIdAuthorizationFailed.code)
    denied = {
        topic.name
        for topic in request.v3_and_below_topics
        if topic.name in INTERNAL_TOPICS
        or not allows(broker, context, Operation.WRITE, ResourceType.TOPIC, topic.name)
    }
    if not denied:
        return {}
    return {
        (name, index): TopicAuthorizationFailed.code if name in denied else OperationNotAttempted.code
        for name, index in requested
    }


async def _add_all(
    broker: BrokerContext, transactions: Sequence[AddPartitionsToTxnTransaction], version: int
) -> list[Body]:
    """The results in the order of the transactions, which wait for their replicas side by side."""
    results: list[Body] = []
    for first in range(0, len(transactions), ADDED_AT_ONCE_MAX):
        some = transactions[first : first + ADDED_AT_ONCE_MAX]
        added = await asyncio.gather(*[_add_as_broker(broker, one, version) for one in some])
        results += [
            {"transactional_id": one.transactional_id, "topic_results": topic_results}
            for one, topic_results in zip(some, added, strict=True)
        ]
    return results


async def _add_as_broker(
    broker: BrokerContext, transaction: AddPartitionsToTxnTransaction, version: int
) -> list[Body]:
    """Add or verify the partitions of a transaction, for a broker that leads them."""
    requested = _named_partitions(transaction.topics)
    producer = Producer(transaction.producer_id, transaction.producer_epoch)
    transactional_id = transaction.transactional_id
    codes: dict[TopicPartition, int]
    try:
        if transaction.verify_only:
            missing = broker.transactions.missing_partitions(transactional_id, producer, requested)
            codes = {key: error_code(error, abortable=version >= 5) for key, error in missing.items()}
        else:
            codes = await _missing_in_cluster(broker, requested)
            if not codes:
                async with asyncio.timeout(ADD_TIMEOUT_S):
                    await broker.transactions.add_partitions(
                        transactional_id, producer, frozenset(requested), CLIENT_VERSION_2
                    )
    except TimeoutError:
        # The record may still be replicated. The client sends its batch again, and finds out.
        codes = dict.fromkeys(requested, CoordinatorNotAvailable.code)
    except ProtocolError as error:
        codes = dict.fromkeys(requested, error_code(error, abortable=version >= 5))
    return _results(transaction.topics, codes)


def _named_partitions(topics: Iterable[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [(topic.name, index) for topic in topics for index in topic.partitions]


async def _missing_in_cluster(
    broker: BrokerContext, requested: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Error codes if any of the partitions does not exist: a marker could never be written there."""
    requested = list(requested)
    if not all(_exists(broker, partition) for partition in requested):
        await broker.catch_up()
    missing = {partition for partition in requested if not _exists(broker, partition)}
    if not missing:
        return {}
    return {
        partition: UnknownTopicOrPartition.code if partition in missing else OperationNotAttempted.code
        for partition in requested
    }


def _exists(broker: BrokerContext, partition: TopicPartition) -> bool:
    topic = broker.view.topics.get(partition[0])
    return topic is not None and partition[1] in topic.assignment.replicas


def _results(topics: Iterable[AddPartitionsToTxnTopic], codes: dict[TopicPartition, int]) -> list[Body]:
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {"partition_index": index, "partition_error_code": codes.get((topic.name, index), 0)}
                for index in topic.partitions
            ],
        }
        for topic in topics
    ]


# --- AddOffsetsToTxn ---


async def handle_add_offsets(
    broker: BrokerContext, request: AddOffsetsToTxnRequest, context: RequestContext
) -> Body:
    code = 0
    try:
        await broker.transactions.add_partitions(
            request.transactional_id,
            Producer(request.producer_id, request.producer_epoch),
            frozenset(((OFFSETS_TOPIC, _offsets_partition(broker, request.group_id)),)),
            CLIENT_VERSION_1,
        )
    except ProtocolError as error:
        code = error_code(error, fenced=context.version >= 2, abortable=context.version >= 4)
    return {"throttle_time": 0, "error_code": code}


def _offsets_partition(broker: BrokerContext, group_id: str) -> int:
    """The group's partition, also before `__consumer_offsets` is created: clients look for the group after
    this."""
    if OFFSETS_TOPIC in broker.view.topics:
        return broker.groups.offsets_partition(group_id)
    return partition_of_key(group_id, broker.config.integer("offsets.topic.num.partitions"))


# --- EndTxn ---


async def handle_end(broker: BrokerContext, request: EndTxnRequest, context: RequestContext) -> Body:
    version = context.version
    producer = Producer(-1, -1)
    code = 0
    try:
        producer = await broker.transactions.end(
            request.transactional_id,
            Producer(request.producer_id, request.producer_epoch),
            committed=request.committed,
            client_version=CLIENT_VERSION_2 if version >= END_VERSION_2 else CLIENT_VERSION_1,
        )
    except ProtocolError as error:
        code = error_code(error, fenced=version >= 2, abortable=version >= END_VERSION_2)
    body: Body = {"throttle_time": 0, "error_code": code}
    if version >= END_VERSION_2:
        body |= {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
    return body
