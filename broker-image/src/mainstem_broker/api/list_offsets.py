"""ListOffsets (key 2), versions 1 to 9, and OffsetForLeaderEpoch (key 23), versions 2 to 4.

ListOffsets finds an offset by timestamp (ms), or by one of the special ones: -1 latest (the high watermark,
or the last stable offset for read_committed), -2 earliest, -3 the record with the largest timestamp
(KIP-734), -4 earliest on local disk (the same as -2 here), -5 latest in remote storage (none). Others below 0
are of later versions, and get UNSUPPORTED_VERSION, as these do in versions before their own. No record at or
after the timestamp: offset -1, timestamp -1, no error. The leader epoch answered is that of the record found.
Batches are decoded by another thread unless they are small, and loaded by another if they are not cached. v2
isolation level; v4 leader epochs; v5 OFFSET_NOT_AVAILABLE, before that LEADER_NOT_AVAILABLE; v6 flexible; v7
-3; v8 -4; v9 -5.

OffsetForLeaderEpoch says where the records of a leader epoch end (KIP-101, KIP-279), so that clients and
followers notice that what they have was truncated (KIP-320).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mainstem_broker.api.authorization import grants_on_cluster, require_topic
from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.api.fetch import READ_COMMITTED
from mainstem_broker.errors import LeaderNotAvailable, OffsetNotAvailable, ProtocolError, UnsupportedVersion
from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.log.time_lookup import (
    Stretch,
    TimestampOffset,
    first_record,
    largest_in_batch,
    largest_in_stretch,
    walk,
)
from mainstem_broker.protocol.batches import is_decoded_quickly
from mainstem_broker.protocol.wire import Body
from mainstem_broker.replica.partition import Partition
from mainstem_broker.runtime.disk_reads import look_up
from mainstem_broker.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.list_offsets.v9.request import ListOffsetsPartition, ListOffsetsRequest
    from kio.schema.offset_for_leader_epoch.v4.request import (
        OffsetForLeaderEpochRequest,
        OffsetForLeaderPartition,
    )

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_REMOTE: Final = -5

OFFSET_NOT_AVAILABLE_VERSION: Final = 5
"""From this version on clients know OFFSET_NOT_AVAILABLE (KIP-207). Before, they give up at it."""

FIRST_VERSIONS: Final[Mapping[int, int]] = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_REMOTE: 9}
"""Of special timestamps that early versions do not have. There they are refused, as in Kafka."""
SPECIAL_TIMESTAMPS: Final = frozenset((LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_REMOTE))
"""Those that name an offset without a lookup by time."""

_NOT_FOUND: Final[Mapping[str, int]] = {"offset": -1, "timestamp": -1, "leader_epoch": -1}


def requested_partitions(_broker: BrokerContext, request: ListOffsetsRequest) -> Iterator[tuple[str, int]]:
    """Of ListOffsets and DeleteRecords, whose fields are named alike."""
    return ((topic.name, item.partition_index) for topic in request.topics for item in topic.partitions)


def partitions_of_epoch_request(
    _broker: BrokerContext, request: OffsetForLeaderEpochRequest
) -> Iterator[tuple[str, int]]:
    """Of OffsetForLeaderEpoch."""
    return ((topic.topic, item.partition) for topic in request.topics for item in topic.partitions)


class _Lookup(NamedTuple):
    """A lookup by time, whose result goes into `answer`."""

    answer: Body
    partition: Partition
    timestamp: int


def handle_list_offsets(
    broker: BrokerContext, request: ListOffsetsRequest, context: RequestContext
) -> Body | Awaitable[Body]:
    committed = request.isolation_level == READ_COMMITTED
    lookups: list[_Lookup] = []

    def list_offset(topic: str, item: ListOffsetsPartition) -> Body:
        answer: Body = {"partition_index": item.partition_index, "error_code": 0, **_NOT_FOUND}
        try:
            require_topic(broker, context, Operation.DESCRIBE, topic)
            partition = broker.find_replica(topic, item.partition_index)
            partition.require_leader(item.current_leader_epoch)
            if context.version < FIRST_VERSIONS.get(item.timestamp, 0):
                raise UnsupportedVersion(
                    f"The timestamp {item.timestamp} takes version {FIRST_VERSIONS[item.timestamp]} of"
                    f" ListOffsets; this is version {context.version}."
                )
            if item.timestamp in SPECIAL_TIMESTAMPS:
                answer |= _special_offset(partition, item.timestamp, committed)
            elif item.timestamp < MAX_TIMESTAMP:
                raise UnsupportedVersion(f"The timestamp {item.timestamp} names no offset here.")
            else:
                lookups.append(_Lookup(answer, partition, item.timestamp))
        except ProtocolError as error:
            answer["error_code"] = _code(error, context.version)
        return answer

    body: Body = {
        "throttle_time": 0,
        "topics": [
            {"name": topic.name, "partitions": [list_offset(topic.name, item) for item in topic.partitions]}
            for topic in request.topics
        ],
    }
    return _look_up(body, lookups, broker, context, committed) if lookups else body


def _special_offset(partition: Partition, timestamp: int, committed: bool) -> Body:
    log = partition.log
    if timestamp == LATEST:
        return _offset(partition.latest_offset(committed=committed), -1, partition.leader_epoch)
    if timestamp == LATEST_REMOTE:
        return dict(_NOT_FOUND)
    epoch = log.epochs.epoch_of(log.log_start_offset)
    return _offset(log.log_start_offset, -1, partition.leader_epoch if epoch == -1 else epoch)


def _offset(offset: int, timestamp: int, leader_epoch: int) -> Body:
    return {"offset": offset, "timestamp": timestamp, "leader_epoch": leader_epoch}


def _code(error: ProtocolError, version: int) -> int:
    if isinstance(error, OffsetNotAvailable) and version < OFFSET_NOT_AVAILABLE_VERSION:
        return LeaderNotAvailable.code
    return error.code


async def _look_up(
    body: Body, lookups: Sequence[_Lookup], broker: BrokerContext, context: RequestContext, committed: bool
) -> Body:
    for answer, partition, timestamp in lookups:
        try:
            match = await _find_by_time(partition.log, timestamp, broker, context.peer)
            if match is None:
                continue
            end_offset = partition.last_stable_offset if committed else partition.high_watermark
            if match.offset < end_offset:
                answer.update(_offset(match.offset, match.timestamp, match.leader_epoch))
            else:
                # A new leader may not know yet that the record is committed, and says so.
                partition.latest_offset(committed=committed)
        except ProtocolError as error:
            answer["error_code"] = _code(error, context.version)
    return body


async def _find_by_time(
    log: PartitionLog, timestamp: int, broker: BrokerContext, client: str
) -> TimestampOffset | None:
    """The first record at or after `timestamp`. Threads decode batches, and read what is not cached."""
    decoding = broker.decoding
    load_missing = partial(broker.disk.load_missing, client)
    from_offset = log.log_start_offset
    if timestamp == MAX_TIMESTAMP:
        timestamp, cut_batch, rest = await look_up(log.largest_timestamp, load_missing)
        while rest is not None:
            in_stretch, rest = await decoding.run(client, partial(largest_in_stretch, rest))
            timestamp = max(timestamp, in_stretch)
        if cut_batch is not None and cut_batch.header.max_timestamp > timestamp:
            in_cut_batch = await decoding.run(client, partial(largest_in_batch, cut_batch, from_offset))
            timestamp = max(timestamp, in_cut_batch)
        if timestamp < 0:
            return None
    while True:
        find = partial(log.first_batch_for_timestamp, timestamp, from_offset)
        stored = await look_up(find, load_missing)
        while isinstance(stored, Stretch):
            end_offset = stored.end_offset
            stored = await decoding.run(client, partial(walk, stored, timestamp))
            if stored is None:
                stored = await look_up(
                    partial(log.first_batch_for_timestamp, timestamp, end_offset), load_missing
                )
        if stored is None:
            return None
        if is_decoded_quickly(stored.batch):
            match = first_record(stored, timestamp, from_offset)
        else:
            match = await decoding.run(client, partial(first_record, stored, timestamp, from_offset))
        if match is not None:
            return match
        from_offset = stored.header.next_offset


def handle_offset_for_leader_epoch(
    broker: BrokerContext, request: OffsetForLeaderEpochRequest, context: RequestContext
) -> Body:
    is_broker = grants_on_cluster(broker, context, Operation.CLUSTER_ACTION)

    def answer(topic: str, item: OffsetForLeaderPartition) -> dict[str, Any]:
        if not is_broker:
            require_topic(broker, context, Operation.DESCRIBE, topic)
        partition = broker.find_replica(topic, item.partition)
        partition.require_leader(item.current_leader_epoch)
        epoch, end_offset = partition.log.epochs.end_offset_for(
            item.leader_epoch, partition.log.log_end_offset
        )
        return {"error_code": 0, "leader_epoch": epoch, "end_offset": end_offset}

    return {
        "throttle_time": 0,
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [
                    {"partition": item.partition, **_or_error(answer, topic.topic, item)}
                    for item in topic.partitions
                ],
            }
            for topic in request.topics
        ],
    }


def _or_error(answer: Callable[[str, Any], Body], topic: str, item: Any) -> Body:
    try:
        return answer(topic, item)
    except ProtocolError as error:
        return {"error_code": error.code}
