"""Which data directory a new log goes to: by free space, so that directories fill up together.

A new log takes no space yet, and thousands may come at once. So file systems get new logs in proportion to
what is free on them: the next log goes to where the most is free for each of the latest logs there and this
one (D'Hondt's method). Directories on one file system have the same space, and get the same number.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

LATEST_MAX: Final = 256
"""So many of the latest logs count; after that their numbers are halved, as by then they have grown."""


class Space(NamedTuple):
    """The file system that a directory is on, and how many bytes are free there."""

    device: int
    free_bytes: int


def space_of(directory: Path) -> Space:
    """A directory that cannot be looked at has no space: its logs will tell what is wrong with it."""
    try:
        status = os.statvfs(directory)
        return Space(directory.stat().st_dev, status.f_bavail * status.f_frsize)
    except OSError:
        return Space(-1, 0)


class LogPlacement:
    """Remembers where the latest logs went."""

    def __init__(self) -> None:
        self._latest = Counter[int]()  # by device

    def choose(self, directories: Sequence[Path], log_counts: Mapping[Path, int]) -> Path:
        """The one of `directories` for a new log; `log_counts` are those in each of them."""
        if len(directories) == 1:
            return directories[0]
        return self.choose_by({directory: space_of(directory) for directory in directories}, log_counts)

    def choose_by(self, spaces: Mapping[Path, Space], log_counts: Mapping[Path, int]) -> Path:
        # Of each file system once: what is free may change between two looks.
        free_bytes: dict[int, int] = {}
        for space in spaces.values():
            free_bytes.setdefault(space.device, space.free_bytes)
        # Where as much is free, the number of logs decides, and then the order in log.dirs.
        fewest = {
            device: min(log_counts[directory] for directory in spaces if spaces[directory].device == device)
            for device in free_bytes
        }
        chosen = max(
            free_bytes, key=lambda device: (free_bytes[device] / (self._latest[device] + 1), -fewest[device])
        )
        self._latest[chosen] += 1
        if self._latest.total() > LATEST_MAX:
            for device in self._latest:
                self._latest[device] //= 2
        candidates = [directory for directory, space in spaces.items() if space.device == chosen]
        return min(candidates, key=lambda directory: log_counts[directory])
