"""One member of a group, and the choice of a protocol by all of them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

NEW_MEMBER_TIMEOUT_MS = 300_000
"""How long a first join may wait: one that has no id yet cannot heartbeat, so its session says nothing."""


@dataclass(slots=True)
class Member:
    """A member; times are of the clock that the group is given.

    - `joining`, `syncing`: the number of the request that waits for the end of the join or sync phase.
      Who waits is alive (its connection is quiet meanwhile), so no session runs out then.
    - `is_new`: has not been in any generation; its first join waits for `NEW_MEMBER_TIMEOUT_MS` at most.
    - `expires_ms`: the end of its session, moved by every sign of life.
    - `assignment`: its part of the present generation, once that is stable.
    - `generation`: the one that it is in, where that is not its group's: until it has joined a group that has
      just changed its kind. Its heartbeats tell it to join then, instead of that it has lost what it has.
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

    def metadata(self, protocol: str | None) -> bytes:
        """What it said with this protocol; empty if nothing."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def deadline_ms(self) -> int | None:
        """When it is to be taken for dead if nothing happens before; None while it waits for others."""
        if self.is_new:
            return self.expires_ms
        return None if self.joining is not None or self.syncing is not None else self.expires_ms


def common_protocols(members: Iterable[Member]) -> set[str] | None:
    """What all members know; None, meaning anything, if there are none."""
    common: set[str] | None = None
    for member in members:
        names = {name for name, _ in member.protocols}
        common = names if common is None else common & names
    return common


def elect_protocol(members: Collection[Member]) -> str:
    """The protocol that most members like best of those that all know.

    Between equals the first member's taste decides, so that the same members always elect the same.

    Raises:
        ValueError: there are no members, or they have none in common.
    """
    common = common_protocols(members)
    if not common:
        raise ValueError("the members have no protocol in common")
    votes = Counter(next(name for name, _ in member.protocols if name in common) for member in members)
    first = next(iter(members))
    return max((name for name, _ in first.protocols if name in common), key=lambda name: votes[name])
