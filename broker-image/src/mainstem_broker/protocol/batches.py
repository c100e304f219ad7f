"""Record batches (format 2) seen through their headers: parsing, stamping, rewriting, making.

In scope: everything that the produce and replication paths do to a batch as a whole. Out of scope: what a
client's batch must fulfil (`batch_validation.py`), the format of records, files, offsets of a log.

A batch (KIP-98), big endian:

    byte  0  base offset            int64   stamped by the leader
    byte  8  length                 int32   of the bytes from byte 12 on
    byte 12  partition leader epoch int32   stamped by the leader
    byte 16  magic                  int8    2
    byte 17  crc                    uint32  CRC-32C of the bytes from byte 21 on
    byte 21  attributes             int16   bits 0-2 codec, 3 LogAppendTime, 4 transactional, 5 control,
                                            6 delete horizon (then the base timestamp holds it)
    byte 23  last offset delta      int32
    byte 27  base timestamp         int64   ms
    byte 35  max timestamp          int64   ms
    byte 43  producer id            int64   -1 for none
    byte 51  producer epoch         int16
    byte 53  base sequence          int32
    byte 57  record count           int32
    byte 61  records, compressed as one block

What the leader stamps lies outside the CRC, so a batch is stored as it came.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from crc32c import crc32c

from mainstem_broker.errors import (
    CorruptMessage,
    UnsupportedForMessageFormat,
)
from mainstem_broker.protocol.compression import (
    DECOMPRESSED_BYTES_MAX,
    Buffer,
    Codec,
    codec_of_attributes,
    decompress,
)
from mainstem_broker.protocol.records import (
    Header,
    Record,
    RecordHead,
    encode_records,
    parse_records,
    read_heads,
)

HEADER_BYTES: Final = 61
ATTRIBUTES_LOW_AT: Final = 22  # the lower byte
BASE_TIMESTAMP_AT: Final = 27  # the max timestamp follows
PREFIX_BYTES: Final = 12  # base offset and length: what the length does not count
MAGIC: Final = 2
NO_TIMESTAMP: Final = -1

RECORDS_DECODED_MAX: Final = 1_000_000
"""A client's batch with more records is refused, and none is decoded. As many take half a second;
librdkafka's limit for a batch (`batch.num.messages`) is the same."""
DECODED_ON_THE_LOOP_BYTES_MAX: Final = 8 * 1024
"""An uncompressed batch up to this size is decoded in half a millisecond, which is not worth another thread.
"""

_MAGIC_AT: Final = 16
_CRC_FROM: Final = 21
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_CHECKED_HEADER: Final = struct.Struct(">hiqqqhii")  # the header from the attributes on
_STAMP: Final = struct.Struct(">qii")
_BASE_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")
STAMP_BYTES: Final = _STAMP.size

CODEC_BITS: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_DELETE_HORIZON: Final = 0x40


@dataclass(slots=True)
class BatchHeader:
    """A batch's header. A value: never changed (not frozen, for that makes its creation five times slower).

    `size_bytes` is the whole batch's, twelve bytes more than the length on the wire. Timestamps are ms.
    """

    base_offset: int
    size_bytes: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """Raises UnsupportedCompressionType when there is no such codec."""
        return codec_of_attributes(self.attributes)

    @property
    def log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME_BIT != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & _TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & _CONTROL != 0

    @property
    def has_delete_horizon(self) -> bool:
        return self.attributes & _DELETE_HORIZON != 0


def parse_batch_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch at `position`; only the header's bytes need to be there.

    Raises:
        CorruptMessage: fewer than 61 bytes are left, or the length is shorter than a header.
        UnsupportedForMessageFormat: a message of format 0 or 1, from before 2017.
    """
    if len(buffer) - position < HEADER_BYTES:
        # A short message of an old format deserves its own answer.
        if len(buffer) - position > _MAGIC_AT:
            _check_magic(buffer[position + _MAGIC_AT])
        raise CorruptMessage(
            f"A record batch header takes {HEADER_BYTES} bytes, but only {len(buffer) - position} are left."
        )
    base_offset, length, epoch, magic, *rest = _HEADER.unpack_from(buffer, position)
    if magic != MAGIC:
        _check_magic(magic)
    if length < HEADER_BYTES - PREFIX_BYTES:
        raise CorruptMessage(f"A record batch claims to be {length + PREFIX_BYTES} bytes long.")
    return BatchHeader(base_offset, length + PREFIX_BYTES, epoch, magic, *rest)


def _check_magic(magic: int) -> None:
    if magic in (0, 1):
        raise UnsupportedForMessageFormat(
            f"Messages of format {magic} are not supported: use a client from 2017 or later, for format 2."
        )
    if magic != MAGIC:
        raise CorruptMessage(f"A record batch has magic {magic}, which does not exist.")


def split_batches(records: Buffer, *, partial_tail: bool = False) -> list[tuple[BatchHeader, memoryview]]:
    """The whole batches of `records`, each with its header, without copying.

    Raises:
        CorruptMessage: a batch is longer than what is left, or a header is broken. With `partial_tail` an
            incomplete last batch is dropped instead, as fetch responses may end in one.
        UnsupportedForMessageFormat: see `parse_batch_header`.
    """
    view = memoryview(records)
    batches: list[tuple[BatchHeader, memoryview]] = []
    position = 0
    while position < len(view):
        if partial_tail and len(view) - position < HEADER_BYTES:
            break
        header = parse_batch_header(view, position)
        end = position + header.size_bytes
        if end > len(view):
            if partial_tail:
                break
            raise CorruptMessage(
                f"A record batch claims to be {header.size_bytes} bytes long, "
                f"but only {len(view) - position} are left."
            )
        batches.append((header, view[position:end]))
        position = end
    return batches


def crc_matches(header: BatchHeader, batch: Buffer) -> bool:
    """Whether the bytes of `batch` are those its CRC was computed from."""
    return crc32c(memoryview(batch)[_CRC_FROM : header.size_bytes]) == header.crc


def stamp(batch: bytearray | memoryview, base_offset: int, leader_epoch: int, position: int = 0) -> None:
    """Write what the leader decides into the batch at `position`, in place."""
    _BASE_OFFSET.pack_into(batch, position, base_offset)
    _LEADER_EPOCH.pack_into(batch, position + PREFIX_BYTES, leader_epoch)


def stamped_prefix(header: BatchHeader, base_offset: int, leader_epoch: int) -> bytes:
    """The first `STAMP_BYTES` of the batch as the leader stamps them, to be written before the others."""
    return _STAMP.pack(base_offset, header.size_bytes - PREFIX_BYTES, leader_epoch)


def rewrite(header: BatchHeader, payload: Buffer) -> tuple[BatchHeader, bytes]:
    """A batch of `header`'s fields around `payload`, with length and CRC computed anew."""
    checked = (
        _CHECKED_HEADER.pack(
            header.attributes,
            header.last_offset_delta,
            header.base_timestamp,
            header.max_timestamp,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.record_count,
        ),
        payload,
    )
    crc = crc32c(checked[1], crc32c(checked[0]))
    size_bytes = HEADER_BYTES + len(payload)
    unchecked = struct.pack(
        ">qiibI",
        header.base_offset,
        size_bytes - PREFIX_BYTES,
        header.partition_leader_epoch,
        MAGIC,
        crc,
    )
    return replace(header, size_bytes=size_bytes, magic=MAGIC, crc=crc), b"".join((unchecked, *checked))


OwnRecord = tuple[bytes | None, bytes | None, Sequence[Header]]
"""Key, value and headers of a record that the broker writes itself."""


def make_batch(records: Sequence[OwnRecord], now_ms: int) -> bytes:
    """A batch of the broker's own records; all have the time `now_ms`."""
    return _make_batch(records, now_ms, 0, -1, -1, -1)[1]


def make_transactional_batch(
    records: Sequence[OwnRecord], producer_id: int, producer_epoch: int, now_ms: int
) -> tuple[BatchHeader, bytes]:
    """As `make_batch`, as part of a client's transaction.

    Sequence numbers begin with 0 in each batch, as in Apache Kafka: they are not checked, for the producer
    does not know of these batches.
    """
    return _make_batch(records, now_ms, _TRANSACTIONAL, producer_id, producer_epoch, 0)


def _make_batch(
    records: Sequence[OwnRecord],
    now_ms: int,
    attributes: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> tuple[BatchHeader, bytes]:
    made = [Record(index, now_ms, key, value, headers) for index, (key, value, headers) in enumerate(records)]
    payload = encode_records(made, 0, now_ms)
    header = BatchHeader(
        base_offset=0,
        size_bytes=0,
        partition_leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=len(made) - 1,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(made),
    )
    return rewrite(header, payload)


def read_records(
    header: BatchHeader, batch: Buffer, *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> Iterator[Record]:
    """The records of `batch`, whose header is `header`, in order; costs per record.

    Raises:
        CorruptMessage: the payload cannot be decompressed, inflates past `bytes_max`, or is not the records
            that the header counts. Records before the bad one have been yielded by then.
        UnsupportedCompressionType: the codec does not exist.
    """
    payload = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    return parse_records(
        decompress(header.codec, payload, bytes_max),
        header.record_count,
        header.base_offset,
        header.base_timestamp,
        header.max_timestamp if header.log_append_time else None,
    )


def read_record_heads(header: BatchHeader, batch: Buffer) -> Iterator[RecordHead]:
    """The heads of the batch's records, in order; costs per record, a third of `read_records`.

    Raises:
        CorruptMessage: as `read_records`, or the batch costs more to decode than a broker does for a client.
    """
    if header.record_count > RECORDS_DECODED_MAX:
        raise CorruptMessage(f"A batch of {header.record_count} records is not decoded.")
    payload = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    return read_heads(decompress(header.codec, payload), header.record_count)


def is_decoded_quickly(batch: Buffer) -> bool:
    """Whether decoding takes so little time that the event loop may do it. Trusts nothing in the batch."""
    return len(batch) <= DECODED_ON_THE_LOOP_BYTES_MAX and batch[ATTRIBUTES_LOW_AT] & CODEC_BITS == 0
