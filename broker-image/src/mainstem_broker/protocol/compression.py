"""The codecs of record batches: bytes to smaller bytes and back, bounded.

Lives here: codec numbers and names, compressing, decompressing under a size bound. Must not: anything that
knows what a batch or a record is.

Numbers are those of a batch's attributes, bits 0-2 (KIP-98; zstd: KIP-110). lz4 is the frame format, gzip may
have several members, snappy comes in two forms: one raw block (librdkafka), or blocks of 32 KiB behind the
16-byte header of the xerial library (the Java client). We write the raw form, which every client reads.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import cramjam

from mainstem_broker.errors import CorruptMessage, UnsupportedCompressionType

Buffer = bytes | bytearray | memoryview

# A batch that inflates past this is refused. Clients fill batches up to megabytes, so only a bomb gets here.
DECOMPRESSED_BYTES_MAX: Final = 128 * 1024 * 1024

# Output buffers are tried in growing sizes, as most formats do not say what they inflate to.
_FIRST_BUFFER_BYTES: Final = 64 * 1024
_GROWTH: Final = 8

# xerial: 8-byte magic, version, lowest compatible version; then int32 length and raw block, repeated.
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
_INT32: Final = struct.Struct(">i")


class Codec(IntEnum):
    """A compression codec, by its number in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_CODECS: Final = tuple(Codec)

# The names of the topic setting `compression.type`, apart from `producer`.
CODEC_OF_SETTING: Final = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


def codec_of_attributes(attributes: int) -> Codec:
    """The codec that a batch's attributes name.

    Raises:
        UnsupportedCompressionType: no codec has this number.
    """
    number = attributes & 0x07
    if number < len(_CODECS):
        return _CODECS[number]
    raise UnsupportedCompressionType(f"The batch names compression codec {number}, which does not exist.")


def compress(codec: Codec, plain: Buffer) -> bytes:
    """`plain` as one compressed block in the form Kafka's clients read."""
    match codec:
        case Codec.NONE:
            return bytes(plain)
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(plain))
        case Codec.SNAPPY:
            return bytes(cramjam.snappy.compress_raw(plain))
        case Codec.LZ4:
            # Blocks must not refer to earlier ones: the Java client refuses such frames.
            compressor = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)
            compressor.compress(bytes(plain))
            return bytes(compressor.finish())
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(plain, level=3))


def decompress(codec: Codec, block: Buffer, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Buffer:
    """The plain bytes of `block`; for no codec, `block` itself without a copy.

    Raises:
        CorruptMessage: `block` is not what the codec writes, or inflates to more than `bytes_max`.
    """
    try:
        match codec:
            case Codec.NONE:
                return block
            case Codec.GZIP:
                return _gunzip(block, bytes_max)
            case Codec.SNAPPY:
                return _unsnappy(block, bytes_max)
            case Codec.LZ4:
                return _inflate(cramjam.lz4.decompress_into, block, bytes_max)
            case Codec.ZSTD:
                return _inflate(cramjam.zstd.decompress_into, block, bytes_max)
    except (cramjam.DecompressionError, zlib.error, struct.error, ValueError) as error:
        raise CorruptMessage(
            f"The batch's {codec.name.lower()} data cannot be decompressed: {error}."
        ) from error


def _too_large(bytes_max: int) -> CorruptMessage:
    return CorruptMessage(f"The batch inflates to more than {bytes_max} bytes, which is refused.")


def _inflate(decompress_into: Callable[[Buffer, bytearray], int], block: Buffer, bytes_max: int) -> Buffer:
    size = min(bytes_max, max(_FIRST_BUFFER_BYTES, _GROWTH * len(block)))
    while True:
        plain = bytearray(size)
        try:
            return memoryview(plain)[: decompress_into(block, plain)]
        except cramjam.DecompressionError as error:
            # The library tells a full buffer from broken data by its words alone.
            if "whole buffer" not in str(error):
                raise
        if size >= bytes_max:
            raise _too_large(bytes_max)
        size = min(bytes_max, _GROWTH * size)


def _gunzip(block: Buffer, bytes_max: int) -> Buffer:
    parts: list[bytes] = []
    rest: Buffer = block
    left = bytes_max
    while rest:
        member = zlib.decompressobj(wbits=31)
        parts.append(member.decompress(rest, left + 1))
        left -= len(parts[-1])
        if left < 0:
            raise _too_large(bytes_max)
        if not member.eof:
            raise ValueError("the data ends too early")
        rest = member.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _unsnappy(block: Buffer, bytes_max: int) -> Buffer:
    view = memoryview(block)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _unsnappy_block(view, bytes_max, bytes_max)
    parts: list[Buffer] = []
    left = bytes_max
    position = _XERIAL_HEADER_BYTES
    while position < len(view):
        (size,) = _INT32.unpack_from(view, position)
        position += _INT32.size
        if not 0 <= size <= len(view) - position:
            raise ValueError("a block is longer than the data")
        parts.append(_unsnappy_block(view[position : position + size], left, bytes_max))
        left -= len(parts[-1])
        position += size
    return b"".join(parts)


def _unsnappy_block(block: memoryview, left: int, bytes_max: int) -> Buffer:
    size = cramjam.snappy.decompress_raw_len(block)
    if size > left:
        raise _too_large(bytes_max)
    plain = bytearray(size)
    if size and cramjam.snappy.decompress_raw_into(block, plain) != size:
        raise ValueError("a block is shorter than it says")
    return plain
