"""What groups have committed: OffsetCommit (key 8, versions 2 to 10), OffsetFetch (9, 1 to 10) and
OffsetDelete (47, 0 to 0).

- OffsetCommit is answered when the in-sync replicas have the offsets. v2 to v4 carry a retention time; v6
  leader epochs; v7 static members; v8 flexible; v9 members of KIP-848, by their epoch; v10 topics by id.
  A generation of -1 is a commit without membership, for groups that have no members.
- OffsetFetch: a partition without a committed offset has offset -1 and no error; an error is never answered
  as -1 alone, for clients would begin at auto.offset.reset. v1 has errors per partition only; v2 a null
  list for all partitions; v5 leader epochs; v7 stable offsets: a partition for which an open transaction may
  still commit an offset is answered UNSTABLE_OFFSET_COMMIT (KIP-447); v8 several groups at once; v9 the
  member that asks, which is refused in another epoch than its own (KIP-848); v10 names topics by id.
- OffsetDelete: only of topics that the group's members do not read (KIP-496).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from mainstem_broker.api.authorization import (
    allows,
    may_describe_requested,
    may_describe_topic,
    require_topic,
)
from mainstem_broker.api.classic_groups import partitions_of_named
from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.cluster.view import Topic
from mainstem_broker.config.setting import INT64_MAX
from mainstem_broker.errors import (
    CoordinatorNotAvailable,
    GroupAuthorizationFailed,
    OffsetMetadataTooLarge,
    ProtocolError,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnstableOffsetCommit,
)
from mainstem_broker.group.messages import Commit
from mainstem_broker.group.offsets.records import CommittedOffset
from mainstem_broker.protocol.topic_partition import TopicPartition
from mainstem_broker.protocol.wire import Body
from mainstem_broker.security.acl import Operation, ResourceType

if TYPE_CHECKING:
    from kio.schema.offset_commit.v10.request import OffsetCommitRequest
    from kio.schema.offset_delete.v0.request import OffsetDeleteRequest
    from kio.schema.offset_fetch.v10.request import OffsetFetchRequest

COMMIT_VERSION_BY_ID: Final = 10
FETCH_VERSION_BY_MEMBER: Final = 9
FETCH_VERSION_BY_ID: Final = 10


# --- OffsetCommit ---


def handle_commit(
    broker: BrokerContext, request: OffsetCommitRequest, context: RequestContext
) -> Body | Awaitable[Body]:
    if all(_find_topic(broker, topic, context) is not None for topic in request.topics):
        return _commit(broker, request, context)
    return _commit_after_news(broker, request, context)


async def _commit_after_news(
    broker: BrokerContext, request: OffsetCommitRequest, context: RequestContext
) -> Body:
    """Hear of topics that the client may know from another broker already."""
    await broker.catch_up()
    body = _commit(broker, request, context)
    return body if isinstance(body, dict) else await body


def _find_topic(broker: BrokerContext, named: Any, context: RequestContext) -> Topic | None:
    if context.version < COMMIT_VERSION_BY_ID:
        return broker.view.topics.get(named.name)
    name = broker.view.topic_names.get(named.topic_id)
    return None if name is None else broker.view.topics.get(name)


def _commit(
    broker: BrokerContext, request: OffsetCommitRequest, context: RequestContext
) -> Body | Awaitable[Body]:
    now_ms = broker.now_ms()
    expire_ms = None
    # Of the model of versions 2 to 4.
    if context.version <= 4 and (retention_ms := getattr(request, "retention_time", -1)) >= 0:
        expire_ms = min(now_ms + retention_ms, INT64_MAX)
    topics: list[Body] = []
    offsets: dict[TopicPartition, CommittedOffset] = {}
    accepted: list[Body] = []
    for named in request.topics:
        topic = _find_topic(broker, named, context)
        partitions: list[Body] = []
        for requested in named.partitions:
            answer = {"partition_index": requested.partition_index, "error_code": 0}
            try:
                if topic is not None or context.version < COMMIT_VERSION_BY_ID:
                    _require_readable(broker, named if topic is None else topic, context)
                offset = committed_offset(broker, topic, requested, context, now_ms, expire_ms)
                assert topic is not None
                offsets[topic.name, requested.partition_index] = offset
                accepted.append(answer)
            except ProtocolError as error:
                answer["error_code"] = error.code
            partitions.append(answer)
        name = (
            {"name": named.name} if context.version < COMMIT_VERSION_BY_ID else {"topic_id": named.topic_id}
        )
        topics.append({**name, "partitions": partitions})
    body = {"throttle_time": 0, "topics": topics}
    if not accepted:
        return body
    try:
        stored = broker.groups.commit(
            request.group_id,
            Commit(
                request.member_id,
                getattr(request, "group_instance_id", None),  # from version 7 on
                request.generation_id_or_member_epoch,
                context.version,
                partitions=offsets.keys(),
            ),
            offsets,
        )
        if stored.done():
            stored.result()
            return body
    except ProtocolError as error:
        return _refused(body, accepted, error)
    deadline_s = context.deadline_s(broker.groups.settings.commit_timeout_ms)
    return _commit_when_stored(deadline_s, body, accepted, stored)


async def _commit_when_stored(
    deadline_s: float, body: Body, accepted: Iterable[Body], stored: asyncio.Future[None]
) -> Body:
    try:
        async with asyncio.timeout_at(deadline_s):
            await stored
    except TimeoutError:
        return _refused(body, accepted, CoordinatorNotAvailable("The replicas did not answer in time."))
    except ProtocolError as error:
        return _refused(body, accepted, error)
    return body


def _refused(body: Body, accepted: Iterable[Body], error: ProtocolError) -> Body:
    for answer in accepted:
        answer["error_code"] = error.code
    return body


def _require_readable(broker: BrokerContext, named: Any, context: RequestContext) -> None:
    """Raise if the client may not read the topic; one that it may not describe has no id for it."""
    if context.version >= COMMIT_VERSION_BY_ID and not may_describe_requested(broker, context, named.name):
        raise UnknownTopicId("There is no topic with that id.")
    require_topic(broker, context, Operation.READ, named.name)


def refuse_commit(request: OffsetCommitRequest, error: ProtocolError) -> Body:
    """The answer to a client that may not read the group."""
    topics = []
    for named in request.topics:
        # Up to version 9 topics are named, in version 10 given by id.
        key = "name" if hasattr(named, "name") else "topic_id"
        topics.append(
            {
                key: getattr(named, key),
                "partitions": [
                    {"partition_index": requested.partition_index, "error_code": error.code}
                    for requested in named.partitions
                ],
            }
        )
    return {"throttle_time": 0, "topics": topics}


def committed_offset(
    broker: BrokerContext,
    topic: Topic | None,
    requested: Any,
    context: RequestContext,
    now_ms: int,
    expire_ms: int | None = None,
) -> CommittedOffset:
    """The offset that a request commits for a partition of a topic (None: there is no such topic).

    Raises:
        UnknownTopicId, UnknownTopicOrPartition, OffsetMetadataTooLarge: it cannot be committed.
    """
    if topic is None and context.version >= COMMIT_VERSION_BY_ID:
        raise UnknownTopicId("There is no topic with that id.")
    if topic is None or requested.partition_index not in topic.assignment.replicas:
        raise UnknownTopicOrPartition("There is no such partition.")
    limit = broker.groups.settings.metadata_size_max
    if len(requested.committed_metadata or "") > limit:
        raise OffsetMetadataTooLarge(f"offset.metadata.max.bytes allows {limit}.")
    return CommittedOffset(
        requested.committed_offset,
        # Early versions have no epoch.
        getattr(requested, "committed_leader_epoch", -1),
        requested.committed_metadata or "",
        now_ms,
        expire_ms,
        topic.topic_id,
    )


# --- OffsetFetch ---


def fetched_groups(broker: BrokerContext, request: OffsetFetchRequest) -> Iterator[tuple[str, int]]:
    """Of OffsetFetch, whose versions before 8 are about one group."""
    groups = getattr(request, "groups", None)
    if groups is None:
        return partitions_of_named(broker, (request.group_id,))
    return partitions_of_named(broker, (group.group_id for group in groups))


def handle_fetch(broker: BrokerContext, request: OffsetFetchRequest, context: RequestContext) -> Body:
    if context.version >= 8:
        return {
            "throttle_time": 0,
            "groups": [
                _fetch_as_member(broker, group, context, request.require_stable) for group in request.groups
            ],
        }
    stable = getattr(request, "require_stable", False)  # from version 7 on
    if allows(broker, context, Operation.DESCRIBE, ResourceType.GROUP, request.group_id):
        answer = _fetch(broker, request.group_id, request.topics, context, stable)
    else:
        denied = GroupAuthorizationFailed()
        topics = [] if context.version >= 2 else _failed(request.topics, denied)
        answer = {"topics": topics, "error_code": denied.code}
    return {"throttle_time": 0, "topics": answer["topics"], "error_code": answer["error_code"]}


def _fetch_as_member(broker: BrokerContext, requested: Any, context: RequestContext, stable: bool) -> Body:
    """Of versions that tell which member asks."""
    if not allows(broker, context, Operation.DESCRIBE, ResourceType.GROUP, requested.group_id):
        code = GroupAuthorizationFailed.code
        return {"group_id": requested.group_id, "topics": (), "error_code": code}
    if context.version >= FETCH_VERSION_BY_MEMBER:
        try:
            broker.groups.check_fetch(requested.group_id, requested.member_id, requested.member_epoch)
        except ProtocolError as error:
            return {"group_id": requested.group_id, "topics": (), "error_code": error.code}
    return _fetch(broker, requested.group_id, requested.topics, context, stable)


def _fetch(
    broker: BrokerContext, group_id: str, requested_topics: Any, context: RequestContext, stable: bool
) -> Body:
    by_id = context.version >= FETCH_VERSION_BY_ID
    names = broker.view.topic_names
    try:
        unstable = broker.groups.unstable(group_id) if stable else ()
        if requested_topics is None:
            committed = broker.groups.committed(group_id, None)
            committed = {
                key: offset
                for key, offset in committed.items()
                if may_describe_topic(broker, context, key[0])
            }
            return {
                "group_id": group_id,
                "topics": _all(broker, committed, unstable, by_id),
                "error_code": 0,
            }
        requested_partitions = [
            (name, index)
            for topic in requested_topics
            if (name := names.get(topic.topic_id) if by_id else topic.name) is not None
            for index in topic.partition_indexes
        ]
        committed = broker.groups.committed(group_id, requested_partitions)
    except ProtocolError as error:
        # Version 1 has no other place for it than the partitions.
        topics = [] if context.version >= 2 else _failed(requested_topics, error)
        return {"group_id": group_id, "topics": topics, "error_code": error.code}
    topics = []
    for topic in requested_topics:
        name = names.get(topic.topic_id) if by_id else topic.name
        if name is None or (by_id and not may_describe_requested(broker, context, name)):
            partitions = [_none(index, UnknownTopicId.code) for index in topic.partition_indexes]
        elif not allows(broker, context, Operation.DESCRIBE, ResourceType.TOPIC, name):
            partitions = [_none(index, TopicAuthorizationFailed.code) for index in topic.partition_indexes]
        else:
            partitions = [_partition((name, index), committed, unstable) for index in topic.partition_indexes]
        topics.append(
            {**({"topic_id": topic.topic_id} if by_id else {"name": name}), "partitions": partitions}
        )
    return {"group_id": group_id, "topics": topics, "error_code": 0}


def _all(
    broker: BrokerContext,
    committed: dict[TopicPartition, CommittedOffset],
    unstable: Collection[TopicPartition],
    by_id: bool,
) -> list[Body]:
    by_topic: dict[str, list[Body]] = {}
    for partition in sorted(committed):
        by_topic.setdefault(partition[0], []).append(_partition(partition, committed, unstable))
    if not by_id:
        return [{"name": name, "partitions": partitions} for name, partitions in by_topic.items()]
    topics = broker.view.topics
    return [
        {"topic_id": topics[name].topic_id, "partitions": partitions}
        for name, partitions in by_topic.items()
        if name in topics
    ]


def _failed(topics: Any, error: ProtocolError) -> list[Body]:
    return [
        {
            "name": topic.name,
            "partitions": [_none(index, error.code) for index in topic.partition_indexes],
        }
        for topic in topics or ()
    ]


def _partition(
    partition: TopicPartition,
    committed: dict[TopicPartition, CommittedOffset],
    unstable: Collection[TopicPartition],
) -> Body:
    index = partition[1]
    if partition in unstable:
        return _none(index, UnstableOffsetCommit.code)
    offset = committed.get(partition)
    if offset is None:
        return _none(index, 0)
    return {
        "partition_index": index,
        "committed_offset": offset.offset,
        "committed_leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
        "error_code": 0,
    }


def _none(index: int, error_code: int) -> Body:
    return {
        "partition_index": index,
        "committed_offset": -1,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": error_code,
    }


# --- OffsetDelete ---


async def handle_delete(broker: BrokerContext, request: OffsetDeleteRequest, context: RequestContext) -> Body:
    denied = {
        topic.name
        for topic in request.topics
        if not allows(broker, context, Operation.READ, ResourceType.TOPIC, topic.name)
    }
    existing_partitions = [
        (topic.name, requested.partition_index)
        for topic in request.topics
        if topic.name not in denied
        for requested in topic.partitions
        if (known_topic := broker.view.topics.get(topic.name)) is not None
        and requested.partition_index in known_topic.assignment.replicas
    ]
    try:
        deleted, refused = broker.groups.delete_offsets(request.group_id, existing_partitions)
        await deleted
    except ProtocolError as error:
        return {"error_code": error.code, "throttle_time": 0, "topics": ()}
    codes = {key: refused[key].code if key in refused else 0 for key in existing_partitions}
    return {
        "error_code": 0,
        "throttle_time": 0,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": requested.partition_index,
                        "error_code": TopicAuthorizationFailed.code
                        if topic.name in denied
                        else codes.get((topic.name, requested.partition_index), UnknownTopicOrPartition.code),
                    }
                    for requested in topic.partitions
                ],
            }
            for topic in request.topics
        ],
    }
