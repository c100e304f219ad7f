"""Who belongs to a group: its members, the static ones among them, those who were given an id. Pure.

Lives here: finding, adding, renaming and forgetting members, and what they have in common. Must not: phases
and generations (`membership.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from mainstem_broker.errors import InconsistentGroupProtocol
from mainstem_broker.group.identity import find_member
from mainstem_broker.group.member import Member, common_protocols
from mainstem_broker.group.messages import JoinedMember
from mainstem_broker.group.records import MemberMetadata


class Roster:
    """Members in the order in which they came.

    - `leader`: the id of the member that computes assignments; None if and only if there are no members.
    - `pending`: ids that were given out and not yet joined with, and until when they are waited for.
    """

    def __init__(self) -> None:
        self.leader: str | None = None
        self.pending: dict[str, int] = {}
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}
        """Instance id to member id."""

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(tuple(self._members.values()))

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._members

    def __getitem__(self, member_id: str) -> Member:
        return self._members[member_id]

    def ids(self) -> Collection[str]:
        return self._members.keys()

    def static_member(self, instance_id: str | None) -> Member | None:
        member_id = None if instance_id is None else self._static.get(instance_id)
        return None if member_id is None else self._members[member_id]

    def require(self, member_id: str, instance_id: str | None) -> Member:
        """The member that a request is from; raises as `find_member`."""
        return find_member(self._members, self._static, member_id, instance_id)

    def require_common_protocol(self, protocols: Collection[tuple[str, bytes]], known: Member | None) -> None:
        """Raise InconsistentGroupProtocol unless all but `known` can work with one who has `protocols`."""
        names = {name for name, _ in protocols}
        if not names:
            raise InconsistentGroupProtocol("A member needs at least one protocol.")
        common = common_protocols(member for member in self if member is not known)
        if common is not None and not common & names:
            raise InconsistentGroupProtocol("The member has no protocol in common with all others.")

    def insert(self, member: Member) -> None:
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member another id; its place in the order, and its office, stay its own."""
        assert member.instance_id is not None
        old_id, member.member_id = member.member_id, member_id
        self._static[member.instance_id] = member_id
        self._members = {one.member_id: one for one in self}
        if self.leader == old_id:
            self.leader = member_id

    def forget(self, member: Member) -> None:
        del self._members[member.member_id]
        if member.instance_id is not None:
            del self._static[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self._members), None)

    def clear(self) -> None:
        self._members.clear()
        self._static.clear()
        self.pending.clear()
        self.leader = None

    def rebalance_timeout_ms(self) -> int:
        """How long a rebalance waits: as long as the most patient member."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def deadlines_ms(self) -> list[int]:
        """When members and pending ids run out."""
        members = [deadline for member in self if (deadline := member.deadline_ms()) is not None]
        return [*members, *self.pending.values()]

    # --- As others are told of it ---

    def as_joined(self, protocol: str | None) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(protocol)) for member in self
        )

    def as_stored(
        self, protocol: str | None, assignments: dict[str, bytes] | None = None
    ) -> tuple[MemberMetadata, ...]:
        """With the assignments that they have, or are about to have."""
        return tuple(
            MemberMetadata(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.session_timeout_ms,
                member.metadata(protocol),
                member.assignment if assignments is None else assignments.get(member.member_id, b""),
            )
            for member in self
        )
