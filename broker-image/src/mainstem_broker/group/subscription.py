"""Which topics the members of a consumer group read, from the metadata that they joined with. Pure.

The metadata of the protocol type "consumer" begins with an int16 version and an array of topic names (int32
count, strings with int16 lengths); what follows is the assignor's own. Source: Apache Kafka's
`ConsumerProtocolSubscription.json`.
"""

from __future__ import annotations

import struct
from typing import Final

from mainstem_broker.group.consumer_group import ConsumerGroup
from mainstem_broker.group.embedded_protocol import CONSUMER_PROTOCOL_TYPE
from mainstem_broker.group.membership import Group, State

_HEAD: Final = struct.Struct(">hi")
_LENGTH: Final = struct.Struct(">h")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics, or None if the bytes are something else: what a member says is its own business."""
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


def topics_in_use(group: Group | ConsumerGroup) -> frozenset[str] | None:
    """The topics that members of a group read; None if that cannot be told now, or at all."""
    if isinstance(group, ConsumerGroup):
        return group.subscribed_topics()
    if group.state is State.EMPTY:
        return frozenset()
    if group.state is not State.STABLE or group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return None
    topics: set[str] = set()
    for member in group.members:
        read = subscribed_topics(member.metadata(group.protocol))
        if read is None:
            return None
        topics |= read
    return frozenset(topics)
