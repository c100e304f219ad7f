"""One member of a group of KIP-848. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from mainstem_broker.group.consumer_records import ConsumerMemberMetadata, CurrentAssignment, MemberState
from mainstem_broker.group.messages import LEAVING_FOR_A_WHILE_EPOCH
from mainstem_broker.group.subscribed_topics import Interest


@dataclass(slots=True)
class ConsumerMember:
    """A member; times are of the clock that the group is given.

    - `metadata`: what it said of itself; replaced when it says otherwise.
    - `current`: what it has; replaced by the steps of `reconciliation.py`, and when it is replaced itself.
    - `expires_ms`: the end of its session, moved by every sign of life.
    - `act_by_ms`: until when it has to have given up what it is told to; of a member that speaks the classic
      protocol, until when it has to have joined or synced. None: nothing is waited for.
    """

    member_id: str
    metadata: ConsumerMemberMetadata
    current: CurrentAssignment
    expires_ms: int
    act_by_ms: int | None = None

    @property
    def instance_id(self) -> str | None:
        return self.metadata.instance_id

    @property
    def interest(self) -> Interest:
        return self.metadata.topics, self.metadata.topic_regex

    @property
    def is_classic(self) -> bool:
        """Whether it speaks the classic protocol."""
        return self.metadata.classic is not None

    @property
    def is_away(self) -> bool:
        """Whether it is static, has left, and will be back."""
        return self.current.epoch == LEAVING_FOR_A_WHILE_EPOCH

    def is_settled(self, epoch: int) -> bool:
        """Whether it has all that it is to have in this epoch."""
        return self.current.state is MemberState.STABLE and self.current.epoch == epoch

    def deadline_ms(self) -> int:
        return self.expires_ms if self.act_by_ms is None else min(self.expires_ms, self.act_by_ms)
