"""Flushes logs in threads: an fsync takes milliseconds, or seconds, and the event loop must not wait for it.

Of a log one flush runs at a time, as `PartitionLog.flush` requires. Records that are appended meanwhile are
left to the next flush, so that many requests share one. Topics take turns: a topic whose `flush.messages`
requires many flushes waits for its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from mainstem_broker.errors import StorageError
from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.runtime.fair_worker import FairWorker

THREADS: Final = 4
"""Fsyncs that are under way together share a commit of the file system's journal."""


class _Flushed(NamedTuple):
    """Everything before `offset` is durable, after a flush of `duration_s` seconds."""

    offset: int
    duration_s: float


def _flush(log: PartitionLog) -> _Flushed:
    begun_s = time.monotonic()
    offset = log.flush()
    return _Flushed(offset, time.monotonic() - begun_s)


class LogFlusher:
    """The only one that flushes logs while requests are served. Called on the event loop only."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        on_flushed: Callable[[PartitionLog], None],
        on_failed: Callable[[PartitionLog, StorageError], None],
    ) -> None:
        """Take what to call after each flush, when the log's recovery point has been updated."""
        self._now_ms = now_ms
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._worker = FairWorker("flushes", threads=THREADS)
        self._under_way: dict[PartitionLog, asyncio.Future[_Flushed]] = {}
        self._is_stopped = False
        self.flushes = 0
        """Flushes that have succeeded since the start."""
        self.flush_s = 0.0
        """The time that they took, without the time that they waited for a thread."""

    def request(self, log: PartitionLog) -> None:
        """Flush a log soon. Nothing if a flush is under way: its end shows whether another one is due."""
        if not self._is_stopped and log not in self._under_way:
            self._begin(log)

    async def flush(self, log: PartitionLog) -> None:
        """Flush a log, or wait for the flush that is under way.

        Raises:
            StorageError: the disk failed.
        """
        # Others wait for the same flush: a caller that is cancelled must not cancel it.
        await asyncio.shield(self._under_way.get(log) or self._begin(log))

    def _begin(self, log: PartitionLog) -> asyncio.Future[_Flushed]:
        flush = self._under_way[log] = self._worker.run(log.topic, partial(_flush, log))
        flush.add_done_callback(partial(self._finish, log, self._now_ms()))
        return flush

    def _finish(self, log: PartitionLog, started_ms: int, flush: asyncio.Future[_Flushed]) -> None:
        del self._under_way[log]
        if flush.cancelled():
            return
        error = flush.exception()
        if error is None:
            offset, duration_s = flush.result()
            self.flushes += 1
            self.flush_s += duration_s
            log.mark_flushed(offset, started_ms)
            self._on_flushed(log)
        elif isinstance(error, StorageError):
            self._on_failed(log, error)
        else:
            raise error

    async def stop(self) -> None:
        """Finish what threads are at, and begin nothing more."""
        self._is_stopped = True
        self._worker.close()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)
        self._worker.close(wait=True)  # its threads have nothing to do, so they end at once
