"""Reads from files that never wait for the disk, for the event loop; and what brings the rest into memory.

A read of a page that is not in the page cache stops the thread until the disk has answered, which takes
milliseconds, and all clients if the thread is the event loop's. The kernel says instead that it would have
to wait if it is asked to (`RWF_NOWAIT`, preadv2(2)). A look-up in a file, which knows nothing of this, reads
with `read_at`. Where the caller demands it by `CACHED_ONLY`, `read_at` raises `NotCached`, as a page fault:
another thread loads the range (`DiskReads`), and the look-up is repeated from its beginning.

A read that must not wait costs about a microsecond more than one that may (2 to 5 instead of 1 to 4 for up to
4 KiB, ext4). On a file system that does not support RWF_NOWAIT, everything counts as cached.
"""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

LOAD_STEP_BYTES: Final = 256 * 1024
"""How much a thread reads by one call: as much memory it takes."""

_probe: Final = (bytearray(1),)


class OpenFile(Protocol):
    """Keeps its descriptor open while it is referred to."""

    descriptor: int


class NotCached(Exception):
    """A read would have to wait for the disk: for `size_bytes` at `position` of `file`.

    A file that is open for this read only is given by its path: many reads may be waiting.
    """

    def __init__(self, file: OpenFile | Path, position: int, size_bytes: int) -> None:
        super().__init__(f"{size_bytes} bytes at {position} are not cached")
        self.file = file
        self.position = position
        self.size_bytes = size_bytes

    def load(self) -> None:
        """Bring the range into the page cache, as `load`."""
        load(self.file, self.position, self.size_bytes)


class _Mode(threading.local):
    is_cached_only = False


_mode: Final = _Mode()


class _CachedOnly:
    """Within it, this thread's `read_at` raises NotCached instead of waiting. Must not be nested.

    Only for look-ups that change nothing: they are given up anywhere, and repeated.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        _mode.is_cached_only = True

    def __exit__(self, *_: object) -> None:
        _mode.is_cached_only = False


CACHED_ONLY: Final = _CachedOnly()


def read_at(file: OpenFile, size_bytes: int, position: int) -> bytes:
    """Up to `size_bytes` at `position`; less only where the file ends.

    Raises:
        NotCached: within `CACHED_ONLY`, it would have to wait for the disk.
        OSError: the disk failed.
    """
    if _mode.is_cached_only:
        return read_cached(file, size_bytes, position)
    return os.pread(file.descriptor, size_bytes, position)


def read_cached(file: OpenFile, size_bytes: int, position: int) -> bytes:
    """As `read_at` within `CACHED_ONLY`."""
    buffer = bytearray(size_bytes)
    try:
        count = os.preadv(file.descriptor, (buffer,), position, os.RWF_NOWAIT)
    except BlockingIOError:
        raise NotCached(file, position, size_bytes) from None
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return os.pread(file.descriptor, size_bytes, position)
    if count == size_bytes:
        return bytes(buffer)
    if position + count < os.fstat(file.descriptor).st_size:
        raise NotCached(file, position, size_bytes)
    return bytes(buffer[:count])


def is_cached(file: OpenFile, position: int, size_bytes: int) -> bool:
    """Whether the first and the last byte of a range are cached.

    What lies between nearly always is then, too: files are read in sequence, and pages that were used
    together are evicted together. May raise OSError.
    """
    try:
        os.preadv(file.descriptor, _probe, position, os.RWF_NOWAIT)
        os.preadv(file.descriptor, _probe, position + size_bytes - 1, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
    return True


def load(file: OpenFile | Path, position: int, size_bytes: int) -> None:
    """Bring a range into the page cache, and wait for it. Any thread may call it.

    The read that follows reports a file that is gone and a disk that fails.
    """
    with suppress(OSError):
        if isinstance(file, Path):
            with file.open("rb", buffering=0) as opened:
                _load(opened.fileno(), position, size_bytes)
        else:
            _load(file.descriptor, position, size_bytes)


def _load(descriptor: int, position: int, size_bytes: int) -> None:
    os.posix_fadvise(descriptor, position, size_bytes, os.POSIX_FADV_WILLNEED)
    end = position + size_bytes
    buffer = memoryview(bytearray(min(size_bytes, LOAD_STEP_BYTES)))
    while position < end:
        count = os.preadv(descriptor, (buffer[: end - position],), position)
        if count == 0:
            return
        position += count
