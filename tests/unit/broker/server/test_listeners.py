from __future__ import annotations

import asyncio
import errno
import re
import resource
import socket
from collections.abc import Iterator
from typing import Self

import pytest
from tests.support.waiting import let_pass_async
from tests.unit.broker.server.peers import Script, frame_of, until

from mainstem_broker.cluster.znodes import Endpoint
from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.errors import StartupError
from mainstem_broker.runtime.disk_reads import DiskReads
from mainstem_broker.server import listeners as module
from mainstem_broker.server.connection_limits import ConnectionLimits
from mainstem_broker.server.listeners import Listener, SocketOptions, parse_listeners

OPTIONS = SocketOptions(-1, -1, 50, 1_000_000)


def parsed(**settings: str) -> list[tuple[Endpoint, Endpoint]]:
    """Underscores stand for dots."""
    static = {"broker.id": "1", "zookeeper.connect": "z:2181"}
    return parse_listeners(
        BrokerConfig(static | {name.replace("_", "."): value for name, value in settings.items()})
    )


# --- Settings ---


def test_without_advertised_listeners_the_bound_ones_are_advertised() -> None:
    endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092)
    assert parsed(listeners="PLAINTEXT://127.0.0.1:9092") == [(endpoint, endpoint)]


def test_all_interfaces_are_listened_on_where_another_address_is_advertised() -> None:
    ((bound, reported),) = parsed(
        listeners="PLAINTEXT://0.0.0.0:9092", advertised_listeners="PLAINTEXT://k.example:9092"
    )
    assert (bound.host, reported.host) == ("0.0.0.0", "k.example")


def test_an_empty_host_listens_everywhere_and_tells_the_hosts_name() -> None:
    ((bound, reported),) = parsed(listeners="PLAINTEXT://:9092")
    assert bound.host == ""
    assert reported.host == socket.gethostname()


def test_each_listener_is_reported_under_its_own_address_whatever_the_order() -> None:
    pairs = parsed(
        listeners="internal://:9092, EXTERNAL://[::1]:9093",
        advertised_listeners="EXTERNAL://k.example:19093,INTERNAL://10.0.0.1:9092",
        listener_security_protocol_map="internal:plaintext,EXTERNAL:PLAINTEXT",
    )
    assert [(bound.listener, bound.host, bound.port) for bound, _ in pairs] == [
        ("INTERNAL", "", 9092),
        ("EXTERNAL", "::1", 9093),
    ]
    assert [(reported.host, reported.port) for _, reported in pairs] == [
        ("10.0.0.1", 9092),
        ("k.example", 19093),
    ]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"listeners": "9092"}, "listeners has '9092'; write it as NAME://host:port"),
        ({"listeners": "PLAINTEXT://h"}, "write it as NAME://host:port"),
        ({"listeners": "PLAINTEXT://h:x"}, "write it as NAME://host:port"),
        ({"listeners": "PLAINTEXT://h:70000"}, "write it as NAME://host:port"),
        ({"listeners": ""}, "write it as NAME://host:port"),
        ({"listeners": "OTHER://h:1"}, "OTHER has no security protocol: add it to"),
        (
            {"listeners": "X://h:1", "listener_security_protocol_map": "X:KERBEROS"},
            "X asks for KERBEROS; only PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL are served",
        ),
        ({"advertised_listeners": "x"}, "advertised.listeners has 'x'"),
        (
            {"listeners": "PLAINTEXT://h:1", "advertised_listeners": "SSL://h:1"},
            "PLAINTEXT is missing from advertised.listeners",
        ),
        ({"listeners": "PLAINTEXT://0.0.0.0:1"}, "advertised as 0.0.0.0, which stands for all interfaces"),
        ({"listeners": "PLAINTEXT://[0::0]:1"}, "advertised as 0::0, which stands for all interfaces"),
        (
            {"listeners": "PLAINTEXT://:1", "advertised_listeners": "PLAINTEXT://[::]:1"},
            "set advertised.listeners to the address that clients connect to",
        ),
        (
            {"listeners": "PLAINTEXT://h:1,plaintext://h:2"},
            "listeners has two listeners with the name PLAINTEXT: give one of them another name",
        ),
        (
            {"advertised_listeners": "PLAINTEXT://h:1,PLAINTEXT://i:1"},
            "advertised.listeners has two listeners with the name PLAINTEXT",
        ),
        ({"listener_security_protocol_map": "PLAINTEXT"}, "has 'PLAINTEXT'; write it as NAME:PROTOCOL"),
    ],
)
def test_listeners_that_cannot_be_are_reported_with_what_to_change(
    settings: dict[str, str], reason: str
) -> None:
    with pytest.raises(StartupError, match=re.escape(reason)):
        parsed(**settings)


# --- Binding ---


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


async def test_a_port_that_is_taken_is_reported_by_its_number(taken_port: int) -> None:
    with pytest.raises(StartupError, match=f"Port {taken_port} is taken: stop what listens there"):
        Listener(
            Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", taken_port), OPTIONS, unlimited(), DiskReads()
        )


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("192.0.2.1", r"Cannot listen on 192\.0\.2\.1:0 \(.+\): change listeners"),
        ("no-such-host.invalid", r"Cannot listen on no-such-host\.invalid:0 \((?!Unknown error).+\)"),
    ],
)
async def test_an_address_that_is_not_ours_is_reported_with_the_reason(host: str, reason: str) -> None:
    with pytest.raises(StartupError, match=reason):
        Listener(Endpoint("PLAINTEXT", "PLAINTEXT", host, 0), OPTIONS, unlimited(), DiskReads())


both_families = pytest.mark.skipif(
    not socket.has_dualstack_ipv6(), reason="this machine has no sockets that take both IPv4 and IPv6"
)
V4 = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))
V6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))


@both_families
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_an_empty_host_takes_clients_of_ipv4_and_ipv6_under_their_own_addresses(address: str) -> None:
    overrides = {"max.connections.per.ip.overrides": f"{address}:1"}
    with Listening(limits(**overrides), host="") as listening:
        assert await listening.ask("echo x", address) == b"x"
        (connection,) = listening.listener.connections
        assert connection.peer.rpartition(":")[0] == address
        assert await listening.ask("echo y", address) == b"", "the limit of its address holds"


async def test_an_empty_host_takes_clients_of_ipv4_where_the_machine_has_no_ipv6(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with Listening(host="") as listening:
        assert await listening.ask("echo x", "127.0.0.1") == b"x"


@both_families
@pytest.mark.parametrize(("found", "address"), [([V6], "::1"), ([V6, V4], "127.0.0.1")])
def test_a_name_that_has_only_an_ipv6_address_stands_for_it(
    found: list[object], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    bound = module._bind(Endpoint("PLAINTEXT", "PLAINTEXT", "k.example", 0))
    with bound:
        assert bound.getsockname()[0] == address


# --- Accepting ---


def limits(**settings: int | str) -> ConnectionLimits:
    """Underscores stand for dots."""
    static = {"broker.id": "1", "zookeeper.connect": "z:2181"}
    config = BrokerConfig(static | {name.replace("_", "."): str(value) for name, value in settings.items()})
    return ConnectionLimits(lambda: config)


unlimited = limits


class Listening:
    """A listener on a free port of loopback, started."""

    def __init__(
        self,
        limits: ConnectionLimits | None = None,
        options: SocketOptions = OPTIONS,
        *,
        host: str = "127.0.0.1",
        is_between_brokers: bool = False,
    ) -> None:
        self.listener = Listener(
            Endpoint("PLAINTEXT", "PLAINTEXT", host, 0),
            options,
            limits or unlimited(),
            DiskReads(),
            is_between_brokers=is_between_brokers,
        )
        self.address = self.listener._socket.getsockname()
        self.listener.listen()
        self.listener.start(Script().handle)
        self._writers: list[asyncio.StreamWriter] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()
        for writer in self._writers:
            writer.close()

    async def ask(self, text: str, host: str | None = None) -> bytes:
        """Connect, ask, and read until an answer or the end has come; the connection stays open."""
        own_host, port = self.address[:2]
        reader, self.writer = await asyncio.open_connection(host or own_host, port)
        self._writers.append(self.writer)
        self.writer.write(frame_of(text.encode()))
        try:
            size = int.from_bytes(await reader.readexactly(4))
            return await reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return b""

    def hang_up(self) -> None:
        self.writer.close()


async def test_brokers_connect_at_once_where_clients_have_used_up_their_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R40"""
    charged_s: list[float] = []

    def charge(_: ConnectionLimits, now_s: float) -> float:
        charged_s.append(now_s)
        return 0.0

    monkeypatch.setattr(ConnectionLimits, "charge", charge)
    used_up = limits(max_connections=1, max_connection_creation_rate=1)
    with Listening(used_up) as for_clients, Listening(used_up, is_between_brokers=True) as for_brokers:
        assert await for_clients.ask("echo first") == b"first"
        for _ in range(3):
            assert await for_brokers.ask("echo follower") == b"follower"
            for_brokers.hang_up()
        for_clients.hang_up()
    assert len(charged_s) == 1, "only the client's connection counts against the rate"


async def test_a_client_that_would_take_the_last_descriptors_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R40"""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8, 8))
    with Listening() as for_clients, Listening(is_between_brokers=True) as for_brokers:
        assert await for_clients.ask("echo refused") == b""
        assert await for_brokers.ask("echo served") == b"served"
        for_brokers.hang_up()


async def test_clients_are_refused_before_the_start() -> None:
    listener = Listener(Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 0), OPTIONS, unlimited(), DiskReads())
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*listener._socket.getsockname())
    listener.close()


async def test_clients_that_come_between_listening_and_the_start_wait_and_are_served_then() -> None:
    listener = Listener(Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 0), OPTIONS, unlimited(), DiskReads())
    listener.listen()
    reader, writer = await asyncio.open_connection(*listener._socket.getsockname())
    writer.write(frame_of(b"echo early"))
    assert not listener.connections
    listener.start(Script().handle)
    size = int.from_bytes(await reader.readexactly(4))
    assert await reader.readexactly(size) == b"early"
    writer.close()
    listener.close()


async def test_a_client_is_served_and_forgotten_when_it_goes() -> None:
    with Listening() as listening:
        assert await listening.ask("echo hello") == b"hello"
        assert len(listening.listener.connections) == 1
        listening.hang_up()
        await until(lambda: not listening.listener.connections)


async def test_accepted_sockets_send_at_once_and_have_the_buffers_of_the_settings() -> None:
    with Listening(options=SocketOptions(50_000, 60_000, 5, 1000)) as listening:
        await listening.ask("echo x")
        (connection,) = listening.listener.connections
        accepted = connection._socket
        assert isinstance(accepted, socket.socket)
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 100_000, "Linux doubles it"
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 120_000
        listening.hang_up()


async def test_a_connection_that_is_closed_makes_room_for_another_of_its_address() -> None:
    with Listening(limits(max_connections_per_ip=1)) as listening:
        assert await listening.ask("echo 1") == b"1"
        first = listening.writer
        assert await listening.ask("echo 2") == b""
        first.close()
        await until(lambda: not listening.listener.connections)
        assert await listening.ask("echo 3") == b"3"
        listening.hang_up()


async def test_connections_over_the_rate_wait_and_are_served() -> None:
    with Listening(limits(max_connection_creation_rate=5)) as listening:
        begun_s = asyncio.get_running_loop().time()
        for number in range(7):
            assert await listening.ask(f"echo {number}") == str(number).encode()
            listening.hang_up()
        assert asyncio.get_running_loop().time() - begun_s > 0.3, (
            "five at once, two after a fifth of a second each"
        )


async def test_many_connections_at_once_are_accepted_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ACCEPTED_IN_A_TURN_MAX", 2)
    with Listening() as listening:
        others = [await asyncio.open_connection(*listening.address) for _ in range(7)]
        await until(lambda: len(listening.listener.connections) == 7)
        for _, writer in others:
            writer.close()


async def test_without_file_descriptors_accepting_pauses_instead_of_spinning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ACCEPT_RETRY_S", 0.05)

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


async def test_idle_connections_are_closed_and_those_that_wait_for_an_answer_are_not() -> None:
    with Listening() as listening:
        await listening.ask("echo idle")
        idle = listening.writer
        waiting = asyncio.create_task(listening.ask("later x"))
        await until(lambda: sum(c.requests_under_way for c in listening.listener.connections) == 1)
        listening.listener.close_idle(60)
        assert len(listening.listener.connections) == 2
        await let_pass_async(0.01, "it is how long the connections are idle")
        listening.listener.close_idle(0.005)
        (left,) = listening.listener.connections
        assert left.requests_under_way == 1
        idle.close()
        left.close()
        assert await waiting == b""
        listening.hang_up()


async def test_to_close_is_to_refuse_and_to_hang_up_on_everyone() -> None:
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
