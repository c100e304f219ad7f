"""One member of a consumer group. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from mainstem_broker.group.consumer.records import ConsumerMemberMetadata, CurrentAssignment, MemberState
from mainstem_broker.group.consumer.subscribed_topics import Interest
from mainstem_broker.group.messages import LEAVING_FOR_A_WHILE_EPOCH
from mainstem_broker.protocol.topic_partition import TopicIdPartition


@dataclass(slots=True)
class ConsumerMember:
    """A member; times are of the clock that the group is given.

    - `metadata`: what it reports of itself; replaced when it reports a change.
    - `current`: what it has; replaced by each step of `reconciliation.py`, by `Holders.set` only.
    - `held_since`: for each partition that it has, the epoch in which it was given to it (KIP-1251); of those
      it had when the coordinator loaded the group, the epoch it had then. Kept by `Holders.set` only.
    - `expires_ms`: the end of its session, postponed by every sign of life.
    - `act_by_ms`: the deadline for giving up partitions; of a member of the classic protocol, for joining or
      syncing. None: nothing is due.
    - `matched`: the topics that its expression matches and that its client may see, as of the member's last
      heartbeat. None: it has no expression, or its client may see all topics.
    - `matched_version`: changes when `matched` has to be found anew; None: at the next heartbeat.
    """

    member_id: str
    metadata: ConsumerMemberMetadata
    current: CurrentAssignment
    expires_ms: int
    act_by_ms: int | None = None
    matched: frozenset[str] | None = None
    matched_version: Hashable = None
    held_since: dict[TopicIdPartition, int] = field(default_factory=dict)

    @property
    def instance_id(self) -> str | None:
        return self.metadata.instance_id

    @property
    def interest(self) -> Interest:
        return self.metadata.topics, self.metadata.topic_regex, self.matched

    @property
    def is_classic(self) -> bool:
        """Whether it speaks the classic protocol."""
        return self.metadata.classic is not None

    @property
    def is_away(self) -> bool:
        """Whether it is a static member that has left for a while (epoch -2)."""
        return self.current.epoch == LEAVING_FOR_A_WHILE_EPOCH

    def is_settled(self, epoch: int) -> bool:
        """Whether it has reached its target of this epoch."""
        return self.current.state is MemberState.STABLE and self.current.epoch == epoch

    def deadline_ms(self) -> int:
        return self.expires_ms if self.act_by_ms is None else min(self.expires_ms, self.act_by_ms)
