"""One partition's log: its segments, and the offsets that say which of their records count.

In scope: appending, reading, truncating, flushing, retention as actions, and the translation of their
operating system errors. Out of scope: files and positions (`segment_list`, `segment`, `index`), repair
(`recovery`), the rules of retention (`retention`), the high watermark and the offsets that clients may read
(the replica above).

The directory `<topic>-<partition>/` holds segments, `partition.metadata` (topic id),
`leader-epoch-checkpoint` and snapshots of `producers`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from mainstem_broker.config.setting import INT64_MAX
from mainstem_broker.config.topic_settings import TopicConfig
from mainstem_broker.errors import CorruptMessage, OffsetOutOfRange, StorageError
from mainstem_broker.log import checkpoints, recovery, time_lookup
from mainstem_broker.log.compaction.facts import (
    CompactedGroup,
    SegmentFacts,
    compacted_files,
    segment_facts,
    unfinished_files,
)
from mainstem_broker.log.deletion import ScheduleUnlink, unlink_all, unlink_now
from mainstem_broker.log.directory_names import (
    DELETED_DIRECTORY_SUFFIX,
    STRAY_DIRECTORY_SUFFIX,
    parse_directory_name,
    unique_directory_name,
)
from mainstem_broker.log.files import FileSlice, ReadResult, fsync_directory, storage_error
from mainstem_broker.log.leader_epochs import EpochCache
from mainstem_broker.log.producer_state import RememberedBatch
from mainstem_broker.log.producers import Producers
from mainstem_broker.log.retention import DeletedSegment, segment_ages, segments_due
from mainstem_broker.log.segment import Segment, segment_path
from mainstem_broker.log.segment_list import SegmentList
from mainstem_broker.log.time_lookup import LargestTimestamp, StoredBatch
from mainstem_broker.log.transaction_index import AbortedTransaction
from mainstem_broker.protocol.batches import (
    STAMP_BYTES,
    BatchHeader,
    crc_matches,
    split_batches,
    stamped_prefix,
)
from mainstem_broker.protocol.compression import Buffer
from mainstem_broker.protocol.markers import read_marker

logger = structlog.get_logger(__name__)

SNAPSHOT_BATCHES: Final = 100_000
"""Batches of producers with ids between two snapshots within a segment. Reading that many again, after a
truncation, stops the broker for a fifth of a second."""


class AppendInfo(NamedTuple):
    """What an append did. `log_append_time_ms` is -1 unless the broker's clock stamped the records."""

    first_offset: int
    last_offset: int
    max_timestamp: int
    log_append_time_ms: int
    log_start_offset: int


class PartitionLog:
    """The log of one partition on this broker.

    Offsets, with what moves them:
    - `log_start_offset`: the first that may be read. Rises by DeleteRecords and retention.
    - `log_end_offset`: the next to be written. Rises by appends, falls by truncation.
    - `recovery_point`: everything before it is durable. Rises by `mark_flushed`, falls by truncation.
    - `first_dirty_offset`: everything before it is compacted. Rises by `mark_compacted`, falls by truncation.
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
        self.first_dirty_offset = 0
        self.last_flush_ms = now_ms
        self.truncation_count = 0
        self.truncations_written = 0
        """How many of them are durable. Nothing is appended before all are: recovery would assume that
        records below the former recovery point are flushed."""
        self.last_lowering = 0
        """The last truncation, counted from 1, that lowered the recovery point or the first dirty offset."""
        self.write_truncations: Callable[[PartitionLog], None] = _write_truncations
        """Makes truncations durable and raises `truncations_written`; may raise OSError. The owner calls it
        in a thread before it goes on with the log; an append that comes even earlier calls it itself."""
        # Called, from any thread, when the disk has failed for good.
        self.disk_failed: Callable[[], None] = _nothing
        self.producers: Producers = recovered.producers
        self._snapshots = recovered.snapshots
        self._segments = SegmentList(directory, recovered.segments, schedule_unlink)
        self.log_end_offset = self._segments.newest.next_offset
        self._schedule_unlink = schedule_unlink
        self._epochs_changed = True
        self._epochs_lock = threading.Lock()
        self._truncated_to = INT64_MAX  # the lowest end since the last flush began
        self._end_before_flush = self.recovery_point  # the last end at which no flush was due by number
        self._has_left = False

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
        is_new: bool = False,
    ) -> PartitionLog:
        """The log in `directory`, which is created, or recovered where it was not closed cleanly.

        Any thread may call it. `recovery_point` and `log_start_offset` are the checkpoints', 0 for none.
        `is_new` says that the directory has just been created and holds nothing of a log.

        Raises:
            StorageError: the disk failed or is full.
        """
        try:
            if is_new:
                recovered = recovery.begin(directory, config, now_ms)
            else:
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
        return self._segments.size_bytes

    def update_config(self, config: TopicConfig) -> None:
        """Take new settings; they hold from the next append, roll or check on."""
        self.config = config

    # Appending

    def append_as_leader(
        self, batch: Buffer, header: BatchHeader, leader_epoch: int, now_ms: int
    ) -> AppendInfo:
        """Give the batch the next offsets and write it.

        `batch` is exactly one validated batch and `header` is its header; its base offset and leader epoch
        are replaced. Its CRC is not checked.

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
        self._note_end()
        if header.producer_id >= 0:
            self._follow_producer(header, batch, base_offset, now_ms)
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
        """Record that `leader_epoch` begins at the log's end, before anything of it is written (KIP-101)."""
        self._epochs_changed |= self.epochs.assign(leader_epoch, self.log_end_offset)

    def append_as_follower(self, records: Buffer, now_ms: int) -> AppendInfo:
        """Write batches as the leader stored them, with its offsets and epochs, all or none.

        Offsets may have gaps, because the leader may have compacted the records between. An incomplete batch
        at the end of `records` is ignored: fetch responses may end in one.

        The first batch of an empty log may begin below the log's start, which stays: DeleteRecords moves the
        leader's start into a batch, and the leader sends that batch whole (KAFKA-6975).

        Raises:
            CorruptMessage: a broken batch, a wrong CRC, or no batch.
            OffsetOutOfRange: a batch begins below the log's end.
            StorageError: the disk failed or is full; nothing is in the log.
        """
        batches = split_batches(records, partial_tail=True)
        if not batches:
            raise CorruptMessage("There is no whole batch to append.")
        end_offset = self.log_end_offset
        first_header = batches[0][0]
        begins_below = (
            self.log_start_offset == end_offset
            and first_header.base_offset < end_offset < first_header.next_offset
        )
        if begins_below:
            end_offset = first_header.base_offset
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
        first_offset, last_offset = first_header.base_offset, end_offset - 1
        try:
            if begins_below:
                self._begin_segment_below_start(first_offset)
            segment = self._segment_for(first_offset, last_offset, max_timestamp, size_bytes, now_ms)
            segment.write((memoryview(records)[:size_bytes],), size_bytes)
        except OSError as error:
            raise self._failed("appending", error) from error
        for header, batch in batches:
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
                self._follow_producer(header, batch, header.base_offset, now_ms)
        if begins_below:
            self.epochs.truncate_from_start(self.log_start_offset)
        self._write_full_index_blocks(segment)
        self.log_end_offset = end_offset
        self._note_end()
        if self.producers.unsaved_batches >= SNAPSHOT_BATCHES:
            self._snapshot_between()
        return AppendInfo(first_offset, last_offset, max_timestamp, -1, self.log_start_offset)

    def _begin_segment_below_start(self, base_offset: int) -> None:
        """Replace the segments of an empty log by one that can hold a batch from `base_offset` on.

        The log goes on to start and end where it did, also if nothing can be written to the segment.
        """
        newest = self._segments.newest
        if newest.size_bytes == 0 and newest.base_offset == base_offset:
            return  # an attempt that found the disk full has left it
        self._snapshots.remove_all()
        self._segments.begin_afresh(base_offset, self.config, self.last_flush_ms)
        self.producers = Producers()
        self._end_moved()
        self.log_end_offset = self.log_start_offset

    def _follow_producer(self, header: BatchHeader, batch: Buffer, base_offset: int, now_ms: int) -> None:
        marker = read_marker(header, batch) if header.is_control else None
        completed = self.producers.update(header, base_offset, now_ms, marker)
        if completed is not None and completed.is_aborted:
            self._segments.note_aborted(self.producers.transactions.aborted(completed))
            self._write_full_index_blocks(self._segments.newest)

    def repeated(self, header: BatchHeader, batch: RememberedBatch) -> AppendInfo:
        """The result of the append of `batch`, for a client that repeats it with `header`."""
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
        if self.truncations_written != self.truncation_count:
            self.write_truncations(self)
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
            position = self._segments.find(offset)
            if position is None or position[2] >= upper_bound:
                return ReadResult(None, offset)
            segment, start, base_offset = position
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

    def aborted_transactions(self, from_offset: int, to_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that have records in [`from_offset`, `to_offset`), by first offset.

        `to_offset` may not be above the last stable offset: the result of an open transaction is not known.
        """
        return self._segments.aborted_transactions(from_offset, to_offset)

    def first_batch_for_timestamp(
        self, timestamp_ms: int, from_offset: int
    ) -> StoredBatch | time_lookup.Stretch | None:
        """The first batch, from `from_offset` on, that may hold a record at or after `timestamp_ms`; or where
        to look for it.

        `time_lookup.first_record` finds the record in it, and `time_lookup.walk` the batch, in any thread.

        Raises:
            CorruptMessage, StorageError: as `read`.
        """
        try:
            return time_lookup.first_batch(self._segments.all, timestamp_ms, from_offset)
        except OSError as error:
            raise self._failed("reading", error) from error

    def largest_timestamp(self) -> LargestTimestamp:
        """The largest timestamp in the log (KIP-734), as far as headers tell.

        Raises:
            CorruptMessage, StorageError: as `read`.
        """
        try:
            return time_lookup.largest_timestamp(self._segments.all, self.log_start_offset)
        except OSError as error:
            raise self._failed("reading", error) from error

    # Moving the start and the end

    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """Move the log's start up to `offset`, and return whether it moved. Retention drops the segments.

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
        """Make the records before `offset` unreadable, and return the log's start offset.

        Raises:
            OffsetOutOfRange: `offset` is past the log's end.
        """
        self.maybe_increment_log_start_offset(offset)
        return self.log_start_offset

    def truncate_to(self, offset: int) -> None:
        """Drop every batch that reaches `offset` or beyond, so that the log ends at `offset` or before.

        Below the log's start nothing is left: the log then starts and ends at `offset`.

        Raises:
            StorageError: the disk failed; the log may end later than requested, but never inside a batch.
        """
        if offset >= self.log_end_offset:
            # An epoch in which nothing was written has no record to drop, but must not be reported any more.
            self._epochs_changed |= self.epochs.truncate_from_end(self.log_end_offset)
            return
        if offset < self.log_start_offset:
            self.truncate_fully_and_start_at(offset)
            return
        try:
            self._segments.cut(offset, self.config.file_delete_delay_ms)
            self._truncate_producers(self._segments.newest.next_offset)
            if self._segments.newest.next_offset < self.log_start_offset:
                # The whole batch that held the log's start is gone; the rest was not readable before either.
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
            # Also those that began below `offset`: a follower would report an epoch without any record.
            self.epochs.clear()
            self.producers = Producers()
            self._end_moved()
        except OSError as error:
            raise self._failed("truncating", error) from error

    def _end_moved(self) -> None:
        """Update all that depends on the log's end after a truncation, without an fsync."""
        self.truncation_count += 1
        self.log_end_offset = self._segments.newest.next_offset
        self._end_before_flush = min(self._end_before_flush, self.log_end_offset)
        # In this order: see `flush`.
        self._truncated_to = min(self._truncated_to, self.log_end_offset)
        self.epochs.truncate_from_end(self.log_end_offset)
        self._epochs_changed = True
        self._snapshot_producers(self.log_end_offset)
        if max(self.recovery_point, self.first_dirty_offset) > self.log_end_offset:
            self.recovery_point = min(self.recovery_point, self.log_end_offset)
            self.first_dirty_offset = min(self.first_dirty_offset, self.log_end_offset)
            self.last_lowering = self.truncation_count

    def _failed(self, doing: str, error: OSError) -> StorageError:
        failure = storage_error(self.directory, doing, error)
        # A thread may find no directory because the log was deleted meanwhile, which is no fault of the disk.
        if failure.is_failure and not self._has_left:
            self.disk_failed()
        return failure

    def _truncate_producers(self, end_offset: int) -> None:
        self._snapshots.remove_after(end_offset)
        if not self.producers.truncate_to(end_offset):
            transactions = self.producers.transactions
            self.producers = self._snapshots.restore(self._segments.all, end_offset)
            self.producers.transactions.keep_completed(transactions, end_offset)

    def _snapshot_producers(self, offset: int) -> None:
        """Write the present state of producers, which is that at `offset`."""
        self.producers.unsaved_batches = 0
        self._snapshots.keep(offset, self.producers)

    def _snapshot_between(self) -> None:
        """Write a snapshot within a segment, and drop those that it makes superfluous."""
        self._snapshot_producers(self.log_end_offset)
        self._snapshots.remove_orphans({segment.base_offset for segment in self._segments.all})

    def delete_old_segments(self, now_ms: int, high_watermark: int) -> list[DeletedSegment]:
        """Drop the segments that are due by retention or by the log's start; the files go after a delay.

        Where the newest segment is due, too, an empty one takes its place.

        Raises:
            StorageError: the disk failed; some of the oldest segments may be gone.
        """
        newest = self._segments.newest
        segments = [segment for segment in self._segments.all if segment.size_bytes]
        ages = segment_ages(segments, self.log_end_offset)
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
            # First those that need no new segment, for which a full disk may have no room.
            self._segments.drop(
                [segment for segment in due if segment is not newest], self.config.file_delete_delay_ms
            )
            if due[-1] is newest:
                self._segments.begin_afresh(self.log_end_offset, self.config, now_ms)
                self._snapshot_producers(self.log_end_offset)
            self._snapshots.remove_before(self._segments.all[0].base_offset)
        except OSError as error:
            raise self._failed("deleting segments", error) from error
        finally:
            self.maybe_increment_log_start_offset(self._segments.all[0].base_offset)
        return [
            DeletedSegment(age.base_offset, age.end_offset, age.size_bytes, reason)
            for age, reason in zip(ages, reasons, strict=False)
        ]

    # Compaction

    def segment_facts(self) -> list[SegmentFacts]:
        """The segments as a compaction plan sees them. Any thread may call it; may raise OSError."""
        return segment_facts(
            self._segments.snapshot(),
            reads_first_timestamps=self.config.max_compaction_lag_ms != INT64_MAX,
        )

    def take_compacted(self, group: CompactedGroup, now_ms: int) -> bool:
        """Replace the segments of a finished group; False if they have changed since, or are gone.

        Raises:
            StorageError: nothing has changed; or the disk failed, and a restart completes what was begun.
        """
        inputs = [
            segment
            for segment in self._segments.all
            if group.base_offset <= segment.base_offset < group.end_offset
        ]
        output = compacted_files(self.directory, group.base_offset)
        try:
            if (
                self._segments.newest in inputs
                or tuple(segment.base_offset for segment in inputs) != group.input_base_offsets
                or tuple(segment.size_bytes for segment in inputs) != group.input_sizes_bytes
            ):
                unlink_all(output)
                return False
            # Recovery concludes from unfinished files of a lower offset that the inputs of this group are
            # still there.
            first = segment_path(self.directory, group.base_offset, "").name
            unlink_all(path for path in unfinished_files(self.directory) if path.name < first)
            self._segments.replace(inputs, output, group.end_offset, self.config, now_ms)
        except OSError as error:
            raise self._failed("compacting", error) from error
        self._snapshots.remove_orphans({segment.base_offset for segment in self._segments.all})
        return True

    def flush_names(self) -> None:
        """Make durable which files the log consists of. Any thread may call it.

        Raises:
            StorageError: the disk failed.
        """
        try:
            self._flush_names()
        except OSError as error:
            raise self._failed("flushing", error) from error

    # Flushing and the end

    @property
    def acknowledgeable_offset(self) -> int:
        """Records before it may be acknowledged: fewer than `flush.messages` of them are not durable.

        It lies between batches, since consumers are sent the batch that it would lie in as a whole.
        """
        for end in (self.log_end_offset, self._end_before_flush):
            if 0 <= end - self.recovery_point < self.config.flush_messages:
                return end
        return self.recovery_point

    def _note_end(self) -> None:
        if self.log_end_offset - self.recovery_point < self.config.flush_messages:
            self._end_before_flush = self.log_end_offset

    def flush_is_due(self, now_ms: int) -> bool:
        """Whether `flush.messages` or `flush.ms` require a flush, or a sealed segment is not flushed yet."""
        unflushed = self.log_end_offset - self.recovery_point
        return unflushed > 0 and (
            unflushed >= self.config.flush_messages
            or now_ms - self.last_flush_ms >= self.config.flush_ms
            or self.recovery_point < self._segments.newest.base_offset
        )

    def flush(self) -> int:
        """Make everything durable that is in the log now; returns the offset for `mark_flushed`.

        Any thread may call it while the loop goes on, but one at a time. The newest segment's indexes are
        left out: recovery rebuilds those of the segment that holds the recovery point anyway.

        Raises:
            StorageError: the disk failed; nothing may be marked.
        """
        # A truncation sets the end first and this second, so one of the two shows it.
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
                self.write_epochs()
            if self._segments.directory_changed:
                self._flush_names()
        except OSError as error:
            if not self._has_left:
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
        """Take the result of `flush`. `now_ms` restarts the clock of `flush.ms`."""
        self.recovery_point = max(self.recovery_point, min(offset, self._truncated_to))
        if now_ms is not None:
            self.last_flush_ms = now_ms

    def write_epochs(self) -> None:
        """Make the leader epochs durable. Any thread may call it; may raise OSError."""
        with self._epochs_lock:
            self._epochs_changed = False
            try:
                checkpoints.write_epochs(self.directory, self.epochs.entries)
            except OSError:
                self._epochs_changed = True
                if not self._has_left:
                    raise

    def close(self) -> None:
        """Flush everything, including indexes, and close the files. The log is not used afterwards.

        Raises:
            StorageError: the disk failed; the next start has to recover the log.
        """
        newest = self._segments.newest
        try:
            newest.seal()
            self.recovery_point = max(self.recovery_point, min(self.flush(), self._truncated_to))
            newest.flush_indexes()
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
        """Rename the directory so that it no longer counts, and keep it until a person removes it.

        Raises:
            StorageError: the disk failed; the directory is still there.
        """
        return self._leave(STRAY_DIRECTORY_SUFFIX)

    def _leave(self, suffix: str) -> Path:
        target = self.directory.with_name(unique_directory_name(self.directory.name, suffix))
        self._has_left = True
        try:
            self.directory.rename(target)
        except OSError as error:
            self._has_left = False
            raise self._failed("renaming the log", error) from error
        self._segments.release_files()
        return target


def _nothing() -> None:
    pass


def _write_truncations(log: PartitionLog) -> None:
    """The default, for a log whose recovery point is not written down."""
    log.write_epochs()
    log.truncations_written = log.truncation_count
