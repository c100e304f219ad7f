"""CreateTopics (19, versions 2 to 7), DeleteTopics (20, 1 to 6), CreatePartitions (37, 0 to 3) and
DeleteRecords (21, 0 to 2).

Any broker serves the first three: it writes what is wanted to ZooKeeper, the controller carries it out,
and the answer waits until this broker sees the result, so that a client that goes on at once finds its
topic (or, after the request's timeout, REQUEST_TIMED_OUT; the wish stands).

- CreateTopics: partitions and replication factor of -1 mean the broker's defaults (v4 on, KIP-464; served
  for all versions); manual assignments must number the partitions 0..n-1. v5 answers the topic's settings,
  v7 its id. Names: 1 to 249 of `[a-zA-Z0-9._-]`, not `.` or `..`; two names that differ only in `.` and
  `_` collide in metrics and are refused.
- DeleteTopics: by name, or by id from v6 on.
- CreatePartitions: never fewer than there are.
- DeleteRecords: only the leader serves it; offset -1 means the high watermark.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from mainstem_broker.api.context import BrokerContext, RequestContext, milliseconds
from mainstem_broker.api.described_configs import describe_topic
from mainstem_broker.cluster.reassignment import move_of
from mainstem_broker.cluster.znodes import TopicAssignment
from mainstem_broker.config import check_topic_overrides
from mainstem_broker.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidRequest,
    InvalidSetting,
    InvalidTopic,
    PolicyViolation,
    ProtocolError,
    TopicAlreadyExists,
    UnknownTopicId,
)
from mainstem_broker.protocol.wire import NULL_UUID, Body, Entity
from mainstem_broker.replica.placement import Assignment, assign_replicas

"""What brokers keep for themselves. They may be made and deleted as others, as in Apache Kafka."""
TOPIC_NAME_LENGTH_MAX: Final = 249
"""With the partition's number and a suffix it must fit into a file name of 255 bytes."""
PARTITIONS_PER_TOPIC_MAX: Final = 10_000
"""Bounds what one request can make ZooKeeper and the disks hold; more come by CreatePartitions."""

CREATED_CONFIG_FIELDS: Final = ("name", "value", "read_only", "config_source", "is_sensitive")
"""What a CreateTopics answer says of a setting; DescribeConfigs says more."""

_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str | None) -> None:
    """Raise InvalidTopic if `name` is no name for a topic."""
    if not name:
        raise InvalidTopic("A topic's name must not be empty.")
    if name in (".", ".."):
        raise InvalidTopic(f"A topic's name must not be '{name}'.")
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        raise InvalidTopic(
            f"A topic's name has at most {TOPIC_NAME_LENGTH_MAX} characters, this one {len(name)}."
        )
    if not _TOPIC_NAME.fullmatch(name):
        raise InvalidTopic(f"The topic name {name!r} has characters other than a-z, A-Z, 0-9, '.', '_', '-'.")


# --- CreateTopics ---


async def handle_create_topics(broker: BrokerContext, request: Entity, _context: RequestContext) -> Body:
    times_named = Counter(topic.name for topic in request.topics)
    results = []
    for topic in request.topics:
        try:
            if times_named[topic.name] > 1:
                raise InvalidRequest(f"The request names topic '{topic.name}' more than once.")
            results.append(await _create(broker, topic, milliseconds(request.timeout), request.validate_only))
        except ProtocolError as error:
            results.append(
                {
                    "name": topic.name,
                    "topic_id": None,
                    "error_code": error.code,
                    "error_message": error.message,
                    "topic_config_error_code": 0,
                    "configs": (),
                }
            )
    return {"throttle_time": 0, "topics": results}


async def _create(broker: BrokerContext, topic: Any, timeout_ms: int, validate_only: bool) -> Body:
    check_topic_name(topic.name)
    manual = _manual_assignment(topic) if topic.assignments else None
    if manual is not None and (topic.num_partitions != -1 or topic.replication_factor != -1):
        raise InvalidRequest(
            "Both a manual assignment and a number of partitions or replicas were given: leave out one."
        )
    overrides = {config.name: config.value for config in topic.configs}
    if None in overrides.values():
        raise InvalidConfig("A topic's setting needs a value; leave out those that are to have the default.")
    assignment = await create_topic(
        broker,
        topic.name,
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        manual=manual,
        overrides=overrides,
        timeout_ms=timeout_ms,
        validate_only=validate_only,
    )
    return {
        "name": topic.name,
        "topic_id": NULL_UUID if validate_only else assignment.topic_id,
        "error_code": 0,
        "error_message": None,
        "topic_config_error_code": 0,
        "num_partitions": len(assignment.replicas),
        "replication_factor": len(assignment.replicas[0]),
        "configs": [
            {name: described[name] for name in CREATED_CONFIG_FIELDS}
            for described in describe_topic(broker.config, overrides)
        ],
    }


async def create_topic(
    broker: BrokerContext,
    name: str,
    *,
    partition_count: int,
    replication_factor: int,
    manual: Assignment | None = None,
    overrides: Mapping[str, str] | None = None,
    timeout_ms: int = 0,
    validate_only: bool = False,
) -> TopicAssignment:
    """Create a topic and wait at most `timeout_ms` until all its partitions are led (0: do not wait).

    Counts of -1 are the broker's defaults.

    Raises:
        ProtocolError: the name is taken or collides, counts or assignment or settings do not fit, or
            RequestTimedOut.
    """
    view = broker.view
    _check_free(broker, name)
    try:
        check_topic_overrides(overrides or {})
    except InvalidSetting as error:
        raise InvalidConfig(str(error)) from None
    if manual is not None:
        _check_brokers_exist(broker, manual.values())
        replicas = manual
    else:
        if partition_count == -1:
            partition_count = broker.config.integer("num.partitions")
        if replication_factor == -1:
            replication_factor = broker.config.integer("default.replication.factor")
        if partition_count < 1:
            raise InvalidPartitions("A topic needs at least one partition.")
        if partition_count > PARTITIONS_PER_TOPIC_MAX:
            raise PolicyViolation(
                f"At most {PARTITIONS_PER_TOPIC_MAX} partitions can be created at once,"
                f" not {partition_count}."
            )
        racks = {broker_id: registration.rack for broker_id, registration in view.brokers.items()}
        # The start depends on the name alone, so that topics spread and a repeated request is the same.
        start = zlib.crc32(name.encode()) % max(len(racks), 1)
        replicas = assign_replicas(racks, partition_count, replication_factor, start=start)
    assignment = TopicAssignment(name, uuid4(), replicas)
    if validate_only:
        return assignment
    await broker.member.administration.create_topic(assignment, overrides or {})
    if timeout_ms > 0:

        def is_led() -> bool:
            topic = view.topics.get(name)
            return topic is not None and topic.topic_id == assignment.topic_id and topic.all_led(replicas)

        await broker.member.wait_until(is_led, timeout_ms)
    return assignment


def _check_free(broker: BrokerContext, name: str) -> None:
    topics = broker.view.topics
    if name in topics:
        waiting = " and is being deleted" if name in broker.view.pending_deletions else ""
        raise TopicAlreadyExists(f"Topic '{name}' already exists{waiting}.")
    if "." in name or "_" in name:
        like = name.replace(".", "_")
        for other in topics:
            if other.replace(".", "_") == like:
                raise InvalidTopic(f"Topic '{name}' collides with existing topic '{other}'.")


def _manual_assignment(topic: Any) -> Assignment:
    replicas = {item.partition_index: tuple(item.broker_ids) for item in topic.assignments}
    if sorted(replicas) != list(range(len(topic.assignments))):
        raise InvalidReplicaAssignment("A manual assignment must number its partitions 0 to n-1, each once.")
    _check_shape(list(replicas.values()), len(replicas[0]))
    return replicas


def _check_shape(assignments: Sequence[tuple[int, ...]], replication_factor: int) -> None:
    for brokers in assignments:
        if not brokers or len(set(brokers)) != len(brokers):
            raise InvalidReplicaAssignment(f"Replicas {list(brokers)} are none, or name a broker twice.")
        if len(brokers) != replication_factor:
            raise InvalidReplicaAssignment("All partitions of a topic must have the same number of replicas.")


def _check_brokers_exist(broker: BrokerContext, assignments: Any) -> None:
    unknown = {broker_id for brokers in assignments for broker_id in brokers} - broker.view.brokers.keys()
    if unknown:
        raise InvalidReplicaAssignment(f"There are no live brokers with the ids {sorted(unknown)}.")


# --- DeleteTopics ---


async def handle_delete_topics(broker: BrokerContext, request: Entity, context: RequestContext) -> Body:
    if context.version >= 6:
        asked = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        asked = [(name, None) for name in request.topic_names]
    results = []
    for name, topic_id in asked:
        result = {"name": name, "topic_id": topic_id, "error_code": 0}
        try:
            if topic_id is not None and topic_id.int != 0:
                if topic_id not in broker.view.topic_names:
                    raise UnknownTopicId(f"There is no topic with the id {topic_id}.")
                result["name"] = broker.view.topic_names[topic_id]
            result.update(await _delete(broker, result["name"], milliseconds(request.timeout)))
        except ProtocolError as error:
            result["error_code"] = error.code
            result["error_message"] = error.message
        results.append(result)
    return {"throttle_time": 0, "responses": results}


async def _delete(broker: BrokerContext, name: str, timeout_ms: int) -> Body:
    if not broker.config.flag("delete.topic.enable"):
        raise InvalidRequest("Topics cannot be deleted: delete.topic.enable is false.")
    topic_id = broker.require_topic(name).topic_id
    await broker.member.administration.delete_topic(name, topic_id)
    if timeout_ms > 0:
        await broker.member.wait_until(lambda: topic_id not in broker.view.topic_names, timeout_ms)
        # So that no client that goes on at once reads from a leader which has not heard of it yet.
        await broker.member.administration.wait_removed(topic_id, lambda: broker.view.brokers, timeout_ms)
    return {"name": name, "topic_id": topic_id}


# --- CreatePartitions ---


async def handle_create_partitions(broker: BrokerContext, request: Entity, _context: RequestContext) -> Body:
    results = []
    for topic in request.topics:
        result: dict[str, Any] = {"name": topic.name, "error_code": 0}
        try:
            await _grow(broker, topic, milliseconds(request.timeout), request.validate_only)
        except ProtocolError as error:
            result["error_code"] = error.code
            result["error_message"] = error.message
        results.append(result)
    return {"throttle_time": 0, "results": results}


async def _grow(broker: BrokerContext, asked: Any, timeout_ms: int, validate_only: bool) -> None:
    topic = broker.require_topic(asked.name)
    present = len(topic.assignment.replicas)
    if asked.count <= present:
        raise InvalidPartitions(
            f"Topic '{asked.name}' has {present} partitions, and a topic can only grow: {asked.count} is not"
            " more."
        )
    count = asked.count - present
    if count > PARTITIONS_PER_TOPIC_MAX:
        raise PolicyViolation(f"At most {PARTITIONS_PER_TOPIC_MAX} partitions can be created at once.")
    replication_factor = len(move_of(topic.assignment, 0).target)
    if asked.assignments is None:
        racks = {broker_id: registration.rack for broker_id, registration in broker.view.brokers.items()}
        start = zlib.crc32(asked.name.encode()) % max(len(racks), 1)
        added = assign_replicas(racks, count, replication_factor, first_partition=present, start=start)
    else:
        manual = [tuple(item.broker_ids) for item in asked.assignments]
        if len(manual) != count:
            raise InvalidReplicaAssignment(
                f"The topic grows by {count} partitions, but {len(manual)} assignments were given."
            )
        _check_shape(manual, replication_factor)
        _check_brokers_exist(broker, manual)
        added = {present + index: brokers for index, brokers in enumerate(manual)}
    if validate_only:
        return
    await broker.member.administration.grow_topic(asked.name, added)
    if timeout_ms > 0:

        def is_led() -> bool:
            # Only the new ones count: a dead broker may keep others without a leader.
            grown = broker.view.topics.get(asked.name)
            return grown is None or grown.all_led(added)

        await broker.member.wait_until(is_led, timeout_ms)


# --- DeleteRecords ---


def handle_delete_records(broker: BrokerContext, request: Entity, _context: RequestContext) -> Body:
    topics = []
    for topic in request.topics:
        partitions = []
        for asked in topic.partitions:
            result = {"partition_index": asked.partition_index, "low_watermark": -1, "error_code": 0}
            try:
                partition = broker.find_replica(topic.name, asked.partition_index)
                result["low_watermark"] = partition.delete_records_before(asked.offset)
            except ProtocolError as error:
                result["error_code"] = error.code
            partitions.append(result)
        topics.append({"name": topic.name, "partitions": partitions})
    return {"throttle_time": 0, "topics": topics}
