"""Open segment files and the slices of them that are sent to clients.

In scope: who keeps a file descriptor open, and the one translation of operating system errors into
`StorageError`. Out of scope: anything that knows batches or offsets.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final, NamedTuple

from mainstem_broker.errors import StorageError

PASSING: Final = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)
"""Errors that say nothing against the disk: it is full, or this process has too much open."""


def storage_error(directory: Path, doing: str, error: OSError) -> StorageError:
    """The error to answer with when the disk under `directory` failed us while `doing` something.

    The only place where an operating system error becomes a protocol error.
    """
    failure = StorageError(f"{directory}: {doing} failed: {error.strerror or error}.")
    failure.is_failure = error.errno not in PASSING
    failure.__cause__ = error
    return failure


class TruncatedSlice(StorageError):
    """The bytes of a slice were cut off the log before they were sent."""


class LogFile:
    """An open segment file. Its descriptor closes when the segment and the last slice have let go of it.

    Reference counting does that at once, so a slice stays readable though its segment is deleted meanwhile.
    `slices` counts the slices alive, and `cuts` are the positions at which the file was cut meanwhile: what
    is appended after a cut must not be sent in place of what was there before.
    """

    __slots__ = ("__weakref__", "cuts", "descriptor", "path", "slices")

    def __init__(self, path: Path, *, create: bool = False, read_only: bool = False) -> None:
        self.descriptor = -1
        self.path = path
        self.slices = 0
        self.cuts: list[int] = []
        flags = (os.O_RDONLY if read_only else os.O_RDWR) | (os.O_CREAT if create else 0)
        self.descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def fileno(self) -> int:
        return self.descriptor

    def note_cut(self, position: int) -> None:
        """The file will be cut at `position`: slices that reach beyond it cannot be sent any more."""
        if self.slices:
            self.cuts.append(position)
        else:
            self.cuts.clear()

    def flush(self) -> None:
        """Make it durable. It stays open meanwhile, even if all other references are dropped."""
        os.fsync(self.descriptor)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class FileSlice:
    """Whole batches lying one after another in a segment file: what `os.sendfile` needs.

    `base_offset` is the first batch's. The slice holds the file open; drop it once it is sent.
    """

    __slots__ = ("_cuts_before", "base_offset", "file", "position", "size_bytes")

    def __init__(self, file: LogFile, position: int, size_bytes: int, base_offset: int) -> None:
        self.file = file
        self.position = position
        self.size_bytes = size_bytes
        self.base_offset = base_offset
        self._cuts_before = len(file.cuts)
        file.slices += 1

    def require_whole(self) -> None:
        """To be called before the bytes are sent, and after they were read in another thread.

        Raises:
            TruncatedSlice: some of them are no longer part of the log.
        """
        cuts = self.file.cuts
        if len(cuts) > self._cuts_before and self.position + self.size_bytes > min(cuts[self._cuts_before :]):
            raise TruncatedSlice(f"{self.file.path} was truncated while it was being read.")

    def read(self) -> bytes:
        """The bytes themselves, for peers that cannot be sent a file (TLS) and for coordinators.

        Raises:
            TruncatedSlice: some of them are no longer part of the log.
        """
        content = os.pread(self.file.descriptor, self.size_bytes, self.position)
        self.require_whole()  # afterwards: in a thread, the cut may have come between
        return content

    def __del__(self) -> None:
        self.file.slices -= 1


class ReadResult(NamedTuple):
    """What a read found. `slice` is None when nothing (more) may be read there now.

    `end_offset` is where the next read goes on: the offset after the slice.
    """

    slice: FileSlice | None
    end_offset: int

    @property
    def size_bytes(self) -> int:
        return 0 if self.slice is None else self.slice.size_bytes


def fsync_directory(path: Path) -> None:
    """Make the creation, renaming and removal of files in `path` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    """Make the content of a file that is not held open durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
