"""ListOffsets (key 2), versions 1 to 9, and OffsetForLeaderEpoch (key 23), versions 2 to 4.

ListOffsets finds an offset by timestamp (ms), or by one of the special ones: -1 latest (the high
watermark, or the last stable offset for read_committed), -2 earliest, -3 the record with the largest
timestamp (KIP-734), -4 earliest on local disk (the same as -2 here), -5 latest in remote storage (none).
No record at or after the timestamp: offset -1, timestamp -1, no error. The leader epoch answered is that
of the record found. v2 isolation level; v4 leader epochs; v6 flexible; v7 -3; v8 -4; v9 -5.

OffsetForLeaderEpoch says where the records of a leader epoch end (KIP-101, KIP-279), so that clients and
followers notice that what they have was truncated (KIP-320).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.api.fetch import READ_COMMITTED
from mainstem_broker.errors import ProtocolError
from mainstem_broker.protocol.wire import Body, Entity
from mainstem_broker.replica.partition import Partition

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_REMOTE: Final = -5

_NOT_FOUND: Final = (-1, -1, -1)


def listed_partitions(_broker: BrokerContext, request: Entity) -> Iterator[tuple[str, int]]:
    """Of ListOffsets and DeleteRecords, whose fields are named alike."""
    return ((topic.name, asked.partition_index) for topic in request.topics for asked in topic.partitions)


def asked_partitions(_broker: BrokerContext, request: Entity) -> Iterator[tuple[str, int]]:
    """Of OffsetForLeaderEpoch."""
    return ((topic.topic, asked.partition) for topic in request.topics for asked in topic.partitions)


def handle_list_offsets(broker: BrokerContext, request: Entity, _context: RequestContext) -> Body:
    committed = request.isolation_level == READ_COMMITTED

    def answer(topic: str, asked: Any) -> dict[str, Any]:
        partition = broker.find_replica(topic, asked.partition_index)
        partition.require_leader(asked.current_leader_epoch)
        offset, timestamp, epoch = _find(partition, asked.timestamp, committed)
        return {"error_code": 0, "offset": offset, "timestamp": timestamp, "leader_epoch": epoch}

    return {
        "throttle_time": 0,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": asked.partition_index, **_or_error(answer, topic.name, asked)}
                    for asked in topic.partitions
                ],
            }
            for topic in request.topics
        ],
    }


def _or_error(answer: Callable[[str, Any], dict[str, Any]], topic: str, asked: Any) -> dict[str, Any]:
    try:
        return answer(topic, asked)
    except ProtocolError as error:
        return {"error_code": error.code}


def _find(partition: Partition, timestamp: int, committed: bool) -> tuple[int, int, int]:
    """(offset, timestamp, leader epoch) of what a ListOffsets timestamp stands for."""
    log = partition.log
    end = partition.last_stable_offset if committed else partition.high_watermark
    if timestamp == LATEST:
        return partition.latest_offset(committed=committed), -1, partition.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        epoch = log.epochs.epoch_of(log.log_start_offset)
        return log.log_start_offset, -1, partition.leader_epoch if epoch == -1 else epoch
    if timestamp == LATEST_REMOTE:
        return _NOT_FOUND
    found = log.max_timestamp_offset() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp)
    if found is None:
        return _NOT_FOUND
    if found.offset >= end:
        partition.latest_offset(committed=committed)  # a new leader may not know yet that it is committed
        return _NOT_FOUND
    return found.offset, found.timestamp, found.leader_epoch


def handle_offset_for_leader_epoch(broker: BrokerContext, request: Entity, _context: RequestContext) -> Body:
    def answer(topic: str, asked: Any) -> dict[str, Any]:
        partition = broker.find_replica(topic, asked.partition)
        partition.require_leader(asked.current_leader_epoch)
        epoch, end_offset = partition.log.epochs.end_offset_for(
            asked.leader_epoch, partition.log.log_end_offset
        )
        return {"error_code": 0, "leader_epoch": epoch, "end_offset": end_offset}

    return {
        "throttle_time": 0,
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [
                    {"partition": asked.partition, **_or_error(answer, topic.topic, asked)}
                    for asked in topic.partitions
                ],
            }
            for topic in request.topics
        ],
    }
