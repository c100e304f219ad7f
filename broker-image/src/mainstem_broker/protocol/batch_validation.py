"""What a batch of a client must fulfil before it is appended, and how the topic's settings rewrite it.

In scope: the rules of Apache Kafka's `LogValidator`. Out of scope: sequence numbers and transactions, which
`log/producers.py` checks.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Final, NamedTuple

from mainstem_broker.config.setting import INT64_MAX
from mainstem_broker.config.topic_settings import TopicConfig
from mainstem_broker.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    RecordListTooLarge,
    UnsupportedCompressionType,
)
from mainstem_broker.protocol.batches import (
    ATTRIBUTES_LOW_AT,
    BASE_TIMESTAMP_AT,
    CODEC_BITS,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    NO_TIMESTAMP,
    RECORDS_DECODED_MAX,
    BatchHeader,
    crc_matches,
    is_decoded_quickly,
    parse_batch_header,
    rewrite,
)
from mainstem_broker.protocol.compression import (
    CODEC_OF_SETTING,
    Buffer,
    Codec,
    InflatesTooFar,
    compress,
    decompress,
    plain_bytes_max,
)
from mainstem_broker.protocol.records import RECORD_BYTES_MIN, check_first_record, read_heads

RECORD_ERRORS_MAX: Final = 10_000
"""How many refused records of a batch are listed: librdkafka's default for the size of a batch."""

_PRODUCE_VERSION_OF_ZSTD: Final = 7  # KIP-110
_TIMESTAMPS: Final = struct.Struct(">qq")  # base and max timestamp


class ValidatedBatch(NamedTuple):
    """A client's batch that may be appended: its header, and its bytes, rewritten where the topic asks."""

    header: BatchHeader
    batch: Buffer


def must_decode(records: Buffer, config: TopicConfig, now_ms: int) -> bool:
    """Whether `validate_for_append` would have to read the records, in more time than the event loop has.

    Any bytes may be given: this looks at single fields of the header and trusts none of them.
    """
    if len(records) < HEADER_BYTES or is_decoded_quickly(records):
        return False
    codec = records[ATTRIBUTES_LOW_AT] & CODEC_BITS
    base_timestamp, max_timestamp = _TIMESTAMPS.unpack_from(records, BASE_TIMESTAMP_AT)
    return (
        _checks_records(config)
        or CODEC_OF_SETTING.get(config.compression_type, codec) != codec
        or _lacks_max_timestamp(base_timestamp, max_timestamp, config)
        or _is_too_far_ahead(max_timestamp, config, now_ms)
    )


def _level_of(codec: Codec, config: TopicConfig) -> int | None:
    match codec:
        case Codec.GZIP:
            return config.compression_gzip_level
        case Codec.LZ4:
            return config.compression_lz4_level
        case Codec.ZSTD:
            return config.compression_zstd_level
    return None


def _checks_records(config: TopicConfig) -> bool:
    return config.compacts or config.message_timestamp_before_max_ms != INT64_MAX


def _lacks_max_timestamp(base_timestamp: int, max_timestamp: int, config: TopicConfig) -> bool:
    """Whether a header has no maximal timestamp, or one before the base timestamp, the first record's.

    Some producers write that of the last record, as kafka-go's Conn.WriteMessages does.
    """
    is_wrong = max_timestamp == NO_TIMESTAMP or max_timestamp < base_timestamp
    return is_wrong and not config.log_append_time


def _is_too_far_ahead(timestamp_ms: int, config: TopicConfig, now_ms: int) -> bool:
    return not config.log_append_time and timestamp_ms - now_ms > config.message_timestamp_after_max_ms


def validate_for_append(
    records: Buffer | None, config: TopicConfig, *, produce_version: int, now_ms: int
) -> ValidatedBatch:
    """The one batch that a producer sent for one partition, checked, and rewritten where the topic requires
    it.

    The common path (codec kept, CreateTime with a max timestamp, no compaction, no timestamp bounds) costs
    one CRC and returns the bytes as they are. The rules are Apache Kafka's for clients' appends
    (`LogValidator`), but for two: the maximal timestamp is believed unless it is missing, before the base
    timestamp or too far ahead, or the records are read anyway; and the number of records is only compared
    with the size of the payload and with `RECORDS_DECODED_MAX`.
    Where the records have to be read (`must_decode`), it belongs into another thread than the event loop's.

    Args:
        records: the partition's field of the produce request.
        config: the topic's settings; compression, timestamps, size and compaction are read.
        produce_version: the request's version; zstd requires 7.
        now_ms: the broker's clock, for LogAppendTime and the bounds on timestamps.

    Raises:
        CorruptMessage: short or broken bytes, a wrong CRC, a payload that cannot be opened. InvalidRecord: no
        batch or several, a control batch, a wrong count, records without the key that compaction needs.
        InvalidTimestamp: outside the topic's bounds, or marked as stamped by a broker. MessageTooLarge,
        RecordListTooLarge: over `max.message.bytes`, over `segment.bytes`, or more than a broker decodes.
        UnsupportedForMessageFormat, UnsupportedCompressionType: the client is too old for this.
    """
    if not records:
        raise InvalidRecord("A produce request needs one record batch for each partition.")
    header = parse_batch_header(records)
    _check_size(header, config)
    if header.size_bytes > len(records):
        raise CorruptMessage(
            f"A record batch claims to be {header.size_bytes} bytes long, but only {len(records)} came."
        )
    if header.size_bytes < len(records):
        raise InvalidRecord("A produce request carries exactly one record batch for each partition.")
    if not crc_matches(header, records):
        raise CorruptMessage("The record batch does not match its checksum.")
    _check_header(header, produce_version)
    payload: Buffer = memoryview(records)[HEADER_BYTES:]
    sent_codec = header.codec
    _check_count(header.record_count, sent_codec, payload)

    codec = CODEC_OF_SETTING.get(config.compression_type, sent_codec)
    latest_ms = header.max_timestamp
    reads_records = (
        _lacks_max_timestamp(header.base_timestamp, latest_ms, config)
        # Only the records themselves show which of them are; the header may be wrong altogether.
        or _is_too_far_ahead(latest_ms, config, now_ms)
        or _checks_records(config)
    )
    if codec is not sent_codec or reads_records:
        plain = _decoded(header, payload)
        if reads_records:
            latest_ms = _check_records(header, plain, config, now_ms)
        if codec is not sent_codec:
            payload = compress(codec, plain, _level_of(codec, config))
    stored = header
    if config.log_append_time:
        stored = replace(header, attributes=header.attributes | LOG_APPEND_TIME_BIT, max_timestamp=now_ms)
    elif latest_ms != header.max_timestamp:
        stored = replace(header, max_timestamp=latest_ms)
    if codec is sent_codec and stored is header:
        return ValidatedBatch(header, records)
    if codec is not sent_codec:
        stored = replace(stored, attributes=stored.attributes & ~CODEC_BITS | codec)
    rewritten = ValidatedBatch(*rewrite(stored, payload))
    _check_size(rewritten.header, config)
    return rewritten


def _check_count(record_count: int, codec: Codec, payload: Buffer) -> None:
    """Compare the number of records with what the payload can hold, without decoding it.

    The log's end moves by this number, which the producer claims. A few bytes of a codec may honestly stand
    for a million records, so no closer look at the compressed data would refuse more than
    `RECORDS_DECODED_MAX` does. What remains is a batch that nobody can read, and that moves the end by as
    much as an honest one.
    """
    bytes_max = plain_bytes_max(codec, payload)
    if record_count * RECORD_BYTES_MIN > bytes_max:
        raise InvalidRecord(
            f"The batch counts {record_count} records, but its {len(payload)} bytes of data hold at most"
            f" {bytes_max // RECORD_BYTES_MIN}."
        )
    if record_count > RECORDS_DECODED_MAX:
        raise MessageTooLarge(
            f"The batch counts {record_count} records; a broker takes at most {RECORDS_DECODED_MAX} in one."
        )
    if codec is Codec.NONE:
        check_first_record(payload, record_count)


def _decoded(header: BatchHeader, payload: Buffer) -> Buffer:
    try:
        return decompress(header.codec, payload)
    except InflatesTooFar as error:
        raise MessageTooLarge(str(error)) from error


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


def _check_records(header: BatchHeader, plain: Buffer, config: TopicConfig, now_ms: int) -> int:
    """Check the topic's rules for single records; return the latest timestamp.

    All records are read before one is refused: clients treat the records that are listed and the others of
    the batch differently (KIP-467).
    """
    latest_ms = NO_TIMESTAMP
    without_key: list[int] = []
    too_old: list[int] = []
    too_far_ahead: list[int] = []
    requires_keys = config.compacts
    oldest_ms, newest_ms = NO_TIMESTAMP, INT64_MAX
    if not config.log_append_time:
        oldest_ms = now_ms - config.message_timestamp_before_max_ms
        newest_ms = now_ms + config.message_timestamp_after_max_ms
    for index, (timestamp_delta, _, has_key) in enumerate(read_heads(plain, header.record_count)):
        timestamp_ms = header.base_timestamp + timestamp_delta
        latest_ms = max(latest_ms, timestamp_ms)
        if requires_keys and not has_key and len(without_key) < RECORD_ERRORS_MAX:
            without_key.append(index)
        if NO_TIMESTAMP != timestamp_ms < oldest_ms and len(too_old) < RECORD_ERRORS_MAX:
            too_old.append(index)
        if timestamp_ms > newest_ms and len(too_far_ahead) < RECORD_ERRORS_MAX:
            too_far_ahead.append(index)
    if without_key:
        raise InvalidRecord("A compacted topic takes no record without a key.", without_key)
    if too_old:
        raise InvalidTimestamp(
            f"The timestamp of record {too_old[0]} lies more than message.timestamp.before.max.ms = "
            f"{config.message_timestamp_before_max_ms} ms behind the broker's clock.",
            sorted(too_old + too_far_ahead),
        )
    if too_far_ahead:
        raise InvalidTimestamp(
            f"The timestamp of record {too_far_ahead[0]} lies more than message.timestamp.after.max.ms = "
            f"{config.message_timestamp_after_max_ms} ms ahead of the broker's clock.",
            too_far_ahead,
        )
    return latest_ms
