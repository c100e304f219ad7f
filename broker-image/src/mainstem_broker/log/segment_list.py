"""The segments of one log in order: which one holds an offset, when the next begins, and how they leave.

In scope: rolling, dropping, cutting the end, and which files stay open. Out of scope: the offsets that say
what may be read (`partition_log`), and why a segment is dropped (`retention`).
"""

from __future__ import annotations

import bisect
import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from crc32c import crc32c

from mainstem_broker.config.topic_settings import TopicConfig
from mainstem_broker.log.deletion import ScheduleUnlink, unlink_all
from mainstem_broker.log.segment import CLEANED_SUFFIX, SWAP_SUFFIX, Segment
from mainstem_broker.log.transaction_index import AbortedTransaction

# Sealed segments whose files stay open for reading, per log; the newest segment's always is.
_SEALED_FILES_OPEN_MAX: Final = 4


class SegmentList:
    """At least one segment, oldest first; only the last, `newest`, is appended to.

    Every method may raise OSError. `directory_changed` says that a flush has to make names durable too.
    """

    def __init__(self, directory: Path, segments: Sequence[Segment], schedule_unlink: ScheduleUnlink) -> None:
        """Take what recovery found."""
        self.directory_changed = True
        self._directory = directory
        self._segments = list(segments)
        self._bases = [segment.base_offset for segment in segments]
        self._schedule_unlink = schedule_unlink
        self._opened: list[Segment] = []
        self.newest = self._segments[-1]
        self._with_aborted = [segment for segment in self._segments if len(segment.aborted)]
        self._sealed_bytes = _total_bytes(self._segments[:-1])

    @property
    def size_bytes(self) -> int:
        return self._sealed_bytes + self.newest.size_bytes

    @property
    def all(self) -> Sequence[Segment]:
        return self._segments

    def snapshot(self) -> list[Segment]:
        """A copy that a thread may walk while the list changes: made in one step of the interpreter."""
        return self._segments.copy()

    def find(self, offset: int) -> tuple[Segment, int, int] | None:
        """The (segment, position, base offset) of the first batch that ends at `offset` or later.

        Raises:
            CorruptMessage: what lies there is no batch.
        """
        number = self._number_of(offset)
        segment = self._to_read(number)
        position = segment.find(offset)
        # Compaction may have left a hole between the segment's last batch and the next segment.
        while position is None:
            number += 1
            if number == len(self._segments):
                return None
            segment = self._to_read(number)
            position = segment.find(segment.base_offset)
        return segment, *position

    def _to_read(self, number: int) -> Segment:
        segment = self._segments[number]
        if segment is not self.newest:
            self._keep_open(segment)
        return segment

    def note_aborted(self, aborted: AbortedTransaction) -> None:
        """Index a transaction whose marker was appended last. Never raises OSError: the file may wait."""
        self.newest.aborted.append(aborted)
        if not self._with_aborted or self._with_aborted[-1] is not self.newest:
            self._with_aborted.append(self.newest)

    def aborted_transactions(self, from_offset: int, to_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions with offsets in [`from_offset`, `to_offset`), by first offset."""
        aborted: list[AbortedTransaction] = []
        for segment in self._with_aborted:
            # A transaction is indexed where it ends, which may be many segments behind its records.
            if segment.next_offset > from_offset and segment.aborted.search(from_offset, to_offset, aborted):
                break
        # Clients that read the list in order would give records of an earlier one out (AutoMQ/automq#754).
        aborted.sort(key=_first_offset)
        return aborted

    def _number_of(self, offset: int) -> int:
        if offset >= self.newest.base_offset:
            return len(self._segments) - 1
        return max(bisect.bisect_right(self._bases, offset) - 1, 0)

    def _keep_open(self, segment: Segment) -> None:
        """Count a sealed segment among those whose file is open, and close the one longest unread."""
        opened = self._opened
        if opened and opened[-1] is segment:
            return
        if segment in opened:
            opened.remove(segment)
        opened.append(segment)
        if len(opened) > _SEALED_FILES_OPEN_MAX:
            opened.pop(0).release_file()

    # Growing

    def for_append(
        self,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
        size_bytes: int,
        config: TopicConfig,
        now_ms: int,
    ) -> Segment:
        """The segment to append these offsets to: the newest, or a new one when that is due.

        As in Apache Kafka, a segment's age follows from its records' timestamps, not from the clock, so that
        a replica that is being filled rolls as the first one did.
        """
        segment = self.newest
        if segment.size_bytes == 0:
            if segment.fits_offset(last_offset):
                return segment
        else:
            since_ms = segment.first_timestamp
            age_ms = max_timestamp - since_ms if since_ms >= 0 else now_ms - segment.created_ms
            if (
                segment.size_bytes + size_bytes <= config.segment_bytes
                and age_ms <= config.roll_ms - self._jitter_ms(segment, config)
                and not segment.indexes_full()
                and segment.fits_offset(last_offset)
            ):
                return segment
        return self.roll(base_offset, config, now_ms)

    def _jitter_ms(self, segment: Segment, config: TopicConfig) -> int:
        """This segment's part of `segment.jitter.ms`: any number would do that differs among partitions."""
        if config.segment_jitter_ms == 0:
            return 0
        name = f"{self._directory.name}/{segment.base_offset}"
        return crc32c(name.encode()) % min(config.segment_jitter_ms + 1, config.segment_ms)

    def roll(self, base_offset: int, config: TopicConfig, now_ms: int) -> Segment:
        """Begin a new segment at `base_offset` and seal the last one, or change nothing.

        A crash leaves at worst an empty segment behind one whose indexes lack their ends; both are after the
        recovery point.
        """
        old = self.newest
        if old.size_bytes == 0 and old.base_offset == base_offset:
            return old
        segment = self._create(base_offset, config, now_ms)
        try:
            old.seal()
        except OSError:
            unlink_all(segment.paths())
            raise
        self._segments.append(segment)
        self._bases.append(base_offset)
        self._sealed_bytes += old.size_bytes
        self.newest = segment
        self.directory_changed = True
        self._keep_open(old)
        if old.size_bytes == 0:
            self.drop([old], config.file_delete_delay_ms)
        return segment

    def _create(self, base_offset: int, config: TopicConfig, now_ms: int) -> Segment:
        return Segment.create(self._directory, base_offset, config, now_ms)

    # Compaction

    def replace(
        self,
        inputs: Sequence[Segment],
        output: Sequence[Path],
        end_offset: int,
        config: TopicConfig,
        now_ms: int,
    ) -> None:
        """Put compacted files into the place of sealed segments that follow each other.

        `output` are the files of one segment with the first input's base offset, whose names end in
        `CLEANED_SUFFIX`: the indexes, and last the log. A crash before that has its second name leaves the
        inputs; one after it leaves the output, which recovery puts in place (`recovery`, pass 1).

        An error before that changes nothing and removes the output. One after it is EIO, whatever it was: the
        directory is neither as before nor as it should be, and only a restart can put it right.
        """
        swaps: list[Path] = []
        try:
            # First, because it opens files, of which there may be too many.
            compacted = Segment(
                self._directory, inputs[0].base_offset, config, now_ms, file_suffix=CLEANED_SUFFIX
            )
            compacted.load_sealed(end_offset)
            for path in output:
                swap = path.with_name(path.name.removesuffix(CLEANED_SUFFIX) + SWAP_SUFFIX)
                swaps.append(path.rename(swap))
        except OSError:
            unlink_all([*output, *swaps])
            raise
        at = self._segments.index(inputs[0])
        try:
            for segment in inputs:
                self._take_out(segment, config.file_delete_delay_ms)
            for swap in swaps:
                swap.rename(swap.with_name(swap.name.removesuffix(SWAP_SUFFIX)))
        except OSError as error:
            raise OSError(errno.EIO, f"a compacted segment is only partly in place: {error}") from error
        compacted.note_renamed()
        self._segments.insert(at, compacted)
        self._changed()

    # Shrinking

    def drop(self, segments: Sequence[Segment], unlink_delay_ms: int) -> None:
        """Take sealed segments out, and have their files unlinked later."""
        for segment in segments:
            self._take_out(segment, unlink_delay_ms)
        self._changed()

    def cut(self, offset: int, unlink_delay_ms: int) -> None:
        """Drop every batch that reaches `offset` or beyond; the first segment stays, if empty."""
        keep = self._number_of(offset) + 1
        # Newest first, so that what a crash leaves is a log without its end.
        for segment in self._segments[: keep - 1 : -1]:
            self._take_out(segment, unlink_delay_ms)
        self._changed()
        position = self.newest.find(offset)
        if position is not None:
            self.newest.cut(*position)
        else:
            self.newest.measure()  # a sealed segment does not know where its last batch ends
        self._changed()  # again: a flush may have come between

    def begin_afresh(self, offset: int, config: TopicConfig, now_ms: int) -> None:
        """Drop everything and begin with an empty segment at `offset`.

        The segment is made first, so that a full disk changes nothing. A crash in between leaves it among the
        others, as a roll would.
        """
        kept = next((segment for segment in self._segments if segment.base_offset == offset), None)
        fresh = self._create(offset, config, now_ms) if kept is None else kept
        for segment in self._segments[::-1]:
            if segment is not fresh:
                self._take_out(segment, config.file_delete_delay_ms)
        if kept is not None:
            kept.cut(0, offset)
        self._segments = [fresh]
        self._changed()

    def _take_out(self, segment: Segment, unlink_delay_ms: int) -> None:
        paths = segment.mark_deleted()
        self._segments.remove(segment)
        if segment in self._opened:
            self._opened.remove(segment)
        self._schedule_unlink(paths, unlink_delay_ms)

    def _changed(self) -> None:
        self._bases = [segment.base_offset for segment in self._segments]
        self._with_aborted = [segment for segment in self._segments if len(segment.aborted)]
        self._sealed_bytes = _total_bytes(self._segments[:-1])
        self.newest = self._segments[-1]
        self.directory_changed = True

    def release_files(self) -> None:
        """Let go of every descriptor."""
        for segment in self._segments:
            segment.release_file()
        self._opened.clear()


def _total_bytes(segments: Sequence[Segment]) -> int:
    return sum([segment.size_bytes for segment in segments])


def _first_offset(aborted: AbortedTransaction) -> int:
    return aborted.first_offset
