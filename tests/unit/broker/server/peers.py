"""A client's end of a connection, and a handler that does what the frame says, for tests of the server.

Frames are text: `echo X` is answered by X; the rest of the words are those of `Script.handle`.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import uvloop
from tests.support.waiting import let_pass_async, wait_until_async

from mainstem_broker.errors import InvalidRequestBytes
from mainstem_broker.log.files import FileSlice, LogFile
from mainstem_broker.protocol.wire import Frame
from mainstem_broker.runtime.disk_reads import DiskReads
from mainstem_broker.runtime.pending import Pending
from mainstem_broker.server.connection import Answer, Connection, Handle, Hold, Later
from mainstem_broker.server.request_memory import RequestMemory

TIMEOUT_S: Final = 10
REQUEST_BYTES_MAX: Final = 8 * 1024 * 1024

Result = TypeVar("Result")


def run(test: Coroutine[Any, Any, Result]) -> Result:
    """Run an asynchronous test on the loop that the broker uses, and not for ever."""

    async def bounded() -> Result:
        async with asyncio.timeout(TIMEOUT_S):
            return await test

    return uvloop.run(bounded())


async def until(condition: Callable[[], object]) -> None:
    """Poll what no event tells; `run` bounds it."""
    await wait_until_async(condition)


def frame_of(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def _as_it_is(frame: Frame) -> Frame:
    return frame


class Script:
    """Handles frames as they say, and notes them in `handled`."""

    def __init__(self, file_path: Path | None = None) -> None:
        self.handled: list[bytes] = []
        self.later: dict[str, asyncio.Future[Frame | None]] = {}
        self.gates: dict[str, asyncio.Future[None]] = {}
        self.pending: dict[str, Pending[Frame]] = {}
        self.cancelled: list[str] = []
        self.file = None if file_path is None else LogFile(file_path)

    def handle(self, connection: Connection, frame: memoryview) -> Answer:
        assert frame.readonly
        request = bytes(frame)
        self.handled.append(request)
        word, _, argument = request.decode().partition(" ")
        match word:
            case "echo":
                return [frame_of(argument.encode())]
            case "bytes":  # that many
                return [frame_of(bytes(int(argument)))]
            case "none":
                return None
            case "slices":  # position:size,position:size with text around
                return self._slices(argument)
            case "later":
                return Later(self._later(argument), _as_it_is)
            case "pending":
                self.pending[argument] = Pending()
                return Later(self.pending[argument], _as_it_is)
            case "never":
                return Later(self._never(argument), _as_it_is)
            case "hold":
                return self._hold(argument, lambda: [frame_of(f"after {argument}".encode())])
            case "hold-bug":
                return self._hold(argument, _bug)
            case "bad":
                raise InvalidRequestBytes("The frame says that it is bad.")
            case "bug":
                return _bug()
            case "bug-later":
                return Later(self._bug_later(), _as_it_is)
            case "close":
                connection.close("the frame says so")
                return None
        raise AssertionError(f"no such word: {word}")

    def waiting(self) -> list[str]:
        """Names of the requests that wait for `let_go`, held ones included."""
        futures: dict[str, asyncio.Future[Any]] = {**self.later, **self.gates}
        return [name for name, future in futures.items() if not future.done()]

    def let_go(self, name: str) -> None:
        """Answer a later request by its name, or end a hold."""
        if name in self.later:
            self.later[name].set_result([frame_of(name.encode())])
        else:
            self.gates[name].set_result(None)

    def _slices(self, argument: str) -> Frame:
        assert self.file is not None
        parts: Frame = [b"<"]
        for item in argument.split(","):
            position, size = map(int, item.split(":"))
            parts += [FileSlice(self.file, position, size, 0), b"|"]
        size = sum(len(part) if isinstance(part, bytes) else part.size_bytes for part in parts)
        first = parts[0]
        assert isinstance(first, bytes)
        return [struct.pack(">i", size) + first, *parts[1:]]

    async def _later(self, name: str) -> Frame | None:
        self.later[name] = asyncio.get_running_loop().create_future()
        return await self.later[name]

    async def _never(self, name: str) -> Frame | None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        raise AssertionError

    def _hold(self, name: str, then: Any) -> Hold:
        self.gates[name] = asyncio.get_running_loop().create_future()
        return Hold(self.gates[name], then)

    async def _bug_later(self) -> Frame | None:
        await asyncio.sleep(0)
        return _bug()


def _bug() -> Frame:
    raise KeyError("a mistake of ours")


def connected_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection on loopback, non-blocking, sending at once."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        one = socket.create_connection(listening.getsockname())
        other, _ = listening.accept()
    for end in (one, other):
        end.setblocking(False)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one, other


class Peer:
    """The client's end of a socket whose other end is a `Connection`."""

    def __init__(
        self,
        handle: Handle,
        *,
        request_bytes_max: int = REQUEST_BYTES_MAX,
        send_buffer_bytes: int | None = None,
        memory: RequestMemory | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.socket, theirs = connected_pair()
        if send_buffer_bytes is not None:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        self.closed: list[Connection] = []
        self.disk = DiskReads()
        self.connection = Connection(
            theirs,
            handle,
            request_bytes_max=request_bytes_max,
            disk=self.disk,
            on_close=self.closed.append,
            memory=memory,
        )
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()
        self.socket.close()
        self.disk.close()

    def is_read_from(self) -> bool:
        return self.connection._reading

    async def send(self, *requests: bytes | str) -> None:
        """Send these as frames, in one piece."""
        await self.send_raw(b"".join(frame_of(r.encode() if isinstance(r, str) else r) for r in requests))

    async def send_raw(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.socket, data)

    async def receive(self, count: int = 1) -> list[bytes]:
        """The next `count` answers."""
        answers: list[bytes] = []
        while len(answers) < count:
            if len(self._received) >= 4:
                (size,) = struct.unpack_from(">i", self._received)
                if len(self._received) >= 4 + size:
                    answers.append(self._received[4 : 4 + size])
                    self._received = self._received[4 + size :]
                    continue
            data = await self._loop.sock_recv(self.socket, 1 << 20)
            assert data, f"closed after {len(answers)} answers and {self._received!r}"
            self._received += data
        return answers

    async def receive_nothing(self) -> None:
        """Let the connection do all it can now; then nothing must have come."""
        await self.settle()
        assert self._received == b""
        try:
            data = self.socket.recv(1)
        except BlockingIOError:
            return
        raise AssertionError(f"received {data!r}")

    async def receive_end(self) -> bytes:
        """What comes until the connection is closed."""
        received, self._received = self._received, b""
        while True:
            try:
                data = await self._loop.sock_recv(self.socket, 1 << 16)
            except ConnectionResetError:  # closed with unread bytes of ours
                data = b""
            if not data:
                return received
            received += data

    async def settle(self) -> None:
        """Until every callback that is due has run, and those which they made due."""
        for _ in range(5):
            await let_pass_async(0.001, "what the kernel hands over is due then")
