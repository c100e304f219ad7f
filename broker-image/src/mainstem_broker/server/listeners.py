"""The sockets a broker listens on: what its settings ask for, bound and accepting."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

import structlog

from mainstem_broker.cluster.znodes import Endpoint
from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.errors import StartupError
from mainstem_broker.runtime.disk_reads import DiskReads
from mainstem_broker.security.authorizer import normalized_host
from mainstem_broker.security.principals import ANONYMOUS, Principal
from mainstem_broker.server.connection import Connection, Handle
from mainstem_broker.server.connection_limits import ConnectionLimits, takes_reserve
from mainstem_broker.server.listener_security import ListenerSecurity
from mainstem_broker.server.refusal_log import RefusalLog
from mainstem_broker.server.request_memory import RequestMemory
from mainstem_broker.server.tls_handshakes import TlsHandshakes
from mainstem_broker.server.tls_socket import TlsSocket
from mainstem_broker.whole_numbers import is_whole_number

if TYPE_CHECKING:
    from mainstem_broker.server.tokens import Tokens

logger = structlog.get_logger(__name__)

ACCEPT_RETRY_S: Final = 1.0
ACCEPTED_IN_A_TURN_MAX: Final = 16
SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def parse_listeners(config: BrokerConfig) -> list[tuple[Endpoint, Endpoint]]:
    """(where to listen, what to advertise) for each listener of the settings.

    Raises:
        StartupError: a listener cannot be read, is not advertised, or asks for a protocol not served; two
            have one name; or an address for all interfaces would be advertised, which clients cannot reach.
    """
    protocols = {}
    for item in config.string("listener.security.protocol.map").split(","):
        name, colon, protocol = item.strip().partition(":")
        if not colon:
            raise StartupError(f"listener.security.protocol.map has {item!r}; write it as NAME:PROTOCOL.")
        protocols[name.upper()] = protocol.upper()
    bound = _parse_all(config.string("listeners"), "listeners", protocols)
    advertised_text = config.optional_string("advertised.listeners")
    advertised = (
        bound if advertised_text is None else _parse_all(advertised_text, "advertised.listeners", protocols)
    )
    pairs = []
    for endpoint in bound.values():
        if endpoint.security_protocol not in SECURITY_PROTOCOLS:
            raise StartupError(
                f"The listener {endpoint.listener} asks for {endpoint.security_protocol}; only"
                f" {', '.join(SECURITY_PROTOCOLS)} are served: change listeners or"
                " listener.security.protocol.map."
            )
        if endpoint.listener not in advertised:
            raise StartupError(f"The listener {endpoint.listener} is missing from advertised.listeners.")
        address = advertised[endpoint.listener]
        host = address.host or socket.gethostname()
        if _is_unspecified(host):
            raise StartupError(
                f"The listener {endpoint.listener} would be advertised as {host}, which stands for all"
                " interfaces: set advertised.listeners to the address that clients connect to."
            )
        pairs.append((endpoint, Endpoint(address.listener, address.security_protocol, host, address.port)))
    return pairs


def inter_broker_protocol(config: BrokerConfig, listeners: list[tuple[Endpoint, Endpoint]]) -> str:
    """The security protocol between brokers.

    Raises:
        StartupError: there is no listener for them.
    """
    name = config.inter_broker_listener
    for bound, _ in listeners:
        if bound.listener == name:
            return bound.security_protocol
    raise StartupError(
        f"Brokers talk to each other through the listener {name}, which is missing from listeners: add it, or"
        " set inter.broker.listener.name to one of those."
    )


def _parse_all(text: str, setting: str, protocols: dict[str, str]) -> dict[str, Endpoint]:
    """By the name of the listener."""
    endpoints: dict[str, Endpoint] = {}
    for item in text.split(","):
        endpoint = _parse(item, setting, protocols)
        if endpoint.listener in endpoints:
            raise StartupError(
                f"{setting} has two listeners with the name {endpoint.listener}: give one of them another"
                " name, with its security protocol in listener.security.protocol.map."
            )
        endpoints[endpoint.listener] = endpoint
    return endpoints


def _is_unspecified(host: str) -> bool:
    """Whether it is 0.0.0.0 or ::, in any form."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def _parse(text: str, setting: str, protocols: dict[str, str]) -> Endpoint:
    name, separator, address = text.strip().partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon or not is_whole_number(port) or int(port) > 65535:
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

    def __init__(
        self,
        endpoint: Endpoint,
        options: SocketOptions,
        limits: ConnectionLimits,
        disk: DiskReads,
        security: ListenerSecurity | None = None,
        memory: RequestMemory | None = None,
        *,
        is_between_brokers: bool = False,
    ) -> None:
        """Bind. Without `security` clients connect in plain text; without `memory` requests take any amount.
        `is_between_brokers`: only brokers connect here, and are not held to the limits of clients.

        Raises:
            StartupError: the address cannot be had.
        """
        self.security = security
        self._refusals = RefusalLog()
        self._handshakes: TlsHandshakes | None = None
        if security is not None and (tls := security.tls) is not None:
            self._handshakes = TlsHandshakes(
                endpoint.listener,
                lambda: tls.context,
                self._open_encrypted,
                limits.close,
                RefusalLog(security.record_failed_handshake),
            )
        self._options = options
        self._limits = limits
        self._is_between_brokers = is_between_brokers
        self._descriptors_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._disk = disk
        self._memory = memory
        self._handle: Handle | None = None
        self.name = endpoint.listener
        self.connections: set[Connection] = set()
        self._socket = _bind(endpoint)

    @property
    def tokens(self) -> Tokens | None:
        """How clients log in by tokens, where they do."""
        logins = None if self.security is None else self.security.logins
        return None if logins is None else logins.tokens

    def listen(self) -> None:
        """Let clients connect, who were refused until here; they wait in the backlog until `start`."""
        self._socket.listen(self._options.backlog)

    def start(self, handle: Handle) -> None:
        """Accept connections and answer from now on."""
        self._handle = handle
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPTED_IN_A_TURN_MAX):  # then others have their turn
            if self._handshakes is not None and (wait_s := self._handshakes.make_room()) > 0:
                self._pause_accepting(wait_s)
                return
            try:
                connected, peer = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue  # the peer has gone already
            except OSError as error:
                # Too many open files, most likely: the loop would call this at once, again and again.
                logger.warning("connection not accepted", reason=str(error))
                self._pause_accepting(ACCEPT_RETRY_S)
                return
            address = normalized_host(peer[0])
            exceeded: str | None
            if not self._is_between_brokers and takes_reserve(connected.fileno(), self._descriptors_max):
                exceeded = "the limit of open files (ulimit -n)"
            else:
                exceeded = self._limits.open(address, is_between_brokers=self._is_between_brokers)
            if exceeded is not None:
                logger.debug("connection refused", peer=address, setting=exceeded)
                connected.close()
                continue
            connected.setblocking(False)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._options.send_buffer_bytes >= 0:
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._options.send_buffer_bytes)
            if self._options.receive_buffer_bytes >= 0:
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._options.receive_buffer_bytes)
            if self._handshakes is None:
                self._open(connected, address, ANONYMOUS)
            else:
                self._handshakes.begin(connected, address)
            if self._is_between_brokers:
                continue
            wait_s = self._limits.charge(loop.time())
            if wait_s > 0:
                self._pause_accepting(wait_s)
                return

    def _open_encrypted(self, established: TlsSocket, address: str) -> None:
        assert self.security is not None
        principal = self.security.principal_of(established.peer_certificate, address)
        if principal is None:
            # The reason is in the log already.
            established.close()
            self._limits.close(address)
        else:
            self._open(established, address, principal)

    def _open(self, connected: socket.socket | TlsSocket, address: str, principal: Principal) -> None:
        assert self._handle is not None
        connection = Connection(
            connected,
            self._handle,
            request_bytes_max=self._options.request_bytes_max,
            disk=self._disk,
            on_close=partial(self._forget, address),
            principal=principal,
            memory=self._memory,
            refusals=self._refusals,
        )
        self.connections.add(connection)
        if self.security is not None and self.security.logins is not None:
            self.security.logins.begin(connection)

    def _forget(self, address: str, connection: Connection) -> None:
        self.connections.discard(connection)
        if self.security is not None and self.security.logins is not None:
            self.security.logins.end(connection)
        self._limits.close(address)

    def _pause_accepting(self, duration_s: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket.fileno())
        loop.call_later(duration_s, self._resume_accepting)

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
        if self._handshakes is not None:
            self._handshakes.close()
        for connection in tuple(self.connections):
            connection.close()


def _bind(endpoint: Endpoint) -> socket.socket:
    try:
        family, address = _place_of(endpoint)
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setblocking(False)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6 and not endpoint.host:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartupError(
                f"Port {endpoint.port} is taken: stop what listens there, or change listeners."
            ) from error
        raise StartupError(
            f"Cannot listen on {endpoint.host}:{endpoint.port} ({error.strerror or error}): change listeners."
        ) from error
    return bound


def _place_of(endpoint: Endpoint) -> tuple[int, Any]:
    """The family of addresses, and the address as `bind` takes it. Raises OSError for an unknown name."""
    if not endpoint.host and socket.has_dualstack_ipv6():
        return socket.AF_INET6, ("::", endpoint.port)  # takes connections of IPv4, too
    found = socket.getaddrinfo(
        endpoint.host or None, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    # A name that has both, such as localhost, stands for its IPv4 address, as in Java.
    family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    return family, address
