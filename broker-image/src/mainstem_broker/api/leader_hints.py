"""Hints in refused produces and fetches: who leads a partition now, and where that broker is (KIP-951).

The client goes there at once, in place of asking for metadata after a pause. A broker that does not know
better than the client gives no hint.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.errors import FencedLeaderEpoch, NotLeaderOrFollower
from mainstem_broker.protocol.wire import Body
from mainstem_broker.replica.partition_state import NO_LEADER

PRODUCE_VERSION: Final = 10
FETCH_VERSION: Final = 16
"""From these versions on responses have the fields."""


def add_leader_hints(
    broker: BrokerContext,
    context: RequestContext,
    body: Body,
    partitions: Iterable[tuple[str | None, int, Body]],
) -> None:
    """Add hints to a response.

    Args:
        body: the response.
        partitions: the topic, the partition's index and its part of the response.
    """
    leaders: set[int] = set()
    for name, index, answer in partitions:
        if answer["error_code"] not in (NotLeaderOrFollower.code, FencedLeaderEpoch.code):
            continue
        topic = broker.view.topics.get(name or "")
        state = None if topic is None else topic.states.get(index)
        if state is None or state.leader == NO_LEADER:
            continue
        if state.leader == broker.broker_id and answer["error_code"] == NotLeaderOrFollower.code:
            continue  # elected, but it cannot serve yet or any more: the client should pause
        answer["current_leader"] = {"leader_id": state.leader, "leader_epoch": state.leader_epoch}
        leaders.add(state.leader)
    endpoints = []
    for broker_id in sorted(leaders):
        registration = broker.view.brokers.get(broker_id)
        endpoint = None if registration is None else registration.endpoint(context.listener)
        if registration is not None and endpoint is not None:
            endpoints.append(
                {
                    "node_id": broker_id,
                    "host": endpoint.host,
                    "port": endpoint.port,
                    "rack": registration.rack,
                }
            )
    if endpoints:
        body["node_endpoints"] = endpoints
