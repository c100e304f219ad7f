"""The right of this broker to answer clients for the partitions that it leads. Pure: the clock is passed in.

Two things can give that right, and either is enough:

- *The session.* A leadership belongs to an incarnation of a broker, and an incarnation to a session with
  ZooKeeper. A broker that was suspended or cut off cannot see its session end, so it measures the time
  itself: the server ends a session at the earliest one timeout after it last heard from the client. The lease
  ends before that, and no other broker is elected before that.
- *The grants of followers.* While ZooKeeper answers no broker, a leader acts as long as every replica that
  could be elected in its place has promised, within the last `GRANT_S`, to answer no client before the
  promise has expired. A follower promises by a mark on its fetches, and only while it is without ZooKeeper
  itself or shortly after: while ZooKeeper is well, no failover waits for a promise, and a leader that is cut
  off alone gets none. A promise is about leaderships that are won later. So a follower that knows of a later
  leader epoch, or that stops to follow, promises nothing: it may have led, and answered clients, already.

Clocks are never compared. A fetch within a session is sent after the answer to the one before has arrived. So
the leader counts a promise from when it sent that answer, and the follower from when it sent the fetch, which
is later. The follower waits `GRANT_MARGIN` times as long, because clocks run at different speeds.

Followers are served without any lease: they know the leader's epoch, and leave a leader that was replaced.
Records with acks=all are therefore safe without it; it protects reads and acks=1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

NO_INCARNATION = -1
LEASE_SHARE: Final = 0.75
"""Of a session's timeout: how long a leader acts after its last heartbeat; the rest is for slow clocks."""
CUT_OFF_SHARE: Final = 0.3
"""Of a session's timeout: after this time without an answer a broker counts as cut off, and grants.
Heartbeats are a sixth apart, so followers begin to grant before a leader that lost ZooKeeper with them has
lost its lease."""
GRANT_S: Final = 3.0
"""Several times the longest wait of a fetch, so that a stall of one of both does not interrupt clients."""
GRANT_MARGIN: Final = 1.1
GRANT_FETCH_WAIT_MS: Final = 500
"""The longest wait of a fetch that grants; `replica.fetch.wait.max.ms` may be longer."""


class Lease:
    """Shared by all partitions of a broker. The cluster's member begins and ends it, and reports heartbeats.

    `now_s` is a clock, in seconds, that goes on while the process is stopped and while the machine sleeps.
    """

    __slots__ = (
        "_aftermath_until_s",
        "_answered_s",
        "_first_incarnation",
        "_grant_s",
        "_granted_until_s",
        "_has_session",
        "_incarnation",
        "_refusals",
        "_session_timeout_s",
        "_started_until_s",
        "now_s",
    )

    def __init__(
        self, now_s: Callable[[], float], session_timeout_s: float, grant_s: float = GRANT_S
    ) -> None:
        self.now_s = now_s
        self._session_timeout_s = session_timeout_s
        self._grant_s = grant_s
        self._incarnation = NO_INCARNATION
        self._first_incarnation = NO_INCARNATION
        self._has_session = False
        self._answered_s = -math.inf
        self._aftermath_until_s = -math.inf
        self._granted_until_s = -math.inf
        self._started_until_s = -math.inf
        # By broker: since when its address refuses connections without a gap, and until when that counts.
        self._refusals: dict[int, tuple[float, float]] = {}

    # --- The session ---

    def begin(self, incarnation: int, first_incarnation: int | None = None) -> None:
        """This broker is registered in the present session, and knows all that was elected until then.

        Leaderships that were given to incarnations from `first_incarnation` on are valid: sessions ended in
        between, but the process did not.
        """
        self._incarnation = incarnation
        self._first_incarnation = incarnation if first_incarnation is None else first_incarnation
        self._has_session = True

    def lose_session(self) -> None:
        """The session is gone. Others may be elected, but they wait for what they have granted."""
        self._has_session = False

    def end(self) -> None:
        """All leaderships are void, as another broker took this one for dead."""
        self._incarnation = self._first_incarnation = NO_INCARNATION
        self._has_session = False

    def answered(self, sent_s: float) -> None:
        """ZooKeeper has answered a heartbeat that was sent at `sent_s`: the session lived then."""
        self._end_outage(sent_s)
        self._answered_s = max(self._answered_s, sent_s)

    def reconnected(self) -> None:
        """The connection to ZooKeeper is back. That ends an outage, before a heartbeat says so."""
        self._end_outage(self.now_s())

    def _end_outage(self, answered_s: float) -> None:
        # Sessions may have ended only if the silence was as long as one; a shorter one leaves nothing behind.
        silence_s = answered_s - self._answered_s
        if math.isfinite(silence_s) and silence_s > LEASE_SHARE * self._session_timeout_s:
            self.note_outage()

    def note_outage(self) -> None:
        """ZooKeeper is back after an outage; for the length of a session others may still be without."""
        self._aftermath_until_s = self.now_s() + self._session_timeout_s

    def is_held_by(self, incarnation: int) -> bool:
        """Whether a leadership that was given to `incarnation` is this process's own."""
        return NO_INCARNATION != self._first_incarnation <= incarnation <= self._incarnation

    def is_valid(self) -> bool:
        """Whether the session certainly still exists, so that no other broker can have been elected."""
        return self._has_session and self.now_s() < self._answered_s + LEASE_SHARE * self._session_timeout_s

    @property
    def silence_s(self) -> float:
        """Seconds since the last heartbeat that was answered; infinite before the first."""
        return self.now_s() - self._answered_s

    @property
    def silence(self) -> str:
        """The same for people, after "ZooKeeper has not answered"."""
        silence_s = self.silence_s
        return f"for {silence_s:.0f} s" if math.isfinite(silence_s) else "since the start"

    @property
    def is_cut_off(self) -> bool:
        """Whether ZooKeeper has been silent for longer than a restart of one of its servers takes."""
        return self.silence_s > CUT_OFF_SHARE * self._session_timeout_s

    @property
    def is_in_aftermath(self) -> bool:
        """Whether an outage has ended less than a session ago."""
        return self.now_s() < self._aftermath_until_s

    # --- Grants: as follower ---

    def grant(self) -> bool:
        """Whether the fetch that is sent now grants; if so, leaderships that are won later wait for it."""
        if self._incarnation == NO_INCARNATION or not (self.is_cut_off or self.is_in_aftermath):
            return False
        self._granted_until_s = self.now_s() + GRANT_MARGIN * self._grant_s
        return True

    def begin_listening(self) -> None:
        """Connections are accepted from now on: until now others may have taken a refused one for a grant."""
        self._started_until_s = self.now_s() + GRANT_MARGIN * self._grant_s

    def rest_until_s(self, membership: int) -> float:
        """Until when a leadership that is won now may not be acted on.

        `membership` is the incarnation in which this broker was found in sync. If an earlier process earned
        that, it may have granted, and did not leave word.
        """
        if membership < self._first_incarnation:
            return max(self._granted_until_s, self._started_until_s)
        return self._granted_until_s

    # --- Grants: as leader ---

    def grant_end_s(self, answered_s: float) -> float:
        """The end of a grant by a follower that was last answered at `answered_s`."""
        return answered_s + self._grant_s

    def note_refusal(self, broker: int, connected_s: float) -> None:
        """A broker's address refused the connection that was begun at `connected_s`: its process is gone.

        If it starts again, it waits as long (`begin_listening`), as if it had granted. What the process did
        before it ended is another question, see `has_refused`.
        """
        since_s, until_s = self._refusals.get(broker, (connected_s, connected_s))
        if connected_s < self._answered_s + LEASE_SHARE * self._session_timeout_s and self._has_session:
            since_s = -math.inf
        elif connected_s > until_s:
            since_s = connected_s
        self._refusals[broker] = since_s, self.grant_end_s(connected_s)

    def has_refused(self, broker: int, covered_until_s: float) -> bool:
        """Whether refused connections stand in for the grants of a broker that ended at `covered_until_s`.

        They do if there was no gap: the first fell into the time of the last grant, or of the session.
        In a gap the broker may have been elected, and have answered clients before its process ended.
        """
        since_s, until_s = self._refusals.get(broker, (math.inf, -math.inf))
        return since_s <= covered_until_s and self.now_s() < until_s


class Grant:
    """What one follower has granted this leader, for all partitions that it follows here."""

    __slots__ = ("until_s",)

    def __init__(self) -> None:
        self.until_s = -math.inf
