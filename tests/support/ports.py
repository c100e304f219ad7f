"""Ports that belong to a test until it has ended."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    """A port of 127.0.0.1 that the kernel gives to nobody else in this block.

    Connections are refused until a server that sets SO_REUSEADDR listens there, as most do.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        yield port
