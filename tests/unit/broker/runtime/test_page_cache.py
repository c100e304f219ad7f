"""Reads that do not wait for the disk (R42)."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.unit.broker.cold_files import PAGE_BYTES, ColdFiles, cold_files

from mainstem_broker.log.files import LogFile
from mainstem_broker.runtime import page_cache
from mainstem_broker.runtime.disk_reads import LOADS_MAX, DiskReads, look_up
from mainstem_broker.runtime.page_cache import CACHED_ONLY, NotCached, is_cached, load, read_at

__all__ = ["cold_files"]

CONTENT = os.urandom(10 * PAGE_BYTES + 10)


@pytest.fixture
def file(tmp_path: Path) -> LogFile:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return LogFile(path)


def test_a_read_that_may_not_wait_says_what_is_missing_and_succeeds_once_that_is_loaded(
    file: LogFile, cold_files: ColdFiles
) -> None:
    with CACHED_ONLY, pytest.raises(NotCached) as raised:
        read_at(file, 100, PAGE_BYTES)
    missing = raised.value
    assert (missing.file, missing.position, missing.size_bytes) == (file, PAGE_BYTES, 100)
    missing.load()
    with CACHED_ONLY:
        assert read_at(file, 100, PAGE_BYTES) == CONTENT[PAGE_BYTES : PAGE_BYTES + 100]
    assert read_at(file, 10, 0) == CONTENT[:10], "afterwards reads may wait again"


def test_a_range_that_is_cached_in_part_is_not_cached(file: LogFile, cold_files: ColdFiles) -> None:
    load(file, 0, PAGE_BYTES)
    with CACHED_ONLY, pytest.raises(NotCached):
        read_at(file, 2 * PAGE_BYTES, 0)


def test_a_read_at_the_files_end_is_short_and_complete(file: LogFile, cold_files: ColdFiles) -> None:
    load(file, 0, len(CONTENT))
    with CACHED_ONLY:
        assert read_at(file, 100, len(CONTENT) - 7) == CONTENT[-7:]
        assert read_at(file, 100, len(CONTENT)) == b""


@pytest.mark.parametrize(("loaded", "expected"), [((0, 1), False), ((3, 1), False), ((0, 4), True)])
def test_a_range_counts_as_cached_if_its_ends_are(
    file: LogFile, cold_files: ColdFiles, loaded: tuple[int, int], expected: bool
) -> None:
    first, count = loaded
    load(file, first * PAGE_BYTES, count * PAGE_BYTES)
    assert is_cached(file, 0, 4 * PAGE_BYTES) == expected


def test_where_the_file_system_cannot_tell_everything_is_read(
    file: LogFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "preadv", refuse)
    assert is_cached(file, 0, 100)
    with CACHED_ONLY:
        assert read_at(file, 100, 50) == CONTENT[50:150]


def test_a_file_can_be_loaded_by_its_path_and_may_be_gone(
    file: LogFile, cold_files: ColdFiles, tmp_path: Path
) -> None:
    load(file.path, 0, 100)
    assert is_cached(file, 0, 100)
    load(tmp_path / "gone", 0, 100)


def test_a_large_range_is_loaded_in_steps(
    file: LogFile, cold_files: ColdFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "LOAD_STEP_BYTES", 4 * PAGE_BYTES)
    load(file, 0, 9 * PAGE_BYTES)
    assert cold_files.loads == [
        (0, 4 * PAGE_BYTES),
        (4 * PAGE_BYTES, 4 * PAGE_BYTES),
        (8 * PAGE_BYTES, PAGE_BYTES),
    ]


async def test_a_look_up_is_repeated_until_all_that_it_needs_is_loaded(
    file: LogFile, cold_files: ColdFiles
) -> None:
    disk = DiskReads()
    calls: list[bytes] = []

    def find() -> bytes:
        calls.append(read_at(file, 1, 0))
        return calls[-1] + read_at(file, 1, 5 * PAGE_BYTES)

    found = await look_up(find, lambda missing: disk.load_missing("client", missing))
    assert found == CONTENT[:1] + CONTENT[5 * PAGE_BYTES : 5 * PAGE_BYTES + 1]
    assert (disk.loads, len(calls)) == (2, 2)
    disk.close()


async def test_a_look_up_whose_pages_are_evicted_at_once_ends_by_waiting_for_the_disk(
    file: LogFile, cold_files: ColdFiles
) -> None:
    loads = 0

    def load_in_vain(_: NotCached) -> Awaitable[None]:
        async def nothing() -> None:
            nonlocal loads
            loads += 1

        return nothing()

    find: Callable[[], bytes] = lambda: read_at(file, 1, 0)  # noqa: E731  # typed
    assert await look_up(find, load_in_vain) == CONTENT[:1]
    assert loads == LOADS_MAX
