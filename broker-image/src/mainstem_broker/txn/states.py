"""The states of a transactional id, and which state may follow which. Pure.

    Empty ----------> Ongoing --> PrepareCommit --> CompleteCommit
                       |  ^              |
                       |  '-- Complete* -'   (the next transaction)
                       '------> PrepareAbort ---> CompleteAbort

From Empty and the two Complete states a producer may be initialized (Empty again, with a higher epoch) and
the id may expire (Dead: the record is deleted). An abort or commit without partitions goes to its Prepare
state directly.

Source: KIP-98 and Apache Kafka's `TransactionState`, whose numbers and names these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final


class State(IntEnum):
    """The numbers are those of the records in `__transaction_state`."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7
    """Only read: Apache Kafka keeps it in memory; here a fenced transaction goes to PREPARE_ABORT at once."""

    @property
    def title(self) -> str:
        """The name that Kafka's tools show, such as "PrepareCommit"."""
        return self.name.title().replace("_", "")

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided and the markers are being written."""
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open: a producer may be initialized, and the id may expire."""
        return self in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


STATE_TITLES: Final = {state.title: state for state in State}

PREDECESSORS: Final[Mapping[State, frozenset[State]]] = {
    State.EMPTY: frozenset((State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)),
    State.ONGOING: frozenset((State.EMPTY, State.ONGOING, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)),
    State.PREPARE_COMMIT: frozenset(
        (State.ONGOING, State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
    ),
    State.PREPARE_ABORT: frozenset((State.ONGOING, State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)),
    State.COMPLETE_COMMIT: frozenset((State.PREPARE_COMMIT,)),
    State.COMPLETE_ABORT: frozenset((State.PREPARE_ABORT,)),
}
"""The states that each state may follow."""
