"""How many requests of each API were answered, and how long that took.

One count and one bucket per request: this is on the path of every request, so it costs a quarter of a
microsecond and takes no lock. Owned by the event loop.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BUCKET_ENDS_S: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    5.0,
)
"""Upper ends, inclusive, in seconds; one bucket more takes what is longer."""


class RequestTimes:
    """Of one API, or of the event loop's lag.

    `buckets[i]` counts durations of at most `BUCKET_ENDS_S[i]` that no bucket before took.
    """

    __slots__ = ("buckets", "sum_s")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BUCKET_ENDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, duration_s: float) -> None:
        """A request was answered, `duration_s` after its frame was whole."""
        self.sum_s += duration_s
        self.buckets[bisect_left(BUCKET_ENDS_S, duration_s)] += 1
