"""One member of a classic group, and the election of a protocol by all of them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

NEW_MEMBER_TIMEOUT_MS = 300_000
"""How long a first join may wait. A member without an id cannot heartbeat, so its session does not count."""


@dataclass(slots=True, eq=False)
class Member:
    """A member; times are of the clock that the group is given.

    `joining` and `protocols` are changed by `Roster` only, which counts them.

    - `protocols`: name and metadata of each, the member's favourite first.
    - `joining`, `syncing`: the number of the request that waits for the end of the join or sync phase.
      Such a member is alive (its connection is quiet meanwhile), so its session does not run out.
    - `is_new`: has not been in any generation; its first join waits for `NEW_MEMBER_TIMEOUT_MS` at most.
    - `expires_ms`: the end of its session, postponed by every sign of life.
    - `assignment`: its part of the current generation, once that is stable.
    - `generation`: the member's generation where it differs from the group's: until it has joined a group
      that has just changed its kind. Its heartbeats are answered with REBALANCE_IN_PROGRESS then, instead
      of an error that makes it give up its partitions.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    expires_ms: int
    joining: int | None = None
    syncing: int | None = None
    is_new: bool = False
    assignment: bytes = b""
    generation: int | None = None

    def protocol_names(self) -> set[str]:
        return {name for name, _ in self.protocols}

    def metadata(self, protocol: str | None) -> bytes:
        """The member's metadata for this protocol; empty if it does not support it."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def deadline_ms(self) -> int | None:
        """When the member is removed unless it is heard of before; None while it waits for others."""
        if self.is_new:
            return self.expires_ms
        return None if self.joining is not None or self.syncing is not None else self.expires_ms


def common_protocols(members: Iterable[Member]) -> set[str] | None:
    """The protocols that all members support; None, meaning any, if there are no members."""
    common: set[str] | None = None
    for member in members:
        names = member.protocol_names()
        common = names if common is None else common & names
    return common


def elect_protocol(members: Collection[Member]) -> str:
    """The favourite of most members, among the protocols that all of them support.

    The first member's order of preference breaks ties, so that the same members always elect the same.

    Raises:
        ValueError: there are no members, or they have no protocol in common.
    """
    common = common_protocols(members)
    if not common:
        raise ValueError("the members have no protocol in common")
    votes = Counter(next(name for name, _ in member.protocols if name in common) for member in members)
    first = next(iter(members))
    return max((name for name, _ in first.protocols if name in common), key=lambda name: votes[name])
