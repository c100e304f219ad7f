"""Segments in memory, behind the interface of `log/segment.py`: the rest of a simulated log is the real one.

What may be wrong with the disk below them is a `Disk`'s.
"""

from __future__ import annotations

import bisect
import errno
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast

from mainstem_broker.config.topic_settings import TopicConfig
from mainstem_broker.log.files import FileSlice, LogFile, storage_error
from mainstem_broker.log.producer_snapshot_format import decode_snapshot, encode_snapshot
from mainstem_broker.log.producer_snapshots import ProducerSnapshots
from mainstem_broker.log.producers import Producers
from mainstem_broker.log.segment import Segment
from mainstem_broker.log.segment_list import SegmentList
from mainstem_broker.protocol.batches import NO_TIMESTAMP, BatchHeader, parse_batch_header
from mainstem_broker.protocol.compression import Buffer


class Disk:
    """What is wrong with the disk under a data directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.is_full = False
        """There is no room for anything more; what is there can be cut, renamed and removed."""
        self.is_slow = False
        """Nothing gets from the page cache to the disk."""
        self.is_broken = False
        """Nothing works, which the broker notices: it takes the directory out of use."""
        self.on_failure: Callable[[Path], None] = lambda _directory: None

    def change(self) -> None:
        """Something is cut, renamed or removed. May raise OSError."""
        if self.is_broken:
            raise OSError(errno.EIO, "the simulated disk broke")

    def grow(self) -> None:
        """Something is written or made. May raise OSError."""
        self.change()
        if self.is_full:
            raise OSError(errno.ENOSPC, "the simulated disk is full")

    def write(self) -> None:
        """As `grow`, for what is no part of a log, such as a checkpoint or a directory.

        Raises:
            StorageError: it cannot be written.
        """
        try:
            self.grow()
        except OSError as error:
            failure = storage_error(self.directory, "writing", error)
            if failure.is_failure:
                self.on_failure(self.directory)
            raise failure from error


class MemoryFile(LogFile):
    """The bytes of a segment. Slices of it are those of files."""

    __slots__ = ("content",)

    def __init__(self) -> None:  # opens nothing
        self.descriptor = -1
        self.path = Path("memory")
        self.slices = 0
        self.cuts: list[int] = []
        self.content = bytearray()


def read_slice(found: FileSlice) -> bytes:
    """The bytes of a slice.

    Raises:
        TruncatedSlice: some of them are no longer part of the log.
    """
    found.require_whole()
    content = cast(MemoryFile, found.file).content
    return bytes(content[found.position : found.position + found.size_bytes])


class MemorySegment:
    """Batches without gaps, whose positions are known. Nothing is compacted here, or transactional."""

    aborted: Final = ()

    def __init__(self, base_offset: int, disk: Disk) -> None:
        self.base_offset = self.next_offset = base_offset
        self.size_bytes = 0
        self.first_timestamp = self.max_timestamp = NO_TIMESTAMP
        self.created_ms = self.modified_ms = 0
        self.file = MemoryFile()
        self._disk = disk
        self._offsets: list[int] = []
        self._positions: list[int] = []

    # --- For the tests ---

    def headers(self) -> Iterator[BatchHeader]:
        for position in self._positions:
            yield parse_batch_header(self.file.content, position)

    def content_from(self, offset: int) -> bytes:
        """The batches from the one that holds `offset` on."""
        found = self.find(offset)
        return b"" if found is None else bytes(self.file.content[found[0] : self.size_bytes])

    def batch_at(self, base_offset: int) -> bytes | None:
        """The batch that begins there, if one does."""
        found = self.find(base_offset)
        if found is None or found[1] != base_offset:
            return None
        return bytes(self.file.content[found[0] : self.find_end(base_offset + 1)[0]])

    def lose_from(self, offset: int) -> None:
        """Lose the batches that reach `offset` or beyond, as in a power cut, whatever the disk is like."""
        found = self.find(offset)
        if found is not None:
            self._drop_from(*found)

    # --- The interface of the real ones ---

    def indexes_full(self) -> bool:
        return False

    def fits_offset(self, _offset: int) -> bool:
        return True

    def write(self, buffers: Sequence[Buffer], _size_bytes: int) -> None:
        self._disk.grow()
        content = self.file.content
        del content[self.size_bytes :]
        for buffer in buffers:
            content += buffer

    def added(
        self, base_offset: int, size_bytes: int, last_offset: int, max_timestamp: int, _interval_bytes: int
    ) -> bool:
        self._offsets.append(base_offset)
        self._positions.append(self.size_bytes)
        if self.size_bytes == 0:
            self.first_timestamp = max_timestamp
        self.max_timestamp = max(self.max_timestamp, max_timestamp)
        self.next_offset = last_offset + 1
        self.size_bytes += size_bytes
        return False

    def find(self, offset: int) -> tuple[int, int] | None:
        if offset >= self.next_offset or not self._offsets:
            return None
        number = max(bisect.bisect_right(self._offsets, offset) - 1, 0)
        return self._positions[number], self._offsets[number]

    def find_end(self, upper_bound: int) -> tuple[int, int]:
        number = bisect.bisect_left(self._offsets, upper_bound)
        if number == len(self._offsets):
            return self.size_bytes, self.next_offset
        return self._positions[number], self._offsets[number]

    def find_cut(self, start: int, end: int, bytes_max: int) -> tuple[int, int]:
        number = bisect.bisect_right(self._positions, min(start + bytes_max, end)) - 1
        if self._positions[number] <= start:
            number = bisect.bisect_right(self._positions, start)
        if number == len(self._positions):
            return self.size_bytes, self.next_offset
        return self._positions[number], self._offsets[number]

    def cut(self, position: int, base_offset: int) -> None:
        self._disk.change()
        self._drop_from(position, base_offset)

    def _drop_from(self, position: int, base_offset: int) -> None:
        number = bisect.bisect_left(self._positions, position)
        del self._offsets[number:], self._positions[number:]
        self.next_offset = base_offset if number else self.base_offset
        self.size_bytes = position
        self.file.note_cut(position)
        del self.file.content[position:]

    def measure(self) -> int:
        return self.size_bytes

    def mark_deleted(self) -> list[Path]:
        self._disk.change()
        return []

    def paths(self) -> list[Path]:
        return []

    def seal(self) -> None:
        self._disk.grow()

    def flush(self, *, sealed: bool) -> None:
        pass

    def write_full_index_blocks(self) -> None:
        pass

    def release_file(self) -> None:
        pass


class MemorySegments(SegmentList):
    """The list is the real one; what it makes is in memory."""

    def __init__(self, segments: Sequence[MemorySegment], disk: Disk) -> None:
        super().__init__(Path("memory"), cast(Any, segments), lambda _paths, _delay_ms: None)
        self._disk = disk

    def _create(self, base_offset: int, _config: TopicConfig, _now_ms: int) -> Segment:
        self._disk.grow()
        return cast(Segment, MemorySegment(base_offset, self._disk))


class MemorySnapshots(ProducerSnapshots):
    """Snapshots of producers. They outlive a process."""

    def __init__(self) -> None:
        super().__init__(Path("memory"), ())
        self._contents: dict[int, bytes] = {}

    def keep(self, offset: int, producers: Producers) -> None:
        if offset != 0 and offset not in self._contents:
            self._contents[offset] = encode_snapshot(producers)
            self.offsets = sorted(self._contents)

    def restore(self, segments: Sequence[Any], end_offset: int) -> Producers:
        start, producers = self._newest(segments[0].base_offset, end_offset)
        for segment in segments:
            if segment.next_offset > start and segment.base_offset < end_offset:
                self.keep(segment.base_offset, producers)
                for header in segment.headers():
                    if header.producer_id >= 0 and header.base_offset >= start:
                        producers.update(header, header.base_offset, 0)
        return producers

    def _newest(self, offset_min: int, offset_max: int) -> tuple[int, Producers]:
        fitting = [offset for offset in self.offsets if offset_min <= offset <= offset_max]
        if not fitting:
            return 0, Producers()
        producers = decode_snapshot(self._contents[fitting[-1]])
        producers.restored_at(fitting[-1])
        return fitting[-1], producers

    def _remove(self, offsets: Collection[int]) -> None:
        for offset in set(offsets):
            self._contents.pop(offset, None)
        self.offsets = sorted(self._contents)
