"""CreateTopics (19, versions 2 to 7), DeleteTopics (20, 1 to 6) and CreatePartitions (37, 0 to 3).

Any broker serves them: it writes what is wanted to ZooKeeper, the controller carries it out,
and the answer waits until this broker sees the result, so that a client that goes on at once finds its
topic (or, after the request's timeout, REQUEST_TIMED_OUT; the wish stands).

- CreateTopics: all topics of a request are written in few transactions, and each fails by itself; the
  request's timeout is for all of them together. Partitions and replication factor of -1 mean the broker's
  defaults (v4 on, KIP-464; served for all versions); manual assignments must number the partitions 0..n-1.
  v5 answers the topic's settings, v7 its id. Names: 1 to 249 of `[a-zA-Z0-9._-]`, not `.` or `..`; two names
  that differ only in `.` and `_` collide in metrics and are refused.
- controller_mutation_rate (KIP-599) counts the partitions that they create or delete. Where it is
  exceeded, CreateTopics v6, DeleteTopics v5 and CreatePartitions v3 refuse the rest of the topics with
  THROTTLING_QUOTA_EXCEEDED; older clients are only made to wait.
- DeleteTopics: by name, or by id from v6 on. A topic that a request names more than once, in whatever way,
  is refused with INVALID_REQUEST, and so is an entry with both name and id, or with neither.
  CreatePartitions: never fewer than there are. Both write all topics of a request in few transactions, as
  CreateTopics does.
- The internal topics never grow. The number of their partitions says where a group or a transactional id is
  kept, so with another number their committed offsets and open transactions would be looked for elsewhere.
  Kafka allows it, and loses sight of them when its brokers restart.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

from mainstem_broker.api.authorization import (
    allows,
    grants_on_cluster,
    may_describe_requested,
    may_describe_topic,
    require_topic,
)
from mainstem_broker.api.config_entries import describe_topic
from mainstem_broker.api.context import INTERNAL_TOPICS, BrokerContext, RequestContext, milliseconds
from mainstem_broker.cluster.administration import NewTopic
from mainstem_broker.cluster.reassignment import move_of
from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.cluster.znodes import TopicAssignment
from mainstem_broker.config.topic_settings import check_topic_overrides
from mainstem_broker.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidRequest,
    InvalidSetting,
    InvalidTopic,
    PolicyViolation,
    ProtocolError,
    RequestTimedOut,
    TopicAlreadyExists,
    TopicAuthorizationFailed,
    TopicDeletionDisabled,
    UnknownTopicId,
)
from mainstem_broker.protocol.topic_partition import TopicPartition
from mainstem_broker.protocol.wire import NULL_UUID, Body
from mainstem_broker.quota.client_quotas import Mutations
from mainstem_broker.replica.placement import Assignment, assign_replicas
from mainstem_broker.security.acl import Operation, ResourceType

if TYPE_CHECKING:
    from kio.schema.create_partitions.v3.request import CreatePartitionsRequest, CreatePartitionsTopic
    from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
    from kio.schema.delete_topics.v6.request import DeleteTopicsRequest

TOPIC_NAME_LENGTH_MAX: Final = 249
"""With the partition's number and a suffix it must fit into a file name of 255 bytes."""
PARTITIONS_PER_TOPIC_MAX: Final = 10_000
"""Bounds what one request can make ZooKeeper and the disks hold; more come by CreatePartitions."""

CREATE_TOPICS_STRICT_VERSION: Final = 6
DELETE_TOPICS_STRICT_VERSION: Final = 5
CREATE_PARTITIONS_STRICT_VERSION: Final = 3
"""From these versions on clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""
TOPIC_DELETION_DISABLED_VERSION: Final = 3
"""From this version of DeleteTopics on clients know TOPIC_DELETION_DISABLED (KIP-322)."""

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


async def handle_create_topics(
    broker: BrokerContext, request: CreateTopicsRequest, context: RequestContext
) -> Body:
    times_named = Counter(topic.name for topic in request.topics)
    taken_names = TakenNames(broker.view)
    mutations = context.mutations(broker, strict=context.version >= CREATE_TOPICS_STRICT_VERSION)
    planned: dict[str, NewTopic] = {}
    errors: dict[str, ProtocolError] = {}
    for topic in request.topics:
        try:
            if times_named[topic.name] > 1:
                raise InvalidRequest(f"The request names topic '{topic.name}' more than once.")
            require_creation(broker, context, topic.name)
            new = _plan(broker, topic, taken_names)
            if not request.validate_only:
                mutations.take(len(new.assignment.replicas))
            planned[topic.name] = new
            taken_names.add(topic.name)
        except ProtocolError as error:
            errors[topic.name] = error
        await asyncio.sleep(0)  # thousands of partitions may be placed: others get their turn
    if not request.validate_only:
        errors |= await _create_all(broker, list(planned.values()), milliseconds(request.timeout))
    results = [
        _not_created(topic.name, errors[topic.name])
        if topic.name in errors
        else _created(broker, context, planned[topic.name], validate_only=request.validate_only)
        for topic in request.topics
    ]
    return {"throttle_time": mutations.wait_ms, "topics": results}


def _not_created(name: str, error: ProtocolError) -> Body:
    return {
        "name": name,
        "topic_id": None,
        "error_code": error.code,
        "error_message": error.message,
        "topic_config_error_code": 0,
        "configs": (),
    }


def _created(broker: BrokerContext, context: RequestContext, new: NewTopic, *, validate_only: bool) -> Body:
    name, replicas = new.assignment.topic, new.assignment.replicas
    body: Body = {
        "name": name,
        "topic_id": NULL_UUID if validate_only else new.assignment.topic_id,
        "error_code": 0,
        "error_message": None,
    }
    if not allows(broker, context, Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, name, quietly=True):
        return body | {"topic_config_error_code": TopicAuthorizationFailed.code, **_NO_DETAILS}
    return body | {
        "topic_config_error_code": 0,
        "num_partitions": len(replicas),
        "replication_factor": len(replicas[0]),
        "configs": [
            {name: described[name] for name in CREATED_CONFIG_FIELDS}
            for described in describe_topic(broker.config, new.config)
        ],
    }


_NO_DETAILS: Final = {"num_partitions": -1, "replication_factor": -1, "configs": None}


def require_creation(broker: BrokerContext, context: RequestContext, name: str) -> None:
    """Raise TopicAuthorizationFailed if the client may create topics neither in the cluster nor of this
    name."""
    if not grants_on_cluster(broker, context, Operation.CREATE):
        require_topic(broker, context, Operation.CREATE, name)


class TakenNames:
    """The names that a new topic cannot have: those of topics, and those that differ from one only in '.' and
    '_'."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._added: set[str] = set()
        self._unified: set[str] | None = None

    def add(self, name: str) -> None:
        """Another topic is about to be created."""
        self._added.add(name)
        if self._unified is not None:
            self._unified.add(_unified(name))

    def check(self, name: str) -> None:
        """Raise TopicAlreadyExists or InvalidTopic if a new topic cannot have this name."""
        if name in self._view.topics:
            waiting = " and is being deleted" if name in self._view.pending_deletions else ""
            raise TopicAlreadyExists(f"Topic '{name}' already exists{waiting}.")
        if "." in name or "_" in name:
            if self._unified is None:
                self._unified = {_unified(taken) for taken in (*self._view.topics, *self._added)}
            if _unified(name) in self._unified:
                raise InvalidTopic(
                    f"Topic '{name}' collides with an existing topic: their names differ only in '.' and '_'."
                )


def _unified(name: str) -> str:
    return name.replace(".", "_")


def _plan(broker: BrokerContext, topic: CreatableTopic, taken_names: TakenNames) -> NewTopic:
    """What a CreateTopics request wants, checked. Raises ProtocolError if it cannot be."""
    check_topic_name(topic.name)
    taken_names.check(topic.name)  # first: clients that only make sure of a topic take this for success
    manual = _manual_assignment(topic) if topic.assignments else None
    if manual is not None and (topic.num_partitions != -1 or topic.replication_factor != -1):
        raise InvalidRequest(
            "Both a manual assignment and a number of partitions or replicas were given: leave out one."
        )
    overrides = {config.name: config.value for config in topic.configs}
    if None in overrides.values():
        raise InvalidConfig("A topic's setting needs a value; leave out those that are to have the default.")
    try:
        broker.config.check_new_topic_overrides(overrides, {})
    except InvalidSetting as error:
        raise InvalidConfig(str(error)) from None
    return plan_topic(
        broker,
        topic.name,
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        manual=manual,
        overrides=overrides,
    )


def plan_topic(
    broker: BrokerContext,
    name: str,
    *,
    partition_count: int,
    replication_factor: int,
    manual: Assignment | None = None,
    overrides: Mapping[str, str] | None = None,
) -> NewTopic:
    """A topic with its replicas placed. Counts of -1 are the broker's defaults.

    Raises:
        ProtocolError: counts or assignment or settings do not fit.
    """
    view = broker.view
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
    return NewTopic(TopicAssignment(name, uuid4(), replicas), overrides or {})


async def create_topic(
    broker: BrokerContext,
    name: str,
    *,
    partition_count: int,
    replication_factor: int,
    overrides: Mapping[str, str] | None = None,
    timeout_ms: int = 0,
    mutations: Mutations | None = None,
) -> None:
    """Create a topic and wait at most `timeout_ms` until all its partitions are led (0: do not wait).

    Counts of -1 are the broker's defaults. `mutations` are of the client for whom it is created.

    Raises:
        ProtocolError: the name is taken or collides, counts or settings do not fit, or RequestTimedOut.
    """
    TakenNames(broker.view).check(name)
    new = plan_topic(
        broker,
        name,
        partition_count=partition_count,
        replication_factor=replication_factor,
        overrides=overrides,
    )
    if mutations is not None:
        mutations.take(len(new.assignment.replicas))
    for error in (await _create_all(broker, [new], timeout_ms)).values():
        raise error


async def _create_all(
    broker: BrokerContext, new_topics: Sequence[NewTopic], timeout_ms: int
) -> dict[str, ProtocolError]:
    """Create topics and wait until they are led, and served by this broker where it leads them; at most
    `timeout_ms` for all. Return the errors by name."""
    deadline_s = monotonic() + timeout_ms / 1000
    errors = await broker.member.administration.create_topics(new_topics)
    waiting = [new.assignment for new in new_topics if new.assignment.topic not in errors]

    def are_led() -> bool:
        nonlocal waiting
        waiting = [assignment for assignment in waiting if not _is_led(broker.view, assignment)]
        return not waiting

    if timeout_ms > 0:
        try:
            await broker.member.wait_until(are_led, _left_ms(deadline_s))
        except RequestTimedOut as error:
            errors |= {assignment.topic: error for assignment in waiting}
        created = [
            (new.assignment.topic, index)
            for new in new_topics
            if new.assignment.topic not in errors
            for index in new.assignment.replicas
        ]
        unopened = await _open_own(broker, created, deadline_s)
        errors |= {topic: RequestTimedOut("The topic's logs are being created.") for topic in unopened}
    return errors


async def _open_own(broker: BrokerContext, created: Iterable[TopicPartition], deadline_s: float) -> set[str]:
    """Wait until this broker serves what it leads of new partitions: their logs are created in threads. On a
    slow disk that takes longer than a Produce or Fetch request would wait. Return the topics with logs that
    are not open in time.
    """
    topics = broker.view.topics
    own = [
        (topic, index)
        for topic, index in created
        if topic in topics
        and index in topics[topic].states
        and topics[topic].states[index].leader == broker.broker_id
    ]
    await broker.opening.wait(own, _left_ms(deadline_s) / 1000)
    if not broker.leads_all(own):  # the view is newer than what the replicas have heard of it
        await broker.catch_up()
        await broker.opening.wait(own, _left_ms(deadline_s) / 1000)
    return {topic for topic, index in own if (topic, index) in broker.opening}


def _is_led(view: ClusterView, assignment: TopicAssignment) -> bool:
    topic = view.topics.get(assignment.topic)
    return topic is not None and topic.topic_id == assignment.topic_id and topic.all_led(assignment.replicas)


def _manual_assignment(topic: CreatableTopic) -> Assignment:
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


async def handle_delete_topics(
    broker: BrokerContext, request: DeleteTopicsRequest, context: RequestContext
) -> Body:
    if context.version >= 6:
        requested_topics = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        requested_topics = [(name, None) for name in request.topic_names]
    mutations = context.mutations(broker, strict=context.version >= DELETE_TOPICS_STRICT_VERSION)
    is_disabled = not broker.config.flag("delete.topic.enable")
    disabled = InvalidRequest if context.version < TOPIC_DELETION_DISABLED_VERSION else TopicDeletionDisabled
    topic_names = broker.view.topic_names
    times_named = Counter(
        name if topic_id is None or topic_id.int == 0 else topic_names.get(topic_id, topic_id)
        for name, topic_id in requested_topics
    )
    results: list[Body] = []
    doomed: dict[str, UUID] = {}
    for name, topic_id in requested_topics:
        result: Body = {"name": name, "topic_id": topic_id, "error_code": 0}
        results.append(result)
        try:
            if is_disabled:
                raise disabled("Topics cannot be deleted: delete.topic.enable is false.")
            has_id = topic_id is not None and topic_id.int != 0
            if has_id == (name is not None):
                raise InvalidRequest("A topic to delete needs either a name or an id.")
            if topic_id is not None and has_id:
                known_name = topic_names.get(topic_id)
                if known_name is None or not _may_name(broker, context, known_name):
                    raise UnknownTopicId(f"There is no topic with the id {topic_id}.")
                result["name"] = known_name
            _require_deletion(broker, context, result["name"])
            if times_named[result["name"]] > 1:
                raise InvalidRequest(f"The request names topic '{result['name']}' more than once.")
            topic = broker.require_topic(result["name"])
            mutations.take(len(topic.assignment.replicas))
            result["topic_id"] = doomed[result["name"]] = topic.topic_id
        except ProtocolError as error:
            _take_error(result, error)
        await asyncio.sleep(0)  # there may be thousands: others get their turn
    errors = await _delete_all(broker, doomed, milliseconds(request.timeout))
    for result in results:
        if result["name"] in errors and not result["error_code"]:
            _take_error(result, errors[result["name"]])
    return {"throttle_time": mutations.wait_ms, "responses": results}


def _require_deletion(broker: BrokerContext, context: RequestContext, name: str) -> None:
    """Raise TopicAuthorizationFailed if the client may delete neither this topic nor, by a rule for all
    operations on the cluster, any."""
    authorizer = broker.authorizer
    if authorizer is None:
        return
    # First, because its record in the audit log names the topic.
    of_topic = authorizer.decide(context.principal, context.host, Operation.DELETE, ResourceType.TOPIC, name)
    is_granted = of_topic.is_allowed and not of_topic.is_dry
    if is_granted or not grants_on_cluster(broker, context, Operation.DELETE):
        require_topic(broker, context, Operation.DELETE, name)


def _may_name(broker: BrokerContext, context: RequestContext, name: str) -> bool:
    """Whether the client may hear the name of a topic that it wants to delete by its id."""
    return (
        may_describe_topic(broker, context, name)
        or grants_on_cluster(broker, context, Operation.DELETE)
        or may_describe_requested(broker, context, name)
    )


def _take_error(result: Body, error: ProtocolError) -> None:
    result["error_code"] = error.code
    result["error_message"] = error.message


async def _delete_all(
    broker: BrokerContext, topics: Mapping[str, UUID], timeout_ms: int
) -> dict[str, ProtocolError]:
    """Delete topics and wait until they are gone, at most `timeout_ms` for all; return the errors by name."""
    deadline_s = monotonic() + timeout_ms / 1000
    errors = await broker.member.administration.delete_topics(topics)
    requested = {name: topic_id for name, topic_id in topics.items() if name not in errors}
    if timeout_ms <= 0:
        return errors
    present = requested

    def are_gone() -> bool:
        nonlocal present
        known_ids = broker.view.topic_names
        present = {name: topic_id for name, topic_id in present.items() if topic_id in known_ids}
        return not present

    try:
        await broker.member.wait_until(are_gone, _left_ms(deadline_s))
    except RequestTimedOut as error:
        errors |= dict.fromkeys(present, error)

    def able_to_remove(topic_id: UUID) -> set[int]:
        """The live brokers, without those that have files of the topic on a failed disk."""
        return {
            broker_id
            for broker_id, registration in broker.view.brokers.items()
            if all(offline_id != topic_id for offline_id, _ in registration.offline)
        }

    # So that no client that goes on at once reads from a leader which has not heard of it yet.
    async def wait_removed(name: str) -> None:
        topic_id = requested[name]
        try:
            await broker.member.administration.wait_removed(
                topic_id, lambda: able_to_remove(topic_id), _left_ms(deadline_s)
            )
        except ProtocolError as error:
            errors[name] = error

    await asyncio.gather(*[wait_removed(name) for name in requested if name not in errors])
    return errors


def _left_ms(deadline_s: float) -> float:
    return max(1000 * (deadline_s - monotonic()), 0.0)


# --- CreatePartitions ---


async def handle_create_partitions(
    broker: BrokerContext, request: CreatePartitionsRequest, context: RequestContext
) -> Body:
    times_named = Counter(topic.name for topic in request.topics)
    mutations = context.mutations(broker, strict=context.version >= CREATE_PARTITIONS_STRICT_VERSION)
    added: dict[str, Assignment] = {}
    errors: dict[str, ProtocolError] = {}
    for topic in request.topics:
        try:
            if times_named[topic.name] > 1:
                raise InvalidRequest(f"The request names topic '{topic.name}' more than once.")
            require_topic(broker, context, Operation.ALTER, topic.name)
            planned = _plan_growth(broker, topic)
            if not request.validate_only:
                mutations.take(len(planned))
                added[topic.name] = planned
        except ProtocolError as error:
            errors[topic.name] = error
        await asyncio.sleep(0)  # thousands of partitions may be placed: others get their turn
    errors |= await _grow_all(broker, added, milliseconds(request.timeout))
    results: list[Body] = []
    for topic in request.topics:
        result: Body = {"name": topic.name, "error_code": 0}
        if topic.name in errors:
            _take_error(result, errors[topic.name])
        results.append(result)
    return {"throttle_time": mutations.wait_ms, "results": results}


def _plan_growth(broker: BrokerContext, requested: CreatePartitionsTopic) -> Assignment:
    """The replicas of the partitions to add to a topic. Raises ProtocolError if they cannot be added."""
    topic = broker.require_topic(requested.name)
    if requested.name in INTERNAL_TOPICS:
        raise InvalidPartitions(
            f"Topic '{requested.name}' cannot grow: the number of its partitions says where each group or"
            " transactional id is kept, and what is stored of them would no longer be found."
        )
    present = len(topic.assignment.replicas)
    if requested.count <= present:
        raise InvalidPartitions(
            f"Topic '{requested.name}' has {present} partitions, and a topic can only grow: {requested.count}"
            " is not more."
        )
    count = requested.count - present
    if count > PARTITIONS_PER_TOPIC_MAX:
        raise PolicyViolation(f"At most {PARTITIONS_PER_TOPIC_MAX} partitions can be created at once.")
    replication_factor = len(move_of(topic.assignment, 0).target)
    if requested.assignments is None:
        racks = {broker_id: registration.rack for broker_id, registration in broker.view.brokers.items()}
        start = zlib.crc32(requested.name.encode()) % max(len(racks), 1)
        return assign_replicas(racks, count, replication_factor, first_partition=present, start=start)
    manual = [tuple(item.broker_ids) for item in requested.assignments]
    if len(manual) != count:
        raise InvalidReplicaAssignment(
            f"The topic grows by {count} partitions, but {len(manual)} assignments were given."
        )
    _check_shape(manual, replication_factor)
    _check_brokers_exist(broker, manual)
    return {present + index: brokers for index, brokers in enumerate(manual)}


async def _grow_all(
    broker: BrokerContext, added: Mapping[str, Assignment], timeout_ms: int
) -> dict[str, ProtocolError]:
    """Add partitions and wait until they are led, and served by this broker where it leads them; at most
    `timeout_ms` for all. Return the errors by name."""
    deadline_s = monotonic() + timeout_ms / 1000
    errors = await broker.member.administration.grow_topics(added)
    waiting = {name: partitions for name, partitions in added.items() if name not in errors}

    def are_led() -> bool:
        nonlocal waiting
        topics = broker.view.topics
        # Only the new ones count: a dead broker may keep others without a leader.
        waiting = {
            name: partitions
            for name, partitions in waiting.items()
            if name in topics and not topics[name].all_led(partitions)
        }
        return not waiting

    if timeout_ms > 0:
        try:
            await broker.member.wait_until(are_led, _left_ms(deadline_s))
        except RequestTimedOut as error:
            errors |= dict.fromkeys(waiting, error)
        created = [
            (name, index) for name, indexes in added.items() if name not in errors for index in indexes
        ]
        unopened = await _open_own(broker, created, deadline_s)
        message = "The logs of the new partitions are being created."
        errors |= {name: RequestTimedOut(message) for name in unopened}
    return errors
