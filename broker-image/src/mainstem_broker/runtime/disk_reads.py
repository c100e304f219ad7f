"""Threads that read from the disk for the event loop, which goes on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from mainstem_broker.runtime import page_cache
from mainstem_broker.runtime.fair_worker import FairWorker
from mainstem_broker.runtime.page_cache import CACHED_ONLY, NotCached, OpenFile

T = TypeVar("T")

THREADS: Final = 8
"""Disks answer several reads together faster than one after another."""
LOADS_MAX: Final = 16
"""A look-up takes a handful: pages of two indexes and of some batches. After so many in vain, memory is so
short that what is loaded is evicted at once, and the look-up waits for the disk itself, to come to an end."""


class DiskReads:
    """Loads ranges of files into the page cache. Clients take turns. Called on the event loop only.

    A load takes no memory of the broker's but a buffer for each thread, so clients may ask for any number.
    """

    def __init__(self) -> None:
        self._worker = FairWorker("disk reads", threads=THREADS)
        self.loads = 0
        """How many were requested since the start."""
        self.loaded_bytes = 0

    def load(
        self, client: str, file: OpenFile | Path, position: int, size_bytes: int
    ) -> asyncio.Future[None]:
        """Load a range; the result comes when it is cached, or cannot be. Cancelling it saves the work."""
        self.loads += 1
        self.loaded_bytes += size_bytes
        return self._worker.run(client, partial(page_cache.load, file, position, size_bytes))

    def load_missing(self, client: str, missing: NotCached) -> asyncio.Future[None]:
        return self.load(client, missing.file, missing.position, missing.size_bytes)

    def close(self, *, wait: bool = False) -> None:
        """As `FairWorker.close`."""
        self._worker.close(wait=wait)


async def look_up(function: Callable[[], T], load_missing: Callable[[NotCached], Awaitable[None]]) -> T:
    """The result of a function that reads files by `page_cache.read_at`, or its error.

    The function is called again, from its beginning, whenever something that it needed has been loaded.
    """
    for _ in range(LOADS_MAX):
        try:
            with CACHED_ONLY:
                return function()
        except NotCached as raised:
            missing = raised
        await load_missing(missing)
    return function()
