"""A rate over sliding windows, and how long to wait until it is back at its limit. Pure: time is given."""

from __future__ import annotations

from collections import deque


class Rate:
    """What was recorded within the last `window_count` windows of `window_ms` each, per second.

    As Kafka's: a window begins with the first record after the one before it is over, so idle time costs
    nothing; and the sum is divided by at least all windows but one, so that an idle client may take what
    it has saved up in that time at once, and no more.
    """

    __slots__ = ("_sum", "_window_count", "_window_ms", "_windows")

    def __init__(self, window_count: int, window_ms: int) -> None:
        self._window_count = window_count
        self._window_ms = window_ms
        self._windows: deque[list[float]] = deque()  # [begin in ms, sum], oldest first
        self._sum = 0.0

    def record(self, amount: float, now_ms: float) -> None:
        self._forget(now_ms)
        if not self._windows or now_ms - self._windows[-1][0] >= self._window_ms:
            self._windows.append([now_ms, 0.0])
        self._windows[-1][1] += amount
        self._sum += amount

    def is_idle(self, now_ms: float) -> bool:
        """Whether nothing is remembered that could make anyone wait."""
        self._forget(now_ms)
        return not self._windows

    def wait_ms(self, limit: float, now_ms: float) -> float:
        """How long nothing may be recorded until the rate is at `limit` per second; 0 below it."""
        self._forget(now_ms)
        if not self._windows:
            return 0.0
        allowed = limit * self._span_ms(now_ms) / 1000
        return max(self._sum - allowed, 0.0) / limit * 1000

    def _span_ms(self, now_ms: float) -> float:
        """What the sum is divided by."""
        elapsed_ms = max(now_ms - self._windows[0][0], 0.0)
        over = int(elapsed_ms // self._window_ms)
        missing = max(self._window_count - 1 - over, 0)
        return max(elapsed_ms + missing * self._window_ms, self._window_ms)

    def _forget(self, now_ms: float) -> None:
        windows = self._windows
        if windows and now_ms < windows[-1][0]:
            windows.clear()  # a clock that was set back: better to forget than to wait for it
            self._sum = 0.0
        while windows and now_ms - windows[0][0] >= self._window_count * self._window_ms:
            self._sum -= windows.popleft()[1]
        if not windows:
            self._sum = 0.0  # what rounding left
