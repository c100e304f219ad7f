"""Consume orders, transform them, produce the result: each transaction with the offsets that it consumed.

In scope: the loop, and what it needs of a client library. Copies go to `enriched-orders` with the value
ORDER@TRANSACTION. One transaction of five is aborted, and its orders are processed again.

Exactly once depends on the application, too (KIP-447):

- A consumer gives partitions up only inside of `poll`, and no transaction is open then. What it had polled of
  them is not processed.
- Offsets are sent with the member and the generation for which they were polled, which the group's
  coordinator checks. If it refuses them, the transaction is aborted.
- After an abort the consumer goes back to the committed offsets of all its partitions.
- A commit whose outcome is not known is repeated by the same call. If it stays unknown, and if the producer
  is fenced or fails for good, the process ends. The next one waits for the outcome in `initialize`, and
  begins at the committed offsets.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping
from itertools import count
from typing import Final, NamedTuple, Protocol

GROUP: Final = "enrichers"
ABORTED_SHARE: Final = 0.2
ORDERS_MAX: Final = 50
"""In one transaction."""
POLL_SECONDS: Final = 0.1
DWELLING_SHARE: Final = 0.1
DWELL_SECONDS_MAX: Final = 0.3
ANSWER_SECONDS: Final = 60.0
"""How long a request may be repeated: longer than any election."""
TRANSACTION_TIMEOUT_MS: Final = 10_000
SESSION_MS: Final = 5_000
"""Both are longer than a process waits for a busy CPU: an instance that never got through would end again and
again."""
HEARTBEAT_MS: Final = 500


class Order(NamedTuple):
    partition: int
    offset: int
    key: str
    value: str


class TransactionMustAbort(Exception):
    """The client library allows nothing but the end of the transaction."""


class Clients(Protocol):
    """A producer and a consumer of one library. Offsets are by partition of `orders`."""

    def initialize(self) -> None: ...

    def poll(self) -> list[Order]:
        """Some orders of the partitions that the consumer has now."""
        ...

    def begin(self) -> None: ...

    def send(self, partition: int, key: str, value: str) -> None: ...

    def send_offsets(self, offsets: Mapping[int, int]) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def reset_positions(self) -> None:
        """Go back to the committed offset of each partition that the consumer has now.

        An error ends the process: a consumer that goes on elsewhere skips orders, or takes them twice.
        """
        ...


def run(clients: Clients, name: str, chance: random.Random) -> None:
    """Process orders until an error ends it."""
    clients.initialize()
    for number in count():
        while not (orders := clients.poll()):
            pass
        dwell(chance)
        try:
            clients.begin()
            for order in orders:
                clients.send(order.partition, order.key, f"{order.value}@{name}/{number}")
            dwell(chance)
            clients.send_offsets({order.partition: order.offset + 1 for order in orders})
            # The first one is aborted in any case, so that each run has aborted records.
            if number > 0 and chance.random() >= ABORTED_SHARE:
                clients.commit()
                continue
        except TransactionMustAbort as reason:
            sys.stderr.write(f"{name}/{number} is aborted: {reason.__cause__}\n")
        clients.abort()
        # Not to where these orders began: another instance may have had the partitions meanwhile.
        clients.reset_positions()


def dwell(chance: random.Random) -> None:
    """Wait sometimes, as work of an application would: more of the faults come between two requests."""
    if chance.random() < DWELLING_SHARE:
        time.sleep(chance.random() * DWELL_SECONDS_MAX)
