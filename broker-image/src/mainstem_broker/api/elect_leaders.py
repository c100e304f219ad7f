"""ElectLeaders (key 43, versions 0 to 2): preferred and unclean elections on request (KIP-183, KIP-460).

Any broker serves it: it asks through the feed of changes (the leaders for preferred elections, the controller
for unclean ones) and answers when its view shows the outcome of every partition, REQUEST_TIMED_OUT for those
of which it does not in time. v1 adds the kind of election; v0 means preferred ones.

Null asks for all partitions, of which those that need no election are left out of the answer. Otherwise
each is answered: ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE or ELIGIBLE_LEADERS_NOT_AVAILABLE
(`cluster/elections.py` says when), UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from mainstem_broker.api.context import BrokerContext, RequestContext, milliseconds
from mainstem_broker.cluster.controller import ElectionPolicy
from mainstem_broker.cluster.elections import ElectionType, elect_on_request
from mainstem_broker.errors import (
    ElectionNotNeeded,
    InvalidRequest,
    ProtocolError,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from mainstem_broker.protocol.topic_partition import TopicPartition
from mainstem_broker.protocol.wire import Body

if TYPE_CHECKING:
    from kio.schema.elect_leaders.v2.request import ElectLeadersRequest


async def handle(broker: BrokerContext, request: ElectLeadersRequest, _context: RequestContext) -> Body:
    try:
        kind = ElectionType(request.election_type)
    except ValueError:
        error = InvalidRequest(f"There is no election of type {request.election_type}.")
        return {"throttle_time": 0, "error_code": error.code, "replica_election_results": ()}
    if request.topic_partitions is None:
        requested_partitions = [
            (name, partition)
            for name, topic in sorted(broker.view.topics.items())
            if name not in broker.view.pending_deletions
            for partition in sorted(topic.assignment.replicas)
        ]
    else:
        requested_partitions = [
            (topic.topic, partition)
            for topic in request.topic_partitions
            for partition in dict.fromkeys(topic.partitions)
        ]
    outcomes = await _elect(broker, kind, requested_partitions, milliseconds(request.timeout))
    results: dict[str, list[Body]] = {}
    for (name, partition), outcome in outcomes.items():
        if request.topic_partitions is None and isinstance(outcome, ElectionNotNeeded):
            continue
        results.setdefault(name, []).append(
            {
                "partition_id": partition,
                "error_code": 0 if outcome is None else outcome.code,
                "error_message": None if outcome is None else outcome.message,
            }
        )
    return {
        "throttle_time": 0,
        "error_code": 0,
        "replica_election_results": [
            {"topic": name, "partition_result": partitions} for name, partitions in results.items()
        ],
    }


def refuse(request: ElectLeadersRequest, error: ProtocolError) -> Body:
    """The answer to a client that may not request elections; version 0 has errors per partition only."""
    results = [
        {
            "topic": topic.topic,
            "partition_result": [
                {"partition_id": partition, "error_code": error.code, "error_message": error.message}
                for partition in topic.partitions
            ],
        }
        for topic in request.topic_partitions or ()
    ]
    return {"throttle_time": 0, "error_code": error.code, "replica_election_results": results}


async def _elect(
    broker: BrokerContext, kind: ElectionType, requested_partitions: Iterable[TopicPartition], timeout_ms: int
) -> dict[TopicPartition, ProtocolError | None]:
    """What became of each; None: a new leader was elected."""
    outcomes = {partition: _obstacle(broker, kind, partition) for partition in requested_partitions}
    expected_leaders = {
        (name, partition): broker.view.topics[name].topic_id
        for (name, partition), obstacle in outcomes.items()
        if obstacle is None
    }
    if not expected_leaders:
        return outcomes
    waiting = set(expected_leaders)

    def all_settled() -> bool:
        # An election that is no longer needed, or has become impossible, is settled too.
        waiting.difference_update(
            [partition for partition in waiting if _obstacle(broker, kind, partition) is not None]
        )
        return not waiting

    try:
        await broker.member.administration.ask_for_elections(
            (topic_id, partition, int(kind)) for (_, partition), topic_id in expected_leaders.items()
        )
        await broker.member.wait_until(all_settled, timeout_ms)
    except RequestTimedOut as error:
        outcomes.update(dict.fromkeys(waiting, error))
    for partition, topic_id in expected_leaders.items():
        if partition not in waiting:
            outcomes[partition] = _after(broker, kind, partition, topic_id)
    return outcomes


def _after(
    broker: BrokerContext, kind: ElectionType, partition: TopicPartition, topic_id: UUID
) -> ProtocolError | None:
    obstacle = _obstacle(broker, kind, partition)
    topic = broker.view.topics.get(partition[0])
    if isinstance(obstacle, ElectionNotNeeded) and topic is not None and topic.topic_id == topic_id:
        return None  # that is what was wanted
    return obstacle


def _obstacle(broker: BrokerContext, kind: ElectionType, partition: TopicPartition) -> ProtocolError | None:
    """Why this election cannot be held now, or None if it can."""
    name, index = partition
    view = broker.view
    topic = view.topics.get(name)
    if topic is None or name in view.pending_deletions or index not in topic.assignment.replicas:
        return UnknownTopicOrPartition(f"There is no {name}-{index}.")
    state = topic.states.get(index)
    if state is None:
        return ElectionNotNeeded(f"{name}-{index} is new and gets its first leader.")
    try:
        elect_on_request(
            kind,
            state,
            topic.assignment.replicas[index],
            view.brokers,
            ElectionPolicy(),  # whether it can be held does not depend on the topic's settings
            topic.claims.get(index, {}),
        )
    except ProtocolError as error:
        return error
    return None
