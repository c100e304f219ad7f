"""What clients did and saw, as a list of operations: the material of `check`.

Values are unique: every attempt to write something has a value of its own. Operations of one process are in
the order in which it made them; of several processes, an operation is listed when its answer has come, except
for `EndRequest`, which is listed before the request is sent. So a poll that is listed before an `EndRequest`
had its records before the outcome was requested.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple


class Isolation(Enum):
    """Kafka's `isolation.level` of a consumer."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class Record(NamedTuple):
    """A record as a consumer got it."""

    partition: int
    offset: int
    value: str


class Send(NamedTuple):
    """One record of a producer; of one process and partition in the order of sending.

    - `transaction`: None outside transactions.
    - `offset`: where it is in the log, if the acknowledgement said so.
    - `is_acknowledged`: False if the producer has no answer: the record may be in the log or not. Inside a
      transaction the outcome of the transaction counts instead.
    """

    process: str
    transaction: str | None
    partition: int
    value: str
    offset: int | None = None
    is_acknowledged: bool = True


class Poll(NamedTuple):
    """Records that one call of a consumer returned, in its order; `transaction` as in `Send`."""

    process: str
    isolation: Isolation
    records: tuple[Record, ...]
    transaction: str | None = None


class Assign(NamedTuple):
    """A consumer goes on somewhere else: by `assign`, `seek` or a rebalance.

    `positions` are all partitions that it reads from now on, each with the offset it begins at, or None if
    that is not known.
    """

    process: str
    positions: Mapping[int, int | None]


class EndRequest(NamedTuple):
    """A producer is about to request the end of a transaction."""

    process: str
    transaction: str
    is_commit: bool


class End(NamedTuple):
    """The end of a transaction is confirmed. Without one, the outcome is not known."""

    process: str
    transaction: str
    is_commit: bool


Operation = Send | Poll | Assign | EndRequest | End
