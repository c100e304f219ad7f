"""Ports of 127.0.0.1 that belong to a test: nobody else is given them, and a server of its may listen there.

Drawing a port and releasing it gives it to whoever draws next. Sockets here stay bound and never listen, so
connections are refused until a server that sets SO_REUSEADDR listens, as all that tests start do.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mainstem.local.ports import hold_free_ports

_HELD: Final[list[socket.socket]] = []


@contextmanager
def held_port() -> Iterator[int]:
    """A port that the kernel chooses, for this block."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        yield port


def own_ports(count: int = 1) -> int:
    """The first of `count` consecutive ports, held until this process ends: its servers may be restarted."""
    first, held = hold_free_ports(count)
    _HELD.extend(held)
    return first
