"""Slices that are not in the page cache: their client waits for the disk, and no other (R42)."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.waiting import let_pass_async
from tests.unit.broker.cold_files import ColdFiles, cold_files
from tests.unit.broker.server.peers import Peer, Script, until

from mainstem_broker.log.files import LogFile
from mainstem_broker.runtime import page_cache
from mainstem_broker.server.connection import PART_OF_SLICE_BYTES, SMALL_SLICE_BYTES

__all__ = ["cold_files"]

CONTENT = random.Random(7).randbytes(4 * 1024 * 1024)


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "segment"
    path.write_bytes(CONTENT)
    return path


@contextmanager
def stopped(cold_files: ColdFiles) -> Iterator[None]:
    """The disk answers nothing meanwhile."""
    cold_files.disk.clear()
    try:
        yield
    finally:
        cold_files.disk.set()


SIZES = pytest.mark.parametrize("size_bytes", [100, SMALL_SLICE_BYTES, SMALL_SLICE_BYTES + 1, 3_000_000])


@SIZES
async def test_a_cold_slice_makes_its_client_wait_and_no_other(
    segment: Path, cold_files: ColdFiles, size_bytes: int
) -> None:
    with Peer(Script(segment).handle) as history, Peer(Script(segment).handle) as tail:
        with stopped(cold_files):
            await history.send("echo before", f"slices 5:{size_bytes}", "echo after")
            assert await history.receive() == [b"before"]
            await until(lambda: history.connection._loading is not None)
            for number in range(10):
                await tail.send(f"echo {number}")
                assert await tail.receive() == [str(number).encode()]
        assert await history.receive(2) == [b"<" + CONTENT[5 : 5 + size_bytes] + b"|", b"after"]


async def test_answers_of_any_temperature_leave_in_the_order_of_their_requests(
    segment: Path, cold_files: ColdFiles
) -> None:
    numbers = random.Random(3)
    with Peer(Script(segment).handle) as peer:
        for _ in range(30):
            requests: list[str] = []
            expected: list[bytes] = []
            for _ in range(numbers.randrange(1, 6)):
                position, size_bytes = numbers.randrange(3_000_000), numbers.choice((1, 500, 20_000, 900_000))
                if numbers.random() < 0.3:
                    requests.append(f"echo {position}")
                    expected.append(str(position).encode())
                else:
                    requests.append(f"slices {position}:{size_bytes},{position // 2}:7")
                    first = CONTENT[position : position + size_bytes]
                    second = CONTENT[position // 2 : position // 2 + 7]
                    expected.append(b"<" + first + b"|" + second + b"|")
            await peer.send(*requests)
            assert await peer.receive(len(expected)) == expected
            if numbers.random() < 0.5:
                cold_files.evict()


async def test_a_large_cold_slice_is_loaded_in_parts_as_it_is_sent(
    segment: Path, cold_files: ColdFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "LOAD_STEP_BYTES", 1 << 30)
    with Peer(Script(segment).handle) as peer:
        await peer.send("slices 0:3500000")
        assert await peer.receive() == [b"<" + CONTENT[:3_500_000] + b"|"]
    assert len(cold_files.loads) > 1
    assert max(size_bytes for _, size_bytes in cold_files.loads) == PART_OF_SLICE_BYTES


async def test_a_slice_that_is_evicted_whenever_it_was_loaded_is_sent_all_the_same(
    segment: Path, cold_files: ColdFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_in_vain(*_: object) -> None:
        cold_files.loads.append((0, 0))

    monkeypatch.setattr(page_cache, "load", load_in_vain)
    with Peer(Script(segment).handle) as peer:
        await peer.send("slices 0:3500000")
        assert await peer.receive() == [b"<" + CONTENT[:3_500_000] + b"|"]
    assert cold_files.loads


async def test_what_is_cached_is_sent_without_a_thread(segment: Path, cold_files: ColdFiles) -> None:
    page_cache.load(LogFile(segment), 0, len(CONTENT))
    with Peer(Script(segment).handle) as peer:
        await peer.send("slices 0:100", "slices 7:3000000")
        await peer.receive(2)
        assert peer.disk.loads == 0


async def test_a_connection_that_closes_while_the_disk_is_read_is_closed_at_once(
    segment: Path, cold_files: ColdFiles
) -> None:
    with stopped(cold_files), Peer(Script(segment).handle) as peer:
        await peer.send("slices 0:100000")
        await until(lambda: peer.connection._loading is not None)
        peer.socket.close()
        peer.connection.close()
        assert peer.closed == [peer.connection]
    await let_pass_async(0.01, "the thread has ended, and nobody is there to go on")


async def test_a_file_that_is_cut_while_it_is_loaded_closes_the_connection(
    segment: Path, cold_files: ColdFiles
) -> None:
    script = Script(segment)
    with Peer(script.handle) as peer:
        with stopped(cold_files):
            await peer.send("slices 0:100000")
            await until(lambda: peer.connection._loading is not None)
            assert script.file is not None
            script.file.note_cut(50)
            os.truncate(segment, 50)
        assert await peer.receive_end() == (100_002).to_bytes(4, "big") + b"<"
