"""One client's connection: frames in, responses out, in the order of the requests.

Bytes only: what a frame means is the router's business. Reading and writing go straight to the socket
through the loop's readiness callbacks, because two things of asyncio's streams would cost too much here:
they copy what they read once more, and they cannot mix bytes with `os.sendfile` (R3). An encrypted
connection differs in the socket's calls (`tls_socket.py`), and in that there may be more to read than the
socket's events say.

- Reading: one buffer, shared by all connections of the loop, receives; small frames are handled where
  they lie. A frame that is larger than what has come gets a buffer of its own and is received into it.
  Large frames come one after another, and what is read ahead of one is copied: so that is only its head.
- Writing: the answers to all frames of one read leave together. A file slice is sent from the page cache
  by `os.sendfile`, between bytes; those before it wait in the socket for it (`MSG_MORE`), as a packet of
  their own would wake the peer. Corking would spare those after it too, for two more calls: no gain.
- Cold slices: what is not in the page cache is loaded by a thread first, a part at a time, so a client that
  reads what is only on the disk waits alone (`runtime/page_cache.py`). The answers behind wait with it.
- Order: requests are handled as they come, several at a time (Kafka handles one), and answers wait for
  those of earlier requests, as the protocol demands.
- Limits: a connection has a limit for requests under way, for bytes that wait to be sent, and for the time
  that its requests take of the loop in one turn. At a limit it handles nothing more and is not read from;
  what has come already is kept. The same holds while a request is held, and while the connection is muted
  because its client exceeds a quota. A frame takes memory as its bytes come, whatever size it announces;
  a large one waits while all connections together hold too much (`request_memory.py`).
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, Final, NamedTuple

import structlog

from mainstem_broker.errors import InvalidRequestBytes
from mainstem_broker.log.files import FileSlice, TruncatedSlice
from mainstem_broker.protocol.wire import Frame
from mainstem_broker.runtime.disk_reads import DiskReads
from mainstem_broker.runtime.page_cache import NotCached, is_cached, read_cached
from mainstem_broker.runtime.pending import Pending
from mainstem_broker.security.authorizer import normalized_host
from mainstem_broker.security.login import Login
from mainstem_broker.security.principals import ANONYMOUS, Principal
from mainstem_broker.server.client_software import UNKNOWN
from mainstem_broker.server.refusal_log import RefusalLog
from mainstem_broker.server.request_memory import RequestMemory
from mainstem_broker.server.tls_socket import TlsSocket

logger = structlog.get_logger(__name__)

RECEIVE_BUFFER_BYTES: Final = 256 * 1024
LARGE_FRAME_BYTES: Final = 64 * 1024
HEAD_BYTES: Final = 4 * 1024
"""How much is read ahead of a connection whose last frame was large."""
REQUESTS_UNDER_WAY_MAX: Final = 128
COROUTINES_UNDER_WAY_MAX: Final = 4
"""Of the requests under way, those whose handlers are coroutines: several may go on in one turn of the loop,
after the same event, and each may take long."""
UNSENT_BYTES_MAX: Final = 1024 * 1024
"""A client that reads its answers has hardly any unsent: the socket's buffer takes as much as is under way.
One answer may exceed it."""
TURN_S: Final = 0.005
"""For as long the requests of one connection are handled without a pause for other connections."""
FIRST_FRAME_BUFFER_BYTES: Final = 4 * 1024
PARTS_PER_SEND: Final = 64
SMALL_SLICE_BYTES: Final = 16 * 1024
"""A slice up to this size is read and leaves with the bytes around it, by one call and in one packet: a
copy of so little costs less than the calls that spare it (8 us instead of 13 us of the kernel's time)."""
PART_OF_SLICE_BYTES: Final = 1024 * 1024
"""As much of a slice is sent by one call, and loaded at a time if it is cold: about what a socket takes."""
PROGRESS_S: Final = 10.0
PROGRESS_BYTES: Final = 1024 * 1024
"""What a connection whose frame others wait for has to receive in that time: any network does."""
FRAME_BUFFER_KEPT_BYTES_MAX: Final = 2 * 1024 * 1024
"""A connection keeps its frame buffer for the next frame up to this size, a batch of 1 MiB and more."""
TLS_HANDSHAKE: Final = 0x1603
"""The first bytes of a TLS connection: the type of a handshake record, and the major version (RFC 8446, 5.1).
The minor version differs: OpenSSL writes 1 in the first record, Java 3."""

_TOO_SHORT: Final = "the file is shorter than the slice that was to be sent"
_SIZE: Final = struct.Struct(">i")
_shared_receive_buffer: Final = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
_shared_head: Final = _shared_receive_buffer[:HEAD_BYTES]
_received: Final = _shared_receive_buffer.toreadonly()  # the decoder takes no other


class Hold(NamedTuple):
    """Not yet: `then` is to be called when `ready` is done, and requests that follow wait behind it."""

    ready: Awaitable[Any]
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
    """A connected socket, non-blocking, or an established TLS connection.

    `handle` is called with each frame; the view dies with the call.
    """

    __slots__ = (
        "_answers",
        "_awaits_memory",
        "_closed",
        "_coroutines",
        "_disk",
        "_fd",
        "_finishing",
        "_frame",
        "_frame_bytes",
        "_frame_filled",
        "_handle",
        "_handled_bytes",
        "_held",
        "_held_bytes",
        "_hold_bytes",
        "_holding",
        "_loaded_bytes",
        "_loading",
        "_loop",
        "_memory",
        "_memory_bytes",
        "_muted_until_s",
        "_on_close",
        "_out",
        "_partial_size",
        "_progress",
        "_read_ahead",
        "_reading",
        "_refusals",
        "_sending_soon",
        "_socket",
        "_tasks",
        "_tls",
        "_turn_ends_s",
        "_unmute",
        "_unsent_bytes",
        "_writing",
        "_yielding",
        "last_active_s",
        "login",
        "peer",
        "principal",
        "request_bytes_max",
        "software",
    )

    def __init__(
        self,
        connected: socket.socket | TlsSocket,
        handle: Handle,
        *,
        request_bytes_max: int,
        disk: DiskReads,
        on_close: Callable[[Connection], None],
        principal: Principal = ANONYMOUS,
        memory: RequestMemory | None = None,
        refusals: RefusalLog | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = connected
        self._tls = connected if isinstance(connected, TlsSocket) else None
        self._fd = connected.fileno()
        self.peer = _peer_name(connected)
        self.principal = principal
        """Who is at the other end; a login changes it."""
        self._handle = handle
        self.request_bytes_max = request_bytes_max
        self.login: Login | None = None
        """Where the listener demands one: what the client has done of it."""
        self.software = UNKNOWN
        """What the client says it is."""
        self._finishing: str | None = None
        self._on_close = on_close
        self._refusals = RefusalLog() if refusals is None else refusals
        # A frame in the making: its buffer (kept for the next one), its size, and how much has come.
        self._frame = bytearray()
        self._frame_bytes = 0
        self._frame_filled = 0
        self._partial_size = b""  # up to three bytes of a size prefix
        self._read_ahead = _shared_receive_buffer  # or its head
        # While no further request may be handled, the frames that have come, copied.
        self._holding = False
        self._yielding = False  # until the loop's next turn
        self._turn_ends_s = 0.0
        self._unmute: asyncio.TimerHandle | None = None
        self._muted_until_s = 0.0
        self._held: deque[bytes] = deque()
        # What requests take of the memory of all connections, where that is limited.
        self._memory = memory
        self._memory_bytes = 0  # as reported last
        self._awaits_memory = False
        self._progress: asyncio.TimerHandle | None = None
        self._handled_bytes = self._hold_bytes = self._held_bytes = 0
        # Answers to requests under way, oldest first: a frame, or what is waited for and how to write it.
        self._answers: deque[Frame | tuple[_Awaited, Callable[[Any], Frame]]] = deque()
        self._tasks: set[_Awaited] = set()
        self._coroutines = 0  # of those
        self._out: deque[bytes | memoryview | FileSlice] = deque()
        self._unsent_bytes = 0
        # While the slice that is to be sent next is loaded; then how much of it was.
        self._disk = disk
        self._loading: asyncio.Future[None] | None = None
        self._loaded_bytes = 0
        self._sending_soon = False
        self._writing = False
        self._reading = True
        self._closed = False
        self.last_active_s = self._loop.time()
        self._add_reader()

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
            self._refusals.write("connection closed", self.peer, reason=reason)
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        if self._unmute is not None:
            self._unmute.cancel()
        if self._memory is not None:
            self._release_memory(self._memory)
        if self._loading is not None:
            self._loading.cancel()
        for task in self._tasks:
            # A task cancelled before its first step would leave the coroutine it was made of unawaited.
            self._loop.call_soon(task.cancel)
        self._answers.clear()
        self._held.clear()
        self._out.clear()
        self._socket.close()
        self._on_close(self)

    def finish(self, reason: str) -> None:
        """Handle no further request, and close when those under way are answered; `reason` is logged."""
        if self._closed or self._finishing is not None:
            return
        self._finishing = reason
        self._holding = True
        self._pause_reading()
        self._loop.call_soon(self._close_if_finished)

    def _close_if_finished(self) -> None:
        if not self._answers and not self._out and not self._writing:
            self.close(self._finishing)

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
        self._go_on()

    def _close_for(self, error: BaseException) -> None:
        """Close because a request could not be answered: by the peer's fault, by ours, or by a truncation."""
        if isinstance(error, InvalidRequestBytes | TruncatedSlice):
            self.close(str(error))
        else:
            logger.error("request failed", peer=self.peer, exc_info=error)
            self.close("a request could not be answered")

    # --- Reading ---

    def _add_reader(self) -> None:
        tls = self._tls
        if tls is None:
            self._loop.add_reader(self._fd, self._on_readable)
        else:
            self._loop.add_reader(self._fd, self._on_tls_readable)
            if tls.has_unread:
                self._loop.call_soon(self._on_tls_readable)

    def _on_tls_readable(self) -> None:
        """What the socket has given may be more than was taken: no event would tell of the rest."""
        tls = self._tls
        assert tls is not None
        if self._closed or not self._reading:
            return  # since this was to be called
        self._on_readable()
        while tls.has_unread and self._reading and not self._closed:
            self._on_readable()

    def _on_readable(self) -> None:
        self.last_active_s = self._loop.time()
        self._turn_ends_s = perf_counter() + TURN_S
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
        if self._memory is not None:
            self._frame = bytearray()  # what is kept would be memory that nobody counts
            if not self._closed:
                self._end_frame(self._memory)
        elif len(self._frame) > FRAME_BUFFER_KEPT_BYTES_MAX:
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
        if self._frame_filled < len(self._frame):
            return
        if self._memory is None:
            self._grow_frame()
        elif self._frame_bytes < LARGE_FRAME_BYTES or self._memory.may_grow(self):
            self._grow_frame()
            self._report_memory(self._memory)
        else:
            self._awaits_memory = True
            self._pause_reading()
            self._memory.wait(self)

    def _grow_frame(self) -> None:
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
            if not 0 < size <= self.request_bytes_max:
                if size >> 16 == TLS_HANDSHAKE:
                    raise InvalidRequestBytes(
                        "The client speaks TLS, and this listener does not: it has to use another port, or"
                        " security.protocol without SSL."
                    )
                has_login = self.login is None or not self.login.is_under_way
                setting = "socket.request.max.bytes" if has_login else "sasl.server.max.receive.size"
                raise InvalidRequestBytes(
                    f"A request announces {size} bytes, and {setting} is {self.request_bytes_max}."
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
            # The buffer grows with what comes: an announcement alone must cost nothing.
            self._frame = bytearray(min(size, max(FIRST_FRAME_BUFFER_BYTES, 2 * len(received))))
        self._frame_bytes = size
        self._frame_filled = len(received)
        self._frame[: self._frame_filled] = received
        if self._memory is not None:
            self._report_memory(self._memory)

    # Memory of requests, where it is limited (`queued.max.request.bytes`)

    def _report_memory(self, memory: RequestMemory) -> None:
        """Say how much this connection holds now."""
        change = self._memory_change()
        if change:
            memory.change(change)

    def _memory_change(self) -> int:
        """What this connection holds more than was reported last, which is reported now."""
        size_bytes = self._held_bytes + self._hold_bytes + (len(self._frame) if self._frame_bytes else 0)
        change = size_bytes - self._memory_bytes
        self._memory_bytes = size_bytes
        return change

    def _end_frame(self, memory: RequestMemory) -> None:
        """A frame is complete: others may have its memory."""
        if self._progress is not None:
            self._progress.cancel()
            self._progress = None
        memory.frame_ended(self, -self._memory_change())

    def _release_memory(self, memory: RequestMemory) -> None:
        self._frame_bytes = self._held_bytes = self._hold_bytes = 0
        self._awaits_memory = False
        self._end_frame(memory)

    def take_memory(self, *, is_privileged: bool) -> None:
        """The frame that is being received may grow (`RequestMemory`)."""
        memory = self._memory
        assert memory is not None
        self._grow_frame()
        self._report_memory(memory)
        if is_privileged:
            self._progress = self._loop.call_later(PROGRESS_S, self._require_progress, self._frame_filled)
        self._awaits_memory = False
        self._resume_reading()

    def _require_progress(self, filled_before: int) -> None:
        """Close if this connection keeps all others waiting that have a large request to send."""
        if self._frame_filled - filled_before < PROGRESS_BYTES:
            self._progress = None
            self.close(
                "a large request comes too slowly, and keeps others waiting (queued.max.request.bytes)"
            )
        else:
            self._progress = self._loop.call_later(PROGRESS_S, self._require_progress, self._frame_filled)

    def _take(self, frame: memoryview) -> None:
        if self._held or self._is_blocked():
            self._held.append(bytes(frame))
            self._held_bytes += len(frame)
            if self._memory is not None:
                self._report_memory(self._memory)
            self._pause_reading()
        else:
            self._handle_frame(frame)

    def _is_blocked(self) -> bool:
        """Whether no further request may be handled now."""
        return (
            self._holding
            or self._yielding
            or self._unmute is not None
            or self._unsent_bytes >= UNSENT_BYTES_MAX
            or self._coroutines >= COROUTINES_UNDER_WAY_MAX
            or len(self._answers) >= REQUESTS_UNDER_WAY_MAX
        )

    def _handle_frame(self, frame: memoryview) -> None:
        self._handled_bytes = len(frame)
        self._take_answer(self._handle(self, frame))
        if perf_counter() > self._turn_ends_s:
            self._yield_turn()

    def _yield_turn(self) -> None:
        """Let other connections have the loop before the next request."""
        if not self._yielding and not self._closed:
            self._yielding = True
            self._pause_reading()
            self._loop.call_soon(self._end_yield)

    def _end_yield(self) -> None:
        self._yielding = False
        self._go_on()

    def _take_answer(self, answer: Answer) -> None:
        if answer is None:
            return
        if isinstance(answer, Hold):
            self._hold(answer)
            return
        if isinstance(answer, list):
            self._unsent_bytes += _size_of(answer)
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
            if task is not body:
                self._coroutines += 1
                task.add_done_callback(self._on_coroutine_end)
            task.add_done_callback(self._on_answer)
        if len(self._answers) >= REQUESTS_UNDER_WAY_MAX:
            self._pause_reading()

    def _hold(self, hold: Hold) -> None:
        self._holding = True
        if self._memory is not None:
            self._hold_bytes = self._handled_bytes  # it keeps a copy of its frame
            self._report_memory(self._memory)
        self._pause_reading()
        ready = asyncio.ensure_future(hold.ready)
        self._tasks.add(ready)

        def go_on(_: asyncio.Future[Any]) -> None:
            self._tasks.discard(ready)
            if not self._closed:
                self._holding = False
                self._hold_bytes = 0
                self._go_on(hold.then)
                if self._memory is not None and not self._closed:
                    self._report_memory(self._memory)

        ready.add_done_callback(go_on)

    def _go_on(self, then: Callable[[], Answer] | None = None) -> None:
        """Handle the request that was held, if there is one, and the frames that came since, as far as may
        be."""
        if self._closed:
            return
        self._turn_ends_s = perf_counter() + TURN_S
        try:
            if then is not None:
                self._take_answer(then())
            while self._held and not self._closed and not self._is_blocked():
                frame = memoryview(self._held.popleft())
                self._held_bytes -= len(frame)
                self._handle_frame(frame)
        except Exception as error:  # noqa: BLE001  # logged there, with its traceback
            self._close_for(error)
            return
        if not self._closed:
            if self._memory is not None:
                self._report_memory(self._memory)
            self._send_answers()

    def _pause_reading(self) -> None:
        if self._reading and not self._closed:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def _resume_reading(self) -> None:
        if self._reading or self._closed:
            return
        if self._finishing is not None:
            self._close_if_finished()
            return
        if self._is_blocked() or self._awaits_memory:
            return
        if self._held:
            self._yield_turn()  # and then go on with those
        else:
            self._reading = True
            self._add_reader()

    # --- Writing ---

    def _on_coroutine_end(self, _task: _Awaited) -> None:
        self._coroutines -= 1

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
                    if self._out and self._unsent_bytes >= UNSENT_BYTES_MAX:
                        break  # goes on when the socket has taken some
                    body = made.result()
                    if body is not None:
                        frame = encode(body)
                        self._unsent_bytes += _size_of(frame)
                        self._queue(frame)
                    if len(answers) > 1 and perf_counter() > self._turn_ends_s:
                        answers.popleft()
                        self._yield_turn()
                        break
                answers.popleft()
        except Exception as error:  # noqa: BLE001  # logged there, with its traceback
            self._close_for(error)
            return
        if self._out and not self._writing and self._loading is None:
            self._send()
            if answers and not self._out and _is_ready(answers[0]):
                # The socket has taken everything at once: no event would send what waited for that.
                self._yield_turn()
        self._resume_reading()

    def _queue(self, frame: Frame) -> None:
        """Bytes and small slices that lie side by side leave as one run."""
        run: list[bytes] = []
        for part in frame:
            if isinstance(part, bytes):
                run.append(part)
                continue
            assert isinstance(part, FileSlice)
            if part.size_bytes <= SMALL_SLICE_BYTES:
                try:
                    run.append(_read(part))
                    continue
                except NotCached:
                    pass  # loaded when its turn comes
            if run:
                self._out.append(b"".join(run))
                run = []
            self._out.append(part)
        if run:
            self._out.append(b"".join(run))
        if self._unsent_bytes >= UNSENT_BYTES_MAX:
            self._pause_reading()

    def _send(self) -> None:
        """Send as much as the socket takes; wait for it to be writable, or for the disk, for the rest."""
        out = self._out
        try:
            while out and self._loading is None:
                first = out[0]
                if isinstance(first, FileSlice):
                    self._send_slice(first)
                else:
                    self._send_bytes()
            if self._tls is not None:
                self._tls.flush()
        except (BlockingIOError, InterruptedError):
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._fd, self._on_writable)
            return
        except OSError:
            self.close()
            return
        except TruncatedSlice as error:
            self.close(str(error))  # the response has begun and cannot be completed
            return
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)

    def _on_writable(self) -> None:
        self.last_active_s = self._loop.time()
        self._send()
        if self._answers:
            self._send_answers()
        else:
            self._resume_reading()

    def _send_slice(self, part: FileSlice) -> None:
        part.require_whole()
        size_bytes = min(part.size_bytes, self._loaded_bytes or PART_OF_SLICE_BYTES)
        if self._loaded_bytes:
            self._loaded_bytes = 0  # not asked again: on some file system the answer could stay the same
        elif not is_cached(part.file, part.position, size_bytes):
            self._load(part, size_bytes)
            return
        tls = self._tls
        if tls is None:
            count = os.sendfile(self._fd, part.file.descriptor, part.position, size_bytes)
        else:
            count = tls.send_slice(part)
        if count == 0:
            raise OSError(_TOO_SHORT)
        self._unsent_bytes -= count
        if count == part.size_bytes:
            self._out.popleft()
        else:
            rest = part.size_bytes - count
            self._out[0] = FileSlice(part.file, part.position + count, rest, part.base_offset)

    def _load(self, part: FileSlice, size_bytes: int) -> None:
        """Have the beginning of a slice loaded, and go on then."""

        def go_on(_: asyncio.Future[None]) -> None:
            self._loading = None
            if not self._closed:
                self._loaded_bytes = size_bytes
                self._on_writable()

        self._loading = self._disk.load(self.peer, part.file, part.position, size_bytes)
        self._loading.add_done_callback(go_on)

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


def _is_ready(answer: Frame | tuple[_Awaited, Callable[[Any], Frame]]) -> bool:
    return isinstance(answer, list) or answer[0].done()


def _size_of(frame: Frame) -> int:
    size = 0
    for part in frame:
        size += len(part) if isinstance(part, bytes) else part.size_bytes
    return size


def _read(part: FileSlice) -> bytes:
    part.require_whole()
    records = read_cached(part.file, part.size_bytes, part.position)
    if len(records) != part.size_bytes:
        raise OSError(_TOO_SHORT)
    return records


def _peer_name(connected: socket.socket | TlsSocket) -> str:
    try:
        host, port = connected.getpeername()[:2]
    except OSError:
        return "gone"
    return f"{normalized_host(host)}:{port}"
