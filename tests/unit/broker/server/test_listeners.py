from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Iterator
from typing import Self

import pytest
from tests.unit.broker.server.peers import Script, frame_of, run, until

from mainstem_broker.cluster.znodes import Endpoint
from mainstem_broker.config import BrokerConfig
from mainstem_broker.errors import StartupError
from mainstem_broker.server import listeners as module
from mainstem_broker.server.listeners import Listener, SocketOptions, parse_listeners

OPTIONS = SocketOptions(-1, -1, 50, 1_000_000)


def parsed(**settings: str) -> list[tuple[Endpoint, Endpoint]]:
    """Underscores stand for dots."""
    static = {"broker.id": "1", "zookeeper.connect": "z:2181"}
    return parse_listeners(
        BrokerConfig(static | {name.replace("_", "."): value for name, value in settings.items()})
    )


# --- Settings ---


def test_without_advertised_listeners_the_bound_ones_are_told() -> None:
    endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092)
    assert parsed(listeners="PLAINTEXT://127.0.0.1:9092") == [(endpoint, endpoint)]


def test_an_empty_host_listens_everywhere_and_tells_the_hosts_name() -> None:
    ((bound, told),) = parsed(listeners="PLAINTEXT://:9092")
    assert bound.host == ""
    assert told.host == socket.gethostname()


def test_each_listener_is_told_under_its_own_address_whatever_the_order() -> None:
    pairs = parsed(
        listeners="internal://:9092, EXTERNAL://[::1]:9093",
        advertised_listeners="EXTERNAL://k.example:19093,INTERNAL://10.0.0.1:9092",
        listener_security_protocol_map="internal:plaintext,EXTERNAL:PLAINTEXT",
    )
    assert [(bound.listener, bound.host, bound.port) for bound, _ in pairs] == [
        ("INTERNAL", "", 9092),
        ("EXTERNAL", "::1", 9093),
    ]
    assert [(told.host, told.port) for _, told in pairs] == [("10.0.0.1", 9092), ("k.example", 19093)]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"listeners": "9092"}, "listeners has '9092'; write it as NAME://host:port"),
        ({"listeners": "PLAINTEXT://h"}, "write it as NAME://host:port"),
        ({"listeners": "PLAINTEXT://h:x"}, "write it as NAME://host:port"),
        ({"listeners": "PLAINTEXT://h:70000"}, "write it as NAME://host:port"),
        ({"listeners": ""}, "write it as NAME://host:port"),
        ({"listeners": "OTHER://h:1"}, "OTHER has no security protocol: add it to"),
        ({"listeners": "SSL://h:1"}, "SSL asks for SSL; only PLAINTEXT is served"),
        ({"advertised_listeners": "x"}, "advertised.listeners has 'x'"),
        (
            {"listeners": "PLAINTEXT://h:1", "advertised_listeners": "SSL://h:1"},
            "PLAINTEXT is missing from advertised.listeners",
        ),
        ({"listener_security_protocol_map": "PLAINTEXT"}, "has 'PLAINTEXT'; write it as NAME:PROTOCOL"),
    ],
)
def test_listeners_that_cannot_be_are_told_with_what_to_change(settings: dict[str, str], reason: str) -> None:
    with pytest.raises(StartupError, match=reason.replace(".", r"\.")):
        parsed(**settings)


# --- Binding ---


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def test_a_port_that_is_taken_is_told_by_its_number(taken_port: int) -> None:
    async def test() -> None:
        with pytest.raises(StartupError, match=f"Port {taken_port} is taken: stop what listens there"):
            Listener(Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", taken_port), OPTIONS, lambda: True)

    run(test())


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("192.0.2.1", r"Cannot listen on 192\.0\.2\.1:9092 \(.+\): change listeners"),
        ("no-such-host.invalid", r"Cannot listen on no-such-host\.invalid:9092 \((?!Unknown error).+\)"),
    ],
)
def test_an_address_that_is_not_ours_is_told_with_the_reason(host: str, reason: str) -> None:
    async def test() -> None:
        with pytest.raises(StartupError, match=reason):
            Listener(Endpoint("PLAINTEXT", "PLAINTEXT", host, 9092), OPTIONS, lambda: True)

    run(test())


# --- Accepting ---


class Listening:
    """A listener on a free port of loopback, started."""

    def __init__(
        self, may_accept: Callable[[], bool] = lambda: True, options: SocketOptions = OPTIONS
    ) -> None:
        self.listener = Listener(Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 0), options, may_accept)
        self.address = self.listener._socket.getsockname()
        self.listener.listen()
        self.listener.start(Script().handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()

    async def ask(self, text: str) -> bytes:
        """Connect, ask, and read until an answer or the end has come; leaves the connection open."""
        reader, self.writer = await asyncio.open_connection(*self.address)
        self.writer.write(frame_of(text.encode()))
        try:
            size = int.from_bytes(await reader.readexactly(4))
            return await reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return b""

    def hang_up(self) -> None:
        self.writer.close()


def test_clients_are_refused_before_the_start() -> None:
    async def test() -> None:
        listener = Listener(Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 0), OPTIONS, lambda: True)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*listener._socket.getsockname())
        listener.close()

    run(test())


def test_clients_that_come_between_listening_and_the_start_wait_and_are_served_then() -> None:
    async def test() -> None:
        listener = Listener(Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 0), OPTIONS, lambda: True)
        listener.listen()
        reader, writer = await asyncio.open_connection(*listener._socket.getsockname())
        writer.write(frame_of(b"echo early"))
        assert not listener.connections
        listener.start(Script().handle)
        size = int.from_bytes(await reader.readexactly(4))
        assert await reader.readexactly(size) == b"early"
        writer.close()
        listener.close()

    run(test())


def test_a_client_is_served_and_forgotten_when_it_goes() -> None:
    async def test() -> None:
        with Listening() as listening:
            assert await listening.ask("echo hello") == b"hello"
            assert len(listening.listener.connections) == 1
            listening.hang_up()
            await until(lambda: not listening.listener.connections)

    run(test())


def test_accepted_sockets_send_at_once_and_have_the_buffers_of_the_settings() -> None:
    async def test() -> None:
        with Listening(options=SocketOptions(50_000, 60_000, 5, 1000)) as listening:
            await listening.ask("echo x")
            (connection,) = listening.listener.connections
            accepted = connection._socket
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 100_000, "Linux doubles it"
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 120_000
            listening.hang_up()

    run(test())


def test_beyond_max_connections_new_ones_are_closed_and_old_ones_stay() -> None:
    async def test() -> None:
        allowed = [True, False]
        with Listening(lambda: allowed.pop(0)) as listening:
            assert await listening.ask("echo 1") == b"1"
            first = listening.writer
            assert await listening.ask("echo 2") == b""
            assert len(listening.listener.connections) == 1
            first.close()
            listening.hang_up()

    run(test())


def test_without_file_descriptors_accepting_pauses_instead_of_spinning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ACCEPT_RETRY_S", 0.05)

    async def test() -> None:
        with Listening() as listening:
            real = listening.listener._socket
            failures: list[int] = []

            class Exhausted:
                def __getattr__(self, name: str) -> object:
                    return getattr(real, name)

                def accept(self) -> tuple[socket.socket, object]:
                    if len(failures) < 2:
                        failures.append(1)
                        raise OSError(errno.EMFILE, "Too many open files")
                    return real.accept()

            listening.listener._socket = Exhausted()  # type: ignore[assignment]  # stands in for the socket
            begun = asyncio.get_running_loop().time()
            assert await listening.ask("echo at last") == b"at last"
            assert asyncio.get_running_loop().time() - begun >= 0.09, "two pauses"
            assert len(failures) == 2
            listening.hang_up()

    run(test())


def test_idle_connections_are_closed_and_those_that_wait_for_an_answer_are_not() -> None:
    async def test() -> None:
        with Listening() as listening:
            await listening.ask("echo idle")
            idle = listening.writer
            waiting = asyncio.create_task(listening.ask("later x"))
            await until(lambda: sum(c.requests_under_way for c in listening.listener.connections) == 1)
            listening.listener.close_idle(60)
            assert len(listening.listener.connections) == 2
            await asyncio.sleep(0.01)
            listening.listener.close_idle(0.005)
            (left,) = listening.listener.connections
            assert left.requests_under_way == 1
            idle.close()
            left.close()
            assert await waiting == b""
            listening.hang_up()

    run(test())


def test_to_close_is_to_refuse_and_to_hang_up_on_everyone() -> None:
    async def test() -> None:
        with Listening() as listening:
            await listening.ask("echo x")
            (connection,) = listening.listener.connections
            listening.listener.close()
            assert connection.is_closed
            assert listening.listener.connections == set()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*listening.address)
            listening.listener.close()
            listening.hang_up()

    run(test())
