"""The judge of transactions finds each anomaly, and nothing in a history without any (R9, R11)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.support.anomalies.anomalies import ALLOWED, Anomaly, describe
from tests.support.anomalies.check import check, forbidden
from tests.support.anomalies.cycles import cycles
from tests.support.anomalies.history import Assign, End, EndRequest, Isolation, Operation, Poll, Record, Send


def send(value: str, offset: int | None, transaction: str | None = None, *, partition: int = 0) -> Send:
    """By a producer that has the name of the value's first letter."""
    return Send(value[0], transaction, partition, value, offset)


def committed(transaction: str) -> list[Operation]:
    return [EndRequest("p", transaction, True), End("p", transaction, True)]


def aborted(transaction: str) -> list[Operation]:
    return [EndRequest("p", transaction, False), End("p", transaction, False)]


def poll(
    *records: tuple[int, str],
    isolation: Isolation = Isolation.READ_COMMITTED,
    partition: int = 0,
    by: str = "reader",
    transaction: str | None = None,
) -> Poll:
    return Poll(by, isolation, tuple(Record(partition, *record) for record in records), transaction)


START = Assign("reader", {0: 0, 1: 0})
UNCOMMITTED = Isolation.READ_UNCOMMITTED
ABC: list[Operation] = [send("a", 0), send("b", 1), send("c", 2)]

HISTORIES_WITHOUT_ANOMALIES: dict[str, Sequence[Operation]] = {
    "nothing": [],
    "plain records in two polls": [*ABC, START, poll((0, "a")), poll((1, "b"), (2, "c"))],
    "no answer, and not in the log": [Send("p", None, 0, "a", None, is_acknowledged=False)],
    "no answer, and in the log": [Send("p", None, 0, "a", None, is_acknowledged=False), poll((0, "a"))],
    "an aborted record that only its offset shows": [
        send("a", 0, "t1"), *aborted("t1"), send("b", 2), START, poll((2, "b")),
    ],
    "an outcome that is not known, and a commit": [
        send("a", 0, "t1"), EndRequest("p", "t1", True), START, poll((0, "a")),
    ],
    "an outcome that is not known, and no commit": [
        send("a", 0, "t1"), EndRequest("p", "t1", True), send("b", 2), START, poll((2, "b")),
    ],
    "a commit is read before it is confirmed": [
        send("a", 0, "t1"), EndRequest("p", "t1", True), START, poll((0, "a")), End("p", "t1", True),
    ],
    "a transaction reads its own record": [
        send("a", 0, "t1"), START, poll((0, "a"), transaction="t1"), *committed("t1"),
    ],
    "a seek goes back": [
        *ABC, START, poll((0, "a"), (1, "b"), (2, "c")), Assign("reader", {0: 1}), poll((1, "b")),
    ],
    "a rebalance goes on elsewhere": [
        *ABC, START, poll((0, "a")), Assign("reader", {0: None}), poll((2, "c")),
        Assign("other", {0: 0}), poll((0, "a"), (1, "b"), (2, "c"), by="other"),
    ],
    "a chain of transactions": [
        send("a", 0, "t1"), *committed("t1"), poll((0, "a"), transaction="t2"),
        send("b", 0, "t2", partition=1), *committed("t2"), poll((0, "b"), partition=1),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", HISTORIES_WITHOUT_ANOMALIES)
def test_a_history_without_anomalies_has_no_findings(name: str) -> None:
    findings = check(HISTORIES_WITHOUT_ANOMALIES[name])
    assert not findings, describe(findings)


def mutual_reads(*, of_both: bool) -> list[Operation]:
    """t1 reads what t2 has written; t2 reads t1's record, or its write is only placed after t1's."""
    return [
        send("a", 0, "t1"),
        send("b", 1, "t2"),
        EndRequest("p", "t1", True),
        EndRequest("p", "t2", True),
        poll((1, "b"), transaction="t1", by="first"),
        poll((0, "a"), transaction="t2" if of_both else None, by="second"),
        End("p", "t1", True),
        End("p", "t2", True),
    ]


HISTORIES_WITH_ANOMALIES: dict[Anomaly, Sequence[Operation]] = {
    Anomaly.LOST_WRITE: [send("a", 0, "t1"), *committed("t1"), send("b", 2), poll((2, "b"))],
    Anomaly.UNSEEN: [*ABC, START, poll((0, "a"), (1, "b"))],
    Anomaly.ABORTED_READ: [send("a", 0, "t1"), *aborted("t1"), poll((0, "a"))],
    Anomaly.PRECOMMITTED_READ: [send("a", 0, "t1"), poll((0, "a")), *committed("t1")],
    Anomaly.UNSENT_READ: [START, poll((0, "x"))],
    Anomaly.DUPLICATE: [send("a", 0), poll((0, "a"), (1, "a"))],
    Anomaly.INCONSISTENT_OFFSETS: [send("a", 0), send("b", 0), poll((0, "a")), poll((0, "b"), by="other")],
    Anomaly.POLL_SKIP: [*ABC, START, poll((0, "a")), poll((2, "c")), poll((1, "b"), by="other")],
    Anomaly.INT_POLL_SKIP: [*ABC, START, poll((0, "a"), (2, "c")), poll((1, "b"), by="other")],
    Anomaly.NONMONOTONIC_POLL: [*ABC, START, poll((0, "a"), (1, "b"), (2, "c")), poll((1, "b"))],
    Anomaly.INT_NONMONOTONIC_POLL: [*ABC, START, poll((0, "a"), (1, "b"), (0, "a"), (1, "b"), (2, "c"))],
    Anomaly.NONMONOTONIC_SEND: [send("a1", 1), send("a2", 0), START, poll((0, "a2"), (1, "a1"))],
    Anomaly.INT_NONMONOTONIC_SEND: [
        send("a1", 1, "t1"), send("a2", 0, "t1"), *committed("t1"), START, poll((0, "a2"), (1, "a1")),
    ],
    Anomaly.TWO_OUTCOMES: [send("a", 0, "t1"), *committed("t1"), *aborted("t1"), poll((0, "a"))],
    Anomaly.G1C: mutual_reads(of_both=True),
    Anomaly.UNCOMMITTED_ABORTED_READ: [
        send("a", 0, "t1"), *aborted("t1"), START, poll((0, "a"), isolation=UNCOMMITTED),
    ],
    Anomaly.UNCOMMITTED_PRECOMMITTED_READ: [
        send("a", 0, "t1"), START, poll((0, "a"), isolation=UNCOMMITTED), *committed("t1"),
    ],
    Anomaly.INT_SEND_SKIP: [
        send("a1", 0, "t1"), send("b", 1), send("a2", 2, "t1"), *committed("t1"),
        START, poll((0, "a1"), (1, "b"), (2, "a2")),
    ],
    Anomaly.G0: [
        send("a1", 0, "t1"), send("b1", 1, "t2"), send("b2", 0, "t2", partition=1),
        send("a2", 1, "t1", partition=1), *committed("t1"), *committed("t2"),
        START, poll((0, "a1"), (1, "b1")), poll((0, "b2"), (1, "a2"), partition=1),
    ],
    Anomaly.G1C_WITH_WRITE_ORDER: mutual_reads(of_both=False),
}  # fmt: skip


@pytest.mark.parametrize("anomaly", Anomaly, ids=lambda anomaly: anomaly.name)
def test_each_anomaly_is_found_and_nothing_else(anomaly: Anomaly) -> None:
    results = {finding.anomaly for finding in check(HISTORIES_WITH_ANOMALIES[anomaly])}
    assert results == {anomaly}


def test_a_torn_transaction_whose_outcome_is_not_known_has_lost_a_write() -> None:
    """What a read_committed consumer saw of it says that it is committed."""
    history: list[Operation] = [
        send("a", 0, "t1"),
        send("b", 0, "t1", partition=1),
        EndRequest("p", "t1", True),
        send("c", 2, partition=1),
        poll((0, "a")),
        poll((2, "c"), partition=1),
    ]
    assert [finding.anomaly for finding in check(history)] == [Anomaly.LOST_WRITE]


def test_what_the_design_allows_is_reported_and_not_forbidden() -> None:
    for anomaly, history in HISTORIES_WITH_ANOMALIES.items():
        bad = {finding.anomaly for finding in forbidden(check(history))}
        assert bad == (set() if anomaly in ALLOWED else {anomaly})


def test_a_cycle_is_found_however_long_it_is() -> None:
    length = 20_000
    edges = {str(number): [str((number + 1) % length)] for number in range(length)}
    assert [len(cycle) for cycle in cycles(edges)] == [length]
    del edges["7"]
    assert cycles(edges) == []
