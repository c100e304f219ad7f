"""The topics that a member of the protocol type "consumer" subscribes to, from its metadata. Pure.

The metadata begins with an int16 version and an array of topic names (int32 count, strings with int16
lengths); what follows belongs to the assignor and may be anything. Where the rest is needed too, as in
`bridge/mixed_group.py`, it is read by `embedded_protocol.py`.

Source: Apache Kafka's `ConsumerProtocolSubscription.json`.
"""

from __future__ import annotations

import struct
from typing import Final

_HEAD: Final = struct.Struct(">hi")
_LENGTH: Final = struct.Struct(">h")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics, or None if the bytes are something else: members may agree on any metadata."""
    try:
        version, count = _HEAD.unpack_from(metadata)
        if version < 0 or not 0 <= count <= len(metadata):
            return None
        position = _HEAD.size
        topics = set()
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, position)
            end = position + _LENGTH.size + length
            if length < 0 or end > len(metadata):
                return None
            topics.add(str(metadata[position + _LENGTH.size : end], "utf-8"))
            position = end
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)
