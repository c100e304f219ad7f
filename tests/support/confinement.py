"""Confines a unit test to its own process: it starts no other, and reaches no server that is not its own.

A server of the test itself listens at a port that the kernel chose (port 0), so nobody else can have it. A
port that was looked up and released may be taken when it is used; one that is held (`held_port`) cannot.

Calls of Python are checked, and those of uvloop; what foreign code does by itself, as librdkafka, is not.
"""

from __future__ import annotations

import functools
import multiprocessing.util
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from typing import Any, Final

import uvloop

_WHERE: Final = (
    "Tests in tests/unit stay in their process. Play the other side in the test, or move the test to"
    " tests/interop; one that must stay beside its module gets the marker `processes`."
)
_PROCESSES: Final = (
    (subprocess.Popen, "__init__"),
    (os, "fork"),
    (os, "forkpty"),
    (os, "posix_spawn"),
    (os, "posix_spawnp"),
    (os, "system"),
    (multiprocessing.util, "spawnv_passfds"),
    (uvloop.Loop, "subprocess_exec"),
    (uvloop.Loop, "subprocess_shell"),
)


class LeavesItsProcess(Exception):
    """A unit test starts a process or uses the network."""


class Confinement:
    """Checks the calls of one test at a time; between tests everything is allowed."""

    def __init__(self) -> None:
        self._is_on = False
        self._other_threads: frozenset[int | None] = frozenset()
        self._own_ports: set[int] = set()
        self._refused: list[str] = []

    def begin(self) -> None:
        """From now on, calls that leave the process raise `LeavesItsProcess`."""
        self._refused = []
        # Those of clients that an earlier test in tests/interop shares with later ones.
        self._other_threads = frozenset(thread.ident for thread in threading.enumerate())
        self._other_threads -= {threading.get_ident()}
        self._is_on = True

    def end(self) -> list[str]:
        """Allow everything again; the messages of what was refused."""
        self._is_on = False
        refused, self._refused = self._refused, []
        return refused

    def install(self) -> None:
        """Replace the functions that start processes or use addresses, for as long as the process lives."""
        for owner, name in _PROCESSES:
            _replace(owner, name, self._always_refused(f"{owner.__name__}.{name}"))
        _replace(socket.socket, "bind", self._bind)
        for name in ("connect", "connect_ex"):
            _replace(socket.socket, name, self._connect)
        for name in ("create_connection", "create_server"):
            _replace(uvloop.Loop, name, self._of_uvloop)
        for name in ("create_unix_connection", "create_unix_server", "create_datagram_endpoint"):
            _replace(uvloop.Loop, name, self._always_refused(f"uvloop.Loop.{name}"))

    def _refuse(self, what: str) -> None:
        message = f"{what}: {_WHERE}"
        self._refused.append(message)
        raise LeavesItsProcess(message)

    def _checks_connections(self) -> bool:
        return self._is_on and threading.get_ident() not in self._other_threads

    def _always_refused(self, called: str) -> Callable[..., Any]:
        def checked(original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            if self._is_on:
                self._refuse(called)
            return original(*arguments, **options)

        return checked

    def _bind(self, original: Callable[..., Any], bound: socket.socket, address: Any) -> Any:
        if not self._checks_connections():
            return original(bound, address)
        port = _port_of(address)
        if port != 0 and port not in self._own_ports:
            self._refuse(f"A server at {address}, which is not port 0")
        result = original(bound, address)
        self._own_ports.add(bound.getsockname()[1])
        return result

    def _connect(self, original: Callable[..., Any], connecting: socket.socket, address: Any) -> Any:
        if self._checks_connections() and _port_of(address) not in self._own_ports:
            self._refuse(f"A connection to {address}, where no server of the test is")
        return original(connecting, address)

    async def _of_uvloop(
        self,
        original: Callable[..., Any],
        loop: uvloop.Loop,
        factory: Any,
        host: Any = None,
        port: int | None = None,
        **options: Any,
    ) -> Any:
        is_server = original.__name__ == "create_server"
        is_own = port in self._own_ports or (is_server and port == 0) or options.get("sock") is not None
        if not is_own and self._checks_connections():
            self._refuse(f"uvloop.Loop.{original.__name__} with {host}:{port}")
        result = await original(loop, factory, host, port, **options)
        if is_server:
            self._own_ports |= {listening.getsockname()[1] for listening in result.sockets}
        return result


CONFINEMENT: Final = Confinement()
"""The one of this process; tests/unit/conftest.py installs it."""


def _replace(owner: Any, name: str, checked: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def replacement(*arguments: Any, **options: Any) -> Any:
        return checked(original, *arguments, **options)

    setattr(owner, name, replacement)


def _port_of(address: Any) -> int | None:
    return address[1] if isinstance(address, tuple) else None  # a path of a Unix socket has none
