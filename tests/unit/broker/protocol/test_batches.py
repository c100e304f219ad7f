from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.messages import Message
from tests.support.record_batches import HEADER, BatchHeader, encode_batch
from tests.unit.broker.log.logs import NOW_MS, compressed_batch, messages, settings

from mainstem_broker.config import TopicConfig
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
from mainstem_broker.protocol import batches
from mainstem_broker.protocol.batches import (
    HEADER_BYTES,
    ValidatedBatch,
    crc_matches,
    parse_batch_header,
    read_records,
    rewrite,
    split_batches,
    stamp,
    stamped_prefix,
    validate_for_append,
)
from mainstem_broker.protocol.compression import Codec

THREE = messages([b"one", b"two", b"three"])


def validate(
    records: bytes | None, config: TopicConfig | None = None, produce_version: int = 9
) -> ValidatedBatch:
    return validate_for_append(records, config or settings(), produce_version=produce_version, now_ms=NOW_MS)


def with_header(batch: bytes, **changes: int) -> bytes:
    """`batch` with header fields changed and its CRC made right again."""
    header = parse_batch_header(batch)
    return rewrite(replace(header, **changes), batch[HEADER_BYTES:])[1]


# Headers


def test_a_header_is_read_as_an_independent_reader_reads_it() -> None:
    batch = encode_batch(THREE, base_offset=7, leader_epoch=3)
    header = parse_batch_header(b"xx" + batch, 2)
    theirs = BatchHeader(*HEADER.unpack_from(batch))
    assert (header.base_offset, header.partition_leader_epoch, header.crc) == (7, 3, theirs.crc)
    assert (header.size_bytes, header.last_offset, header.next_offset) == (len(batch), 9, 10)
    assert (header.base_timestamp, header.max_timestamp) == (NOW_MS, NOW_MS + 2)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert (header.codec, header.record_count) == (Codec.NONE, 3)


@pytest.mark.parametrize(
    ("attributes", "name"),
    [(8, "log_append_time"), (16, "is_transactional"), (32, "is_control"), (64, "has_delete_horizon")],
)
def test_each_attribute_has_its_bit(attributes: int, name: str) -> None:
    flags = ("log_append_time", "is_transactional", "is_control", "has_delete_horizon")
    header = parse_batch_header(encode_batch(THREE, attributes=attributes))
    assert {flag: getattr(header, flag) for flag in flags} == {flag: flag == name for flag in flags}


def test_a_header_cut_short_at_any_byte_is_corrupt() -> None:
    batch = encode_batch(THREE)
    for size in range(HEADER_BYTES):
        with pytest.raises(CorruptMessage):
            parse_batch_header(batch[:size])


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_from_before_2017_are_refused_with_advice(magic: int) -> None:
    for size in (17, 30, 100):
        with pytest.raises(UnsupportedForMessageFormat, match="2017"):
            parse_batch_header(encode_batch(THREE, magic=magic)[:size])


def test_a_length_shorter_than_a_header_is_corrupt() -> None:
    batch = bytearray(encode_batch(THREE))
    batch[8:12] = (48).to_bytes(4, "big")
    with pytest.raises(CorruptMessage, match="60 bytes long"):
        parse_batch_header(batch)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_batches_or_raise_a_protocol_error(data: bytes) -> None:
    try:
        found = split_batches(data)
    except ProtocolError:
        return
    assert sum(header.size_bytes for header, _ in found) == len(data)


# Splitting


@given(counts=st.lists(st.integers(1, 4), max_size=5))
def test_batches_in_a_row_are_split_without_copying(counts: list[int]) -> None:
    whole = [encode_batch(messages([b"x"] * count)) for count in counts]
    data = b"".join(whole)
    found = split_batches(data)
    assert [bytes(batch) for _, batch in found] == whole
    assert all(batch.obj is data for _, batch in found)


def test_a_partial_last_batch_is_an_error_or_left_out_as_asked() -> None:
    whole = encode_batch(THREE)
    for size in range(1, len(whole)):
        with pytest.raises(CorruptMessage):
            split_batches(whole + whole[:size])
        assert len(split_batches(whole + whole[:size], partial_tail=True)) == 1


# Stamping and rewriting


@given(base_offset=st.integers(0, 2**62), epoch=st.integers(-1, 2**31 - 1))
def test_stamping_changes_offset_and_epoch_and_not_the_checksum(base_offset: int, epoch: int) -> None:
    batch = bytearray(encode_batch(THREE))
    header = parse_batch_header(batch)
    stamped_by_prefix = stamped_prefix(header, base_offset, epoch) + bytes(batch[batches.STAMP_BYTES :])
    stamp(batch, base_offset, epoch)
    assert bytes(batch) == stamped_by_prefix
    stamped = parse_batch_header(batch)
    assert (stamped.base_offset, stamped.partition_leader_epoch) == (base_offset, epoch)
    assert crc_matches(stamped, batch)


@given(data=st.data())
def test_a_flipped_bit_anywhere_under_the_checksum_is_found(data: st.DataObject) -> None:
    """R6."""
    batch = bytearray(encode_batch(THREE))
    bit = data.draw(st.integers(17 * 8, len(batch) * 8 - 1))
    batch[bit // 8] ^= 1 << bit % 8
    assert not crc_matches(parse_batch_header(batch), batch)


def test_a_rewritten_batch_is_as_if_made_that_way() -> None:
    header = parse_batch_header(encode_batch(THREE, base_offset=5, leader_epoch=2))
    other = encode_batch(messages([b"other"]))
    header_again, batch = rewrite(replace(header, record_count=1, last_offset_delta=0), other[HEADER_BYTES:])
    assert parse_batch_header(batch) == header_again
    assert crc_matches(header_again, batch)
    assert [record.value for record in read_records(header_again, batch)] == [b"other"]
    assert (header_again.base_offset, header_again.partition_leader_epoch) == (5, 2)


# Validation: the common path


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_is_taken_as_it_came_and_never_opened(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    """R7: batches stay batches end to end."""

    def opened(*_: object) -> None:
        raise AssertionError("the batch was opened")

    batch = compressed_batch(THREE, codec)
    monkeypatch.setattr(batches, "decompress", opened)
    monkeypatch.setattr(batches, "parse_records", opened)
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


def test_a_compacted_topic_takes_no_record_without_a_key_and_names_it() -> None:
    config = settings(cleanup_policy="compact")
    keyed = [Message(b"a", b"k", (), NOW_MS), Message(b"b", b"k", (), NOW_MS)]
    assert validate(encode_batch(keyed), config).header.record_count == 2
    with pytest.raises(InvalidRecord) as refusal:
        validate(encode_batch([*keyed, Message(b"c", None, (), NOW_MS)]), config)
    assert refusal.value.batch_index == 2


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
