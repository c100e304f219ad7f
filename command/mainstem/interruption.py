"""Ctrl-C and SIGTERM at the moments that a command chooses."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interruption:
    """Signals that raise KeyboardInterrupt, but not between `defer` and `allow`: there an action and its
    account belong together. A second signal is not deferred.

    Without `install` nothing is deferred, because nothing is received.
    """

    def __init__(self) -> None:
        self.received = signal.SIGINT
        """The last signal, for the exit code."""
        self._is_deferred = self._is_pending = False

    def install(self, *numbers: signal.Signals) -> None:
        """Receive these signals, except those that are ignored: a script ignores SIGINT for its background
        processes."""
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
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
        if self._is_pending:
            raise KeyboardInterrupt

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """`defer`, then `allow`, also after an error."""
        self.defer()
        try:
            yield
        finally:
            self._is_deferred = False
        self.allow()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        if self._is_pending or not self._is_deferred:
            raise KeyboardInterrupt
        self._is_pending = True
