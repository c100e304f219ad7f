"""The two sparse indexes of a segment: offset to position, and timestamp to offset.

In scope: their file formats, appending, looking up, truncating, checking. Out of scope: when an entry is due
(that is `segment`) and how an index is rebuilt (that is `recovery`).

Both files are arrays of fixed entries, big endian, without header or checksum: an index can always be rebuilt
from its segment, so recovery checks what is cheap to check and rebuilds on doubt.

    NNNNNNNNNNNNNNNNNNNN.index      8 bytes: int32 offset - base offset, int32 position in the segment.
                                    The batch at the position has that last offset.
    NNNNNNNNNNNNNNNNNNNN.timeindex  12 bytes: int64 timestamp, int32 offset - base offset.
                                    No record up to that offset is later than the timestamp; the batch with
                                    that last offset holds it. Timestamps strictly rise.

Entries collect in memory and reach the file in blocks, and when the segment is sealed or closed. A killed
process loses the last of them, which is what recovery rebuilds. Nothing else is kept in memory but the last
block looked at: an index is read through the page cache, without a mapping that a full disk could fault.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import ClassVar, Final

from mainstem_broker.log.files import LogFile
from mainstem_broker.runtime.page_cache import NotCached, read_at

_BLOCK_ENTRIES: Final = 2048
"""A reader that goes through a segment in batches of 16 KB loads a block each 32 MB."""


class SparseIndex:
    """An array of entries on disk with its newest in memory.

    `count` is moved by `append` and `truncate` alone; entries below `_written` are in the file, the others in
    `_tail`. The two columns are compared by value, and both rise (or stay) from entry to entry.
    """

    ENTRY: ClassVar[struct.Struct]
    SUFFIX: ClassVar[str]

    __slots__ = ("_block", "_block_first", "_tail", "_written", "count", "count_max", "path")

    def __init__(self, path: Path, bytes_max: int) -> None:
        """Take the entries that are in the file; `bytes_max` bounds the file's size."""
        self.path = path
        self.count_max = bytes_max // self.ENTRY.size
        self._written = self._entries_on_disk()
        self.count = self._written
        self._tail = bytearray()
        self._block = b""
        self._block_first = 0

    def _entries_on_disk(self) -> int:
        try:
            return self.path.stat().st_size // self.ENTRY.size
        except FileNotFoundError:
            return 0

    def create(self) -> None:
        """Begin with an empty file."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        os.close(descriptor)
        self.count = self._written = 0
        self._tail.clear()
        self._block = b""

    def is_whole(self) -> bool:
        """Whether the file is there, holds whole entries, and does not end in one that was never written."""
        try:
            size_bytes = self.path.stat().st_size
        except FileNotFoundError:
            return False
        if size_bytes % self.ENTRY.size:
            return False
        # Preallocated space reads as zeros (Apache Kafka leaves some after a crash); no entry is all zeros,
        # for a segment's first batch has none of its own.
        return self.last_entry() != (0, 0)

    def append_entry(self, first: int, second: int) -> None:
        self._tail += self.ENTRY.pack(first, second)
        self.count += 1

    def unwritten_block(self) -> bool:
        """Whether a block's worth of entries waits to be written."""
        return len(self._tail) >= _BLOCK_ENTRIES * self.ENTRY.size

    def write(self) -> None:
        """Bring the entries in memory to the file. May raise OSError; nothing is lost then."""
        if not self._tail:
            return
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            written = os.pwrite(descriptor, self._tail, self._written * self.ENTRY.size)
        finally:
            os.close(descriptor)
        whole = written // self.ENTRY.size
        del self._tail[: whole * self.ENTRY.size]
        self._written += whole
        if self._tail:
            raise OSError(28, "No space left on device", str(self.path))

    def entry(self, number: int) -> tuple[int, int]:
        """The entry `number`, 0 being the first."""
        if number >= self._written:
            first, second = self.ENTRY.unpack_from(self._tail, (number - self._written) * self.ENTRY.size)
        else:
            if not 0 <= number - self._block_first < len(self._block) // self.ENTRY.size:
                self._load_block(number, number + 1)
            first, second = self.ENTRY.unpack_from(
                self._block, (number - self._block_first) * self.ENTRY.size
            )
        return first, second

    def last_entry(self) -> tuple[int, int] | None:
        return self.entry(self.count - 1) if self.count else None

    def truncate(self, count: int) -> None:
        """Drop the entries from number `count` on."""
        if count >= self.count:
            return
        if count >= self._written:
            del self._tail[(count - self._written) * self.ENTRY.size :]
        else:
            os.truncate(self.path, count * self.ENTRY.size)
            self._written = count
            self._tail.clear()
            self._block = b""
        self.count = count

    def _search(self, column: int, target: int) -> int:
        """The number of the last entry whose `column` is at most `target`, or -1."""
        if self._tail and self.ENTRY.unpack_from(self._tail, 0)[column] <= target:
            return self._written + self._bisect(self._tail, column, target)
        if not self._written:
            return -1
        block_count = len(self._block) // self.ENTRY.size
        if not (
            block_count
            and self.ENTRY.unpack_from(self._block, 0)[column] <= target
            and (
                self._block_first + block_count == self._written
                or self.ENTRY.unpack_from(self._block, (block_count - 1) * self.ENTRY.size)[column] > target
            )
        ):
            self._load_block_around(column, target)
        return self._block_first + self._bisect(self._block, column, target)

    def _bisect(self, entries: bytes | bytearray, column: int, target: int) -> int:
        unpack, size = self.ENTRY.unpack_from, self.ENTRY.size
        low, high = 0, len(entries) // size
        while low < high:
            middle = (low + high) // 2
            if unpack(entries, middle * size)[column] <= target:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def _load_block_around(self, column: int, target: int) -> None:
        """Load the block that the answer for `target` lies in, probing the file until it is small enough."""
        low, high = 0, self._written
        file = LogFile(self.path, read_only=True)
        size = self.ENTRY.size
        while high - low > _BLOCK_ENTRIES:
            middle = (low + high) // 2
            try:
                probe = read_at(file, size, middle * size)
            except NotCached:
                # All that may be probed next: reading it in sequence takes the disk no longer than probing.
                raise NotCached(self.path, low * size, (high - low) * size) from None
            if self.ENTRY.unpack(probe)[column] <= target:
                low = middle
            else:
                high = middle
        # One more entry on the right says, next time, that the block's last is not past the answer.
        self._load_block(low, min(high + 1, self._written))

    def _load_block(self, first: int, end: int) -> None:
        """Load at least the entries from `first` to before `end`, and up to a block of what follows."""
        end = min(self._written, max(end, first + _BLOCK_ENTRIES))
        file = LogFile(self.path, read_only=True)
        try:
            self._block = read_at(file, (end - first) * self.ENTRY.size, first * self.ENTRY.size)
        except NotCached as missing:
            raise NotCached(self.path, missing.position, missing.size_bytes) from None
        self._block_first = first


class OffsetIndex(SparseIndex):
    """Entries are (last offset of a batch - base offset of the segment, the batch's position)."""

    ENTRY = struct.Struct(">ii")
    SUFFIX = ".index"

    __slots__ = ()

    @property
    def is_full(self) -> bool:
        return self.count >= self.count_max

    def ends_before(self, position: int) -> bool:
        """Whether the last indexed batch begins before `position`, at an offset after the base offset."""
        entry = self.last_entry()
        return entry is None or (entry[0] > 0 and 0 < entry[1] < position)

    def position_before_offset(self, relative_offset: int) -> int:
        """A batch's position from which a scan forward meets the batch that holds the offset."""
        number = self._search(0, relative_offset)
        return self.entry(number)[1] if number >= 0 else 0

    def position_before_position(self, position: int) -> int:
        """The last indexed batch's position that is not after `position`."""
        number = self._search(1, position)
        return self.entry(number)[1] if number >= 0 else 0

    def truncate_to_position(self, position: int) -> None:
        """Drop the entries of batches from `position` on."""
        self.truncate(self._search(1, position - 1) + 1)


class TimeIndex(SparseIndex):
    """Entries are (largest timestamp so far in ms, last offset of its batch - base offset of the segment)."""

    ENTRY = struct.Struct(">qi")
    SUFFIX = ".timeindex"

    __slots__ = ()

    @property
    def is_full(self) -> bool:
        # One entry is kept for the final one, written when the segment is sealed.
        return self.count >= self.count_max - 1

    def append(self, timestamp_ms: int, relative_offset: int) -> None:
        """Add an entry, unless the timestamp has not risen."""
        last = self.last_entry()
        if timestamp_ms > (last[0] if last else -1):
            self.append_entry(timestamp_ms, relative_offset)

    def offset_before_timestamp(self, timestamp_ms: int) -> int:
        """A relative offset up to which every record is earlier than `timestamp_ms`; -1 for none."""
        number = self._search(0, timestamp_ms - 1)
        return self.entry(number)[1] if number >= 0 else -1

    def truncate_to_offset(self, relative_offset: int) -> None:
        """Drop the entries of offsets from `relative_offset` on."""
        self.truncate(self._search(1, relative_offset - 1) + 1)
