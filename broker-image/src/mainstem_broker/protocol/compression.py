"""The codecs of record batches: bytes to smaller bytes and back, bounded.

In scope: codec numbers and names, compressing, decompressing under a size bound. Out of scope: anything that
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
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Final

import cramjam

from mainstem_broker.errors import CorruptMessage, UnsupportedCompressionType

Buffer = bytes | bytearray | memoryview

DECOMPRESSED_BYTES_MAX: Final = 32 * 1024 * 1024
"""A batch that inflates to more than this is not opened by a broker. Clients fill batches up to a few
megabytes before they compress them, so this is met by bombs only; and one batch is opened at a time."""

_INFLATION_MAX: Final = {0: 1, 1: 1_032, 2: 22, 3: 255, 4: 32_768}
"""By codec number, how many bytes one byte of its data stands for at most. DEFLATE: 258 bytes from two bits.
Snappy: 64 from three bytes. LZ4: 255 from one byte of a match's length. zstd: a block of 128 KiB from four
bytes."""
_MAGIC: Final = {1: b"\x1f\x8b", 3: b"\x04\x22\x4d\x18", 4: b"\x28\xb5\x2f\xfd"}
"""How the data of a codec begins; a raw block of snappy begins with its size."""

# Output buffers are tried in growing sizes, as most formats do not say what they inflate to.
_FIRST_BUFFER_BYTES: Final = 64 * 1024
_GROWTH: Final = 4
_MAPPED_BYTES_MIN: Final = 1024 * 1024
_GZIP_STEP_BYTES: Final = 1024 * 1024

# xerial: 8-byte magic, version, lowest compatible version; then int32 length and raw block, repeated.
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
_INT32: Final = struct.Struct(">i")

# The frame format of lz4: magic; version 1 with independent blocks; blocks of at most 64 KiB; the checksum of
# these two bytes. Before each block its size, with the highest bit set if it is not compressed.
_LZ4_FRAME_HEADER: Final = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK_BYTES: Final = 64 * 1024
_LZ4_BLOCK_SIZE: Final = struct.Struct("<I")
_LZ4_UNCOMPRESSED: Final = 1 << 31


class InflatesTooFar(CorruptMessage):
    """The data stands for more bytes than the reader accepts."""


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


def plain_bytes_max(codec: Codec, block: Buffer) -> int:
    """How many bytes `block` can stand for at most, known without decompressing it.

    Raises:
        CorruptMessage: `block` does not begin as the codec's data does.
    """
    magic = _MAGIC.get(codec)
    if magic is not None and bytes(block[: len(magic)]) != magic:
        raise CorruptMessage(
            f"The batch's data is not {codec.name.lower()} data, which it names as its codec."
        )
    return len(block) * _INFLATION_MAX[codec]


_GZIP_OWN_LEVEL: Final = -1
_LZ4_FAST_LEVEL: Final = 9
_ZSTD_LEVEL: Final = 3
"""Apache Kafka's defaults (KIP-390)."""
_LZ4_LEVEL_MAX: Final = 10
"""Higher ones, of which Kafka has up to 17, hold the interpreter's lock for tens of milliseconds a block."""


def compress(codec: Codec, plain: Buffer, level: int | None = None) -> bytes:
    """`plain` as one compressed block in the form Kafka's clients read.

    `level` is the codec's (KIP-390); None is Kafka's default. Snappy has none.
    """
    match codec:
        case Codec.NONE:
            return bytes(plain)
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(plain, level=None if level == _GZIP_OWN_LEVEL else level))
        case Codec.SNAPPY:
            return bytes(cramjam.snappy.compress_raw(plain))
        case Codec.LZ4:
            return _lz4_frame(plain, _LZ4_FAST_LEVEL if level is None else level)
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(plain, level=_ZSTD_LEVEL if level is None else level))


def _lz4_frame(plain: Buffer, level: int) -> bytes:
    """A frame as the Java client makes them: independent blocks, no checksums.

    Block by block, because the library holds the interpreter's lock while it compresses: for a large batch in
    one call that would be tens of milliseconds, also with its own frames.
    """
    view = memoryview(plain)
    parts: list[Buffer] = [_LZ4_FRAME_HEADER]
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        block = view[start : start + _LZ4_BLOCK_BYTES]
        compressed = _lz4_block(block, level)
        if len(compressed) < len(block):
            parts += (_LZ4_BLOCK_SIZE.pack(len(compressed)), memoryview(compressed))
        else:
            parts += (_LZ4_BLOCK_SIZE.pack(len(block) | _LZ4_UNCOMPRESSED), block)
    parts.append(_LZ4_BLOCK_SIZE.pack(0))
    return b"".join(parts)


def _lz4_block(block: Buffer, level: int) -> Buffer:
    """One block, compressed as Kafka does: fast at the default level, and with lz4's search at others.

    The library knows levels for frames only: so the block is taken out of a frame of its own.
    """
    if level == _LZ4_FAST_LEVEL:
        return memoryview(cramjam.lz4.compress_block(block, store_size=False))
    compressor = cramjam.lz4.Compressor(
        level=min(level, _LZ4_LEVEL_MAX), content_checksum=False, block_linked=False
    )
    compressor.compress(bytes(block))
    frame = memoryview(bytes(compressor.finish()))
    start = len(_LZ4_FRAME_HEADER)
    (size,) = _LZ4_BLOCK_SIZE.unpack_from(frame, start)
    start += _LZ4_BLOCK_SIZE.size
    return block if size & _LZ4_UNCOMPRESSED else frame[start : start + size]


def decompress(codec: Codec, block: Buffer, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Buffer:
    """The plain bytes of `block`; for no codec, `block` itself without a copy.

    Raises:
        CorruptMessage: `block` is not what the codec writes.
        InflatesTooFar: it inflates to more than `bytes_max`.
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


def _too_large(bytes_max: int) -> InflatesTooFar:
    return InflatesTooFar(f"The batch inflates to more than {bytes_max} bytes, which is refused.")


def _new_buffer(size: int) -> bytearray | mmap:
    """Zeros to write into. Those of a large buffer are made by the kernel when they are written to, outside
    of the interpreter's lock, which filling 32 MiB would hold for tens of milliseconds."""
    return bytearray(size) if size < _MAPPED_BYTES_MIN else mmap(-1, size, MAP_PRIVATE | MAP_ANONYMOUS)


def _inflate(
    decompress_into: Callable[[Buffer, bytearray | mmap], int], block: Buffer, bytes_max: int
) -> Buffer:
    size = min(bytes_max, max(_FIRST_BUFFER_BYTES, _GROWTH * len(block)))
    while True:
        plain = _new_buffer(size)
        try:
            return memoryview(plain)[: decompress_into(block, plain)]
        except cramjam.DecompressionError as error:
            # The library distinguishes a full buffer from broken data only by its message.
            if "whole buffer" not in str(error):
                raise
        plain = _new_buffer(0)  # an error keeps what its traceback refers to
        if size >= bytes_max:
            raise _too_large(bytes_max)
        size = min(bytes_max, _GROWTH * size)


def _gunzip(block: Buffer, bytes_max: int) -> Buffer:
    parts: list[bytes] = []
    rest: Buffer = block
    left = bytes_max
    while rest:
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            # In steps: each reserves memory while it holds the interpreter's lock.
            parts.append(member.decompress(rest, _GZIP_STEP_BYTES))
            left -= len(parts[-1])
            if left < 0:
                parts.clear()  # an error keeps what its traceback refers to
                raise _too_large(bytes_max)
            if not parts[-1] and not member.eof:
                raise ValueError("the data ends too early")
            rest = member.unconsumed_tail
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
