"""One segment: a file of batches with its indexes.

In scope: file names, appending to the newest segment, finding positions by offset, cutting, sealing. Out of
scope: which segment an offset belongs to, when to roll or delete (`partition_log`, `retention`), and repair
(`recovery`).

`NNNNNNNNNNNNNNNNNNNN.log` holds batches one after another, nothing else; its name is the offset that its
first batch has at least, in twenty digits. A crash may leave a torn batch at its end, or bytes of an append
that failed; recovery cuts them. The suffix `.deleted` marks a file that is to be unlinked.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mainstem_broker.config.setting import INT32_MAX
from mainstem_broker.config.topic_settings import TopicConfig
from mainstem_broker.log.deletion import DELETED_SUFFIX
from mainstem_broker.log.files import LogFile, fsync_file
from mainstem_broker.log.index import OffsetIndex, TimeIndex
from mainstem_broker.log.scanning import header_at, scan_headers
from mainstem_broker.log.transaction_index import TransactionIndex
from mainstem_broker.protocol.batches import NO_TIMESTAMP, BatchHeader
from mainstem_broker.protocol.compression import Buffer
from mainstem_broker.runtime.page_cache import NotCached, read_at
from mainstem_broker.whole_numbers import is_whole_number

LOG_SUFFIX: Final = ".log"
COPY_SUFFIX: Final = ".copy"
"""Left by versions that copied a segment to truncate it, if they were killed meanwhile."""
CLEANED_SUFFIX: Final = ".cleaned"
"""Of a segment that compaction is writing."""
SWAP_SUFFIX: Final = ".swap"
"""Of a segment that compaction has written, and that takes the place of those it was made from."""

SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, OffsetIndex.SUFFIX, TimeIndex.SUFFIX, TransactionIndex.SUFFIX)

# Batch boundaries remembered per segment: enough for every consumer that reads in sequence, and for the high
# watermark, to find its position without a look-up.
_BOUNDARIES_MAX: Final = 128
_LOADED_AT_ONCE_BYTES_MAX: Final = 1024 * 1024
"""How much is loaded with the end of a read: what is longer is loaded in parts, as it is sent."""


def segment_path(directory: Path, base_offset: int, suffix: str = LOG_SUFFIX) -> Path:
    return directory / f"{base_offset:020d}{suffix}"


def is_named_by_offset(path: Path) -> bool:
    """Whether a file is named after an offset, as segments, their indexes and snapshots are."""
    return is_whole_number(path.stem)


class Segment:
    """A segment's state. Only the newest segment of a log is appended to.

    `size_bytes` is what is valid: an append moves it once all its bytes are written, `cut` moves it back.
    `next_offset` follows the last batch's last offset, or is the base offset of an empty segment.
    `max_timestamp` (ms, -1 for none) is the largest of any batch, first reached by the batch that ends with
    `max_timestamp_offset`. `first_timestamp` (ms, -1 unknown) is the first batch's largest: `segment.ms`
    counts from it, or from `created_ms` when there is none. `modified_ms` is when the file was last written
    before it was opened. `aborted` are the transactions whose abort marker is in the segment.
    """

    __slots__ = (
        "_boundaries",
        "_bytes_since_entry",
        "_file",
        "_has_sound_aborted",
        "aborted",
        "base_offset",
        "created_ms",
        "directory",
        "file_suffix",
        "first_timestamp",
        "max_timestamp",
        "max_timestamp_offset",
        "modified_ms",
        "next_offset",
        "offset_index",
        "size_bytes",
        "time_index",
    )

    def __init__(
        self, directory: Path, base_offset: int, config: TopicConfig, now_ms: int, *, file_suffix: str = ""
    ) -> None:
        """A segment in whatever files there are, taken for empty: `create` or recovery comes next.

        `file_suffix` ends the names of all its files: one that is compacted is not part of the log yet.
        """
        self.directory = directory
        self.file_suffix = file_suffix
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size_bytes = 0
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.first_timestamp = NO_TIMESTAMP
        self.created_ms = now_ms
        self.modified_ms = now_ms
        index_bytes_max = config.segment_index_bytes
        self.offset_index = OffsetIndex(self.path(OffsetIndex.SUFFIX), index_bytes_max)
        self.time_index = TimeIndex(self.path(TimeIndex.SUFFIX), index_bytes_max)
        self.aborted = TransactionIndex(self.path(TransactionIndex.SUFFIX))
        self._has_sound_aborted = True
        self._bytes_since_entry = 0
        self._file: LogFile | None = None
        self._boundaries: dict[int, int] = {}

    @classmethod
    def create(
        cls, directory: Path, base_offset: int, config: TopicConfig, now_ms: int, *, file_suffix: str = ""
    ) -> Segment:
        """A new, empty segment with its files. May raise OSError, and leaves no file then."""
        segment = cls(directory, base_offset, config, now_ms, file_suffix=file_suffix)
        try:
            segment._file = LogFile(segment.path(LOG_SUFFIX), create=True)
            os.ftruncate(segment._file.descriptor, 0)
            if config.preallocate:
                _preallocate(segment._file.descriptor, config.segment_bytes)
            segment.begin_afresh()
        except OSError:
            for path in segment.paths():
                path.unlink(missing_ok=True)
            raise
        return segment

    def path(self, suffix: str) -> Path:
        return segment_path(self.directory, self.base_offset, suffix + self.file_suffix)

    def paths(self) -> list[Path]:
        return [self.path(suffix) for suffix in SEGMENT_SUFFIXES]

    @property
    def file(self) -> LogFile:
        """The open file; a sealed segment's is opened when it is read."""
        if self._file is None:
            self._file = LogFile(self.path(LOG_SUFFIX))
        return self._file

    def release_file(self) -> None:
        """Let go of the descriptor; slices of it stay readable."""
        self._file = None

    # Loading

    def begin_afresh(self) -> None:
        """Take the segment for empty, with empty indexes, so that its batches can be `added` again."""
        self.size_bytes = 0
        self.next_offset = self.base_offset
        self.max_timestamp = self.first_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = self.base_offset
        self.modified_ms = self._file_time_ms()
        self.offset_index.create()
        self.time_index.create()
        self.aborted.clear()
        self._has_sound_aborted = True
        self._bytes_since_entry = 0
        self._boundaries = {self.base_offset: 0}

    def load_sealed(self, end_offset: int) -> None:
        """Take a complete segment that ends where the next begins, without opening it."""
        self.size_bytes = self.path(LOG_SUFFIX).stat().st_size
        self.next_offset = end_offset
        self.modified_ms = self._file_time_ms()
        self._load_max_timestamp()
        self.load_aborted(end_offset)

    def load_aborted(self, end_offset: int) -> None:
        """Take the index of aborted transactions; the segment ends at `end_offset`. May raise OSError."""
        self._has_sound_aborted = self.aborted.load(self.base_offset, end_offset)

    def measure(self) -> int:
        """Find all fields again from the indexes and the batches after their last entry.

        Answers the position where the last whole batch ends. Raises CorruptMessage where there is none.
        """
        self.modified_ms = self._file_time_ms()
        self.next_offset = self.base_offset
        self._load_max_timestamp()
        last_entry = self.offset_index.last_entry()
        end = last_entry[1] if last_entry else 0
        self._bytes_since_entry = self.size_bytes - end
        for position, header in scan_headers(self.file, end, self.size_bytes):
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp = header.max_timestamp
                self.max_timestamp_offset = header.last_offset
            self.next_offset = header.next_offset
            end = position + header.size_bytes
        first = next(scan_headers(self.file, 0, self.size_bytes), None)
        self.first_timestamp = first[1].max_timestamp if first else NO_TIMESTAMP
        self._boundaries = {self.next_offset: end}
        return end

    def _load_max_timestamp(self) -> None:
        entry = self.time_index.last_entry()
        self.max_timestamp, relative_offset = entry if entry else (NO_TIMESTAMP, 0)
        self.max_timestamp_offset = self.base_offset + relative_offset

    def read_first_timestamp(self) -> int:
        """`first_timestamp`, from the first batch where it is unknown. May raise OSError.

        Any thread may call it: it opens a file of its own.
        """
        if self.first_timestamp < 0 < self.size_bytes:
            file = LogFile(self.path(LOG_SUFFIX), read_only=True)
            self.first_timestamp = header_at(file, 0, self.size_bytes).max_timestamp
        return self.first_timestamp

    def _file_time_ms(self) -> int:
        return self.path(LOG_SUFFIX).stat().st_mtime_ns // 1_000_000

    def note_renamed(self) -> None:
        """Take the names without a suffix, which the files have been given."""
        self.file_suffix = ""
        self.offset_index.path = self.path(OffsetIndex.SUFFIX)
        self.time_index.path = self.path(TimeIndex.SUFFIX)
        self.aborted.path = self.path(TransactionIndex.SUFFIX)

    def indexes_sane(self) -> bool:
        """Whether the indexes are there and name offsets and positions that the segment can have."""
        return (
            self.offset_index.is_whole()
            and self.time_index.is_whole()
            and self.offset_index.ends_before(self.size_bytes)
            and self._has_sound_aborted
        )

    # Appending

    def indexes_full(self) -> bool:
        return self.offset_index.is_full or self.time_index.is_full

    def fits_offset(self, offset: int) -> bool:
        """Whether the indexes can name `offset`, in 31 bits from the base offset."""
        return offset - self.base_offset <= INT32_MAX

    def write(self, buffers: Sequence[Buffer], size_bytes: int) -> None:
        """Write bytes after the valid ones, all or nothing; `added` then makes them part of the segment.

        Raises:
            OSError: the disk failed or is full. What was written has been cut off again; where even that
                fails, it lies after the valid bytes, where the next append or recovery removes it.
        """
        written = 0
        try:
            written = os.pwritev(self.file.descriptor, buffers, self.size_bytes)
            if written != size_bytes:
                raise OSError(28, f"No space left on device after {written} of {size_bytes} bytes")
        except OSError:
            self._cut_file()
            raise

    def added(
        self,
        base_offset: int,
        size_bytes: int,
        last_offset: int,
        max_timestamp: int,
        index_interval_bytes: int,
    ) -> bool:
        """Take the next written batch in: sizes, offsets, timestamps, and an index entry when one is due.

        Answers whether one was.
        """
        position = self.size_bytes
        if base_offset != self.next_offset:
            self._boundaries.pop(self.next_offset, None)
            self._boundaries[base_offset] = position
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if position == 0:
            self.first_timestamp = max_timestamp
        entry_due = self._bytes_since_entry > index_interval_bytes
        if entry_due:
            self.offset_index.append_entry(last_offset - self.base_offset, position)
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
            self._bytes_since_entry = 0
        self._bytes_since_entry += size_bytes
        self.next_offset = last_offset + 1
        self.size_bytes = position + size_bytes
        self._remember(last_offset + 1, self.size_bytes)
        return entry_due

    def write_full_index_blocks(self) -> None:
        """Bring collected index entries to their files once there are many. May raise OSError."""
        if self.offset_index.unwritten_block() or self.time_index.unwritten_block():
            self.offset_index.write()
            self.time_index.write()
        self.aborted.write()

    def seal(self) -> None:
        """Complete the indexes and drop what lies past the valid bytes. May raise OSError; repeatable."""
        if self.max_timestamp >= 0:
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        self.offset_index.write()
        self.time_index.write()
        self.aborted.write()
        if os.fstat(self.file.descriptor).st_size != self.size_bytes:
            os.ftruncate(self.file.descriptor, self.size_bytes)

    def flush(self, *, sealed: bool) -> None:
        """Bring the file to the disk for good, and a sealed segment's indexes. May raise OSError.

        Any thread may call it: it takes no part in which file is open, and keeps a hold of what it syncs.
        """
        file = self._file or LogFile(self.path(LOG_SUFFIX))
        file.flush()
        if sealed:
            self.flush_indexes()

    def flush_indexes(self) -> None:
        """Bring the indexes of a sealed segment to the disk for good. May raise OSError."""
        fsync_file(self.offset_index.path)
        fsync_file(self.time_index.path)
        if len(self.aborted):
            fsync_file(self.aborted.path)

    # Positions

    def find(self, offset: int) -> tuple[int, int] | None:
        """The (position, base offset) of the first batch that ends at `offset` or later; None past the end.

        Raises:
            CorruptMessage: the file's bytes are no batches there.
        """
        position = self._boundaries.get(offset)
        if position is not None:
            return (position, offset) if position < self.size_bytes else None
        before = self.offset_index.position_before_offset(offset - self.base_offset)
        for position, header in scan_headers(self.file, before, self.size_bytes):
            if header.last_offset >= offset:
                self._remember(header.base_offset, position)
                return position, header.base_offset
        return None

    def find_end(self, upper_bound: int) -> tuple[int, int]:
        """The (position, offset) where the batches that begin below `upper_bound` end."""
        batch = self.find(upper_bound)
        if batch is None:
            return self.size_bytes, self.next_offset
        position, base_offset = batch
        if base_offset >= upper_bound:
            return batch
        # The bound lies inside a batch, which counts whole.
        end = position + header_at(self.file, position, self.size_bytes).size_bytes
        return end, self._offset_at(end)

    def find_cut(self, start: int, end: int, bytes_max: int) -> tuple[int, int]:
        """The last batch boundary in (`start`, `end`] that `bytes_max` from `start` allow, as find_end.

        The first batch's end when `bytes_max` allow none.
        """
        before = max(start, self.offset_index.position_before_position(start + bytes_max))
        cut, offset = before, -1
        try:
            for position, header in scan_headers(self.file, before, end):
                cut, offset = position, header.base_offset
                if position + header.size_bytes > start + bytes_max:
                    break
        except NotCached as missing:
            # The bytes before the cut are sent next, so they are loaded together with the header behind it.
            size_bytes = missing.position + missing.size_bytes - start
            if size_bytes > _LOADED_AT_ONCE_BYTES_MAX:
                raise
            raise NotCached(self.file, start, size_bytes) from None
        if cut == start:
            cut = start + header_at(self.file, start, end).size_bytes
            offset = self._offset_at(cut)
        self._remember(offset, cut)
        return cut, offset

    def _offset_at(self, position: int) -> int:
        for _, header in scan_headers(self.file, position, self.size_bytes):
            return header.base_offset
        return self.next_offset

    def _remember(self, offset: int, position: int) -> None:
        boundaries = self._boundaries
        boundaries[offset] = position
        if len(boundaries) > _BOUNDARIES_MAX:
            del boundaries[next(iter(boundaries))]

    # Cutting

    def cut(self, position: int, offset: int) -> None:
        """Drop the batches from `position` on. May raise OSError.

        `offset` is that of the first batch dropped. Slices of what is dropped can no longer be sent: the
        connections that hold some are those of followers, or of consumers after an unclean election.
        """
        self.offset_index.truncate_to_position(position)
        self.time_index.truncate_to_offset(offset - self.base_offset)
        self.aborted.truncate_to(offset)
        self.size_bytes = position
        self.file.note_cut(position)  # first: a thread that reads a slice looks for cuts afterwards
        os.ftruncate(self.file.descriptor, position)
        self.measure()

    def _cut_file(self) -> None:
        try:
            os.ftruncate(self.file.descriptor, self.size_bytes)
        except OSError:
            pass  # what is left past the valid bytes is overwritten or cut later

    # The end

    def mark_deleted(self) -> list[Path]:
        """Rename the files so that a restart removes them, and name those to unlink."""
        marked: list[Path] = []
        for path in self.paths():
            target = path.with_name(path.name + DELETED_SUFFIX)
            try:
                path.rename(target)
            except FileNotFoundError:
                continue
            marked.append(target)
        self.release_file()
        return marked


def _preallocate(descriptor: int, size_bytes: int) -> None:
    """Reserve space for a segment, or none where the disk has less: what makes room there, as retention and
    compaction, begins with an empty segment."""
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        os.ftruncate(descriptor, 0)  # a part may have been reserved


def batch_at(segment: Segment, position: int) -> tuple[BatchHeader, bytes]:
    """The whole batch at `position`."""
    header = header_at(segment.file, position, segment.size_bytes)
    return header, read_at(segment.file, header.size_bytes, position)
