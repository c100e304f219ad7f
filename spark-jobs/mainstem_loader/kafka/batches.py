"""Record batches as a fetch brings them: found, checked and chosen, by their headers alone.

A batch (version 2, KIP-98) is a header of 61 bytes, big endian, and its records, compressed as one block:

    0   int64   base offset            27  int64  base timestamp, ms
    8   int32   bytes after this field 35  int64  max timestamp, ms
    12  int32   leader epoch           43  int64  producer id
    16  int8    magic, 2               51  int16  producer epoch
    17  uint32  CRC-32C of all below   53  int32  base sequence
    21  int16   attributes             57  int32  number of records
    23  int32   last offset - base     61  records

Attributes: bits 0-2 codec, 3 timestamps are the broker's append time, 4 transactional, 5 control.

The CRC covers the bytes from 21 on, so what stands before it is checked for sense: lengths, magic, and that
offsets only rise and end before the high watermark. Must not live here: what is inside a record (`decode`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn

from crc32c import crc32c

from mainstem_loader.errors import CorruptBatchError
from mainstem_loader.kafka.fetch import AbortedTransaction

HEADER_BYTES: Final = 61
NO_TIMESTAMP_MS: Final = -1
"""The timestamp of a record without one (KIP-32)."""
_LENGTH_AT: Final = 8
_COUNTED_FROM: Final = 12
_CRC_FROM: Final = 21
_MAGIC: Final = 2
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_INT32: Final = struct.Struct(">i")

_LOG_APPEND_TIME: Final = 1 << 3
_TRANSACTIONAL: Final = 1 << 4
_CONTROL: Final = 1 << 5

# The key of a control record: int16 version, int16 type; type 0 aborts, 1 commits (KIP-98).
_CONTROL_KEY: Final = struct.Struct(">hh")
_ABORT: Final = 0


@dataclass(frozen=True, slots=True)
class Source:
    """Where bytes came from, for the messages of errors."""

    topic: str
    partition: int

    def corrupt(self, offset: int, reason: str) -> NoReturn:
        raise CorruptBatchError(
            f"Partition {self.partition} of topic {self.topic} is damaged at offset {offset}: {reason}."
            " Nothing from there on was loaded; restore the partition, or delete its records up to there."
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """The header of a whole batch whose CRC is right, and where its records lie in the fetched bytes."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    attributes: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    record_count: int
    records_begin: int
    records_end: int

    @property
    def codec(self) -> int:
        return self.attributes & 0x07

    @property
    def has_append_time(self) -> bool:
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)


def scan_batches(
    fetched: bytes, source: Source, first_offset: int, high_watermark: int | None = None
) -> Iterator[Batch]:
    """The whole batches of a fetch, in order; a last one that is cut off is left out.

    Args:
        fetched: batches one after the other.
        source: for messages.
        first_offset: what was asked for; batches that end before it are damage.
        high_watermark: when known, batches that reach past it are damage.

    Raises:
        CorruptBatchError: the bytes are not batches as they were written.
    """
    view = memoryview(fetched)
    position = 0
    next_offset = first_offset
    while len(view) - position >= HEADER_BYTES:
        (size,) = _INT32.unpack_from(view, position + _LENGTH_AT)
        if size < HEADER_BYTES - _COUNTED_FROM:
            source.corrupt(next_offset, f"a batch says that it is {size} bytes long")
        end = position + _COUNTED_FROM + size
        magic = view[position + 16]
        if magic != _MAGIC:
            source.corrupt(
                next_offset,
                f"a batch has format {magic}, and only format {_MAGIC} (Apache Kafka 0.11 and later) can be"
                " read",
            )
        if end > len(view):
            return
        (base, _, epoch, _, crc, attributes, delta, base_ms, max_ms, producer_id, _, _, count) = (
            _HEADER.unpack_from(view, position)
        )
        if crc32c(view[position + _CRC_FROM : end]) != crc:
            source.corrupt(max(base, next_offset), "the checksum of a batch does not match its bytes")
        last = base + delta
        if delta < 0 or count < 0:
            source.corrupt(next_offset, f"a batch holds {count} records up to offset {last}")
        # Only the first one may begin before what was asked for.
        if last < next_offset or (position and base < next_offset):
            source.corrupt(next_offset, f"a batch for offsets {base} to {last} follows where they are past")
        if high_watermark is not None and last >= high_watermark:
            source.corrupt(
                next_offset, f"a batch ends at {last}, past the end of the partition ({high_watermark})"
            )
        yield Batch(
            base, last, epoch, attributes, base_ms, max_ms, producer_id, count, position + HEADER_BYTES, end
        )
        next_offset = last + 1
        position = end


def oldest_timestamp_ms(fetched: bytes, source: Source, first_offset: int) -> int | None:
    """The timestamp of the first record in a fetch, or an earlier one of its batch; None if there is none."""
    for batch in scan_batches(fetched, source, first_offset):
        if not batch.is_control and batch.record_count:
            return batch.max_timestamp_ms if batch.has_append_time else batch.base_timestamp_ms
    return None


def readable_batches(
    batches: Sequence[Batch], fetched: bytes, aborted: Sequence[AbortedTransaction]
) -> Iterator[Batch]:
    """Those batches that hold records for a reader: no control batches, none of aborted transactions.

    Args:
        batches: what one fetch brought, in order.
        fetched: the bytes they lie in.
        aborted: the aborted transactions named by the same fetch, in any order; empty when reading
    uncommitted.
    """
    waiting = sorted(aborted, key=lambda transaction: -transaction.first_offset)
    aborting: set[int] = set()
    for batch in batches:
        while waiting and waiting[-1].first_offset <= batch.last_offset:
            aborting.add(waiting.pop().producer_id)
        if batch.is_control:
            if _is_abort_marker(batch, fetched):
                aborting.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in aborting):
            yield batch


def wire_bytes_per_offset(samples: Mapping[int, bytes], topic: str) -> float:
    """The size of a record as stored, estimated from first batches by partition; 0 when there are none.

    Damage is left for the tasks to find, because records before it can be loaded.
    """
    size = count = 0
    for partition, sample in samples.items():
        with suppress(CorruptBatchError):
            for batch in scan_batches(sample, Source(topic, partition), first_offset=0):
                size += batch.records_end - batch.records_begin + HEADER_BYTES
                count += batch.last_offset - batch.base_offset + 1
    return size / count if count else 0.0


def _is_abort_marker(batch: Batch, fetched: bytes) -> bool:
    """Control batches hold one record, never compressed, whose key says what it marks: behind the record's
    length, attributes, timestamp and offset deltas (each one byte in a marker) and the key's length.
    """
    key_at = batch.records_begin + 5
    if batch.records_end - key_at < _CONTROL_KEY.size:
        return False
    version, kind = _CONTROL_KEY.unpack_from(fetched, key_at)
    return bool(version >= 0 and kind == _ABORT)
