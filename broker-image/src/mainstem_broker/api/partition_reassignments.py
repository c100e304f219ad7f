"""AlterPartitionReassignments (45, versions 0 and 1), ListPartitionReassignments (46, 0 to 0): KIP-455.

Any broker serves both. A reassignment is a request, written to ZooKeeper and executed by the controller
(`cluster/reassignment.py`); the answer waits until this broker's view shows the wish, not its end, which
may take hours. Each partition is accepted or refused by itself.

- Replicas: at least one, none twice, and those that the partition does not have yet must live
  (INVALID_REPLICA_ASSIGNMENT). The number of replicas may change, unless v1 forbids it (KIP-860).
- A new target replaces one under way. Null takes it back: NO_REASSIGNMENT_IN_PROGRESS if there is none.
- ListPartitionReassignments lists partitions whose move has not ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainstem_broker.api.context import BrokerContext, RequestContext, milliseconds
from mainstem_broker.cluster.reassignment import Move, is_moving, move_of, moving_partitions, with_moves
from mainstem_broker.cluster.view import ClusterView, Topic
from mainstem_broker.cluster.znodes import TopicAssignment
from mainstem_broker.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    NoReassignmentInProgress,
    ProtocolError,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from mainstem_broker.protocol.wire import Body

if TYPE_CHECKING:
    from kio.schema.alter_partition_reassignments.v1.request import AlterPartitionReassignmentsRequest
    from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest


async def handle_alter(
    broker: BrokerContext, request: AlterPartitionReassignmentsRequest, _context: RequestContext
) -> Body:
    timeout_ms = milliseconds(request.timeout)
    answer: dict[str, Any] = {
        "throttle_time": 0,
        "allow_replication_factor_change": request.allow_replication_factor_change,
        "error_code": 0,
        "error_message": None,
    }
    responses = []
    for topic in request.topics:
        try:
            errors = await _alter(broker, topic, request.allow_replication_factor_change, timeout_ms)
        except RequestTimedOut as error:
            errors = {}
            answer |= {"error_code": error.code, "error_message": error.message}
        except ProtocolError as error:
            errors = dict.fromkeys(range(len(topic.partitions)), error)
        partitions = [
            _result(requested.partition_index, errors.get(position))
            for position, requested in enumerate(topic.partitions)
        ]
        responses.append({"name": topic.name, "partitions": partitions})
    return {**answer, "responses": responses}


def _result(partition: int, error: ProtocolError | None) -> Body:
    return {
        "partition_index": partition,
        "error_code": 0 if error is None else error.code,
        "error_message": None if error is None else error.message,
    }


async def _alter(
    broker: BrokerContext, requested: Any, may_change_factor: bool, timeout_ms: int
) -> dict[int, ProtocolError]:
    """Write the requested moves of one topic; returns those that were refused, by position in the request.

    Of several moves of one partition the last one that can be carried out counts, as in Kafka.
    """
    topic = _topic(broker.view, requested.name)
    errors: dict[int, ProtocolError] = {}

    def change(assignment: TopicAssignment) -> TopicAssignment:
        errors.clear()
        moves = {}
        for position, item in enumerate(requested.partitions):
            partition = item.partition_index
            try:
                if partition not in assignment.replicas:
                    raise UnknownTopicOrPartition(f"There is no {requested.name}-{partition}.")
                move = move_of(assignment, partition)
                moves[partition] = _moved(broker.view, move, item.replicas, may_change_factor)
            except ProtocolError as error:
                errors[position] = error
        return with_moves(assignment, moves)

    version = await broker.member.administration.change_assignment(topic.name, topic.topic_id, change)

    def is_known() -> bool:
        return (
            topic.topic_id not in broker.view.topic_names
            or broker.view.topics[topic.name].assignment.version >= version
        )

    await broker.member.wait_until(is_known, timeout_ms)
    return errors


def _topic(view: ClusterView, name: str) -> Topic:
    topic = view.topics.get(name)
    if topic is None or name in view.pending_deletions:
        raise UnknownTopicOrPartition(f"There is no topic '{name}'.")
    return topic


def _moved(view: ClusterView, move: Move, replicas: tuple[int, ...] | None, may_change_factor: bool) -> Move:
    """The move that is wished for.

    Raises:
        ProtocolError: it makes no sense, see the head of this file.
    """
    if replicas is None:
        if not move.is_under_way:
            raise NoReassignmentInProgress("The partition's replicas are not being moved.")
        return move.towards(move.origin)
    if not replicas:
        raise InvalidReplicaAssignment("A partition needs at least one replica.")
    if len(set(replicas)) != len(replicas):
        raise InvalidReplicaAssignment(f"The replicas {list(replicas)} name a broker twice.")
    dead = [broker for broker in replicas if broker not in move.replicas and broker not in view.brokers]
    if dead:
        raise InvalidReplicaAssignment(f"There are no live brokers with the ids {dead}.")
    if not may_change_factor and len(replicas) != len(move.target):
        raise InvalidReplicationFactor(
            f"The partition has {len(move.target)} replicas, and {len(replicas)} were given."
        )
    return move.towards(tuple(replicas))


def handle_list(
    broker: BrokerContext, request: ListPartitionReassignmentsRequest, _context: RequestContext
) -> Body:
    view = broker.view
    if request.topics is None:
        requested_partitions = {
            name: moving
            for name, topic in sorted(view.topics.items())
            if (moving := moving_partitions(topic.assignment))
        }
    else:
        requested_partitions = {
            topic.name: [
                partition
                for partition in topic.partition_indexes
                if is_moving(view.topics[topic.name].assignment, partition)
            ]
            for topic in request.topics
            if topic.name in view.topics
        }
    topics = [
        {
            "name": name,
            "partitions": [_listed(view.topics[name].assignment, partition) for partition in partitions],
        }
        for name, partitions in requested_partitions.items()
        if partitions
    ]
    return {"throttle_time": 0, "error_code": 0, "error_message": None, "topics": topics}


def _listed(assignment: TopicAssignment, partition: int) -> Body:
    move = move_of(assignment, partition)
    return {
        "partition_index": partition,
        "replicas": move.replicas,
        "adding_replicas": move.adding,
        "removing_replicas": move.removing,
    }
