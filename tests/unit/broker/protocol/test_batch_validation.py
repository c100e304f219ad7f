"""What a client's batch must fulfil, and how a topic's settings rewrite it (R7)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.unit.broker.log.logs import NOW_MS, compressed_batch, messages, settings

from mainstem_broker.config.topic_settings import TopicConfig
from mainstem_broker.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    ProtocolError,
    RecordListTooLarge,
    UnsupportedCompressionType,
    UnsupportedForMessageFormat,
)
from mainstem_broker.protocol import batch_validation
from mainstem_broker.protocol.batch_validation import ValidatedBatch, must_decode, validate_for_append
from mainstem_broker.protocol.batches import (
    HEADER_BYTES,
    RECORDS_DECODED_MAX,
    crc_matches,
    parse_batch_header,
    read_records,
    rewrite,
)
from mainstem_broker.protocol.compression import Codec, compress

THREE = messages([b"one", b"two", b"three"])


def validate(
    records: bytes | None, config: TopicConfig | None = None, produce_version: int = 9
) -> ValidatedBatch:
    return validate_for_append(records, config or settings(), produce_version=produce_version, now_ms=NOW_MS)


def with_header(batch: bytes, **changes: int) -> bytes:
    """`batch` with header fields changed and its CRC made right again."""
    header = parse_batch_header(batch)
    return rewrite(replace(header, **changes), batch[HEADER_BYTES:])[1]


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_is_taken_as_it_came_and_never_opened(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    """R7: batches stay batches end to end."""

    def opened(*_: object) -> None:
        raise AssertionError("the batch was opened")

    batch = compressed_batch(THREE, codec)
    monkeypatch.setattr(batch_validation, "decompress", opened)
    monkeypatch.setattr(batch_validation, "read_heads", opened)
    valid = validate(batch)
    assert valid.batch is batch
    assert valid.header == parse_batch_header(batch)


@pytest.mark.parametrize(
    ("records", "error"),
    [
        pytest.param(None, InvalidRecord, id="null"),
        pytest.param(b"", InvalidRecord, id="no batch"),
        pytest.param(encode_batch(THREE) * 2, InvalidRecord, id="two batches"),
        pytest.param(encode_batch(THREE) + b"x", InvalidRecord, id="bytes after the batch"),
        pytest.param(encode_batch(THREE)[:-1], CorruptMessage, id="cut short"),
        pytest.param(encode_batch(THREE, crc=1), CorruptMessage, id="wrong checksum"),
        pytest.param(encode_batch(THREE, magic=0), UnsupportedForMessageFormat, id="format 0"),
        pytest.param(encode_batch(THREE, magic=1), UnsupportedForMessageFormat, id="format 1"),
        pytest.param(encode_batch(THREE, magic=3), CorruptMessage, id="format 3"),
        pytest.param(encode_batch(THREE, record_count=2), InvalidRecord, id="count below the offsets"),
        pytest.param(encode_batch(THREE, record_count=4), InvalidRecord, id="count above the offsets"),
        pytest.param(encode_batch([], last_offset_delta=-1), InvalidRecord, id="no record"),
        pytest.param(encode_batch(THREE, attributes=32), InvalidRecord, id="control batch"),
        pytest.param(encode_batch(THREE, attributes=8), InvalidTimestamp, id="stamped by the client"),
        pytest.param(encode_batch(THREE, attributes=5), UnsupportedCompressionType, id="no such codec"),
        pytest.param(
            with_header(encode_batch(THREE), producer_id=1, producer_epoch=0),
            InvalidRecord,
            id="producer id without sequence",
        ),
    ],
)
def test_what_breaks_the_rules_of_clients_appends_is_refused(
    records: bytes | None, error: type[ProtocolError]
) -> None:
    with pytest.raises(error):
        validate(records)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_count_that_the_payload_cannot_hold_is_refused(codec: Codec) -> None:
    """The log's end would move by as much; the batch would be unreadable for good."""
    whole = parse_batch_header(compressed_batch(THREE, codec))
    payload = compressed_batch(THREE, codec)[HEADER_BYTES:]
    for count in (2**31 - 1, len(payload) * 32_768):
        lying = rewrite(replace(whole, record_count=count, last_offset_delta=count - 1), payload)[1]
        with pytest.raises(InvalidRecord, match=f"counts {count} records"):
            validate(lying)


@pytest.mark.parametrize("count", [RECORDS_DECODED_MAX + 1, 2**31 - 1])
def test_a_count_that_only_the_codec_could_explain_is_refused_on_every_topic(count: int) -> None:
    """R40: half a megabyte that begins like zstd may stand for 2^31 records, and moved the log's end by as
    many."""
    payload = b"\x28\xb5\x2f\xfd" + bytes(458_760)
    header = replace(
        parse_batch_header(encode_batch([Message(b"x", b"k")])),
        attributes=int(Codec.ZSTD),
        record_count=count,
        last_offset_delta=count - 1,
    )
    with pytest.raises(MessageTooLarge, match=f"counts {count} records"):
        validate(rewrite(header, payload)[1])


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_payload_that_begins_as_no_records_do_is_refused(codec: Codec) -> None:
    with pytest.raises(CorruptMessage):
        validate(encode_batch([Message(b"x")], attributes=int(codec), records=b"garbage"))


def test_what_costs_more_to_decode_than_a_broker_does_is_refused_as_too_large() -> None:
    """Clients send its records again in smaller batches."""
    config = settings(cleanup_policy="compact")
    many = RECORDS_DECODED_MAX + 1
    small = encode_batch([Message(b"x", b"k")])
    payload = compress(Codec.ZSTD, small[HEADER_BYTES:] * many)
    header = replace(parse_batch_header(small), attributes=4, record_count=many, last_offset_delta=many - 1)
    with pytest.raises(MessageTooLarge, match=str(many)):
        validate(rewrite(header, payload)[1], config)
    bomb = compress(Codec.ZSTD, bytes(33 * 1024 * 1024))
    with pytest.raises(MessageTooLarge, match="inflates"):
        validate(rewrite(replace(header, record_count=1, last_offset_delta=0), bomb)[1], config)


@pytest.mark.parametrize(
    ("topic", "is_decoded"),
    [
        pytest.param({}, False, id="as Kafka's defaults"),
        pytest.param({"cleanup_policy": "compact"}, True, id="compacted"),
        pytest.param({"compression_type": "lz4"}, True, id="another codec"),
        pytest.param({"compression_type": "zstd"}, False, id="the same codec"),
        pytest.param({"message_timestamp_before_max_ms": 1000}, True, id="bounds on timestamps"),
    ],
)
def test_batches_whose_records_must_be_read_are_known_by_their_headers(
    topic: dict[str, Any], is_decoded: bool
) -> None:
    config = settings(**topic)
    assert must_decode(compressed_batch(THREE, Codec.ZSTD), config, NOW_MS) == is_decoded
    unset = with_header(compressed_batch(THREE, Codec.ZSTD), max_timestamp=-1)
    assert must_decode(unset, config, NOW_MS)
    before_first = with_header(compressed_batch(THREE, Codec.ZSTD), max_timestamp=NOW_MS - 1)
    assert must_decode(before_first, config, NOW_MS)
    ahead = with_header(compressed_batch(THREE, Codec.ZSTD), max_timestamp=NOW_MS + 2 * 3_600_000)
    assert must_decode(ahead, config, NOW_MS), "the records tell which of them lie too far ahead"
    assert not must_decode(encode_batch(THREE), config, NOW_MS), "small and not compressed: read at once"
    for size in range(HEADER_BYTES + 1):
        must_decode(unset[:size], config, NOW_MS)


@given(data=st.binary(max_size=200))
def test_no_bytes_of_a_client_do_worse_than_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        validate(data)


@given(data=st.data())
def test_no_change_to_a_batch_does_worse_than_a_protocol_error(data: st.DataObject) -> None:
    """Also where the checksum is made right again, on every path that opens records."""
    batch = bytearray(compressed_batch(THREE, data.draw(st.sampled_from(list(Codec)))))
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    config = settings(
        cleanup_policy=data.draw(st.sampled_from(["compact", "delete"])),
        compression_type=data.draw(st.sampled_from(["producer", "lz4", "uncompressed"])),
        message_timestamp_type=data.draw(st.sampled_from(["CreateTime", "LogAppendTime"])),
    )
    if data.draw(st.booleans()):
        try:
            header = parse_batch_header(batch)
        except ProtocolError:
            return
        batch = bytearray(rewrite(header, batch[HEADER_BYTES:])[1])
    try:
        valid = validate(bytes(batch), config)
    except ProtocolError:
        return
    assert crc_matches(valid.header, valid.batch)


def test_a_batch_too_large_for_the_topic_or_for_a_segment_is_refused() -> None:
    batch = encode_batch(THREE)
    assert validate(batch, settings(max_message_bytes=len(batch), segment_bytes=len(batch)))
    with pytest.raises(MessageTooLarge, match=r"max\.message\.bytes"):
        validate(batch, settings(max_message_bytes=len(batch) - 1))
    with pytest.raises(RecordListTooLarge, match=r"segment\.bytes"):
        validate(batch, settings(segment_bytes=len(batch) - 1))


def test_size_is_checked_before_the_checksum_is_computed() -> None:
    with pytest.raises(MessageTooLarge):
        validate(encode_batch(THREE, crc=1), settings(max_message_bytes=60))


def test_zstd_takes_version_7_of_produce() -> None:
    batch = compressed_batch(THREE, Codec.ZSTD)
    assert validate(batch, produce_version=7)
    with pytest.raises(UnsupportedCompressionType, match="version 7"):
        validate(batch, produce_version=6)


# Validation: what topics may ask for


def test_a_compacted_topic_takes_no_record_without_a_key_and_lists_all_of_them() -> None:
    config = settings(cleanup_policy="compact")
    keyed = [Message(b"a", b"k", (), NOW_MS), Message(b"b", b"k", (), NOW_MS)]
    assert validate(encode_batch(keyed), config).header.record_count == 2
    with pytest.raises(InvalidRecord) as refusal:
        validate(
            encode_batch([Message(b"c", None, (), NOW_MS), *keyed, Message(b"d", None, (), NOW_MS)]), config
        )
    assert refusal.value.batch_indexes == (0, 3)


@pytest.mark.parametrize("codec", list(Codec))
def test_an_unset_maximal_timestamp_is_computed(codec: Codec) -> None:
    """Some producers leave it at -1, which would hide the batch from look-ups by time and from retention."""
    batch = with_header(compressed_batch(THREE, codec), max_timestamp=-1)
    valid = validate(batch)
    assert valid.header.max_timestamp == NOW_MS + 2
    assert crc_matches(valid.header, valid.batch)
    assert bytes(valid.batch[HEADER_BYTES:]) == batch[HEADER_BYTES:]


def test_records_without_any_timestamp_keep_none() -> None:
    batch = encode_batch([Message(b"x", timestamp_ms=-1)])
    assert validate(batch).header.max_timestamp == -1


def test_with_log_append_time_the_brokers_clock_stamps_the_batch() -> None:
    batch = encode_batch(messages([b"a", b"b"], timestamp_ms=5))
    valid = validate(batch, settings(message_timestamp_type="LogAppendTime"))
    assert valid.header.log_append_time
    assert valid.header.max_timestamp == NOW_MS
    assert crc_matches(valid.header, valid.batch)
    assert [r.timestamp_ms for r in read_records(valid.header, valid.batch)] == [NOW_MS, NOW_MS]


def test_timestamps_too_far_ahead_are_refused() -> None:
    config = settings(message_timestamp_after_max_ms=1000)
    assert validate(encode_batch(messages([b"x"], NOW_MS + 1000)), config)
    with pytest.raises(InvalidTimestamp, match=r"message\.timestamp\.after\.max\.ms"):
        validate(encode_batch(messages([b"x"], NOW_MS + 1001)), config)


@pytest.mark.parametrize("codec", list(Codec))
def test_the_records_that_lie_too_far_ahead_are_listed(codec: Codec) -> None:
    """As in Apache Kafka 4.4: its producer reports the listed records only as wrong (KIP-467)."""
    config = settings(message_timestamp_after_max_ms=1000)
    mixed = [Message(b"x", timestamp_ms=NOW_MS + ahead_ms) for ahead_ms in (1001, 1000, 0, 5000)]
    with pytest.raises(InvalidTimestamp, match="record 0") as refusal:
        validate(compressed_batch(mixed, codec), config)
    assert refusal.value.batch_indexes == (0, 3)
    bounded = replace(config, message_timestamp_before_max_ms=1000)
    old = Message(b"y", timestamp_ms=NOW_MS - 1001)
    with pytest.raises(InvalidTimestamp) as refusal:
        validate(compressed_batch([*mixed[:2], old], codec), bounded)
    assert refusal.value.batch_indexes == (0, 2)
    assert validate(compressed_batch(mixed, codec), replace(config, message_timestamp_type="LogAppendTime"))


@pytest.mark.parametrize("codec", list(Codec))
def test_a_maximal_timestamp_that_no_record_has_refuses_no_batch(codec: Codec) -> None:
    """Apache Kafka 4.4 accepts the batch, for it takes the timestamps from the records."""
    batch = with_header(compressed_batch(THREE, codec), max_timestamp=NOW_MS + 2 * 3_600_000)
    valid = validate(batch)
    assert valid.header.max_timestamp == NOW_MS + 2
    assert crc_matches(valid.header, valid.batch)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_maximal_timestamp_before_the_first_record_is_computed(codec: Codec) -> None:
    """R4: kafka-go's Conn.WriteMessages writes the last record's, by which newer ones would expire."""
    newest_first = [Message(b"x", timestamp_ms=NOW_MS - ago_ms) for ago_ms in (1_000, 0, 60_000)]
    batch = with_header(compressed_batch(newest_first, codec), max_timestamp=NOW_MS - 60_000)
    valid = validate(batch)
    assert valid.header.max_timestamp == NOW_MS
    assert crc_matches(valid.header, valid.batch)
    ahead = [Message(b"x", timestamp_ms=NOW_MS + 2 * 3_600_000), *newest_first]
    with pytest.raises(InvalidTimestamp, match="record 0"):
        validate(with_header(compressed_batch(ahead, codec), max_timestamp=NOW_MS - 60_000))


def test_a_maximal_timestamp_that_differs_from_the_records_is_computed_where_they_are_read() -> None:
    """R4: kafka-go's, of a batch whose latest record is neither the first nor the last."""
    mixed = [Message(b"x", b"k", timestamp_ms=NOW_MS - ago_ms) for ago_ms in (60_000, 0, 1_000)]
    batch = with_header(encode_batch(mixed), max_timestamp=NOW_MS - 1_000)
    config = settings(cleanup_policy="compact")
    valid = validate(batch, config)
    assert valid.header.max_timestamp == NOW_MS
    assert crc_matches(valid.header, valid.batch)
    assert validate(bytes(valid.batch), config).batch == valid.batch


@pytest.mark.parametrize("timestamp_ms", [NOW_MS + 2 * 3_600_000, NOW_MS * 1000])
def test_a_mistaken_unit_is_refused_by_default(timestamp_ms: int) -> None:
    """R4: a segment with microseconds for milliseconds would never expire (KIP-1030)."""
    assert validate(encode_batch(messages([b"x"], NOW_MS + 3_600_000)), settings())
    with pytest.raises(InvalidTimestamp):
        validate(encode_batch(messages([b"x"], timestamp_ms)), settings())


def test_timestamps_too_far_behind_are_refused_record_by_record() -> None:
    config = settings(message_timestamp_before_max_ms=1000)
    late = [Message(b"x", timestamp_ms=NOW_MS), Message(b"y", timestamp_ms=NOW_MS - 1001)]
    assert validate(encode_batch(messages([b"x"], NOW_MS - 1000)), config)
    assert validate(encode_batch([Message(b"x", timestamp_ms=-1)]), config)
    with pytest.raises(InvalidTimestamp, match="record 1"):
        validate(encode_batch(late), config)
    assert validate(encode_batch(late), replace(config, message_timestamp_type="LogAppendTime"))


@pytest.mark.parametrize("stored", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("sent", list(Codec))
def test_a_topic_with_a_codec_of_its_own_recompresses(sent: Codec, stored: str) -> None:
    """R7."""
    batch = compressed_batch(THREE, sent)
    valid = validate(batch, settings(compression_type=stored))
    assert valid.header.codec.name.lower() == ("none" if stored == "uncompressed" else stored)
    assert crc_matches(valid.header, valid.batch)
    assert [r.value for r in read_records(valid.header, valid.batch)] == [b"one", b"two", b"three"]
    if valid.header.codec is sent:
        assert valid.batch is batch


def test_what_recompression_makes_too_large_is_refused() -> None:
    batch = compressed_batch(messages([bytes(10_000)]), Codec.ZSTD)
    with pytest.raises(MessageTooLarge):
        validate(batch, settings(compression_type="uncompressed", max_message_bytes=1000))


def test_a_payload_that_is_not_compressed_as_it_says_is_corrupt_where_it_is_opened() -> None:
    batch = encode_batch(THREE, attributes=int(Codec.GZIP))
    with pytest.raises(CorruptMessage):
        validate(batch, settings(compression_type="lz4"))


@pytest.mark.parametrize(("codec", "low", "high"), [("gzip", 1, 9), ("lz4", 9, 8), ("zstd", -20, 19)])
def test_the_broker_compresses_with_the_level_of_the_topic(codec: str, low: int, high: int) -> None:
    """R7, KIP-390."""
    values = [b"%d squared is %d" % (number, number * number) for number in range(2_000)]
    sizes = []
    for level in (low, high):
        config = settings(compression_type=codec, **{f"compression_{codec}_level": level})
        sizes.append(validate(encode_batch(messages(values)), config).header.size_bytes)
    assert sizes[0] > sizes[1]
