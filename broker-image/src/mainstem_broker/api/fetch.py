"""Fetch (key 1), versions 4 to 17, for consumers and for followers.

- Answers slices of segment files, which the connection sends with `os.sendfile`; no record is read.
- Long poll: with less than `min_bytes` to give and no more to be had, waits for the partitions to move, at
  most `max_wait`. An error in any partition, or one that ceases to be led here, is answered at once.
- The first partition that has data gives at least one whole batch, however small the limits are
  (KIP-74); others give whole batches that fit, or nothing.
- Offsets from the log start to the log end are valid, also those at or above the high watermark.
- Fetch sessions (KIP-227) are refused in the way the protocol allows: a request to make one is answered
  in full with session id 0.
- Consumers read below the high watermark, or the last stable offset. Followers, which name themselves and
  their life (v15, KIP-903), read to the log's end, and what they ask for tells the leader how far they are.
  Where a follower's log leaves the leader's, it is told the diverging epoch instead (v12, KIP-595). One that
  is being moved here may be held back (`replica/throttle.py`): it then gets nothing of that partition.
- v4 isolation level; v5 log start offset; v7 sessions; v9 leader epoch fencing; v10 zstd; v11 rack and
  preferred read replica (always -1); v12 flexible; v13 topics by id. v16's hints at new leaders and v17's
  directory ids are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from typing import Any, Final

from mainstem_broker.api.context import BrokerContext, RequestContext, milliseconds
from mainstem_broker.errors import (
    FetchSessionIdNotFound,
    OffsetOutOfRange,
    ProtocolError,
    UnknownTopicId,
)
from mainstem_broker.log.files import ReadResult
from mainstem_broker.protocol.codec import Body, Entity
from mainstem_broker.quota.client_quotas import QuotaKind
from mainstem_broker.replica.partition import Divergence, Partition

READ_COMMITTED: Final = 1
NO_REPLICA: Final = -1


def partitions_of(broker: BrokerContext, request: Entity) -> Iterator[tuple[str, int]]:
    for topic in request.topics:
        name = _topic_name(broker, topic)
        if name is not None:
            for asked in topic.partitions:
                yield name, asked.partition


def _topic_name(broker: BrokerContext, topic: Any) -> str | None:
    """Up to version 12 topics are named, from 13 on given by id."""
    if hasattr(topic, "topic"):
        return str(topic.topic)
    return broker.view.topic_names.get(topic.topic_id)


def handle(
    broker: BrokerContext, request: Entity, context: RequestContext
) -> Body | Awaitable[Body | None] | None:
    if request.session_id != 0:
        code = FetchSessionIdNotFound.code
        return {"throttle_time": 0, "error_code": code, "session_id": 0, "responses": ()}
    bytes_max = broker.config.integer("fetch.max.bytes")
    if broker.quotas.are_set and (quota_bytes := _quota_bytes(broker, request, context)) is not None:
        bytes_max = min(bytes_max, quota_bytes)
    answer, is_enough, watched = _read(broker, request, bytes_max)
    if is_enough or not watched:
        return answer
    max_wait_ms = milliseconds(request.max_wait)
    if max_wait_ms <= 0:
        return answer
    return _wait(broker, request, bytes_max, watched, max_wait_ms)


def _quota_bytes(broker: BrokerContext, request: Entity, context: RequestContext) -> int | None:
    """What a consumer's quota lets it have at once: more would make it wait for longer than it fetches."""
    if getattr(request, "replica_state", None) is not None and request.replica_state.replica_id != NO_REPLICA:
        return None
    quota_bytes = broker.quotas.most_at_once(
        QuotaKind.CONSUMER_BYTE_RATE, context.user, context.client_id or ""
    )
    return None if quota_bytes is None else int(quota_bytes)


def _read(broker: BrokerContext, request: Entity, bytes_max: int) -> tuple[Body, bool, list[Partition]]:
    """(the answer, whether to give it at once, the partitions to watch)."""
    left_bytes = min(request.max_bytes, bytes_max)
    min_bytes = min(request.min_bytes, left_bytes)
    committed = request.isolation_level == READ_COMMITTED
    replica = getattr(request, "replica_state", None)
    follower = NO_REPLICA if replica is None else replica.replica_id
    total_bytes = 0
    failed = has_more = False
    watched: list[Partition] = []
    topics: list[Body] = []
    now_ms = broker.now_ms()
    throttle = broker.replicas.leader_throttle
    for topic in request.topics:
        name = _topic_name(broker, topic)
        partitions: list[dict[str, Any]] = []
        for asked in topic.partitions:
            index = asked.partition
            partition = None
            try:
                if name is None:
                    raise UnknownTopicId(f"There is no topic with the id {topic.topic_id}.")
                partition = broker.find_replica(name, index)
                max_bytes = min(asked.partition_max_bytes, left_bytes)
                found: ReadResult | Divergence
                if follower == NO_REPLICA:
                    found = partition.read(
                        asked.fetch_offset,
                        max_bytes,
                        client_epoch=asked.current_leader_epoch,
                        min_one_batch=total_bytes == 0,
                        committed=committed,
                    )
                else:
                    assert replica is not None
                    throttled = throttle.is_limited and partition.throttles(follower)
                    held_back = throttled and not throttle.may_pass()
                    found = partition.read_as_follower(
                        follower,
                        replica.replica_epoch,
                        asked.fetch_offset,
                        asked.last_fetched_epoch,
                        0 if held_back else max_bytes,
                        leader_epoch=asked.current_leader_epoch,
                        min_one_batch=total_bytes == 0 and not held_back,
                        now_ms=now_ms,
                    )
                    if throttled and isinstance(found, ReadResult) and found.slice is not None:
                        throttle.charge(found.slice.size_bytes)
            except ProtocolError as error:
                failed = True
                partitions.append(_failure(index, error, partition))
                continue
            if isinstance(found, Divergence):
                failed = True
                partitions.append(_diverging(index, partition, found))
                continue
            if follower != NO_REPLICA:
                broker.replicas.consider_isr(partition)
            watched.append(partition)
            records = found.slice
            if follower != NO_REPLICA:
                end = partition.log.log_end_offset
            else:
                end = partition.last_stable_offset if committed else partition.high_watermark
            has_more = has_more or found.end_offset < end
            if records is not None:
                total_bytes += records.size_bytes
                left_bytes = max(left_bytes - records.size_bytes, 0)
            partitions.append(
                {
                    "partition_index": index,
                    "error_code": 0,
                    "high_watermark": partition.high_watermark,
                    "last_stable_offset": partition.last_stable_offset,
                    "log_start_offset": partition.log.log_start_offset,
                    "aborted_transactions": () if committed else None,
                    "records": b"" if records is None else records,
                }
            )
        topics.append({"topic": name, "topic_id": getattr(topic, "topic_id", None), "partitions": partitions})
    answer = {"throttle_time": 0, "error_code": 0, "session_id": 0, "responses": topics}
    # Whole batches may stay below min_bytes though a limit was reached: waiting would not add to them.
    is_enough = failed or total_bytes >= min_bytes or (has_more and total_bytes > 0)
    return answer, is_enough, watched


def _failure(index: int, error: ProtocolError, partition: Partition | None) -> dict[str, Any]:
    # A follower that is told where the log starts need not ask for it.
    out_of_range = isinstance(error, OffsetOutOfRange) and partition is not None
    return {
        "partition_index": index,
        "error_code": error.code,
        "high_watermark": -1,
        "log_start_offset": partition.log.log_start_offset if out_of_range and partition else -1,
        "aborted_transactions": None,
        "records": b"",
    }


def _diverging(index: int, partition: Partition, diverging: Divergence) -> dict[str, Any]:
    return {
        "partition_index": index,
        "error_code": 0,
        "high_watermark": partition.high_watermark,
        "log_start_offset": partition.log.log_start_offset,
        "diverging_epoch": {"epoch": diverging.epoch, "end_offset": diverging.end_offset},
        "aborted_transactions": None,
        "records": b"",
    }


async def _wait(
    broker: BrokerContext, request: Entity, bytes_max: int, watched: list[Partition], max_wait_ms: int
) -> Body:
    """Read again whenever a watched partition has moved, until there is enough or the time is over."""
    moved = asyncio.Event()
    moved.set()  # something may have moved between the read that found too little and this task's start
    for partition in watched:
        partition.add_listener(moved.set)
    try:
        async with asyncio.timeout(max_wait_ms / 1000):
            while True:
                await moved.wait()
                moved.clear()
                answer, is_enough, _ = _read(broker, request, bytes_max)
                if is_enough:
                    return answer
    except TimeoutError:
        return _read(broker, request, bytes_max)[0]
    finally:
        for partition in watched:
            partition.remove_listener(moved.set)
