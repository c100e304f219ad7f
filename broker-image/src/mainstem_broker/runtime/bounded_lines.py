"""Lines of a log that clients can cause again and again: who tries and fails all day must not fill the disk.

A line is written at once. Equal ones that follow within ten seconds are counted, and their number is written
at the end of that time. The number of lines that differ is limited too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

INTERVAL_S: Final = 10.0

Line = TypeVar("Line", bound=Hashable)


class BoundedLines(Generic[Line]):
    """Which lines are written. Belongs to the event loop.

    Args:
        lines_max: of a kind, how many that differ are written within ten seconds.
        repeat: writes a line again, with the number of its repetitions.
        leave_out: writes how many lines of a kind were left out.
    """

    def __init__(
        self, lines_max: int, repeat: Callable[[Line, int], None], leave_out: Callable[[str, int], None]
    ) -> None:
        self._lines_max = lines_max
        self._repeat = repeat
        self._leave_out = leave_out
        self._repetitions: dict[Line, int] = {}
        self._lines: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()

    def add(self, kind: str, line: Line) -> bool:
        """Whether the line is to be written now; otherwise it is counted. A line has one kind."""
        count = self._repetitions.get(line)
        if count is not None:
            self._repetitions[line] = count + 1
            return False
        if self._lines[kind] >= self._lines_max:
            self._left_out[kind] += 1
            return False
        if not self._repetitions:
            asyncio.get_running_loop().call_later(INTERVAL_S, self._end_interval)
        self._repetitions[line] = 0
        self._lines[kind] += 1
        return True

    def _end_interval(self) -> None:
        repetitions, self._repetitions = self._repetitions, {}
        left_out, self._left_out = self._left_out, Counter()
        self._lines.clear()
        for line, count in repetitions.items():
            if count:
                self._repeat(line, count)
        for kind, count in left_out.items():
            self._leave_out(kind, count)
