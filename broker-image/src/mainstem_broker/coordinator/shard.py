"""One partition of an internal topic, and the state that its records amount to.

Belongs here: loading with retries, refusing requests until that is done, and appending. What the records mean
is decided by the subclass: `group/shard.py` for `__consumer_offsets`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import structlog

from mainstem_broker.coordinator.failures import as_coordinator_error
from mainstem_broker.coordinator.journal import Entry, Journal
from mainstem_broker.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NewerFormat,
    NotCoordinator,
    NotLeaderOrFollower,
    ProtocolError,
)

logger = structlog.get_logger(__name__)

BATCH_BYTES_MAX: Final = 512 * 1024
"""Size of the keys and values that go into one batch: below any sensible max.message.bytes."""

_ENTRY_OVERHEAD_BYTES: Final = 20
"""What a record adds to its key and value at most: lengths, offset and timestamp deltas, attributes."""

LOAD_PAUSE_S: Final = 1.0
LOAD_PAUSE_S_MAX: Final = 5.0
"""Pause after a failed attempt to load a partition: the first one, and the longest. It doubles in between."""


class Shard(ABC):
    """The state of one partition, for as long as this broker leads it without a break.

    `load` is called once. Requests are served while `require_loaded` passes. `close` is called once, when
    another broker leads the partition or this one stops.
    """

    def __init__(self, journal: Journal, wall_ms: Callable[[], int]) -> None:
        self.journal = journal
        self.is_loaded = False
        self.stopped: str | None = None
        """Why it will not be loaded here: records have a format that this broker does not read."""
        self._is_closed = False
        self._wall_ms = wall_ms
        self._loop = asyncio.get_running_loop()

    # --- What a kind of coordinator adds ---

    @abstractmethod
    async def restore(self) -> None:
        """Replay the journal and build the state; raises what `Journal.replay` raises."""

    @abstractmethod
    def discard(self, error_code: int) -> None:
        """Discard all state. Requests that are still waiting are answered with this error."""

    @abstractmethod
    async def upkeep(self) -> None:
        """Remove what has expired; called periodically once the shard is loaded.

        Where there may be much, in turns: the shard may be closed meanwhile.
        """

    # --- From the start of the leadership to its end ---

    async def load(self) -> None:
        """Restore the state. Failed attempts are repeated for as long as this broker leads the partition.

        No other broker can serve these requests meanwhile: clients are answered COORDINATOR_LOAD_IN_PROGRESS.
        """
        for pause_s in self._pauses_s():
            try:
                await self.restore()
            except NotLeaderOrFollower:
                return
            except NewerFormat as error:
                # Without these records the rest would be wrong: an offset that is missing sends consumers
                # elsewhere. Another broker may read them, so the leadership has to move.
                self.stopped = str(error)
                logger.error(
                    "coordinator partition stopped, as its records have a newer format: upgrade this broker",
                    partition=repr(self.journal.partition),
                    reason=self.stopped,
                )
                self.discard(CoordinatorNotAvailable.code)
                return
            except Exception as error:  # a disk that fails for the moment, or a mistake of ours
                logger.error(
                    "coordinator partition not loaded",
                    partition=repr(self.journal.partition),
                    reason=str(error),
                    retry_in_s=pause_s,
                    exc_info=not isinstance(error, ProtocolError),
                )
                self.discard(CoordinatorLoadInProgress.code)
                await asyncio.sleep(pause_s)
            else:
                self.is_loaded = True
                return

    @staticmethod
    def _pauses_s() -> Iterator[float]:
        pause_s = LOAD_PAUSE_S
        while True:
            yield pause_s
            pause_s = min(2 * pause_s, LOAD_PAUSE_S_MAX)

    def close(self) -> None:
        """End the leadership: waiting requests are answered with NOT_COORDINATOR."""
        self.discard(NotCoordinator.code)
        self.is_loaded = False
        self._is_closed = True

    def require_loaded(self) -> None:
        """Raise NotCoordinator after `close`, CoordinatorLoadInProgress before the state is loaded, and
        CoordinatorNotAvailable if it cannot be."""
        if self._is_closed:
            raise NotCoordinator("Another broker has become the coordinator.")
        if self.stopped is not None:
            raise CoordinatorNotAvailable(
                f"The coordinator's records have a newer format ({self.stopped}): upgrade broker"
                f" {self.journal.partition.local_broker_id}."
            )
        if not self.is_loaded:
            raise CoordinatorLoadInProgress("The coordinator is loading its state: retry.")

    # --- Writing ---

    def append(
        self,
        entries: Sequence[Entry],
        settle: Callable[[ProtocolError | None], None],
        apply: Callable[[], None] | None = None,
    ) -> None:
        """Append records in as few batches as their size allows.

        `settle` and `apply` are called as by `Journal.append`, once for all batches: `settle` with the first
        failure, `apply` when all of them are replicated. Never raises: `settle` is given the error.
        """
        batches = list(_batches(entries))
        unsettled = unapplied = len(batches)
        failure: ProtocolError | None = None

        def settle_batch(error: ProtocolError | None) -> None:
            nonlocal unsettled, failure
            unsettled -= 1
            failure = failure or error
            if unsettled == 0:
                settle(failure)

        def apply_batch() -> None:
            nonlocal unapplied
            unapplied -= 1
            if unapplied == 0 and apply is not None:
                apply()

        for number, batch in enumerate(batches):
            try:
                self.journal.append(batch, self._wall_ms(), settle_batch, apply_batch)
            except ProtocolError as error:
                unsettled -= len(batches) - number - 1  # the batches after this one are not attempted
                settle_batch(error)
                return

    def append_tombstones(
        self,
        keys: Sequence[bytes],
        apply: Callable[[], None] | None = None,
        translate: Callable[[ProtocolError], ProtocolError] = as_coordinator_error,
    ) -> asyncio.Future[None]:
        """Delete records; done when the tombstones are replicated, or failed with the translated error."""
        deleted: asyncio.Future[None] = self._loop.create_future()

        def settle(error: ProtocolError | None) -> None:
            if deleted.done():  # the request that waited was cancelled
                return
            if error is None:
                deleted.set_result(None)
            else:
                deleted.set_exception(translate(error))
                deleted.exception()  # retrieved: nothing waits for periodic deletions, which are repeated

        if keys:
            self.append([(key, None, ()) for key in keys], settle, apply)
        else:
            if apply is not None:
                apply()
            settle(None)
        return deleted


def _batches(entries: Sequence[Entry]) -> Iterable[list[Entry]]:
    batch: list[Entry] = []
    size_bytes = 0
    for entry in entries:
        key, value, _ = entry
        entry_bytes = len(key) + len(value or b"") + _ENTRY_OVERHEAD_BYTES
        if batch and size_bytes + entry_bytes > BATCH_BYTES_MAX:
            yield batch
            batch, size_bytes = [], 0
        batch.append(entry)
        size_bytes += entry_bytes
    if batch:
        yield batch
