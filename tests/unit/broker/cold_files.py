"""A page cache that tests play: no page of a file is cached until a thread has loaded it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from typing import Final

import pytest

PAGE_BYTES: Final = 4096
_preadv: Final = os.preadv


class ColdFiles:
    """In the place of `os.preadv`. Loads wait while the `disk` is not set."""

    def __init__(self) -> None:
        self.disk = threading.Event()
        self.disk.set()
        self.loads: list[tuple[int, int]] = []
        """(position, bytes) of every read that was let wait."""
        self._cached: set[tuple[int, int]] = set()

    def evict(self) -> None:
        self._cached.clear()

    def preadv(
        self, descriptor: int, buffers: Sequence[bytearray | memoryview], position: int, flags: int = 0
    ) -> int:
        size_bytes = sum(len(buffer) for buffer in buffers)
        pages = self._pages(descriptor, position, size_bytes)
        if flags & os.RWF_NOWAIT:
            count = _preadv(descriptor, buffers, position)
            if count and not self._cached.issuperset(pages[:1]):
                raise BlockingIOError
            missing = next((number for number, page in enumerate(pages) if page not in self._cached), None)
            if missing is not None:
                count = min(count, max((pages[missing][1]) * PAGE_BYTES - position, 0))
            return count
        assert self.disk.wait(10)
        self.loads.append((position, size_bytes))
        self._cached.update(pages)
        return _preadv(descriptor, buffers, position)

    def _pages(self, descriptor: int, position: int, size_bytes: int) -> list[tuple[int, int]]:
        inode = os.fstat(descriptor).st_ino
        end = min(position + size_bytes, os.fstat(descriptor).st_size)
        if end <= position:
            return []
        return [(inode, number) for number in range(position // PAGE_BYTES, (end - 1) // PAGE_BYTES + 1)]


@pytest.fixture
def cold_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[ColdFiles]:
    played = ColdFiles()
    monkeypatch.setattr(os, "preadv", played.preadv)
    yield played
    played.disk.set()  # no thread is left waiting
