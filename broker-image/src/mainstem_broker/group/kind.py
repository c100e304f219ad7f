"""What a coordinator needs of a group, whichever protocol its members speak.

Belongs here: the interface that `classic/group.py` and `bridge/mixed_group.py` implement. Code that handles
any group uses this interface; code about one kind tests `group_type`.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from mainstem_broker.group.messages import Commit, Decisions, Join, Sync


class GroupType(Enum):
    """The values are the names that Kafka's tools show (KIP-848)."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


class GroupKind(Protocol):
    """A group as a state machine: it is given requests and times, and returns decisions.

    A group reads no clock, writes nothing and waits for nothing; every `now_ms` is of one steady clock.
    Requests of the classic protocol have the same effect in both kinds of groups, as far as their clients can
    tell. ConsumerGroupHeartbeat is not here: a classic group becomes a consumer group before it takes one.
    """

    wake_ms: int | None
    """When `tick` has to be called, perhaps earlier than necessary; None: the group waits for nothing."""

    @property
    def group_id(self) -> str: ...

    @property
    def group_type(self) -> GroupType: ...

    @property
    def state(self) -> Enum:
        """Its value is the name that Kafka's tools show."""
        ...

    @property
    def protocol_type(self) -> str | None:
        """What members use the group for: "consumer", "connect", ...; None: there never was a member."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether the group is in its state Empty: anyone may commit, and the group may be deleted."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether there are no members, none about to join, and nothing about them is being stored."""
        ...

    def join(self, request: Join, now_ms: int) -> Decisions:
        """Handle a JoinGroup. Its answer is among these decisions or those of a later call."""
        ...

    def sync(self, request: Sync, now_ms: int) -> Decisions:
        """Handle a SyncGroup; likewise."""
        ...

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> None:
        """Handle a Heartbeat of the classic protocol, a sign of life. `decided` is to be called after it.

        Raises:
            UnknownMemberId, FencedInstanceId, IllegalGeneration: the member has to join as a new one, or end.
            RebalanceInProgress: the member has to join again.
        """
        ...

    def leave(self, member_id: str, instance_id: str | None, now_ms: int, /) -> Decisions:
        """Remove a member. Administrators name a static member by its instance id alone.

        Raises:
            UnknownMemberId, FencedInstanceId: there is no such member.
        """
        ...

    def check_commit(self, commit: Commit, now_ms: int) -> None:
        """Raise a ProtocolError unless offsets may be committed as this member now."""
        ...

    def check_fetch(self, member_id: str, member_epoch: int, /) -> None:
        """Raise a ProtocolError unless committed offsets may be fetched as this member now."""
        ...

    def stored(self, ticket: int, error_code: int, now_ms: int, /) -> Decisions:
        """Records that the group decided to store are replicated, or with an error code may be lost."""
        ...

    def decided(self) -> Decisions:
        """Decisions that no call has returned yet, among them records whose write has failed before."""
        ...

    def tick(self, now_ms: int) -> Decisions:
        """Remove members whose time is over, and end phases whose time is over."""
        ...

    def close(self, error_code: int) -> Decisions:
        """End the group here: requests that wait get this error."""
        ...

    def record_keys(self) -> list[bytes]:
        """The keys of all records that the group's membership is stored in."""
        ...

    def topics_in_use(self) -> frozenset[str] | None:
        """The topics that members read; None if that is unknown at the moment, or cannot be known."""
        ...
