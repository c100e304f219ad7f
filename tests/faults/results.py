"""The measured table: each fault, whom it struck, and how long nothing was acknowledged.

A row stands for a trial in which no promise was broken; where one was, the test fails instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.faults.history import Delivery, History


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds are those of the partition that fared worst.

    - `first_s`: from the fault to the acknowledgement of a message that was sent after it.
    - `silence_s`: the longest stretch without an acknowledgement, from the fault until all is well again.
    - `idempotent_first_s`, `idempotent_silence_s`: the same of the idempotent producer alone, each of whose
      messages is stored once and in order. With retries it waits longer than the first client to come back.
    - `failed`: messages that failed at a producer without retries.
    """

    fault: str
    role: str
    first_s: float
    silence_s: float
    idempotent_first_s: float
    idempotent_silence_s: float
    acknowledged: int
    failed: int
    note: str = ""


def result_of(
    history: History, fault: str, role: str, struck_s: float, ended_s: float, note: str = ""
) -> Result:
    """What a history shows of the time from when a fault struck until all was well again."""
    idempotent = Delivery.EXACTLY_ONCE.value
    return Result(
        fault,
        role,
        max(history.first_acknowledgement_after_s(struck_s).values()),
        max(history.longest_silence_s(struck_s, ended_s).values()),
        max(history.first_acknowledgement_after_s(struck_s, idempotent).values()),
        max(history.longest_silence_s(struck_s, ended_s, idempotent).values()),
        len(history.acknowledged),
        len(history.failed),
        note,
    )


class Figures:
    """Lines of what tests counted, shown at the end of the run."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, line: str) -> None:
        self.lines.append(line)


HEADINGS: Final = (
    "fault",
    "role",
    "first ack after",
    "longest silence",
    "idempotent: first",
    "silence",
    "acknowledged",
    "failed",
    "",
)


def table(results: list[Result]) -> list[str]:
    """Lines of text, aligned, with a heading."""
    rows = [HEADINGS] + [
        (
            result.fault,
            result.role,
            f"{result.first_s:.2f} s",
            f"{result.silence_s:.2f} s",
            f"{result.idempotent_first_s:.2f} s",
            f"{result.idempotent_silence_s:.2f} s",
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
