"""Finds the anomalies of a history. Pure; the time is n log n in the number of records.

What is assumed, so that a finding is a fault and not a gap of the history: after all producers have ended, at
least one consumer has read every partition from its start to its end, and nothing was deleted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from tests.support.anomalies.anomalies import Anomaly, Finding
from tests.support.anomalies.cycles import cycles
from tests.support.anomalies.history import Assign, Isolation, Operation, Poll, Send
from tests.support.anomalies.log_order import LogOrder, Outcome

Edges = dict[str, set[str]]
CYCLE_NAMES_MAX = 6


def check(history: Sequence[Operation], compacted: Collection[int] = ()) -> list[Finding]:
    """All anomalies, also those that Kafka's design allows (`Finding.is_allowed`).

    Of `compacted` partitions records may be missing, so what was not read there is not reported.
    """
    order = LogOrder.of(history)
    return [
        *_outcomes(order),
        *_placements(order),
        *_missing(order, compacted),
        *_reads(history, order),
        *_consumers(history, order, compacted),
        *_producers(history),
        *_cycles(history, order),
    ]


def forbidden(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if not finding.is_allowed]


# --- Records ---


def _outcomes(order: LogOrder) -> Iterator[Finding]:
    for name, facts in order.transactions.items():
        if len(facts.confirmed) > 1:
            yield Finding(Anomaly.TWO_OUTCOMES, name)


def _placements(order: LogOrder) -> Iterator[Finding]:
    for (partition, value), offsets in order.offsets.items():
        if len(offsets) > 1:
            yield Finding(Anomaly.DUPLICATE, f"{value} in {partition} at {sorted(offsets)}")
    for (partition, offset), values in order.values.items():
        if len(values) > 1:
            yield Finding(Anomaly.INCONSISTENT_OFFSETS, f"{partition}@{offset} is {sorted(values)}")


def _missing(order: LogOrder, compacted: Collection[int]) -> Iterator[Finding]:
    for send in order.sends.values():
        place = send.partition, send.value
        if send.partition in compacted or place in order.polled:
            continue
        if order.outcome(send) is not Outcome.COMMITTED:
            continue
        is_passed = send.offset is not None and send.offset < order.polled_to.get(send.partition, -1)
        yield Finding(
            Anomaly.LOST_WRITE if is_passed else Anomaly.UNSEEN,
            f"{send.value} of {send.transaction or send.process} in {send.partition}@{send.offset}",
        )


def _reads(history: Sequence[Operation], order: LogOrder) -> Iterator[Finding]:
    for at, poll in enumerate(history):
        if not isinstance(poll, Poll):
            continue
        is_committed = poll.isolation is Isolation.READ_COMMITTED
        for record in poll.records:
            send = order.sends.get(record.value)
            text = f"{record.value} in {record.partition}@{record.offset} by {poll.process}"
            if send is None or send.partition != record.partition:
                yield Finding(Anomaly.UNSENT_READ, text)
                continue
            if send.transaction is None or send.transaction == poll.transaction:
                continue
            facts = order.transactions[send.transaction]
            requested_at = facts.commit_requested_at
            if facts.outcome is Outcome.ABORTED:
                anomaly = Anomaly.ABORTED_READ if is_committed else Anomaly.UNCOMMITTED_ABORTED_READ
                yield Finding(anomaly, f"{text}, of {send.transaction}")
            elif requested_at is None or requested_at > at:
                anomaly = Anomaly.PRECOMMITTED_READ if is_committed else Anomaly.UNCOMMITTED_PRECOMMITTED_READ
                yield Finding(anomaly, f"{text}, of {send.transaction}")


# --- Clients ---


def _consumers(
    history: Sequence[Operation], order: LogOrder, compacted: Collection[int]
) -> Iterator[Finding]:
    last_offsets: dict[str, dict[int, int]] = defaultdict(dict)
    for operation in history:
        if isinstance(operation, Assign):
            last_offsets[operation.process] = {
                partition: position - 1
                for partition, position in operation.positions.items()
                if position is not None
            }
        elif isinstance(operation, Poll):
            yield from _polled(operation, last_offsets[operation.process], order, compacted)


def _polled(
    poll: Poll, last_offsets: dict[int, int], order: LogOrder, compacted: Collection[int]
) -> Iterator[Finding]:
    """Compare a poll with the positions before it, which it moves."""
    partitions: set[int] = set()
    for partition, offset, value in poll.records:
        is_inner = partition in partitions
        partitions.add(partition)
        last = last_offsets.get(partition)
        last_offsets[partition] = offset
        if last is None:
            continue
        if offset <= last:
            anomaly = Anomaly.INT_NONMONOTONIC_POLL if is_inner else Anomaly.NONMONOTONIC_POLL
            yield Finding(anomaly, f"{poll.process}: {value} in {partition}@{offset} after {last}")
            continue
        if partition in compacted:
            continue
        skipped = order.skipped(poll.isolation, partition, last, offset)
        if skipped is not None:
            values = sorted(order.values[partition, skipped])
            yield Finding(
                Anomaly.INT_POLL_SKIP if is_inner else Anomaly.POLL_SKIP,
                f"{poll.process}: from {partition}@{last} to {offset}, without {values} at {skipped}",
            )


def _producers(history: Sequence[Operation]) -> Iterator[Finding]:
    last_sends: dict[tuple[str, int], Send] = {}
    for send in history:
        if not isinstance(send, Send) or send.offset is None:
            continue
        last = last_sends.get((send.process, send.partition))
        last_sends[send.process, send.partition] = send
        if last is None or last.offset is None:
            continue
        is_inner = send.transaction is not None and send.transaction == last.transaction
        text = f"{send.process}: {last.value} at {last.offset}, then {send.value} at {send.offset}"
        if send.offset <= last.offset:
            anomaly = Anomaly.INT_NONMONOTONIC_SEND if is_inner else Anomaly.NONMONOTONIC_SEND
            yield Finding(anomaly, text)
        elif is_inner and send.offset > last.offset + 1:
            yield Finding(Anomaly.INT_SEND_SKIP, text)


# --- Cycles ---


def _cycles(history: Sequence[Operation], order: LogOrder) -> Iterator[Finding]:
    writes, reads = _write_edges(order), _read_edges(history, order)
    both: Edges = defaultdict(set)
    for edges in (writes, reads):
        for node, successors in edges.items():
            both[node] |= successors
    read_cycles = cycles(reads)
    write_cycles = cycles(writes)
    yield from (Finding(Anomaly.G1C, _names(cycle)) for cycle in read_cycles)
    yield from (Finding(Anomaly.G0, _names(cycle)) for cycle in write_cycles)
    for cycle in cycles(both):
        if cycle not in read_cycles and cycle not in write_cycles:
            yield Finding(Anomaly.G1C_WITH_WRITE_ORDER, _names(cycle))


def _names(cycle: Sequence[str]) -> str:
    more = len(cycle) - CYCLE_NAMES_MAX
    return " ".join(cycle[:CYCLE_NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def _write_edges(order: LogOrder) -> Mapping[str, set[str]]:
    """From each committed transaction to the one whose record is next in a partition."""
    edges: Edges = defaultdict(set)
    last: dict[int, str] = {}
    for partition, offset in sorted(order.values):
        for value in order.values[partition, offset]:
            send = order.sends.get(value)
            if send is None or send.transaction is None or order.outcome(send) is not Outcome.COMMITTED:
                continue
            before = last.get(partition)
            if before is not None and before != send.transaction:
                edges[before].add(send.transaction)
            last[partition] = send.transaction
    return edges


def _read_edges(history: Sequence[Operation], order: LogOrder) -> Mapping[str, set[str]]:
    """From each committed transaction to those that read its records with read_committed."""
    edges: Edges = defaultdict(set)
    for poll in history:
        if not isinstance(poll, Poll) or poll.transaction is None:
            continue
        if poll.isolation is not Isolation.READ_COMMITTED:
            continue
        for record in poll.records:
            send = order.sends.get(record.value)
            if send is not None and send.transaction not in (None, poll.transaction):
                assert send.transaction is not None
                edges[send.transaction].add(poll.transaction)
    return edges
