"""A proxy before a broker that loses answers: requests are carried out, and the client never hears of it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Final, Self

PRODUCE_KEY: Final = 0
FRAME_BYTES_MAX: Final = 64 << 20


class LossyProxy:
    """Forwards frames between clients and the broker at `target_port`.

    `loses(number)` says of each answer to a Produce, counted from 1 over all connections, whether it is
    lost: the connection is then closed instead, in both directions, as a failing network does.
    """

    def __init__(self, loses: Callable[[int], bool]) -> None:
        self.target_port = 0
        self.lost_count = 0
        self._loses = loses
        self._answer_count = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        # Closing alone does not wake a thread that waits in accept.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for open_socket in tuple(self._sockets):
            _end(open_socket)
        for thread in self._threads:
            thread.join()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    broker = socket.create_connection(("127.0.0.1", self.target_port), 5)
                except OSError:
                    client.close()  # it is down at the moment
                    continue
                broker.settimeout(None)
                self._sockets |= {client, broker}
                produces: set[int] = set()
                self._start(self._requests, client, broker, produces)
                self._start(self._answers, client, broker, produces)

    def _requests(self, client: socket.socket, broker: socket.socket, produces: set[int]) -> None:
        with contextlib.suppress(OSError):
            while (frame := _receive_frame(client)) is not None:
                key, _, correlation_id = struct.unpack_from(">hhi", frame, 4)
                if key == PRODUCE_KEY:
                    produces.add(correlation_id)
                broker.sendall(frame)
        _end(client)
        _end(broker)

    def _answers(self, client: socket.socket, broker: socket.socket, produces: set[int]) -> None:
        with contextlib.suppress(OSError):
            while (frame := _receive_frame(broker)) is not None:
                (correlation_id,) = struct.unpack_from(">i", frame, 4)
                if correlation_id in produces and self._is_lost():
                    break
                client.sendall(frame)
        _end(client)
        _end(broker)

    def _is_lost(self) -> bool:
        with self._lock:
            self._answer_count += 1
            lost = self._loses(self._answer_count)
            self.lost_count += lost
            return lost


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _receive_frame(connection: socket.socket) -> bytes | None:
    """The next frame with its length, or None at the end."""
    head = _receive(connection, 4)
    if head is None:
        return None
    (size,) = struct.unpack(">i", head)
    body = _receive(connection, min(size, FRAME_BYTES_MAX))
    return None if body is None else head + body


def _receive(connection: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            return None
        data += part
    return bytes(data)
