"""Which member of a consumer group holds each partition. Pure."""

from __future__ import annotations

from mainstem_broker.group.consumer.member import ConsumerMember
from mainstem_broker.group.consumer.records import CurrentAssignment
from mainstem_broker.protocol.topic_partition import TopicIdPartition


class Holders:
    """A member holds its assigned partitions, and those it has not given up yet; no other may read them."""

    def __init__(self) -> None:
        self._ids: dict[TopicIdPartition, str] = {}
        """Member ids."""

    def set(self, member: ConsumerMember, current: CurrentAssignment) -> None:
        """Replace a member's current assignment."""
        for partition in member.current.held:
            if self._ids.get(partition) == member.member_id:
                del self._ids[partition]
        member.current = current
        member.held_since = {
            partition: member.held_since.get(partition, current.epoch) for partition in current.held
        }
        for partition in current.held:
            self._ids[partition] = member.member_id

    def is_held(self, partition: TopicIdPartition) -> bool:
        return partition in self._ids

    def is_held_by_other(self, partition: TopicIdPartition, member_id: str) -> bool:
        return self._ids.get(partition, member_id) != member_id
