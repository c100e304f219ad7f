"""Which records arrived, of those that were sent: the account that `mainstem verify` keeps. Pure.

Every partition gets the numbers 0, 1, 2 ... in that order. What is in order costs one comparison.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

_EXAMPLES_MAX: Final = 10


@dataclass(slots=True)
class PartitionLedger:
    """The account of one partition.

    `expected` is the number behind the highest that has arrived; `missing` are those below it that have not.
    """

    sent: int = 0
    expected: int = 0
    missing: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    doubled: list[int] = field(default_factory=list)
    reordered: list[int] = field(default_factory=list)

    def arrived(self, number: int) -> None:
        """Note a record: after a higher one it is out of order, and the second time doubled."""
        if number == self.expected:
            self.expected += 1
        elif number > self.expected:
            self.missing.update(range(self.expected, number))
            self.expected = number + 1
        elif number in self.missing:
            self.missing.discard(number)
            self.reordered.append(number)
        else:
            self.doubled.append(number)

    def lost(self) -> list[int]:
        """What was acknowledged and has not arrived. Of what was refused nothing was promised."""
        outstanding = self.missing.union(range(self.expected, self.sent))
        return sorted(outstanding - self.refused)

    @property
    def complete(self) -> bool:
        """Whether everything that was acknowledged has arrived."""
        return not self.lost()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of the records; the examples are `partition: number` of the first few."""

    sent: int
    acknowledged: int
    lost: int
    doubled: int
    reordered: int
    examples: dict[str, list[str]]

    @property
    def flawless(self) -> bool:
        return not (self.lost or self.doubled or self.reordered)


def judge(ledgers: dict[int, PartitionLedger]) -> Verdict:
    """What the accounts of all partitions come to."""
    wrong = {
        "lost": [(partition, number) for partition, one in ledgers.items() for number in one.lost()],
        "doubled": [(partition, number) for partition, one in ledgers.items() for number in one.doubled],
        "reordered": [(partition, number) for partition, one in ledgers.items() for number in one.reordered],
    }
    sent = sum(one.sent for one in ledgers.values())
    return Verdict(
        sent=sent,
        acknowledged=sent - sum(len(one.refused) for one in ledgers.values()),
        **{kind: len(found) for kind, found in wrong.items()},
        examples={
            kind: [f"{partition}: {number}" for partition, number in sorted(found)[:_EXAMPLES_MAX]]
            for kind, found in wrong.items()
            if found
        },
    )
