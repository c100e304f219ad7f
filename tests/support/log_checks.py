"""What our own dump says about a partition's files: the problems, in its words."""

from __future__ import annotations

from pathlib import Path

from mainstem_broker.log.verification import verify_log


def problems_in(directory: Path) -> list[str]:
    """Every problem that `mainstem log verify` reports of the partition in `directory`."""
    return [str(problem) for problem in verify_log(directory).problems]
