"""The longest time during which records were in flight and none arrived. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PauseMeter:
    """Measures pauses from observations in time order; `since_seconds` is when the current pause began."""

    since_seconds: float
    longest_seconds: float = 0.0

    def observe(self, now_seconds: float, *, arrived: bool, in_flight: bool) -> None:
        """Take one observation: `arrived` since the last one, and whether records are `in_flight`."""
        if arrived or in_flight:
            self.longest_seconds = max(self.longest_seconds, now_seconds - self.since_seconds)
        if arrived or not in_flight:
            self.since_seconds = now_seconds
