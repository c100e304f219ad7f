"""The members of a classic group: all of them, the static ones, and ids that were given out. Pure.

Belongs here: finding, adding, renaming and removing members, and what they have in common. Phases and
generations belong to `group.py`.

Joins ask how many members there are, how many have joined, and which protocols all of them support. These
are counted as members change, so that a join costs the same in a group of any size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from mainstem_broker.errors import InconsistentGroupProtocol
from mainstem_broker.group.classic.member import Member
from mainstem_broker.group.classic.records import MemberMetadata
from mainstem_broker.group.identity import find_member
from mainstem_broker.group.messages import JoinedMember


class Roster:
    """Members in the order in which they joined.

    - `leader`: the id of the member that computes assignments; None if and only if there are no members.
    - `pending`: ids that were given out and not yet joined with, and when they expire.
    - `joining_count`: members whose join request waits for the end of the join phase.
    """

    def __init__(self) -> None:
        self.leader: str | None = None
        self.pending: dict[str, int] = {}
        self.joining_count = 0
        self._in_order: dict[Member, None] = {}
        self._by_id: dict[str, Member] = {}
        self._static: dict[str, Member] = {}
        """By instance id."""
        self._protocol_counts: Counter[str] = Counter()
        """How many members support each protocol."""

    def __len__(self) -> int:
        return len(self._in_order)

    def __iter__(self) -> Iterator[Member]:
        """All members as they are now; members may be changed or removed during the iteration."""
        return iter(tuple(self._in_order))

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._by_id

    def __getitem__(self, member_id: str) -> Member:
        return self._by_id[member_id]

    def ids(self) -> Collection[str]:
        return self._by_id.keys()

    def static_member(self, instance_id: str | None) -> Member | None:
        return None if instance_id is None else self._static.get(instance_id)

    def require(self, member_id: str, instance_id: str | None) -> Member:
        """The member that a request is from; raises as `find_member`."""
        return find_member(self._by_id, self._static, member_id, instance_id)

    def require_common_protocol(
        self, protocols: Collection[tuple[str, bytes]], member: Member | None
    ) -> None:
        """Raise InconsistentGroupProtocol unless all others support one of the protocols.

        `member` is the one that has them, or None if it is not in the group yet.
        """
        names = {name for name, _ in protocols}
        if not names:
            raise InconsistentGroupProtocol("A member needs at least one protocol.")
        own_names = set[str]() if member is None else member.protocol_names()
        others_count = len(self) - (member is not None)
        if others_count and not any(
            self._protocol_counts[name] - (name in own_names) == others_count for name in names
        ):
            raise InconsistentGroupProtocol("The member has no protocol in common with all others.")

    def insert(self, member: Member) -> None:
        self._in_order[member] = None
        self._by_id[member.member_id] = member
        self._protocol_counts.update(member.protocol_names())
        self.joining_count += member.joining is not None
        if member.instance_id is not None:
            self._static[member.instance_id] = member
        if self.leader is None:
            self.leader = member.member_id

    def set_protocols(self, member: Member, protocols: tuple[tuple[str, bytes], ...]) -> None:
        self._uncount_protocols(member)
        member.protocols = protocols
        self._protocol_counts.update(member.protocol_names())

    def set_joining(self, member: Member, request_number: int | None) -> None:
        self.joining_count += (request_number is not None) - (member.joining is not None)
        member.joining = request_number

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member another id. It keeps its place in the order, and stays leader."""
        del self._by_id[member.member_id]
        self._by_id[member_id] = member
        if self.leader == member.member_id:
            self.leader = member_id
        member.member_id = member_id

    def remove(self, member: Member) -> None:
        del self._in_order[member]
        del self._by_id[member.member_id]
        self._uncount_protocols(member)
        self.joining_count -= member.joining is not None
        if member.instance_id is not None:
            del self._static[member.instance_id]
        if self.leader == member.member_id:
            first = next(iter(self._in_order), None)
            self.leader = None if first is None else first.member_id

    def _uncount_protocols(self, member: Member) -> None:
        for name in member.protocol_names():
            self._protocol_counts[name] -= 1
            if not self._protocol_counts[name]:
                del self._protocol_counts[name]  # names come from clients: keep only those in use

    def clear(self) -> None:
        self._in_order.clear()
        self._by_id.clear()
        self._static.clear()
        self._protocol_counts.clear()
        self.pending.clear()
        self.joining_count = 0
        self.leader = None

    def rebalance_timeout_ms(self) -> int:
        """How long a rebalance waits for members: the longest of their rebalance timeouts."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def deadlines_ms(self) -> list[int]:
        """When members and pending ids expire."""
        members = [deadline for member in self if (deadline := member.deadline_ms()) is not None]
        return [*members, *self.pending.values()]

    # --- The members in responses and records ---

    def as_joined(self, protocol: str | None) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(protocol)) for member in self
        )

    def as_stored(
        self, protocol: str | None, assignments: dict[str, bytes] | None = None
    ) -> tuple[MemberMetadata, ...]:
        """With these assignments, by member id, or with the current ones."""
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
