"""DescribeProducers (key 61), versions 0 to 0: which producers a partition remembers (KIP-664).

Answered by any replica, as in Apache Kafka, so that leader and followers can be compared. What expired is
not told. The timestamp is the time of the last append (see `log/producers.py`), where Apache Kafka tells the
producer's own.
"""

from __future__ import annotations

from collections.abc import Iterator

from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.errors import ProtocolError
from mainstem_broker.protocol.wire import Body, Entity


def partitions_of(_broker: BrokerContext, request: Entity) -> Iterator[tuple[str, int]]:
    return ((topic.name, index) for topic in request.topics for index in topic.partition_indexes)


def handle(broker: BrokerContext, request: Entity, _context: RequestContext) -> Body:
    return {
        "throttle_time": 0,
        "topics": [
            {
                "name": topic.name,
                "partitions": [_describe(broker, topic.name, index) for index in topic.partition_indexes],
            }
            for topic in request.topics
        ],
    }


def _describe(broker: BrokerContext, topic: str, index: int) -> Body:
    try:
        states = broker.find_replica(topic, index).log.producers.states
    except ProtocolError as error:
        return {
            "partition_index": index,
            "error_code": error.code,
            "error_message": error.message,
            "active_producers": [],
        }
    producers = [
        {
            "producer_id": producer_id,
            "producer_epoch": state.epoch,
            "last_sequence": state.last_sequence,
            "last_timestamp": state.last_timestamp_ms,
            "coordinator_epoch": state.coordinator_epoch,
            "current_txn_start_offset": state.transaction_first_offset,
        }
        for producer_id, state in states.items()
    ]
    return {"partition_index": index, "error_code": 0, "active_producers": producers}
