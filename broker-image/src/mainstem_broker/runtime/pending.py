"""An answer that somebody else gives later, and that goes out as soon as it is given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

import structlog

logger = structlog.get_logger(__name__)

T = TypeVar("T")


class Pending(Generic[T]):
    """As an asyncio future, but who waits is called by who settles it, at once.

    A future calls by the loop's next turn; of those turns a record had three between a follower's fetch and
    its acknowledgement. Callbacks are called in their order, and may settle others. One that raises is
    logged, for who settles has nothing to do with it.
    """

    __slots__ = ("_callbacks", "_error", "_is_cancelled", "_is_done", "_value")

    def __init__(self) -> None:
        self._is_done = self._is_cancelled = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Pending[T]], object]] = []

    def done(self) -> bool:
        return self._is_done

    def cancelled(self) -> bool:
        return self._is_cancelled

    def exception(self) -> BaseException | None:
        """Of one that is done and was not cancelled."""
        return self._error

    def result(self) -> T:
        """What was given.

        Raises:
            asyncio.CancelledError: it was cancelled; or the error that was given.
        """
        if self._is_cancelled:
            raise asyncio.CancelledError
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # set_result gave it

    def set_result(self, value: T) -> None:
        self._value = value
        self._settle()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._settle()

    def cancel(self) -> None:
        """Nothing waits any more. Does nothing once it is settled."""
        if not self._is_done:
            self._is_cancelled = True
            self._settle()

    def add_done_callback(self, callback: Callable[[Pending[T]], object]) -> None:
        """Call `callback` once it is settled, cancelled too; now if it is."""
        if self._is_done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def _settle(self) -> None:
        if self._is_done:
            raise asyncio.InvalidStateError("It is settled already.")
        self._is_done = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception:
                logger.exception("an answer was not taken")

    def __await__(self) -> Generator[Any, None, T]:
        if not self._is_done:
            settled = asyncio.get_running_loop().create_future()
            self.add_done_callback(lambda _: None if settled.done() else settled.set_result(None))
            try:
                yield from settled
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.result()
