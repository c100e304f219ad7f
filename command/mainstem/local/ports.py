"""Ports of 127.0.0.1 for the servers of a local stack: finding free ones and reserving them until use.

Sockets here are bound and never listen.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from typing import Final

from mainstem.errors import StackError

# Below the ephemeral range of Linux (32768 and above), so that no outgoing connection takes the port between
# two runs of a server.
_FIRST: Final = 10_240
_END: Final = 32_768
# Not the global generator: two programs that seed it alike would draw the same ports.
_draws: Final = random.SystemRandom()


def port_is_free(port: int) -> bool:
    """Whether a server could listen on `port` now."""
    held = hold_port(port)
    if held is None:
        return False
    held.close()
    return True


def hold_port(port: int) -> socket.socket | None:
    """Reserve `port` for a server that starts later or is down for a while; None if the port is taken.

    A server that sets SO_REUSEADDR, as most do, can listen while the returned socket is open. Until then
    connections are refused. `free_ports` and `hold_free_ports` do not return a reserved port.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT is not taken
    try:
        held.bind(("127.0.0.1", port))
    except OSError:
        held.close()
        return None
    return held


def hold_free_ports(count: int = 1) -> tuple[int, list[socket.socket]]:
    """Reserve `count` consecutive free ports, as `hold_port` does.

    Returns:
        The first port, and a socket for each port.

    Raises:
        StackError: no such range was found.
    """
    for _ in range(1000):
        first = _draws.randrange(_FIRST, _END - count + 1)
        with ExitStack() as unless_all:
            held = [unless_all.enter_context(socket.socket()) for _ in range(count)]
            try:
                for port, holder in enumerate(held, first):
                    holder.bind(("127.0.0.1", port))  # without SO_REUSEADDR: fails on a reserved port
            except OSError:
                continue
            for holder in held:
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server may now bind it too
            unless_all.pop_all()
            return first, held
    raise StackError(f"127.0.0.1 has no {count} consecutive free ports: stop other servers, then try again.")


def free_ports(count: int = 1) -> int:
    """The first of `count` consecutive ports that are free and not reserved now.

    Raises:
        StackError: no such range was found.
    """
    first, held = hold_free_ports(count)
    for holder in held:
        holder.close()
    return first
