"""One pass over one log: reads the keys of its dirty part, then writes its segments anew beside the old ones.

In scope: reading and writing files, in bounded steps. Out of scope: putting the result into the place of the
old segments, which `PartitionLog` does where the log is in use.

A group of segments becomes `<base offset>.log.cleaned` with both indexes. It is complete and on the disk when
`compact_group` answers; a crash before that leaves files which recovery removes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mainstem_broker.config.topic_settings import TopicConfig
from mainstem_broker.errors import CorruptMessage
from mainstem_broker.log.compaction.facts import CompactedGroup, SegmentFacts, unfinished_files
from mainstem_broker.log.compaction.key_map import EMPTY, Int64s, KeyHash, KeyMap, bytes_for_keys
from mainstem_broker.log.compaction.messages import CompactionEnd, CompactionJob
from mainstem_broker.log.compaction.plan import group_segments
from mainstem_broker.log.compaction.records import NO_KEY, Flags, RecordTable, find_batches, read_tables
from mainstem_broker.log.compaction.rewrite import OutputBatch, Rules, rewritten, surviving
from mainstem_broker.log.compaction.transactions import AbortedBatches, MarkersWithoutBatches
from mainstem_broker.log.deletion import unlink_all
from mainstem_broker.log.files import LogFile
from mainstem_broker.log.segment import CLEANED_SUFFIX, LOG_SUFFIX, Segment, segment_path
from mainstem_broker.log.transaction_index import TransactionIndex

STRETCH_BYTES: Final = 4 * 1024 * 1024
"""Read, decoded and written at once: many records for each numpy call, and little memory."""


def run(
    job: CompactionJob, note_bytes: Callable[[int], None], key_hash: KeyHash | None = None
) -> Iterator[CompactedGroup | CompactionEnd]:
    """The groups of the pass as they are finished, and last its end.

    `note_bytes` hears of each stretch that was read or written, and may take its time. May raise OSError.

    Raises:
        CorruptMessage: a file holds something that is no batch, or a batch with a wrong checksum.
    """
    unlink_all(unfinished_files(job.directory))  # of a pass that was given up
    key_hash = key_hash or KeyHash()
    map_bytes = min(job.map_bytes, bytes_for_keys(job.end_offset - job.first_dirty_offset))
    key_map = KeyMap(map_bytes, job.first_dirty_offset)
    map_end_offset, indexed = _index(job, key_map, key_hash, note_bytes)
    if map_end_offset > job.first_dirty_offset:
        rules = Rules(
            map_end_offset, job.now_ms, job.config.delete_retention_ms, job.last_offsets, job.marker_epochs
        )
        markers = MarkersWithoutBatches()
        for group in group_segments(job.segments, job.config, map_end_offset):
            yield _compact_group(job, group, rules, markers, key_map, key_hash, note_bytes)
    yield CompactionEnd(map_end_offset, key_map.count, indexed)


def _index(
    job: CompactionJob, key_map: KeyMap, key_hash: KeyHash, note_bytes: Callable[[int], None]
) -> tuple[int, int]:
    """Fill the map; answers the offset up to which it holds, and how many records it has seen."""
    indexed = 0
    aborted = AbortedBatches(job.aborted)
    for segment in job.segments:
        if segment.end_offset <= job.first_dirty_offset or segment.base_offset >= job.end_offset:
            continue
        for stretch, batches, _ in read_stretches(job.directory, segment):
            note_bytes(len(stretch))
            for table in read_tables(stretch, batches):
                done = _add_batches(table, aborted.flags(table), job.first_dirty_offset, key_map, key_hash)
                indexed += int((table.batch < done).sum())
                if done < len(table.headers):
                    return table.base_offset(done), indexed
    return job.end_offset, indexed


def _add_batches(
    table: RecordTable, aborted: Flags, first_dirty_offset: int, key_map: KeyMap, key_hash: KeyHash
) -> int:
    """Add the first batches of the table, as many as fit, but for those that are `aborted`; answers how
    many.
    """
    rows = np.flatnonzero(
        (table.key_lengths != NO_KEY) & (table.offsets >= first_dirty_offset) & ~aborted[table.batch]
    )
    offsets = table.offsets[rows]
    high, low = key_hash.hash(table.plain, table.key_starts[rows], table.key_lengths[rows])
    # The first of these rows in each batch, and the end.
    begins = np.searchsorted(table.batch[rows], np.arange(len(table.headers) + 1))
    next_offsets = table.headers["base_offset"] + table.headers["last_offset_delta"] + 1
    reachable = int(np.searchsorted(next_offsets, key_map.end_offset_max, side="right"))
    done = 0
    while done < reachable:
        begin = begins[done]
        # However many of its keys are new, this many batches fit.
        fits = _last_at_most(begins, begin + key_map.room)
        if fits < reachable:
            # Keys that are in the map need no room: a full one takes all batches that bring nothing new.
            is_new = key_map.newest(high[begin:], low[begin:]) == EMPTY
            new_before = np.concatenate(([0], np.cumsum(is_new)))[begins[done:] - begin]
            fits = done + _last_at_most(new_before, key_map.room)
            if fits == done:
                key_map.make_room_for(int(new_before[1]))
                if key_map.room < new_before[1]:
                    break
                fits = done + 1
        done = min(fits, reachable)
        added = slice(begin, begins[done])
        key_map.add(high[added], low[added], offsets[added])
    return done


def _last_at_most(rising: Int64s, limit: int) -> int:
    """The last place in `rising`, which begins with no more than `limit`, whose number is not above it."""
    return int(np.searchsorted(rising, limit, side="right")) - 1


def _compact_group(
    job: CompactionJob,
    group: Sequence[SegmentFacts],
    rules: Rules,
    markers: MarkersWithoutBatches,
    key_map: KeyMap,
    key_hash: KeyHash,
    note_bytes: Callable[[int], None],
) -> CompactedGroup:
    output = Segment.create(
        job.directory, group[0].base_offset, job.config, job.now_ms, file_suffix=CLEANED_SUFFIX
    )
    try:
        return _write_group(output, job, group, rules, markers, key_map, key_hash, note_bytes)
    except BaseException:
        unlink_all(output.paths())  # at once: the disk may be full of it
        raise


def _write_group(
    output: Segment,
    job: CompactionJob,
    group: Sequence[SegmentFacts],
    rules: Rules,
    markers: MarkersWithoutBatches,
    key_map: KeyMap,
    key_hash: KeyHash,
    note_bytes: Callable[[int], None],
) -> CompactedGroup:
    read = kept = 0
    aborted = AbortedBatches(job.aborted)
    modified_ns = 0
    for segment in group:
        offsets_without_batches: set[int] = set()
        modified_ns = segment_path(job.directory, segment.base_offset, LOG_SUFFIX).stat().st_mtime_ns
        # `_index` has verified all of the others a moment ago.
        verify = segment.base_offset < job.first_dirty_offset or segment.end_offset > rules.map_end_offset
        for stretch, batches, is_last in read_stretches(job.directory, segment):
            note_bytes(len(stretch))
            for table in read_tables(stretch, batches, verify=verify):
                newest = _newest_offsets(table, key_map, key_hash)
                stays = surviving(table, newest, aborted.flags(table), rules)
                read += len(stays)
                kept += int(stays.sum())
                ends_stretch = table.headers["end"][-1] == batches["end"][-1]
                ends_segment = ends_stretch and is_last and segment is group[-1]
                without_batches = markers.flags(table)
                offsets_without_batches.update(table.headers["base_offset"][without_batches].tolist())
                output_batches = list(
                    rewritten(stretch, table, stays, without_batches, rules, ends_segment=ends_segment)
                )
                note_bytes(_append(output, output_batches, job.config))
        _copy_aborted(output, job.directory, segment, offsets_without_batches)
    output.seal()
    output.flush(sealed=True)
    # Retention goes by this time where records have none of their own.
    os.utime(output.path(LOG_SUFFIX), ns=(modified_ns, modified_ns))
    output.release_file()
    return CompactedGroup(
        group[0].base_offset,
        group[-1].end_offset,
        tuple(segment.base_offset for segment in group),
        tuple(segment.size_bytes for segment in group),
        output.size_bytes,
        read,
        kept,
    )


def _copy_aborted(
    output: Segment, directory: Path, segment: SegmentFacts, without_batches: Container[int]
) -> None:
    """Copy the index entries of aborted transactions, but for those whose markers have no batches.

    Nothing is left that such an entry could hide. It may not outlive the marker: readers would drop the
    producer's records up to its next abort.
    """
    index = TransactionIndex(segment_path(directory, segment.base_offset, TransactionIndex.SUFFIX))
    if not index.load(segment.base_offset, segment.end_offset):
        raise CorruptMessage(f"{index.path} is not the index of its segment; a restart rebuilds it.")
    for aborted in index:
        if aborted.last_offset not in without_batches:
            output.aborted.append(aborted)


def _newest_offsets(table: RecordTable, key_map: KeyMap, key_hash: KeyHash) -> Int64s:
    newest = np.full(len(table.batch), EMPTY, dtype=np.int64)
    rows = np.flatnonzero(table.key_lengths != NO_KEY)
    high, low = key_hash.hash(table.plain, table.key_starts[rows], table.key_lengths[rows])
    newest[rows] = key_map.newest(high, low)
    return newest


def _append(output: Segment, batches: Sequence[OutputBatch], config: TopicConfig) -> int:
    """Write the batches to the end of the output; answers how many bytes that were."""
    content = b"".join(batch.content for batch in batches)
    if not content:
        return 0
    output.write((content,), len(content))
    for batch in batches:
        output.added(
            batch.base_offset,
            len(batch.content),
            batch.last_offset,
            batch.max_timestamp,
            config.index_interval_bytes,
        )
    output.write_full_index_blocks()
    return len(content)


def read_stretches(directory: Path, segment: SegmentFacts) -> Iterator[tuple[bytes, NDArray[np.void], bool]]:
    """Whole batches of a segment, `STRETCH_BYTES` or one batch at a time, with their headers; whether
    they end it.

    Raises:
        CorruptMessage: the bytes are no batches, or the file is shorter than it was.
    """
    file = LogFile(segment_path(directory, segment.base_offset, LOG_SUFFIX), read_only=True)
    position, size_bytes = 0, STRETCH_BYTES
    while position < segment.size_bytes:
        read_bytes = min(size_bytes, segment.size_bytes - position)
        stretch = os.pread(file.descriptor, read_bytes, position)
        batches = find_batches(stretch)
        if not len(batches):
            if len(stretch) < read_bytes or read_bytes == segment.size_bytes - position:
                raise CorruptMessage(f"{file.path} ends inside a batch at byte {position}.")
            size_bytes *= 4  # a batch larger than a stretch
            continue
        end = int(batches["end"][-1])
        position += end
        size_bytes = STRETCH_BYTES
        yield stretch[:end], batches, position == segment.size_bytes
