"""InitProducerId (key 22), versions 0 to 5: an id and an epoch for a producer without transactions.

- Without an id in the request, or with an epoch that has come to its end: a new id, epoch 0.
- v3 (KIP-360): a producer that lost track of its sequence numbers says its id and epoch and gets the same id
  with the next epoch, which makes partitions forget its numbers and refuse what it sent before.
  Apache Kafka answers a new id here, which leaves the old one's requests on the wire valid.
- No ids to be had from ZooKeeper: COORDINATOR_LOAD_IN_PROGRESS, for which clients wait.
- v2 flexible; v4 and v5 errors of transactions only.
- Not done: transactional ids. They are answered as FindCoordinator does, COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from typing import Final

from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.errors import CoordinatorNotAvailable, ProtocolError
from mainstem_broker.protocol.wire import Body, Entity

LAST_EPOCH: Final = 2**15 - 2
"""Epochs end here, one before int16 does: transactions need the last to fence a producer (KIP-360)."""


async def handle(broker: BrokerContext, request: Entity, _context: RequestContext) -> Body:
    try:
        if request.transactional_id is not None:
            raise CoordinatorNotAvailable("This broker does not coordinate transactions.")
        if request.producer_id >= 0 and 0 <= request.producer_epoch < LAST_EPOCH:
            producer_id, epoch = request.producer_id, request.producer_epoch + 1
        else:
            producer_id, epoch = await broker.member.producer_ids.take(), 0
    except ProtocolError as error:
        return {"throttle_time": 0, "error_code": error.code, "producer_id": -1, "producer_epoch": -1}
    return {"throttle_time": 0, "error_code": 0, "producer_id": producer_id, "producer_epoch": epoch}
