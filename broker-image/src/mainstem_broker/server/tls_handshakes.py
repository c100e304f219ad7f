"""TLS handshakes of one listener that are under way, with limits: these clients are not authenticated yet.

A handshake has limited time, and there is a limited number of them. While there are as many, further clients
wait in the backlog until the oldest is done or has had its minimum of time: then it is closed to make room.
An address has a share of them, so that a flood of one address closes no handshakes of others.
A client that sends nothing costs a socket; what OpenSSL needs is made when the first bytes have come.

A step of a handshake is a signature or a key exchange, up to a millisecond of the event loop. A thousand
clients may send theirs at once, so those that can go on wait in a queue, which has a few milliseconds in each
turn.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from time import perf_counter
from typing import Final

from mainstem_broker.runtime.turns import TURN_S
from mainstem_broker.server.refusal_log import RefusalLog
from mainstem_broker.server.tls_socket import TlsSocket

HANDSHAKE_S_MAX: Final = 10.0
HANDSHAKE_S_MIN: Final = 1.0
"""As much each client gets however many come: several round trips around the earth."""
HANDSHAKES_MAX: Final = 1_000
"""Of about 60 KB each, once the client has sent its first message."""
HANDSHAKES_PER_ADDRESS_MAX: Final = HANDSHAKES_MAX // 4
"""Many clients may share an address, and none of them is authenticated."""
FIRST_BYTES_MAX: Final = 16 * 1024
_HANDSHAKE_RECORD: Final = 0x16  # RFC 8446, section 5.1

Opened = Callable[[TlsSocket, str], None]
"""Takes over an established connection from an address."""
Closed = Callable[[str], None]
"""Called with the address of a connection that was closed during its handshake."""


class TlsHandshakes:
    """`context` is that for new connections. Each connection ends in exactly one of `opened` and `closed`."""

    def __init__(
        self,
        listener: str,
        context: Callable[[], ssl.SSLContext],
        opened: Opened,
        closed: Closed,
        refusals: RefusalLog,
    ) -> None:
        self.listener = listener
        self.context = context
        self.refusals = refusals
        self._opened = opened
        self._closed = closed
        self._under_way: dict[_Handshake, float] = {}  # oldest first, with the time of its begin
        self._by_address: dict[str, dict[_Handshake, None]] = {}  # the same
        self._ready: dict[
            _Handshake, None
        ] = {}  # those that can go on, the one that has waited longest first
        self._is_scheduled = False

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, connected: socket.socket, address: str) -> None:
        if not self._has_room_for(address):
            self.refusals.write(
                "TLS handshake failed",
                f"{address}:0",
                listener=self.listener,
                reason="too many handshakes of its address are under way",
            )
            connected.close()
            self._closed(address)
            return
        handshake = _Handshake(self, connected, address)
        self._under_way[handshake] = asyncio.get_running_loop().time()
        self._by_address.setdefault(address, {})[handshake] = None

    def _has_room_for(self, address: str) -> bool:
        """Makes room in the share of the address if that is possible now."""
        of_address = self._by_address.get(address, {})
        if len(of_address) < HANDSHAKES_PER_ADDRESS_MAX:
            return True
        oldest = next(iter(of_address))
        if asyncio.get_running_loop().time() < self._under_way[oldest] + HANDSHAKE_S_MIN:
            return False
        oldest.fail("too many handshakes of its address are under way, and this is the oldest")
        return True

    def await_turn(self, handshake: _Handshake) -> None:
        """Let the handshake go on when it is its turn. Called again and again until then."""
        self._ready[handshake] = None
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """Do steps of handshakes for a turn of the loop."""
        ends_s = perf_counter() + TURN_S
        try:
            while self._ready:
                handshake = next(iter(self._ready))
                del self._ready[handshake]
                handshake.go_on()
                if perf_counter() >= ends_s:
                    break
        finally:  # the failure of one handshake ends no others
            self._is_scheduled = bool(self._ready)
            if self._is_scheduled:
                asyncio.get_running_loop().call_soon(self._go_on)

    def make_room(self) -> float:
        """How long to wait before the next `begin`, in seconds; makes room for it if that is possible now."""
        if len(self._under_way) < HANDSHAKES_MAX:
            return 0.0
        oldest, began_s = next(iter(self._under_way.items()))
        wait_s = began_s + HANDSHAKE_S_MIN - asyncio.get_running_loop().time()
        if wait_s > 0:
            return wait_s
        oldest.fail("too many handshakes are under way, and this is the oldest")
        return 0.0

    def end(self, handshake: _Handshake, established: TlsSocket | None) -> None:
        del self._under_way[handshake]
        self._ready.pop(handshake, None)
        of_address = self._by_address[handshake.address]
        del of_address[handshake]
        if not of_address:
            del self._by_address[handshake.address]
        if established is None:
            self._closed(handshake.address)
        else:
            self._opened(established, handshake.address)

    def close(self) -> None:
        for handshake in tuple(self._under_way):
            handshake.fail(None)


class _Handshake:
    def __init__(self, handshakes: TlsHandshakes, connected: socket.socket, address: str) -> None:
        self.address = address
        self._handshakes = handshakes
        self._socket = connected
        self._fd = connected.fileno()
        self._tls: TlsSocket | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(
            HANDSHAKE_S_MAX, self.fail, f"it was not done within {HANDSHAKE_S_MAX:g} s"
        )
        self._is_writing = False
        self._loop.add_reader(self._fd, handshakes.await_turn, self)

    def go_on(self) -> None:
        try:
            if self._tls is None:
                received = self._socket.recv(FIRST_BYTES_MAX)
                if not received:
                    self.fail(None)
                    return
                if received[0] != _HANDSHAKE_RECORD:
                    self.fail(
                        "the client does not speak TLS, and this listener does: it has to set"
                        " security.protocol, or use another port"
                    )
                    return
                self._tls = TlsSocket(self._socket, self._handshakes.context())
                self._tls.handshake(received)
            else:
                self._tls.handshake()
        except (BlockingIOError, InterruptedError):
            self._await_room()
        except ssl.SSLError as error:
            self.fail(_reason(error))
        except (OSError, EOFError):
            self.fail(None)
        else:
            self._leave_loop()
            self._handshakes.end(self, self._tls)

    def _await_room(self) -> None:
        """Wait for the socket to be writable, if there is something to write."""
        wants_room = self._tls is not None and self._tls.has_unsent
        if wants_room and not self._is_writing:
            self._loop.add_writer(self._fd, self._handshakes.await_turn, self)
        elif self._is_writing and not wants_room:
            self._loop.remove_writer(self._fd)
        self._is_writing = wants_room

    def fail(self, reason: str | None) -> None:
        """Close; `reason` is logged, if there is one."""
        peer = self._peer()
        self._leave_loop()
        self._socket.close()
        self._handshakes.end(self, None)
        if reason is not None:  # last: a log that cannot be written keeps no socket
            self._handshakes.refusals.write(
                "TLS handshake failed", peer, listener=self._handshakes.listener, reason=reason
            )

    def _leave_loop(self) -> None:
        self._timer.cancel()
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)

    def _peer(self) -> str:
        try:
            port = self._socket.getpeername()[1]
        except OSError:
            port = 0
        return f"{self.address}:{port}"


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    return (error.reason or str(error)).replace("_", " ").lower()
