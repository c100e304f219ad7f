"""One client's connection: frames in, responses out, in the order of the requests.

Bytes only: what a frame means is the router's business. Reading and writing go straight to the socket
through the loop's readiness callbacks, because two things of asyncio's streams would cost too much here:
they copy what they read once more, and they cannot mix bytes with `os.sendfile` (R3).

- Reading: one buffer, shared by all connections of the loop, receives; small frames are handled where
  they lie. A frame that is larger than what has come gets a buffer of its own and is received into it.
  Large frames come one after another, and what is read ahead of one is copied: so that is only its head.
- Writing: the answers to all frames of one read leave together. A file slice is sent from the page cache
  by `os.sendfile`, between bytes; those before it wait in the socket for it (`MSG_MORE`), as a packet of
  their own would wake the peer. Corking would spare those after it too, for two more calls: no gain.
- Order: requests are handled as they come, several at a time (Kafka handles one), and answers wait for
  those of earlier requests, as the protocol demands. A client that does not read its answers, or has too
  many requests under way, is not read from until it catches up. One that is muted, because it takes more
  than its quota, has what came already kept for later.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import structlog

from mainstem_broker.errors import InvalidRequestBytes
from mainstem_broker.log.files import FileSlice
from mainstem_broker.pending import Pending
from mainstem_broker.protocol.wire import Frame

logger = structlog.get_logger(__name__)

RECEIVE_BUFFER_BYTES: Final = 256 * 1024
LARGE_FRAME_BYTES: Final = 64 * 1024
HEAD_BYTES: Final = 4 * 1024
"""How much is read ahead of a connection whose last frame was large."""
REQUESTS_UNDER_WAY_MAX: Final = 128
UNSENT_BYTES_MAX: Final = 16 * 1024 * 1024
PARTS_PER_SEND: Final = 64
SMALL_SLICE_BYTES: Final = 16 * 1024
"""A slice up to this size is read and leaves with the bytes around it, by one call and in one packet: a
copy of so little costs less than the calls that spare it (8 us instead of 13 us of the kernel's time)."""
FRAME_BUFFER_KEPT_BYTES_MAX: Final = 2 * 1024 * 1024
"""A connection keeps its frame buffer for the next frame up to this size, a batch of 1 MiB and more."""

_TOO_SHORT: Final = "the file is shorter than the slice that was to be sent"
_SIZE: Final = struct.Struct(">i")
_shared_receive_buffer: Final = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
_shared_head: Final = _shared_receive_buffer[:HEAD_BYTES]
_received: Final = _shared_receive_buffer.toreadonly()  # the decoder takes no other


class Hold(NamedTuple):
    """Not yet: `then` is to be called when `ready` is done, and requests that follow wait behind it."""

    ready: Awaitable[None]
    then: Callable[[], Answer]


class Later(NamedTuple):
    """The response comes when `body` is done, and is written by `encode`; a body of None means none."""

    body: Awaitable[Any]
    encode: Callable[[Any], Frame]


Answer = Frame | Later | Hold | None
"""A response, one later, or none (acks=0); or a request that cannot be handled before something else."""
_Awaited = asyncio.Future[Any] | Pending[Any]
Handle = Callable[["Connection", memoryview], Answer]


class Connection:
    """A connected socket, non-blocking. `handle` is called with each frame; the view dies with the call."""

    __slots__ = (
        "_answers",
        "_closed",
        "_fd",
        "_frame",
        "_frame_bytes",
        "_frame_filled",
        "_handle",
        "_held",
        "_holding",
        "_loop",
        "_muted_until_s",
        "_on_close",
        "_out",
        "_partial_size",
        "_read_ahead",
        "_reading",
        "_request_bytes_max",
        "_sending_soon",
        "_socket",
        "_tasks",
        "_unmute",
        "_unsent_bytes",
        "_writing",
        "last_active_s",
        "peer",
    )

    def __init__(
        self,
        connected: socket.socket,
        handle: Handle,
        *,
        request_bytes_max: int,
        on_close: Callable[[Connection], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = connected
        self._fd = connected.fileno()
        self.peer = _peer_name(connected)
        self._handle = handle
        self._request_bytes_max = request_bytes_max
        self._on_close = on_close
        # A frame in the making: its buffer (kept for the next one), its size, and how much has come.
        self._frame = bytearray()
        self._frame_bytes = 0
        self._frame_filled = 0
        self._partial_size = b""  # up to three bytes of a size prefix
        self._read_ahead = _shared_receive_buffer  # or its head
        # While a request is held or the connection is muted, the frames that came after, copied.
        self._holding = False
        self._unmute: asyncio.TimerHandle | None = None
        self._muted_until_s = 0.0
        self._held: deque[bytes] = deque()
        # Answers to requests under way, oldest first: a frame, or what is waited for and how to write it.
        self._answers: deque[Frame | tuple[_Awaited, Callable[[Any], Frame]]] = deque()
        self._tasks: set[_Awaited] = set()
        self._out: deque[bytes | memoryview | FileSlice] = deque()
        self._unsent_bytes = 0
        self._sending_soon = False
        self._writing = False
        self._reading = True
        self._closed = False
        self.last_active_s = self._loop.time()
        self._loop.add_reader(self._fd, self._on_readable)

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def requests_under_way(self) -> int:
        return len(self._answers)

    def close(self, reason: str | None = None) -> None:
        """Close now; requests under way are abandoned. `reason` is logged, if there is one."""
        if self._closed:
            return
        self._closed = True
        if reason is not None:
            logger.info("connection closed", peer=self.peer, reason=reason)
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        if self._unmute is not None:
            self._unmute.cancel()
        for task in self._tasks:
            # A task cancelled before its first step would leave the coroutine it was made of unawaited.
            self._loop.call_soon(task.cancel)
        self._answers.clear()
        self._held.clear()
        self._out.clear()
        self._socket.close()
        self._on_close(self)

    def mute(self, duration_s: float) -> None:
        """Handle no further request for this time; answers go out. Of several times the longest counts."""
        until_s = self._loop.time() + duration_s
        if self._closed or until_s <= self._muted_until_s:
            return
        self._muted_until_s = self.last_active_s = until_s  # it is not idle meanwhile
        if self._unmute is not None:
            self._unmute.cancel()
        self._unmute = self._loop.call_later(duration_s, self._end_mute)
        self._pause_reading()

    def _end_mute(self) -> None:
        self._unmute = None
        if not self._holding:
            self._take_held()

    def _close_for(self, error: BaseException) -> None:
        """Close because a request could not be answered, by the peer's fault or by ours."""
        if isinstance(error, InvalidRequestBytes):
            self.close(str(error))
        else:
            logger.error("request failed", peer=self.peer, exc_info=error)
            self.close("a request could not be answered")

    # --- Reading ---

    def _on_readable(self) -> None:
        self.last_active_s = self._loop.time()
        try:
            if self._frame_bytes:
                self._receive_into_frame()
            else:
                self._receive_frames()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.close()  # reset by the peer: nothing to say
            return
        except Exception as error:  # noqa: BLE001  # logged there, with its traceback
            # What lay behind this request in the buffer is lost, so the rest would be read out of step.
            self._close_for(error)
            return
        if self._out:  # what comes behind an answer that is awaited goes with it
            self._send_answers()

    def _receive_into_frame(self) -> None:
        """Receive the rest of a frame and, by the same call, what follows it."""
        if len(self._frame) < self._frame_bytes:
            self._receive_part_of_large_frame()
            return
        with memoryview(self._frame) as buffer:
            rest = buffer[self._frame_filled : self._frame_bytes]
            count = self._socket.recvmsg_into((rest, self._read_ahead))[0]
            missing = len(rest)
            rest.release()
            if count == 0:
                self.close()
                return
            if count < missing:
                self._frame_filled += count
                return
            with buffer[: self._frame_bytes].toreadonly() as frame:
                self._frame_bytes = 0
                self._take(frame)
        if len(self._frame) > FRAME_BUFFER_KEPT_BYTES_MAX:
            self._frame = bytearray()
        if count > missing and not self._closed:
            self._take_frames(count - missing)

    def _receive_part_of_large_frame(self) -> None:
        with memoryview(self._frame) as buffer:
            count = self._socket.recv_into(buffer[self._frame_filled :])
        if count == 0:
            self.close()
            return
        self._frame_filled += count
        if self._frame_filled == len(self._frame):
            self._frame += bytes(min(len(self._frame), self._frame_bytes - len(self._frame)))

    def _receive_frames(self) -> None:
        kept = len(self._partial_size)
        if kept:
            _shared_receive_buffer[:kept] = self._partial_size
        room = self._read_ahead[kept:]
        count = self._socket.recv_into(room)
        if count == 0:
            self.close()
            return
        self._partial_size = b""
        self._take_frames(kept + count)
        if self._frame_bytes >= LARGE_FRAME_BYTES and count == len(room):
            self._receive_into_frame()  # more of it has come

    def _take_frames(self, end: int) -> None:
        """Handle the frames that lie in the shared buffer up to `end`; keep what is left of the last."""
        position = 0
        while end - position >= 4:
            (size,) = _SIZE.unpack_from(_received, position)
            if not 0 < size <= self._request_bytes_max:
                raise InvalidRequestBytes(
                    f"A request announces {size} bytes, and socket.request.max.bytes is"
                    f" {self._request_bytes_max}."
                )
            start = position + 4
            if start + size > end:
                self._begin_frame(size, _received[start:end])
                return
            position = start + size
            self._read_ahead = _shared_receive_buffer
            self._take(_received[start:position])
            if self._closed:
                return
        self._partial_size = bytes(_received[position:end])

    def _begin_frame(self, size: int, received: memoryview) -> None:
        self._read_ahead = _shared_head if size >= LARGE_FRAME_BYTES else _shared_receive_buffer
        if len(self._frame) < size:
            # A large frame's buffer grows with what comes: an announcement alone must cost nothing.
            self._frame = bytearray(min(size, FRAME_BUFFER_KEPT_BYTES_MAX))
        self._frame_bytes = size
        self._frame_filled = len(received)
        self._frame[: self._frame_filled] = received

    def _take(self, frame: memoryview | bytes) -> None:
        if self._holding or self._unmute is not None:
            self._held.append(bytes(frame))
        else:
            self._take_answer(self._handle(self, memoryview(frame)))

    def _take_answer(self, answer: Answer) -> None:
        if answer is None:
            return
        if isinstance(answer, Hold):
            self._hold(answer)
            return
        if isinstance(answer, list):
            if not self._answers:
                self._queue(answer)
                return
            self._answers.append(answer)
        else:
            body = answer.body
            task = body if isinstance(body, Pending) else asyncio.ensure_future(body)
            if self._closed:  # by the handler, whose other answer could not be sent
                self._loop.call_soon(task.cancel)
                return
            self._answers.append((task, answer.encode))
            self._tasks.add(task)
            task.add_done_callback(self._on_answer)
        if len(self._answers) >= REQUESTS_UNDER_WAY_MAX:
            self._pause_reading()

    def _hold(self, hold: Hold) -> None:
        self._holding = True
        self._pause_reading()
        ready = asyncio.ensure_future(hold.ready)
        self._tasks.add(ready)

        def go_on(_: asyncio.Future[None]) -> None:
            self._tasks.discard(ready)
            if not self._closed:
                self._go_on(hold.then)

        ready.add_done_callback(go_on)

    def _go_on(self, then: Callable[[], Answer]) -> None:
        """Handle the request that was held, and those that came after it until one is held again."""
        self._holding = False
        self._take_held(then)

    def _take_held(self, first: Callable[[], Answer] | None = None) -> None:
        held, self._held = self._held, deque()
        try:
            if first is not None:
                self._take_answer(first())
            for frame in held:
                if self._closed:
                    return
                self._take(frame)
        except Exception as error:  # noqa: BLE001  # logged there, with its traceback
            self._close_for(error)
            return
        self._send_answers()

    def _pause_reading(self) -> None:
        if self._reading and not self._closed:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def _resume_reading(self) -> None:
        if (
            not self._reading
            and not self._closed
            and not self._holding
            and self._unmute is None
            and self._unsent_bytes < UNSENT_BYTES_MAX
            and len(self._answers) < REQUESTS_UNDER_WAY_MAX
        ):
            self._reading = True
            self._loop.add_reader(self._fd, self._on_readable)

    # --- Writing ---

    def _on_answer(self, task: _Awaited) -> None:
        self._tasks.discard(task)
        if self._closed or task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._close_for(error)
            return
        if len(self._answers) == 1:
            self._send_answers()
        elif not self._sending_soon:
            # Others that wait may be answered by the same cause, and leave by the same call.
            self._sending_soon = True
            self._loop.call_soon(self._send_soon)

    def _send_soon(self) -> None:
        self._sending_soon = False
        if not self._closed:
            self._send_answers()

    def _send_answers(self) -> None:
        """Move answers that are ready, up to the first that is not, to the socket."""
        answers = self._answers
        try:
            while answers:
                answer = answers[0]
                if isinstance(answer, list):
                    self._queue(answer)
                else:
                    made, encode = answer
                    if not made.done() or made.cancelled() or made.exception() is not None:
                        break  # a failed one closes the connection by its own callback
                    body = made.result()
                    if body is not None:
                        self._queue(encode(body))
                answers.popleft()
        except Exception as error:  # noqa: BLE001  # logged there, with its traceback
            self._close_for(error)
            return
        if self._out and not self._writing:
            self._send()
        self._resume_reading()

    def _queue(self, frame: Frame) -> None:
        """Bytes and small slices that lie side by side leave as one run."""
        run: list[bytes] = []
        for part in frame:
            if isinstance(part, bytes):
                self._unsent_bytes += len(part)
                run.append(part)
                continue
            assert isinstance(part, FileSlice)
            self._unsent_bytes += part.size_bytes
            if part.size_bytes <= SMALL_SLICE_BYTES:
                run.append(_read(part))
            else:
                if run:
                    self._out.append(b"".join(run))
                    run = []
                self._out.append(part)
        if run:
            self._out.append(b"".join(run))
        if self._unsent_bytes > UNSENT_BYTES_MAX:
            self._pause_reading()

    def _send(self) -> None:
        """Send as much as the socket takes; wait for it to be writable for the rest."""
        out = self._out
        try:
            while out:
                first = out[0]
                if isinstance(first, FileSlice):
                    self._send_slice(first)
                else:
                    self._send_bytes()
        except (BlockingIOError, InterruptedError):
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._fd, self._on_writable)
            return
        except OSError:
            self.close()
            return
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)

    def _on_writable(self) -> None:
        self.last_active_s = self._loop.time()
        self._send()
        self._resume_reading()

    def _send_slice(self, part: FileSlice) -> None:
        count = os.sendfile(self._fd, part.file.descriptor, part.position, part.size_bytes)
        if count == 0:
            raise OSError(_TOO_SHORT)
        self._unsent_bytes -= count
        if count == part.size_bytes:
            self._out.popleft()
        else:
            rest = part.size_bytes - count
            self._out[0] = FileSlice(part.file, part.position + count, rest, part.base_offset)

    def _send_bytes(self) -> None:
        out = self._out
        parts: list[bytes | memoryview] = []
        flags = 0
        for part in out:
            if isinstance(part, FileSlice):
                flags = socket.MSG_MORE  # the slice's first bytes fill the packet
                break
            parts.append(part)
            if len(parts) == PARTS_PER_SEND:
                break
        count = (
            self._socket.send(parts[0], flags) if len(parts) == 1 else self._socket.sendmsg(parts, (), flags)
        )
        self._unsent_bytes -= count
        for part in parts:
            if count >= len(part):
                count -= len(part)
                out.popleft()
            else:
                out[0] = memoryview(part)[count:]
                return


def _read(part: FileSlice) -> bytes:
    records = part.read()
    if len(records) != part.size_bytes:
        raise OSError(_TOO_SHORT)
    return records


def _peer_name(connected: socket.socket) -> str:
    try:
        host, port = connected.getpeername()[:2]
    except OSError:
        return "gone"
    return f"{host}:{port}"
