"""Fetch (key 1), versions 4 to 17. Followers are `follower_fetch.py`'s.

- Answers slices of segment files, which the connection sends with `os.sendfile`; no record is read. To find
  them, indexes and headers are; where these are not in the page cache, a thread loads them first.
- Long poll: with less than `min_bytes` to give and no more to be had, waits for the partitions to move, at
  most `max_wait`. An error in any partition, or one that ceases to be led here, is answered at once.
- The first partition that has data gives at least one whole batch, however small the limits are
  (KIP-74); others give whole batches that fit, or nothing.
- Offsets from the log start to the log end are valid, also those at or above the high watermark.
- Consumers fetch in sessions (KIP-227; `replica/consumer_sessions.py`), where there is room for one: a
  request to make one is answered in full with session id 0 otherwise.
- Consumers read below the high watermark, or, with read_committed, below the last stable offset; the answer
  then lists the aborted transactions in its range, whose records the client leaves out.
- Followers, which name themselves and their incarnation (v15, KIP-903), read to the log's end, and their
  fetch reports their position to the leader.
- A consumer that names its rack is sent to an in-sync replica there, if `replica.selector.class` says so, and
  followers serve those consumers, below the high watermark that they know (KIP-392). Unlike in Apache Kafka,
  they serve no others. A consumer whose offset a follower does not have is answered OFFSET_OUT_OF_RANGE, and
  asks the leader.
- v4 isolation level; v5 log start offset; v6 KAFKA_STORAGE_ERROR, before that NOT_LEADER_OR_FOLLOWER; v7
  sessions; v9 leader epoch fencing; v10 zstd, before that UNSUPPORTED_COMPRESSION_TYPE for a topic whose
  compression.type it is; v11 rack and preferred read replica; v12 flexible; v13 topics by id; v16 hints at
  new leaders (`leader_hints.py`). v17's directory ids are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mainstem_broker.api import follower_fetch, leader_hints
from mainstem_broker.api.authorization import allows, allows_on_cluster, denial, may_describe_topic
from mainstem_broker.api.context import BrokerContext, RequestContext, milliseconds
from mainstem_broker.errors import (
    ClusterAuthorizationFailed,
    NotLeaderOrFollower,
    ProtocolError,
    StorageError,
    UnknownTopicId,
    UnsupportedCompressionType,
)
from mainstem_broker.protocol.wire import Body, Entity
from mainstem_broker.quota.client_quotas import QuotaKind
from mainstem_broker.replica.consumer_sessions import INITIAL_EPOCH, ConsumerSession
from mainstem_broker.replica.partition import Partition
from mainstem_broker.runtime.disk_reads import LOADS_MAX
from mainstem_broker.runtime.page_cache import CACHED_ONLY, NotCached
from mainstem_broker.runtime.pending import Pending
from mainstem_broker.security.acl import Operation, ResourceType

READ_COMMITTED: Final = 1
TOPIC_IDS_VERSION: Final = 13
"""From this version on topics are given by id."""
STORAGE_ERROR_VERSION: Final = 6
"""From this version on clients know KAFKA_STORAGE_ERROR (KIP-112). Before, they give up at it."""
ZSTD_VERSION: Final = 10
"""From this version on clients can read zstd (KIP-110)."""
NO_REPLICA: Final = -1


def partitions_of(broker: BrokerContext, request: Entity) -> Iterator[tuple[str, int]]:
    """Those that the leader has to serve."""
    is_by_rack = _is_by_rack(broker, request)
    for topic in request.topics:
        name = _topic_name(broker, topic)
        if name is not None:
            for position in topic.partitions:
                if is_by_rack and _is_followed_here(broker, name, position):
                    continue
                yield name, position.partition


def _is_by_rack(broker: BrokerContext, request: Entity) -> bool:
    """Whether the consumer may read from the nearest replica."""
    return request.rack_id != "" and broker.config.reads_by_rack


def _is_followed_here(broker: BrokerContext, topic: str, position: Any) -> bool:
    """Whether this broker has a follower that is not behind what the consumer knows."""
    partition = broker.replicas.find(topic, position.partition)
    return (
        partition is not None
        and partition.is_follower
        and position.current_leader_epoch <= partition.leader_epoch
    )


def _racks(broker: BrokerContext, context: RequestContext) -> Mapping[int, str | None]:
    """Of the brokers that the client can reach and that are not about to stop."""
    return {
        broker_id: registration.rack
        for broker_id, registration in broker.view.brokers.items()
        if not registration.leaving and registration.endpoint(context.listener) is not None
    }


def _topic_name(broker: BrokerContext, topic: Any) -> str | None:
    """Up to version 12 topics are named, from 13 on given by id."""
    topic_id = getattr(topic, "topic_id", None)
    return broker.view.topic_names.get(topic_id) if topic_id is not None else getattr(topic, "topic", None)


def handle(
    broker: BrokerContext, request: Entity, context: RequestContext
) -> Body | Awaitable[Body | None] | None:
    replica = getattr(request, "replica_state", None)
    if replica is not None and replica.replica_id != NO_REPLICA:
        if not allows_on_cluster(broker, context, Operation.CLUSTER_ACTION):
            return _answer_to_no_broker()
        return follower_fetch.handle(broker, request)
    try:
        fetch = _fetch_of(broker, request, context)
    except ProtocolError as error:
        return {"throttle_time": 0, "error_code": error.code, "session_id": 0, "responses": ()}
    bytes_max = broker.config.integer("fetch.max.bytes")
    if broker.quotas.are_set and (quota_bytes := _quota_bytes(broker, context)) is not None:
        bytes_max = min(bytes_max, quota_bytes)
    refusals = _refusals(broker, fetch, context)
    with CACHED_ONLY:
        answer, is_enough, watched, missing = _read(broker, fetch, context, bytes_max, refusals)
    max_wait_ms = milliseconds(request.max_wait)
    if not missing and (is_enough or not watched or max_wait_ms <= 0):
        return _sent(fetch, answer)
    return _Wait(broker, fetch, context, bytes_max, watched, max_wait_ms, missing).answer


class _Fetch(NamedTuple):
    """A consumer's fetch of all partitions that it is about."""

    topics: Sequence[Any]
    min_bytes: int
    max_bytes: int
    isolation_level: int
    rack_id: str
    session: ConsumerSession | None
    is_full: bool
    """Whether the answer has all partitions, though nothing may have changed."""


def _fetch_of(broker: BrokerContext, request: Entity, context: RequestContext) -> _Fetch:
    """Raises ProtocolError if the request names a session that cannot go on."""
    sessions, now_ms = broker.consumer_sessions, broker.now_ms()
    uses_topic_ids = context.version >= TOPIC_IDS_VERSION
    session: ConsumerSession | None = None
    topics: Sequence[Any] = request.topics
    is_full = request.session_epoch <= INITIAL_EPOCH
    if is_full:
        sessions.close(request.session_id)
        if request.session_epoch == INITIAL_EPOCH:
            session = sessions.open(topics, uses_topic_ids=uses_topic_ids, now_ms=now_ms)
    else:
        session = sessions.continue_session(request, uses_topic_ids=uses_topic_ids, now_ms=now_ms)
        if not len(session):
            sessions.close(session.session_id)
            session, topics = None, ()
    if session is not None:
        topics = session.entries()
    return _Fetch(
        topics,
        request.min_bytes,
        request.max_bytes,
        request.isolation_level,
        request.rack_id,
        session,
        is_full,
    )


def _sent(fetch: _Fetch, answer: Body) -> Body:
    """The part of an answer that is sent: in a session only what is news."""
    if fetch.session is not None:
        answer["session_id"] = fetch.session.session_id
        answer["responses"] = fetch.session.take_answer(answer["responses"], is_full=fetch.is_full)
    return answer


def _answer_to_no_broker() -> Body:
    """To a client that calls itself a follower and may not be one: as if its session were unknown."""
    error_code = ClusterAuthorizationFailed.code
    return {"throttle_time": 0, "error_code": error_code, "session_id": 0, "responses": ()}


def _refusals(broker: BrokerContext, request: _Fetch, context: RequestContext) -> Mapping[str, ProtocolError]:
    """Why the client may not read a topic, by the topic's name.

    A topic that it gives by id, and may not describe, does not exist for it.
    """
    if broker.authorizer is None:
        return {}
    refusals: dict[str, ProtocolError] = {}
    decided: set[str] = set()  # in a session each partition comes with its topic
    for topic in request.topics:
        name = _topic_name(broker, topic)
        if name is None or name in decided:
            continue
        decided.add(name)
        if allows(broker, context, Operation.READ, ResourceType.TOPIC, name):
            continue
        is_hidden = getattr(topic, "topic_id", None) is not None and not may_describe_topic(
            broker, context, name
        )
        refusals[name] = (
            UnknownTopicId() if is_hidden else denial(context, Operation.READ, ResourceType.TOPIC, name)
        )
    return refusals


def _quota_bytes(broker: BrokerContext, context: RequestContext) -> int | None:
    """What a consumer's quota lets it have at once: more would make it wait for longer than it fetches."""
    quota_bytes = broker.quotas.most_at_once(
        QuotaKind.CONSUMER_BYTE_RATE, context.principal.name, context.client_id or ""
    )
    return None if quota_bytes is None else int(quota_bytes)


def _read(
    broker: BrokerContext,
    request: _Fetch,
    context: RequestContext,
    bytes_max: int,
    refusals: Mapping[str, ProtocolError],
) -> tuple[Body, bool, list[Partition], list[NotCached]]:
    """(the answer, whether to give it at once, the partitions to watch, what has to be loaded first)."""
    left_bytes = min(request.max_bytes, bytes_max)
    min_bytes = min(request.min_bytes, left_bytes)
    committed = request.isolation_level == READ_COMMITTED
    total_bytes = 0
    racks = _racks(broker, context) if _is_by_rack(broker, request) else None
    reads_zstd = context.version >= ZSTD_VERSION
    failed = has_more = is_redirected = False
    watched: list[Partition] = []
    missing: list[NotCached] = []
    topics: list[Body] = []
    for topic in request.topics:
        name = _topic_name(broker, topic)
        partitions: list[Body] = []
        for position in topic.partitions:
            index = position.partition
            try:
                if name is None:
                    raise UnknownTopicId(f"There is no topic with the id {topic.topic_id}.")
                if refusals and name in refusals:
                    raise refusals[name]
                partition = broker.find_replica(name, index)
                if not reads_zstd and partition.log.config.compression_type == "zstd":
                    raise UnsupportedCompressionType(f"zstd takes version {ZSTD_VERSION} of Fetch.")
                if racks is not None and not partition.is_follower:
                    partition.require_leader(position.current_leader_epoch)
                    replica = partition.preferred_replica(position.fetch_offset, request.rack_id, racks)
                    if replica is not None:
                        is_redirected = True
                        partitions.append(_redirection(index, partition, replica))
                        continue
                read = partition.read
                if racks is not None and partition.is_follower:
                    read = partition.read_from_follower
                batches = read(
                    position.fetch_offset,
                    min(position.partition_max_bytes, left_bytes),
                    client_epoch=position.current_leader_epoch,
                    min_one_batch=total_bytes == 0,
                    committed=committed,
                )
            except ProtocolError as error:
                failed = True
                partitions.append(_failure(index, error, context.version))
                continue
            except NotCached as raised:
                missing.append(raised)
                left_bytes = max(left_bytes - raised.size_bytes, 0)
                watched.append(partition)
                continue
            watched.append(partition)
            records = batches.slice
            if records is not None:
                total_bytes += records.size_bytes
                left_bytes = max(left_bytes - records.size_bytes, 0)
            stable_offset = partition.last_stable_offset
            end = stable_offset if committed else partition.high_watermark
            has_more = has_more or batches.end_offset < end
            aborted: Sequence[Body] | None = None
            if committed:
                aborted = (
                    () if records is None else _aborted(partition, position.fetch_offset, batches.end_offset)
                )
            partitions.append(
                {
                    "partition_index": index,
                    "error_code": 0,
                    "high_watermark": partition.high_watermark,
                    "last_stable_offset": stable_offset,
                    "log_start_offset": partition.log.log_start_offset,
                    "aborted_transactions": aborted,
                    "records": b"" if records is None else records,
                }
            )
        topics.append({"topic": name, "topic_id": getattr(topic, "topic_id", None), "partitions": partitions})
    answer: Body = {"throttle_time": 0, "error_code": 0, "session_id": 0, "responses": topics}
    if failed and context.version >= leader_hints.FETCH_VERSION:
        answers = (
            (topic["topic"], partition["partition_index"], partition)
            for topic in topics
            for partition in topic["partitions"]
        )
        leader_hints.add_leader_hints(broker, context, answer, answers)
    # Whole batches may stay below min_bytes though a limit was reached: waiting would not add to them.
    is_enough = failed or is_redirected or total_bytes >= min_bytes or (has_more and total_bytes > 0)
    return answer, is_enough, watched, missing


def _aborted(partition: Partition, from_offset: int, to_offset: int) -> Sequence[Body]:
    """The aborted transactions in [`from_offset`, `to_offset`), whose records the client leaves out."""
    transactions = partition.log.aborted_transactions(from_offset, to_offset)
    if not transactions:
        return ()
    return [
        {"producer_id": transaction.producer_id, "first_offset": transaction.first_offset}
        for transaction in transactions
    ]


def _redirection(index: int, partition: Partition, replica: int) -> Body:
    """Without records: the consumer gets them from there."""
    return {
        "partition_index": index,
        "error_code": 0,
        "high_watermark": partition.high_watermark,
        "last_stable_offset": partition.last_stable_offset,
        "log_start_offset": partition.log.log_start_offset,
        "aborted_transactions": None,
        "preferred_read_replica": replica,
        "records": b"",
    }


def _failure(index: int, error: ProtocolError, version: int) -> Body:
    is_unknown = isinstance(error, StorageError) and version < STORAGE_ERROR_VERSION
    return {
        "partition_index": index,
        "error_code": NotLeaderOrFollower.code if is_unknown else error.code,
        "high_watermark": -1,
        "log_start_offset": -1,
        "aborted_transactions": None,
        "records": b"",
    }


class _Wait:
    """Reads again whenever a watched partition has moved, until there is enough or the time is over.

    First it loads what is missing in the page cache. That is no wait for data, and its time is not limited.
    """

    __slots__ = (
        "_broker",
        "_bytes_max",
        "_context",
        "_is_over",
        "_is_reading_soon",
        "_loading",
        "_loads_left",
        "_loop",
        "_request",
        "_timer",
        "_watched",
        "answer",
    )

    def __init__(
        self,
        broker: BrokerContext,
        request: _Fetch,
        context: RequestContext,
        bytes_max: int,
        watched: list[Partition],
        max_wait_ms: int,
        missing: list[NotCached],
    ) -> None:
        self._broker = broker
        self._request = request
        self._context = context
        self._bytes_max = bytes_max
        self._watched = watched
        self._is_reading_soon = self._is_over = False
        self._loading: asyncio.Future[Any] | None = None
        self._loads_left = LOADS_MAX
        self._loop = asyncio.get_running_loop()
        self.answer: Pending[Body | None] = Pending()
        self.answer.add_done_callback(self._end)  # also when the connection has closed
        self._timer = self._loop.call_later(max_wait_ms / 1000, self._read, True)
        for partition in watched:
            partition.add_listener(self._on_move)
        if missing:
            self._load(missing)

    def _on_move(self) -> None:
        if not self._is_reading_soon:
            # Soon, not now: one request may append to many partitions.
            self._is_reading_soon = True
            self._loop.call_soon(self._read, False)

    def _load(self, missing: list[NotCached]) -> None:
        self._loads_left -= 1
        disk, client = self._broker.disk, self._context.peer
        self._loading = asyncio.gather(*[disk.load_missing(client, one) for one in missing])
        self._loading.add_done_callback(self._on_loaded)

    def _on_loaded(self, _loading: asyncio.Future[Any]) -> None:
        self._loading = None
        self._read(False)

    def _read(self, is_over: bool) -> None:
        self._is_reading_soon = False
        self._is_over |= is_over
        if self.answer.done() or self._loading is not None:
            return
        missing: list[NotCached] = []
        try:
            # A right that was taken back meanwhile is lost for this answer, too.
            refusals = _refusals(self._broker, self._request, self._context)
            if self._loads_left > 0:
                with CACHED_ONLY:
                    answer, is_enough, _, missing = _read(
                        self._broker, self._request, self._context, self._bytes_max, refusals
                    )
            else:
                answer, is_enough, _, _ = _read(
                    self._broker, self._request, self._context, self._bytes_max, refusals
                )
        except Exception as error:  # noqa: BLE001  # the connection logs it, and closes
            self.answer.set_exception(error)
            return
        if missing:
            self._load(missing)
        elif is_enough or self._is_over:
            self.answer.set_result(_sent(self._request, answer))

    def _end(self, _answer: Pending[Body | None]) -> None:
        self._timer.cancel()
        if self._loading is not None:
            self._loading.cancel()
        for partition in self._watched:
            partition.remove_listener(self._on_move)
