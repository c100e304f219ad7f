from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mainstem_broker.errors import StorageError
from mainstem_broker.log.files import FileSlice, LogFile, storage_error


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError as error:
        assert error.errno == errno.EBADF
        return False
    return True


def test_a_file_closes_when_nothing_refers_to_it(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "f", create=True)
    descriptor = file.fileno()
    assert is_open(descriptor)
    del file
    assert not is_open(descriptor)


def test_a_slice_keeps_its_file_open_and_readable_after_unlinking(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    file = LogFile(path)
    part = FileSlice(file, 2, 5, base_offset=0)
    descriptor = part.file.descriptor
    del file
    path.unlink()
    assert part.read() == b"23456"
    del part
    assert not is_open(descriptor)


def test_a_file_counts_its_slices(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "f", create=True)
    first, second = FileSlice(file, 0, 1, 0), FileSlice(file, 0, 1, 0)
    assert file.slices == 2
    del first
    assert file.slices == 1
    del second
    assert file.slices == 0


def test_a_file_that_is_not_there_leaves_nothing_open(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LogFile(tmp_path / "missing")


def test_a_disk_error_becomes_a_storage_error_that_names_the_directory(tmp_path: Path) -> None:
    cause = OSError(errno.EIO, "Input/output error")
    error = storage_error(tmp_path, "appending", cause)
    assert isinstance(error, StorageError)
    assert str(error) == f"{tmp_path}: appending failed: Input/output error."
    assert error.__cause__ is cause
