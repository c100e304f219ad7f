"""Ctrl-C and SIGTERM at the moments that a command chooses."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interruption:
    """Holds the first signal back between `defer` and `allow`: there an action and its account belong
    together. All others go at once to the handlers that are replaced: those of the entry point raise
    KeyboardInterrupt.

    Without `install` nothing is deferred, because nothing is received.
    """

    def __init__(self) -> None:
        self._replaced: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._is_deferred = False
        self._pending: int | None = None
        """The signal that was held back."""

    def install(self) -> None:
        """Receive SIGINT and SIGTERM in place of their present handlers.

        A signal without a handler in Python stays as it is: ignored, as a shell has its background processes
        ignore SIGINT, or with the effect that the system gives it.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            if callable(handler := signal.getsignal(number)):
                self._replaced[number] = handler
                signal.signal(number, self._on_signal)

    def defer(self) -> None:
        """Hold a signal back until `allow`."""
        self._is_deferred = True

    def allow(self) -> None:
        """Let signals interrupt again.

        Raises:
            KeyboardInterrupt: a signal came meanwhile.
        """
        self._is_deferred = False
        if self._pending is not None:
            self._replaced[self._pending](self._pending, None)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """`defer`, then `allow`, also after an error."""
        self.defer()
        try:
            yield
        finally:
            self._is_deferred = False
        self.allow()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_deferred and self._pending is None:
            self._pending = number
        else:
            self._replaced[number](number, frame)
