"""What the followers of one partition grant its leader while ZooKeeper is out of reach. Pure.

`lease` describes what a grant promises and why it is safe.
"""

from __future__ import annotations

import math
from typing import Final

from mainstem_broker.replica.lease import Grant, Lease

_NO_GRANT: Final = Grant(), -1


class FollowerGrants:
    """The grants by broker: the present one, and the end of those that came before."""

    __slots__ = ("_lease", "_past_until_s", "_present")

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        # With the leader epoch that the follower follows.
        self._present: dict[int, tuple[Grant, int]] = {}
        self._past_until_s: dict[int, float] = {}

    def take(self, broker: int, grant: Grant, follower_epoch: int) -> None:
        """Count `grant` from now on: the fetches of `broker` name this partition, in `follower_epoch`."""
        self._present[broker] = grant, follower_epoch

    def drop(self, broker: int, grant: Grant, leader_epoch: int) -> None:
        """The broker no longer follows here, and may lead soon: what it has granted until now holds.

        That includes grants of earlier fetch sessions: the last session may have ended before it granted.
        """
        if self._present.get(broker, _NO_GRANT)[0] is grant:
            until_s = self._present_until_s(broker, leader_epoch)
            del self._present[broker]
            self._past_until_s[broker] = max(until_s, self._past_until_s.get(broker, -math.inf))

    def is_granted_by(self, broker: int, leader_epoch: int) -> bool:
        """Whether the leader of `leader_epoch` may act, as far as `broker` could be elected in its place."""
        until_s = max(self._past_until_s.get(broker, -math.inf), self._present_until_s(broker, leader_epoch))
        return self._lease.now_s() < until_s or self._lease.has_refused(broker, until_s)

    def _present_until_s(self, broker: int, leader_epoch: int) -> float:
        """The end of the grant of a follower that fetches this partition now.

        A follower that knows a later epoch grants nothing to this one: it may have led in between.
        """
        grant, follower_epoch = self._present.get(broker, _NO_GRANT)
        return grant.until_s if follower_epoch <= leader_epoch else -math.inf
