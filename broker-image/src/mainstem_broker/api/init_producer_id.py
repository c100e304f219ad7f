"""InitProducerId (key 22, versions 0 to 5): an id and an epoch for a producer.

- Without a transactional id every request gets a new id with epoch 0, also one that names an id and an epoch
  (v3, KIP-360): a client may name any id, and the next epoch of an id would fence the producer that owns it.
  So does Apache Kafka. What the producer sent under its former id before stays valid.
- With a transactional id the coordinator gives each instance a higher epoch, which fences those before it. An
  open transaction is aborted first: CONCURRENT_TRANSACTIONS until that is done.
- ZooKeeper provides no ids: COORDINATOR_LOAD_IN_PROGRESS, for which clients wait.
- v2 flexible; v3 the producer's own id and epoch; v4 PRODUCER_FENCED, before that INVALID_PRODUCER_EPOCH.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mainstem_broker.api.authorization import allows_on_any, grants_on_cluster, require
from mainstem_broker.api.context import BrokerContext, RequestContext, milliseconds
from mainstem_broker.api.transactions import error_code, partitions_of_ids
from mainstem_broker.errors import ClusterAuthorizationFailed, InvalidRequest, ProtocolError
from mainstem_broker.protocol.wire import Body
from mainstem_broker.security.acl import Operation, ResourceType
from mainstem_broker.txn.transaction import NO_EPOCH, NO_ID, Producer

if TYPE_CHECKING:
    from kio.schema.init_producer_id.v5.request import InitProducerIdRequest


def partitions_of(broker: BrokerContext, request: InitProducerIdRequest) -> Iterator[tuple[str, int]]:
    """A producer without a transactional id may ask any broker."""
    ids = () if request.transactional_id is None else (request.transactional_id,)
    return partitions_of_ids(broker, ids)


async def handle(broker: BrokerContext, request: InitProducerIdRequest, context: RequestContext) -> Body:
    try:
        if request.transactional_id is None:
            _require_idempotent_write(broker, context)
            producer = Producer(await broker.member.producer_ids.take(), 0)
        else:
            require(broker, context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
            producer = await broker.transactions.init_producer(
                request.transactional_id, milliseconds(request.transaction_timeout), _expected(request)
            )
    except ProtocolError as error:
        code = error_code(error, fenced=context.version >= 4, abortable=context.version >= 5)
        return {
            "throttle_time": 0,
            "error_code": code,
            "producer_id": NO_ID,
            "producer_epoch": NO_EPOCH,
        }
    return {
        "throttle_time": 0,
        "error_code": 0,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
    }


def _expected(request: InitProducerIdRequest) -> Producer | None:
    """The producer that asks for its own next epoch."""
    if (request.producer_id == NO_ID) is not (request.producer_epoch == NO_EPOCH):
        raise InvalidRequest("A producer id and an epoch must be given together, or neither of them.")
    return None if request.producer_id == NO_ID else Producer(request.producer_id, request.producer_epoch)


def _require_idempotent_write(broker: BrokerContext, context: RequestContext) -> None:
    """Raise ClusterAuthorizationFailed if the client may write idempotently nowhere (KIP-679)."""
    if not grants_on_cluster(broker, context, Operation.IDEMPOTENT_WRITE) and not allows_on_any(
        broker, context, Operation.WRITE, ResourceType.TOPIC
    ):
        raise ClusterAuthorizationFailed(f"{context.principal} may not write to any topic.")
