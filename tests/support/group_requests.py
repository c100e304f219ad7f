"""Requests of the group protocol as a raw connection sends them, in every version."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from tests.support.waiting import wait_until
from tests.support.wire import Connection


def join_fields(
    group_id: str,
    member_id: str,
    version: int,
    *,
    protocols: list[tuple[str, bytes]] | None = None,
    session_ms: int = 10_000,
    instance_id: str | None = None,
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "group_id": group_id,
        "session_timeout": session_ms,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [
            {"name": name, "metadata": metadata} for name, metadata in protocols or [("range", b"")]
        ],
    }
    if version >= 1:
        fields["rebalance_timeout"] = session_ms
    if version >= 5:
        fields["group_instance_id"] = instance_id
    if version >= 8:
        fields["reason"] = None
    return fields


def commit_fields(
    group_id: str,
    offsets: dict[tuple[str, int], int],
    version: int,
    *,
    member_id: str = "",
    generation: int = -1,
    metadata: str | None = None,
    topic_id: UUID | None = None,
) -> dict[str, Any]:
    """`topic_id` is for version 10, which names one topic by it."""

    def partition(index: int, offset: int) -> dict[str, Any]:
        fields = {"partition_index": index, "committed_offset": offset, "committed_metadata": metadata}
        return fields | ({"committed_leader_epoch": 3} if version >= 6 else {})

    topics = [
        {
            **({"name": topic} if version < 10 else {"topic_id": topic_id}),
            "partitions": [
                partition(index, offset) for (name, index), offset in offsets.items() if name == topic
            ],
        }
        for topic in dict.fromkeys(name for name, _ in offsets)
    ]
    fields: dict[str, Any] = {
        "group_id": group_id,
        "generation_id_or_member_epoch": generation,
        "member_id": member_id,
        "topics": topics,
    }
    if version <= 4:
        fields["retention_time"] = -1
    if version >= 7:
        fields["group_instance_id"] = None
    return fields


def fetch_fields(
    group_id: str, partitions: dict[str, list[int]] | None, version: int, *, topic_id: UUID | None = None
) -> dict[str, Any]:
    """`partitions` by topic; None for all, from version 2 on."""
    topics = None
    if partitions is not None:
        topics = [
            {**({"name": name} if version < 10 else {"topic_id": topic_id}), "partition_indexes": indexes}
            for name, indexes in partitions.items()
        ]
    stable = {"require_stable": False} if version >= 7 else {}
    if version < 8:
        return {"group_id": group_id, "topics": topics, **stable}
    group: dict[str, Any] = {"group_id": group_id, "topics": topics}
    if version >= 9:
        group |= {"member_id": None, "member_epoch": -1}
    return {"groups": [group], **stable}


def coordinator_address(any_address: str, group_id: str) -> str:
    """`host:port` of a group's coordinator, once it serves; requested as clients do, again and again."""

    def find() -> str:
        with Connection(any_address) as connection:
            answer = connection.ask("find_coordinator", 3, key=group_id, key_type=0)
        if answer.error_code != ErrorCode.none:
            return ""
        address = f"{answer.host}:{answer.port}"
        with Connection(address) as connection:
            loaded = connection.ask("offset_fetch", 7, **fetch_fields(group_id, None, 7))
        return address if loaded.error_code == ErrorCode.none else ""

    return wait_until(find, f"the group {group_id} has a coordinator")
