"""The sockets a broker listens on: what its settings ask for, bound and accepting."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from mainstem_broker.cluster.znodes import Endpoint
from mainstem_broker.config import BrokerConfig
from mainstem_broker.errors import StartupError
from mainstem_broker.server.connection import Connection, Handle

logger = structlog.get_logger(__name__)

ACCEPT_RETRY_S: Final = 1.0


def parse_listeners(config: BrokerConfig) -> list[tuple[Endpoint, Endpoint]]:
    """(where to listen, what to advertise) for each listener of the settings.

    Raises:
        StartupError: a listener cannot be read, is not advertised, or asks for a protocol not served.
    """
    protocols = {}
    for item in config.string("listener.security.protocol.map").split(","):
        name, colon, protocol = item.strip().partition(":")
        if not colon:
            raise StartupError(f"listener.security.protocol.map has {item!r}; write it as NAME:PROTOCOL.")
        protocols[name.upper()] = protocol.upper()
    bound = [_parse(text, "listeners", protocols) for text in config.string("listeners").split(",")]
    advertised_text = config.optional_string("advertised.listeners")
    if advertised_text is None:
        advertised = bound
    else:
        advertised = [_parse(text, "advertised.listeners", protocols) for text in advertised_text.split(",")]
    by_name = {endpoint.listener: endpoint for endpoint in advertised}
    pairs = []
    for endpoint in bound:
        if endpoint.security_protocol != "PLAINTEXT":
            raise StartupError(
                f"The listener {endpoint.listener} asks for {endpoint.security_protocol}; only PLAINTEXT is"
                " served: change listeners or listener.security.protocol.map."
            )
        if endpoint.listener not in by_name:
            raise StartupError(f"The listener {endpoint.listener} is missing from advertised.listeners.")
        told = by_name[endpoint.listener]
        host = told.host or socket.gethostname()
        pairs.append((endpoint, Endpoint(told.listener, told.security_protocol, host, told.port)))
    return pairs


def _parse(text: str, setting: str, protocols: dict[str, str]) -> Endpoint:
    name, separator, address = text.strip().partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon or not port.isdecimal() or int(port) > 65535:
        raise StartupError(f"{setting} has {text.strip()!r}; write it as NAME://host:port.")
    name = name.upper()
    if name not in protocols:
        raise StartupError(
            f"The listener {name} has no security protocol: add it to listener.security.protocol.map."
        )
    return Endpoint(name, protocols[name], host.strip("[]"), int(port))


@dataclass(frozen=True, slots=True)
class SocketOptions:
    """Sizes in bytes; -1 leaves one to the kernel."""

    send_buffer_bytes: int
    receive_buffer_bytes: int
    backlog: int
    request_bytes_max: int


class Listener:
    """One listening socket and its open connections."""

    def __init__(self, endpoint: Endpoint, options: SocketOptions, may_accept: Callable[[], bool]) -> None:
        self._options = options
        self._may_accept = may_accept
        self._handle: Handle | None = None
        self.name = endpoint.listener
        self.connections: set[Connection] = set()
        self._socket = _bind(endpoint)

    def listen(self) -> None:
        """Let clients connect, who were refused until here; they wait in the backlog until `start`."""
        self._socket.listen(self._options.backlog)

    def start(self, handle: Handle) -> None:
        """Accept connections and answer from now on."""
        self._handle = handle
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        assert self._handle is not None
        while True:
            try:
                connected, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue  # the peer has gone already
            except OSError as error:
                # Too many open files, most likely: the loop would call this at once, again and again.
                logger.warning("connection not accepted", reason=str(error))
                self._pause_accepting()
                return
            if not self._may_accept():
                connected.close()
                continue
            connected.setblocking(False)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._options.send_buffer_bytes >= 0:
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._options.send_buffer_bytes)
            if self._options.receive_buffer_bytes >= 0:
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._options.receive_buffer_bytes)
            self.connections.add(
                Connection(
                    connected,
                    self._handle,
                    request_bytes_max=self._options.request_bytes_max,
                    on_close=self.connections.discard,
                )
            )

    def _pause_accepting(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket.fileno())
        loop.call_later(ACCEPT_RETRY_S, self._resume_accepting)

    def _resume_accepting(self) -> None:
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)

    def close_idle(self, idle_s: float) -> None:
        now = asyncio.get_running_loop().time()
        for connection in tuple(self.connections):
            if connection.requests_under_way == 0 and now - connection.last_active_s > idle_s:
                connection.close("idle for longer than connections.max.idle.ms")

    def stop_accepting(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._socket.close()

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self.stop_accepting()
        for connection in tuple(self.connections):
            connection.close()


def _bind(endpoint: Endpoint) -> socket.socket:
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setblocking(False)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((endpoint.host, endpoint.port))
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise StartupError(
                f"Port {endpoint.port} is taken: stop what listens there, or change listeners."
            ) from error
        raise StartupError(
            f"Cannot listen on {endpoint.host}:{endpoint.port} ({error.strerror or error}): change listeners."
        ) from error
    return bound
