"""DeleteRecords (key 21), versions 0 to 2: moves the start of partitions up to an offset.

- Only the leader serves it; offset -1 means the high watermark.
- Answered when the log of each live replica starts at the offset or later, as in Kafka: before, a follower
  that is elected would bring the deleted records back. Followers hear of the offset with the answer to their
  fetch, which may wait for `replica.fetch.wait.max.ms`, and report it with their next one.
- The low watermark in the answer is the lowest start of these logs.
- After the request's timeout the answer is REQUEST_TIMED_OUT for the partitions whose followers are behind.
  The deletion stands, and they follow later.
- v2 flexible.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from mainstem_broker.api.authorization import require_topic
from mainstem_broker.api.context import INTERNAL_TOPICS, BrokerContext, RequestContext, milliseconds
from mainstem_broker.errors import InvalidTopic, ProtocolError, RequestTimedOut
from mainstem_broker.protocol.wire import Body
from mainstem_broker.replica.partition import Partition
from mainstem_broker.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.delete_records.v2.request import DeleteRecordsRequest

DELETED_AT_ONCE: Final = 200
"""Partitions before other requests get their turn: a few milliseconds' worth."""


async def handle(broker: BrokerContext, request: DeleteRecordsRequest, context: RequestContext) -> Body:
    deletions: list[_Deletion] = []
    topics: list[Body] = []
    count = 0
    for topic in request.topics:
        results: list[Body] = []
        topics.append({"name": topic.name, "partitions": results})
        for requested in topic.partitions:
            result: Body = {
                "partition_index": requested.partition_index,
                "low_watermark": -1,
                "error_code": 0,
            }
            results.append(result)
            try:
                require_topic(broker, context, Operation.DELETE, topic.name)
                if topic.name in INTERNAL_TOPICS:
                    raise InvalidTopic(f"Brokers keep their own records in {topic.name}: they stay.")
                partition = broker.find_replica(topic.name, requested.partition_index)
                offset = partition.delete_records_before(requested.offset)
                deletions.append(_Deletion(broker, partition, offset, result))
            except ProtocolError as error:
                result["error_code"] = error.code
            count += 1
            if count % DELETED_AT_ONCE == 0:
                await asyncio.sleep(0)
    await _wait_for_replicas(broker, deletions, milliseconds(request.timeout))
    return {"throttle_time": 0, "topics": topics}


class _Deletion:
    """A partition whose replicas have to start at `offset` or later. `look` fills in `result`."""

    def __init__(self, broker: BrokerContext, partition: Partition, offset: int, result: Body) -> None:
        self._broker = broker
        self.partition = partition
        self._offset = offset
        self._result = result

    def look(self) -> bool:
        """Whether the result is final."""
        try:
            low_watermark = self.partition.low_watermark(self._broker.view.brokers.keys())
        except ProtocolError as error:
            # The next leader may not know of the deletion.
            self._result["low_watermark"], self._result["error_code"] = -1, error.code
            return True
        self._result["low_watermark"] = low_watermark
        return low_watermark >= self._offset

    def give_up(self) -> None:
        self._result["error_code"] = RequestTimedOut.code


async def _wait_for_replicas(broker: BrokerContext, deletions: list[_Deletion], timeout_ms: int) -> None:
    """Return when all results are final, at the latest after `timeout_ms`."""
    waiting: dict[_Deletion, Callable[[], None]] = {}
    is_over = asyncio.Event()

    def end(deletion: _Deletion) -> None:
        deletion.partition.remove_listener(waiting.pop(deletion))
        if not waiting:
            is_over.set()

    def listener_of(deletion: _Deletion) -> Callable[[], None]:
        def on_news() -> None:
            if deletion in waiting and deletion.look():
                end(deletion)

        return on_news

    known_brokers = broker.view.brokers

    def look_if_brokers_changed() -> bool:
        nonlocal known_brokers
        if broker.view.brokers is not known_brokers:
            known_brokers = broker.view.brokers
            for deletion in tuple(waiting):
                if deletion.look():
                    end(deletion)
        return not waiting

    try:
        for count, deletion in enumerate(deletions, start=1):
            if not deletion.look():
                waiting[deletion] = listener = listener_of(deletion)
                deletion.partition.add_listener(listener)
            if count % DELETED_AT_ONCE == 0:
                await asyncio.sleep(0)
        if waiting and timeout_ms > 0:
            is_over.clear()  # those that waited before a pause may all have ended in it
            await _first_of(
                asyncio.create_task(is_over.wait()),
                asyncio.create_task(broker.member.wait_until(look_if_brokers_changed, timeout_ms)),
            )
    finally:
        for deletion, listener in waiting.items():
            deletion.partition.remove_listener(listener)
    for deletion in waiting:
        deletion.give_up()


async def _first_of(*tasks: asyncio.Task[Any]) -> None:
    """Return when one of them ends, in whatever way; the others are cancelled."""
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
