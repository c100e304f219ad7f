"""What a history says about transactions and about the order of each partition.

Belongs here: one pass over the operations, whose results `check` compares. The cost is linear in the history,
and n log n for the sorted offsets.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from tests.support.anomalies.history import Assign, End, EndRequest, Isolation, Operation, Poll, Send


class Outcome(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class TransactionFacts:
    """- `commit_requested_at`, `ended_at`: places in the history; None: not in it.
    - `confirmed`: the outcomes that the producer was given.
    """

    commit_requested_at: int | None = None
    confirmed: set[bool] = field(default_factory=set)
    is_read_committed: bool = False
    """Whether a read_committed consumer got a record of it."""

    @property
    def outcome(self) -> Outcome:
        """What the producer was given, or else what a read_committed consumer saw of it."""
        if True in self.confirmed:
            return Outcome.COMMITTED
        if False in self.confirmed:
            return Outcome.ABORTED
        return Outcome.COMMITTED if self.is_read_committed else Outcome.UNKNOWN


@dataclass(slots=True)
class LogOrder:
    """- `sends`: the write of each value. `transactions`: by name.
    - `offsets`: where each (partition, value) was seen or acknowledged.
    - `values`: what was seen or acknowledged at each (partition, offset).
    - `polled`: values that any consumer got; `polled_to`: the highest offset that one got, by partition.
    """

    sends: dict[str, Send] = field(default_factory=dict)
    transactions: dict[str, TransactionFacts] = field(default_factory=lambda: defaultdict(TransactionFacts))
    offsets: dict[tuple[int, str], set[int]] = field(default_factory=lambda: defaultdict(set))
    values: dict[tuple[int, int], set[str]] = field(default_factory=lambda: defaultdict(set))
    polled: set[tuple[int, str]] = field(default_factory=set)
    polled_to: dict[int, int] = field(default_factory=dict)
    _visible: dict[Isolation, dict[int, list[int]]] = field(default_factory=dict)

    @classmethod
    def of(cls, history: Sequence[Operation]) -> LogOrder:
        order = cls()
        for at, operation in enumerate(history):
            if isinstance(operation, Send):
                order._take_send(operation)
            elif isinstance(operation, EndRequest):
                facts = order.transactions[operation.transaction]
                if operation.is_commit and facts.commit_requested_at is None:
                    facts.commit_requested_at = at
            elif isinstance(operation, End):
                order.transactions[operation.transaction].confirmed.add(operation.is_commit)
        for operation in history:  # a record may be read before its producer is given the answer
            if isinstance(operation, Poll):
                order._take_poll(operation)
            else:
                assert isinstance(operation, Send | EndRequest | End | Assign)
        order._visible = {isolation: order._visible_offsets(isolation) for isolation in Isolation}
        return order

    def _take_send(self, send: Send) -> None:
        assert send.value not in self.sends, f"the value {send.value} was sent twice: values must be unique"
        self.sends[send.value] = send
        if send.offset is not None:
            self.offsets[send.partition, send.value].add(send.offset)
            self.values[send.partition, send.offset].add(send.value)

    def _take_poll(self, poll: Poll) -> None:
        for partition, offset, value in poll.records:
            self.offsets[partition, value].add(offset)
            self.values[partition, offset].add(value)
            self.polled.add((partition, value))
            self.polled_to[partition] = max(offset, self.polled_to.get(partition, -1))
            send = self.sends.get(value)
            if (
                poll.isolation is Isolation.READ_COMMITTED
                and send is not None
                and send.transaction is not None
            ):
                self.transactions[send.transaction].is_read_committed = True

    def outcome(self, send: Send) -> Outcome:
        """Whether a record counts."""
        if send.transaction is None:
            is_certain = send.is_acknowledged or (send.partition, send.value) in self.polled
            return Outcome.COMMITTED if is_certain else Outcome.UNKNOWN
        return self.transactions[send.transaction].outcome

    # --- Offsets that a consumer must not leave out ---

    def _visible_offsets(self, isolation: Isolation) -> dict[int, list[int]]:
        visible: dict[int, list[int]] = defaultdict(list)
        for (partition, value), offsets in self.offsets.items():
            send = self.sends.get(value)
            if send is None or send.partition != partition:
                continue
            is_committed = self.outcome(send) is Outcome.COMMITTED
            # A record of the log that does not count is known to stay there only if somebody has read it.
            is_in_log = is_committed or (partition, value) in self.polled
            if is_committed or (is_in_log and isolation is Isolation.READ_UNCOMMITTED):
                visible[partition] += offsets
        for result in visible.values():
            result.sort()
        return visible

    def skipped(self, isolation: Isolation, partition: int, after: int, before: int) -> int | None:
        """The first offset between two, both excluded, that a consumer had to be given; None: none."""
        visible = self._visible[isolation].get(partition, [])
        first = bisect_right(visible, after)
        return visible[first] if first < bisect_left(visible, before) else None
