"""The two phases of a rebalance, and when they end. Pure; `group.py` moves a group from one to the next."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class JoinPhase:
    """Members join. The phase ends when all have joined, at the latest at `deadline_ms`.

    The first join phase of an empty group is different: nobody knows how many members there will be. It
    lasts for group.initial.rebalance.delay.ms, and once more as long if newcomers have joined meanwhile.

    - `initial_wait_left_ms`: by how much a first phase may still be extended; None: it is not a first one.
    - `has_newcomers`: whether new members have joined since the phase began or was extended.
    """

    deadline_ms: int
    initial_wait_left_ms: int | None = None
    has_newcomers: bool = False

    @property
    def is_initial(self) -> bool:
        return self.initial_wait_left_ms is not None

    def extend(self, delay_ms: int, now_ms: int) -> bool:
        """Postpone the deadline of a first phase if newcomers have joined; False: the phase is over."""
        if not self.initial_wait_left_ms or not self.has_newcomers:
            return False
        extension_ms = min(delay_ms, self.initial_wait_left_ms)
        self.initial_wait_left_ms -= extension_ms
        self.has_newcomers = False
        self.deadline_ms = now_ms + extension_ms
        return True


@dataclass(slots=True)
class SyncPhase:
    """Members fetch their assignments; those that have not by `deadline_ms` are removed.

    The group may become stable before: the phase goes on for the members in `unsynced_ids`.
    """

    deadline_ms: int
    unsynced_ids: set[str]


@dataclass(slots=True)
class Assigning:
    """The leader's assignment, while it is being stored: by member id."""

    ticket: int
    assignments: dict[str, bytes]
