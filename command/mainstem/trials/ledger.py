"""The account of a verification: which of the sent records arrived, once and in order. Pure.

Every partition is sent the numbers 0, 1, 2 ... in that order. A record in order costs one comparison.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

_EXAMPLES_MAX: Final = 10


@dataclass(slots=True)
class PartitionLedger:
    """The account of one partition.

    `expected` is one more than the highest number that arrived; `missing` holds the numbers below it that did
    not arrive.
    """

    sent: int = 0
    expected: int = 0
    missing: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    duplicate: list[int] = field(default_factory=list)
    reordered: list[int] = field(default_factory=list)

    def arrived(self, number: int) -> None:
        """Account for a record: after a higher number it is out of order, a second time a duplicate."""
        if number == self.expected:
            self.expected += 1
        elif number > self.expected:
            self.missing.update(range(self.expected, number))
            self.expected = number + 1
        elif number in self.missing:
            self.missing.discard(number)
            self.reordered.append(number)
        else:
            self.duplicate.append(number)

    def lost(self) -> list[int]:
        """The acknowledged records that did not arrive. A refused record carries no promise."""
        outstanding = self.missing.union(range(self.expected, self.sent))
        return sorted(outstanding - self.refused)

    @property
    def complete(self) -> bool:
        """Whether every acknowledged record arrived."""
        return not self.lost()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The totals of all partitions; an example is `partition: number`, of the first few of each kind."""

    sent: int
    acknowledged: int
    lost: int
    duplicate: int
    reordered: int
    examples: dict[str, list[str]]

    @property
    def flawless(self) -> bool:
        return not (self.lost or self.duplicate or self.reordered)


def judge(ledgers: dict[int, PartitionLedger]) -> Verdict:
    """The verdict on all partitions, by their numbers."""
    faults = {
        "lost": [(partition, number) for partition, one in ledgers.items() for number in one.lost()],
        "duplicate": [(partition, number) for partition, one in ledgers.items() for number in one.duplicate],
        "reordered": [(partition, number) for partition, one in ledgers.items() for number in one.reordered],
    }
    sent = sum(one.sent for one in ledgers.values())
    return Verdict(
        sent=sent,
        acknowledged=sent - sum(len(one.refused) for one in ledgers.values()),
        **{kind: len(places) for kind, places in faults.items()},
        examples={
            kind: [f"{partition}: {number}" for partition, number in sorted(places)[:_EXAMPLES_MAX]]
            for kind, places in faults.items()
            if places
        },
    )
