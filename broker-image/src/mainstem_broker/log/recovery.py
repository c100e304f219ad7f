"""From whatever a crash left in a log's directory to a log that can be used.

In scope: the passes below, in their order. Out of scope: anything done while a log is in use.

1. Leftovers: files that were being deleted or written go; finished compactions are completed.
2. Segments after a clean stop, or wholly before the recovery point, are taken as they are, with a look at
   their indexes; a doubtful index is rebuilt. One that ends just at the recovery point may have been sealed
   after it was flushed, so its indexes need not have reached the disk: it belongs to the next pass.
3. The other segments are read through. The first batch that is short, fails its CRC or goes back in offsets
   ends the log: it and all after it, later segments too, was never flushed, and is cut. Indexes are rebuilt.
4. The log start offset: at least the first segment's; a log that ends before it starts afresh there.
5. Leader epochs: those of the segments read through are taken from their batches.
6. Producers: those of a snapshot, and of the batches after it, in the same reading where there is one. After
   a crash, only snapshots before the recovery point are surely of this log's present history.

Each pass leaves a state from which all of them can run again: a crash during recovery costs time only.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from mainstem_broker.config.topic_settings import TopicConfig
from mainstem_broker.errors import ProtocolError
from mainstem_broker.log import checkpoints
from mainstem_broker.log.deletion import DELETED_SUFFIX
from mainstem_broker.log.files import LogFile
from mainstem_broker.log.index import OffsetIndex, TimeIndex
from mainstem_broker.log.leader_epochs import EpochCache
from mainstem_broker.log.producer_snapshots import ProducerSnapshots
from mainstem_broker.log.producers import Producers
from mainstem_broker.log.scanning import marker_at, scan_batches, scan_headers
from mainstem_broker.log.segment import (
    CLEANED_SUFFIX,
    COPY_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    Segment,
    is_named_by_offset,
    segment_path,
)
from mainstem_broker.log.transaction_index import TransactionIndex
from mainstem_broker.protocol.batches import BatchHeader, crc_matches
from mainstem_broker.protocol.markers import Marker, read_marker

logger = structlog.get_logger(__name__)

_BASE_OFFSET_DIGITS: Final = 20
_INDEX_SUFFIXES: Final = (OffsetIndex.SUFFIX, TimeIndex.SUFFIX, TransactionIndex.SUFFIX)


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """What recovery found: at least one segment, oldest first, and the offsets that hold."""

    segments: list[Segment]
    epochs: EpochCache
    producers: Producers
    snapshots: ProducerSnapshots
    log_start_offset: int
    recovery_point: int


def recover(
    directory: Path,
    config: TopicConfig,
    *,
    clean_shutdown: bool,
    recovery_point: int,
    log_start_offset: int,
    now_ms: int,
) -> RecoveredLog:
    """Bring the directory's files in order and answer the log they hold. May raise OSError."""
    _remove_leftovers(directory)
    epochs = checkpoints.read_epochs(directory)
    segments = [Segment(directory, base, config, now_ms) for base in _base_offsets(directory)]
    snapshots = ProducerSnapshots(directory)
    if segments and not clean_shutdown:
        # Retention may have passed the recovery point since that was written down.
        snapshots.remove_after(max(recovery_point, segments[0].base_offset))
    producers: Producers | None = None
    kept: list[Segment] = []
    for number, segment in enumerate(segments):
        following = segments[number + 1] if number + 1 < len(segments) else None
        if following is not None and (clean_shutdown or following.base_offset < recovery_point):
            _take_sealed(segment, following.base_offset, config, snapshots, kept)
        elif following is None and clean_shutdown and _take_newest(segment):
            pass
        else:
            if producers is None:
                producers = snapshots.restore([*kept, segment], segment.base_offset)
            snapshots.keep(segment.base_offset, producers)
            cut = _read_through(segment, config, epochs, producers)
            if cut is not None:
                _report_cut(segment, cut, segments[number + 1 :])
                kept.append(segment)
                _remove(segments[number + 1 :])
                break
            if following is not None:
                segment.seal()
        if segment.size_bytes or following is None:
            kept.append(segment)
        else:
            _remove([segment])  # an empty one among the others is left of a roll that failed
    if kept and kept[-1].next_offset < log_start_offset:
        logger.warning(
            "log ends before its start offset and begins afresh there",
            directory=str(directory),
            log_end_offset=kept[-1].next_offset,
            log_start_offset=log_start_offset,
        )
        _remove(kept)
        kept = []
        producers = None
    if not kept:
        kept = [Segment.create(directory, log_start_offset, config, now_ms)]
    for segment in kept[:-1]:
        segment.release_file()
    _write_indexes(kept[-1])
    start, end = max(log_start_offset, kept[0].base_offset), kept[-1].next_offset
    # In this order: a log without records knows no epoch, which as a follower it would report.
    epochs.truncate_from_start(start)
    epochs.truncate_from_end(end)
    snapshots.remove_after(end)
    if producers is None:
        producers = snapshots.restore(kept, end)
    snapshots.remove_orphans({segment.base_offset for segment in kept})
    recovery_point = end if clean_shutdown else min(recovery_point, end)
    return RecoveredLog(kept, epochs, producers, snapshots, start, recovery_point)


def begin(directory: Path, config: TopicConfig, now_ms: int) -> RecoveredLog:
    """A log in a directory that is new: there is nothing to recover. May raise OSError."""
    segment = Segment.create(directory, 0, config, now_ms)
    return RecoveredLog([segment], EpochCache(), Producers(), ProducerSnapshots(directory, ()), 0, 0)


# Pass 1


def _remove_leftovers(directory: Path) -> None:
    names = [path.name for path in directory.iterdir()]
    cleaned = [int(name[:_BASE_OFFSET_DIGITS]) for name in names if name.endswith(CLEANED_SUFFIX)]
    swaps: list[Path] = []
    for name in names:
        path = directory / name
        if name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, COPY_SUFFIX, checkpoints.TEMPORARY_SUFFIX)):
            path.unlink()
        elif name.endswith(SWAP_SUFFIX):
            # A swap file beside the outputs of an unfinished compaction belongs to it; its inputs are there.
            if cleaned and int(name[:_BASE_OFFSET_DIGITS]) >= min(cleaned):
                path.unlink()
            else:
                swaps.append(path)
    for swap in sorted(swaps):
        if swap.name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            _complete_compaction(directory, swap)
        else:
            swap.unlink()  # an index: it is rebuilt
    logs = {path.stem for path in directory.glob("*" + LOG_SUFFIX)}
    for suffix in _INDEX_SUFFIXES:
        for path in directory.glob("*" + suffix):
            if path.stem not in logs:
                path.unlink()


def _complete_compaction(directory: Path, swap: Path) -> None:
    """Put a compacted segment in the place of those it was made from."""
    first = int(swap.name[:_BASE_OFFSET_DIGITS])
    end = first + 1
    file = LogFile(swap)
    for _, header in scan_headers(file, 0, os.fstat(file.descriptor).st_size):
        end = header.next_offset
    # The first input's log may be gone while its indexes are still there: they would pass for those of the
    # output.
    for base_offset in {first, *_base_offsets(directory)}:
        if first <= base_offset < end:
            for suffix in (*_INDEX_SUFFIXES, LOG_SUFFIX):
                segment_path(directory, base_offset, suffix).unlink(missing_ok=True)
    swap.rename(swap.with_suffix(""))


def _base_offsets(directory: Path) -> list[int]:
    """The base offsets of the segments in a directory, in order."""
    return sorted(
        int(path.stem)
        for path in directory.glob("*" + LOG_SUFFIX)
        if len(path.stem) == _BASE_OFFSET_DIGITS and is_named_by_offset(path)
    )


# Pass 2


def _take_sealed(
    segment: Segment,
    end_offset: int,
    config: TopicConfig,
    snapshots: ProducerSnapshots,
    before: Sequence[Segment],
) -> None:
    segment.load_sealed(end_offset)
    if not segment.indexes_sane():
        _rebuild_indexes(segment, config, snapshots.restore([*before, segment], segment.base_offset))
        segment.next_offset = end_offset


def _take_newest(segment: Segment) -> bool:
    """Take the newest segment after a clean stop; False when it is not whole and must be read through."""
    segment.size_bytes = os.fstat(segment.file.descriptor).st_size
    if not segment.indexes_sane():
        return False
    try:
        if segment.measure() != segment.size_bytes:
            return False
    except ProtocolError:
        return False
    segment.load_aborted(segment.next_offset)
    return segment.indexes_sane()


def _rebuild_indexes(segment: Segment, config: TopicConfig, producers: Producers) -> None:
    """Make all indexes anew; `producers` are those known where the segment begins."""
    logger.warning("indexes are missing or broken and are rebuilt", path=str(segment.path(LOG_SUFFIX)))
    end = segment.size_bytes
    segment.begin_afresh()
    for position, header in scan_headers(segment.file, 0, end):
        if header.producer_id >= 0:
            _follow(producers, segment, header, marker_at(segment.file, position, header), 0)
        _add(segment, header, config)
    segment.seal()


def _follow(
    producers: Producers, segment: Segment, header: BatchHeader, marker: Marker | None, appended_ms: int
) -> None:
    """Take in a producer's batch, and index the transaction that it aborts."""
    completed = producers.update(header, header.base_offset, appended_ms, marker)
    if completed is not None and completed.is_aborted:
        segment.aborted.append(producers.transactions.aborted(completed))


# Pass 3


@dataclass(frozen=True, slots=True)
class _Cut:
    position: int
    size_bytes: int
    why: str


def _read_through(
    segment: Segment, config: TopicConfig, epochs: EpochCache, producers: Producers
) -> _Cut | None:
    """Check every batch, rebuild the indexes, note epochs and producers; cut at the first that is bad."""
    status = os.fstat(segment.file.descriptor)
    size_bytes = status.st_size
    appended_ms = status.st_mtime_ns // 1_000_000  # not later than this, in any case
    epochs.truncate_from_end(segment.base_offset)
    segment.begin_afresh()
    why = "its last batch is incomplete"
    try:
        for _, header, batch in scan_batches(segment.file, 0, size_bytes):
            if header.base_offset < segment.next_offset or header.last_offset_delta < 0:
                why = "a batch goes back in offsets"
                break
            if not segment.fits_offset(header.last_offset):
                why = "a batch's offset is too far from the segment's"
                break
            if not crc_matches(header, batch):
                why = "a batch does not match its checksum"
                break
            if header.partition_leader_epoch != epochs.latest_epoch:
                epochs.assign(header.partition_leader_epoch, header.base_offset)
            if header.producer_id >= 0:
                marker = read_marker(header, batch) if header.is_control else None
                _follow(producers, segment, header, marker, appended_ms)
            _add(segment, header, config)
    except ProtocolError as error:
        why = str(error)
    if segment.size_bytes == size_bytes:
        return None
    os.ftruncate(segment.file.descriptor, segment.size_bytes)
    return _Cut(segment.size_bytes, size_bytes, why)


def _write_indexes(segment: Segment) -> None:
    """Write the newest segment's indexes, or leave them in memory: a full disk must not stop a start."""
    try:
        segment.offset_index.write()
        segment.time_index.write()
        segment.aborted.write()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        logger.warning("index entries wait for space", path=str(segment.path(LOG_SUFFIX)))


def _add(segment: Segment, header: BatchHeader, config: TopicConfig) -> None:
    segment.added(
        header.base_offset,
        header.size_bytes,
        header.last_offset,
        header.max_timestamp,
        config.index_interval_bytes,
    )


def _report_cut(segment: Segment, cut: _Cut, dropped: Sequence[Segment]) -> None:
    logger.warning(
        "log is cut at the first batch that does not hold",
        path=str(segment.path(LOG_SUFFIX)),
        why=cut.why,
        position=cut.position,
        bytes_cut=cut.size_bytes - cut.position,
        log_end_offset=segment.next_offset,
        segments_dropped=[dropped_segment.base_offset for dropped_segment in dropped],
    )


def _remove(segments: Sequence[Segment]) -> None:
    # Newest first, so that what is left after a crash is a log without its end.
    for segment in reversed(segments):
        segment.release_file()
        for path in reversed(segment.paths()):
            path.unlink(missing_ok=True)
