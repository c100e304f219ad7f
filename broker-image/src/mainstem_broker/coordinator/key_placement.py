"""Which partition of a coordinator's topic a key belongs to: pure, and the same in every Kafka client.

The key's hash is that of Java's `String.hashCode`: over UTF-16 code units, in 32 bits with overflow.
Source: Apache Kafka's `Utils.abs(groupId.hashCode) % partitions`, where the one number without an absolute
value counts as 0.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

KEPT_LENGTH_MAX: Final = 255
"""Of keys whose partitions are kept: longer ones would hold memory that clients choose."""


def partition_of_key(key: str, partition_count: int) -> int:
    """The partition that holds a key (a group id) in a topic with so many partitions."""
    return _kept(key, partition_count) if len(key) <= KEPT_LENGTH_MAX else _found(key, partition_count)


def _found(key: str, partition_count: int) -> int:
    number = java_hash(key)
    return (0 if number == -(2**31) else abs(number)) % partition_count


_kept = lru_cache(maxsize=65_536)(_found)


def java_hash(text: str) -> int:
    """`text.hashCode()` as Java computes it."""
    if text.isascii():
        units = text.encode()
        number = 0
        for unit in units:
            number = (number * 31 + unit) & 0xFFFFFFFF
    else:
        # A lone surrogate cannot come over the wire as UTF-8, so this never fails.
        encoded = text.encode("utf-16-be")
        number = 0
        for high, low in zip(encoded[::2], encoded[1::2], strict=True):
            number = (number * 31 + (high << 8 | low)) & 0xFFFFFFFF
    return number - 2**32 if number >= 2**31 else number
