"""Record batches (format 2) seen through their headers: parsing, checking, stamping, rewriting.

Lives here: everything that the produce and replication paths do to a batch as a whole. Must not: walking
records, except where a rule of the topic asks for it (see `validate_for_append`); files, offsets of a log.

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
from typing import Final, NamedTuple

from crc32c import crc32c

from mainstem_broker.config import INT64_MAX, TopicConfig
from mainstem_broker.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    RecordListTooLarge,
    UnsupportedCompressionType,
    UnsupportedForMessageFormat,
)
from mainstem_broker.protocol.compression import (
    CODEC_OF_SETTING,
    DECOMPRESSED_BYTES_MAX,
    Buffer,
    Codec,
    codec_of_attributes,
    compress,
    decompress,
)
from mainstem_broker.protocol.records import Header, Record, encode_records, parse_records

HEADER_BYTES: Final = 61
PREFIX_BYTES: Final = 12  # base offset and length: what the length does not count
MAGIC: Final = 2
NO_TIMESTAMP: Final = -1

_MAGIC_AT: Final = 16
_CRC_FROM: Final = 21
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_CHECKED_HEADER: Final = struct.Struct(">hiqqqhii")  # the header from the attributes on
_STAMP: Final = struct.Struct(">qii")
_BASE_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")
STAMP_BYTES: Final = _STAMP.size

_CODEC: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_DELETE_HORIZON: Final = 0x40

_PRODUCE_VERSION_OF_ZSTD: Final = 7  # KIP-110


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
        return self.attributes & _LOG_APPEND_TIME != 0

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
        raise CorruptMessage(f"A record batch says that it is {length + PREFIX_BYTES} bytes long.")
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
                f"A record batch says that it is {header.size_bytes} bytes long, "
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


def make_batch(records: Sequence[tuple[bytes | None, bytes | None, Sequence[Header]]], now_ms: int) -> bytes:
    """A batch of the broker's own records: key, value and headers of each; all have the time `now_ms`."""
    made = [Record(index, now_ms, key, value, headers) for index, (key, value, headers) in enumerate(records)]
    payload = encode_records(made, 0, now_ms)
    header = BatchHeader(
        base_offset=0,
        size_bytes=0,
        partition_leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=len(made) - 1,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=len(made),
    )
    return rewrite(header, payload)[1]


class ValidatedBatch(NamedTuple):
    """A client's batch that may be appended: its header, and its bytes, rewritten where the topic asks."""

    header: BatchHeader
    batch: Buffer


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


def validate_for_append(
    records: Buffer | None, config: TopicConfig, *, produce_version: int, now_ms: int
) -> ValidatedBatch:
    """The one batch that a producer sent for one partition, checked, and rewritten where the topic asks.

    The common path (codec kept, CreateTime with a max timestamp, no compaction, no timestamp bounds) costs
    one CRC and hands the bytes on as they are. The rules are Apache Kafka's for clients' appends
    (`LogValidator`), but for the maximal timestamp: it is believed when it is there.

    Args:
        records: the partition's field of the produce request.
        config: the topic's settings; compression, timestamps, size and compaction are read.
        produce_version: the request's version; zstd takes 7.
        now_ms: the broker's clock, for LogAppendTime and the bounds on timestamps.

    Raises:
        CorruptMessage: short or broken bytes, a wrong CRC, a payload that cannot be opened.
        InvalidRecord: no batch or several, a control batch, a wrong count, a record without the key that
            compaction needs.
        InvalidTimestamp: outside the topic's bounds, or marked as stamped by a broker.
        MessageTooLarge, RecordListTooLarge: over `max.message.bytes`, over `segment.bytes`.
        UnsupportedForMessageFormat, UnsupportedCompressionType: the client is too old for this.
    """
    if not records:
        raise InvalidRecord("A produce request needs one record batch for each partition.")
    header = parse_batch_header(records)
    _check_size(header, config)
    if header.size_bytes > len(records):
        raise CorruptMessage(
            f"A record batch says that it is {header.size_bytes} bytes long, but only {len(records)} came."
        )
    if header.size_bytes < len(records):
        raise InvalidRecord("A produce request carries exactly one record batch for each partition.")
    if not crc_matches(header, records):
        raise CorruptMessage("The record batch does not match its checksum.")
    _check_header(header, produce_version)
    if config.compacts or config.message_timestamp_before_max_ms != INT64_MAX:
        _check_records(header, records, config, now_ms)

    wanted = header
    if config.log_append_time:
        wanted = replace(header, attributes=header.attributes | _LOG_APPEND_TIME, max_timestamp=now_ms)
    else:
        if header.max_timestamp == NO_TIMESTAMP:
            latest_ms = max(record.timestamp_ms for record in read_records(header, records))
            wanted = replace(header, max_timestamp=latest_ms)
        if wanted.max_timestamp - now_ms > config.message_timestamp_after_max_ms:
            raise InvalidTimestamp(
                f"Timestamp {wanted.max_timestamp} lies more than message.timestamp.after.max.ms = "
                f"{config.message_timestamp_after_max_ms} ms ahead of the broker's clock."
            )
    codec = CODEC_OF_SETTING.get(config.compression_type, header.codec)
    if codec is header.codec and wanted is header:
        return ValidatedBatch(header, records)
    payload: Buffer = memoryview(records)[HEADER_BYTES:]
    if codec is not header.codec:
        payload = compress(codec, decompress(header.codec, payload))
        wanted = replace(wanted, attributes=wanted.attributes & ~_CODEC | codec)
    rewritten = ValidatedBatch(*rewrite(wanted, payload))
    _check_size(rewritten.header, config)
    return rewritten


def _check_size(header: BatchHeader, config: TopicConfig) -> None:
    if header.size_bytes > config.max_message_bytes:
        raise MessageTooLarge(
            f"The record batch takes {header.size_bytes} bytes; "
            f"max.message.bytes allows {config.max_message_bytes}."
        )
    if header.size_bytes > config.segment_bytes:
        raise RecordListTooLarge(
            f"The record batch takes {header.size_bytes} bytes; segment.bytes allows {config.segment_bytes}."
        )


def _check_header(header: BatchHeader, produce_version: int) -> None:
    if header.record_count <= 0 or header.last_offset_delta + 1 != header.record_count:
        raise InvalidRecord(
            f"The batch counts {header.record_count} records, "
            f"but its last has offset {header.last_offset_delta}."
        )
    if header.is_control:
        raise InvalidRecord("Only brokers write control batches.")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise InvalidRecord(f"The batch of a producer with an id has sequence number {header.base_sequence}.")
    if header.log_append_time:
        raise InvalidTimestamp("Only brokers mark a batch as stamped with the time of append.")
    if header.codec is Codec.ZSTD and produce_version < _PRODUCE_VERSION_OF_ZSTD:
        raise UnsupportedCompressionType(
            f"zstd takes version {_PRODUCE_VERSION_OF_ZSTD} of Produce; this is version {produce_version}."
        )


def _check_records(header: BatchHeader, records: Buffer, config: TopicConfig, now_ms: int) -> None:
    for index, record in enumerate(read_records(header, records)):
        if config.compacts and record.key is None:
            raise InvalidRecord("A compacted topic takes no record without a key.", batch_index=index)
        if (
            not config.log_append_time
            and record.timestamp_ms != NO_TIMESTAMP
            and now_ms - record.timestamp_ms > config.message_timestamp_before_max_ms
        ):
            raise InvalidTimestamp(
                f"Timestamp {record.timestamp_ms} of record {index} lies more than "
                f"message.timestamp.before.max.ms = {config.message_timestamp_before_max_ms} ms "
                "behind the broker's clock."
            )
