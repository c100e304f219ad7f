"""How partitions are named: by the topic's name, or by its id, which a topic created anew does not share."""

from __future__ import annotations

from uuid import UUID

TopicPartition = tuple[str, int]
"""A topic's name and the partition's number."""
TopicIdPartition = tuple[UUID, int]
"""A topic's id and the partition's number (KIP-516)."""
