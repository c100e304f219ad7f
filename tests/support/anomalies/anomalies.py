"""The anomalies that a history can have, and which of them Kafka's design allows.

Source of the names: Jepsen's Kafka workload (`jepsen.tests.kafka`), and Adya's phenomena G0, G1a, G1c.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple


class Anomaly(Enum):
    """Each with the sentence that it breaks."""

    LOST_WRITE = "a committed record was never read, though a later one of its partition was"
    UNSEEN = "a committed record was never read, nor was anything after it"
    ABORTED_READ = "read_committed: a record of an aborted transaction was read (G1a)"
    PRECOMMITTED_READ = "read_committed: a record was read before its commit was requested"
    UNSENT_READ = "a record was read that nobody sent to this partition"
    DUPLICATE = "a record is at more than one offset"
    INCONSISTENT_OFFSETS = "one offset has more than one record"
    POLL_SKIP = "a consumer left out a record between two polls"
    INT_POLL_SKIP = "a consumer left out a record within one poll"
    NONMONOTONIC_POLL = "a consumer went back between two polls"
    INT_NONMONOTONIC_POLL = "a consumer went back within one poll"
    NONMONOTONIC_SEND = "records of one producer are not in the order of sending"
    INT_NONMONOTONIC_SEND = "records of one transaction are not in the order of sending"
    TWO_OUTCOMES = "a transaction was confirmed both as committed and as aborted"
    G1C = "transactions read each other's writes in a cycle"

    UNCOMMITTED_ABORTED_READ = "read_uncommitted: a record of an aborted transaction was read"
    UNCOMMITTED_PRECOMMITTED_READ = "read_uncommitted: a record was read before its commit was requested"
    INT_SEND_SKIP = "other producers' records are between two of one transaction"
    G0 = "transactions follow each other in a cycle, by the order of their writes"
    G1C_WITH_WRITE_ORDER = "transactions follow each other in a cycle of writes and reads"


ALLOWED: Final = {
    Anomaly.UNCOMMITTED_ABORTED_READ: (
        "read_uncommitted returns what is below the high watermark, whatever becomes of its transaction"
    ),
    Anomaly.UNCOMMITTED_PRECOMMITTED_READ: ("read_uncommitted does not wait for the end of a transaction"),
    Anomaly.INT_SEND_SKIP: (
        "leaders append batches as they come: a transaction does not lock its partitions"
    ),
    Anomaly.G0: (
        "for the same reason two transactions can be ordered one way in one partition and the other way in"
        " another; both outcomes are atomic all the same"
    ),
    Anomaly.G1C_WITH_WRITE_ORDER: (
        "a cycle that needs the order of writes is no more than G0: a record may precede, in its partition,"
        " one of a transaction whose effects it was made from"
    ),
}
"""What Kafka's design allows, and why. Poll skips and polls that go back are also allowed where a rebalance
or a seek is between the polls: `Assign` says so, and they are not reported. Duplicates are never allowed:
producers here are idempotent."""


class Finding(NamedTuple):
    """One occurrence; `text` names the records and clients."""

    anomaly: Anomaly
    text: str

    @property
    def is_allowed(self) -> bool:
        return self.anomaly in ALLOWED

    def __str__(self) -> str:
        return f"{self.anomaly.name} ({self.anomaly.value}): {self.text}"


def describe(findings: Iterable[Finding], examples_max: int = 5) -> str:
    """For people: how often each anomaly occurs, and the first few of each."""
    by_anomaly: dict[Anomaly, list[Finding]] = {}
    for finding in findings:
        by_anomaly.setdefault(finding.anomaly, []).append(finding)
    lines: list[str] = []
    for anomaly, occurrences in by_anomaly.items():
        lines.append(f"{anomaly.name}, {len(occurrences)} times: {anomaly.value}")
        lines += [f"  {finding.text}" for finding in occurrences[:examples_max]]
    return "\n".join(lines)
