"""Metadata files of Iceberg tables on a disk: each is synced before it is closed.

A commit changes the catalog to name a new metadata file. A catalog in SQLite is synced, so after a power loss
it would name a file that is not there, unless the file was synced before.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyarrow import fs
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO


class SyncedFileIO(PyArrowFileIO):
    """pyiceberg's access to files; what it writes to a disk is there when it is closed."""

    def new_output(self, location: str) -> Any:
        scheme, separator, path = location.partition("://")
        if separator and scheme != "file":
            return super().new_output(location)
        return _SyncedFile(location, path if separator else location, fs.LocalFileSystem())


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> Any:
        Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        return _SyncedStream(super().create(overwrite), Path(self._path))


class _SyncedStream:
    """An output stream of pyarrow."""

    def __init__(self, stream: Any, path: Path) -> None:
        self._stream = stream
        self._path = path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._stream.closed:
            return
        self._stream.close()
        for path in (self._path, self._path.parent):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
