"""One partition's log: its segments, and the offsets that say what of them counts.

Lives here: appending, reading, truncating, flushing, retention as actions, and the one translation of their
operating system errors. Must not: files and positions (`segment_list`, `segment`, `index`), repair
(`recovery`), the rules of retention (`retention`), the high watermark and who may read up to where (the
replica above).

The directory `<topic>-<partition>/` holds segments, `partition.metadata` (topic id),
`leader-epoch-checkpoint` and snapshots of `producers`. Renamed to
`<topic>-<partition>.<32 hex digits>-delete` it is to be removed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from mainstem_broker.config import INT64_MAX, TopicConfig
from mainstem_broker.errors import CorruptMessage, OffsetOutOfRange, StorageError
from mainstem_broker.log import checkpoints, recovery, time_lookup
from mainstem_broker.log.deletion import (
    DELETED_DIRECTORY_SUFFIX,
    STRAY_DIRECTORY_SUFFIX,
    ScheduleUnlink,
    unique_directory_name,
    unlink_now,
)
from mainstem_broker.log.epochs import EpochCache
from mainstem_broker.log.files import FileSlice, ReadResult, fsync_directory, fsync_file, storage_error
from mainstem_broker.log.producers import Producers, RememberedBatch
from mainstem_broker.log.retention import DeletionReason, SegmentAge, segments_due
from mainstem_broker.log.segment import Segment
from mainstem_broker.log.segment_list import SegmentList
from mainstem_broker.log.time_lookup import TimestampOffset
from mainstem_broker.protocol.batches import (
    STAMP_BYTES,
    BatchHeader,
    crc_matches,
    split_batches,
    stamped_prefix,
)
from mainstem_broker.protocol.compression import Buffer

logger = structlog.get_logger(__name__)

SNAPSHOT_BATCHES: Final = 100_000
"""Batches of producers with ids between two snapshots, where a segment is longer: reading that many again,
after a truncation, stops the broker for a fifth of a second."""


class AppendInfo(NamedTuple):
    """What an append did. `log_append_time_ms` is -1 unless the broker's clock stamped the records."""

    first_offset: int
    last_offset: int
    max_timestamp: int
    log_append_time_ms: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class DeletedSegment:
    """A segment that retention dropped: offsets from `base_offset` to before `end_offset`."""

    base_offset: int
    end_offset: int
    size_bytes: int
    reason: DeletionReason


class PartitionLog:
    """The log of one partition on this broker.

    Offsets, with what moves them:
    - `log_start_offset`: the first that may be read. Rises by DeleteRecords and retention.
    - `log_end_offset`: the next to be written. Rises by appends, falls by truncation.
    - `recovery_point`: all before it is on the disk for good. Rises by `mark_flushed`, falls by truncation.
    """

    def __init__(
        self,
        directory: Path,
        config: TopicConfig,
        recovered: recovery.RecoveredLog,
        now_ms: int,
        schedule_unlink: ScheduleUnlink,
    ) -> None:
        """Use `open`."""
        self.directory = directory
        self.topic, self.partition = parse_directory_name(directory.name)
        self.config = config
        self.epochs: EpochCache = recovered.epochs
        self.log_start_offset = recovered.log_start_offset
        self.recovery_point = recovered.recovery_point
        self.last_flush_ms = now_ms
        # Called when a truncation lowered the recovery point: a checkpoint that says more would be a lie.
        self.recovery_point_lowered: Callable[[], None] = _nothing
        # Called, from any thread, when the disk has failed and will not do better the next time.
        self.disk_failed: Callable[[], None] = _nothing
        self.producers: Producers = recovered.producers
        self._snapshots = recovered.snapshots
        self._segments = SegmentList(directory, recovered.segments, schedule_unlink)
        self.log_end_offset = self._segments.newest.next_offset
        self._schedule_unlink = schedule_unlink
        self._epochs_changed = True
        self._epochs_lock = threading.Lock()
        self._truncated_to = INT64_MAX  # the lowest end since the last flush began

    @classmethod
    def open(
        cls,
        directory: Path,
        config: TopicConfig,
        *,
        clean_shutdown: bool,
        recovery_point: int,
        log_start_offset: int,
        now_ms: int,
        schedule_unlink: ScheduleUnlink = unlink_now,
    ) -> PartitionLog:
        """The log in `directory`, which is created, or recovered where it was not closed cleanly.

        Any thread may call it. `recovery_point` and `log_start_offset` are the checkpoints', 0 for none.

        Raises:
            StorageError: the disk failed or is full.
        """
        try:
            directory.mkdir(parents=True, exist_ok=True)
            recovered = recovery.recover(
                directory,
                config,
                clean_shutdown=clean_shutdown,
                recovery_point=recovery_point,
                log_start_offset=log_start_offset,
                now_ms=now_ms,
            )
        except OSError as error:
            raise storage_error(directory, "opening the log", error) from error
        return cls(directory, config, recovered, now_ms, schedule_unlink)

    @property
    def segments(self) -> Sequence[Segment]:
        """Oldest first; the last is the one appended to."""
        return self._segments.all

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments.all)

    def update_config(self, config: TopicConfig) -> None:
        """Take new settings; they hold from the next append, roll or check on."""
        self.config = config

    # Appending

    def append_as_leader(
        self, batch: Buffer, header: BatchHeader, leader_epoch: int, now_ms: int
    ) -> AppendInfo:
        """Give the batch the next offsets and write it.

        `batch` is exactly one validated batch and `header` is its header; its base offset and leader epoch
        are replaced. Its CRC is not looked at.

        Raises:
            StorageError: the disk failed or is full; nothing of the batch is in the log.
        """
        size_bytes = header.size_bytes
        if size_bytes != len(batch):
            raise ValueError(f"a batch of {size_bytes} bytes came in {len(batch)}")
        base_offset = self.log_end_offset
        last_offset = base_offset + header.last_offset_delta
        max_timestamp = header.max_timestamp
        prefix = stamped_prefix(header, base_offset, leader_epoch)
        try:
            segment = self._segment_for(base_offset, last_offset, max_timestamp, size_bytes, now_ms)
            segment.write((prefix, memoryview(batch)[STAMP_BYTES:]), size_bytes)
        except OSError as error:
            raise self._failed("appending", error) from error
        if leader_epoch != self.epochs.latest_epoch:
            self._epochs_changed |= self.epochs.assign(leader_epoch, base_offset)
        if segment.added(
            base_offset, size_bytes, last_offset, max_timestamp, self.config.index_interval_bytes
        ):
            self._write_full_index_blocks(segment)
        self.log_end_offset = last_offset + 1
        if header.producer_id >= 0:
            self.producers.update(header, base_offset, now_ms)
            if self.producers.unsaved_batches >= SNAPSHOT_BATCHES:
                self._snapshot_between()
        return AppendInfo(
            base_offset,
            last_offset,
            max_timestamp,
            max_timestamp if header.log_append_time else -1,
            self.log_start_offset,
        )

    def begin_epoch(self, leader_epoch: int) -> None:
        """Note that `leader_epoch` begins at the log's end, though nothing of it is written yet (KIP-101)."""
        self._epochs_changed |= self.epochs.assign(leader_epoch, self.log_end_offset)

    def append_as_follower(self, records: Buffer, now_ms: int) -> AppendInfo:
        """Write batches as the leader stored them, with its offsets and epochs, all or none.

        Offsets may jump ahead, for the leader may have compacted what lay between. An incomplete batch at the
        end of `records` is left out, as fetch responses may end in one.

        Raises:
            CorruptMessage: a broken batch, a wrong CRC, or none at all.
            OffsetOutOfRange: a batch begins below the log's end.
            StorageError: the disk failed or is full; nothing is in the log.
        """
        batches = split_batches(records, partial_tail=True)
        if not batches:
            raise CorruptMessage("There is no whole batch to append.")
        end_offset = self.log_end_offset
        for header, batch in batches:
            if header.last_offset_delta < 0 or not crc_matches(header, batch):
                raise CorruptMessage(f"The batch at offset {header.base_offset} does not match its checksum.")
            if header.base_offset < end_offset:
                raise OffsetOutOfRange(
                    f"The batch at offset {header.base_offset} begins below the log's end, {end_offset}."
                )
            end_offset = header.next_offset
        size_bytes = sum(header.size_bytes for header, _ in batches)
        max_timestamp = max(header.max_timestamp for header, _ in batches)
        first_offset, last_offset = batches[0][0].base_offset, end_offset - 1
        try:
            segment = self._segment_for(first_offset, last_offset, max_timestamp, size_bytes, now_ms)
            segment.write((memoryview(records)[:size_bytes],), size_bytes)
        except OSError as error:
            raise self._failed("appending", error) from error
        for header, _ in batches:
            if header.partition_leader_epoch != self.epochs.latest_epoch:
                self._epochs_changed |= self.epochs.assign(header.partition_leader_epoch, header.base_offset)
            segment.added(
                header.base_offset,
                header.size_bytes,
                header.last_offset,
                header.max_timestamp,
                self.config.index_interval_bytes,
            )
            if header.producer_id >= 0:
                self.producers.update(header, header.base_offset, now_ms)
        self._write_full_index_blocks(segment)
        self.log_end_offset = end_offset
        if self.producers.unsaved_batches >= SNAPSHOT_BATCHES:
            self._snapshot_between()
        return AppendInfo(first_offset, last_offset, max_timestamp, -1, self.log_start_offset)

    def repeated(self, header: BatchHeader, batch: RememberedBatch) -> AppendInfo:
        """What the append of `batch` did, for a client that sends it again, with `header`."""
        stamped_ms = batch.timestamp_ms if self.config.log_append_time else -1
        return AppendInfo(
            batch.first_offset,
            batch.last_offset,
            header.max_timestamp if stamped_ms < 0 else stamped_ms,
            stamped_ms,
            self.log_start_offset,
        )

    def _segment_for(
        self, base_offset: int, last_offset: int, max_timestamp: int, size_bytes: int, now_ms: int
    ) -> Segment:
        """The segment to append to. A new one comes with a snapshot of the producers before it."""
        newest = self._segments.newest
        segment = self._segments.for_append(
            base_offset, last_offset, max_timestamp, size_bytes, self.config, now_ms
        )
        if segment is not newest:
            self._snapshot_producers(segment.base_offset)
        return segment

    def _write_full_index_blocks(self, segment: Segment) -> None:
        try:
            segment.write_full_index_blocks()
        except OSError as error:
            # The records are safe, and the entries stay in memory until there is space again.
            logger.warning("index entries wait for space", directory=str(self.directory), error=str(error))

    # Reading

    def read(self, offset: int, max_bytes: int, upper_bound: int, min_one_batch: bool) -> ReadResult:
        """Whole batches of one segment, from the one that holds `offset`, as a slice of its file.

        Batches that begin at `upper_bound` (an offset) or later are left out. At most `max_bytes`, but with
        `min_one_batch` the first batch comes whole even if it is larger (KIP-74).

        Raises:
            OffsetOutOfRange: `offset` is not between the log's start and its end, both included.
            CorruptMessage: what lies there is no batch.
            StorageError: the disk failed.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(
                f"Offset {offset} is not between {self.log_start_offset} and {self.log_end_offset}."
            )
        if offset >= upper_bound or offset == self.log_end_offset or (max_bytes <= 0 and not min_one_batch):
            return ReadResult(None, offset)
        try:
            found = self._segments.find(offset)
            if found is None or found[2] >= upper_bound:
                return ReadResult(None, offset)
            segment, start, base_offset = found
            if upper_bound >= segment.next_offset:
                end, end_offset = segment.size_bytes, segment.next_offset
            else:
                end, end_offset = segment.find_end(upper_bound)
            if end - start > max_bytes:
                end, end_offset = segment.find_cut(start, end, max_bytes)
                if end - start > max_bytes and not min_one_batch:
                    return ReadResult(None, offset)
            return ReadResult(FileSlice(segment.file, start, end - start, base_offset), end_offset)
        except OSError as error:
            raise self._failed("reading", error) from error

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """The first record at or after `timestamp_ms`, by offset; None when there is none.

        Never below the log's start. Opens one batch. `leader_epoch` is that of the record's batch.

        Raises:
            CorruptMessage, StorageError: as `read`.
        """
        try:
            return time_lookup.first_at_or_after(self._segments.all, timestamp_ms, self.log_start_offset)
        except OSError as error:
            raise self._failed("reading", error) from error

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """The record with the largest timestamp, the first of several (KIP-734); None when none has one.

        Raises:
            CorruptMessage, StorageError: as `read`.
        """
        try:
            return time_lookup.latest(self._segments.all, self.log_start_offset)
        except OSError as error:
            raise self._failed("reading", error) from error

    # Moving the start and the end

    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """Move the log's start up to `offset`; answers whether it moved. Retention drops the segments.

        Raises:
            OffsetOutOfRange: `offset` is past the log's end.
        """
        if offset > self.log_end_offset:
            raise OffsetOutOfRange(f"Offset {offset} is past the log's end, {self.log_end_offset}.")
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self._epochs_changed |= self.epochs.truncate_from_start(offset)
        return True

    def delete_records_before(self, offset: int) -> int:
        """Make the records before `offset` unreadable for good; answers the log's start offset.

        Raises:
            OffsetOutOfRange: `offset` is past the log's end.
        """
        self.maybe_increment_log_start_offset(offset)
        return self.log_start_offset

    def truncate_to(self, offset: int) -> None:
        """Drop every batch that reaches `offset` or beyond, so that the log ends at `offset` or before.

        Below the log's start nothing is left: the log then starts and ends at `offset`.

        Raises:
            StorageError: the disk failed; the log may be cut further up than asked, never inside a batch.
        """
        if offset >= self.log_end_offset:
            # An epoch in which nothing was written has no record to drop, but must not be named any more.
            self._epochs_changed |= self.epochs.truncate_from_end(self.log_end_offset)
            return
        if offset < self.log_start_offset:
            self.truncate_fully_and_start_at(offset)
            return
        try:
            self._segments.cut(offset, self.config.file_delete_delay_ms)
            self._truncate_producers(self._segments.newest.next_offset)
            if self._segments.newest.next_offset < self.log_start_offset:
                # The batch that held the log's start went whole; what is left can't be read anyway.
                self._segments.begin_afresh(self.log_start_offset, self.config, self.last_flush_ms)
            self._end_moved()
        except OSError as error:
            raise self._failed("truncating", error) from error

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the log is empty, knows no epochs, and starts and ends at `offset`.

        Raises:
            StorageError: the disk failed.
        """
        try:
            self._snapshots.remove_all()
            self._segments.begin_afresh(offset, self.config, self.last_flush_ms)
            self.log_start_offset = offset
            # Also those that began below `offset`: a follower would name an epoch of which it has nothing.
            self.epochs.clear()
            self.producers = Producers()
            self._end_moved()
        except OSError as error:
            raise self._failed("truncating", error) from error

    def _end_moved(self) -> None:
        """Bring all that depends on the log's end in line after a truncation."""
        self.log_end_offset = self._segments.newest.next_offset
        # In this order: see `flush`.
        self._truncated_to = min(self._truncated_to, self.log_end_offset)
        self.epochs.truncate_from_end(self.log_end_offset)
        self._write_epochs()
        self._snapshot_producers(self.log_end_offset)
        if self.recovery_point > self.log_end_offset:
            self.recovery_point = self.log_end_offset
            self.recovery_point_lowered()

    def _failed(self, doing: str, error: OSError) -> StorageError:
        failure = storage_error(self.directory, doing, error)
        if failure.is_failure:
            self.disk_failed()
        return failure

    def _truncate_producers(self, end_offset: int) -> None:
        self._snapshots.remove_after(end_offset)
        if not self.producers.truncate_to(end_offset):
            self.producers = self._snapshots.restore(self._segments.all, end_offset)

    def _snapshot_producers(self, offset: int) -> None:
        """Keep what is known of producers now, which is their state at `offset`."""
        self.producers.unsaved_batches = 0
        self._snapshots.keep(offset, self.producers)

    def _snapshot_between(self) -> None:
        """Write a snapshot in the midst of a segment, and drop those that it makes superfluous."""
        self._snapshot_producers(self.log_end_offset)
        self._snapshots.remove_orphans({segment.base_offset for segment in self._segments.all})

    def delete_old_segments(self, now_ms: int, high_watermark: int) -> list[DeletedSegment]:
        """Drop the segments that retention or the log's start leave behind; the files go after a delay.

        The newest segment is rolled first when all of it is due.

        Raises:
            StorageError: the disk failed; what is gone is gone from the start on.
        """
        segments = [segment for segment in self._segments.all if segment.size_bytes]
        ages = [_age(segment, self.log_end_offset) for segment in segments]
        for number, following in enumerate(ages[1:]):
            ages[number] = _age(segments[number], following.base_offset)
        reasons = segments_due(
            ages,
            self.config,
            log_start_offset=self.log_start_offset,
            high_watermark=high_watermark,
            now_ms=now_ms,
        )
        due = segments[: len(reasons)]
        if not due:
            return []
        try:
            if due[-1] is self._segments.newest:
                self._segments.roll(self.log_end_offset, self.config, now_ms)
                self._snapshot_producers(self.log_end_offset)
            self._segments.drop(due, self.config.file_delete_delay_ms)
            self._snapshots.remove_before(self._segments.all[0].base_offset)
        except OSError as error:
            raise self._failed("deleting segments", error) from error
        self.maybe_increment_log_start_offset(self._segments.all[0].base_offset)
        return [
            DeletedSegment(age.base_offset, age.end_offset, age.size_bytes, reason)
            for age, reason in zip(ages, reasons, strict=False)
        ]

    # Flushing and the end

    @property
    def unflushed_messages(self) -> int:
        return self.log_end_offset - self.recovery_point

    def flush_is_due(self, now_ms: int) -> bool:
        """Whether `flush.messages` or `flush.ms` ask for a flush, or a sealed segment is not flushed yet."""
        unflushed = self.log_end_offset - self.recovery_point
        return unflushed > 0 and (
            unflushed >= self.config.flush_messages
            or now_ms - self.last_flush_ms >= self.config.flush_ms
            or self.recovery_point < self._segments.newest.base_offset
        )

    def flush(self) -> int:
        """Bring all that is in the log now to the disk for good; answers what to give to `mark_flushed`.

        Any thread may call it while the loop goes on, but one at a time. The newest segment's indexes are
        left out: recovery rebuilds those of the segment that holds the recovery point anyway.

        Raises:
            StorageError: the disk failed; nothing may be marked.
        """
        # A truncation sets the end first and this second, so one of the two tells of it.
        self._truncated_to = INT64_MAX
        end_offset = self.log_end_offset
        try:
            for segment in self._segments.snapshot():
                # A segment that ends at the recovery point may have been sealed since: its indexes count.
                if segment.next_offset >= self.recovery_point:
                    try:
                        segment.flush(sealed=segment is not self._segments.newest)
                    except FileNotFoundError:
                        pass  # deleted meanwhile
            if self._epochs_changed:
                self._write_epochs()
            if self._segments.directory_changed:
                self._flush_names()
        except OSError as error:
            raise self._failed("flushing", error) from error
        return end_offset

    def _flush_names(self) -> None:
        self._segments.directory_changed = False
        try:
            fsync_directory(self.directory)
            fsync_directory(self.directory.parent)
        except OSError:
            self._segments.directory_changed = True
            raise

    def mark_flushed(self, offset: int, now_ms: int | None = None) -> None:
        """Take the answer of `flush` in. `now_ms` restarts the clock of `flush.ms`."""
        self.recovery_point = max(self.recovery_point, min(offset, self._truncated_to))
        if now_ms is not None:
            self.last_flush_ms = now_ms

    def _write_epochs(self) -> None:
        with self._epochs_lock:
            self._epochs_changed = False
            try:
                checkpoints.write_epochs(self.directory, self.epochs.entries)
            except OSError:
                self._epochs_changed = True
                raise

    def close(self) -> None:
        """Flush everything, indexes included, and let go of the files. The log is not used afterwards.

        Raises:
            StorageError: the disk failed; the next start has to recover the log.
        """
        newest = self._segments.newest
        try:
            newest.seal()
            self.recovery_point = max(self.recovery_point, min(self.flush(), self._truncated_to))
            fsync_file(newest.offset_index.path)
            fsync_file(newest.time_index.path)
            self._snapshot_producers(self.log_end_offset)
        except OSError as error:
            raise self._failed("closing the log", error) from error
        finally:
            self._segments.release_files()

    def delete(self) -> None:
        """Rename the directory so that it no longer counts, and have it removed later.

        Raises:
            StorageError: the disk failed; the directory is still there.
        """
        target = self._leave(DELETED_DIRECTORY_SUFFIX)
        self._schedule_unlink([target], self.config.file_delete_delay_ms)

    def set_aside(self) -> Path:
        """Rename the directory so that it no longer counts, and keep it for a person to look at.

        Raises:
            StorageError: the disk failed; the directory is still there.
        """
        return self._leave(STRAY_DIRECTORY_SUFFIX)

    def _leave(self, suffix: str) -> Path:
        target = self.directory.with_name(unique_directory_name(self.directory.name, suffix))
        try:
            self.directory.rename(target)
        except OSError as error:
            raise self._failed("renaming the log", error) from error
        self._segments.release_files()
        return target


def parse_directory_name(name: str) -> tuple[str, int]:
    """The topic and partition that a log's directory is named after.

    Raises:
        ValueError: it is not the name of a log's directory.
    """
    topic, dash, partition = name.rpartition("-")
    if not (dash and topic and partition.isdecimal() and partition.isascii()):
        raise ValueError(f"{name!r} is not of the form topic-partition")
    return topic, int(partition)


def _age(segment: Segment, end_offset: int) -> SegmentAge:
    latest_ms = segment.max_timestamp if segment.max_timestamp >= 0 else segment.modified_ms
    return SegmentAge(segment.base_offset, end_offset, segment.size_bytes, latest_ms)


def _nothing() -> None:
    pass
