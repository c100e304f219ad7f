"""The broker's end of a TLS connection, with those calls of a socket that `connection.py` makes.

OpenSSL works on memory, and bytes move between memory and the socket in large pieces: measured, this is as
cheap as OpenSSL on the socket itself for large answers, and takes a third of the calls for small requests.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from mainstem_broker.log.files import FileSlice

CIPHERTEXT_BYTES_MAX: Final = 256 * 1024
"""How much is received by one call."""
PLAINTEXT_BYTES_MAX: Final = 128 * 1024
"""How much is encrypted before it is sent. Measured: 16 KiB takes half as much time again."""

_received: Final = memoryview(bytearray(CIPHERTEXT_BYTES_MAX))
_slice: Final = memoryview(bytearray(PLAINTEXT_BYTES_MAX))


class TlsSocket:
    """Owns a connected, non-blocking socket. Where a call would block it raises BlockingIOError.

    What has been encrypted may still wait for the socket after a call that sends: `flush` sends it.
    """

    def __init__(self, connected: socket.socket, context: ssl.SSLContext) -> None:
        self._socket = connected
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._unsent = memoryview(b"")
        self._is_established = False
        self.has_unread = False
        """Whether there may be more to read without a further event of the socket."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def getpeername(self) -> tuple[str, int]:
        name: tuple[str, int] = self._socket.getpeername()[:2]
        return name

    @property
    def peer_certificate(self) -> bytes | None:
        """The client's, in DER, if it has shown one; it has been verified then."""
        return self._tls.getpeercert(binary_form=True)

    # --- Handshake ---

    def handshake(self, received: bytes = b"") -> None:
        """Go on with the handshake, with bytes that were received by the caller or those of the socket.

        Raises:
            BlockingIOError: it waits for the client; to be called again when the socket is readable, or
                writable while `has_unsent`.
            EOFError: the client has gone.
            ssl.SSLError: it failed.
        """
        if received:
            self._take(received)
        while not self._is_established:
            try:
                self._tls.do_handshake()
                self._is_established = True
            except ssl.SSLWantReadError:
                self.flush()
                if self._receive() == 0:
                    raise EOFError from None
            except ssl.SSLError:
                with suppress(OSError):
                    self.flush()  # the alert
                raise
        self.flush()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent) or self._outgoing.pending > 0

    # --- Reading ---

    def recv_into(self, buffer: memoryview) -> int:
        """Receive and decrypt; 0 at the end."""
        while True:
            if self.has_unread:
                count = self._decrypt_into(buffer)
                if count != 0:
                    return max(count, 0)
            if self._receive() == 0:
                return 0

    def recvmsg_into(self, buffers: Sequence[memoryview]) -> tuple[int]:
        """As `recv_into`, for one buffer after the other."""
        total = self.recv_into(buffers[0])
        filled = total
        for index in range(1, len(buffers)):
            if filled < len(buffers[index - 1]) or not self.has_unread:
                break
            filled = max(self._decrypt_into(buffers[index]), 0)
            total += filled
        return (total,)

    def _receive(self) -> int:
        count = self._socket.recv_into(_received)
        if count:
            self._take(_received[:count])
        return count

    def _take(self, received: bytes | memoryview) -> None:
        self._incoming.write(received)
        self.has_unread = True

    def _decrypt_into(self, buffer: memoryview) -> int:
        """How many bytes have come; 0 if the rest of a record is missing, -1 if the client has closed."""
        filled = 0
        read: Callable[[int, memoryview], int] = self._tls.read  # type: ignore[assignment]  # given a buffer it counts
        try:
            while filled < len(buffer):
                rest = buffer[filled:]
                count = read(len(rest), rest)
                if count == 0:
                    raise ssl.SSLZeroReturnError
                filled += count
        except ssl.SSLWantReadError:
            self.has_unread = False
        except ssl.SSLZeroReturnError:
            if not filled:
                self.has_unread = False
                return -1
        if self._outgoing.pending:  # an answer to a key update
            with suppress(BlockingIOError):
                self.flush()
        return filled

    # --- Writing ---

    def send(self, data: bytes | memoryview, _flags: int = 0) -> int:
        return self.sendmsg((data,))

    def sendmsg(
        self, parts: Sequence[bytes | memoryview], _ancillary: Sequence[object] = (), _flags: int = 0
    ) -> int:
        """How many bytes have been taken. Parts share records."""
        self.flush()
        if len(parts) == 1:
            return self._encrypt(memoryview(parts[0])[:PLAINTEXT_BYTES_MAX])
        taken: list[bytes | memoryview] = []
        size = 0
        for part in parts:
            taken.append(part)
            size += len(part)
            if size >= PLAINTEXT_BYTES_MAX:
                break
        return self._encrypt(memoryview(b"".join(taken)))

    def send_slice(self, part: FileSlice) -> int:
        """Send from a file; 0 if it is shorter than the slice."""
        self.flush()
        buffer = _slice[: part.size_bytes]
        count = os.preadv(part.file.descriptor, (buffer,), part.position)
        return self._encrypt(buffer[:count]) if count else 0

    def _encrypt(self, data: memoryview) -> int:
        position = 0
        while position < len(data):
            position += self._tls.write(data[position:])
        with suppress(BlockingIOError):
            self.flush()
        return position

    def flush(self) -> None:
        """Send what has been encrypted.

        Raises:
            BlockingIOError: the socket has not taken all of it.
        """
        while True:
            if not self._unsent:
                if not self._outgoing.pending:
                    return
                self._unsent = memoryview(self._outgoing.read())
            self._unsent = self._unsent[self._socket.send(self._unsent) :]

    def close(self) -> None:
        """Say goodbye, as far as the socket takes it, and close."""
        if self._is_established:
            with suppress(OSError):
                self._tls.unwrap()
            with suppress(OSError):
                self.flush()
        self._socket.close()
