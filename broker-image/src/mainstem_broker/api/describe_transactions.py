"""Looking at transactions: DescribeTransactions (key 65, versions 0 to 0) and ListTransactions (66, 0 to 1),
KIP-664.

- Each broker answers for the transactional ids that it coordinates; clients ask the coordinator of an id, or
  all brokers for a list.
- ListTransactions filters by state, producer id and, from v1 on, by how long the transaction has been open.
  State names that are unknown are answered, and match nothing.
- While transactions are loaded: COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mainstem_broker.api.authorization import allows, may_describe_topic, require
from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.api.transactions import partitions_of_ids
from mainstem_broker.errors import ProtocolError
from mainstem_broker.protocol.wire import Body
from mainstem_broker.security.acl import Operation, ResourceType
from mainstem_broker.txn.states import STATE_TITLES
from mainstem_broker.txn.transaction import NO_EPOCH, NO_ID, Transaction

if TYPE_CHECKING:
    from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
    from kio.schema.list_transactions.v1.request import ListTransactionsRequest


def described_ids(broker: BrokerContext, request: DescribeTransactionsRequest) -> Iterator[tuple[str, int]]:
    return partitions_of_ids(broker, request.transactional_ids)


def handle_describe(
    broker: BrokerContext, request: DescribeTransactionsRequest, context: RequestContext
) -> Body:
    return {
        "throttle_time": 0,
        "transaction_states": [
            _described(broker, context, transactional_id) for transactional_id in request.transactional_ids
        ],
    }


def _described(broker: BrokerContext, context: RequestContext, transactional_id: str) -> Body:
    try:
        require(broker, context, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        transaction = broker.transactions.transaction(transactional_id)
    except ProtocolError as error:
        return {
            "error_code": error.code,
            "transactional_id": transactional_id,
            "transaction_state": "",
            "transaction_timeout": 0,
            "transaction_start_time": 0,
            "producer_id": NO_ID,
            "producer_epoch": NO_EPOCH,
            "topics": (),
        }
    return {
        "error_code": 0,
        "transactional_id": transactional_id,
        "transaction_state": transaction.state.title,
        "transaction_timeout": transaction.timeout_ms,
        "transaction_start_time": transaction.started_ms,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.epoch,
        "topics": [
            topic for topic in _topics(transaction) if may_describe_topic(broker, context, topic["topic"])
        ],
    }


def _topics(transaction: Transaction) -> list[Body]:
    by_topic: dict[str, list[int]] = {}
    for name, index in sorted(transaction.partitions):
        by_topic.setdefault(name, []).append(index)
    return [{"topic": name, "partitions": indexes} for name, indexes in by_topic.items()]


def handle_list(broker: BrokerContext, request: ListTransactionsRequest, context: RequestContext) -> Body:
    states = {STATE_TITLES[title] for title in request.state_filters if title in STATE_TITLES}
    now_ms = broker.now_ms()

    def matches(transaction: Transaction) -> bool:
        if request.state_filters and transaction.state not in states:
            return False
        if request.producer_id_filters and transaction.producer_id not in request.producer_id_filters:
            return False
        return request.duration_filter < 0 or (
            transaction.started_ms >= 0 and now_ms - transaction.started_ms > request.duration_filter
        )

    body: Body = {
        "throttle_time": 0,
        "error_code": 0,
        "unknown_state_filters": [title for title in request.state_filters if title not in STATE_TITLES],
    }
    try:
        listed = [
            {
                "transactional_id": transactional_id,
                "producer_id": transaction.producer_id,
                "transaction_state": transaction.state.title,
            }
            for transactional_id, transaction in broker.transactions.transactions()
            if matches(transaction)
            and allows(
                broker,
                context,
                Operation.DESCRIBE,
                ResourceType.TRANSACTIONAL_ID,
                transactional_id,
                quietly=True,
            )
        ]
    except ProtocolError as error:
        return {**body, "error_code": error.code, "transaction_states": ()}
    return {**body, "transaction_states": listed}
