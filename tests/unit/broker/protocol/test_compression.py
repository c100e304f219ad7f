from __future__ import annotations

import gzip
import random
import struct

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem_broker.errors import CorruptMessage, UnsupportedCompressionType
from mainstem_broker.protocol.compression import Codec, codec_of_attributes, compress, decompress

COMPRESSING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]


@pytest.mark.parametrize("codec", list(Codec))
@given(plain=st.binary(max_size=2000))
def test_every_codec_gives_back_what_it_was_given(codec: Codec, plain: bytes) -> None:
    assert bytes(decompress(codec, compress(codec, plain))) == plain


@pytest.mark.parametrize("codec", COMPRESSING)
def test_data_that_inflates_far_beyond_the_first_buffer_comes_back_whole(codec: Codec) -> None:
    plain = bytes(3_000_000)
    assert bytes(decompress(codec, compress(codec, plain))) == plain


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_bomb_is_refused_before_it_goes_off(codec: Codec) -> None:
    bomb = compress(codec, bytes(5_000_000))
    with pytest.raises(CorruptMessage, match="more than 1000000 bytes"):
        decompress(codec, bomb, bytes_max=1_000_000)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_the_bound_itself_is_allowed(codec: Codec) -> None:
    plain = bytes(100_000)
    assert bytes(decompress(codec, compress(codec, plain), bytes_max=len(plain))) == plain


@pytest.mark.parametrize("codec", COMPRESSING)
@given(block=st.binary(max_size=300))
def test_any_bytes_are_either_data_or_corrupt(codec: Codec, block: bytes) -> None:
    try:
        decompress(codec, block, bytes_max=100_000)
    except CorruptMessage:
        pass


@pytest.mark.parametrize("codec", COMPRESSING)
def test_data_cut_short_anywhere_is_corrupt(codec: Codec) -> None:
    block = compress(codec, b"a partition is an append-only log, " * 20)
    for size in range(1, len(block)):
        try:
            plain = decompress(codec, block[:size])
        except CorruptMessage:
            continue
        # Codecs without an end mark give a shorter result, which the record count then gives away.
        assert len(plain) < 700


def test_snappy_in_the_blocks_of_the_java_client_is_read() -> None:
    parts = [b"first block " * 100, b"second block " * 100]
    block = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for part in parts:
        raw = bytes(cramjam.snappy.compress_raw(part))
        block += struct.pack(">i", len(raw)) + raw
    assert bytes(decompress(Codec.SNAPPY, block)) == b"".join(parts)
    with pytest.raises(CorruptMessage):
        decompress(Codec.SNAPPY, block[:-1])
    with pytest.raises(CorruptMessage, match="more than 2000 bytes"):
        decompress(Codec.SNAPPY, block, bytes_max=2000)


def test_lz4_frames_have_independent_blocks_as_the_java_client_wants_them() -> None:
    frame = compress(Codec.LZ4, bytes(200_000))
    flags, block_descriptor = frame[4:6]
    assert flags & 0b0010_0000
    assert (
        block_descriptor == 0x40
    )  # blocks of at most 64 KiB: each holds the interpreter's lock for a moment
    blocks, position = 0, 7
    while size := struct.unpack_from("<I", frame, position)[0]:
        blocks += 1
        position += 4 + size
    assert blocks == 4
    assert position + 4 == len(frame)


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537])
def test_lz4_blocks_that_would_grow_are_stored_as_they_are(size: int) -> None:
    plain = random.Random(size).randbytes(size)
    frame = compress(Codec.LZ4, plain)
    assert len(frame) == 7 + size + 4 * (-(-size // 65_536)) + 4
    assert bytes(decompress(Codec.LZ4, frame)) == plain


def test_gzip_of_several_members_is_read_whole() -> None:
    assert bytes(decompress(Codec.GZIP, gzip.compress(b"one ") + gzip.compress(b"two"))) == b"one two"


@pytest.mark.parametrize("number", [5, 6, 7])
def test_a_codec_that_does_not_exist_is_refused_by_name(number: int) -> None:
    with pytest.raises(UnsupportedCompressionType, match=str(number)):
        codec_of_attributes(0xFFF8 | number)


def test_lz4_levels_differ_and_make_frames_of_the_same_form() -> None:
    """KIP-390: 9, the default, is lz4's fast mode, as in Kafka."""
    plain = b"".join(b"%d squared is %d" % (number, number * number) for number in range(20_000))
    sizes = {}
    for level in range(1, 18):
        frame = compress(Codec.LZ4, plain, level)
        assert bytes(decompress(Codec.LZ4, frame)) == plain
        assert frame[:7] == compress(Codec.LZ4, b"")[:7]
        sizes[level] = len(frame)
    assert compress(Codec.LZ4, plain) == compress(Codec.LZ4, plain, 9)
    assert sizes[9] > sizes[3] > sizes[8] >= sizes[10]


@pytest.mark.parametrize("size", [0, 1, 65_537])
def test_lz4_blocks_that_would_grow_are_stored_as_they_are_at_any_level(size: int) -> None:
    plain = random.Random(size).randbytes(size)
    assert compress(Codec.LZ4, plain, 5) == compress(Codec.LZ4, plain)
