"""DescribeProducers (key 61), versions 0 to 0: which producers a partition remembers (KIP-664).

Answered by any replica, as in Apache Kafka, so that leader and followers can be compared. What expired is
not reported. The timestamp is the time of the last append (see `log/producers.py`), where Apache Kafka tells
the producer's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mainstem_broker.api.authorization import require_topic
from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.api.topics import check_topic_name
from mainstem_broker.errors import ProtocolError
from mainstem_broker.protocol.wire import Body
from mainstem_broker.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.describe_producers.v0.request import DescribeProducersRequest


def partitions_of(_broker: BrokerContext, request: DescribeProducersRequest) -> Iterator[tuple[str, int]]:
    return ((topic.name, index) for topic in request.topics for index in topic.partition_indexes)


def handle(broker: BrokerContext, request: DescribeProducersRequest, context: RequestContext) -> Body:
    return {
        "throttle_time": 0,
        "topics": [
            {
                "name": topic.name,
                "partitions": [  # an index that is repeated is answered once: an answer is large
                    _describe(broker, context, topic.name, index)
                    for index in dict.fromkeys(topic.partition_indexes)
                ],
            }
            for topic in request.topics
        ],
    }


def _describe(broker: BrokerContext, context: RequestContext, topic: str, index: int) -> Body:
    try:
        require_topic(broker, context, Operation.READ, topic)
        check_topic_name(topic)
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
