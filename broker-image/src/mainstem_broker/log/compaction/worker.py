"""The process that compacts: `python -m mainstem_broker.log.compaction.worker`, started by the broker.

A pass over a log is minutes of decoding and hashing, which would take the interpreter from the broker's loop.
So jobs come as pickles on standard input, one at a time, and results leave on standard output: each group as
it is finished, and the end of the pass or why there is none. The end of the input ends the process, and so
does the end of the broker.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Iterator
from typing import BinaryIO, Final

from mainstem_broker.compiled import use_compiled

if __name__ == "__main__":
    use_compiled()  # before the first of those modules is imported

from mainstem_broker.errors import ProtocolError
from mainstem_broker.log.compaction.compaction_pass import run
from mainstem_broker.log.compaction.messages import LENGTH, CompactionFailed, Message, Order

NICENESS: Final = 10
"""Requests come first; what is left of the machine compacts."""


def main() -> None:
    parent = os.getppid()
    os.nice(NICENESS)
    orders, results = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints does not get between messages
    while (order := _receive(orders)) is not None:
        for message in _carry_out(order, parent):
            content = pickle.dumps(message)
            results.write(LENGTH.pack(len(content)) + content)
            results.flush()


def _receive(orders: BinaryIO) -> Order | None:
    prefix = orders.read(LENGTH.size)
    if len(prefix) < LENGTH.size:
        return None
    order: Order = pickle.loads(orders.read(*LENGTH.unpack(prefix)))
    return order


def _carry_out(order: Order, parent: int) -> Iterator[Message]:
    throttle = _Throttle(order.bytes_per_second, parent)
    try:
        yield from run(order.job, throttle.note_bytes)
    except OSError as error:
        yield CompactionFailed(str(error), error.errno or 0)
    except ProtocolError as error:
        yield CompactionFailed(str(error), 0)


class _Throttle:
    """Holds reading and writing to a rate, and ends the process when the broker is gone."""

    def __init__(self, bytes_per_second: float, parent: int) -> None:
        self._bytes_per_second = bytes_per_second
        self._parent = parent
        self._started_s = time.monotonic()
        self._bytes = 0

    def note_bytes(self, count: int) -> None:
        self._bytes += count
        due_s = self._started_s + self._bytes / self._bytes_per_second
        if (left_s := due_s - time.monotonic()) > 0:
            time.sleep(left_s)
        # After the pause: the next broker may be writing to the same directory by then.
        if os.getppid() != self._parent:
            raise SystemExit("The broker has ended.")


if __name__ == "__main__":
    main()
