"""Fetch (key 1), versions 4 to 17. Followers are `follower_fetch.py`'s.

- Answers slices of segment files, which the connection sends with `os.sendfile`; no record is read.
- Long poll: with less than `min_bytes` to give and no more to be had, waits for the partitions to move, at
  most `max_wait`. An error in any partition, or one that ceases to be led here, is answered at once.
- The first partition that has data gives at least one whole batch, however small the limits are
  (KIP-74); others give whole batches that fit, or nothing.
- Offsets from the log start to the log end are valid, also those at or above the high watermark.
- Fetch sessions (KIP-227) of consumers are refused in the way the protocol allows: a request to make one is
  answered in full with session id 0.
- Consumers read below the high watermark, or the last stable offset. Followers, which name themselves and
  their life (v15, KIP-903), read to the log's end, and what they ask for tells the leader how far they are.
- v4 isolation level; v5 log start offset; v7 sessions; v9 leader epoch fencing; v10 zstd; v11 rack and
  preferred read replica (always -1); v12 flexible; v13 topics by id. v16's hints at new leaders and v17's
  directory ids are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from typing import Any, Final

from mainstem_broker.api import follower_fetch
from mainstem_broker.api.context import BrokerContext, RequestContext, milliseconds
from mainstem_broker.errors import FetchSessionIdNotFound, ProtocolError, UnknownTopicId
from mainstem_broker.pending import Pending
from mainstem_broker.protocol.wire import Body, Entity
from mainstem_broker.quota.client_quotas import QuotaKind
from mainstem_broker.replica.partition import Partition

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
    topic_id = getattr(topic, "topic_id", None)
    return broker.view.topic_names.get(topic_id) if topic_id is not None else getattr(topic, "topic", None)


def handle(
    broker: BrokerContext, request: Entity, context: RequestContext
) -> Body | Awaitable[Body | None] | None:
    replica = getattr(request, "replica_state", None)
    if replica is not None and replica.replica_id != NO_REPLICA:
        return follower_fetch.handle(broker, request)
    if request.session_id != 0:
        code = FetchSessionIdNotFound.code
        return {"throttle_time": 0, "error_code": code, "session_id": 0, "responses": ()}
    bytes_max = broker.config.integer("fetch.max.bytes")
    if broker.quotas.are_set and (quota_bytes := _quota_bytes(broker, context)) is not None:
        bytes_max = min(bytes_max, quota_bytes)
    answer, is_enough, watched = _read(broker, request, bytes_max)
    if is_enough or not watched:
        return answer
    max_wait_ms = milliseconds(request.max_wait)
    if max_wait_ms <= 0:
        return answer
    return _Wait(broker, request, bytes_max, watched, max_wait_ms).answer


def _quota_bytes(broker: BrokerContext, context: RequestContext) -> int | None:
    """What a consumer's quota lets it have at once: more would make it wait for longer than it fetches."""
    quota_bytes = broker.quotas.most_at_once(
        QuotaKind.CONSUMER_BYTE_RATE, context.user, context.client_id or ""
    )
    return None if quota_bytes is None else int(quota_bytes)


def _read(broker: BrokerContext, request: Entity, bytes_max: int) -> tuple[Body, bool, list[Partition]]:
    """(the answer, whether to give it at once, the partitions to watch)."""
    left_bytes = min(request.max_bytes, bytes_max)
    min_bytes = min(request.min_bytes, left_bytes)
    committed = request.isolation_level == READ_COMMITTED
    total_bytes = 0
    failed = has_more = False
    watched: list[Partition] = []
    topics: list[Body] = []
    for topic in request.topics:
        name = _topic_name(broker, topic)
        partitions: list[Body] = []
        for asked in topic.partitions:
            index = asked.partition
            try:
                if name is None:
                    raise UnknownTopicId(f"There is no topic with the id {topic.topic_id}.")
                partition = broker.find_replica(name, index)
                found = partition.read(
                    asked.fetch_offset,
                    min(asked.partition_max_bytes, left_bytes),
                    client_epoch=asked.current_leader_epoch,
                    min_one_batch=total_bytes == 0,
                    committed=committed,
                )
            except ProtocolError as error:
                failed = True
                partitions.append(_failure(index, error))
                continue
            watched.append(partition)
            records = found.slice
            if records is not None:
                total_bytes += records.size_bytes
                left_bytes = max(left_bytes - records.size_bytes, 0)
            end = partition.last_stable_offset if committed else partition.high_watermark
            has_more = has_more or found.end_offset < end
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


def _failure(index: int, error: ProtocolError) -> Body:
    return {
        "partition_index": index,
        "error_code": error.code,
        "high_watermark": -1,
        "log_start_offset": -1,
        "aborted_transactions": None,
        "records": b"",
    }


class _Wait:
    """Reads again whenever a watched partition has moved, until there is enough or the time is over."""

    __slots__ = (
        "_broker",
        "_bytes_max",
        "_is_reading_soon",
        "_loop",
        "_request",
        "_timer",
        "_watched",
        "answer",
    )

    def __init__(
        self,
        broker: BrokerContext,
        request: Entity,
        bytes_max: int,
        watched: list[Partition],
        max_wait_ms: int,
    ) -> None:
        self._broker = broker
        self._request = request
        self._bytes_max = bytes_max
        self._watched = watched
        self._is_reading_soon = False
        self._loop = asyncio.get_running_loop()
        self.answer: Pending[Body | None] = Pending()
        self.answer.add_done_callback(self._end)  # also when the connection has closed
        self._timer = self._loop.call_later(max_wait_ms / 1000, self._read, True)
        for partition in watched:
            partition.add_listener(self._on_move)

    def _on_move(self) -> None:
        if not self._is_reading_soon:
            # Soon, not now: one request may append to many partitions.
            self._is_reading_soon = True
            self._loop.call_soon(self._read, False)

    def _read(self, is_over: bool) -> None:
        self._is_reading_soon = False
        if self.answer.done():
            return
        try:
            answer, is_enough, _ = _read(self._broker, self._request, self._bytes_max)
        except Exception as error:  # noqa: BLE001  # the connection logs it, and closes
            self.answer.set_exception(error)
            return
        if is_enough or is_over:
            self.answer.set_result(answer)

    def _end(self, _answer: Pending[Body | None]) -> None:
        self._timer.cancel()
        for partition in self._watched:
            partition.remove_listener(self._on_move)
