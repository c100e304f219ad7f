"""The tagged fields of hints at leaders, which Produce and Fetch responses share (KIP-951)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from mainstem_broker.protocol.primitives import (
    encode_compact_string,
    encode_tagged_fields,
    encode_unsigned_varint,
)
from mainstem_broker.protocol.wire import Body

_INT32: Final = struct.Struct(">i")
_LEADER: Final = struct.Struct(">iib")
"""Leader id, leader epoch, no tagged fields."""
_NODE_ENDPOINTS_TAG: Final = 0


def encode_leader(leader: Body) -> bytes:
    """The content of the field CurrentLeader."""
    return _LEADER.pack(leader.get("leader_id", -1), leader.get("leader_epoch", -1), 0)


def encode_response_tags(node_endpoints: Sequence[Body]) -> bytes:
    """The tagged fields of a response: NodeEndpoints, if there are any."""
    if not node_endpoints:
        return b"\0"
    content = bytearray(encode_unsigned_varint(len(node_endpoints) + 1))
    for node in node_endpoints:
        content += _INT32.pack(node["node_id"]) + encode_compact_string(node["host"])
        content += _INT32.pack(node["port"]) + encode_compact_string(node.get("rack")) + b"\0"
    return encode_tagged_fields([(_NODE_ENDPOINTS_TAG, bytes(content))])
