"""The measured table: each fault, whom it struck, and how long nothing was acknowledged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds are those of the partition that fared worst.

    - `first_s`: from the fault to the acknowledgement of a message that was sent after it.
    - `silence_s`: the longest stretch without an acknowledgement, from the fault until all is well again.
    - `failed`: messages that a producer without retries was told were not stored.
    """

    fault: str
    role: str
    first_s: float
    silence_s: float
    acknowledged: int
    failed: int
    note: str = ""


class Figures:
    """Lines of what tests counted, shown at the end of the run."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, line: str) -> None:
        self.lines.append(line)


HEADINGS: Final = ("fault", "role", "first ack after", "longest silence", "acknowledged", "failed", "")


def table(results: list[Result]) -> list[str]:
    """Lines of text, aligned, with a heading."""
    rows = [HEADINGS] + [
        (
            result.fault,
            result.role,
            f"{result.first_s:.2f} s",
            f"{result.silence_s:.2f} s",
            str(result.acknowledged),
            str(result.failed),
            result.note,
        )
        for result in sorted(results, key=lambda result: (result.fault, result.role))
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
