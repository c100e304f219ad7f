"""Headers of record batches: read, stamped, rewritten."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.record_batches import HEADER, BatchHeader, encode_batch
from tests.unit.broker.log.logs import NOW_MS, messages

from mainstem_broker.errors import CorruptMessage, ProtocolError, UnsupportedForMessageFormat
from mainstem_broker.protocol import batches
from mainstem_broker.protocol.batches import (
    HEADER_BYTES,
    crc_matches,
    parse_batch_header,
    read_records,
    rewrite,
    split_batches,
    stamp,
    stamped_prefix,
)
from mainstem_broker.protocol.compression import Codec

THREE = messages([b"one", b"two", b"three"])


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
        result = split_batches(data)
    except ProtocolError:
        return
    assert sum(header.size_bytes for header, _ in result) == len(data)


# Splitting


@given(counts=st.lists(st.integers(1, 4), max_size=5))
def test_batches_in_a_row_are_split_without_copying(counts: list[int]) -> None:
    whole = [encode_batch(messages([b"x"] * count)) for count in counts]
    data = b"".join(whole)
    result = split_batches(data)
    assert [bytes(batch) for _, batch in result] == whole
    assert all(batch.obj is data for _, batch in result)


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
