"""Which partition a key goes to: murmur2 over the key's bytes, as the Java client has it (R10).

Clients do this themselves when they send. It is here for who must know it beforehand.
"""

from __future__ import annotations

from typing import Final

_MASK: Final = 0xFFFFFFFF
_MULTIPLIER: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
_SHIFT: Final = 24


def murmur2(data: bytes) -> int:
    """The 32-bit MurmurHash2 of `data` with Kafka's seed, as an unsigned number."""
    size_bytes = len(data)
    result = (_SEED ^ size_bytes) & _MASK
    whole_bytes = size_bytes & ~3
    for position in range(0, whole_bytes, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> _SHIFT) * _MULTIPLIER & _MASK
        result = result * _MULTIPLIER & _MASK ^ word
    if whole_bytes < size_bytes:
        result = (result ^ int.from_bytes(data[whole_bytes:], "little")) * _MULTIPLIER & _MASK
    result = (result ^ result >> 13) * _MULTIPLIER & _MASK
    return result ^ result >> 15


def partition_of(key: bytes, partition_count: int) -> int:
    """The partition that clients send records of `key` to."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
