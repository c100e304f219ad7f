"""What a leader knows of a follower: how far it is, since when, in which incarnation. Pure.

A follower's fetch at offset X says that it has everything before X. It is *caught up* while its log end has
reached what the leader's log end was within the last `replica.lag.time.max.ms` (KIP-16): a follower that
fetches but never reaches the end, and one that does not fetch, fall out alike.
"""

from __future__ import annotations

from dataclasses import dataclass

UNKNOWN_OFFSET = -1


@dataclass(slots=True)
class Progress:
    """One follower of one partition, in the eyes of the leader of the present epoch.

    - `log_end_offset`: the offset of its last fetch; -1 until the first. Falls only when the follower
      truncated.
    - `log_start_offset`: where its log began at its last fetch.
    - `caught_up_ms`: the latest time at which it is known to have had all there was.
    - `incarnation`: which incarnation of its broker fetched; a new one begins a new progress.
    """

    incarnation: int
    caught_up_ms: int
    log_end_offset: int = UNKNOWN_OFFSET
    last_fetch_ms: int = 0
    leader_end_at_last_fetch: int = 0
    log_start_offset: int = 0

    def record_fetch(self, offset: int, leader_end_offset: int, now_ms: int) -> None:
        """Take a fetch at `offset`, made when the leader's log ended at `leader_end_offset`."""
        if offset >= leader_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self.leader_end_at_last_fetch:
            # It now has what there was at its last fetch, so it was caught up then.
            self.caught_up_ms = max(self.caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = offset
        self.last_fetch_ms = now_ms
        self.leader_end_at_last_fetch = leader_end_offset

    def was_at_end(self, at_ms: int) -> None:
        """Take that all fetches up to `at_ms` were like the last one noted, which had all there was."""
        if self.log_end_offset >= self.leader_end_at_last_fetch:
            self.caught_up_ms = max(self.caught_up_ms, at_ms)
            self.last_fetch_ms = max(self.last_fetch_ms, at_ms)

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_max_ms: int) -> bool:
        return self.log_end_offset == leader_end_offset or now_ms - self.caught_up_ms <= lag_max_ms
