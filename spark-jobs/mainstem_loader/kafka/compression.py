"""The codecs of record batches, from compressed bytes to plain ones, with a bound on what they inflate to.

Codec numbers are bits 0 to 2 of a batch's attributes (KIP-98; zstd: KIP-110). lz4 is the frame format. snappy
comes as one raw block (librdkafka) or framed by the xerial library (the Java client): a 16-byte header, then
blocks of an int32 length and raw snappy.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import cramjam

CODEC_MASK: Final = 0x07
NO_CODEC: Final = 0

# Producers fill batches up to a few MB, so a batch that inflates past this is a bomb.
INFLATED_BYTES_MAX: Final = 512 * 1024 * 1024

# Most formats do not say what they inflate to, so it is guessed, from the batch before where there is one.
_FIRST_RATIO: Final = 8.0
_HEADROOM: Final = 1.25
_GUESS_BYTES_MIN: Final = 64 * 1024
_GROWTH: Final = 4

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
_INT32: Final = struct.Struct(">i")


class DecompressionFailedError(ValueError):
    """The bytes are not what the codec writes, or inflate past the bound."""


class Decompressor:
    """Inflates batch after batch of one topic, whose batches tend to be alike."""

    def __init__(self) -> None:
        self._ratio = _FIRST_RATIO

    def decompress(self, codec: int, block: memoryview) -> bytes | bytearray | memoryview:
        """The plain bytes of a batch's records.

        Raises:
            DecompressionFailedError: see there.
        """
        try:
            match codec:
                case 0:
                    return block
                case 1:
                    return self._inflate(cramjam.gzip.decompress_into, block)
                case 2 if bytes(block[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
                    return b"".join(_xerial_blocks(block))
                case 2:
                    return _snappy_block(block)
                case 3:
                    return self._inflate(cramjam.lz4.decompress_into, block)
                case 4:
                    return self._inflate(cramjam.zstd.decompress_into, block)
                case _:
                    raise DecompressionFailedError(f"compression codec {codec} does not exist")
        except (cramjam.DecompressionError, struct.error) as error:
            raise DecompressionFailedError(str(error)) from error

    def _inflate(
        self, decompress_into: Callable[[memoryview, bytearray], int], block: memoryview
    ) -> memoryview:
        size = max(_GUESS_BYTES_MIN, int(len(block) * self._ratio * _HEADROOM))
        while True:
            plain = bytearray(min(size, INFLATED_BYTES_MAX))
            try:
                inflated = decompress_into(block, plain)
            except cramjam.DecompressionError as error:
                # cramjam tells a buffer that is too small from damaged data by this message only.
                if "whole buffer" not in str(error):
                    raise
            else:
                self._ratio = inflated / max(len(block), 1)
                return memoryview(plain)[:inflated]
            if size >= INFLATED_BYTES_MAX:
                raise DecompressionFailedError(f"it inflates to more than {INFLATED_BYTES_MAX} bytes")
            size *= _GROWTH


def _snappy_block(block: memoryview) -> bytearray:
    size = cramjam.snappy.decompress_raw_len(block)
    # Snappy says its size in front, and copies at most 64 bytes for each 2 of its own.
    if size > min(INFLATED_BYTES_MAX, 32 * len(block)):
        raise DecompressionFailedError(f"it says that it inflates to {size} bytes, which it cannot")
    plain = bytearray(size)
    cramjam.snappy.decompress_raw_into(block, plain)
    return plain


def _xerial_blocks(block: memoryview) -> list[bytearray]:
    plain: list[bytearray] = []
    position = _XERIAL_HEADER_BYTES
    while position < len(block):
        (size,) = _INT32.unpack_from(block, position)
        position += _INT32.size
        if not 0 <= size <= len(block) - position:
            raise DecompressionFailedError("a snappy block is longer than the batch")
        plain.append(_snappy_block(block[position : position + size]))
        position += size
    return plain
