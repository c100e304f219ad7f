"""The clusters that run at this moment: their fixtures add them, and a failing test shows their logs."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol


class Running(Protocol):
    """What a failure tells of a cluster."""

    @property
    def data_directory(self) -> Path: ...

    def log_tail(self) -> dict[str, str]:
        """The last lines of each process, by its name."""
        ...


RUNNING: Final[list[Running]] = []
