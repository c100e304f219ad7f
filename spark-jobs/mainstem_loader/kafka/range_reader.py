"""Reading a range of offsets of one partition to its end, fetch by fetch: how much each fetch requests, and
when a broker that returns nothing is given up.

Loads and Spark's data source read through this one function. Must not live here: what becomes of the records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from mainstem_loader.errors import BrokerUnreachableError
from mainstem_loader.kafka.batches import NO_TIMESTAMP_MS, Source, oldest_timestamp_ms, scan_batches
from mainstem_loader.kafka.connection import RESPONSE_BYTES_MAX
from mainstem_loader.kafka.decode import DecodedRecords, decode_records
from mainstem_loader.kafka.fetch import TopicReader

# The first fetch of a range learns how large its records are; later ones ask for little more than is left.
FIRST_FETCH_BYTES: Final = 1024 * 1024

LARGEST_FETCH_BYTES: Final = RESPONSE_BYTES_MAX // 2

# Offsets below the end that bring nothing, over and over: the broker and the plan disagree about the end.
STALLED_FETCHES_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class RangePart:
    """What one fetch brought. `size_bytes`: of the batches as the broker stores them. The blocks of `records`
    are decoded while they are taken, and must be taken before the next part is requested. `has_aborted`:
    whether records of aborted transactions are left out.
    """

    size_bytes: int
    records: DecodedRecords
    has_aborted: bool = False


def read_range(
    reader: TopicReader,
    partition: int,
    start: int,
    end: int,
    fetch_bytes_max: int,
    with_headers: bool = False,
    with_timestamp_type: bool = False,
) -> Iterator[RangePart]:
    """The records with offsets from `start` to `end`, exclusive, in order.

    Args:
        reader: of the topic.
        partition: its number.
        start, end: of the range; empty where `start` is not below `end`.
        fetch_bytes_max: the size of the largest fetch, except for a batch that is larger.
        with_headers, with_timestamp_type: see `decode_records`.

    Raises:
        OffsetsLostError: the next offset is no longer in the partition.
        BrokerUnreachableError: also when the broker returns nothing for too long.
        CorruptBatchError: see `decode_records`.
    """
    source = Source(reader.topic, partition)
    position, stalled = start, 0
    fetch_bytes = min(FIRST_FETCH_BYTES, fetch_bytes_max)
    while position < end:
        fetched = reader.fetch(partition, position, fetch_bytes)
        records = decode_records(fetched, source, position, end, with_headers, with_timestamp_type)
        yield RangePart(len(fetched.records), records, bool(fetched.aborted))
        moved = records.next_offset - position
        position = records.next_offset
        if moved:
            stalled = 0
            left = (end - position) * len(fetched.records) // moved
            fetch_bytes = min(fetch_bytes_max, left + FIRST_FETCH_BYTES)
            continue
        stalled += 1
        if fetched.records:
            # A batch larger than a fetch, from a broker that cuts it off.
            fetch_bytes = min(2 * fetch_bytes, LARGEST_FETCH_BYTES)
        if stalled > STALLED_FETCHES_MAX:
            raise BrokerUnreachableError(
                f"Partition {partition} of topic {reader.topic} returns no records at offset {position},"
                " though it"
                f" should reach to {end}; check the broker's log, then read again."
            )


def oldest_time_ms(reader: TopicReader, partition: int, offset: int) -> int | None:
    """The oldest timestamp in the first batch from an offset on; None if that is not known."""
    # The first batch comes whole, however little is requested (KIP-74).
    fetched = reader.fetch(partition, offset, 1)
    time_ms = oldest_timestamp_ms(fetched.records, Source(reader.topic, partition), offset)
    return None if time_ms is None or time_ms < 0 else time_ms


def has_timestamp(reader: TopicReader, partition: int, offset: int) -> bool:
    """Whether the batch that holds an offset has timestamps. Markers of transactions have."""
    fetched = reader.fetch(partition, offset, 1)
    batches = scan_batches(fetched.records, Source(reader.topic, partition), offset)
    return any(batch.max_timestamp_ms != NO_TIMESTAMP_MS for batch in islice(batches, 1))
