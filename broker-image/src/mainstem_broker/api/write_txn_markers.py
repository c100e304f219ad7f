"""WriteTxnMarkers (key 27), versions 1 and 2: a coordinator ends transactions in partitions (KIP-98).

- Answered when the in-sync sets have the markers, as Produce with acks=all: until then no reader sees the end
  of the transaction, and a new leader may not have it. After a second the answer is REQUEST_TIMED_OUT for the
  partitions where that takes longer.
- Partitions fail one by one, and coordinators send the request again until each has succeeded. A marker that
  is in the log already is not written again.
- An older coordinator is refused with TRANSACTION_COORDINATOR_FENCED, and a marker for an older producer, or
  for a transaction that has ended, with INVALID_PRODUCER_EPOCH: a delayed marker must not end the next
  transaction.
- In a partition of `__consumer_offsets` the marker is also the group coordinator's: the offsets that the
  transaction has committed count, or are dropped. While groups are loaded it is refused.
- Administrators end a hanging transaction by it, with the right to ALTER the cluster (KIP-1037).
- v1 flexible; v2 the version of transactions: from 2 on the marker has the epoch of the producer's next
  transaction (KIP-890).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from typing import TYPE_CHECKING, Final

from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.errors import ProtocolError, RequestTimedOut
from mainstem_broker.group.coordinator import OFFSETS_TOPIC
from mainstem_broker.protocol.markers import Marker
from mainstem_broker.protocol.wire import Body
from mainstem_broker.replica.acknowledgements import Acknowledgement
from mainstem_broker.replica.partition import Partition
from mainstem_broker.replica.transaction_markers import append_marker
from mainstem_broker.runtime.pending import Pending

if TYPE_CHECKING:
    from kio.schema.write_txn_markers.v2.request import WritableTxnMarker, WriteTxnMarkersRequest

TIMEOUT_S: Final = 1.0
"""How long the answer waits for a marker to be replicated. Coordinators send one request at a time to a
broker, and again for what has failed: a partition whose replicas are slow must not hold up the others."""
RAISES_EPOCH_SINCE: Final = 2
"""The version of transactions in which each transaction has an epoch of its own."""


def partitions_of(_broker: BrokerContext, request: WriteTxnMarkersRequest) -> Iterator[tuple[str, int]]:
    return (
        (topic.name, index)
        for marker in request.markers
        for topic in marker.topics
        for index in topic.partition_indexes
    )


def handle(
    broker: BrokerContext, request: WriteTxnMarkersRequest, _context: RequestContext
) -> Body | Awaitable[Body]:
    now_ms = broker.now_ms()
    written: list[tuple[Partition, int, Body]] = []

    def write(marker: WritableTxnMarker, topic: str, index: int) -> Body:
        answer: Body = {"partition_index": index, "error_code": 0}
        try:
            partition = broker.find_replica(topic, index)
            groups = broker.groups.require_loaded(index) if topic == OFFSETS_TOPIC else None
            offset = append_marker(
                partition,
                marker.producer_id,
                marker.producer_epoch,
                Marker(marker.transaction_result, marker.coordinator_epoch),
                raises_epoch=marker.transaction_version >= RAISES_EPOCH_SINCE,
                now_ms=now_ms,
            )
            if groups is not None:
                groups.end_transaction(marker.producer_id, is_commit=marker.transaction_result)
            written.append((partition, offset, answer))
        except ProtocolError as error:
            answer["error_code"] = error.code
        return answer

    body: Body = {
        "markers": [
            {
                "producer_id": marker.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [write(marker, topic.name, index) for index in topic.partition_indexes],
                    }
                    for topic in marker.topics
                ],
            }
            for marker in request.markers
        ]
    }
    return _await_replicas(body, written) if written else body


def refuse(request: WriteTxnMarkersRequest, error: ProtocolError) -> Body:
    """The answer to a client that may neither act as a broker nor alter the cluster."""
    return {
        "markers": [
            {
                "producer_id": marker.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [
                            {"partition_index": index, "error_code": error.code}
                            for index in topic.partition_indexes
                        ],
                    }
                    for topic in marker.topics
                ],
            }
            for marker in request.markers
        ]
    }


def _await_replicas(body: Body, written: list[tuple[Partition, int, Body]]) -> Body | Pending[Body]:
    everyone: Pending[Body] = Pending()
    waiting: dict[Acknowledgement, tuple[Partition, Body]] = {}

    def settle(waited: Acknowledgement, error: ProtocolError | None) -> None:
        _, answer = waiting.pop(waited)
        if error is not None:
            answer["error_code"] = error.code
        if not waiting and not everyone.done():
            everyone.set_result(body)

    def give_up() -> None:
        for _, answer in waiting.values():
            answer["error_code"] = RequestTimedOut.code
        if not everyone.done():
            everyone.set_result(body)

    def end(_: Pending[Body]) -> None:
        """Also when the connection has closed."""
        timer.cancel()
        for acknowledgement, (partition, _answer) in waiting.items():
            partition.acknowledgements.remove(acknowledgement)

    for partition, offset, answer in written:
        acknowledgement = Acknowledgement(offset, settle)
        if not partition.acknowledge(acknowledgement):
            waiting[acknowledgement] = (partition, answer)
    if not waiting:
        return body
    timer = asyncio.get_running_loop().call_later(TIMEOUT_S, give_up)
    everyone.add_done_callback(end)
    return everyone
