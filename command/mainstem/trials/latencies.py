"""What many measured times come to: pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Latencies:
    """Times in milliseconds; each percentile is a time that was measured, not one between two."""

    samples: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Self | None:
        """What these times come to; None if there are none."""
        times_ms = sorted(second * 1000 for second in seconds)
        if not times_ms:
            return None
        count = len(times_ms)
        # The nearest rank: the smallest time that at least so many of a thousand do not exceed.
        ranked = [times_ms[max(0, -(-count * permille // 1000) - 1)] for permille in (500, 950, 990, 999)]
        return cls(count, *(round(time, 3) for time in (*ranked, times_ms[-1])))
