"""Ports of 127.0.0.1 for the servers of a local stack: which are free, and keeping them until they are used.

Lives here: sockets that are bound and never listen. Listening is the servers' own affair.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from typing import Final

from mainstem.errors import StackError

# Below the range that Linux gives to outgoing connections (32768 on), so that none of those takes the port
# between two runs of a server.
_FIRST: Final = 10_240
_END: Final = 32_768
# Not the generator that programs seed: two that were given the same seed would draw the same ports.
_draws: Final = random.SystemRandom()


def port_is_free(port: int) -> bool:
    """Whether a server could listen at `port` now."""
    held = hold_port(port)
    if held is None:
        return False
    held.close()
    return True


def hold_port(port: int) -> socket.socket | None:
    """Keep `port` for a server that is yet to start, or is down for a while; None if another has it.

    The socket never listens, so a server that sets SO_REUSEADDR, as servers do, can listen while it is open,
    and without one a connection is refused. `free_ports` and `hold_free_ports` don't give it to another.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT is no use
    try:
        held.bind(("127.0.0.1", port))
    except OSError:
        held.close()
        return None
    return held


def hold_free_ports(count: int = 1) -> tuple[int, list[socket.socket]]:
    """Keep `count` consecutive ports that nobody uses or keeps, as `hold_port` does.

    The answer is the first of them, and a socket for each.

    Raises:
        StackError: none were found.
    """
    for _ in range(1000):
        first = _draws.randrange(_FIRST, _END - count + 1)
        with ExitStack() as unless_all:
            held = [unless_all.enter_context(socket.socket()) for _ in range(count)]
            try:
                for port, each in enumerate(held, first):
                    each.bind(("127.0.0.1", port))  # without SO_REUSEADDR: fails where another is bound
            except OSError:
                continue
            for each in held:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # from now on, beside a server
            unless_all.pop_all()
            return first, held
    raise StackError(f"No {count} consecutive free ports were found on 127.0.0.1.")


def free_ports(count: int = 1) -> int:
    """The first of `count` consecutive ports that nobody uses or keeps now.

    Raises:
        StackError: none were found.
    """
    first, held = hold_free_ports(count)
    for each in held:
        each.close()
    return first
