"""How many bytes of requests the broker holds, and whose turn it is when they are too many
(`queued.max.request.bytes`). Knows no sockets and no clock.

Counted are frames that have come in part, and those that wait to be handled. While there are too many, a
large frame gets no more memory, except one at a time: the one that has waited longest for it, which is then
handled and gives its memory back. So requests are always answered, and memory exceeds the limit by one frame,
and by small frames, which are never kept waiting: they belong to clients that do not cause this.

Only a connection that has more to receive waits for its turn. So clients that begin many frames and send
nothing more do not keep others from their turns.
"""

from __future__ import annotations

from typing import Protocol


class Receiver(Protocol):
    """A connection that waits for memory."""

    def take_memory(self, *, is_privileged: bool) -> None:
        """Go on receiving; `is_privileged`: it must complete its frame soon, since others wait for that."""
        ...


class RequestMemory:
    """The bytes of all connections together."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0
        self._waiting: dict[Receiver, None] = {}  # the one that has waited longest first
        self._privileged: Receiver | None = None

    @property
    def waiting(self) -> int:
        """How many connections are not read from."""
        return len(self._waiting)

    def change(self, size_bytes: int) -> None:
        """A connection holds so much more, or less."""
        self.used_bytes += size_bytes
        if size_bytes < 0:
            self._let_go_on()

    def may_grow(self, receiver: Receiver) -> bool:
        """Whether a frame may get more memory now; if not, its connection has to `wait`."""
        return receiver is self._privileged or (self.used_bytes < self._limit_bytes and not self._waiting)

    def wait(self, receiver: Receiver) -> None:
        """Call `take_memory` of the receiver when its turn has come, which may be now."""
        self._waiting[receiver] = None
        self._let_go_on()

    def frame_ended(self, receiver: Receiver, freed_bytes: int) -> None:
        """The receiver's frame is complete, or the receiver is gone: it no longer waits, and holds less."""
        self._waiting.pop(receiver, None)  # first, or it would be its turn
        if self._privileged is receiver:
            self._privileged = None
        self.used_bytes -= freed_bytes
        self._let_go_on()

    def _let_go_on(self) -> None:
        while self._waiting and (self.used_bytes < self._limit_bytes or self._privileged is None):
            receiver = next(iter(self._waiting))
            del self._waiting[receiver]
            is_privileged = self.used_bytes >= self._limit_bytes
            if is_privileged:
                self._privileged = receiver
            receiver.take_memory(is_privileged=is_privileged)
