"""Permits that are given out in bursts and come back at a steady rate (KIP-599). Pure: time is given.

A window (`rate.py`) would forget a large burst when it is over; a bucket waits until it is paid back.
"""

from __future__ import annotations


class TokenBucket:
    """Begins full. Whatever asks while at least nothing is owed gets all that it asks for."""

    __slots__ = ("_filled_ms", "_tokens")

    def __init__(self) -> None:
        self._tokens: float | None = None  # None: full
        self._filled_ms = 0.0

    def fill(self, per_second: float, burst: float, now_ms: float) -> float:
        """Add what has come since the last time; return what there is, negative if it is owed.

        `burst` is what the bucket holds. A clock that was set back adds nothing.
        """
        if self._tokens is None:
            self._tokens = burst
        passed_s = max(now_ms - self._filled_ms, 0.0) / 1000
        self._tokens = min(burst, self._tokens + passed_s * per_second)
        self._filled_ms = now_ms
        return self._tokens

    def take(self, amount: float) -> None:
        """Take what `fill` has just allowed."""
        assert self._tokens is not None
        self._tokens -= amount
