"""Whether this broker may act on the leaderships that were given to it: pure, its clock is given.

A leadership is bound to the life (`incarnation`) in which the broker was elected, and a life to a session
with ZooKeeper. A broker that was paused or cut off cannot see its session end, so it counts: the server
ends a session at the earliest one timeout after it last heard of it. Before that time this broker has
stopped taking records and answering consumers, and only then another one may be elected in its place.

Followers are served regardless: they know the leader's epoch, and leave one that was deposed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

NO_LIFE = -1


class Office:
    """Shared by all partitions of a broker; the cluster's membership keeps it up to date.

    `now_s` is a clock that goes on while the process is stopped (SIGSTOP), in seconds.
    """

    __slots__ = ("_incarnation", "_now_s", "_until_s")

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._incarnation = NO_LIFE
        self._until_s = -math.inf

    def begin(self, incarnation: int) -> None:
        """A life has begun; whatever was given to an earlier one is void."""
        self._incarnation = incarnation

    def extend(self, until_s: float) -> None:
        """The session cannot end before `until_s`."""
        self._until_s = until_s

    def end(self) -> None:
        """The session is gone."""
        self._incarnation = NO_LIFE

    def is_held_by(self, incarnation: int) -> bool:
        """Whether `incarnation` is the present life; what was given to another one is void."""
        return incarnation == self._incarnation != NO_LIFE

    def is_open(self) -> bool:
        """Whether the session certainly goes on, so that nobody else can have been elected."""
        return self._now_s() < self._until_s
