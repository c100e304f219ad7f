"""Wires between real sockets: whole, cut, mended, and with nobody at the other end."""

from __future__ import annotations

import os
import socket
import socketserver
import threading
from collections.abc import Iterator

import pytest
from tests.faults.network import Network
from tests.support.ports import own_ports
from tests.support.waiting import wait_until

SILENT_S = 0.3
ANSWER_S = 10.0


class Echo(socketserver.ThreadingTCPServer):
    """Sends everything back."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, port: int) -> None:
        self.connections: list[socket.socket] = []
        super().__init__(("127.0.0.1", port), self._Handler)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    class _Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            assert isinstance(self.server, Echo)
            self.server.connections.append(self.request)
            while data := self.request.recv(1024):
                self.request.sendall(data)

    def end(self) -> None:
        """As a process that is killed."""
        self.shutdown()
        self.server_close()
        self.hang_up()

    def hang_up(self) -> None:
        for connection in self.connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the other end was faster


@pytest.fixture
def ports() -> tuple[int, int]:
    """(of the wire, of the server behind it)"""
    first = own_ports(2)
    return first, first + 1


@pytest.fixture
def echo(ports: tuple[int, int]) -> Iterator[Echo]:
    server = Echo(ports[1])
    yield server
    server.end()


@pytest.fixture
def network(ports: tuple[int, int], echo: Echo) -> Iterator[Network]:
    """One wire between this process, "us", and "echo"."""
    with Network(lambda: {"us": os.getpid()}) as network:
        network.lay("echo", ports[0], lambda: ports[1])
        yield network


def connect(port: int) -> socket.socket:
    """A connection through the wire, as soon as that takes one."""

    def attempt() -> socket.socket | None:
        try:
            return socket.create_connection(("127.0.0.1", port), ANSWER_S)
        except ConnectionRefusedError:
            return None

    connection = wait_until(attempt, "the wire takes a connection")
    assert connection is not None
    return connection


def assert_echoes(connection: socket.socket, data: bytes) -> None:
    connection.sendall(data)
    assert connection.recv(1024) == data


def assert_silent(connection: socket.socket) -> None:
    connection.settimeout(SILENT_S)
    with pytest.raises(TimeoutError):
        connection.recv(1024)
    connection.settimeout(ANSWER_S)


def test_a_whole_wire_carries_both_ways(network: Network, ports: tuple[int, int]) -> None:
    with connect(ports[0]) as connection:
        assert_echoes(connection, b"a")


def test_a_cut_is_silent_and_what_was_sent_arrives_when_it_is_mended(
    network: Network, ports: tuple[int, int]
) -> None:
    with connect(ports[0]) as connection:
        assert_echoes(connection, b"a")
        network.cut("us", "echo")
        connection.sendall(b"b")
        assert_silent(connection)
        network.mend("us", "echo")
        assert connection.recv(1024) == b"b"


def test_through_a_cut_a_new_connection_is_silent_too(network: Network, ports: tuple[int, int]) -> None:
    connect(ports[0]).close()
    network.cut("us", "echo")
    with connect(ports[0]) as connection:
        connection.sendall(b"a")
        assert_silent(connection)
        network.mend("us", "echo")
        assert connection.recv(1024) == b"a"


def test_through_a_cut_nobody_hears_of_an_end(network: Network, ports: tuple[int, int], echo: Echo) -> None:
    with connect(ports[0]) as connection:
        assert_echoes(connection, b"a")
        network.cut("us", "echo")
        echo.hang_up()
        assert_silent(connection)


def test_a_cut_between_others_does_not_matter(network: Network, ports: tuple[int, int]) -> None:
    network.cut("them", "echo")
    with connect(ports[0]) as connection:
        assert_echoes(connection, b"a")


def test_a_server_that_ends_is_as_dead_behind_the_wire(
    network: Network, ports: tuple[int, int], echo: Echo
) -> None:
    def is_refused() -> bool:
        try:
            socket.create_connection(("127.0.0.1", ports[0]), ANSWER_S).close()
        except ConnectionRefusedError:
            return True
        return False

    with connect(ports[0]) as connection:
        assert_echoes(connection, b"a")
        echo.end()
        assert connection.recv(1024) == b""
        wait_until(is_refused, "connections are refused")

    again = Echo(ports[1])
    try:
        with connect(ports[0]) as connection:
            assert_echoes(connection, b"b")
    finally:
        again.end()
