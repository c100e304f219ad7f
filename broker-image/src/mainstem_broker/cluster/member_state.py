"""The state of a broker's membership, and what its next pass has to do: one state machine as a table. Pure.

Two questions make the phase: does the connection to ZooKeeper work, and is this broker registered in the
present session?

|                | not registered | registered  |
|----------------|----------------|-------------|
| connection     | `JOINING`      | `MEMBER`    |
| no connection  | `OUTSIDE`      | `SUSPENDED` |

`SUSPENDED` exists because a session outlives its connection: if the connection comes back in time, the
registration is still there. If the session is lost, its ephemeral nodes are gone, so the broker is `OUTSIDE`
and has to join anew.

The work that is due is a set, not a queue. An event carries no data. It only says which part of the view may
be out of date, so events may be merged, repeated or come in any order. Three rules keep the view right:

- A step takes its work off the set *before* it reads. A watch that fires during the read makes the work due
  again, and the next pass reads once more.
- A pass runs `READS`, then `WRITES`, each step once. It does not run until nothing is due: under a constant
  stream of changes it would never publish what it has read.
- A pass that failed may have done any part of its work, so `FAILED` makes everything due.

`member.py` owns the one instance, and performs the actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, NamedTuple


class Phase(Enum):
    OUTSIDE = auto()
    JOINING = auto()
    MEMBER = auto()
    SUSPENDED = auto()


class Event(Enum):
    # The session, as ZooKeeper's client reports it.
    CONNECTED = auto()
    SUSPENDED = auto()
    LOST = auto()
    # What a pass found.
    SYNCED = auto()
    REGISTERED = auto()
    EXPELLED = auto()
    """This broker's registration is missing though it registered: another broker fenced it."""
    FAILED = auto()
    # Watches, and requests of other parts of this broker.
    BROKERS_CHANGED = auto()
    FEED_CHANGED = auto()
    TOPIC_CHANGED = auto()
    CONTROLLER_CHANGED = auto()
    CATCH_UP_REQUESTED = auto()
    OFFLINE_REPORTED = auto()


class Work(Enum):
    SYNC = auto()
    """Make later reads as new as any write that has finished by now."""
    LOAD = auto()
    """Read everything; covers `BROKERS` and `FEED`."""
    REGISTER = auto()
    BROKERS = auto()
    FEED = auto()
    TOPICS = auto()
    """Read the topics that were marked one by one."""
    OFFLINE = auto()
    """Write which replicas this broker cannot serve; the node is ephemeral, so each session writes it."""
    CONTROLLER = auto()
    """Find out who is controller, or become it."""


class Action(Enum):
    LOSE_SESSION = auto()
    """The session is gone. Leaderships remain this process's until another broker is elected."""
    END_LEASE = auto()
    """Another broker took this process for dead: leaderships given to its incarnations are void."""
    RESIGN = auto()
    """The session is gone, and the controllership with it."""


READS: Final = (Work.SYNC, Work.LOAD, Work.REGISTER, Work.BROKERS, Work.FEED, Work.TOPICS)
WRITES: Final = (Work.REGISTER, Work.BROKERS, Work.OFFLINE, Work.CONTROLLER)
"""Begins with the work of `EXPELLED`, which only the reads before can find."""
COVERED: Final[Mapping[Work, frozenset[Work]]] = {Work.LOAD: frozenset((Work.BROKERS, Work.FEED))}
"""What else is done by a step."""


class Transition(NamedTuple):
    phase: Phase
    work: frozenset[Work] = frozenset()
    actions: tuple[Action, ...] = ()


def _to(phase: Phase, *work: Work, actions: tuple[Action, ...] = ()) -> Transition:
    return Transition(phase, frozenset(work), actions)


def _in_every_phase(*work: Work) -> Mapping[Phase, Transition]:
    return {phase: _to(phase, *work) for phase in Phase}


# A new connection has none of the watches of the one before, so all that is watched is read again.
_WATCHED: Final = (Work.BROKERS, Work.FEED, Work.CONTROLLER)
_REGISTERED: Final = (Work.BROKERS, Work.FEED, Work.OFFLINE)
_ALL_BUT_REGISTER: Final = tuple(work for work in Work if work is not Work.REGISTER)

TRANSITIONS: Final[Mapping[Event, Mapping[Phase, Transition]]] = {
    Event.CONNECTED: {
        Phase.OUTSIDE: _to(Phase.JOINING, Work.LOAD, Work.REGISTER, *_WATCHED),
        Phase.JOINING: _to(Phase.JOINING, Work.LOAD, Work.REGISTER, *_WATCHED),
        Phase.MEMBER: _to(Phase.MEMBER, *_WATCHED),
        Phase.SUSPENDED: _to(Phase.MEMBER, *_WATCHED),
    },
    Event.SUSPENDED: {
        Phase.OUTSIDE: _to(Phase.OUTSIDE),
        Phase.JOINING: _to(Phase.OUTSIDE),
        Phase.MEMBER: _to(Phase.SUSPENDED),
        Phase.SUSPENDED: _to(Phase.SUSPENDED),
    },
    Event.LOST: {phase: _to(Phase.OUTSIDE, actions=(Action.LOSE_SESSION, Action.RESIGN)) for phase in Phase},
    # What was read while the sync was under way may be older than it.
    Event.SYNCED: _in_every_phase(Work.FEED),
    # The connection may break between the write of the registration and its answer. FEED: before the lease
    # begins, everything has to be known that was elected before the registration.
    Event.REGISTERED: {
        Phase.OUTSIDE: _to(Phase.SUSPENDED, *_REGISTERED),
        Phase.JOINING: _to(Phase.MEMBER, *_REGISTERED),
        Phase.MEMBER: _to(Phase.MEMBER, *_REGISTERED),
        Phase.SUSPENDED: _to(Phase.SUSPENDED, *_REGISTERED),
    },
    # The view is up to date, so unlike after a new session nothing has to be loaded.
    Event.EXPELLED: {
        Phase.OUTSIDE: _to(Phase.OUTSIDE, Work.REGISTER, Work.BROKERS, actions=(Action.END_LEASE,)),
        Phase.JOINING: _to(Phase.JOINING, Work.REGISTER, Work.BROKERS, actions=(Action.END_LEASE,)),
        Phase.MEMBER: _to(Phase.JOINING, Work.REGISTER, Work.BROKERS, actions=(Action.END_LEASE,)),
        Phase.SUSPENDED: _to(Phase.OUTSIDE, Work.REGISTER, Work.BROKERS, actions=(Action.END_LEASE,)),
    },
    Event.FAILED: {
        Phase.OUTSIDE: _to(Phase.OUTSIDE, *Work),
        Phase.JOINING: _to(Phase.JOINING, *Work),
        Phase.MEMBER: _to(Phase.MEMBER, *_ALL_BUT_REGISTER),
        Phase.SUSPENDED: _to(Phase.SUSPENDED, *_ALL_BUT_REGISTER),
    },
    Event.BROKERS_CHANGED: _in_every_phase(Work.BROKERS),
    Event.FEED_CHANGED: _in_every_phase(Work.FEED),
    Event.TOPIC_CHANGED: _in_every_phase(Work.TOPICS),
    Event.CONTROLLER_CHANGED: _in_every_phase(Work.CONTROLLER),
    # Not FEED as well: a pass that is under way could take that off before the sync. `SYNCED` makes it due.
    Event.CATCH_UP_REQUESTED: _in_every_phase(Work.SYNC),
    Event.OFFLINE_REPORTED: _in_every_phase(Work.OFFLINE),
}


class MemberState:
    """The phase and the work that is due."""

    def __init__(self) -> None:
        self.phase = Phase.OUTSIDE
        self.due: set[Work] = set()

    @property
    def is_connected(self) -> bool:
        return self.phase in (Phase.JOINING, Phase.MEMBER)

    @property
    def is_registered(self) -> bool:
        return self.phase in (Phase.MEMBER, Phase.SUSPENDED)

    def apply(self, event: Event) -> tuple[Action, ...]:
        """Take an event; returns the actions to perform at once, before anything else is awaited."""
        transition = TRANSITIONS[event][self.phase]
        self.phase = transition.phase
        self.due |= transition.work
        return transition.actions

    def begin(self, work: Work) -> bool:
        """Take `work`, and what it covers, off the set; whether it was due."""
        if work not in self.due:
            return False
        self.due -= {work} | COVERED.get(work, frozenset())
        return True
