"""What groups have committed: OffsetCommit (key 8, versions 2 to 10), OffsetFetch (9, 1 to 10) and
OffsetDelete (47, 0 to 0).

- OffsetCommit is answered when the in-sync replicas have the offsets. v2 to v4 carry a retention time; v6
  leader epochs; v7 static members; v8 flexible; v9 members of KIP-848, by their epoch; v10 topics by id.
  A generation of -1 is a commit without membership, for groups that have no members.
- OffsetFetch: a partition without a committed offset has offset -1 and no error; an error is never answered
  as -1 alone, for clients would begin at auto.offset.reset. v1 has errors per partition only; v2 a null
  list for all partitions; v5 leader epochs; v7 wants only stable offsets (all are, there being no
  transactions yet); v8 several groups at once; v9 the member that asks, which is refused in another epoch
  than its own (KIP-848); v10 names topics by id.
- OffsetDelete: only of topics that the group's members do not read (KIP-496).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator
from typing import Any, Final

from mainstem_broker.api.context import BrokerContext, RequestContext, milliseconds
from mainstem_broker.api.groups import partitions_of_named
from mainstem_broker.cluster.view import Topic
from mainstem_broker.config import INT64_MAX
from mainstem_broker.errors import (
    CoordinatorNotAvailable,
    OffsetMetadataTooLarge,
    ProtocolError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from mainstem_broker.group.offsets import TopicPartition
from mainstem_broker.group.records import CommittedOffset
from mainstem_broker.protocol.wire import Body, Entity

COMMIT_VERSION_BY_ID: Final = 10
FETCH_VERSION_BY_MEMBER: Final = 9
FETCH_VERSION_BY_ID: Final = 10


# --- OffsetCommit ---


def handle_commit(broker: BrokerContext, request: Entity, context: RequestContext) -> Body | Awaitable[Body]:
    if all(_find_topic(broker, topic, context) is not None for topic in request.topics):
        return _commit(broker, request, context)
    return _commit_after_news(broker, request, context)


async def _commit_after_news(broker: BrokerContext, request: Entity, context: RequestContext) -> Body:
    """Hear of topics that the client may know from another broker already."""
    await broker.catch_up()
    body = _commit(broker, request, context)
    return body if isinstance(body, dict) else await body


def _find_topic(broker: BrokerContext, named: Any, context: RequestContext) -> Topic | None:
    if context.version < COMMIT_VERSION_BY_ID:
        return broker.view.topics.get(named.name)
    name = broker.view.topic_names.get(named.topic_id)
    return None if name is None else broker.view.topics.get(name)


def _commit(broker: BrokerContext, request: Entity, context: RequestContext) -> Body | Awaitable[Body]:
    now_ms = broker.now_ms()
    expire_ms = None
    if context.version <= 4 and (retention_ms := milliseconds(request.retention_time)) >= 0:
        expire_ms = min(now_ms + retention_ms, INT64_MAX)
    topics: list[Body] = []
    offsets: dict[TopicPartition, CommittedOffset] = {}
    accepted: list[Body] = []
    for named in request.topics:
        topic = _find_topic(broker, named, context)
        partitions: list[Body] = []
        for asked in named.partitions:
            answer = {"partition_index": asked.partition_index, "error_code": 0}
            try:
                found = _check(broker, topic, asked, context)
                offsets[found.name, asked.partition_index] = CommittedOffset(
                    asked.committed_offset,
                    # Versions before 6 have no epoch.
                    getattr(asked, "committed_leader_epoch", -1),
                    asked.committed_metadata or "",
                    now_ms,
                    expire_ms,
                    found.topic_id,
                )
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
            request.member_id,
            getattr(request, "group_instance_id", None),  # from version 7 on
            request.generation_id_or_member_epoch,
            context.version,
            offsets,
        )
        if stored.done():
            stored.result()
            return body
    except ProtocolError as error:
        return _refused(body, accepted, error)
    return _commit_when_stored(broker, body, accepted, stored)


async def _commit_when_stored(
    broker: BrokerContext, body: Body, accepted: Iterable[Body], stored: asyncio.Future[None]
) -> Body:
    try:
        async with asyncio.timeout(broker.groups.settings.commit_timeout_ms / 1000):
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


def _check(broker: BrokerContext, topic: Topic | None, asked: Any, context: RequestContext) -> Topic:
    """The topic, if offsets may be committed for this partition of it."""
    if topic is None and context.version >= COMMIT_VERSION_BY_ID:
        raise UnknownTopicId("There is no topic with that id.")
    if topic is None or asked.partition_index not in topic.assignment.replicas:
        raise UnknownTopicOrPartition("There is no such partition.")
    limit = broker.groups.settings.metadata_size_max
    if len(asked.committed_metadata or "") > limit:
        raise OffsetMetadataTooLarge(f"offset.metadata.max.bytes allows {limit}.")
    return topic


# --- OffsetFetch ---


def fetched_groups(broker: BrokerContext, request: Entity) -> Iterator[tuple[str, int]]:
    """Of OffsetFetch, whose versions before 8 are about one group."""
    groups = getattr(request, "groups", None)
    if groups is None:
        return partitions_of_named(broker, (request.group_id,))
    return partitions_of_named(broker, (group.group_id for group in groups))


def handle_fetch(broker: BrokerContext, request: Entity, context: RequestContext) -> Body:
    if context.version >= 8:
        return {
            "throttle_time": 0,
            "groups": [_fetch_as_member(broker, group, context) for group in request.groups],
        }
    answer = _fetch(broker, request.group_id, request.topics, context)
    return {"throttle_time": 0, "topics": answer["topics"], "error_code": answer["error_code"]}


def _fetch_as_member(broker: BrokerContext, asked: Any, context: RequestContext) -> Body:
    """Of versions that tell which member asks."""
    if context.version >= FETCH_VERSION_BY_MEMBER:
        try:
            broker.groups.check_fetch(asked.group_id, asked.member_id, asked.member_epoch)
        except ProtocolError as error:
            return {"group_id": asked.group_id, "topics": (), "error_code": error.code}
    return _fetch(broker, asked.group_id, asked.topics, context)


def _fetch(broker: BrokerContext, group_id: str, asked: Any, context: RequestContext) -> Body:
    by_id = context.version >= FETCH_VERSION_BY_ID
    names = broker.view.topic_names
    try:
        if asked is None:
            committed = broker.groups.committed(group_id, None)
            return {"group_id": group_id, "topics": _all(broker, committed, by_id), "error_code": 0}
        wanted = [
            (name, index)
            for topic in asked
            if (name := names.get(topic.topic_id) if by_id else topic.name) is not None
            for index in topic.partition_indexes
        ]
        committed = broker.groups.committed(group_id, wanted)
    except ProtocolError as error:
        # Version 1 has no other place for it than the partitions.
        topics = [] if context.version >= 2 else _failed(asked, error)
        return {"group_id": group_id, "topics": topics, "error_code": error.code}
    topics = []
    for topic in asked:
        name = names.get(topic.topic_id) if by_id else topic.name
        partitions = [
            _none(index, UnknownTopicId.code)
            if name is None
            else _partition(index, committed.get((name, index)))
            for index in topic.partition_indexes
        ]
        topics.append(
            {**({"topic_id": topic.topic_id} if by_id else {"name": name}), "partitions": partitions}
        )
    return {"group_id": group_id, "topics": topics, "error_code": 0}


def _all(broker: BrokerContext, committed: dict[TopicPartition, CommittedOffset], by_id: bool) -> list[Body]:
    by_topic: dict[str, list[Body]] = {}
    for (name, index), offset in sorted(committed.items(), key=lambda item: item[0]):
        by_topic.setdefault(name, []).append(_partition(index, offset))
    if not by_id:
        return [{"name": name, "partitions": partitions} for name, partitions in by_topic.items()]
    topics = broker.view.topics
    return [
        {"topic_id": topics[name].topic_id, "partitions": partitions}
        for name, partitions in by_topic.items()
        if name in topics
    ]


def _failed(asked: Any, error: ProtocolError) -> list[Body]:
    return [
        {
            "name": topic.name,
            "partitions": [_none(index, error.code) for index in topic.partition_indexes],
        }
        for topic in asked or ()
    ]


def _partition(index: int, found: CommittedOffset | None) -> Body:
    if found is None:
        return _none(index, 0)
    return {
        "partition_index": index,
        "committed_offset": found.offset,
        "committed_leader_epoch": found.leader_epoch,
        "metadata": found.metadata,
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


async def handle_delete(broker: BrokerContext, request: Entity, _context: RequestContext) -> Body:
    known = [
        (topic.name, asked.partition_index)
        for topic in request.topics
        for asked in topic.partitions
        if (found := broker.view.topics.get(topic.name)) is not None
        and asked.partition_index in found.assignment.replicas
    ]
    try:
        deleted, refused = broker.groups.delete_offsets(request.group_id, known)
        await deleted
    except ProtocolError as error:
        return {"error_code": error.code, "throttle_time": 0, "topics": ()}
    codes = {key: refused[key].code if key in refused else 0 for key in known}
    return {
        "error_code": 0,
        "throttle_time": 0,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": asked.partition_index,
                        "error_code": codes.get(
                            (topic.name, asked.partition_index), UnknownTopicOrPartition.code
                        ),
                    }
                    for asked in topic.partitions
                ],
            }
            for topic in request.topics
        ],
    }
